"""ACLs and the authorizer: Kafka's StandardAuthorizer.

An ACL allows or denies a principal, from a host, an operation on the resources of a name or a
prefix. To decide on an action:

1. a super user may do everything;
2. an ACL that matches and denies wins;
3. an ACL that matches and allows comes next;
4. if the resource has no ACL at all, `allow.everyone.if.no.acl.found` decides (false);
5. everything else is denied.

READ, WRITE, DELETE and ALTER include DESCRIBE, and ALTER_CONFIGS includes DESCRIBE_CONFIGS, where
they are allowed; where they are denied, they do not.
"""

from __future__ import annotations

import enum
import shlex
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from stratalog.broker.authorization import CLUSTER_NAME, Authorizer, Operation, Resource
from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from stratalog.broker.requests import Session

ANY_NAME: Final = "*"
"""A literal name that matches all names; as a host, all hosts."""
ANY_PRINCIPAL: Final = "User:*"
_PROBE_NAME: Final = "hardcode"
"""Kafka's name for "any resource": whether an ACL on `*` allows it."""
_DECISIONS_MAX: Final = 10_000


class Permission(enum.IntEnum):
    """Whether an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class PatternType(enum.IntEnum):
    """How the name of an ACL is compared; ANY and MATCH occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


_INCLUDED_IN: Final = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}


class Acl(NamedTuple):
    """One rule."""

    resource: Resource
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    @property
    def is_prefix(self) -> bool:
        return self.pattern_type is PatternType.PREFIXED

    def is_for(self, session: Session) -> bool:
        """Whether the rule is about this client."""
        is_principal = self.principal in {session.principal, ANY_PRINCIPAL}
        return is_principal and self.host in {session.host, ANY_NAME}

    def covers(self, operation: Operation) -> bool:
        """Whether the rule is about the operation."""
        if self.operation in {operation, Operation.ALL}:
            return True
        is_allowing = self.permission is Permission.ALLOW
        return is_allowing and self.operation in _INCLUDED_IN.get(operation, ())


class AclFilter(NamedTuple):
    """Which ACLs a client wants to see or delete. None and ANY match everything."""

    resource: Resource
    name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource in {Resource.ANY, acl.resource}
            and self._matches_name(acl)
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and self.operation in {Operation.ANY, acl.operation}
            and self.permission in {Permission.ANY, acl.permission}
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern_type in {PatternType.LITERAL, PatternType.PREFIXED}:
            return self.pattern_type is acl.pattern_type and self.name in {None, acl.name}
        if self.name is None or self.pattern_type is PatternType.ANY:
            return self.name in {None, acl.name}
        if acl.is_prefix:
            return self.name.startswith(acl.name)
        return acl.name in {self.name, ANY_NAME}


class _Resources:
    """The ACLs of one type of resource, by name."""

    def __init__(self) -> None:
        self.literal: dict[str, list[Acl]] = {}
        self.prefixed: dict[str, list[Acl]] = {}

    def add(self, acl: Acl) -> None:
        by_name = self.prefixed if acl.is_prefix else self.literal
        by_name.setdefault(acl.name, []).append(acl)

    def matching(self, name: str) -> Iterator[Acl]:
        """The ACLs on a resource."""
        yield from self.literal.get(name, ())
        if name != ANY_NAME:
            yield from self.literal.get(ANY_NAME, ())
        if self.prefixed:
            for end in range(len(name) + 1):
                yield from self.prefixed.get(name[:end], ())

    def all(self) -> Iterator[Acl]:
        for by_name in (self.literal, self.prefixed):
            for acls in by_name.values():
                yield from acls


class AclAuthorizer(Authorizer):
    """Decides by ACLs."""

    def __init__(
        self,
        acls: Iterable[Acl] = (),
        *,
        super_users: Collection[str] = (),
        allows_without_acl: bool = False,
    ) -> None:
        """`super_users` are principals; `allows_without_acl` is Kafka's
        `allow.everyone.if.no.acl.found`."""
        self._super_users = frozenset(super_users)
        self._allows_without_acl = allows_without_acl
        self.replace(acls)

    def replace(self, acls: Iterable[Acl]) -> None:
        """Use these ACLs from now on."""
        self._resources: dict[Resource, _Resources] = {}
        for acl in acls:
            self._resources.setdefault(acl.resource, _Resources()).add(acl)
        self._decisions: dict[tuple[str, str, Operation, Resource, str], bool] = {}

    def allows(
        self, session: Session, operation: Operation, resource: Resource, name: str = CLUSTER_NAME
    ) -> bool:
        """Whether a client may do this. Decisions are remembered until the ACLs change."""
        if session.principal in self._super_users:
            return True
        key = (session.principal, session.host, operation, resource, name)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= _DECISIONS_MAX:
                self._decisions.clear()  # names come from clients: memory stays bounded
            decision = self._decisions[key] = self._decide(session, operation, resource, name)
        return decision

    def _decide(
        self, session: Session, operation: Operation, resource: Resource, name: str
    ) -> bool:
        resources = self._resources.get(resource)
        has_acl = is_allowed = False
        for acl in () if resources is None else resources.matching(name):
            has_acl = True
            if not acl.is_for(session) or not acl.covers(operation):
                continue
            if acl.permission is Permission.DENY:
                return False
            is_allowed = True
        return is_allowed or (not has_acl and self._allows_without_acl)

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        if self.allows(session, operation, resource, _PROBE_NAME):
            return True
        resources = self._resources.get(resource)
        if resources is None:
            return False
        operations = {operation, Operation.ALL}
        own = [
            acl for acl in resources.all() if acl.is_for(session) and acl.operation in operations
        ]
        denied = [acl for acl in own if acl.permission is Permission.DENY]
        allowed = [acl for acl in own if acl.permission is Permission.ALLOW]
        return any(not any(_hides(deny, allow) for deny in denied) for allow in allowed)


def _hides(deny: Acl, allow: Acl) -> bool:
    """Whether a denying ACL leaves nothing of an allowing one."""
    if deny.is_prefix:
        return allow.name.startswith(deny.name)
    return deny.name == ANY_NAME or (not allow.is_prefix and deny.name == allow.name)


# -- a file of ACLs

_RESOURCE_WORDS: Final = {
    "topic": Resource.TOPIC,
    "group": Resource.GROUP,
    "cluster": Resource.CLUSTER,
    "transactional-id": Resource.TRANSACTIONAL_ID,
    "delegation-token": Resource.DELEGATION_TOKEN,
    "user-principal": Resource.USER,
}
_OPERATION_WORDS: Final = {
    operation.name.replace("_", "").lower(): operation
    for operation in Operation
    if operation >= Operation.ALL
}
_PERMISSION_WORDS: Final = {"allow": Permission.ALLOW, "deny": Permission.DENY}
_FORM: Final = "allow|deny PRINCIPAL OPERATION,… on RESOURCE [prefix] NAME [from HOST]"

T = TypeVar("T")


def read_acls(path: Path) -> list[Acl]:
    """The ACLs of a file. Raises ConfigError."""
    return parse_acls(read_text(path), path)


def read_text(path: Path) -> str:
    """A file of settings. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error  # without the path, which comes first
        raise ConfigError("", f"cannot be read: {reason}", path=path) from None


def parse_acls(text: str, path: Path | None = None) -> list[Acl]:
    """The ACLs of a file: one rule per line, `#` begins a comment.

        allow User:alice Read,Describe on topic orders
        allow User:bob All on topic prefix app-
        deny User:* Write on topic audit from 10.0.0.7
        allow User:carol Create on cluster

    Raises ConfigError with the line.
    """
    acls: list[Acl] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            acls += _parse_line(line)
        except ValueError as error:
            raise ConfigError(f"line {number}", str(error), value=line, path=path) from None
    return acls


def _parse_line(line: str) -> list[Acl]:
    words = shlex.split(line, comments=True)
    if not words:
        return []
    host = ANY_NAME
    if len(words) > 2 and words[-2].lower() == "from":
        host = words[-1]
        words = words[:-2]
    if len(words) < 5 or words[3].lower() != "on":
        raise ValueError(f"expected: {_FORM}")
    permission = _word(_PERMISSION_WORDS, words[0], "permission")
    principal = words[1]
    if ":" not in principal:
        raise ValueError(f"{principal!r} is not a principal; write User:{principal}")
    operations = [
        _word(_OPERATION_WORDS, word.replace("_", ""), "operation") for word in words[2].split(",")
    ]
    resource, name, pattern = _parse_resource(words[4:])
    return [
        Acl(resource, name, pattern, principal, host, operation, permission)
        for operation in operations
    ]


def _parse_resource(words: list[str]) -> tuple[Resource, str, PatternType]:
    resource = _word(_RESOURCE_WORDS, words[0], "resource")
    rest, pattern = words[1:], PatternType.LITERAL
    if len(rest) == 2 and rest[0].lower() == "prefix":
        rest, pattern = rest[1:], PatternType.PREFIXED
    if resource is Resource.CLUSTER:
        if rest not in ([], [CLUSTER_NAME]) or pattern is PatternType.PREFIXED:
            raise ValueError(f"the only name of a cluster is {CLUSTER_NAME}")
        return resource, CLUSTER_NAME, pattern
    if len(rest) != 1 or not rest[0]:
        raise ValueError(f"expected one name; the form of a line: {_FORM}")
    return resource, rest[0], pattern


def _word(words: dict[str, T], word: str, what: str) -> T:
    found = words.get(word.lower())
    if found is None:
        raise ValueError(f"{word!r} is not a valid {what}; use one of {', '.join(words)}")
    return found

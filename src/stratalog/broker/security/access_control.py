"""Who may log in and do what: SCRAM credentials and ACLs, and the requests that change them.

Both come from two places: what clients have created, which is stored with the log directory, and
what the broker was started with (a file of users, a file of ACLs), which clients cannot change.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from stratalog.broker.authorization import CLUSTER_NAME, Authorizer, Operation, Resource
from stratalog.broker.requests import HandlerGroup, handles
from stratalog.broker.security.acls import Acl, AclAuthorizer, AclFilter, PatternType, Permission
from stratalog.broker.security.sasl import FixedUsers
from stratalog.broker.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
)
from stratalog.config.broker import read_properties
from stratalog.errors import ConfigError, RequestError
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    import enum
    from collections.abc import Collection, Iterable, Mapping

    from stratalog.broker.context import BrokerContext
    from stratalog.broker.requests import Request, Session
    from stratalog.broker.security.store import SecurityStore
    from stratalog.wire.frames import Body

    _Credentials: TypeAlias = dict[tuple[str, ScramMechanism], ScramCredential]

E = TypeVar("E", bound="enum.IntEnum")


class AccessControl:
    """The credentials and ACLs of a broker."""

    def __init__(
        self,
        store: SecurityStore,
        *,
        users: Mapping[str, str] | None = None,
        fixed_acls: Iterable[Acl] = (),
        authorizer: AclAuthorizer | None = None,
        is_read_only: bool = False,
    ) -> None:
        """`users` have passwords, `fixed_acls` come from a file. Without an authorizer everybody
        may do everything. `is_read_only`: nothing can be stored."""
        self._store = store
        self._users = FixedUsers(users or {})
        self._fixed_acls = tuple(fixed_acls)
        self._authorizer = authorizer
        self._is_read_only = is_read_only
        self._apply_acls()

    @property
    def authorizer(self) -> Authorizer:
        """What the handlers ask."""
        return self._authorizer or Authorizer()

    @property
    def has_authorizer(self) -> bool:
        return self._authorizer is not None

    # -- credentials

    def of_listener(self, users: Mapping[str, str]) -> ListenerCredentials:
        """The credentials on a listener that has users of its own."""
        return ListenerCredentials(self, FixedUsers(users))

    @property
    def credentials(self) -> Mapping[tuple[str, ScramMechanism], ScramCredential]:
        """The SCRAM credentials that clients have created."""
        return self._store.state.credentials

    def change_credentials(self, credentials: _Credentials) -> None:
        self._check_writable()
        self._store.update(credentials=credentials)

    def password(self, user: str) -> str | None:
        return self._users.password(user)

    def scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """What a client has stored counts more than the file of users."""
        stored = self.credentials.get((user, mechanism))
        return self._users.scram(mechanism, user) if stored is None else stored

    # -- ACLs

    @property
    def acls(self) -> tuple[Acl, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((*self._fixed_acls, *self._store.state.acls)))

    def is_fixed(self, acl: Acl) -> bool:
        """Whether an ACL comes from the file, so that clients cannot delete it."""
        return acl in self._fixed_acls

    def add_acls(self, acls: Iterable[Acl]) -> None:
        known = set(self.acls)
        new = tuple(acl for acl in dict.fromkeys(acls) if acl not in known)
        if new:
            self._change_acls((*self._store.state.acls, *new))

    def delete_acls(self, acls: Collection[Acl]) -> None:
        left = tuple(acl for acl in self._store.state.acls if acl not in acls)
        if left != self._store.state.acls:
            self._change_acls(left)

    def _change_acls(self, acls: tuple[Acl, ...]) -> None:
        self._check_writable()
        self._store.update(acls=acls)
        self._apply_acls()

    def _apply_acls(self) -> None:
        if self._authorizer is not None:
            self._authorizer.replace(self.acls)

    def _check_writable(self) -> None:
        if self._is_read_only:
            raise RequestError(ErrorCode.POLICY_VIOLATION, "The log directory is served read-only.")


class ListenerCredentials:
    """The credentials that count on one listener."""

    def __init__(self, access_control: AccessControl, own: FixedUsers) -> None:
        self._access_control = access_control
        self._own = own

    def password(self, user: str) -> str | None:
        own = self._own.password(user)
        return self._access_control.password(user) if own is None else own

    def scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self._access_control.scram(mechanism, user)


def read_users(users: Mapping[str, str] | Path | str | None) -> dict[str, str]:
    """Passwords by user: as they are, or those of a file with a line `name=password` for each.
    Raises ConfigError."""
    if users is None:
        return {}
    if not isinstance(users, Path | str):
        return dict(users)
    path = Path(users)
    found = read_properties(path)
    for user, password in found.items():
        if not user or not password:
            raise ConfigError(user, "has no password; a line is name=password", path=path)
    return found


class AccessControlHandlers(HandlerGroup):
    """SCRAM credentials and ACLs, as clients see and change them."""

    def __init__(self, context: BrokerContext, access_control: AccessControl) -> None:
        self._context = context
        self._access_control = access_control

    def _may(self, session: Session, operation: Operation) -> bool:
        return self._context.authorizer.allows(session, operation, Resource.CLUSTER)

    # -- SCRAM credentials

    @handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
    def describe_scram(self, request: Request) -> Body:
        if not self._may(request.session, Operation.DESCRIBE):
            raise _forbidden()
        stored: dict[str, list[Body]] = {}
        for (user, mechanism), credential in sorted(
            self._access_control.credentials.items(),
            key=lambda item: (item[0][0], item[0][1].value),
        ):
            info = {"mechanism": mechanism.value, "iterations": credential.iterations}
            stored.setdefault(user, []).append(info)
        names = [user["name"] for user in request.body["users"] or ()] or list(stored)
        results = [
            self._described(name, stored.get(name), names.count(name))
            for name in dict.fromkeys(names)
        ]
        return {"errorMessage": "", "results": results}

    @staticmethod
    def _described(name: str, infos: list[Body] | None, times_asked: int) -> Body:
        if times_asked > 1:
            message = (
                "Cannot describe SCRAM credentials for the same user twice in a single request: "
                f"{name}"
            )
            return _user_result(name, ErrorCode.DUPLICATE_RESOURCE, message)
        if infos is None:
            message = f"Attempt to describe a user credential that does not exist: {name}"
            return _user_result(name, ErrorCode.RESOURCE_NOT_FOUND, message)
        return {"user": name, "errorCode": 0, "errorMessage": "", "credentialInfos": infos}

    @handles(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    def alter_scram(self, request: Request) -> Body:
        deletions, upsertions = request.body["deletions"], request.body["upsertions"]
        names = [each["name"] for each in (*deletions, *upsertions)]
        if not self._may(request.session, Operation.ALTER):
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return {"results": [_user_result(name, code, None) for name in dict.fromkeys(names)]}
        failed: dict[str, RequestError] = {
            name: RequestError(
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
            for name in names
            if names.count(name) > 1
        }
        changed = dict(self._access_control.credentials)
        for change, apply in (
            *((each, self._delete) for each in deletions),
            *((each, self._upsert) for each in upsertions),
        ):
            if change["name"] not in failed:
                try:
                    apply(changed, change)
                except RequestError as problem:
                    failed[change["name"]] = problem
        if changed != self._access_control.credentials:
            self._access_control.change_credentials(changed)
        return {
            "results": [
                _user_result(name, error.code, error.message)
                if (error := failed.get(name)) is not None
                else _user_result(name, 0, None)
                for name in dict.fromkeys(names)
            ]
        }

    @staticmethod
    def _delete(credentials: _Credentials, change: Body) -> None:
        key = (change["name"], _mechanism(change))
        if key not in credentials:
            raise RequestError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        del credentials[key]

    @staticmethod
    def _upsert(credentials: _Credentials, change: Body) -> None:
        mechanism, iterations = _mechanism(change), change["iterations"]
        problem = None
        if not change["name"]:
            problem = "Username must not be empty"
        elif iterations < ITERATIONS_MIN:
            problem = "Too few iterations"
        elif iterations > ITERATIONS_MAX:
            problem = "Too many iterations"
        if problem is not None:
            raise RequestError(ErrorCode.UNACCEPTABLE_CREDENTIAL, problem)
        credentials[change["name"], mechanism] = ScramCredential.of_salted_password(
            mechanism,
            bytes(change["saltedPassword"]),
            iterations=iterations,
            salt=bytes(change["salt"]),
        )

    # -- ACLs

    @handles(ApiKey.DESCRIBE_ACLS)
    def describe_acls(self, request: Request) -> Body:
        self._check_acls(request.session, Operation.DESCRIBE)
        wanted = _filter_of(request.body)
        by_resource: dict[tuple[Resource, str, PatternType], list[Acl]] = {}
        for acl in self._access_control.acls:
            if wanted.matches(acl):
                by_resource.setdefault(acl[:3], []).append(acl)
        resources = [
            {
                "resourceType": int(resource),
                "resourceName": name,
                "patternType": int(pattern),
                "acls": [_entry(acl) for acl in acls],
            }
            for (resource, name, pattern), acls in by_resource.items()
        ]
        return {"errorMessage": "", "resources": resources}

    @handles(ApiKey.CREATE_ACLS)
    def create_acls(self, request: Request) -> Body:
        creations = request.body["creations"]
        created, results = [], []
        try:
            self._check_acls(request.session, Operation.ALTER)
            for creation in creations:
                try:
                    created.append(_acl_of(creation))
                    results.append({"errorCode": 0, "errorMessage": ""})
                except RequestError as error:
                    results.append(_error(error))
            self._access_control.add_acls(created)
        except RequestError as error:
            return {"results": [_error(error)] * len(creations)}
        return {"results": results}

    @handles(ApiKey.DELETE_ACLS)
    def delete_acls(self, request: Request) -> Body:
        filters = request.body["filters"]
        try:
            self._check_acls(request.session, Operation.ALTER)
            found = [self._found(each) for each in filters]
            self._access_control.delete_acls({acl for each in found for acl in each.acls})
        except RequestError as error:
            return {"filterResults": [{**_error(error), "matchingAcls": []}] * len(filters)}
        return {"filterResults": [self._deleted(each) for each in found]}

    def _found(self, wanted: Body) -> _FilterResult:
        try:
            chosen = _filter_of(wanted)
        except RequestError as error:
            return _FilterResult((), error)
        return _FilterResult(tuple(acl for acl in self._access_control.acls if chosen.matches(acl)))

    def _deleted(self, found: _FilterResult) -> Body:
        if found.error is not None:
            return {**_error(found.error), "matchingAcls": []}
        return {
            "errorCode": 0,
            "errorMessage": None,
            "matchingAcls": [
                {
                    **(
                        _error(_fixed()) if self._access_control.is_fixed(acl) else {"errorCode": 0}
                    ),
                    "resourceType": int(acl.resource),
                    "resourceName": acl.name,
                    "patternType": int(acl.pattern_type),
                    **_entry(acl),
                }
                for acl in found.acls
            ],
        }

    def _check_acls(self, session: Session, operation: Operation) -> None:
        if not self._access_control.has_authorizer:
            raise RequestError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
        if not self._may(session, operation):
            raise _forbidden()


class _FilterResult(NamedTuple):
    """What a filter has found."""

    acls: tuple[Acl, ...]
    error: RequestError | None = None


def _error(error: RequestError) -> Body:
    return {"errorCode": int(error.code), "errorMessage": error.message}


def _forbidden() -> RequestError:
    return RequestError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


def _fixed() -> RequestError:
    return RequestError(
        ErrorCode.POLICY_VIOLATION, "The ACL is in the broker's file of ACLs: delete it there."
    )


def _user_result(name: str, code: int, message: str | None) -> Body:
    return {"user": name, "errorCode": int(code), "errorMessage": message}


def _mechanism(change: Body) -> ScramMechanism:
    try:
        return ScramMechanism(change["mechanism"])
    except ValueError:
        message = "Unknown SCRAM mechanism"
        raise RequestError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, message) from None


def _entry(acl: Acl) -> Body:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permissionType": int(acl.permission),
    }


def _member(kind: type[E], number: int, name: str, *, excluded: Collection[int] = ()) -> E:
    """One of the values of a field. Raises RequestError for another, and for those excluded."""
    try:
        member = kind(number)
    except ValueError:
        member = kind(0)  # UNKNOWN
    if member in excluded or member == 0:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"Invalid {name} {member.name}")
    return member


def _acl_of(creation: Body) -> Acl:
    """A new ACL. Raises RequestError with Kafka's reason."""
    resource = _member(Resource, creation["resourceType"], "resourceType", excluded={1})
    name = creation["resourceName"]
    pattern = _member(
        PatternType, creation.get("resourcePatternType", 3), "patternType", excluded={1, 2}
    )
    operation = _member(Operation, creation["operation"], "operation", excluded={1})
    permission = _member(Permission, creation["permissionType"], "permissionType", excluded={1})
    problem = None
    if not name:
        problem = "Invalid empty resource name"
    elif resource is Resource.CLUSTER and name != CLUSTER_NAME:
        problem = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif ":" not in creation["principal"]:
        problem = f"Could not parse principal from `{creation['principal']}`"
    if problem is not None:
        raise RequestError(ErrorCode.INVALID_REQUEST, problem)
    return Acl(
        resource, name, pattern, creation["principal"], creation["host"], operation, permission
    )


def _filter_of(wanted: Body) -> AclFilter:
    """A filter. Raises RequestError if it has an unknown element."""
    return AclFilter(
        _member(Resource, wanted["resourceTypeFilter"], "resourceType"),
        wanted["resourceNameFilter"],
        _member(PatternType, wanted.get("patternTypeFilter", 3), "patternType"),
        wanted["principalFilter"],
        wanted["hostFilter"],
        _member(Operation, wanted["operation"], "operation"),
        _member(Permission, wanted["permissionType"], "permissionType"),
    )

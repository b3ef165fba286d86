"""`stratalog-security.json`: the ACLs and SCRAM credentials that clients have created.

Kafka keeps them in its metadata log. Here each log directory has a copy of this file, next to
`stratalog-state.json`; brokers ignore both. It is a file of its own because it holds secrets: only
its owner may read it. A copy has a generation, and the highest counts: a crash between two copies
leaves a change that is complete and acknowledged or, if no copy was written, did not happen.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from stratalog.broker.authorization import Operation, Resource
from stratalog.broker.security.acls import Acl, PatternType, Permission
from stratalog.broker.security.scram import SCRAM_MECHANISMS, ScramCredential
from stratalog.format.json_files import as_count, as_text, decode_json, encode_json
from stratalog.storage.log_file import read_decoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from stratalog.broker.security.scram import ScramMechanism
    from stratalog.storage.disk import Disk

SECURITY_FILE: Final = "stratalog-security.json"
VERSION: Final = 1
_OWNER_ONLY: Final = 0o600
_CREDENTIAL: Final = re.compile(
    r"salt=(?P<salt>[^,]*),stored_key=(?P<stored_key>[^,]+),server_key=(?P<server_key>[^,]+),"
    r"iterations=(?P<iterations>[0-9]{1,9})"
)


@dataclass(frozen=True)
class SecurityState:
    """The content of the file."""

    generation: int = 0
    """Incremented by each write."""
    acls: tuple[Acl, ...] = ()
    credentials: Mapping[tuple[str, ScramMechanism], ScramCredential] = field(default_factory=dict)
    """By user and mechanism."""


class SecurityStore:
    """The current state and its copies in the log directories."""

    def __init__(self, disk: Disk, dirs: Sequence[Path]) -> None:
        """Reads the copies. Raises CorruptError if one cannot be parsed: rights would be lost."""
        self._disk = disk
        self._paths = [path / SECURITY_FILE for path in dirs]
        copies = [read_decoded(path, decode_security) for path in self._paths]
        written = (copy for copy in copies if copy is not None)
        self.state = max(written, key=lambda copy: copy.generation, default=SecurityState())

    def update(
        self,
        *,
        acls: tuple[Acl, ...] | None = None,
        credentials: Mapping[tuple[str, ScramMechanism], ScramCredential] | None = None,
    ) -> None:
        """Replace what is given. On return it is on disk in all directories."""
        state = replace(
            self.state,
            generation=self.state.generation + 1,
            acls=self.state.acls if acls is None else acls,
            credentials=self.state.credentials if credentials is None else credentials,
        )
        for path in self._paths:
            self._disk.write_atomically(path, encode_security(state), mode=_OWNER_ONLY)
            self.state = state


def encode_security(state: SecurityState) -> bytes:
    """The content of the file: JSON, with Kafka's names."""
    users: dict[str, dict[str, str]] = {}
    for (user, mechanism), credential in state.credentials.items():
        users.setdefault(user, {})[mechanism.kafka_name] = credential_text(credential)
    content = {
        "version": VERSION,
        "generation": state.generation,
        "scram": users,
        "acls": [_acl_json(acl) for acl in state.acls],
    }
    return encode_json(content)


def decode_security(data: bytes) -> SecurityState:
    """Strict: anything not understood would be lost with the next write."""
    return decode_json(
        data,
        _state_of,
        "the ACLs and credentials of a log directory",
        file=SECURITY_FILE,
        versions=(VERSION,),
    )


def _state_of(content: Any) -> SecurityState:
    credentials = {
        (as_text(user), SCRAM_MECHANISMS[name]): parse_credential(as_text(text))
        for user, by_mechanism in content["scram"].items()
        for name, text in by_mechanism.items()
    }
    acls = tuple(_acl_of(acl) for acl in content["acls"])
    return SecurityState(as_count(content["generation"]), acls, credentials)


def _acl_json(acl: Acl) -> dict[str, str]:
    return {
        "resourceType": acl.resource.name,
        "resourceName": acl.name,
        "patternType": acl.pattern_type.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permissionType": acl.permission.name,
    }


def _acl_of(content: Any) -> Acl:
    return Acl(
        Resource[content["resourceType"]],
        as_text(content["resourceName"]),
        PatternType[content["patternType"]],
        as_text(content["principal"]),
        as_text(content["host"]),
        Operation[content["operation"]],
        Permission[content["permissionType"]],
    )


def credential_text(credential: ScramCredential) -> str:
    """Kafka's text of a credential."""
    salt, stored_key, server_key = (b64encode(part).decode() for part in credential[:3])
    return (
        f"salt={salt},stored_key={stored_key},server_key={server_key},"
        f"iterations={credential.iterations}"
    )


def parse_credential(text: str) -> ScramCredential:
    """The credential of a text. Raises ValueError."""
    found = _CREDENTIAL.fullmatch(text)
    if found is None:
        raise ValueError("not a SCRAM credential")
    salt, stored_key, server_key = (
        b64decode(found[name], validate=True) for name in ("salt", "stored_key", "server_key")
    )
    return ScramCredential(salt, stored_key, server_key, int(found["iterations"]))

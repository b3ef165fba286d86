"""NetworkConfig: a broker's settings about connections, authentication and authorization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.config.definitions import Definitions, setting
from stratalog.config.values import INT_MAX, MINUTE_MS, Boolean, integer, long_integer
from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_AUTHORIZERS: Final = frozenset(
    {
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "kafka.security.authorizer.AclAuthorizer",
    }
)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The settings by Kafka's names, with `_` for `.`."""

    allow_everyone_if_no_acl_found: bool = setting(Boolean(), False)
    """Whether everyone may use a resource that has no ACL."""
    connection_failed_authentication_delay_ms: int = setting(integer(0), 100)
    """Delay of the response to a failed authentication."""
    connections_max_idle_ms: int = setting(long_integer(), 10 * MINUTE_MS)
    """A connection is closed if its client neither sends requests nor reads responses for this
    time."""
    connections_max_reauth_ms: int = setting(long_integer(0), 0)
    """Time within which a SASL client must reauthenticate; 0: never."""
    max_connections: int = setting(integer(0), INT_MAX)
    """Maximum number of connections. Further clients wait until one is closed."""
    max_connections_per_ip: int = setting(integer(0), INT_MAX)
    """Maximum number of connections from one address. Further ones are closed at once."""
    queued_max_request_bytes: int = setting(long_integer(), 256 << 20)
    """Memory for requests that have arrived only in part; -1, Kafka's default, means no limit."""
    sasl_server_max_receive_size: int = setting(integer(), 512 << 10)
    """Largest request of a client that has not authenticated yet."""
    socket_request_max_bytes: int = setting(integer(1), 100 << 20)
    """Largest request."""

    def __post_init__(self) -> None:
        NETWORK_DEFINITIONS.validate(self)

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> NetworkConfig:
        """From a broker's settings; those of other parts are ignored. Raises ConfigError."""
        values = {
            definition.field: definition.parse(settings[name])
            for name, definition in NETWORK_DEFINITIONS.items()
            if name in settings
        }
        return cls(**values)


NETWORK_DEFINITIONS: Final = Definitions.of(NetworkConfig)


def has_authorizer(settings: Mapping[str, str]) -> bool:
    """Whether `authorizer.class.name` asks for ACLs."""
    name = settings.get("authorizer.class.name", "").strip()
    if name and name not in _AUTHORIZERS:
        reason = f"{name!r} is not supported; use {sorted(_AUTHORIZERS)[-1]}"
        raise ConfigError("authorizer.class.name", reason, value=name)
    return bool(name)


def super_users(settings: Mapping[str, str]) -> frozenset[str]:
    """The principals of `super.users`, which are separated by semicolons."""
    text = settings.get("super.users", "")
    names = frozenset(part.strip() for part in text.split(";") if part.strip())
    for name in names:
        if ":" not in name:
            reason = f"{name!r} is not a principal; write User:{name}"
            raise ConfigError("super.users", reason, value=text)
    return names

"""Listeners: where the broker accepts connections, and what a client must show on each of them.

The settings are Kafka's: `listeners`, `advertised.listeners`, `listener.security.protocol.map`,
and everything of `ssl.*` and `sasl.*` also with the prefix `listener.name.<listener>.`, which wins.
A listener for controllers (`controller.listener.names`) is left out: there is no quorum here.
"""

from __future__ import annotations

import enum
import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.broker.security.sasl import MECHANISMS
from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOOPBACK: Final = "127.0.0.1"
_PORT_MAX: Final = 0xFFFF
_ENDPOINT: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_.\-]+)://(?:\[(?P<host6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/]*)):"
    r"(?P<port>[0-9]{1,5})"
)
_WILDCARD_HOSTS: Final = frozenset({"", "0.0.0.0", "::"})
_JAAS_USER: Final = re.compile(
    r"\buser_(?P<user>[^\s=]+)\s*=\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<plain>[^\s;]+))"
)


class SecurityProtocol(enum.Enum):
    """What a connection is wrapped in: TLS or not, SASL or not."""

    PLAINTEXT = (False, False)
    SSL = (True, False)
    SASL_PLAINTEXT = (False, True)
    SASL_SSL = (True, True)

    @property
    def has_tls(self) -> bool:
        return self.value[0]

    @property
    def has_sasl(self) -> bool:
        return self.value[1]


@dataclass(frozen=True)
class Listener:
    """One address that the broker listens on."""

    name: str
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    host: str = LOOPBACK
    """Empty for all interfaces."""
    port: int = 0
    """0: the system chooses one."""
    advertised_host: str | None = None
    """None: the address of the broker's side of the client's own connection."""
    advertised_port: int | None = None
    settings: Mapping[str, str] | None = None
    """The settings of `ssl.*` and `sasl.*` for this listener, without its prefix."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    def setting(self, name: str) -> str | None:
        """A setting of this listener; None if it is absent or empty."""
        return (self.settings or {}).get(name, "").strip() or None

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms that are offered, in Kafka's order."""
        text = self.setting("sasl.enabled.mechanisms")
        names = MECHANISMS if text is None else tuple(name.strip() for name in text.split(","))
        for name in names:
            if name not in MECHANISMS:
                reason = f"{name!r} is not supported; use {', '.join(MECHANISMS)}"
                raise ConfigError("sasl.enabled.mechanisms", reason, value=text)
        return tuple(name for name in MECHANISMS if name in names)

    @property
    def plain_users(self) -> dict[str, str]:
        """The users in the JAAS config of PLAIN: `user_NAME="PASSWORD"`."""
        text = self.setting("plain.sasl.jaas.config") or self.setting("sasl.jaas.config") or ""
        return {
            found["user"]: found["plain"] if found["quoted"] is None else found["quoted"]
            for found in _JAAS_USER.finditer(text)
        }

    @property
    def client_auth(self) -> str:
        """`ssl.client.auth`: none, requested or required."""
        text = (self.setting("ssl.client.auth") or "none").lower()
        if text not in {"none", "requested", "required"}:
            reason = f"{text!r} must be none, requested or required"
            raise ConfigError("ssl.client.auth", reason, value=text)
        return text

    @property
    def has_authentication(self) -> bool:
        """Whether every client proves who it is."""
        has_certificates = self.protocol.has_tls and self.client_auth == "required"
        return self.protocol.has_sasl or has_certificates

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can connect."""
        if self.host in _WILDCARD_HOSTS:
            return False
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            pass
        try:
            found = socket.getaddrinfo(self.host, None)
        except OSError:
            return False
        return all(ipaddress.ip_address(address[4][0]).is_loopback for address in found)


def parse_listeners(settings: Mapping[str, str]) -> list[Listener]:
    """The listeners of a broker's settings; without `listeners`, one on loopback. Raises
    ConfigError."""
    text = settings.get("listeners", "").strip() or f"PLAINTEXT://{LOOPBACK}:0"
    protocols = _protocol_map(settings)
    controllers = {name.upper() for name in _words(settings.get("controller.listener.names", ""))}
    advertised = {
        name: (host, port)
        for name, host, port in _endpoints("advertised.listeners", settings)
        if name not in controllers
    }
    found: dict[str, Listener] = {}
    for name, host, port in _endpoints("listeners", {"listeners": text}):
        if name in controllers:
            continue
        if name in found:
            raise ConfigError("listeners", f"{name} is listed twice", value=text)
        if name not in protocols:
            reason = f"{name} is not a security protocol; add it to listener.security.protocol.map"
            raise ConfigError("listeners", reason, value=text)
        shown_host, shown_port = advertised.pop(name, (None, None))
        found[name] = Listener(
            name,
            protocols[name],
            host,
            port,
            advertised_host=shown_host,
            advertised_port=shown_port,
            settings=_settings_of(name, settings),
        )
    if advertised:
        reason = f"{', '.join(advertised)} is not among the listeners"
        raise ConfigError("advertised.listeners", reason)
    if not found:
        raise ConfigError("listeners", "no listener for clients", value=text)
    _check_ports(list(found.values()))
    return list(found.values())


def _endpoints(setting: str, settings: Mapping[str, str]) -> list[tuple[str, str, int]]:
    """Name, host and port of each part of a list of listeners."""
    found = []
    for part in _words(settings.get(setting, "")):
        match = _ENDPOINT.fullmatch(part)
        if match is None or int(match["port"]) > _PORT_MAX:
            reason = f"{part!r} is not NAME://HOST:PORT"
            raise ConfigError(setting, reason, value=settings[setting])
        host = match["host6"] or match["host"]
        if setting == "advertised.listeners" and host in _WILDCARD_HOSTS:
            reason = f"{part!r} names no host that a client can connect to"
            raise ConfigError(setting, reason, value=settings[setting])
        found.append((match["name"].upper(), host, int(match["port"])))
    return found


def _protocol_map(settings: Mapping[str, str]) -> dict[str, SecurityProtocol]:
    text = settings.get("listener.security.protocol.map", "")
    protocols = {protocol.name: protocol for protocol in SecurityProtocol}
    for part in _words(text):
        name, colon, protocol = part.partition(":")
        if not colon or protocol.upper() not in SecurityProtocol.__members__:
            names = ", ".join(SecurityProtocol.__members__)
            reason = f"{part!r} is not NAME:PROTOCOL; protocols are {names}"
            raise ConfigError("listener.security.protocol.map", reason, value=text)
        protocols[name.upper()] = SecurityProtocol[protocol.upper()]
    return protocols


def _settings_of(name: str, settings: Mapping[str, str]) -> dict[str, str]:
    prefix = f"listener.name.{name.lower()}."
    general = {
        key: value for key, value in settings.items() if key.startswith(("ssl.", "sasl.", "plain."))
    }
    own = {key[len(prefix) :]: value for key, value in settings.items() if key.startswith(prefix)}
    return general | own


def _check_ports(listeners: Sequence[Listener]) -> None:
    ports = [listener.port for listener in listeners if listener.port]
    for port in ports:
        if ports.count(port) > 1:
            raise ConfigError("listeners", f"port {port} is listed twice")


def check_exposure(listeners: Sequence[Listener]) -> None:
    """Refuse a listener that other machines reach without showing who they are."""
    for listener in listeners:
        if not listener.is_loopback and not listener.has_authentication:
            raise ConfigError(
                "listeners",
                f"{listener} accepts clients from other machines without authentication. Use "
                "SASL_SSL, or SSL with ssl.client.auth=required; or listen on 127.0.0.1; or allow "
                "it with --allow-anonymous (Python: allow_anonymous=True)",
            )


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]

"""TLS on a listener: the server's certificate, the client's, and the principal that it names.

Keys and certificates are PEM, as text in a setting (`ssl.keystore.certificate.chain`,
`ssl.keystore.key`, `ssl.truststore.certificates`) or in a file (`ssl.keystore.location`,
`ssl.truststore.location`). Java's own key stores (JKS, PKCS12) cannot be read.
"""

from __future__ import annotations

import re
import ssl
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from stratalog.broker.connection import FileSlice, Transport, hang_up
from stratalog.broker.requests import CloseConnection
from stratalog.broker.security.sasl import ANONYMOUS
from stratalog.errors import ConfigError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from stratalog.broker.security.listeners import Listener
    from stratalog.format.buffers import Buffer

T = TypeVar("T")

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def tls_context(listener: Listener) -> ssl.SSLContext:
    """The server's side of TLS for a listener. Raises ConfigError, which names the setting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = _enabled_versions(listener)
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    _load_key(context, listener)
    context.verify_mode = _VERIFY[listener.client_auth]
    if context.verify_mode != ssl.CERT_NONE:
        _load_trusted(context, listener)
    return context


def _enabled_versions(listener: Listener) -> list[ssl.TLSVersion]:
    text = listener.setting("ssl.enabled.protocols")
    names = list(_VERSIONS) if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in _VERSIONS:
            reason = f"{name!r} is not supported; use {', '.join(_VERSIONS)}"
            raise ConfigError("ssl.enabled.protocols", reason, value=text)
    return [_VERSIONS[name] for name in names]


def _load_key(context: ssl.SSLContext, listener: Listener) -> None:
    password = listener.setting("ssl.key.password") or ""
    chain = listener.setting("ssl.keystore.certificate.chain")
    key = listener.setting("ssl.keystore.key")
    if chain is not None and key is not None:
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # readable by its owner only
            file.write(f"{key}\n{chain}\n".encode())
            file.flush()
            _load_key_file(context, Path(file.name), password, "ssl.keystore.key")
        return
    setting = "ssl.keystore.location"
    location = _pem_location(listener, "keystore")
    if location is None:
        reason = f"{listener} needs the server's key and certificate in a PEM file"
        raise ConfigError(setting, reason)
    _load_key_file(context, location, password, setting)


def _load_key_file(context: ssl.SSLContext, path: Path, password: str, setting: str) -> None:
    try:
        context.load_cert_chain(path, password=lambda: password)
    except ssl.SSLError as error:
        reason = f"not a private key and its certificate in PEM: {error.reason or error}"
        raise ConfigError(setting, reason, value=str(path)) from None
    except OSError as error:
        raise ConfigError(setting, f"{path}: {error.strerror or error}", value=str(path)) from None


def _load_trusted(context: ssl.SSLContext, listener: Listener) -> None:
    text = listener.setting("ssl.truststore.certificates")
    location = None if text is not None else _pem_location(listener, "truststore")
    setting = "ssl.truststore.location"
    if text is None and location is None:
        reason = f"{listener} verifies client certificates, so it needs a list of trusted ones"
        raise ConfigError(setting, reason)
    try:
        context.load_verify_locations(cafile=location, cadata=text)
    except ssl.SSLError as error:
        reason = f"no certificates in PEM: {error.reason or error}"
        raise ConfigError(setting, reason, value=str(location)) from None
    except OSError as error:
        raise ConfigError(setting, f"{location}: {error.strerror or error}") from None


def _pem_location(listener: Listener, store: str) -> Path | None:
    location = listener.setting(f"ssl.{store}.location")
    kind = listener.setting(f"ssl.{store}.type")
    if location is not None and kind is not None and kind.upper() != "PEM":
        raise ConfigError(
            f"ssl.{store}.type",
            f"{kind!r} is not supported, only PEM; `openssl pkcs12 -in {location} -nodes` prints "
            "a PKCS12 store as PEM",
            value=kind,
        )
    return None if location is None else Path(location)


# -- a connection

_PIECE_BYTES: Final = 64 << 10


class TlsTransport(Transport):
    """A socket with TLS. The handshake is part of the first receiving; what is sent is copied and
    encrypted in pieces."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        on_handshake: Callable[[Mapping[str, Any] | None], None],
    ) -> None:
        """`on_handshake` gets the client's certificate, if it showed one."""
        super().__init__(sock)
        self._tls = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._on_handshake: Callable[[Mapping[str, Any] | None], None] | None = on_handshake
        self._unsent: bytes | None = None
        """What must be offered to TLS again, unchanged."""

    @property
    def has_pending(self) -> bool:  # type: ignore[override]  # a constant of plain sockets
        return self._on_handshake is None and self._tls.pending() > 0

    def receive(self) -> bytes | None:
        return self._attempt(lambda: self._tls.recv(_PIECE_BYTES), at_end=b"")

    def receive_into(self, room: memoryview) -> int | None:
        return self._attempt(lambda: self._tls.recv_into(room), at_end=0)

    def _attempt(self, receive: Callable[[], T], *, at_end: T) -> T | None:
        self.wants_write = False
        try:
            if self._on_handshake is not None:
                self._tls.do_handshake()
                on_handshake, self._on_handshake = self._on_handshake, None
                on_handshake(self._tls.getpeercert())
            return receive()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return at_end
        except ssl.SSLError as error:
            raise CloseConnection(f"TLS failed: {error.reason or error}") from None

    def send(self, buffers: list[Buffer], *, has_more: bool) -> int | None:
        if self._unsent is None:
            self._unsent = _joined(buffers)
        return self._send_unsent()

    def send_file(self, piece: FileSlice) -> int | None:
        if self._unsent is None:
            self._unsent = piece.read(_PIECE_BYTES)
        sent = self._send_unsent()
        if sent is not None:
            piece.skip(sent)
        return sent

    def _send_unsent(self) -> int | None:
        data = self._unsent
        assert data is not None
        try:
            sent = self._tls.send(data)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return None
        except ssl.SSLError as error:
            raise ConnectionResetError(str(error)) from None
        self._unsent = None
        return sent

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._tls.unwrap()  # says goodbye; does not wait for the response
        hang_up(self._tls)


def _joined(buffers: list[Buffer]) -> bytes:
    """The first bytes of some buffers."""
    joined = b""
    for buffer in buffers:
        joined += bytes(buffer[: _PIECE_BYTES - len(joined)])
        if len(joined) == _PIECE_BYTES:
            break
    return joined


# -- who a certificate names

_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "domainComponent": "DC",
    "userId": "UID",
}
"""Those that RFC 2253 abbreviates; Java writes others as numbers."""
_EMAIL: Final = "1.2.840.113549.1.9.1"
_ESCAPED: Final = re.compile(r'([,=+<>#;"\\])')


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """The subject of a certificate as Java writes it (RFC 2253): the last part first."""
    parts = ["+".join(_attribute(*pair) for pair in part) for part in reversed(subject)]
    return ",".join(parts)


def _attribute(name: str, value: str) -> str:
    if name in _SHORT_NAMES:
        return f"{_SHORT_NAMES[name]}={_escaped(value)}"
    if name == "emailAddress":  # an IA5String, in hex
        raw = value.encode()
        return f"{_EMAIL}=#16{len(raw):02x}{raw.hex()}"
    return f"{name}={_escaped(value)}"


def _escaped(value: str) -> str:
    text = _ESCAPED.sub(r"\\\1", value)
    if text.startswith(" "):
        text = "\\" + text
    if value.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None
    """None: DEFAULT, the name as it is."""
    replacement: str = ""
    case: str = ""


_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\/|[^/])*)/(?P<replacement>(?:\\/|[^/])*)/"
    r"(?P<case>[LU]?))\s*(?:,|$)"
)


class PrincipalRules:
    """`ssl.principal.mapping.rules`: from the name in a certificate to a user's name. The first
    rule that matches counts."""

    def __init__(self, text: str | None = None) -> None:
        self._rules = _parse_rules((text or "DEFAULT").strip())

    def principal(self, certificate: Mapping[str, Any] | None) -> str:
        """The principal of a client with this certificate, or without one."""
        if not certificate:
            return ANONYMOUS
        return f"User:{self.apply(distinguished_name(certificate['subject']))}"

    def apply(self, name: str) -> str:
        """The user that a distinguished name stands for; the name itself if no rule matches."""
        for rule in self._rules:
            if rule.pattern is None:
                return name
            if rule.pattern.fullmatch(name) is not None:
                user = rule.pattern.sub(rule.replacement, name, count=1)
                return {"L": user.lower(), "U": user.upper()}.get(rule.case, user)
        return name


def _parse_rules(text: str) -> list[_Rule]:
    rules, at = [], 0
    while at < len(text):
        found = _RULE.match(text, at)
        if found is None:
            reason = f"{text[at:]!r} is not RULE:PATTERN/REPLACEMENT/[LU] or DEFAULT"
            raise ConfigError("ssl.principal.mapping.rules", reason, value=text)
        at = found.end()
        if found["default"]:
            rules.append(_Rule(None))
            continue
        try:
            pattern = re.compile(found["pattern"].replace("\\/", "/"))
        except re.error as error:
            reason = f"{found['pattern']!r} is not a regular expression: {error}"
            raise ConfigError("ssl.principal.mapping.rules", reason, value=text) from None
        replacement = re.sub(r"\$(\d)", r"\\g<\1>", found["replacement"].replace("\\/", "/"))
        rules.append(_Rule(pattern, replacement, found["case"]))
    return rules

"""The server's side of SASL on one connection: which mechanism, then the authentication.

A connection goes through these states; a request that does not fit its state ends it:

    START          SaslHandshake names a mechanism
    AUTHENTICATING SaslAuthenticate carries the mechanism's messages
    DONE           `principal` is set; a second handshake authenticates again, as the same principal
    FAILED         the connection is about to be closed
"""

from __future__ import annotations

import enum
import hmac
from typing import TYPE_CHECKING, Final, Protocol

from stratalog.broker.security.scram import (
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramServer,
    invalid_credentials,
    other_authorization_id,
)
from stratalog.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stratalog.broker.security.scram import ScramMechanism

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, "SCRAM-SHA-512", "SCRAM-SHA-256")
"""In the order in which Kafka lists them."""

ANONYMOUS: Final = "User:ANONYMOUS"
"""Principal of a connection without authentication."""


class Credentials(Protocol):
    """Where passwords are looked up."""

    def password(self, user: str) -> str | None:
        """For PLAIN; None if there is no such user."""

    def scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """For SCRAM; None if there is no such user."""


class SaslState(enum.Enum):
    """See the module's docstring."""

    START = enum.auto()
    AUTHENTICATING = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()


class SaslConversation:
    """One connection's authentication."""

    def __init__(self, mechanisms: Sequence[str], credentials: Credentials) -> None:
        """`mechanisms` are those that the listener offers."""
        self._mechanisms = tuple(mechanisms)
        self._credentials = credentials
        self._server: _PlainServer | _ScramDialogue | None = None
        self.state = SaslState.START
        self.mechanism = ""
        self.principal: str | None = None

    @property
    def mechanisms(self) -> list[str]:
        """For the response to SaslHandshake."""
        return list(self._mechanisms)

    def handshake(self, mechanism: str) -> bool:
        """Begin to authenticate. False, and FAILED, if the listener does not offer the
        mechanism."""
        if mechanism not in self._mechanisms:
            self.state = SaslState.FAILED
            return False
        self.mechanism = mechanism
        if mechanism == PLAIN:
            self._server = _PlainServer(self._credentials)
        else:
            self._server = _ScramDialogue(SCRAM_MECHANISMS[mechanism], self._credentials)
        self.state = SaslState.AUTHENTICATING
        return True

    def authenticate(self, token: bytes) -> bytes:
        """The response to a message of the mechanism. Raises AuthenticationError; then the response
        is the error, and the connection is closed."""
        if self.state is not SaslState.AUTHENTICATING or self._server is None:
            raise AuthenticationError(
                f"SaslAuthenticate is not expected in state {self.state.name}"
            )
        try:
            response = self._server.respond(token)
            if self._server.user is not None:
                self._finish(f"User:{self._server.user}")
        except AuthenticationError:
            self.state = SaslState.FAILED
            raise
        return response

    def _finish(self, principal: str) -> None:
        if self.principal not in {None, principal}:
            raise AuthenticationError(
                "Authentication failed during re-authentication: Cannot change principals during "
                f"re-authentication from {self.principal}: {principal}"
            )
        self.principal = principal
        self.state = SaslState.DONE
        self._server = None


class _PlainServer:
    """SASL PLAIN (RFC 4616): one message, `[authorization id] NUL user NUL password`."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.user: str | None = None

    def respond(self, token: bytes) -> bytes:
        try:
            fields = token.decode().split("\0")
        except UnicodeDecodeError:
            raise invalid_credentials(PLAIN) from None
        if len(fields) != 3:
            raise invalid_credentials(PLAIN)
        authorization_id, user, password = fields
        if not user:
            raise AuthenticationError("Authentication failed: username not specified")
        if not password:
            raise AuthenticationError("Authentication failed: password not specified")
        expected = self._credentials.password(user)
        is_equal = hmac.compare_digest((expected or "").encode(), password.encode())
        if expected is None or not is_equal:
            raise AuthenticationError("Authentication failed: Invalid username or password")
        if authorization_id not in {"", user}:
            raise other_authorization_id()
        self.user = user
        return b""


class _ScramDialogue:
    """The two messages of a SCRAM authentication."""

    def __init__(self, mechanism: ScramMechanism, credentials: Credentials) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._server = ScramServer(mechanism)
        self._is_begun = False
        self.user: str | None = None

    def respond(self, token: bytes) -> bytes:
        if not self._is_begun:
            self._is_begun = True
            user = self._server.user_of(token)
            return self._server.first(self._credentials.scram(self._mechanism, user))
        signature = self._server.final(token)
        self.user = self._server.user
        return signature


class FixedUsers:
    """Users with passwords from a config or a file: they may use every mechanism."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = dict(passwords)
        self._derived: dict[tuple[ScramMechanism, str], ScramCredential] = {}

    def __len__(self) -> int:
        return len(self._passwords)

    def password(self, user: str) -> str | None:
        return self._passwords.get(user)

    def scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Derived at the first use: 4,096 iterations take a millisecond or two."""
        password = self._passwords.get(user)
        if password is None:
            return None
        key = (mechanism, user)
        if key not in self._derived:
            self._derived[key] = ScramCredential.of_password(mechanism, password)
        return self._derived[key]

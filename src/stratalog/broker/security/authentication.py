"""SaslHandshake and SaslAuthenticate, and the rule that a client must authenticate first."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from stratalog.broker.requests import CloseConnection, Deferred, HandlerGroup, handles
from stratalog.broker.security.sasl import SaslState
from stratalog.errors import AuthenticationError, RequestError
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from stratalog.broker.context import BrokerContext
    from stratalog.broker.network_config import NetworkConfig
    from stratalog.broker.requests import Request, Session
    from stratalog.broker.security.sasl import SaslConversation
    from stratalog.wire.frames import Body

_log = logging.getLogger(__name__)

BEFORE_AUTHENTICATION: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
)
"""The APIs that a client may use before it has authenticated."""
_OWN_TOKENS_SINCE: Final = 1
"""From this version of SaslHandshake on, the mechanism's messages are SaslAuthenticate requests;
in earlier versions, they are bare frames."""


class LogInHandlers(HandlerGroup):
    """SaslHandshake and SaslAuthenticate."""

    def __init__(self, context: BrokerContext, config: NetworkConfig) -> None:
        self._context = context
        self._failure_delay_ms = config.connection_failed_authentication_delay_ms
        self._session_lifetime_ms = config.connections_max_reauth_ms
        self._last_failure: tuple[str, str] | None = None
        self.failures = 0
        """Log-ins that failed, for the metrics."""

    def may_call(self, request: Request) -> bool:
        """Whether the client has shown who it is, or this is how it does."""
        session = request.session
        if session.sasl is None or request.api in BEFORE_AUTHENTICATION:
            return True
        return session.sasl.state is SaslState.DONE and not self._is_expired(session)

    def _is_expired(self, session: Session) -> bool:
        expires_ms = session.expires_ms
        return expires_ms is not None and self._context.reactor.now_ms() >= expires_ms

    @handles(ApiKey.SASL_HANDSHAKE)
    def handshake(self, request: Request) -> Body:
        session = request.session
        sasl = session.sasl
        if sasl is None or (sasl.state is SaslState.DONE and not self._session_lifetime_ms):
            return {"errorCode": int(ErrorCode.ILLEGAL_SASL_STATE), "mechanisms": []}
        if sasl.state not in {SaslState.START, SaslState.DONE}:
            raise CloseConnection("SaslHandshake during an authentication")
        if not sasl.handshake(request.body["mechanism"]):
            session.closes_after_response = True
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return {"errorCode": int(code), "mechanisms": sasl.mechanisms}
        if request.version < _OWN_TOKENS_SINCE:
            session.on_bare_frame = self.bare_token
        return {"errorCode": 0, "mechanisms": sasl.mechanisms}

    @handles(ApiKey.SASL_AUTHENTICATE)
    def authenticate(self, request: Request) -> Body | Deferred:
        session = request.session
        sasl = session.sasl
        if sasl is None or sasl.state is SaslState.DONE:
            raise RequestError(
                ErrorCode.ILLEGAL_SASL_STATE,
                "SaslAuthenticate request received after successful authentication",
            )
        if sasl.state is not SaslState.AUTHENTICATING:
            raise CloseConnection("SaslAuthenticate without SaslHandshake")
        try:
            token = sasl.authenticate(request.body["authBytes"])
        except AuthenticationError as error:
            return self._failed(session, sasl, error)
        return {
            "errorMessage": "",
            "authBytes": token,
            "sessionLifetimeMs": self._logged_in(session, sasl),
        }

    def bare_token(self, frame: bytes, session: Session) -> bytes:
        """The response to a message of the mechanism that came without a header. A failure closes
        the connection: there is no place for an error."""
        sasl = session.sasl
        assert sasl is not None
        try:
            token = sasl.authenticate(frame)
        except AuthenticationError as error:
            self._note_failure(session, sasl, error)
            raise CloseConnection(str(error)) from None
        if sasl.state is SaslState.DONE:
            session.on_bare_frame = None
            self._logged_in(session, sasl)
        return token

    def _logged_in(self, session: Session, sasl: SaslConversation) -> int:
        """Note who the client is, if it has shown that; how long its session lasts."""
        if sasl.state is not SaslState.DONE or sasl.principal is None:
            return 0
        session.principal = sasl.principal
        session.request_bytes_max = session.logged_in_bytes_max
        if self._session_lifetime_ms:
            session.expires_ms = self._context.reactor.now_ms() + self._session_lifetime_ms
        return self._session_lifetime_ms

    def _failed(
        self, session: Session, sasl: SaslConversation, error: AuthenticationError
    ) -> Deferred:
        self._note_failure(session, sasl, error)
        session.closes_after_response = True
        body = {"errorCode": error.code, "errorMessage": str(error), "authBytes": b""}
        response = Deferred()
        self._context.reactor.call_later(self._failure_delay_ms, lambda: response.respond(body))
        return response

    def _note_failure(
        self, session: Session, sasl: SaslConversation, error: AuthenticationError
    ) -> None:
        """Clients try again and again with a wrong password: it is logged once in a row."""
        self.failures += 1
        failure = (session.host, str(error))
        level = logging.DEBUG if failure == self._last_failure else logging.WARNING
        self._last_failure = failure
        mechanism = sasl.mechanism or "SASL"
        _log.log(
            level,
            "authentication of %s by %s failed: %s",
            session.host,
            mechanism,
            error,
            extra={"client": session.host, "mechanism": mechanism, "listener": session.listener},
        )

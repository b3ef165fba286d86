"""A request on its way through the broker: what a handler gets, and what it may return.

A handler takes a `Request` and returns the body of the response, a `Deferred` if the response comes
later, or None if the client expects none (acks=0). It may raise RequestError or any other error
with Kafka's `code`: the response then has that code. CloseConnection closes the connection.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from stratalog.errors import FrameError, StratalogError
from stratalog.wire.apis import SERVED, ApiKey
from stratalog.wire.error_codes import ErrorCode
from stratalog.wire.frames import read_request, read_start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stratalog.broker.context import Address
    from stratalog.broker.security.sasl import SaslConversation
    from stratalog.format.buffers import Buffer
    from stratalog.format.messages.schema import Field
    from stratalog.wire.frames import Body

_log = logging.getLogger(__name__)


REQUEST_BYTES_MAX: Final = 100 << 20
"""Kafka's default of `socket.request.max.bytes`."""


@dataclass(slots=True)
class Session:
    """What the broker knows of a connection's other side."""

    host: str
    """The client's address."""
    listener: str = "PLAINTEXT"
    """The listener that the connection came in on."""
    principal: str = "User:ANONYMOUS"
    advertised: Address | None = None
    """Where this client reaches the broker again."""
    sasl: SaslConversation | None = None
    """The SASL authentication; None on a listener without SASL."""
    expires_ms: float | None = None
    """When the client must authenticate again, by the reactor's clock."""
    request_bytes_max: int = REQUEST_BYTES_MAX
    """Largest request that is accepted now."""
    logged_in_bytes_max: int = REQUEST_BYTES_MAX
    """Largest request that is accepted after the authentication."""
    on_bare_frame: Callable[[bytes, Session], bytes] | None = None
    """Handles frames without a header, in an old form of authentication."""
    closes_after_response: bool = False
    """Set by a handler whose response is the last one."""
    state: dict[str, Any] = field(default_factory=dict)
    """What handlers keep for this connection, by their own keys: an authentication in progress."""


@dataclass(slots=True)
class Request:
    """One request of a client."""

    api: ApiKey
    version: int
    client_id: str
    body: Body
    session: Session


class Deferred:
    """A response that comes later. All of it happens in the reactor's thread."""

    __slots__ = ("_send", "body", "is_done", "on_closed")

    def __init__(self, on_closed: Callable[[], None] | None = None) -> None:
        self.on_closed = on_closed
        """Called if the client disconnects before the response: nobody waits for it any longer."""
        self.is_done = False
        self.body: Body | None = None
        self._send: Callable[[Body | None], None] | None = None

    def respond(self, body: Body | None) -> None:
        """Send the response (None: the request gets none). Only the first call counts."""
        if self.is_done:
            return
        self.is_done = True
        self.body = body
        if self._send is not None:
            self._send(body)

    def then(self, send: Callable[[Body | None], None]) -> None:
        """For the connection: where the response goes."""
        self._send = send
        if self.is_done:
            send(self.body)

    def client_gone(self) -> None:
        """For the connection: nobody waits any more."""
        if not self.is_done:
            self.is_done = True
            if self.on_closed is not None:
                self.on_closed()


class CloseConnection(Exception):
    """Close the connection without a response; the message is logged."""


Response: TypeAlias = "Body | Deferred | None"
Handler: TypeAlias = "Callable[[Request], Response]"
Handlers: TypeAlias = "Mapping[ApiKey, Handler]"
_Method = TypeVar("_Method", bound="Callable[..., Response]")

_HANDLED: Final = "handled_api"
"""The attribute of a method that `handles` sets."""


def handles(api: ApiKey) -> Callable[[_Method], _Method]:
    """Mark a method of a `HandlerGroup` as the handler of this API."""

    def mark(method: _Method) -> _Method:
        setattr(method, _HANDLED, api)
        return method

    return mark


class HandlerGroup:
    """The handlers of one subject: its methods with `@handles`."""

    def handlers(self) -> Handlers:
        """Each handler by its API."""
        return {
            getattr(method, _HANDLED): getattr(self, name)
            for name, method in vars(type(self)).items()
            if hasattr(method, _HANDLED)
        }


class Call(NamedTuple):
    """A request that was handled, with what its response's frame needs."""

    api: ApiKey
    version: int
    correlation_id: int
    response: Response


class Dispatcher:
    """Takes frames to their handlers."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self.may_call: Callable[[Request], bool] = _always
        """Whether the session may call this API now; if not, the connection is closed. The place
        for a listener that requires authentication first."""

    def register(self, handlers: Handlers) -> None:
        """Serve these APIs."""
        for api, handler in handlers.items():
            assert api in SERVED, api
            self._handlers[api] = handler

    @property
    def apis(self) -> list[ApiKey]:
        """What is served, by key."""
        return sorted(map(ApiKey, self._handlers))

    def call(self, frame: Buffer, session: Session) -> Call:
        """Handle one request. Raises CloseConnection."""
        try:
            return self._call(frame, session)
        except FrameError as error:
            raise CloseConnection(str(error)) from None

    def _call(self, frame: Buffer, session: Session) -> Call:
        key, version, correlation_id = read_start(frame)
        handler = self._handlers.get(key)
        if handler is None:
            raise CloseConnection(f"API key {key} (version {version}) is not served")
        api = ApiKey(key)
        if version not in SERVED[api]:
            if api is ApiKey.API_VERSIONS:
                return Call(api, 0, correlation_id, _unsupported_version())
            raise CloseConnection(f"{api.title} version {version} is not served")
        header, body = read_request(frame)
        request = Request(api, version, header.client_id, body, session)
        if not self.may_call(request):
            raise CloseConnection(f"{api.title} is not allowed before authentication")
        return Call(api, version, correlation_id, _response_of(handler, request))


def _always(_: Request) -> bool:
    return True


def _response_of(handler: Handler, request: Request) -> Response:
    """A handler that fails never leaves the client waiting."""
    try:
        return handler(request)
    except CloseConnection:
        raise
    except StratalogError as error:
        code = getattr(error, "code", None)
        if code is None:
            _log.exception("%s failed", request.api.title)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        return error_body(request, int(code), str(error))
    except Exception:
        _log.exception("%s v%d failed", request.api.title, request.version)
        return error_body(request, ErrorCode.UNKNOWN_SERVER_ERROR, None)


def error_body(request: Request, code: int, message: str | None) -> Body:
    """A response that has nothing but an error. Raises CloseConnection if the API has no place for
    one."""
    names = {field.name for field in request.api.response.fields if _has(field, request.version)}
    if "errorCode" not in names:
        raise CloseConnection(f"{request.api.title} v{request.version}: error {code}: {message}")
    return {"errorCode": int(code), "errorMessage": message}


def coordinator_code(error: StratalogError, what: str) -> int:
    """Kafka's code for an error of a coordinator; `what` failed.

    If it cannot write its records, because the disk is full, clients look for the coordinator again
    and retry. They retry KAFKA_STORAGE_ERROR only where they produce and fetch.
    """
    code = int(getattr(error, "code", ErrorCode.UNKNOWN_SERVER_ERROR))
    if code != ErrorCode.KAFKA_STORAGE_ERROR:
        return code
    _log.error("%s failed: %s", what, error)
    return int(ErrorCode.NOT_COORDINATOR)


def _has(of: Field, version: int) -> bool:
    return of.since <= version <= of.until


_VERSIONS: Final = SERVED[ApiKey.API_VERSIONS]


def _unsupported_version() -> Body:
    """Kafka's response to a version of ApiVersions that it does not know: which ones it does."""
    first, last = _VERSIONS
    versions = {"apiKey": int(ApiKey.API_VERSIONS), "minVersion": first, "maxVersion": last}
    return {"errorCode": int(ErrorCode.UNSUPPORTED_VERSION), "apiKeys": [versions]}

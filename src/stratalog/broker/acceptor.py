"""The sockets a broker listens on, and its connections: limits, idle clients, memory.

No client can keep others from being served:

* `max.connections`: at the limit no more are accepted until one is closed; they wait in the
  system's backlog. `max.connections.per.ip`: more of them are closed at once.
* `connections.max.idle.ms`: a client that neither sends nor reads for so long is disconnected.
* `queued.max.request.bytes`: memory of requests that have arrived in part. Above the limit, the
  connection whose request began to arrive first is closed: an honest one is complete by then.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from stratalog.broker.connection import Connection, Transport, hang_up
from stratalog.broker.context import Address
from stratalog.broker.reactor import READABLE
from stratalog.broker.requests import Session
from stratalog.broker.security.sasl import SaslConversation
from stratalog.broker.traffic import Traffic
from stratalog.errors import BrokerStartError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence
    from typing import Any

    from stratalog.broker.network_config import NetworkConfig
    from stratalog.broker.reactor import Reactor
    from stratalog.broker.requests import Dispatcher
    from stratalog.broker.security.access_control import AccessControl
    from stratalog.broker.security.listeners import Listener
    from stratalog.broker.security.sasl import Credentials

_log = logging.getLogger(__name__)

_HERE: Final = "127.0.0.1"
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})
_BACKLOG: Final = 511
_ACCEPTS_MAX: Final = 64
_RETRY_MS: Final = 500
_SWEEP_MS: Final = 5_000


class ListeningSocket:
    """A listener with its socket. It is bound at once, and accepts after `Connections.start`."""

    def __init__(self, listener: Listener) -> None:
        """Raises BrokerStartError if the address cannot be used, and ConfigError for wrong
        certificates."""
        self.listener = listener
        self._credentials: Credentials | None = None
        self._tls: ssl.SSLContext | None = None
        if listener.protocol.has_tls:
            # Plain listeners start without `ssl`.
            from stratalog.broker.security import tls  # noqa: PLC0415

            self._tls = tls.tls_context(listener)
            self._principals = tls.PrincipalRules(listener.setting("ssl.principal.mapping.rules"))
        self.socket = bound_socket(listener.host, listener.port, "listen")

    @property
    def address(self) -> Address:
        """Where clients of this machine, or those that know the advertised name, connect."""
        host, port = self.socket.getsockname()[:2]
        host = _HERE if host in _WILDCARDS else host
        return Address(self.listener.advertised_host or host, self.listener.advertised_port or port)

    def use(self, access_control: AccessControl) -> None:
        """Look credentials up here."""
        if self.listener.protocol.has_sasl:
            self._credentials = access_control.of_listener(self.listener.plain_users)

    def new_session(self, sock: socket.socket, host: str, config: NetworkConfig) -> Session:
        """For a client that has just connected."""
        here = sock.getsockname()
        session = Session(
            host,
            self.listener.name,
            advertised=Address(
                self.listener.advertised_host or here[0], self.listener.advertised_port or here[1]
            ),
            request_bytes_max=config.socket_request_max_bytes,
            logged_in_bytes_max=config.socket_request_max_bytes,
        )
        if self._credentials is not None:
            session.sasl = SaslConversation(self.listener.mechanisms, self._credentials)
            session.request_bytes_max = config.sasl_server_max_receive_size
        return session

    def transport(self, sock: socket.socket, session: Session) -> Transport:
        """What the client's bytes go through."""
        if self._tls is None:
            return Transport(sock)
        from stratalog.broker.security import tls  # noqa: PLC0415

        def on_handshake(certificate: Mapping[str, Any] | None) -> None:
            if session.sasl is None:
                session.principal = self._principals.principal(certificate)

        return tls.TlsTransport(sock, self._tls, on_handshake)


def bound_socket(host: str, port: int, what: str) -> socket.socket:
    """A socket that listens on an address; an empty host is all interfaces. Raises
    BrokerStartError: "cannot" do `what`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        address = Address(host or "0.0.0.0", port)
        reason = f"cannot {what} on {address}: {error.strerror or error}"
        raise BrokerStartError(reason) from None
    sock.setblocking(False)
    return sock


class Connections:
    """All connections of a broker."""

    def __init__(
        self,
        sockets: Sequence[ListeningSocket],
        config: NetworkConfig,
        reactor: Reactor,
        dispatcher: Dispatcher,
    ) -> None:
        self.traffic = Traffic()
        self._sockets = list(sockets)
        self._config = config
        self._reactor = reactor
        self._dispatcher = dispatcher
        self._open: set[Connection] = set()
        self._by_host: Counter[str] = Counter()
        self._holding: dict[Connection, int] = {}
        self._held_bytes = 0
        self._last_closing: tuple[str, str] | None = None
        self._is_accepting = False
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._open)

    def count_by_listener(self) -> dict[str, int]:
        """Open connections."""
        counts = {each.listener.name: 0 for each in self._sockets}
        for connection in self._open:
            counts[connection.session.listener] += 1
        return counts

    def start(self) -> None:
        """Accept connections. Before the reactor runs, or in its thread."""
        self._accept_again()
        if self._config.connections_max_idle_ms >= 0:
            self._sweep()

    def stop(self) -> None:
        """Close everything, in the reactor's thread."""
        self._is_stopped = True
        self._pause_accepting()
        for each in self._sockets:
            hang_up(each.socket)
        for connection in list(self._open):
            connection.close()

    # -- accepting

    def _accept_again(self) -> None:
        if self._is_accepting or self._is_stopped or self._is_full:
            return
        self._is_accepting = True
        for each in self._sockets:
            self._reactor.watch(each.socket.fileno(), READABLE, partial(self._accept, each))

    def _pause_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            for each in self._sockets:
                self._reactor.forget(each.socket.fileno())

    @property
    def _is_full(self) -> bool:
        return len(self._open) >= self._config.max_connections

    def _accept(self, listening: ListeningSocket, _: int) -> None:
        for _attempt in range(_ACCEPTS_MAX):
            if self._is_full:
                _log.warning(
                    "the limit of %d connections is reached; no more are accepted until "
                    "one is closed",
                    len(self._open),
                )
                self._pause_accepting()
                return
            try:
                sock, address = listening.socket.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError as error:  # too many open files: it would be reported without end
                _log.warning("cannot accept a connection: %s", error.strerror)
                self._pause_accepting()
                self._reactor.call_later(_RETRY_MS, self._accept_again)
                return
            self._connect(listening, sock, str(address[0]))

    def _connect(self, listening: ListeningSocket, sock: socket.socket, host: str) -> None:
        if self._by_host[host] >= self._config.max_connections_per_ip:
            self._count_refused("too many connections from one address")
            sock.close()
            return
        try:
            session = listening.new_session(sock, host, self._config)
            transport = listening.transport(sock, session)
        except OSError:  # the client has gone already
            sock.close()
            return
        connection = Connection(transport, session, self._reactor, self._dispatcher, self)
        self._open.add(connection)
        self._by_host[host] += 1
        name = listening.listener.name
        self.traffic.accepted[name] = self.traffic.accepted.get(name, 0) + 1
        connection.start()

    def _count_refused(self, reason: str) -> None:
        self.traffic.refused[reason] = self.traffic.refused.get(reason, 0) + 1

    # -- while they are open

    def closed(self, connection: Connection, reason: str | None) -> None:
        if connection not in self._open:
            return
        self._open.discard(connection)
        self._held_bytes -= self._holding.pop(connection, 0)
        host = connection.session.host
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        if reason is not None:
            self._count_refused("closed by the broker")
            self._log_closing(host, reason)
        if not self._is_stopped:
            self._accept_again()

    def _log_closing(self, host: str, reason: str) -> None:
        """A client that is refused tries again and again: it is logged once in a row."""
        level = logging.DEBUG if (host, reason) == self._last_closing else logging.WARNING
        self._last_closing = (host, reason)
        _log.log(
            level,
            "closing the connection from %s: %s",
            host,
            reason,
            extra={"client": host, "reason": reason},
        )

    def holds(self, connection: Connection, held_bytes: int) -> None:
        """Keep the memory of incomplete requests within its limit. A request that is alone may
        exceed it."""
        self._held_bytes += held_bytes - self._holding.pop(connection, 0)
        if held_bytes:
            self._holding[connection] = held_bytes
        limit = self._config.queued_max_request_bytes
        while 0 <= limit < self._held_bytes and len(self._holding) > 1:
            oldest = min(self._holding, key=lambda each: each.partial_since_ms or 0.0)
            oldest.close("incomplete requests take more than queued.max.request.bytes")

    def _sweep(self) -> None:
        """Close connections that are idle for too long."""
        idle_ms = self._config.connections_max_idle_ms
        last_ms = self._reactor.now_ms() - idle_ms
        for connection in list(self._open):
            if connection.awaits_client and connection.last_active_ms < last_ms:
                self._count_refused("idle")
                connection.close()
        if not self._is_stopped:
            self._reactor.call_later(min(_SWEEP_MS, max(idle_ms / 4, 1)), self._sweep)

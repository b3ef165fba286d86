"""The connection of one client: requests in, responses out, one at a time.

As in Kafka, nothing more is read from a connection until the response to its request is sent.
Responses are sent in order. If a client does not read its responses, or sends requests faster than
they are served, its data waits in its own socket and takes no memory here.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from stratalog.broker.reactor import GONE, READABLE, WRITABLE
from stratalog.broker.requests import CloseConnection, Deferred
from stratalog.errors import FrameError
from stratalog.wire.frames import LENGTH_BYTES, FrameReader, response_pieces

if TYPE_CHECKING:
    from collections.abc import Sized

    from stratalog.broker.reactor import Reactor
    from stratalog.broker.requests import Call, Dispatcher, Session
    from stratalog.broker.traffic import Traffic
    from stratalog.format.buffers import Buffer
    from stratalog.wire.frames import Body

_log = logging.getLogger(__name__)

_RECEIVE_BYTES: Final = 64 << 10
_BUFFERS_MAX: Final = 64
"""Buffers in one system call; the system's limit is 1024."""


@dataclass(eq=False, slots=True)
class FileSlice:
    """A part of a file that is sent as it is. `file` stays open as long as the slice lives."""

    file: OpenFile
    position: int
    count: int

    def __len__(self) -> int:
        return self.count

    def send_to(self, fd: int) -> int:
        """Send without a copy; returns how many bytes."""
        sent = os.sendfile(fd, self.file.fileno(), self.position, self.count)
        if sent == 0:
            raise OSError("the file was truncated while it was sent")
        self.skip(sent)
        return sent

    def read(self, bytes_max: int) -> bytes:
        """The next bytes, for a connection that must encrypt them. `skip` them once they are
        sent."""
        data = os.pread(self.file.fileno(), min(self.count, bytes_max), self.position)
        if not data:
            raise OSError("the file was truncated while it was sent")
        return data

    def skip(self, count: int) -> None:
        """So many bytes are sent."""
        self.position += count
        self.count -= count


class OpenFile(Protocol):
    """A file that is open for reading."""

    def fileno(self) -> int: ...


class Transport:
    """A socket that never blocks. None means: not now."""

    wants_write = False
    """Whether reading needs the socket to be writable first: in the middle of a handshake."""
    has_pending = False
    """Whether there is data to receive that the system does not know of."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        sock.setblocking(False)
        if sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fd = sock.fileno()

    def receive(self) -> bytes | None:
        """What has arrived; empty at the end."""
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None

    def receive_into(self, room: memoryview) -> int | None:
        """How many bytes have arrived; zero at the end."""
        try:
            return self._socket.recv_into(room)
        except BlockingIOError:
            return None

    def send(self, buffers: list[Buffer], *, has_more: bool) -> int | None:
        """How many bytes were taken. `has_more`: a file follows at once."""
        try:
            return self._socket.sendmsg(buffers, (), socket.MSG_MORE if has_more else 0)
        except BlockingIOError:
            return None

    def send_file(self, piece: FileSlice) -> int | None:
        """Send a part of a file; how many bytes were taken."""
        try:
            return piece.send_to(self.fd)
        except BlockingIOError:
            return None

    def close(self) -> None:
        hang_up(self._socket)


def hang_up(sock: socket.socket) -> None:
    """Close a socket for everybody: a forked child has a copy of it, and would keep the port in use
    and clients waiting."""
    with suppress(OSError):  # the client was first
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


class Owner(Protocol):
    """Who keeps the connections."""

    traffic: Traffic

    def holds(self, connection: Connection, held_bytes: int) -> None:
        """A part of a request has arrived and takes this much memory; 0: it is complete. May close
        the connection."""

    def closed(self, connection: Connection, reason: str | None) -> None:
        """The connection is closed, by the broker for a reason or by its client."""


class Connection:
    """One client. It is watched by the reactor from `start` to `close`."""

    def __init__(
        self,
        transport: Transport,
        session: Session,
        reactor: Reactor,
        dispatcher: Dispatcher,
        owner: Owner,
    ) -> None:
        self.session = session
        self.last_active_ms = reactor.now_ms()
        self.partial_since_ms: float | None = None
        """Since when a request has been arriving that is not complete yet."""
        self._transport = transport
        self._reactor = reactor
        self._dispatcher = dispatcher
        self._frames = FrameReader(session.request_bytes_max)
        self._out: deque[Buffer | FileSlice] = deque()
        self._waiting: Deferred | None = None
        self._events = READABLE
        self._owner = owner
        self._traffic = owner.traffic
        self._is_closed = False

    @property
    def awaits_client(self) -> bool:
        """Whether the client owes the next step: to send a request, or to read its response."""
        return self._waiting is None

    def start(self) -> None:
        self._reactor.watch(self._transport.fd, self._events, self._on_events)

    def close(self, reason: str | None = None) -> None:
        """Close the connection, for a reason of the broker or none."""
        if self._is_closed:
            return
        self._is_closed = True
        self._reactor.forget(self._transport.fd)
        self._transport.close()
        self._out.clear()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.client_gone()
        self._owner.closed(self, reason)

    # -- events

    def _on_events(self, events: int) -> None:
        self.last_active_ms = self._reactor.now_ms()
        try:
            if events & GONE and not events & READABLE:
                self.close()
            elif self._out:
                self._flush()
                self._handle_frames()
            elif self._waiting is not None:
                self.close()  # only its end is waited for
            else:
                self._receive()
                self._handle_frames()
        except (CloseConnection, FrameError) as error:
            self.close(str(error))
        except (ConnectionError, TimeoutError):
            self.close()
        except Exception as error:
            _log.exception("the connection from %s failed", self.session.host)
            self.close(repr(error))

    def _receive(self) -> None:
        room = self._frames.room()
        if room is None:
            data = self._transport.receive()
            if data:
                self._frames.feed(data)
                self._traffic.received_bytes += len(data)
            elif data is not None:
                self.close()
            return
        count = self._transport.receive_into(room)
        room.release()
        if count:
            self._frames.filled(count)
            self._traffic.received_bytes += count
        elif count is not None:
            self.close()

    def _handle_frames(self) -> None:
        """Handle what has arrived, as long as each response leaves at once."""
        session, frames = self.session, self._frames
        while not self._is_closed and self._waiting is None and not self._out:
            if session.closes_after_response:
                self.close()
                return
            frames.bytes_max = session.request_bytes_max
            frame = frames.next_frame()
            if frame is None:
                break
            if session.on_bare_frame is None:
                self._handle(frame)
            else:
                token = session.on_bare_frame(bytes(frame), session)
                self._out.append(len(token).to_bytes(LENGTH_BYTES) + token)
                self._flush()
        self._watch_for()

    def _handle(self, frame: Buffer) -> None:
        began_ms = self._reactor.now_ms()
        call = self._dispatcher.call(frame, self.session)
        response = call.response
        if not isinstance(response, Deferred):
            self._traffic.handled(call.api, self._reactor.now_ms() - began_ms)
            self._send(call, response)
            return
        self._waiting = response
        response.then(lambda body: self._respond_later(call, body, began_ms))

    def _respond_later(self, call: Call, body: Body | None, began_ms: float) -> None:
        """A deferred response has come; perhaps at once, while its request is still being
        handled."""
        if self._waiting is not call.response:
            return
        self._waiting = None
        self.last_active_ms = self._reactor.now_ms()
        self._traffic.handled(call.api, self.last_active_ms - began_ms)
        try:
            self._send(call, body)
        except ConnectionError:
            self.close()
            return
        self._reactor.call_soon(self._resume)

    def _resume(self) -> None:
        """Handle requests that arrived while a response was waited for."""
        if self._is_closed:
            return
        try:
            self._handle_frames()
        except (CloseConnection, FrameError) as error:
            self.close(str(error))
        except ConnectionError:
            self.close()

    # -- sending

    def _send(self, call: Call, body: Body | None) -> None:
        if body is None:
            return
        for piece in response_pieces(call.api, call.version, call.correlation_id, body):
            self._out.append(_sendable(piece))
        self._flush()

    def _flush(self) -> None:
        out = self._out
        while out:
            first = out[0]
            if isinstance(first, FileSlice):
                sent = self._transport.send_file(first)
                if sent is None:
                    return
                self._traffic.sent_bytes += sent
                if len(first) == 0:
                    out.popleft()
            elif not self._flush_buffers():
                return

    def _flush_buffers(self) -> bool:
        """Send the buffers up to the next file; False if the socket is full."""
        out = self._out
        buffers: list[Buffer] = []
        has_more = False
        for piece in out:
            has_more = isinstance(piece, FileSlice)
            if isinstance(piece, FileSlice) or len(buffers) == _BUFFERS_MAX:
                break
            buffers.append(piece)
        sent = self._transport.send(buffers, has_more=has_more)
        if sent is None:
            return False
        self._traffic.sent_bytes += sent
        for buffer in buffers:
            if sent < len(buffer):
                out[0] = memoryview(buffer)[sent:]
                return False
            sent -= len(buffer)
            out.popleft()
        return True

    def _watch_for(self) -> None:
        """Wait for what the connection needs next: the rest of a request, room for a response, or,
        while a response is being prepared, only its end."""
        if self._is_closed:
            return
        events = READABLE
        if self._out:
            events = WRITABLE
        elif self._waiting is not None:
            events = GONE
        elif self._transport.wants_write:
            events = READABLE | WRITABLE
        if events & READABLE:
            if not self._note_partial():
                return
            if self._transport.has_pending:
                self._reactor.call_soon(self._on_pending)
        if events != self._events:
            self._events = events
            self._reactor.change(self._transport.fd, events)

    def _note_partial(self) -> bool:
        """Report a request that has arrived in part, until it is complete. False if that closes
        the connection."""
        if not self._frames.is_empty:
            if self.partial_since_ms is None:
                self.partial_since_ms = self._reactor.now_ms()
            self._owner.holds(self, self._frames.held_bytes)
        elif self.partial_since_ms is not None:
            self.partial_since_ms = None
            self._owner.holds(self, 0)
        return not self._is_closed

    def _on_pending(self) -> None:
        if not self._is_closed and self._waiting is None and not self._out:
            self._on_events(READABLE)


def _sendable(piece: Buffer | Sized) -> Buffer | FileSlice:
    assert isinstance(piece, bytes | bytearray | memoryview | FileSlice)
    return piece

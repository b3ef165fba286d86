"""A client that sends any request, and frames that are none."""

from __future__ import annotations

import itertools
import socket
import struct
from typing import TYPE_CHECKING, Any, Self

from stratalog.format.messages.schema import read_message
from stratalog.wire.frames import request_frame, response_header_bytes

if TYPE_CHECKING:
    from stratalog.wire.apis import ApiKey


class RawClient:
    """One connection to a broker."""

    def __init__(self, bootstrap_servers: str, *, timeout_s: float = 10) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._ids = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, api: ApiKey, version: int, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        return self.answer(api, version, self.send(api, version, body))

    def send(self, api: ApiKey, version: int, body: dict[str, Any] | None = None) -> int:
        """Send a request; returns its correlation id."""
        correlation_id = next(self._ids)
        self.socket.sendall(
            request_frame(api, version, body or {}, correlation_id=correlation_id, client_id="raw")
        )
        return correlation_id

    def answer(self, api: ApiKey, version: int, correlation_id: int) -> dict[str, Any]:
        """The next answer, which must be that of this request."""
        data = self.receive_frame()
        header = response_header_bytes(api, version, correlation_id)
        assert data.startswith(header)
        body, end = read_message(api.response, data, len(header), version)
        assert end == len(data)
        return body

    def receive_frame(self) -> bytes:
        """The next frame, without its length; empty if the broker has closed the connection."""
        length = self._receive(4)
        return self._receive(struct.unpack(">i", length)[0]) if length else b""

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                return b""
            data += more
        return data

"""Frames: the length, the header, the body of each request and response.

A frame is its length as an int32, then that many bytes. A request has header version 2 where its
body is flexible, else 1; a response 1 or 0, except that of ApiVersions, which is always 0: clients
read it before they know what the broker speaks.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from stratalog.errors import CorruptRecordError, FrameError, StratalogError
from stratalog.format.messages.schema import Field, Message, Output, read_message, write_into
from stratalog.wire.apis import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sized

    from stratalog.format.buffers import Buffer

Body: TypeAlias = dict[str, Any]
"""A request or a response, by Kafka's names of its fields."""

LENGTH_BYTES: Final = 4
_LENGTH: Final = struct.Struct(">i")
_START: Final = struct.Struct(
    ">h"  # api key
    "h"  # api version
    "i"  # correlation id
)
_CLIENT_ID: Final = Message(
    "RequestHeader", (Field("clientId", "string", nullable_since=0),), version_max=2
)
_TAGS: Final = Message("RequestHeaderTags", (), version_max=2, flexible_since=0)


class RequestHeader(NamedTuple):
    """What comes before the body of a request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    """Empty if the client sent none."""
    body_at: int
    """Where the body begins in the frame."""


def read_start(frame: Buffer) -> tuple[int, int, int]:
    """Api key, version and correlation id of a request. Raises FrameError."""
    if len(frame) < _START.size:
        raise FrameError(f"a request of {len(frame)} bytes is too short for its header")
    key, version, correlation_id = _START.unpack_from(frame)
    return key, version, correlation_id


def read_header(frame: Buffer, *, is_flexible: bool) -> RequestHeader:
    """The header of a request whose body is flexible, or not. Raises FrameError."""
    key, version, correlation_id = read_start(frame)
    try:
        values, at = read_message(_CLIENT_ID, frame, _START.size, 1)
        if is_flexible:
            _, at = read_message(_TAGS, frame, at, 2)
    except CorruptRecordError as error:
        raise FrameError(f"header of {key} v{version}: {error.reason}") from None
    return RequestHeader(key, version, correlation_id, values["clientId"] or "", at)


def read_request(frame: Buffer) -> tuple[RequestHeader, Body]:
    """A request of a known API and version. Bytes after the body are ignored, as in Kafka. Raises
    FrameError."""
    key, version, _ = read_start(frame)
    message = ApiKey(key).request
    header = read_header(frame, is_flexible=message.is_flexible(version))
    try:
        body, _ = read_message(message, frame, header.body_at, version)
    except StratalogError as error:
        raise FrameError(f"{message.name} v{version}: {error}") from None
    return header, body


def response_header_bytes(api: ApiKey, version: int, correlation_id: int) -> bytes:
    """The header of a response."""
    raw = struct.pack(">i", correlation_id)
    is_flexible = api.response.is_flexible(version) and api is not ApiKey.API_VERSIONS
    return raw + b"\0" if is_flexible else raw


def response_pieces(
    api: ApiKey, version: int, correlation_id: int, body: Mapping[str, Any]
) -> list[Buffer | Sized]:
    """A whole frame: bytes, and between them the records that are not in memory."""
    out = Output()
    out += bytes(LENGTH_BYTES)
    out += response_header_bytes(api, version, correlation_id)
    write_into(out, api.response, body, version)
    length = len(out) - LENGTH_BYTES + sum(len(records) for _, records in out.separate_records)
    _LENGTH.pack_into(out, 0, length)
    if not out.separate_records:
        return [out]
    pieces: list[Buffer | Sized] = []
    view, start = memoryview(out), 0
    for at, records in out.separate_records:
        pieces += [view[start:at], records]
        start = at
    if start < len(out):
        pieces.append(view[start:])
    return pieces


def request_frame(
    api: ApiKey,
    version: int,
    body: Mapping[str, Any],
    *,
    correlation_id: int,
    client_id: str | None,
) -> bytes:
    """A whole frame, as a client sends it."""
    out = Output()
    out += bytes(LENGTH_BYTES) + _START.pack(api, version, correlation_id)
    write_into(out, _CLIENT_ID, {"clientId": client_id}, 1)
    if api.request.is_flexible(version):
        out += b"\0"
    write_into(out, api.request, body, version)
    _LENGTH.pack_into(out, 0, len(out) - LENGTH_BYTES)
    return bytes(out)


_PIECE_BYTES_MIN: Final = 4096
_GROWTH: Final = 4
"""Memory for a large frame: this many times what has arrived of it."""


class FrameReader:
    """Cuts what arrives into frames.

    Small frames are cut from what was received. The rest of a large one is received in place: use
    `room`, then `filled`. Memory grows with what has arrived, not with what a length promises.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        """Largest frame; may be changed between two frames."""
        self._data: Buffer = b""
        self._at = 0
        self._large: bytearray | None = None
        self._large_bytes = 0
        self._large_filled = 0

    @property
    def is_empty(self) -> bool:
        """Whether no part of a frame has arrived."""
        return self._large is None and self._at == len(self._data)

    @property
    def held_bytes(self) -> int:
        """Memory that waits for the rest of a frame, or to be handled."""
        return len(self._data) + (0 if self._large is None else len(self._large))

    def room(self) -> memoryview | None:
        """Where the rest of a large frame belongs; None if any bytes may be fed."""
        large = self._large
        if large is None:
            return None
        if self._large_filled == len(large):
            large += bytes(min(_GROWTH * len(large), self._large_bytes) - len(large))
        return memoryview(large)[self._large_filled :]

    def filled(self, count: int) -> None:
        """So many bytes were put into `room`."""
        self._large_filled += count

    def feed(self, data: bytes) -> None:
        """Add what has arrived."""
        rest = self._data[self._at :]
        self._data, self._at = (bytes(rest) + data if rest else data), 0

    def next_frame(self) -> Buffer | None:
        """The next whole frame, without its length; None if more bytes are needed. Raises
        FrameError for a length that is not accepted."""
        if self._large is not None:
            return self._finished_large()
        left = len(self._data) - self._at
        if left < LENGTH_BYTES:
            return None
        (length,) = _LENGTH.unpack_from(self._data, self._at)
        if not 0 <= length <= self.bytes_max:
            raise FrameError(f"invalid frame of {length} bytes; the limit is {self.bytes_max}")
        start = self._at + LENGTH_BYTES
        if left - LENGTH_BYTES >= length:
            self._at = start + length
            return self._data[start : self._at]
        if length > len(self._data):
            self._begin_large(length, start)
        return None

    def _begin_large(self, length: int, start: int) -> None:
        arrived = self._data[start:]
        room = _GROWTH * max(len(arrived), _PIECE_BYTES_MIN)
        self._large = bytearray(min(length, room))
        self._large[: len(arrived)] = arrived
        self._large_bytes, self._large_filled = length, len(arrived)
        self._data, self._at = b"", 0

    def _finished_large(self) -> bytearray | None:
        large = self._large
        if large is None or self._large_filled < self._large_bytes:
            return None
        self._large = None
        return large

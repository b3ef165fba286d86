"""Finding the next valid batch after corruption.

Kafka's format has no sync marker, so every position is a candidate, checked in three steps,
cheapest first:

1. a regular expression, at the speed of C, finds positions whose fixed bits fit: the magic, no
   negative length or count, only known codecs, an offset near the one expected;
2. the fields of the header must agree;
3. the CRC must be right.

Offsets only increase, and all offsets of a segment are within 2**31 of each other, so a random
position passes about once in 2**32 before any CRC is computed.

A search cannot recognize a batch that is stored inside the value of a corrupt record.
If only the CRC of a batch is wrong, its length may be right, so try its declared end first.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.errors import CorruptBatchError, LimitExceededError
from stratalog.format.batch import (
    HEADER_BYTES,
    MAGIC_2,
    MAGIC_AT,
    OFFSET_MAX,
    BatchHeader,
    Codec,
    Entry,
    read_header,
)
from stratalog.format.legacy import LegacyHeader, read_legacy_header
from stratalog.format.log_entry import EntryHeader, is_entry_crc_valid
from stratalog.format.record import RECORD_BYTES_MIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.format.buffers import Buffer

SEGMENT_OFFSETS_MAX: Final = (1 << 31) - 1
"""The largest distance between two offsets of one segment: indexes store it in 32 bits."""

CHECKED_BYTES_MIN: Final = 1 << 30
CHECKED_BYTES_FACTOR: Final = 64
"""How many bytes of CRC a search may compute for each byte searched. Look-alikes that overlap could
otherwise make the cost grow with the square of the window."""

_CHUNK_BYTES_MIN = 4 << 10
_CHUNK_BYTES_MAX = 256 << 10
_ZEROS = bytes(_CHUNK_BYTES_MAX + MAGIC_AT + 1)
_LENGTH = struct.Struct(">i")
_HIGH_HALVES_MAX = 4


class FoundBatch(NamedTuple):
    """A complete batch (or legacy message) with the valid CRC."""

    entry: Entry


class IncompleteBatch(NamedTuple):
    """A candidate that the window does not completely contain.

    Search again from `position` with a window that reaches `end`. What follows in the window was
    not searched: it may be inside this candidate.
    """

    position: int
    end: int


class NoBatch(NamedTuple):
    """No candidate starts before `resume_at`; from there on the window is too short."""

    resume_at: int


ResyncResult: TypeAlias = FoundBatch | IncompleteBatch | NoBatch


def find_next_batch(
    buf: Buffer,
    start: int,
    end: int,
    *,
    offset_min: int,
    offset_max: int | None = None,
    log_end: int | None = None,
) -> ResyncResult:
    """The first complete batch or legacy message in `buf[start:end]` with the valid CRC.

    It has a base offset (legacy: last offset) from `offset_min` to `offset_max`, the end of what a
    segment that reaches `offset_min` can hold unless given. `log_end` is where the log's bytes end,
    seen from this buffer: a candidate that would end after it is skipped. Without it the log is
    assumed to continue after the window.
    """
    end = min(end, len(buf))
    if offset_max is None:
        offset_max = min(offset_min + SEGMENT_OFFSETS_MAX, OFFSET_MAX)
    patterns = _patterns_for(offset_min, offset_max)
    budget = CHECKED_BYTES_MIN + CHECKED_BYTES_FACTOR * (end - start)
    for position in _candidates(buf, start, end, patterns):
        header = _plausible_header(buf, position, end)
        if header is None:
            continue
        entry = Entry(position, _stored_offset(header), header.size_bytes, header.magic)
        if not offset_min <= entry.offset <= offset_max:
            continue
        if log_end is not None and entry.end > log_end:
            continue
        if entry.end > end:
            return IncompleteBatch(position, entry.end)
        budget -= entry.size_bytes
        if budget < 0:
            raise LimitExceededError(
                f"too many candidates for a batch, the last at byte {position}"
            )
        if is_entry_crc_valid(buf, entry, header):
            return FoundBatch(entry)
    return NoBatch(max(start, end - HEADER_BYTES + 1))


def _candidates(
    buf: Buffer, start: int, end: int, patterns: tuple[re.Pattern[bytes], ...]
) -> Iterator[int]:
    """Positions whose fixed bits fit, in order.

    Goes chunk by chunk, so that a batch close by is found without searching the other chunks. Holes
    (runs of zeros, as a crash leaves them) cost next to nothing.
    """
    chunk_start, chunk_bytes = start, _CHUNK_BYTES_MIN
    while chunk_start < end:
        chunk_end = min(chunk_start + chunk_bytes, end)
        if not _is_hole(buf, chunk_start, min(chunk_end + MAGIC_AT + 1, end)):
            seen_end = min(chunk_end + HEADER_BYTES, end)
            positions = sorted(
                match.start() - MAGIC_AT
                for pattern in patterns
                for match in pattern.finditer(buf, chunk_start + MAGIC_AT, seen_end)
            )
            yield from (position for position in positions if position < chunk_end)
        chunk_start, chunk_bytes = chunk_end, min(2 * chunk_bytes, _CHUNK_BYTES_MAX)


def _is_hole(buf: Buffer, start: int, end: int) -> bool:
    return bytes(buf[start:end]) == _ZEROS[: end - start]


def _plausible_header(buf: Buffer, position: int, end: int) -> EntryHeader | None:
    """The header, if its fields agree with each other."""
    try:
        if buf[position + MAGIC_AT] == MAGIC_2:
            header = read_header(buf, position, end)
            return header if _can_hold_records(header) else None
        message = read_legacy_header(buf, position, end)
        return message if _fields_fill_message(buf, position, end, message) else None
    except CorruptBatchError:
        return None


def _can_hold_records(header: BatchHeader) -> bool:
    payload_bytes = header.size_bytes - HEADER_BYTES
    return header.codec_id != Codec.NONE or header.record_count * RECORD_BYTES_MIN <= payload_bytes


def _fields_fill_message(buf: Buffer, position: int, end: int, header: LegacyHeader) -> bool:
    """Whether key and value, each with its length before it, fill the message to its end. A value
    length beyond the window is believed."""
    key_at = position + header.header_bytes + _LENGTH.size
    value_at = key_at + _length_at(buf, key_at) + _LENGTH.size
    if value_at > end:
        return value_at <= position + header.size_bytes
    return value_at + _length_at(buf, value_at) == position + header.size_bytes


def _length_at(buf: Buffer, after: int) -> int:
    """The field length that ends at `after`; null takes no bytes."""
    length: int = _LENGTH.unpack_from(buf, after - _LENGTH.size)[0]
    return max(0, length)


def _stored_offset(header: EntryHeader) -> int:
    return header.base_offset if isinstance(header, BatchHeader) else header.last_offset


def _patterns_for(offset_min: int, offset_max: int) -> tuple[re.Pattern[bytes], ...]:
    """One for each magic, for offsets that share their high half with one of these."""
    first, last = offset_min >> 32, offset_max >> 32
    if last - first >= _HIGH_HALVES_MAX:
        return _patterns(rb"[\x00-\x7f].{3}")
    halves = (re.escape(half.to_bytes(4, "big")) for half in range(first, last + 1))
    return _patterns(b"(?:" + b"|".join(halves) + b")")


@lru_cache(maxsize=16)
def _patterns(offset_high_half: bytes) -> tuple[re.Pattern[bytes], ...]:
    """Patterns that match the magic byte and look around it.

    The engine is fastest with a literal first byte, and a match of a single byte cannot hide
    another that overlaps it.
    """
    length_is_14_or_more = rb"(?<!\x00\x00\x00[\x00-\x0d].{5})"
    offset_and_length = rb"(?<=" + offset_high_half + rb".{4}[\x00-\x7f].{8})"
    key_length = rb"(?:[\x00-\x7f].{3}|\xff{4})"
    attributes_0 = _attributes_class(range(8), Codec.LZ4)
    attributes_1 = _attributes_class(range(16), Codec.LZ4) + rb".{8}"  # and the timestamp
    attributes_2 = rb".{4}\x00" + _attributes_class(range(256), Codec.ZSTD)  # CRC before it
    delta_and_count = rb"[\x00-\x7f].{33}[\x00-\x7f].{3}"
    return tuple(
        re.compile(magic + length_is_14_or_more + b"(?=" + after + b")" + offset_and_length, re.S)
        for magic, after in (
            (rb"\x00", attributes_0 + key_length),
            (rb"\x01", attributes_1 + key_length),
            (rb"\x02", attributes_2 + delta_and_count),
        )
    )


def _attributes_class(attributes: range, codec_max: Codec) -> bytes:
    legal = (re.escape(bytes([value])) for value in attributes if value & 7 <= codec_max)
    return b"[" + b"".join(legal) + b"]"

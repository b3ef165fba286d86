"""The first record of a batch at or after a time, without decoding keys, values and headers.

Two ways with one answer: a readable loop, and a compiled one that is forty times as fast but takes
half a second to load. Which will pay off is not known beforehand, so the loop is used until it has
cost about as much as loading would have (or until something else has loaded the kernels anyway).
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import CorruptRecordError
from stratalog.format import varint
from stratalog.format.batch import HEADER_BYTES, BatchHeader, Codec, TimestampType
from stratalog.format.compression import decompress
from stratalog.format.entry import records_of

if TYPE_CHECKING:
    from stratalog.format.batch import Entry
    from stratalog.format.entry import EntryHeader

LOAD_KERNEL_AFTER_RECORDS: Final = 500_000
_KERNEL: Final = "stratalog.format.kernels.search"
_NUMBERS_BYTES_MIN = 3  # attributes and two deltas
_TIMESTAMP_FAR = 1 << 61


class FoundRecord(NamedTuple):
    """A record, told by its numbers."""

    slot: int
    """How many records of the batch come before it."""
    offset: int
    timestamp: int


class RecordSearch:
    """Looks for records by time, in compiled code once that pays off."""

    def __init__(self) -> None:
        self._records_seen = 0
        self._kernel: Any = None

    def first_at(
        self, buf: bytes, entry: Entry, header: EntryHeader, target: int, start_offset: int
    ) -> FoundRecord | None:
        """The first record with a timestamp >= `target` and an offset >= `start_offset`.

        The CRC is the caller's to check. Raises CorruptRecordError as decoding would.
        """
        if isinstance(header, BatchHeader) and _is_ordinary(header, target):
            found = self._first_of_payload(buf, entry, header, target, start_offset)
            if found is not None:
                return found if found.slot >= 0 else None
        return _first_decoded(buf, entry, target, start_offset)

    def _first_of_payload(
        self, buf: bytes, entry: Entry, header: BatchHeader, target: int, start_offset: int
    ) -> FoundRecord | None:
        """None when a record breaks the format: let the decoder say how."""
        start, end = entry.position + HEADER_BYTES, entry.end
        if header.codec_id != Codec.NONE and header.record_count:
            buf = decompress(header.codec_id, buf[start:end])
            start, end = 0, len(buf)
        kernel = self._loaded_kernel()
        if kernel is None:
            found = _first_readable(buf, start, end, header, (target, start_offset))
            self._records_seen += found.slot if found and found.slot >= 0 else header.record_count
            return found
        address = kernel.address_of(buf)
        slot, offset_delta, timestamp_delta = kernel.first_at(
            address + start,
            address + end,
            header.record_count,
            target - header.base_timestamp,
            start_offset - header.base_offset,
        )
        if slot == kernel.BAD_RECORD:
            return None
        return FoundRecord(
            slot, header.base_offset + offset_delta, header.base_timestamp + timestamp_delta
        )

    def _loaded_kernel(self) -> Any:
        if self._kernel is None and (
            self._records_seen > LOAD_KERNEL_AFTER_RECORDS or _KERNEL in sys.modules
        ):
            self._kernel = import_module(_KERNEL)
        return self._kernel


def _is_ordinary(header: BatchHeader, target: int) -> bool:
    """Whether records have timestamps of their own, far from where they would wrap around."""
    return (
        header.timestamp_type is TimestampType.CREATE_TIME
        and abs(header.base_timestamp) < _TIMESTAMP_FAR
        and abs(target) < _TIMESTAMP_FAR
    )


def _first_readable(
    buf: bytes, at: int, end: int, header: BatchHeader, wanted: tuple[int, int]
) -> FoundRecord | None:
    target, start_offset = wanted
    try:
        for slot in range(header.record_count):
            length, at = varint.read_int(buf, at, end)
            after = at + length
            if length < _NUMBERS_BYTES_MIN or after > end:
                return None
            delta, at = varint.read_long(buf, at + 1, after)
            timestamp = header.base_timestamp + delta
            if timestamp >= target:
                delta, at = varint.read_int(buf, at, after)
                offset = header.base_offset + delta
                if offset >= start_offset:
                    return FoundRecord(slot, offset, timestamp)
            at = after
    except CorruptRecordError:
        return None
    return FoundRecord(-1, -1, -1)


def _first_decoded(buf: bytes, entry: Entry, target: int, start_offset: int) -> FoundRecord | None:
    for slot, record in enumerate(records_of(buf, entry, check_crc=False)):
        if record.timestamp >= target and record.offset >= start_offset:
            return FoundRecord(slot, record.offset, record.timestamp)
    return None

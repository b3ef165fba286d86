"""One entry of a `.log` file of any magic: its header, its CRC, its records, and search by time.

Readers that support every format use these functions and never check the magic. Both kinds of
header have the same properties; what an old one does not have (the first offset and the count of a
compressed set) is None."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from stratalog.errors import CorruptBatchError, CorruptRecordError
from stratalog.format import varint
from stratalog.format.batch import (
    HEADER_BYTES,
    MAGIC_2,
    BatchHeader,
    Codec,
    Entry,
    TimestampType,
    check_crc,
    is_crc_valid,
    next_entry,
    read_header,
)
from stratalog.format.compression import DECOMPRESSED_BYTES_MAX, decompress
from stratalog.format.legacy import (
    LegacyHeader,
    check_legacy_crc,
    decode_legacy_records,
    is_legacy_crc_valid,
    read_legacy_header,
)
from stratalog.format.record import Record, decode_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.format.buffers import Buffer

EntryHeader: TypeAlias = BatchHeader | LegacyHeader


def header_of(buf: Buffer, entry: Entry) -> EntryHeader:
    """The header of `entry`, with all checks except the CRC."""
    if entry.magic > MAGIC_2:
        raise CorruptBatchError(f"magic is {entry.magic}, not 0 to 2", position=entry.position)
    read = read_header if entry.magic == MAGIC_2 else read_legacy_header
    header = read(buf, entry.position, entry.end)
    if header.size_bytes != entry.size_bytes:
        raise CorruptBatchError(
            f"header declares {header.size_bytes} bytes, the entry has {entry.size_bytes}",
            position=entry.position,
        )
    return header


def is_entry_crc_valid(buf: Buffer, entry: Entry, header: EntryHeader) -> bool:
    """Whether the stored CRC matches the entry's bytes."""
    if isinstance(header, BatchHeader):
        return is_crc_valid(buf, entry.position, header)
    return is_legacy_crc_valid(buf, entry.position, header)


def check_entry_crc(buf: Buffer, entry: Entry, header: EntryHeader) -> None:
    """Raise unless the stored CRC matches the entry's bytes."""
    if isinstance(header, BatchHeader):
        check_crc(buf, entry.position, header)
    else:
        check_legacy_crc(buf, entry.position, header)


def records_of(
    buf: Buffer,
    entry: Entry,
    *,
    check_crc: bool = True,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[Record]:
    """The records of `entry`, control records included; the header says whether they are such.

    `check_crc` covers the entry and, in a legacy set, every inner message. Without it corrupt bytes
    may yield wrong records, but never anything but records or a typed error.
    """
    header = header_of(buf, entry)
    if check_crc:
        check_entry_crc(buf, entry, header)
    if isinstance(header, BatchHeader):
        yield from decode_records(
            buf, entry.position, header, decompressed_bytes_max=decompressed_bytes_max
        )
    else:
        yield from decode_legacy_records(
            buf,
            entry.position,
            header,
            check_crc=check_crc,
            decompressed_bytes_max=decompressed_bytes_max,
        )


# All records of a batch. As for the search below, there is a readable loop, and a compiled one that
# is ten times as fast but takes half a second to load.

LOAD_SPANS_AFTER_RECORDS: Final = 100_000
_RECORD_SPANS: Final = "stratalog.format.record_spans"


class RecordDecoder:
    """Decodes batches into lists of records, in compiled code once that pays off."""

    def __init__(self) -> None:
        self._records_seen = 0
        self._spans: Any = None

    def records_of(self, buf: bytes, entry: Entry, header: EntryHeader) -> list[Record]:
        """The records of `entry`, whose header and CRC were checked. Raises as `records_of`
        does; the inner messages of a legacy set, whose CRCs are their own, are checked here."""
        if isinstance(header, BatchHeader):
            spans = self._loaded()
            if spans is not None:
                found: list[Record] | None = spans.list_records(buf, entry.position, header)
                if found is not None:
                    return found
            records = list(decode_records(buf, entry.position, header))
        else:
            records = list(decode_legacy_records(buf, entry.position, header))
        self._records_seen += len(records)
        return records

    def _loaded(self) -> Any:
        if self._spans is None and (
            self._records_seen > LOAD_SPANS_AFTER_RECORDS or _RECORD_SPANS in sys.modules
        ):
            self._spans = import_module(_RECORD_SPANS)
        return self._spans


# The first record of a batch at or after a time, without decoding keys, values and headers. There
# is a readable loop, and a compiled one that is forty times as fast but takes half a second to
# load. The readable one is used until it has cost about as much as loading would (or until the
# kernels are loaded anyway).

LOAD_KERNEL_AFTER_RECORDS: Final = 500_000
_SEARCH_KERNEL: Final = "stratalog.format.kernels.record_search"
_NUMBERS_BYTES_MIN = 3  # attributes and two deltas
_INT64_MAX = (1 << 63) - 1


class FoundRecord(NamedTuple):
    """The index, offset and timestamp of a record."""

    slot: int
    """How many records of the batch come before it."""
    offset: int
    timestamp: int


class RecordSearch:
    """Finds records by time, in compiled code once that pays off."""

    def __init__(self) -> None:
        self._records_seen = 0
        self._kernel: Any = None

    def first_at(
        self, buf: bytes, position: int, target: int, start_offset: int
    ) -> FoundRecord | None:
        """In the batch at `buf[position]`, the first record with a timestamp >= `target` and an
        offset >= `start_offset`.

        Checks the batch: raises CorruptBatchError or CorruptRecordError as decoding would, also
        when `buf` ends before the batch does.
        """
        kernel = self._loaded_kernel()
        if kernel is not None and abs(target) <= _INT64_MAX:
            slot, offset, timestamp = kernel.first_in(buf, position, target, start_offset)
            if slot != kernel.NOT_ORDINARY:
                return FoundRecord(slot, offset, timestamp) if slot >= 0 else None
        return self._first_readable(buf, position, target, start_offset)

    def _first_readable(
        self, buf: bytes, position: int, target: int, start_offset: int
    ) -> FoundRecord | None:
        entry = next_entry(buf, position)
        if entry is None:
            raise CorruptRecordError("the batch is truncated", position=position)
        header = header_of(buf, entry)
        check_entry_crc(buf, entry, header)
        if isinstance(header, BatchHeader) and header.timestamp_type is TimestampType.CREATE_TIME:
            try:
                found, slots = _first_of_payload(buf, entry, header, (target, start_offset))
            except CorruptRecordError:
                pass  # the decoder reports more
            else:
                self._records_seen += slots
                return found
        return _first_decoded(buf, entry, target, start_offset)

    def _loaded_kernel(self) -> Any:
        if self._kernel is None and (
            self._records_seen > LOAD_KERNEL_AFTER_RECORDS or _SEARCH_KERNEL in sys.modules
        ):
            self._kernel = import_module(_SEARCH_KERNEL)
        return self._kernel


def _first_of_payload(
    buf: bytes, entry: Entry, header: BatchHeader, wanted: tuple[int, int]
) -> tuple[FoundRecord | None, int]:
    """The record, if any, and how many records were read."""
    target, start_offset = wanted
    at, end = entry.position + HEADER_BYTES, entry.end
    if header.codec_id != Codec.NONE and header.record_count:
        buf = decompress(header.codec_id, buf[at:end])
        at, end = 0, len(buf)
    for slot in range(header.record_count):
        length, at = varint.read_int(buf, at, end)
        after = at + length
        if length < _NUMBERS_BYTES_MIN or after > end:
            raise CorruptRecordError(f"invalid record length {length}", position=at)
        delta, at = varint.read_long(buf, at + 1, after)
        timestamp = varint.wrapped_long(header.base_timestamp + delta)
        if timestamp >= target:
            delta, at = varint.read_int(buf, at, after)
            offset = varint.wrapped_long(header.base_offset + delta)
            if offset >= start_offset:
                return FoundRecord(slot, offset, timestamp), slot + 1
        at = after
    return None, header.record_count


def _first_decoded(buf: bytes, entry: Entry, target: int, start_offset: int) -> FoundRecord | None:
    for slot, record in enumerate(records_of(buf, entry, check_crc=False)):
        if record.timestamp >= target and record.offset >= start_offset:
            return FoundRecord(slot, record.offset, record.timestamp)
    return None

"""What to dump, and the contents of a `.log` or `.checkpoint` file: batches and their records.

Files are read as Kafka's tool reads them: it trusts the lengths, stops silently at a partial batch,
and shows headers and records of a batch whose CRC is wrong. Where Kafka's tool would throw, the
report gets a problem; if the length of the batch is plausible, the dump continues after it.

Files are read in windows of bounded size. Only a batch larger than a window is read completely, and
one larger than `BATCH_BYTES_MAX` only if its CRC is valid.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.dump.decoders import FORMATS, UTF_8, Format, MessageDecoder, PlainDecoder
from stratalog.errors import CorruptBatchError, StratalogError
from stratalog.format.batch import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    LEGACY_MESSAGE_BYTES_MIN,
    MAGIC_2,
    MAGIC_AT,
    PREFIX_BYTES,
    BatchHeader,
    Codec,
    Entry,
    next_entry,
)
from stratalog.format.buffers import crc32, crc32c
from stratalog.format.checkpoint import CheckpointedOffset, EpochEntry
from stratalog.format.compression import decompress
from stratalog.format.legacy import LegacyHeader, decode_legacy_records, is_legacy_crc_valid
from stratalog.format.offset_index import OffsetEntry
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.record import Record, decode_records
from stratalog.format.time_index import TimeEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.dump.files import EntryValue
    from stratalog.dump.problems import DumpReport
    from stratalog.format.log_entry import EntryHeader
    from stratalog.storage.log_file import LogFile


@dataclass(frozen=True)
class Filters:
    """What to show. A bound that is None does not apply; upper bounds are exclusive."""

    offset_min: int | None = None
    offset_end: int | None = None
    timestamp_min: int | None = None
    timestamp_end: int | None = None
    key: bytes | None = None
    producer_id: int | None = None

    @property
    def excludes_batches(self) -> bool:
        """Whether there may be batches that do not pass."""
        return self.excludes_records or self.producer_id is not None

    @property
    def excludes_records(self) -> bool:
        """Whether a batch that passes may still hold records that do not."""
        bounds = (self.offset_min, self.offset_end, self.timestamp_min, self.timestamp_end)
        return self.key is not None or any(bound is not None for bound in bounds)

    def may_hold(self, header: EntryHeader) -> bool:
        """Whether a batch with this header may hold records that pass.

        A header bounds timestamps from above only (the base timestamp may be a delete horizon), and
        that of an old compressed set does not have its first offset.
        """
        if self.producer_id is not None and header.producer_id != self.producer_id:
            return False
        if self.offset_min is not None and header.last_offset < self.offset_min:
            return False
        base_offset = -1 if header.base_offset is None else header.base_offset
        if self.offset_end is not None and base_offset >= self.offset_end:
            return False
        return self.timestamp_min is None or header.max_timestamp >= self.timestamp_min

    def accepts(self, record: Record) -> bool:
        """Whether a record of a batch that `may_hold` such passes."""
        return (
            (self.key is None or record.key == self.key)
            and self._accepts_offset(record.offset)
            and self._accepts_timestamp(record.timestamp)
        )

    def accepts_entry(self, entry: EntryValue) -> bool:
        """Whether an entry of an index or a snapshot passes the bounds it can be held against."""
        if isinstance(entry, OffsetEntry | CheckpointedOffset):
            return self._accepts_offset(entry.offset)
        if isinstance(entry, EpochEntry):
            return self._accepts_offset(entry.start_offset)
        if isinstance(entry, TimeEntry):
            return self._accepts_offset(entry.offset) and self._accepts_timestamp(entry.timestamp)
        if self.producer_id is not None and entry.producer_id != self.producer_id:
            return False
        if isinstance(entry, ProducerEntry):
            return self._accepts_timestamp(entry.timestamp)
        return (self.offset_min is None or entry.last_offset >= self.offset_min) and (
            self.offset_end is None or entry.first_offset < self.offset_end
        )

    def _accepts_offset(self, offset: int) -> bool:
        return (self.offset_min is None or offset >= self.offset_min) and (
            self.offset_end is None or offset < self.offset_end
        )

    def _accepts_timestamp(self, timestamp: int) -> bool:
        return (self.timestamp_min is None or timestamp >= self.timestamp_min) and (
            self.timestamp_end is None or timestamp < self.timestamp_end
        )


MESSAGE_BYTES_MAX_DEFAULT: Final = 5 << 20
MAX_BYTES_DEFAULT: Final = (1 << 31) - 1


@dataclass(frozen=True)
class IndexChecks:
    """How indexes are checked: the options of Kafka's tool that do not concern logs."""

    verify_only: bool = False
    """Entries are checked, but not printed."""
    sanity_only: bool = False
    """Entries are not looked at: only the quick check that a broker runs at startup."""
    max_message_bytes: int = MESSAGE_BYTES_MAX_DEFAULT
    """Size of the largest batch that an entry may point to."""


@dataclass(frozen=True)
class DumpOptions:
    """The options of Kafka's tool, by the names of its flags, and some more."""

    print_data: bool = False
    deep_iteration: bool = False
    skip_record_metadata: bool = False
    decoder: MessageDecoder = field(default_factory=PlainDecoder)
    header_format: Format = FORMATS[UTF_8]
    """Format of header values, which only JSON shows."""
    notices: tuple[str, ...] = ()
    """Printed ahead of each log: the tool's remarks on decoders named by their old class."""
    max_bytes: int = MAX_BYTES_DEFAULT
    """How much of each log to read."""
    index_checks: IndexChecks = field(default_factory=IndexChecks)
    filters: Filters = field(default_factory=Filters)
    is_bulk: bool | None = None
    """Whether compiled kernels render logs; None: where that is faster. The text is the same."""
    limit: int | None = None
    """How many records (batches, if records are not shown; or entries) to print in all."""

    @property
    def is_deep(self) -> bool:
        """Whether records are decoded: printing data needs it, and so does looking for a key."""
        return self.deep_iteration or self.print_data or self.filters.key is not None

    @property
    def reads_all(self) -> bool:
        """Whether logs are read to their end, so that trailing bytes are reported."""
        return self.max_bytes == MAX_BYTES_DEFAULT


WINDOW_BYTES: Final = 1 << 20
BATCH_BYTES_MAX: Final = 128 << 20
_MAGIC_SIGN = 0x80  # Java's bytes are signed: a magic of 128 and more counts as below 2


class DumpedBatch(NamedTuple):
    """A batch, or a message of the old formats, wherever its header could be read."""

    header: EntryHeader
    position: int
    is_valid: bool
    """Its CRC is valid."""


class DumpedRecord(NamedTuple):
    """A record, with what its own message says about it in the old formats."""

    record: Record
    batch: DumpedBatch
    crc: int | None = None
    is_valid: bool | None = None


Dumped: TypeAlias = DumpedBatch | DumpedRecord


class FileWindow(NamedTuple):
    """Bytes of the file, and where they start in it."""

    data: bytes
    position: int


class LogDump:
    """One file of batches, read from `position` on."""

    def __init__(self, file: LogFile, path: str, options: DumpOptions, report: DumpReport) -> None:
        self.file = file
        size = file.size_bytes
        self.end = size if options.reads_all else min(size, options.max_bytes)
        """Where reading ends: the size at the start, or the limit given."""
        self.position = 0
        """After the last batch that was shown."""
        self.last_offset = -1
        """Last offset of the last record; -1 before the first."""
        self.gaps = report.gaps_of(path)
        self._path = path
        self._options = options
        self._report = report

    def estimate_lines(self) -> int:
        """Estimate the number of batches and, if they are shown, records from the headers at the
        start."""
        data = self.file.read(0, WINDOW_BYTES)
        lines = at = 0
        while at + HEADER_BYTES <= len(data):
            size = declared_size(data[at : at + PREFIX_BYTES])
            if not size:
                break
            lines += 1
            if self._options.is_deep and data[at + MAGIC_AT] == MAGIC_2:
                lines += max(0, BatchHeader.unpack(data, at).record_count)
            at += size
        return lines * self.end // at if at else 0

    def values(self, *, batches_max: int | None = None) -> Iterator[Dumped]:
        """Every batch that passes the filters, and its records if they are asked for."""
        for window, entry in islice(self._entries(), batches_max):
            yield from self.batch_values(window, entry)
            self._report.bytes_done += entry.size_bytes
            self.position = window.position + entry.end

    def batch_values(
        self, window: FileWindow, entry: Entry, *, is_shown: bool = False, records_done: int = 0
    ) -> Iterator[Dumped]:
        """One batch, if it passes. It may be shown already, and some of its records dealt with."""
        header = self._header(window, entry)
        if header is None or not self._options.filters.may_hold(header):
            self.last_offset = -1  # what follows is not next to what came before
            return
        valid = self._is_valid(window, entry, header)
        batch = DumpedBatch(header, window.position + entry.position, valid)
        if not self._options.is_deep:
            self._report.shown += 1
            yield batch
            return
        if not is_shown and not self._options.filters.excludes_records:
            is_shown = True
            yield batch
        for seen in islice(self._records(window, entry, batch), records_done, None):
            self._note_gap(seen.record.offset)
            if self._options.filters.accepts(seen.record):
                if not is_shown:
                    is_shown = True
                    yield batch
                self._report.shown += 1
                yield seen

    def _note_gap(self, offset: int) -> None:
        if self.last_offset != -1 and offset != self.last_offset + 1:
            self.gaps.add(self.last_offset, offset)
        self.last_offset = offset

    def _entries(self) -> Iterator[tuple[FileWindow, Entry]]:
        """Each entry with a window that holds all of it, and of its header what the file has."""
        window, usable = FileWindow(b"", 0), 0
        at = self.position
        while at < self.end:
            try:
                entry = next_entry(window.data, at - window.position, usable) if usable else None
                if entry is None or usable - entry.position < HEADER_BYTES:
                    window = self._read_around(at)
                    usable = min(len(window.data), self.end - at)
                    entry = next_entry(window.data, 0, usable)
            except CorruptBatchError as error:
                self._problem(error.reason, at)
                return
            if entry is None:
                entry = self._oversized(window, at)
            if entry is None:
                return
            yield window, entry
            at = window.position + entry.end

    def _read_around(self, at: int) -> FileWindow:
        """A window that starts at `at` and holds the entry there, unless it is oversized."""
        window = FileWindow(self.file.read(at, WINDOW_BYTES), at)
        size = declared_size(window.data)
        if len(window.data) < size <= min(self.end - at, BATCH_BYTES_MAX):
            return FileWindow(self.file.read(at, size), at)
        return window

    def _oversized(self, window: FileWindow, at: int) -> Entry | None:
        """The entry at `at` if it is in the file but too large to read without checking it
        first."""
        size = declared_size(window.data)
        if not BATCH_BYTES_MAX < size <= self.end - at:
            return None
        offset = int.from_bytes(window.data[:8], signed=True)
        return Entry(0, offset, size, window.data[MAGIC_AT])

    def _header(self, window: FileWindow, entry: Entry) -> EntryHeader | None:
        if _is_legacy(entry):
            return LegacyHeader.unpack(window.data, entry.position)
        if len(window.data) - entry.position < HEADER_BYTES:
            self._problem("file ends inside a batch header", window.position + entry.position)
            return None
        return BatchHeader.unpack(window.data, entry.position)

    def _is_valid(self, window: FileWindow, entry: Entry, header: EntryHeader) -> bool:
        is_legacy = isinstance(header, LegacyHeader)
        covered_from = entry.position + (MAGIC_AT if is_legacy else ATTRIBUTES_AT)
        if not is_legacy and entry.size_bytes < HEADER_BYTES:
            return False
        checksum = crc32 if is_legacy else crc32c
        covered = memoryview(window.data)[covered_from : entry.end]
        crc = checksum(covered)
        at = window.position + len(window.data)
        end = window.position + entry.end
        while at < end:  # an oversized entry: the rest in pieces
            piece = self.file.read(at, min(WINDOW_BYTES, end - at))
            if not piece:
                return False
            crc = checksum(piece, crc)
            at += len(piece)
        return crc == header.crc

    def _records(
        self, window: FileWindow, entry: Entry, batch: DumpedBatch
    ) -> Iterator[DumpedRecord]:
        data, at = window.data, entry.position
        if entry.end > len(data):
            if not batch.is_valid:
                self._problem(f"{entry.size_bytes} bytes with a wrong CRC", batch.position)
                return
            data, at = self.file.read(batch.position, entry.size_bytes), 0
        try:
            header = batch.header
            if isinstance(header, BatchHeader):
                for record in decode_records(data, at, header):
                    yield DumpedRecord(record, batch)
            else:
                yield from _legacy_records(data, at, header, batch)
        except StratalogError as error:
            self._problem(getattr(error, "reason", str(error)), batch.position)

    def _problem(self, reason: str, position: int) -> None:
        self._report.problem(f"{self._path} at byte {position}: {reason}")


def declared_size(data: bytes) -> int:
    """What the entry at the start of `data` says its size is; 0 when that cannot be."""
    length = int.from_bytes(data[8:PREFIX_BYTES], signed=True)
    return PREFIX_BYTES + length if length >= LEGACY_MESSAGE_BYTES_MIN else 0


def _is_legacy(entry: Entry) -> bool:
    return entry.magic < MAGIC_2 or entry.magic >= _MAGIC_SIGN


def _legacy_records(
    data: bytes, at: int, header: LegacyHeader, batch: DumpedBatch
) -> Iterator[DumpedRecord]:
    records = decode_legacy_records(data, at, header, check_crc=False)
    if header.codec_id == Codec.NONE:
        for record in records:
            yield DumpedRecord(record, batch, header.crc, batch.is_valid)
        return
    for record, (crc, valid) in zip(records, _inner_checksums(data, at, header), strict=False):
        yield DumpedRecord(record, batch, crc, valid)


def _inner_checksums(data: bytes, at: int, header: LegacyHeader) -> Iterator[tuple[int, bool]]:
    """CRC of each message in a compressed set, and whether it is right."""
    uncompressed = header._replace(attributes=Codec.NONE)
    (wrapper,) = decode_legacy_records(data, at, uncompressed, check_crc=False)
    compressed = wrapper.value or b""
    inner = decompress(header.codec_id, compressed, legacy_lz4=header.magic == 0)
    inner_at = 0
    while (entry := next_entry(inner, inner_at)) is not None:
        inner_header = LegacyHeader.unpack(inner, inner_at)
        yield inner_header.crc, is_legacy_crc_valid(inner, inner_at, inner_header)
        inner_at = entry.end

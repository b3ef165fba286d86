"""Ranges of batches decoded into Arrow columns: the fast twin of `log_entry.records_of`.

The result is that of the readable decoder, record for record and error for error: the structure is
checked completely whatever columns are requested, and if a kernel rejects a batch, the readable
decoder says why. Batches before a corrupt one are returned before the error is raised.

Memory is bounded by `CHUNK_BYTES`, one batch's decompressed records and `PART_BYTES`, however large
the buffer is. A decoder keeps scratch memory between calls and belongs to one thread.

Importing this module loads compiled kernels; import it where many records are read.
"""

from __future__ import annotations

from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.errors import CorruptRecordError, LimitExceededError
from stratalog.format.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    MAGIC_2,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Codec,
    Entry,
)
from stratalog.format.batch_table import (
    BatchTable,
    Part,
    PayloadReader,
    Stop,
    check_crcs,
    scan_batches,
    totals,
)
from stratalog.format.column_types import (
    ALL_COLUMNS,
    HEADER,
    RECORD_COLUMNS,
    numpy_column,
    schema_of,
)
from stratalog.format.compression import DECOMPRESSED_BYTES_MAX
from stratalog.format.java_text import decode_utf8
from stratalog.format.kernels import records
from stratalog.format.kernels import scan as scan_kernel
from stratalog.format.kernels.memory import COPY_SLACK_BYTES, PAYLOAD
from stratalog.format.log_entry import records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from numpy.typing import NDArray

    from stratalog.format.buffers import Buffer
    from stratalog.format.record import Record

__all__ = [
    "ALL_COLUMNS",
    "RECORD_COLUMNS",
    "BatchTable",
    "Decoder",
    "Stop",
    "check_crcs",
    "decode",
    "scan_batches",
    "schema_of",
]

# Columns with fields of the batch, repeated for each of its records.

_SEQUENCE_MASK = (1 << 31) - 1


def _timestamp_types(rows: NDArray[Any]) -> NDArray[Any]:
    kinds = (rows["attributes"] >> 3 & 1).astype(np.int32)
    return np.where(rows["magic"] == 0, np.int32(-1), kinds)


def _flag(bit: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda rows: (rows["attributes"] & bit != 0) & (rows["magic"] == MAGIC_2)


def _field(name: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda rows: rows[name]


_FACTS: Final[Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "timestampType": _timestamp_types,
    "producerId": _field("producer_id"),
    "producerEpoch": _field("producer_epoch"),
    "partitionLeaderEpoch": _field("partition_leader_epoch"),
    "codec": lambda rows: rows["attributes"] & CODEC_MASK,
    "isTransactional": _flag(TRANSACTIONAL_BIT),
    "isControl": _flag(CONTROL_BIT),
    "baseOffset": _field("base_offset"),
    "lastOffset": _field("last_offset"),
    "batchPosition": _field("position"),
    "batchSize": _field("size_bytes"),
    "magic": _field("magic"),
}


@lru_cache(maxsize=8)
def _constant(fact: object, kind: pa.DataType, count: int) -> pa.Array:
    """Columns of one value share memory."""
    return numpy_column(np.full(count, fact), kind)


@cache
def _codec_names() -> pa.Array:
    return pa.array([Codec(number).name.lower() for number in sorted(Codec)])


class BatchFieldColumns:
    """Fields of `rows`, each repeated for every record of its batch."""

    def __init__(self, rows: NDArray[Any], counts: NDArray[Any], total: int) -> None:
        self._rows = rows
        self._counts = counts
        self._total = total

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        facts = _FACTS[name](self._rows)
        if name == "codec":
            return _codec_names().take(numpy_column(np.repeat(facts, self._counts), pa.int8()))
        if (facts == facts[0]).all():  # usually one producer wrote all batches
            return _constant(facts[0].item(), kind, 1 << self._total.bit_length())[: self._total]
        return numpy_column(np.repeat(facts, self._counts), kind)

    def sequences(self, offsets: NDArray[np.int64]) -> pa.Array:
        """From the base sequence of the batch on; 0 follows 2147483647."""
        base = np.repeat(self._rows["base_sequence"].astype(np.int64), self._counts)
        first = np.repeat(self._rows["base_offset"], self._counts)
        numbers = np.where(base < 0, NO_SEQUENCE, base + (offsets - first) & _SEQUENCE_MASK)
        return numpy_column(numbers, pa.int32())


_LEGACY: Final[Mapping[str, Callable[[Record], object]]] = {
    "offset": lambda record: record.offset,
    "timestamp": lambda record: record.timestamp,
    "timestampType": lambda record: int(record.timestamp_type),
    "key": lambda record: record.key,
    "value": lambda record: record.value,
    "headers": lambda _record: [],
    "sequence": lambda _record: NO_SEQUENCE,
}


def legacy_column(
    name: str, kind: pa.DataType, found: Collection[Record], facts: BatchFieldColumns
) -> pa.Array:
    """A column of legacy records from the readable decoder."""
    field_of = _LEGACY.get(name)
    if field_of is None:
        return facts.column(name, kind)
    plain = pa.int64() if pa.types.is_timestamp(kind) else kind
    return pa.array([field_of(record) for record in found], plain).cast(kind)


PART_BYTES: Final = 8 << 20
"""Payload bytes of a part. A larger batch is a part of its own."""

CHUNK_BYTES: Final = 4 << 20
"""How much of a table is decoded at a time. Also a good size for reads from files."""

_BATCHES, _MESSAGES, _SETS = range(3)
_SLOTS: Final = {
    "offset": records.OFFSET,
    "timestamp": records.TIMESTAMP,
    "key": records.KEY,
    "value": records.VALUE,
}


def decode(
    buf: Buffer,
    table: BatchTable | None = None,
    *,
    columns: Collection[str] = RECORD_COLUMNS,
    check_crc: bool = True,
    include_control: bool = False,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> pa.RecordBatch:
    """The records of all batches in `table` (default: of the whole buffer) as one Arrow batch.

    For buffers whose decompressed content fits in memory; `Decoder` returns it in parts.
    """
    if table is None:
        table = scan_batches(buf)
        table.raise_if_corrupt()
    decoder = Decoder(
        columns,
        check_crc=check_crc,
        include_control=include_control,
        decompressed_bytes_max=decompressed_bytes_max,
    )
    parts = list(decoder.decode(buf, table))
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return pa.RecordBatch.from_pylist([], decoder.schema)
    try:
        return pa.concat_batches(parts)
    except pa.ArrowInvalid:  # its offsets have 32 bits
        raise LimitExceededError("a column of one Arrow batch cannot hold 2 GiB") from None


class Decoder:
    """Decodes runs of batches into Arrow batches of one schema."""

    def __init__(
        self,
        columns: Collection[str] = RECORD_COLUMNS,
        *,
        check_crc: bool = True,
        include_control: bool = False,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.schema = schema_of(columns)
        self._fields = [(field.name, field.type) for field in self.schema]
        self._check_crc = check_crc
        self._include_control = include_control
        self._wanted = frozenset(columns) | ({"offset"} if "sequence" in columns else frozenset())
        self._reader = PayloadReader(
            part_bytes=part_bytes, decompressed_bytes_max=decompressed_bytes_max
        )
        self._last_needed: tuple[ColumnSizes, int] | None = None

    def decode(self, buf: Buffer, table: BatchTable) -> Iterator[pa.RecordBatch]:
        """The records of `table`, which must come from `buf`, in order.

        Raises what the readable decoder raises for the first corrupt batch, after everything before
        it was returned.
        """
        for rows in _chunks(table.rows):
            yield from self._decode_chunk(buf, rows)

    def _decode_chunk(self, buf: Buffer, rows: NDArray[Any]) -> Iterator[pa.RecordBatch]:
        payloads = np.empty(len(rows), PAYLOAD)
        survey = _survey(buf, rows, payloads, checks_crc=False)
        is_one_part = survey.record_count and survey.payload_bytes <= self._reader.part_bytes
        if survey.kinds or not is_one_part:
            if self._check_crc:
                survey = _survey(buf, rows, payloads, checks_crc=True)
            yield from self._decode_mixed(buf, self._visible(rows[: survey.good]))
        else:
            part = Part(rows[: survey.good], payloads, survey.record_count, survey.payload_bytes)
            yield from self._decode_part(buf, part._replace(is_unchecked=self._check_crc))
        if survey.good < len(rows):
            self._raise_for(buf, rows[survey.good])

    def _visible(self, rows: NDArray[Any]) -> NDArray[Any]:
        if self._include_control:
            return rows
        is_data = (rows["attributes"] & CONTROL_BIT == 0) | (rows["magic"] != MAGIC_2)
        visible: NDArray[Any] = rows[is_data]
        return visible

    def _decode_mixed(self, buf: Buffer, rows: NDArray[Any]) -> Iterator[pa.RecordBatch]:
        for kind, run in _runs(rows):
            if kind == _MESSAGES:
                yield from self._decode_messages(buf, run)
            elif kind == _SETS:
                yield from self._decode_sets(buf, run)
            else:
                yield from self._decode_batches(buf, run)

    def _decode_batches(self, buf: Buffer, rows: NDArray[Any]) -> Iterator[pa.RecordBatch]:
        done = 0
        for part in self._reader.parts(buf, rows):
            yield from self._decode_part(buf, part)
            done += len(part.rows)
        if done < len(rows):
            self._raise_for(buf, rows[done])

    def _decode_part(self, buf: Buffer, part: Part) -> Iterator[pa.RecordBatch]:
        """The records of these batches up to the first corrupt one, for which it raises."""
        rows, payloads = part.rows, part.payloads
        if not part.record_count:
            return
        memory = ColumnMemory(self._wanted, part.record_count, self._room(part.payload_bytes))
        bad = memory.fill(partial(records.decode, rows, payloads), checks_crc=part.is_unchecked)
        if bad is None:
            self._last_needed = memory.needed, part.payload_bytes
            yield self._assemble(rows, rows["record_count"], memory)
            return
        good = Part(rows[:bad], payloads[:bad], *totals(rows[:bad], payloads[:bad]))
        yield from self._decode_part(buf, good)
        self._raise_for(buf, rows[bad])

    def _decode_messages(self, buf: Buffer, rows: NDArray[Any]) -> Iterator[pa.RecordBatch]:
        """A run of plain legacy messages."""
        from stratalog.format.kernels import legacy  # noqa: PLC0415 - most logs have none

        while len(rows):
            part = rows[: self._reader.count_in_part(rows)]
            size = int(part["size_bytes"].sum(dtype=np.int64))
            memory = ColumnMemory(self._wanted, len(part), ColumnSizes(size, size, 0, 0, 0))
            source = pa.py_buffer(buf)
            decode_at = partial(legacy.decode, source.address, part)
            bad = memory.fill(decode_at, checks_crc=self._check_crc)
            del source  # it would prevent a mapped file from being closed
            if bad is None:
                yield self._assemble(part, np.ones(len(part), np.int64), memory)
            else:
                yield from self._decode_messages(buf, part[:bad])
                self._raise_for(buf, part[bad])
            rows = rows[len(part) :]

    def _room(self, payload_bytes: int) -> ColumnSizes:
        """Estimated from the last part."""
        if self._last_needed is None:
            return ColumnSizes(payload_bytes, payload_bytes, 0, 0, 0)
        needed, needed_by = self._last_needed
        return needed.scaled(payload_bytes / needed_by)

    def _assemble(
        self, rows: NDArray[Any], counts: NDArray[Any], memory: ColumnMemory
    ) -> pa.RecordBatch:
        facts = BatchFieldColumns(rows, counts, memory.count)
        columns = [_column(name, kind, memory, facts) for name, kind in self._fields]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _decode_sets(self, buf: Buffer, rows: NDArray[Any]) -> Iterator[pa.RecordBatch]:
        """Compressed legacy sets, with the readable decoder: they are rare."""
        for row in rows:
            found = list(self._records_of(buf, row))
            if found:
                facts = BatchFieldColumns(row.reshape(1), np.array([len(found)]), len(found))
                columns = [legacy_column(name, kind, found, facts) for name, kind in self._fields]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _records_of(self, buf: Buffer, row: Any) -> Iterator[Record]:
        names = ("position", "base_offset", "size_bytes", "magic")
        return records_of(
            buf,
            Entry(*(int(row[name]) for name in names)),
            check_crc=self._check_crc,
            decompressed_bytes_max=self._reader.decompressed_bytes_max,
        )

    def _raise_for(self, buf: Buffer, row: Any) -> None:
        """Raise what the readable decoder finds wrong with this batch."""
        for _ in self._records_of(buf, row):
            pass
        offsets = (int(row["base_offset"]), int(row["last_offset"]))
        raise CorruptRecordError(
            "the bytes changed while they were read", position=int(row["position"]), offsets=offsets
        )


class _Survey(NamedTuple):
    """Totals of a run of batches, and how many of them are valid."""

    good: int
    record_count: int
    payload_bytes: int
    kinds: int


def _survey(
    buf: Buffer, rows: NDArray[Any], payloads: NDArray[Any], *, checks_crc: bool
) -> _Survey:
    found = np.zeros(scan_kernel.SLOTS, np.int64)
    memory = pa.py_buffer(buf)
    good = scan_kernel.survey(memory.address, memory.size, rows, payloads, found, checks_crc)
    if good == scan_kernel.FOREIGN:
        raise ValueError("the table does not belong to this buffer")
    return _Survey(good, *found.tolist())


def _column(
    name: str, kind: pa.DataType, memory: ColumnMemory, facts: BatchFieldColumns
) -> pa.Array:
    match name:
        case "offset" | "timestamp":
            return memory.number_column(_SLOTS[name], kind)
        case "key" | "value":
            return memory.binary_column(_SLOTS[name])
        case "headers":
            return memory.header_column(kind)
        case "sequence":
            return facts.sequences(memory.numbers(records.OFFSET))
        case _:
            return facts.column(name, kind)


def _chunks(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Runs of about CHUNK_BYTES: they fit the CPU cache."""
    while len(rows):
        stop = len(rows)
        start = rows["position"][0]
        if rows["position"][-1] - start > 2 * CHUNK_BYTES:
            stop = max(1, int(np.searchsorted(rows["position"], start + CHUNK_BYTES)))
        yield rows[:stop]
        rows = rows[stop:]


def _runs(rows: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Runs of the same kind: batches, uncompressed legacy messages, compressed legacy sets."""
    if len(rows):
        is_set = rows["attributes"] & CODEC_MASK != 0
        kinds = np.where(rows["magic"] == MAGIC_2, _BATCHES, np.where(is_set, _SETS, _MESSAGES))
        starts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(rows)]
        for start, end in pairwise(starts):
            yield int(kinds[start]), rows[start:end]


# Memory for the columns of one run: allocated by Arrow, filled by the kernel. Fixed-size columns
# are sized by the number of records. The bytes of keys and values and the number of headers are
# known only after decoding: they get a little more than the last run needed, and if that is too
# little the run is repeated with what it needs. The first run gets room for every payload byte.

_BINARY: Final = pa.binary()
_STRING: Final = pa.string()
_NO_HEADERS: Final = pa.nulls(0, HEADER)
_TRIES_MAX = 3


class ColumnSizes(NamedTuple):
    """Sizes of the data columns, in the order of the kernel's slots."""

    key_bytes: int
    value_bytes: int
    headers: int
    header_key_bytes: int
    header_value_bytes: int

    def holds(self, needed: ColumnSizes) -> bool:
        return all(room >= need for room, need in zip(self, needed, strict=True))

    def scaled(self, by: float) -> ColumnSizes:
        """For a run `by` times as long, and an eighth more."""
        key_bytes, value_bytes, *headers = (int(number * by * 1.125) for number in self)
        return ColumnSizes(key_bytes + 256, value_bytes + 256, *headers)


class ColumnMemory:
    """The columns of one run of `count` records."""

    def __init__(self, wanted: Collection[str], count: int, room: ColumnSizes) -> None:
        self.count = count
        self._slots = np.zeros(records.SLOTS, np.int64)
        self._buffers: dict[int, pa.Buffer] = {}
        if "offset" in wanted:
            self._allocate(records.OFFSET, 8 * count)
        if "timestamp" in wanted:
            self._allocate(records.TIMESTAMP, 8 * count)
        for name, slot in (("key", records.KEY), ("value", records.VALUE)):
            if name in wanted:
                self._allocate(slot, 4 * (count + 1))
                self._allocate_valid(slot + 2, count)
        if "headers" in wanted:
            self._allocate(records.HEADERS, 4 * (count + 1))
        self._make_room(room)

    def _make_room(self, room: ColumnSizes) -> None:
        self._slots[records.ROOM : records.ROOM + len(room)] = room
        for slot, size in ((records.KEY, room.key_bytes), (records.VALUE, room.value_bytes)):
            if slot in self._buffers:
                self._allocate(slot + 1, size + COPY_SLACK_BYTES, resizable=True)
        if records.HEADERS in self._buffers and room.headers:
            self._allocate(records.HEADER_KEY, 4 * (room.headers + 1))
            self._allocate(records.HEADER_KEY + 1, room.header_key_bytes)
            self._allocate(records.HEADER_VALUE, 4 * (room.headers + 1))
            self._allocate(records.HEADER_VALUE + 1, room.header_value_bytes)
            self._allocate_valid(records.HEADER_VALUE_VALID, room.headers)
        else:
            self._slots[records.HEADERS_ROOM] = 0

    def fill(self, decode: Callable[[int, bool], int], *, checks_crc: bool = False) -> int | None:
        """Decode batches into the columns; returns the index of the first corrupt one, or None. The
        kernel gets the address of the slots and whether to check CRCs."""
        for _ in range(_TRIES_MAX):
            if decode(self._slots.ctypes.data, checks_crc) < 0:
                return int(self._slots[records.BATCH_INDEX])
            room, needed = self._room_at(records.ROOM), self.needed
            if records.HEADERS not in self._buffers:
                needed = ColumnSizes(needed.key_bytes, needed.value_bytes, 0, 0, 0)
            if room.holds(needed):
                return None
            self._slots[records.NEEDED :] = 0
            self._make_room(needed)
        return 0  # the bytes change while they are read

    @property
    def needed(self) -> ColumnSizes:
        """What the run needed."""
        return self._room_at(records.NEEDED)

    def _room_at(self, slot: int) -> ColumnSizes:
        return ColumnSizes(*self._slots[slot : slot + len(ColumnSizes._fields)].tolist())

    def numbers(self, slot: int) -> NDArray[np.int64]:
        """The offset or timestamp column as a numpy array."""
        return np.frombuffer(self._buffers[slot], np.int64, self.count)

    def number_column(self, slot: int, kind: pa.DataType) -> pa.Array:
        return pa.Array.from_buffers(kind, self.count, [None, self._buffers[slot]], 0)

    def binary_column(self, slot: int) -> pa.Array:
        """The key or value column. Unused memory is released."""
        is_key = slot == records.KEY
        nulls = int(self._slots[records.KEY_NULLS if is_key else records.VALUE_NULLS])
        used = int(self._slots[records.KEY_BYTES if is_key else records.VALUE_BYTES])
        data = self._buffers[slot + 1]
        data.resize(used, shrink_to_fit=used < data.size // 2)
        valid = self._buffers[slot + 2] if nulls else None
        return pa.Array.from_buffers(_BINARY, self.count, [valid, self._buffers[slot], data], nulls)

    def header_column(self, kind: pa.DataType) -> pa.Array:
        needed = self.needed
        entries = _NO_HEADERS
        if needed.headers:
            entries = pa.StructArray.from_arrays(
                [self._header_keys(needed), self._header_values(needed)], fields=list(HEADER)
            )
        lists = self._buffers[records.HEADERS]
        return pa.Array.from_buffers(kind, self.count, [None, lists], 0, children=[entries])

    def _header_keys(self, found: ColumnSizes) -> pa.Array:
        offsets, data = (self._buffers[records.HEADER_KEY + part] for part in (0, 1))
        keys = pa.Array.from_buffers(_STRING, found.headers, [None, offsets, data], 0)
        raw = np.frombuffer(data, np.uint8, found.header_key_bytes)
        if raw.max(initial=0) < 0x80 or _is_utf8(keys):
            return keys
        stored = pa.Array.from_buffers(_BINARY, found.headers, [None, offsets, data], 0)
        return pa.array([decode_utf8(key) for key in stored.to_pylist()], _STRING)

    def _header_values(self, found: ColumnSizes) -> pa.Array:
        offsets, data = (self._buffers[records.HEADER_VALUE + part] for part in (0, 1))
        nulls = int(self._slots[records.HEADER_VALUE_NULLS])
        valid = self._buffers[records.HEADER_VALUE_VALID] if nulls else None
        return pa.Array.from_buffers(_BINARY, found.headers, [valid, offsets, data], nulls)

    def _allocate(self, slot: int, size: int, *, resizable: bool = False) -> None:
        buffer = pa.allocate_buffer(size, resizable=resizable)
        self._buffers[slot] = buffer
        self._slots[slot] = buffer.address

    def _allocate_valid(self, slot: int, count: int) -> None:
        self._allocate(slot, (count + 7) // 8)
        np.frombuffer(self._buffers[slot], np.uint8).fill(0xFF)


def _is_utf8(keys: pa.Array) -> bool:
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True

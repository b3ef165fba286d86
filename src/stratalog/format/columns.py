"""Where the plain records of batches lie: in the caller's buffer, or decompressed beside it.

The kernels of codecs are loaded when the first compressed batch is met: they take seconds to
compile on a first start, which readers of plain logs need not wait for.

Batches are cut into parts of about `part_bytes` of plain records, so that what is held at once
stays bounded however well the records were compressed.
"""

from __future__ import annotations

from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.errors import CorruptRecordError, LimitExceededError, StratalogError
from stratalog.format.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    MAGIC_2,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Codec,
    Entry,
)
from stratalog.format.batch_table import BatchTable, Stop, check_crcs, scan_batches
from stratalog.format.buffers import Scratch
from stratalog.format.column_memory import ColumnMemory, ColumnSizes
from stratalog.format.column_types import ALL_COLUMNS, RECORD_COLUMNS, numpy_column, schema_of
from stratalog.format.compression import DECOMPRESSED_BYTES_MAX, decompress_into, unzstd_frame_into
from stratalog.format.entry import records_of
from stratalog.format.kernels import records
from stratalog.format.kernels import scan as survey
from stratalog.format.kernels.layout import PAYLOAD
from stratalog.format.kernels.memory import COPY_SLACK_BYTES
from stratalog.format.record import RECORD_BYTES_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from numpy.typing import NDArray

    from stratalog.format.buffers import Buffer
    from stratalog.format.record import Record

_COMPILED: Final = frozenset({Codec.NONE, Codec.SNAPPY, Codec.LZ4})
_INT32_MAX: Final = (1 << 31) - 1
_PART_BYTES_MAX: Final = 1 << 30


class Part(NamedTuple):
    """Batches that are decoded together, and their plain records. Valid until the next part."""

    rows: NDArray[Any]
    payloads: NDArray[Any]
    record_count: int
    payload_bytes: int
    is_next_bad: bool = False
    """The batch after these cannot be decompressed, or cannot hold the records it declares."""
    is_unchecked: bool = False
    """Their CRCs are still to be checked."""


class PayloadReader:
    """Finds or makes the plain records of runs of magic-2 batches whose headers are good."""

    def __init__(self, *, part_bytes: int, decompressed_bytes_max: int) -> None:
        # A part and one batch more stay below what Arrow's offsets can count.
        self.part_bytes = min(part_bytes, _PART_BYTES_MAX)
        self.decompressed_bytes_max = min(decompressed_bytes_max, _INT32_MAX - self.part_bytes)
        self._scratch = Scratch()

    def parts(self, buf: Buffer, rows: NDArray[Any]) -> Iterator[Part]:
        """The batches in order. The last part tells if the batch after it is bad."""
        while len(rows):
            is_compressed = (rows["attributes"] & CODEC_MASK).any()
            part = self._decompressed(buf, rows) if is_compressed else self._plain(buf, rows)
            yield part
            if part.is_next_bad:
                return
            rows = rows[len(part.rows) :]

    def _plain(self, buf: Buffer, rows: NDArray[Any]) -> Part:
        rows = rows[: self.count_in_part(rows)]
        payloads = np.empty(len(rows), PAYLOAD)
        address = pa.py_buffer(buf).address
        payloads["address"] = rows["position"] + (address + HEADER_BYTES)
        payloads["size_bytes"] = rows["size_bytes"] - HEADER_BYTES
        return Part(rows, payloads, *totals(rows, payloads))

    def count_in_part(self, rows: NDArray[Any]) -> int:
        """How many of these batches, as they are stored, make a part: one at least."""
        ends = np.cumsum(rows["size_bytes"], dtype=np.int64)
        return max(1, int(np.searchsorted(ends, self.part_bytes, "right")))

    def _decompressed(self, buf: Buffer, rows: NDArray[Any]) -> Part:
        """Side by side in the scratch memory, until that holds a part."""
        ends = np.zeros(len(rows) + 1, np.int64)
        stored_bytes = int(rows["size_bytes"].sum(dtype=np.int64))
        if len(self._scratch.view) > 2 * (self.part_bytes + COPY_SLACK_BYTES):
            self._scratch = Scratch()  # one huge batch must not cost memory for ever
        self._scratch.reserve(0, min(4 * stored_bytes, self.part_bytes) + COPY_SLACK_BYTES)
        done, before = 0, -1
        is_next_bad = False
        while done < len(rows) and ends[done] < self.part_bytes and not is_next_bad:
            if done == before:
                break  # the next is plain, and large enough for a part of its own
            before = done
            done += self._expand(buf, rows[done:], ends[done:])
            more, is_next_bad = self._decompress(buf, rows[done:], ends[done:])
            done += more
        payloads = np.empty(done, PAYLOAD)
        payloads["address"] = ends[:done] + pa.py_buffer(self._scratch.view).address
        payloads["size_bytes"] = np.diff(ends[: done + 1])
        return Part(rows[:done], payloads, *totals(rows[:done], payloads), is_next_bad)

    def _expand(self, buf: Buffer, rows: NDArray[Any], ends: NDArray[np.int64]) -> int:
        """As many batches as compiled codecs can do; ends[0] is where they start."""
        from stratalog.format.kernels import decompress as expand  # noqa: PLC0415 - see above

        room = min(len(self._scratch.view) - COPY_SLACK_BYTES, self.part_bytes)
        source, target = pa.py_buffer(buf), pa.py_buffer(self._scratch.view)
        start, limit = int(ends[0]), self.decompressed_bytes_max
        done = int(expand.expand(source.address, rows, target.address, start, room, ends[1:]))
        if limit < room:
            is_over = np.diff(ends[: done + 1]) > limit
            is_over &= rows["attributes"][:done] & CODEC_MASK != Codec.NONE
            done = int(np.argmax(is_over)) if is_over.any() else done
        return done

    def _decompress(
        self, buf: Buffer, rows: NDArray[Any], ends: NDArray[np.int64]
    ) -> tuple[int, bool]:
        """Batches one by one, up to one that a compiled codec can do, but at least one if the part
        has room; and whether the batch after those is bad."""
        from stratalog.format.kernels import decompress as zstd  # noqa: PLC0415 - see above

        declared = np.empty((len(rows), 2), np.int64)
        zstd.declare(pa.py_buffer(buf).address, rows, declared)
        columns = [rows[name].tolist() for name in ("position", "size_bytes", "record_count")]
        codecs = (rows["attributes"] & CODEC_MASK).tolist()
        view = memoryview(buf)
        done, at = 0, int(ends[0])
        for codec_id, frame, position, size, count in zip(
            codecs, declared.tolist(), *columns, strict=True
        ):
            if at >= self.part_bytes or (done and codec_id in _COMPILED):
                break
            if at and codec_id == Codec.NONE and size > self.part_bytes:
                break
            stored = view[position + HEADER_BYTES : position + size]
            end = self._decompress_one(codec_id, stored, at, frame) if count else at
            if end is None or end - at < count * RECORD_BYTES_MIN:
                return done, True
            done += 1
            ends[done] = at = end
        return done, False

    def _decompress_one(
        self, codec_id: int, stored: memoryview, at: int, declared: list[int]
    ) -> int | None:
        limit = self.decompressed_bytes_max
        try:
            if declared[0] >= 0:
                frame = (declared[0], declared[1])
                return unzstd_frame_into(stored, self._scratch, at, frame, limit)
            if codec_id == Codec.NONE:
                limit = len(stored)
            return decompress_into(codec_id, stored, self._scratch, at, bytes_max=limit)
        except StratalogError:
            return None


def totals(rows: NDArray[Any], payloads: NDArray[Any]) -> tuple[int, int]:
    """How many records these batches declare, and the bytes they lie in."""
    return int(rows["record_count"].sum(dtype=np.int64)), int(payloads["size_bytes"].sum())


# Columns that are facts of the batch, repeated for each of its records.

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
    """Columns of one value are parts of the same memory, however many there are."""
    return numpy_column(np.full(count, fact), kind)


@cache
def _codec_names() -> pa.Array:
    return pa.array([Codec(number).name.lower() for number in sorted(Codec)])


class Repeated:
    """Facts of `rows`, each repeated as often as its batch has records."""

    def __init__(self, rows: NDArray[Any], counts: NDArray[Any], total: int) -> None:
        self._rows = rows
        self._counts = counts
        self._total = total

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        facts = _FACTS[name](self._rows)
        if name == "codec":
            return _codec_names().take(numpy_column(np.repeat(facts, self._counts), pa.int8()))
        if (facts == facts[0]).all():  # as a rule a run of batches is by one writer
            return _constant(facts[0].item(), kind, 1 << self._total.bit_length())[: self._total]
        return numpy_column(np.repeat(facts, self._counts), kind)

    def sequences(self, offsets: NDArray[np.int64]) -> pa.Array:
        """Counted from the batch's base sequence; after 2147483647 comes 0."""
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
    name: str, kind: pa.DataType, records: Collection[Record], facts: Repeated
) -> pa.Array:
    """A column of legacy records that the readable decoder made."""
    fact = _LEGACY.get(name)
    if fact is None:
        return facts.column(name, kind)
    plain = pa.int64() if pa.types.is_timestamp(kind) else kind
    return pa.array([fact(record) for record in records], plain).cast(kind)


# Whole ranges of batches into Arrow columns: the fast twin of `entry.records_of`.
#
# What it gives is what the readable decoder gives, record for record and error for error:
# structure is checked in full whatever columns are asked for, and when a kernel refuses a batch
# the readable decoder is asked to say why. Batches before a bad one are handed over before the
# error is raised.
#
# Memory is bounded by `CHUNK_BYTES`, one batch's decompressed records and `PART_BYTES`, however
# large the buffer: output comes in parts of about that much payload. A decoder keeps scratch
# memory between calls and belongs to one thread.
#
# Importing this module loads compiled kernels; import it where many records are read.

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

PART_BYTES: Final = 8 << 20
"""Payload bytes after which a part is handed over. A larger batch is a part of its own."""

CHUNK_BYTES: Final = 4 << 20
"""How much of a longer table is worked on at a time. A good size for reads from files, too."""

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

    For buffers whose content, decompressed, fits in memory; `Decoder` gives it in parts.
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

        Raises what the readable decoder raises for the first bad batch, once everything before it
        was handed over.
        """
        for rows in _chunks(table.rows):
            yield from self._decode_chunk(buf, rows)

    def _decode_chunk(self, buf: Buffer, rows: NDArray[Any]) -> Iterator[pa.RecordBatch]:
        payloads = np.empty(len(rows), PAYLOAD)
        look = _survey(buf, rows, payloads, checks_crc=False)
        is_one_part = look.record_count and look.payload_bytes <= self._reader.part_bytes
        if look.kinds or not is_one_part:
            if self._check_crc:
                look = _survey(buf, rows, payloads, checks_crc=True)
            yield from self._decode_mixed(buf, self._visible(rows[: look.good]))
        else:
            part = Part(rows[: look.good], payloads, look.record_count, look.payload_bytes)
            yield from self._decode_part(buf, part._replace(is_unchecked=self._check_crc))
        if look.good < len(rows):
            self._raise_for(buf, rows[look.good])

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
        """The records of these batches up to the first bad one, for which it raises."""
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
            del source  # it would keep a mapped file from being closed
            if bad is None:
                yield self._assemble(part, np.ones(len(part), np.int64), memory)
            else:
                yield from self._decode_messages(buf, part[:bad])
                self._raise_for(buf, part[bad])
            rows = rows[len(part) :]

    def _room(self, payload_bytes: int) -> ColumnSizes:
        """Guessed from the last part, of which the next is probably like."""
        if self._last_needed is None:
            return ColumnSizes(payload_bytes, payload_bytes, 0, 0, 0)
        needed, needed_by = self._last_needed
        return needed.scaled(payload_bytes / needed_by)

    def _assemble(
        self, rows: NDArray[Any], counts: NDArray[Any], memory: ColumnMemory
    ) -> pa.RecordBatch:
        facts = Repeated(rows, counts, memory.count)
        columns = [_column(name, kind, memory, facts) for name, kind in self._fields]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _decode_sets(self, buf: Buffer, rows: NDArray[Any]) -> Iterator[pa.RecordBatch]:
        """Compressed legacy sets, through the readable decoder: they are few and old."""
        for row in rows:
            found = list(self._records_of(buf, row))
            if found:
                facts = Repeated(row.reshape(1), np.array([len(found)]), len(found))
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


class _Look(NamedTuple):
    """What a first look at a run of batches found."""

    good: int
    record_count: int
    payload_bytes: int
    kinds: int


def _survey(buf: Buffer, rows: NDArray[Any], payloads: NDArray[Any], *, checks_crc: bool) -> _Look:
    found = np.zeros(survey.SLOTS, np.int64)
    memory = pa.py_buffer(buf)
    good = survey.survey(memory.address, memory.size, rows, payloads, found, checks_crc)
    if good == survey.FOREIGN:
        raise ValueError("the table was not made from this buffer")
    return _Look(good, *found.tolist())


def _column(name: str, kind: pa.DataType, memory: ColumnMemory, facts: Repeated) -> pa.Array:
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
    """Runs of about CHUNK_BYTES: what fits a cache is decoded faster."""
    while len(rows):
        stop = len(rows)
        start = rows["position"][0]
        if rows["position"][-1] - start > 2 * CHUNK_BYTES:
            stop = max(1, int(np.searchsorted(rows["position"], start + CHUNK_BYTES)))
        yield rows[:stop]
        rows = rows[stop:]


def _runs(rows: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Cut where batches, plain legacy messages and compressed legacy sets meet."""
    if len(rows):
        is_set = rows["attributes"] & CODEC_MASK != 0
        kinds = np.where(rows["magic"] == MAGIC_2, _BATCHES, np.where(is_set, _SETS, _MESSAGES))
        starts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(rows)]
        for start, end in pairwise(starts):
            yield int(kinds[start]), rows[start:end]

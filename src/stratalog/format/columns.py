"""Whole ranges of batches into Arrow columns: the fast twin of `entry.records_of`.

What it gives is what the readable decoder gives, record for record and error for error: structure
is checked in full whatever columns are asked for, and when a kernel refuses a batch the readable
decoder is asked to say why. Batches before a bad one are handed over before the error is raised.

Memory is bounded by `CHUNK_BYTES`, one batch's decompressed records and `PART_BYTES`, however large
the buffer: output comes in parts of about that much payload. A decoder keeps scratch memory between
calls and belongs to one thread.

Importing this module loads compiled kernels; import it where many records are read.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.errors import CorruptRecordError, LimitExceededError
from stratalog.format.batch import CODEC_MASK, CONTROL_BIT, MAGIC_2, Entry
from stratalog.format.batch_facts import Repeated, legacy_column
from stratalog.format.batch_table import BatchTable, Stop, check_crcs, scan_batches
from stratalog.format.column_memory import ColumnMemory, Room
from stratalog.format.column_payloads import Part, PayloadReader, totals
from stratalog.format.column_types import ALL_COLUMNS, RECORD_COLUMNS, schema_of
from stratalog.format.compression import DECOMPRESSED_BYTES_MAX
from stratalog.format.entry import records_of
from stratalog.format.kernels import records, survey
from stratalog.format.kernels.layout import PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

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
        self._last_needed: tuple[Room, int] | None = None

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
            memory = ColumnMemory(self._wanted, len(part), Room(size, size, 0, 0, 0))
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

    def _room(self, payload_bytes: int) -> Room:
        """Guessed from the last part, of which the next is probably like."""
        if self._last_needed is None:
            return Room(payload_bytes, payload_bytes, 0, 0, 0)
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

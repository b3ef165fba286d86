"""Arrow columns encoded into batches: the fast twin of `record.encode_batch`.

Batches are filled as Kafka's producer fills them: a record that would make its batch larger than
`batch_bytes` starts the next one, and a larger record gets a batch of its own. Sizes are those
before compression. The output comes in parts of complete batches, about `PART_BYTES` each, so
memory stays bounded however many rows there are.

Importing this module loads compiled kernels; import it where many records are written.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from stratalog.errors import MessageTooLargeError
from stratalog.format.batch import (
    HEADER_BYTES,
    NO_SEQUENCE,
    PREFIX_BYTES,
    BatchHeader,
    Codec,
    with_payload,
)
from stratalog.format.column_types import numpy_column
from stratalog.format.compression import compress
from stratalog.format.kernels import encode
from stratalog.format.kernels.memory import COPY_SLACK_BYTES
from stratalog.format.record import BatchFields, seal_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence, Sized

    from numpy.typing import NDArray

    from stratalog.format.buffers import Buffer
    from stratalog.format.record import RecordLists

_BINARY: Final = (pa.binary(), pa.string())
_HEADERS: Final = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
_PER_MS: Final = {"us": 1_000, "ns": 1_000_000}


class InputColumns:
    """The columns of one Arrow batch in the form that the kernel reads; converted only if
    necessary.

    Keeps their memory alive while the kernel reads it.
    """

    def __init__(self, batch: pa.RecordBatch, timestamp_ms: int | None) -> None:
        """`timestamp_ms` replaces timestamps that are null or missing."""
        names = batch.schema.names
        self.rows = batch.num_rows
        self.size_bytes = batch.nbytes
        if "value" not in names:
            raise ValueError(f"there is no column named value, only {', '.join(names)}")
        self._timestamps = _timestamps(batch, timestamp_ms)
        self._value = _binary(batch.column("value"))
        self._key = _binary(batch.column("key")) if "key" in names else None
        self._headers = _headers(batch.column("headers")) if "headers" in names else None

    @property
    def timestamps(self) -> NDArray[np.int64]:
        """In milliseconds."""
        return self._timestamps

    def fill(self, slots: NDArray[np.int64]) -> None:
        """Set the addresses of the columns for the kernel."""
        slots[encode.TIMESTAMPS] = self._timestamps.ctypes.data
        _fill_binary(slots, encode.VALUE, self._value)
        _fill_binary(slots, encode.KEY, self._key)
        headers = self._headers
        slots[encode.HEADERS] = 0
        if headers is not None:
            valid, offsets = headers.buffers()[:2]
            slots[encode.HEADERS] = offsets.address + 4 * headers.offset
            slots[encode.HEADERS_VALID] = valid.address if valid is not None else 0
            slots[encode.HEADERS_VALID_BIT] = headers.offset
            _fill_binary(slots, encode.HEADER_KEY, headers.values.field("key"))
            _fill_binary(slots, encode.HEADER_VALUE, headers.values.field("value"))


def _fill_binary(slots: NDArray[np.int64], first: int, column: pa.Array | None) -> None:
    numbers = (0, 0, 0, 0, 0)
    if column is not None and len(column):
        valid, offsets, data = column.buffers()
        numbers = (
            offsets.address + 4 * column.offset,
            data.address if data is not None else 0,
            data.address + data.size if data is not None else 0,
            valid.address if valid is not None else 0,
            column.offset,
        )
    slots[first : first + encode.COLUMN_SLOTS] = numbers


def _binary(column: pa.Array) -> pa.Array:
    return column if column.type in _BINARY else column.cast(pa.binary())


def _headers(column: pa.Array) -> pa.Array | None:
    """None if no row has any."""
    if pa.types.is_null(column.type):
        return None
    if not _is_as_read(column.type):
        column = column.cast(_HEADERS)
    entries = column.flatten()
    if not len(entries):
        return None
    if entries.null_count or entries.field("key").null_count:
        raise ValueError("a header is null or has no key")
    return column


def _is_as_read(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    names = [field.name for field in kind.value_type]
    return names == ["key", "value"] and all(field.type in _BINARY for field in kind.value_type)


def _timestamps(batch: pa.RecordBatch, timestamp_ms: int | None) -> NDArray[np.int64]:
    """The timestamps of the rows in milliseconds, rounded down."""
    if "timestamp" not in batch.schema.names:
        if timestamp_ms is None:
            raise ValueError("there is no column named timestamp, and no timestamp_ms was passed")
        return np.full(batch.num_rows, timestamp_ms, np.int64)
    column = batch.column("timestamp")
    unit = column.type.unit if pa.types.is_timestamp(column.type) else "ms"
    plain = column.cast(pa.int64())
    if not plain.null_count:
        return _milliseconds(plain, unit)
    if timestamp_ms is None:
        raise ValueError("a timestamp is null, and no timestamp_ms was passed")
    is_absent = plain.is_null().to_numpy(zero_copy_only=False)
    return np.where(is_absent, np.int64(timestamp_ms), _milliseconds(plain.fill_null(0), unit))


def _milliseconds(column: pa.Array, unit: str) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    if unit == "ms":
        return numbers
    return numbers * 1000 if unit == "s" else numbers // _PER_MS[unit]


BATCH_BYTES: Final = 16_384
"""Kafka's default of a producer's batch.size."""
MAX_MESSAGE_BYTES: Final = 1_048_588
"""Kafka's default of a topic's max.message.bytes."""
PART_BYTES: Final = 4 << 20

_INT32_MAX: Final = (1 << 31) - 1
_PLAIN: Final = BatchFields()


class EncodedBatches(NamedTuple):
    """Complete batches, one after the other."""

    data: Buffer
    sizes: list[int]
    """Size of each batch, in bytes."""
    record_count: int

    @property
    def batches(self) -> list[memoryview]:
        """Each batch by itself, like the requests of a producer."""
        view = memoryview(self.data)
        ends = accumulate(self.sizes)
        return [view[end - size : end] for end, size in zip(ends, self.sizes, strict=True)]


class BatchLimits(NamedTuple):
    """Size limits of batches, in bytes before compression."""

    batch_bytes: int = BATCH_BYTES
    """The size up to which a batch takes more records."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """The size that no batch may exceed."""


def encode_columns(
    columns: pa.RecordBatch | pa.Table,
    fields: BatchFields = _PLAIN,
    limits: BatchLimits = BatchLimits(),  # noqa: B008 - a value
    *,
    timestamp_ms: int | None = None,
) -> Iterator[EncodedBatches]:
    """The rows of `columns` as batches, in order.

    Columns: `value` (binary or string), and if they are there `key` (alike), `timestamp` (int64 in
    milliseconds, or an Arrow timestamp) and `headers` (list of struct of key and value). Others are
    ignored. `timestamp_ms` replaces timestamps that are null or missing.

    With `fields.base_offset` None every batch counts from 0, as producers send them; else offsets
    run on from it. `fields.base_sequence` runs on from batch to batch. A batch also ends where an
    Arrow batch does. Raises MessageTooLargeError for a record that is too large alone.
    """
    if fields.last_offset is not None or fields.delete_horizon_ms is not None:
        raise ValueError("last_offset and delete_horizon_ms are for single batches")
    encoder = _Encoder(fields, limits)
    arrow_batches = [columns] if isinstance(columns, pa.RecordBatch) else columns.to_batches()
    for batch in arrow_batches:
        if batch.num_rows:
            yield from encoder.encode(InputColumns(batch, timestamp_ms))


def encode_rows(
    columns: InputColumns,
    row_numbers: NDArray[np.int32] | None,
    fields: BatchFields,
    limits: BatchLimits,
    number_of: Callable[[int], int] = int,
) -> Iterator[EncodedBatches]:
    """What `encode_columns` does, for the rows with these numbers, in this order; None: all.

    `number_of` turns the index of a row into the number that an error calls it.
    """
    yield from _Encoder(fields, limits, number_of).encode(columns, row_numbers)


class _Encoder:
    """Continues offsets, sequences and rows from one Arrow batch to the next."""

    def __init__(
        self, fields: BatchFields, limits: BatchLimits, number_of: Callable[[int], int] = int
    ) -> None:
        self._fields = fields
        self._bytes_max = min(limits.max_message_bytes, _INT32_MAX)
        self._rows_before = 0
        self._number_of = number_of
        self._slots = np.zeros(encode.SLOTS, np.int64)
        self._fill(
            {
                encode.BATCH_BYTES: min(limits.batch_bytes, self._bytes_max),
                encode.BATCH_BYTES_MAX: self._bytes_max,
                encode.ATTRIBUTES: fields.attributes,
                encode.LEADER_EPOCH: fields.partition_leader_epoch,
                encode.PRODUCER_ID: fields.producer_id,
                encode.PRODUCER_EPOCH: fields.producer_epoch,
                encode.NEXT_SEQUENCE: fields.base_sequence,
                encode.NEXT_OFFSET: fields.base_offset or 0,
                encode.RESTARTS_OFFSETS: fields.base_offset is None,
                encode.MAX_TIMESTAMP: fields.max_timestamp or 0,
                encode.HAS_MAX_TIMESTAMP: fields.max_timestamp is not None,
                encode.IS_SEALED: fields.codec is Codec.NONE,
            }
        )

    @property
    def slots(self) -> NDArray[np.int64]:
        """The kernel's slots, with everything that does not depend on the records."""
        return self._slots

    def encode(
        self, columns: InputColumns, row_numbers: NDArray[np.int32] | None = None
    ) -> Iterator[EncodedBatches]:
        rows = columns.rows
        columns.fill(self._slots)
        self._slots[encode.ROW_NUMBERS] = 0
        room = min(PART_BYTES, 2 * columns.size_bytes + (64 << 10))
        if row_numbers is not None:
            self._slots[encode.ROW_NUMBERS] = row_numbers.ctypes.data
            room = min(room, 2 * columns.size_bytes * len(row_numbers) // rows + (64 << 10))
            rows = len(row_numbers)
        self._fill({encode.ROW: 0, encode.ROWS: rows})
        row = 0
        while row < rows:
            out = pa.allocate_buffer(room + COPY_SLACK_BYTES)
            self._fill({encode.OUT: out.address, encode.OUT_END: out.address + room})
            status = encode.encode(self._slots.ctypes.data)
            first, row = row, int(self._slots[encode.ROW])
            used, needed = int(self._slots[encode.USED]), int(self._slots[encode.NEEDED])
            if status == encode.TOO_LARGE:
                index = row if row_numbers is None else int(row_numbers[row])
                number = self._number_of(self._rows_before + index)
                raise MessageTooLargeError(
                    f"row {number} needs a batch of {needed} bytes, "
                    f"more than max.message.bytes ({self._bytes_max})"
                )
            if used:
                yield self._finished(memoryview(out)[:used], row - first)
            else:
                room = max(2 * room, needed)
        self._rows_before += rows

    def _finished(self, data: memoryview, record_count: int) -> EncodedBatches:
        sizes = []
        at = 0
        while at < len(data):
            sizes.append(int.from_bytes(data[at + 8 : at + PREFIX_BYTES], "big") + PREFIX_BYTES)
            at += sizes[-1]
        encoded = EncodedBatches(data, sizes, record_count)
        if self._fields.codec is Codec.NONE:
            return encoded
        compressed = [self._compressed(batch) for batch in encoded.batches]
        return EncodedBatches(bytearray().join(compressed), [*map(len, compressed)], record_count)

    def _compressed(self, batch: memoryview) -> Buffer:
        """The batch with its records compressed; the batch itself if only that is within the
        limit."""
        codec, payload = self._fields.codec, bytes(batch[HEADER_BYTES:])
        sealed = with_payload(batch, compress(codec, payload, level=self._fields.level))
        if len(sealed) <= self._bytes_max:
            return sealed
        header = BatchHeader.unpack(batch)
        return seal_batch(header._replace(attributes=header.attributes & ~codec), payload)

    def _fill(self, values: dict[int, int]) -> None:
        for slot, value in values.items():
            self._slots[slot] = value


# -- one batch, from lists

_RECORD_BYTES_MAX: Final = 40
"""What a record takes at most besides its key, value and headers: varints and attributes."""


def encode_lists(lists: RecordLists, fields: BatchFields) -> Buffer:
    """One batch: what `record.encode_lists` returns. The memory is the caller's."""
    if lists.headers:
        (encoded,) = _Encoder(fields, _ONE_BATCH).encode(InputColumns(_arrow_of(lists), None))
        return encoded.data
    rows = len(lists)
    keys, values = _ListColumn(lists.keys), _ListColumn(lists.values)
    timestamps = np.fromiter(lists.timestamps, np.int64, rows)
    room = HEADER_BYTES + keys.size_bytes + values.size_bytes + _RECORD_BYTES_MAX * rows
    out = pa.allocate_buffer(room + COPY_SLACK_BYTES)
    slots = _constant_slots(fields._replace(base_sequence=NO_SEQUENCE)).copy()
    slots[encode.KEY : encode.KEY + encode.COLUMN_SLOTS] = keys.addresses
    slots[encode.VALUE : encode.VALUE + encode.COLUMN_SLOTS] = values.addresses
    slots[encode.TIMESTAMPS] = pa.py_buffer(timestamps).address
    slots[encode.OUT] = out.address
    slots[encode.OUT_END] = out.address + room
    slots[encode.ROWS] = rows
    slots[encode.NEXT_SEQUENCE] = fields.base_sequence
    status = encode.encode(pa.py_buffer(slots).address)
    assert status == encode.DONE
    batch = memoryview(out)[: int(slots[encode.USED])]
    if fields.codec is Codec.NONE:
        return batch
    payload = compress(fields.codec, bytes(batch[HEADER_BYTES:]), level=fields.level)
    return with_payload(batch, payload)


class _ListColumn:
    """The bytes of one field of all records, as the kernel reads them, while this object exists."""

    __slots__ = ("addresses", "buffers", "size_bytes")

    def __init__(self, items: list[bytes | None]) -> None:
        texts, valid = cast("list[bytes]", items), None
        try:
            data = pa.py_buffer(b"".join(texts))
        except TypeError:  # None is among them
            texts = [item or b"" for item in items]
            data = pa.py_buffer(b"".join(texts))
            is_valid = np.array([item is not None for item in items])
            valid = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
        offsets = _offsets_of(texts)
        self.buffers = [valid, offsets, data]
        self.size_bytes = data.size
        self.addresses = (
            offsets.address,
            data.address,
            data.address + data.size,
            0 if valid is None else valid.address,
            0,
        )

    def array(self) -> pa.Array:
        """As a column. (`pa.array` would do, but imports pandas if it is installed.)"""
        rows = self.buffers[1].size // 4 - 1
        return pa.Array.from_buffers(pa.binary(), rows, self.buffers)


def _offsets_of(items: Sequence[Sized]) -> pa.Buffer:
    ends = accumulate(map(len, items), initial=0)
    return pa.py_buffer(np.fromiter(ends, np.int32, len(items) + 1))


@lru_cache(16)
def _constant_slots(fields: BatchFields) -> NDArray[np.int64]:
    return _Encoder(fields, _ONE_BATCH).slots


def _arrow_of(lists: RecordLists) -> pa.RecordBatch:
    found = [lists.headers.get(index, ()) for index in range(len(lists))]
    keys = _ListColumn([header.key.encode() for headers in found for header in headers])
    values = _ListColumn([header.value for headers in found for header in headers])
    entries = pa.StructArray.from_arrays([keys.array(), values.array()], ["key", "value"])
    columns = {
        "timestamp": numpy_column(np.array(lists.timestamps, np.int64), pa.int64()),
        "key": _ListColumn(lists.keys).array(),
        "value": _ListColumn(lists.values).array(),
        "headers": pa.Array.from_buffers(
            _HEADERS, len(found), [None, _offsets_of(found)], children=[entries]
        ),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


_ONE_BATCH: Final = BatchLimits((1 << 31) - 1, (1 << 31) - 1)

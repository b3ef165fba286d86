"""Arrow columns into batches: the fast twin of `record.encode_batch`, and `columns` backwards.

Batches are cut as Kafka's producer cuts them: a record that would make its batch larger than
`batch_bytes` begins the next one, and a larger record gets a batch of its own. Sizes are those
before compression. Output comes in parts of whole batches, about `PART_BYTES` each, so memory stays
bounded however many rows there are.

Importing this module loads compiled kernels; import it where many records are written.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.errors import MessageTooLargeError
from stratalog.format.batch import HEADER_BYTES, PREFIX_BYTES, BatchHeader, Codec
from stratalog.format.column_inputs import InputColumns
from stratalog.format.compression import compress
from stratalog.format.kernels import encode
from stratalog.format.kernels.memory import COPY_SLACK_BYTES
from stratalog.format.record import BatchFields, seal_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.format.buffers import Buffer

BATCH_BYTES: Final = 16_384
"""Kafka's default of a producer's batch.size."""
MAX_MESSAGE_BYTES: Final = 1_048_588
"""Kafka's default of a topic's max.message.bytes."""
PART_BYTES: Final = 4 << 20

_INT32_MAX: Final = (1 << 31) - 1
_PLAIN: Final = BatchFields()


class EncodedBatches(NamedTuple):
    """Whole batches end to end."""

    data: Buffer
    sizes: list[int]
    """Of each batch, in bytes."""
    record_count: int

    @property
    def batches(self) -> list[memoryview]:
        """Each batch by itself, like the requests of a producer."""
        view = memoryview(self.data)
        ends = accumulate(self.sizes)
        return [view[end - size : end] for end, size in zip(ends, self.sizes, strict=True)]


class BatchLimits(NamedTuple):
    """How large batches may become, in bytes before compression."""

    batch_bytes: int = BATCH_BYTES
    """What a batch of several records stays within."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """What no batch may exceed."""


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
    ignored. `timestamp_ms` stands in for timestamps that are null or not there.

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
            yield from encoder.encode(InputColumns(batch, timestamp_ms), batch)


class _Encoder:
    """Goes on from one Arrow batch to the next: offsets, sequences, rows."""

    def __init__(self, fields: BatchFields, limits: BatchLimits) -> None:
        self._fields = fields
        self._bytes_max = min(limits.max_message_bytes, _INT32_MAX)
        self._rows_before = 0
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

    def encode(self, columns: InputColumns, batch: pa.RecordBatch) -> Iterator[EncodedBatches]:
        rows = batch.num_rows
        columns.fill(self._slots)
        self._fill({encode.ROW: 0, encode.ROWS: rows})
        room = min(PART_BYTES, 2 * batch.nbytes + (64 << 10))
        row = 0
        while row < rows:
            out = pa.allocate_buffer(room + COPY_SLACK_BYTES)
            self._fill({encode.OUT: out.address, encode.OUT_END: out.address + room})
            status = encode.encode(self._slots.ctypes.data)
            first, row = row, int(self._slots[encode.ROW])
            used, needed = int(self._slots[encode.USED]), int(self._slots[encode.NEEDED])
            if status == encode.TOO_LARGE:
                raise MessageTooLargeError(
                    f"row {self._rows_before + row} makes a batch of {needed} bytes, "
                    f"more than max.message.bytes, which is {self._bytes_max}"
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
        return EncodedBatches(b"".join(compressed), [*map(len, compressed)], record_count)

    def _compressed(self, batch: memoryview) -> bytes:
        """With its records compressed; or plain, if that alone keeps it within the limit."""
        fields, header = self._fields, BatchHeader.unpack(batch)
        payload = bytes(batch[HEADER_BYTES:])
        sealed = seal_batch(header, compress(fields.codec, payload, level=fields.level))
        if len(sealed) <= self._bytes_max:
            return sealed
        return seal_batch(header._replace(attributes=header.attributes & ~fields.codec), payload)

    def _fill(self, values: dict[int, int]) -> None:
        for slot, value in values.items():
            self._slots[slot] = value

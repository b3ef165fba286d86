"""Encoding records into batches beside aiokafka's compiled builder: same records, same bytes.

Ours takes Arrow columns, aiokafka one call a record; both make batches of 16 KiB with offsets from
0 in each. The clock is CPU time.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from aiokafka.record import default_records

from benchmarks.logs import BATCH_BYTES, TIMESTAMP_MS
from benchmarks.report import Work
from stratalog.format.batch import Codec
from stratalog.format.buffers import crc32c
from stratalog.format.encode_columns import BatchLimits, encode_columns
from stratalog.format.record import BatchFields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.report import Report

# (values in bytes, codec, how many times aiokafka's speed is promised)
CASES = (
    (100, Codec.NONE, 5.0),
    (1024, Codec.NONE, None),
    (100, Codec.LZ4, None),
    (100, Codec.ZSTD, None),
)


class Rows(NamedTuple):
    """The records, as lists and as columns."""

    timestamps: list[int]
    keys: list[bytes]
    values: list[bytes]
    columns: pa.RecordBatch


def run(report: Report) -> None:
    builder = default_records.DefaultRecordBatchBuilder
    assert builder.__module__.startswith("aiokafka.record._crecords"), "aiokafka is not compiled"
    size = (4 if report.is_quick else 32) << 20
    for value_bytes, codec, promised in CASES:
        count = size // value_bytes
        rows = _rows(count, value_bytes)
        name = f"encode, {value_bytes} B values, {codec.name.lower()}"
        _check_answer(rows)
        plain_bytes = sum(map(len, rows.keys)) + count * value_bytes
        sides = {
            "stratalog": Work(partial(_ours, rows, codec), count, count, plain_bytes),
            "aiokafka": Work(partial(_theirs, rows, codec), count, count, plain_bytes),
        }
        found = report.race(name, sides, time.process_time)
        if promised is not None:
            ratio = found["aiokafka"].seconds / found["stratalog"].seconds
            report.require(f"{name}: over aiokafka", ratio, at_least=promised)


def _rows(count: int, value_bytes: int) -> Rows:
    rng = random.Random(count)
    timestamps = [TIMESTAMP_MS + index // 4 for index in range(count)]
    keys = [b"user-%05d" % rng.randrange(50_000) for _ in range(count)]
    texts = [bytes(rng.choices(b"abcdefgh ", k=value_bytes)) for _ in range(500)]
    values = [texts[index % 499] for index in range(count)]
    columns = pa.record_batch(
        {
            "timestamp": pa.array(timestamps, pa.timestamp("ms", "UTC")),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )
    return Rows(timestamps, keys, values, columns)


def _ours(rows: Rows, codec: Codec) -> int:
    fields, limits = BatchFields(codec=codec), BatchLimits(BATCH_BYTES)
    return sum(part.record_count for part in encode_columns(rows.columns, fields, limits))


def _theirs(rows: Rows, codec: Codec) -> int:
    return sum(count for _, count in _aiokafka_batches(rows, codec))


def _aiokafka_batches(rows: Rows, codec: Codec) -> Iterator[tuple[bytearray, int]]:
    builder, count = _aiokafka_builder(codec), 0
    for timestamp, key, value in zip(rows.timestamps, rows.keys, rows.values, strict=True):
        if builder.append(count, timestamp, key, value, []) is None:
            yield builder.build(), count
            builder, count = _aiokafka_builder(codec), 0
            builder.append(count, timestamp, key, value, [])
        count += 1
    yield builder.build(), count


def _aiokafka_builder(codec: Codec) -> default_records.DefaultRecordBatchBuilder:
    return default_records.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=BATCH_BYTES,
    )


def _check_answer(rows: Rows) -> None:
    """Once, outside the clock: the very same bytes. aiokafka leaves the leader epoch at 0."""
    fields = BatchFields(partition_leader_epoch=_leader_epoch(rows))
    ours = theirs = 0
    for part in encode_columns(rows.columns, fields, BatchLimits(BATCH_BYTES)):
        ours = crc32c(part.data, ours)
    for data, _ in _aiokafka_batches(rows, Codec.NONE):
        theirs = crc32c(data, theirs)
    assert ours == theirs, "aiokafka and stratalog wrote other bytes"


def _leader_epoch(rows: Rows) -> int:
    data, _ = next(_aiokafka_batches(rows, Codec.NONE))
    return int.from_bytes(data[12:16], "big", signed=True)

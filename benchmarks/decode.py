"""Decoding a log beside aiokafka (compiled) and kafka-python: same bytes, same core, CRC checked.

Ours hands over Arrow batches with all record columns; the others hand over one object a record. All
sum the offsets. The logs are in memory, in the page cache's place; the clock is CPU time.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from aiokafka.record import memory_records as aiokafka_records
from kafka.record import MemoryRecords as KafkaPythonRecords

from benchmarks.logs import BenchLog, build_log
from benchmarks.report import Work
from stratalog.format.columns import Decoder, scan_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.report import Report

CHUNK_BYTES = 8 << 20
KAFKA_PYTHON_BATCHES = 100  # it is too slow for the whole log
KAFKA_PYTHON_LACKS = frozenset({"lz4"})  # reads it with yet another library only

# (values in bytes, codec, how many times aiokafka's speed is promised)
# Without a codec we are bound by memory and aiokafka by its CPU: the ratio was between 6.8 and 9 on
# different machines. With zstd both spend most of their time in the same library.
CASES = (
    (100, "none", 6.0),
    (100, "lz4", 2.0),
    (100, "zstd", 1.5),
    (1024, "none", 2.0),
    (1024, "lz4", None),
    (1024, "zstd", None),
)


def run(report: Report) -> None:
    compiled = aiokafka_records.MemoryRecords
    assert compiled.__module__.startswith("aiokafka.record._crecords"), "aiokafka is not compiled"
    size = (8 if report.is_quick else 64) << 20
    _copy(report, size)
    for value_bytes, codec, promised in CASES:
        bytes_min = 4 * size if codec == "none" else size
        log = build_log(bytes_min=bytes_min, value_bytes=value_bytes, codec=codec)
        _check_answer(log)
        name = f"{value_bytes} B values, {codec}"
        timings = report.race(name, _sides(log, codec), time.process_time)
        ours, theirs = timings["stratalog"], timings["aiokafka"]
        ratio = ours.records_per_second / theirs.records_per_second
        if promised is not None:
            report.require(f"{name}: over aiokafka", ratio, at_least=promised)


def _sides(log: BenchLog, codec: str) -> dict[str, Work]:
    answer = (log.records, log.offset_sum)
    theirs = partial(_sum_others, aiokafka_records.MemoryRecords, log.data)
    sides = {
        "stratalog": Work(partial(_sum, log.data), answer, log.records, len(log.data)),
        "aiokafka": Work(theirs, answer, log.records, len(log.data)),
    }
    if codec not in KAFKA_PYTHON_LACKS:
        small = scan_batches(log.data, batches_max=KAFKA_PYTHON_BATCHES)
        count, data = int(small["record_count"].sum()), log.data[: small.end]
        slow = partial(_sum_others, KafkaPythonRecords, data)
        sides["kafka-python"] = Work(slow, (count, count * (count - 1) // 2), count, len(data))
    return sides


def _copy(report: Report, size: int) -> None:
    """The limit: reading and writing every byte once."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    report.time(
        "copy of memory",
        "numpy",
        Work(partial(np.copyto, target, source), None, 0, size),
        time.process_time,
    )


def _decode(data: bytes) -> Iterator[pa.RecordBatch]:
    decoder = Decoder()
    at = 0
    while at < len(data):
        table = scan_batches(data, at, at + CHUNK_BYTES)
        yield from decoder.decode(data, table)
        at = table.end


def _sum(data: bytes) -> tuple[int, int]:
    """How many records there are, and the sum of their offsets."""
    count = total = 0
    for batch in _decode(data):
        count += batch.num_rows
        total += pc.sum(batch.column("offset")).as_py()
    return count, total


def _sum_others(kind: type, data: bytes) -> tuple[int, int]:
    """The same; aiokafka and kafka-python share their interface."""
    records = kind(data)
    count = total = 0
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        for record in batch:
            count += 1
            total += record.offset
    return count, total


def _check_answer(log: BenchLog) -> None:
    """Once, outside the clock: not only as many records, but the right ones."""
    table = pa.Table.from_batches(_decode(log.data))
    found = (
        table.num_rows,
        pc.sum(table["offset"]).as_py(),
        pc.sum(table["timestamp"].cast(pa.int64())).as_py(),
        pc.sum(pc.binary_length(table["key"])).as_py(),
        pc.sum(pc.binary_length(table["value"])).as_py(),
    )
    expected = (log.records, log.offset_sum, log.timestamp_sum, log.key_bytes, log.value_bytes)
    assert found == expected, f"got {found}, not {expected}"

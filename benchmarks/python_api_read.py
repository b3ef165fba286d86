"""Reading one partition through the public API, from a file in the page cache: records and columns.

`for record in partition.read()` is beside aiokafka's decoding loop over the same bytes, which it
has in memory already, and beside what Python itself needs: the same number of `Record` objects,
each with a key and a value sliced out of bytes, from numbers that are ready in lists.
`read_columns` is beside the decoding of the same bytes in memory, and the bare reading of the file.
All sum the offsets; whoever decodes checks CRCs. The clock is CPU time.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow.compute as pc
from aiokafka.record.memory_records import MemoryRecords

from benchmarks.logs import BenchLog, build_log
from benchmarks.report import Work
from stratalog import Record, TimestampType, open_partition
from stratalog.format.columns import Decoder, scan_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.report import Report
    from stratalog import PartitionView

CHUNK_BYTES = 4 << 20
BATCH_RECORDS = 136  # of the log
_Spans: TypeAlias = "Sequence[tuple[int, int]]"


class _Ready(NamedTuple):
    data: bytes
    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: _Spans
    values: _Spans


RECORDS_PROMISED = 1.0  # millions a second
COLUMNS_PROMISED = 20.0

# (codec, whether the figures are promised)
CASES = (("none", True), ("lz4", False))


def run(report: Report) -> None:
    for codec, is_promised in CASES:
        size = (8 if report.is_quick else 64) << 20
        log = build_log(bytes_min=size, value_bytes=100, codec=codec)
        with tempfile.TemporaryDirectory() as home:
            path = Path(home) / "bench-0"
            path.mkdir()
            (path / f"{0:020d}.log").write_bytes(log.data)
            with open_partition(path) as view:
                _records(report, view, log, codec, is_promised=is_promised)
                _columns(report, view, log, codec, is_promised=is_promised)


def _records(
    report: Report, view: PartitionView, log: BenchLog, codec: str, *, is_promised: bool
) -> None:
    answer = (log.records, log.offset_sum)
    ready = _ready_fields(view)
    sides = {
        "partition.read()": Work(partial(_sum_read, view), answer, log.records, len(log.data)),
        "aiokafka": Work(partial(_sum_aiokafka, log.data), answer, log.records, len(log.data)),
        "the objects alone": Work(partial(_sum_ready, ready), answer, log.records),
    }
    case = f"records, 100 B values, {codec}"
    found = report.race(case, sides, time.process_time)
    ours, theirs = found["partition.read()"], found["aiokafka"]
    if is_promised:
        rate = ours.records_per_second / 1e6
        report.require(f"{case}: partition.read()", rate, at_least=RECORDS_PROMISED, unit=" M/s")
        report.require(f"{case}: over aiokafka", theirs.seconds / ours.seconds, at_least=0.2)


def _columns(
    report: Report, view: PartitionView, log: BenchLog, codec: str, *, is_promised: bool
) -> None:
    answer = (log.records, log.offset_sum)
    size, file = len(log.data), view.path / f"{0:020d}.log"
    sides = {
        "read_columns": Work(partial(_sum_columns, view), answer, log.records, size),
        "decoding in memory": Work(partial(_sum_decoded, log.data), answer, log.records, size),
        "pread alone": Work(partial(_read_file, file), size, 0, size),
    }
    case = f"columns, 100 B values, {codec}"
    found = report.race(case, sides, time.process_time)
    if is_promised:
        rate = found["read_columns"].records_per_second / 1e6
        report.require(f"{case}: read_columns", rate, at_least=COLUMNS_PROMISED, unit=" M/s")


def _sum_read(view: PartitionView) -> tuple[int, int]:
    count = total = 0
    for record in view.read():
        count += 1
        total += record.offset
    return count, total


def _sum_aiokafka(data: bytes) -> tuple[int, int]:
    records = MemoryRecords(data)
    count = total = 0
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        for record in batch:
            count += 1
            total += record.offset
    return count, total


def _ready_fields(view: PartitionView) -> _Ready:
    """What a decoder would have found: numbers, and where keys and values are in some bytes."""
    offsets, timestamps, key_ends, value_ends = [], [], [], []
    data = bytearray()
    for record in view.read():
        offsets.append(record.offset)
        timestamps.append(record.timestamp)
        key_ends.append((len(data), len(data) + len(record.key or b"")))
        data += record.key or b""
        value_ends.append((len(data), len(data) + len(record.value or b"")))
        data += record.value or b""
    return _Ready(bytes(data), offsets, timestamps, key_ends, value_ends)


def _sum_ready(ready: _Ready) -> tuple[int, int]:
    """Only the objects and the loop, in the cheapest way that Python has, a batch at a time."""
    data, count, total = ready.data, 0, 0
    for first in range(0, len(ready.offsets), BATCH_RECORDS):
        batch = slice(first, first + BATCH_RECORDS)
        fields = zip(
            ready.offsets[batch],
            ready.timestamps[batch],
            [data[start:end] for start, end in ready.keys[batch]],
            [data[start:end] for start, end in ready.values[batch]],
            repeat(()),
            repeat(TimestampType.CREATE_TIME),
            strict=False,
        )
        for record in map(partial(tuple.__new__, Record), fields):
            count += 1
            total += record.offset
    return count, total


def _sum_columns(view: PartitionView) -> tuple[int, int]:
    count = total = 0
    for batch in view.read_columns():
        count += batch.num_rows
        total += pc.sum(batch.column("offset")).as_py()
    return count, total


def _sum_decoded(data: bytes) -> tuple[int, int]:
    decoder = Decoder()
    count = total = at = 0
    while at < len(data):
        table = scan_batches(data, at, at + CHUNK_BYTES)
        for batch in decoder.decode(data, table):
            count += batch.num_rows
            total += pc.sum(batch.column("offset")).as_py()
        at = table.end
    return count, total


def _read_file(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        done = 0
        while data := os.pread(fd, CHUNK_BYTES, done):
            done += len(data)
        return done
    finally:
        os.close(fd)

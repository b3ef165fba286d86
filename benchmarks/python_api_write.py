"""Writing with the Python API: by columns, record by record through a producer, and one by one.

Values have 100 bytes, keys 10, and a topic has three partitions. Everything ends up in files, in
the page cache; nothing is flushed, and the clock is CPU time. Beside each case is its limit: the
bare writing of the same bytes, and for loops over records a function that takes the same arguments
and does nothing. aiokafka's compiled builder only encodes: it chooses no partition, reports no
offset and writes no file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from benchmarks.logs import BATCH_BYTES, TIMESTAMP_MS, events
from benchmarks.report import Work
from stratalog import LogDir

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.report import Report

PARTITIONS = 3
VALUE_BYTES = 100
WRITE_BYTES = 1 << 20
# (codec, millions of records a second promised)
COLUMN_CASES = (("none", 4.0), ("lz4", 2.0), ("zstd", None))


class Logs:
    """A log directory for each round, in place of the one before."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._open: LogDir | None = None

    def renew(self) -> None:
        self.close()
        shutil.rmtree(self._home, ignore_errors=True)
        self._open = LogDir.open(self._home)
        self._open.create_topic("bench", PARTITIONS)

    @property
    def logs(self) -> LogDir:
        assert self._open is not None
        return self._open

    @property
    def records(self) -> int:
        return sum(log.log_end_offset for log in self.logs.partitions_of("bench"))

    @property
    def size_bytes(self) -> int:
        return sum(log.size_bytes for log in self.logs.partitions_of("bench"))

    def close(self) -> None:
        if self._open is not None:
            self._open.close()


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory() as home:
        logs = Logs(Path(home) / "logs")
        try:
            _columns(report, logs)
            _producer(report, logs)
            _single(report, logs)
        finally:
            logs.close()


def _columns(report: Report, logs: Logs) -> None:
    count = 400_000 if report.is_quick else 4_000_000
    keys, values = events(50_000, VALUE_BYTES)
    rows = pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array([TIMESTAMP_MS] * len(keys), pa.timestamp("ms", "UTC")),
        }
    )
    table = pa.concat_tables([rows] * (count // len(keys))).combine_chunks()
    plain_bytes = count * (VALUE_BYTES + 10)
    for codec, promised in COLUMN_CASES:
        name = f"append_columns, {count / 1e6:g} M rows, {codec}"
        logs.renew()
        _append_columns(logs, table, codec)
        sides = {
            "stratalog": Work(
                partial(_append_columns, logs, table, codec), count, count, plain_bytes, logs.renew
            ),
            "os.write of its bytes": _bare_write(logs.size_bytes, count),
        }
        found = report.race(name, sides, time.process_time)
        if promised is not None:
            speed = found["stratalog"].records_per_second / 1e6
            report.require(name, speed, at_least=promised, unit=" M/s")


def _append_columns(logs: Logs, table: pa.Table, codec: str) -> int:
    stored = logs.logs.append_columns("bench", table, compression=codec)
    return sum(part.record_count for part in stored)


def _bare_write(size_bytes: int, records: int) -> Work:
    def write() -> int:
        data = bytes(WRITE_BYTES)
        with tempfile.TemporaryFile(buffering=0) as file:
            for _ in range(size_bytes // WRITE_BYTES):
                os.write(file.fileno(), data)
            os.write(file.fileno(), data[: size_bytes % WRITE_BYTES])
        return records

    return Work(write, records, records, size_bytes)


def _producer(report: Report, logs: Logs) -> None:
    count = 100_000 if report.is_quick else 1_000_000
    keys, values = events(count, VALUE_BYTES)
    name = "Producer.append in a loop"
    sides = {
        "stratalog": Work(
            partial(_produce, logs, keys, values), count, count, count * VALUE_BYTES, logs.renew
        ),
        "aiokafka's builder": Work(partial(_build, keys, values), count, count),
        "a function that does nothing": Work(partial(_call, keys, values), count, count),
    }
    found = report.race(name, sides, time.process_time)
    speed = found["stratalog"].records_per_second / 1e6
    report.require(name, speed, at_least=0.4, unit=" M/s")


def _produce(logs: Logs, keys: list[bytes], values: list[bytes]) -> int:
    with logs.logs.producer() as producer:
        append = producer.append
        for key, value in zip(keys, values, strict=True):
            append("bench", value, key=key)
    return logs.records


def _build(keys: list[bytes], values: list[bytes]) -> int:
    built = count = 0
    builder = _aiokafka_builder()
    append = builder.append
    for key, value in zip(keys, values, strict=True):
        if append(count, TIMESTAMP_MS, key, value, []) is None:
            built += count
            builder.build()
            builder, count = _aiokafka_builder(), 0
            append = builder.append
            append(count, TIMESTAMP_MS, key, value, [])
        count += 1
    builder.build()
    return built + count


def _aiokafka_builder() -> DefaultRecordBatchBuilder:
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=BATCH_BYTES,
    )


def _call(keys: list[bytes], values: list[bytes]) -> int:
    append = _nothing
    for key, value in zip(keys, values, strict=True):
        append("bench", value, key=key)
    return len(keys)


def _nothing(
    topic: str,
    value: bytes | None,
    *,
    key: bytes | None = None,
    headers: Any = (),
    timestamp: int | None = None,
    partition: int | None = None,
) -> None:
    """As `Producer.append`."""


def _single(report: Report, logs: Logs) -> None:
    count = 5_000 if report.is_quick else 50_000
    keys, values = events(count, VALUE_BYTES)
    name = "LogDir.append of single records"
    sides = {
        "stratalog": Work(
            partial(_append_each, logs, keys, values),
            count,
            count,
            count * VALUE_BYTES,
            logs.renew,
        ),
        "os.write of as many batches": Work(_write_each(count), count, count),
    }
    found = report.race(name, sides, time.process_time)
    speed = found["stratalog"].records_per_second / 1e3
    report.require(name, speed, at_least=40, unit=" k/s")


def _append_each(logs: Logs, keys: list[bytes], values: list[bytes]) -> int:
    append = logs.logs.append
    for key, value in zip(keys, values, strict=True):
        append("bench", value, key=key)
    return logs.records


def _write_each(count: int) -> Callable[[], int]:
    def write() -> int:
        data = bytes(61 + 7 + 10 + VALUE_BYTES)
        with tempfile.TemporaryFile(buffering=0) as file:
            number = file.fileno()
            for _ in range(count):
                os.write(number, data)
        return count

    return write

"""A task's memory does not grow with its split."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.bulk.read_task import ReadTask
from stratalog.spark.options import plan_read
from tests.opening import open_logs

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema({"topic": pa.string(), "offset": pa.int64(), "value": pa.binary()})
BATCHES, RECORDS, VALUE_BYTES = 300, 100, 5000


def test_one_task_over_a_large_segment(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1)
        with logs.producer(batch_bytes=1 << 20) as producer:
            for number in range(RECORDS):
                producer.append("t", bytes([number]) * VALUE_BYTES, partition=0)
    (log,) = (tmp_path / "t-0").glob("*.log")
    batch = bytearray(log.read_bytes())
    with log.open("wb") as file:
        for number in range(BATCHES):
            struct.pack_into(">q", batch, 0, number * RECORDS)  # the CRC does not cover it
            file.write(batch)
    (tmp_path / "t-0" / f"{0:020d}.index").unlink()
    plan = plan_read({"path": str(tmp_path), "subscribe": "t", "splitBytes": "1g"})
    (split,) = plan.splits
    assert split.size_bytes > 140 << 20
    before = pa.total_allocated_bytes()
    rows = peak_bytes = 0
    for part in ReadTask(SCHEMA).read(split):
        rows += part.num_rows
        peak_bytes = max(peak_bytes, pa.total_allocated_bytes() - before)
    assert rows == BATCHES * RECORDS
    assert peak_bytes < 32 << 20

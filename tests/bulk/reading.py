"""Reading without Spark's processes: the same plan and the same tasks, run one after the other."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.bulk.predicates import Predicate
from stratalog.bulk.read_task import ReadTask
from stratalog.format.record import Header, Record
from stratalog.spark.options import plan_read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

    from stratalog.bulk.splits import SplitPlan

RECORDS = pa.schema(
    {
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "timestampType": pa.int32(),
    }
)

ByPartition = dict[int, tuple[Record, ...]]


def read_plan(
    plan: SplitPlan,
    predicate: Predicate | None = None,
    *,
    fails_on_data_loss: bool = True,
    paths: tuple[Path, ...] = (),
) -> ByPartition:
    """What the tasks of this plan yield, by partition."""
    times_us = (predicate or Predicate()).times_us
    task = ReadTask(RECORDS, times_us, fails_on_data_loss=fails_on_data_loss, paths=paths)
    rows = (row for split in plan.splits for batch in task.read(split) for row in batch.to_pylist())
    return _by_partition((row | {"millis": row["timestamp"].timestamp() * 1000}) for row in rows)


def read_options(
    options: Mapping[str, str], predicate: Predicate | None = None
) -> tuple[SplitPlan, ByPartition]:
    """The plan of a batch query, and what it reads."""
    plan = plan_read(options, predicate or Predicate())
    return plan, read_plan(plan, predicate)


def read_frame(frame: DataFrame) -> ByPartition:
    """What Spark reads, headers included, in the order of its tasks."""
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS millis").collect()
    return _by_partition(row.asDict(recursive=True) for row in rows)


def _by_partition(rows: Iterable[Mapping[str, object]]) -> ByPartition:
    found: dict[int, list[Record]] = defaultdict(list)
    for row in rows:
        headers = row["headers"]
        assert isinstance(headers, list)
        number, offset, kind = row["partition"], row["offset"], row["timestampType"]
        assert isinstance(number, int)
        assert isinstance(offset, int)
        record = Record(
            offset=offset,
            timestamp=round(float(str(row["millis"]))),
            key=_bytes(row["key"]),
            value=_bytes(row["value"]),
            headers=tuple(Header(each["key"], _bytes(each["value"])) for each in headers),
            timestamp_type=kind,  # type: ignore[arg-type]  # an IntEnum, so its number will do
        )
        found[number].append(record)
    return {number: tuple(records) for number, records in found.items()}


def _bytes(value: object) -> bytes | None:
    if value is None:
        return None
    assert isinstance(value, bytes | bytearray)
    return bytes(value)

"""Every directory that a real Kafka wrote, read through Spark, gives what Kafka's consumer read.

A query reads all cases at once, each as a partition of one topic. A task costs Spark more than
reading a whole case does, so that a cut at every possible place is tested with the same plans and
tasks outside of Spark.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from stratalog.log.reader import IsolationLevel
from tests.bulk.golden_dirs import link_cases
from tests.bulk.reading import read_frame, read_options
from tests.effort import IS_LONG
from tests.golden.cases import GoldenCase
from tests.golden.expected import consumed, is_consumed, log_start_offset, undamaged_cases, visible

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CONSUMED = [case for case in undamaged_cases() if is_consumed(case)]
LOADED = [case for case in undamaged_cases() if not log_start_offset(case)]
MOMENTS = {"as found": 0, "recovered": -1}
ALL_PAIRS = [*product(IsolationLevel, MOMENTS)]
PAIRS = ALL_PAIRS if IS_LONG else [*zip(IsolationLevel, MOMENTS, strict=True)]
over_pairs = pytest.mark.parametrize(("isolation", "moment"), PAIRS)


@pytest.mark.parametrize(
    ("split_bytes", "splits_min", "isolation"),
    [
        ("1g", 1, IsolationLevel.READ_UNCOMMITTED),
        ("8k", 100, IsolationLevel.READ_COMMITTED),
    ],
)
def test_what_the_consumer_read(
    spark: SparkSession,
    tmp_path: Path,
    split_bytes: str,
    splits_min: int,
    isolation: IsolationLevel,
) -> None:
    options = {
        "subscribe": "golden",
        "includeHeaders": "true",
        "kafka.isolation.level": isolation.value,
        "splitBytes": split_bytes,
    }
    assert len(CONSUMED) > 40
    path = str(link_cases(tmp_path, CONSUMED))
    frame = spark.read.format("stratalog").options(**options).load(path)
    found = read_frame(frame)
    for number, case in enumerate(CONSUMED):
        assert found.get(number, ()) == consumed(case, isolation), case
    plan, _ = read_options({**options, "path": path})
    assert splits_min <= len(plan.splits) <= splits_min * 2


def test_what_the_loader_found(spark: SparkSession, tmp_path: Path) -> None:
    """Old formats, which no consumer reads without a broker, among them."""
    assert len(LOADED) > 50
    frame = (
        spark.read.format("stratalog")
        .options(subscribe="golden", includeHeaders="true")
        .load(str(link_cases(tmp_path, LOADED)))
    )
    found = read_frame(frame)
    for number, case in enumerate(LOADED):
        assert found.get(number, ()) == visible(case), case


@pytest.mark.slow
@over_pairs
@pytest.mark.parametrize("split_bytes", ["1", "1500", "1g"])
def test_any_cut_gives_the_same_records(
    tmp_path: Path, isolation: IsolationLevel, moment: str, split_bytes: str
) -> None:
    options = {
        "path": str(link_cases(tmp_path, CONSUMED, MOMENTS[moment])),
        "subscribePattern": "gol.*",
        "kafka.isolation.level": isolation.value,
        "splitBytes": split_bytes,
    }
    plan, found = read_options(options)
    for number, case in enumerate(CONSUMED):
        assert found.get(number, ()) == consumed(case, isolation), case
    assert (len(plan.splits) > 1000) == (split_bytes == "1")


@pytest.mark.slow
@over_pairs
def test_a_division_by_offsets_gives_the_same_records(
    tmp_path: Path, isolation: IsolationLevel, moment: str
) -> None:
    """Compacted logs with gaps and transactional ones among them; batches are shared by splits."""
    options = {
        "path": str(link_cases(tmp_path, CONSUMED, MOMENTS[moment])),
        "subscribe": "golden",
        "kafka.isolation.level": isolation.value,
    }
    asked = 6000 if IS_LONG else 4000  # of some 13,000 offsets; there are 3,388 batches
    plan, found = read_options({**options, "minPartitions": str(asked)})
    for number, case in enumerate(CONSUMED):
        assert found.get(number, ()) == consumed(case, isolation), case
    assert len(plan.splits) > asked * 0.9
    pieces = [piece for split in plan.splits for piece in split.ranges]
    assert all(piece.offsets > 0 and piece.size_bytes > 0 for piece in pieces)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [{"splitBytes": "1"}, {"maxRecordsPerPartition": "7"}, {"minPartitions": "4000"}],
    ids=str,
)
def test_any_cut_of_old_formats(tmp_path: Path, how: dict[str, str]) -> None:
    path = str(link_cases(tmp_path, LOADED))
    plan, found = read_options({"path": path, "subscribe": "golden", **how})
    for number, case in enumerate(LOADED):
        assert found.get(number, ()) == visible(case), case
    assert len(plan.splits) > 1000
    if "maxRecordsPerPartition" in how:
        assert max(sum(piece.offsets for piece in split.ranges) for split in plan.splits) <= 7


def test_damage_is_an_error_or_is_passed_over(spark: SparkSession) -> None:
    case = GoldenCase("u-badcrc")
    path = str(case.root / "before")
    reading = spark.read.format("stratalog").option("subscribe", "u-badcrc").schema("offset long")
    with pytest.raises(Exception, match=r"CorruptBatchError: .*\.log at byte \d+") as caught:
        reading.load(path).collect()
    assert "in worker_run" not in str(caught.value)
    left = [row.offset for row in reading.option("onCorruption", "skip").load(path).collect()]
    everything = {record.offset for record in visible(GoldenCase("u-plain"))}
    assert left == sorted(left)
    assert 0 < len(left) < len(everything)

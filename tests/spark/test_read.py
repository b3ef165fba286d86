"""Batch queries as a user writes them: filters, schemas, and errors of one line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from stratalog.spark.options import batch_read_options
from stratalog.spark.reader import StratalogReader
from tests.golden.cases import GoldenCase
from tests.golden.expected import visible

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
CONDITIONS = [
    "offset = 700",
    "offset >= 100 and offset < 130 and partition = 0",
    "timestamp >= timestamp_millis({middle}) and timestamp < timestamp_millis({late})",
    "timestamp = timestamp_millis({middle})",
    "timestamp > timestamp_micros({middle}001)",
    "offset in (3, 800) or offset = 1",
    "offset in (3, 800)",
    "topic like 'multi%' and offset > 1490 and value is not null",
    "topic = 'other'",
]


def _read(spark: SparkSession, name: str = "multiseg", **options: str) -> DataFrame:
    reader = spark.read.format("stratalog").options(**{"subscribe": name, **options})
    return reader.load(str(GoldenCase(name).root))


@pytest.fixture(params=["true", "false"], ids=["pushed", "not pushed"])
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[bool]:
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param == "true"
    spark.conf.unset(PUSHDOWN)


def test_where_gives_what_filtering_everything_gives(
    spark: SparkSession, pushdown: bool, is_columnar: bool
) -> None:
    records = visible(GoldenCase("multiseg"))
    times = {"middle": records[750].timestamp, "late": records[800].timestamp}
    everything = _read(spark).localCheckpoint()
    for condition in CONDITIONS:
        written = condition.format(**times)
        found = _read(spark, filterPushdown="true").where(written)
        assert found.collect() == everything.where(written).collect(), written
    frame = _read(spark, filterPushdown="true").where("offset = 700")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    # What was pushed Spark need not check again.
    assert ("Filter (" not in plan) == (pushdown or is_columnar)


def test_filters_of_one_query_leave_others_alone(spark: SparkSession, pushdown: bool) -> None:
    frame = _read(spark)
    assert frame.where("offset = 700").count() == 1
    assert frame.count() == 1500
    assert frame.where("offset < 5").union(frame.where("offset >= 1490")).count() == 15


def test_spark_mixes_up_the_scans_of_a_frame_that_takes_filters(
    spark: SparkSession, is_columnar: bool
) -> None:
    """Why `filterPushdown` is off unless asked for, and needless with the accelerator. When this
    fails, Spark has been mended."""
    spark.conf.set(PUSHDOWN, "true")
    frame = _read(spark, filterPushdown="true")
    assert frame.where("offset = 700").count() == 1
    assert frame.count() == (1500 if is_columnar else 1)
    spark.conf.unset(PUSHDOWN)


def test_a_schema_prunes_columns(spark: SparkSession) -> None:
    reader = spark.read.format("stratalog").option("subscribe", "multiseg")
    path = str(GoldenCase("multiseg").root)
    frame = reader.schema("timestampType int, topic string, offset long").load(path)
    assert tuple(frame.where("offset = 9").first() or ()) == (0, "multiseg", 9)
    assert reader.schema(StructType([])).load(path).count() == 1500
    assert reader.schema("partition int").load(path).count() == 1500


def test_a_number_of_tasks_may_be_asked_for(spark: SparkSession) -> None:
    frame = _read(spark, minPartitions="200")
    assert 200 <= frame.rdd.getNumPartitions() <= 220
    assert [row.offset for row in frame.collect()] == list(range(1500))


def test_each_partition_of_a_small_topic_has_a_task(spark: SparkSession, tmp_path: Path) -> None:
    """As with the connector, up to what runs at once."""
    for number in range(3):
        (tmp_path / f"t-{number}").symlink_to(GoldenCase("multiseg").partition_dir)
    frame = spark.read.format("stratalog").option("subscribe", "t").load(str(tmp_path))
    assert frame.rdd.getNumPartitions() == min(3, len(os.sched_getaffinity(0)))
    assert frame.count() == 4500


def test_several_directories_are_one_source(spark: SparkSession) -> None:
    paths = [str(GoldenCase(name).root) for name in ("multiseg", "txn")]
    reader = spark.read.format("stratalog").option("subscribePattern", "multi.*|txn")
    frame = reader.load(paths)
    counts = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts["multiseg"] == 1500
    assert reader.load(",".join(paths)).count() == sum(counts.values())


def test_the_types_are_the_connectors(spark: SparkSession) -> None:
    assert _read(spark, includeHeaders="true").schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )


@pytest.mark.parametrize(
    ("options", "path", "message"),
    [
        ({"subscribe": "no"}, "multiseg", "no topic 'no'; topics here: multiseg"),
        ({"subscribePattern": "no.*"}, "multiseg", "no topic matches 'no.*'"),
        ({"subscribe": "t", "startOffset": "9"}, "multiseg", "did you mean 'startingOffsets'?"),
        ({}, "multiseg", "One of the following options must be specified for Kafka source"),
        ({"subscribe": "t"}, "multiseg/multiseg-0", "not a log directory"),
        ({"subscribe": "t"}, "nowhere", "no such directory"),
    ],
    ids=str,
)
def test_a_bad_query_ends_with_one_line(
    spark: SparkSession, options: dict[str, str], path: str, message: str
) -> None:
    root = GoldenCase("multiseg").root.parent
    with pytest.raises(PySparkException) as caught:
        spark.read.format("stratalog").options(**options).load(str(root / path))
    _check_one_line(caught.value, message)


def test_a_bad_bound_or_column_ends_with_one_line(spark: SparkSession) -> None:
    reader = spark.read.format("stratalog").option("subscribe", "multiseg")
    path = str(GoldenCase("multiseg").root)
    for frame, message in [
        (reader.schema("ofset long").load(path), "did you mean 'offset'?"),
        (reader.schema("offset int").load(path), "column offset has the type bigint, not int"),
        (
            _read(spark, startingOffsets="latest"),
            "starting offset can't be latest for batch queries on Kafka",
        ),
        (
            _read(spark, endingOffsets='{"multiseg":{"0":2000}}'),
            "Some data may have been lost because they are not available any more",
        ),
    ]:
        with pytest.raises(PySparkException) as caught:
            frame.collect()
        _check_one_line(caught.value, message)


def test_no_permission_ends_with_one_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir(mode=0o000)
    if os.access(tmp_path / "logs", os.R_OK):
        pytest.skip("root may read everything, unless setpriv takes that away")
    with pytest.raises(PySparkException) as caught:
        spark.read.format("stratalog").option("subscribe", "t").load(str(tmp_path / "logs"))
    _check_one_line(caught.value, "no permission to read it")


def _check_one_line(error: PySparkException, message: str) -> None:
    text = str(error)
    assert message in text
    assert "Traceback" not in text
    assert "\tat " not in text
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) <= 2  # Spark adds its code for the kind of error


def test_the_reader_takes_filters_by_itself() -> None:
    """Spark looks at this to decide whether a reader insists on pushdown."""
    from pyspark.sql.datasource import DataSourceReader, IsNotNull  # noqa: PLC0415

    from stratalog.spark.schema import full_schema  # noqa: PLC0415

    path = str(GoldenCase("multiseg").root)
    given = {"path": path, "subscribe": "multiseg", "filterPushdown": "true"}
    reader = StratalogReader(batch_read_options(given), full_schema(includes_headers=False))
    assert reader.pushFilters.__func__ is DataSourceReader.pushFilters
    left = IsNotNull(("value",))
    assert list(reader.pushFilters([IsNotNull(("offset",)), left])) == [left]


@pytest.mark.parametrize("is_pushed", [True, False])
def test_a_scan_is_logged_with_what_it_reads(
    is_pushed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What the process sees in which Spark plans a query; tests/spark/test_cluster.py sees it on
    standard error."""
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual  # noqa: PLC0415

    from stratalog.spark.schema import full_schema  # noqa: PLC0415

    caplog.set_level("INFO", "stratalog")
    path = str(GoldenCase("multiseg").root)
    given = {"path": path, "subscribe": "multiseg", "filterPushdown": str(is_pushed)}
    reader = StratalogReader(batch_read_options(given), full_schema(includes_headers=False))
    filters = [GreaterThanOrEqual(("offset",), 1490), EqualTo(("partition",), 0)]
    assert list(reader.pushFilters(filters)) == ([] if is_pushed else filters)
    reader.partitions()
    line, *hints = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"scan of {path}: 1 splits read ")
    condition = "partition == 0 and offset >= 1490"
    if is_pushed:
        assert "1 of 10 segments, 1 of 1 partitions; offsets multiseg-0 1490..1500; " in line
        assert line.endswith(f"pushed filters: {condition}")
        assert hints == []
    else:
        assert "10 of 10 segments, 1 of 1 partitions; offsets multiseg-0 0..1500; " in line
        (hint,) = hints
        assert f"`where {condition}` would prune with the option filterPushdown" in hint


def test_what_explain_shows_of_a_scan(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """The filters that were pushed. Spark has no place for more of a Python source."""
    spark.conf.set(PUSHDOWN, "true")
    frame = _read(spark, filterPushdown="true").where("offset >= 1490 and value is not null")
    frame.explain("formatted")
    spark.conf.unset(PUSHDOWN)
    plan = capsys.readouterr().out
    assert "PushedFilters: [IsNotNull(offset), GreaterThanOrEqual(offset,1490)]" in plan

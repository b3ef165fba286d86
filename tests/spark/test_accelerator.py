"""The accelerator: what it pushes, shows, estimates and pins, and how its queries end.

That it reads the same records as the Python source, the tests of reads show, which run twice, and
random queries (test_random_queries.py).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from scripts.build_accelerator import build
from stratalog.spark import accelerator
from stratalog.spark.accelerator import PROPERTIES, SETTING, accelerator_jar, with_accelerator
from stratalog.spark.failures import message_of
from tests.effort import scaled
from tests.golden.cases import GoldenCase
from tests.opening import open_logs
from tests.spark.test_read_stream import Reading

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

BIG_RECORDS = 20_000
_PATIENCE_S = 60.0
SLOW = "java_method('java.lang.Thread', 'sleep', 1L) is null and length(value) > 0"
"""Takes a millisecond for each record, and is not pushed."""
BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


def _read(spark: SparkSession, path: object = None, **options: str) -> DataFrame:
    given = {"subscribe": "multiseg", **options}
    where = GoldenCase("multiseg").root if path is None else path
    return spark.read.format("stratalog").options(**given).load(str(where))


def _plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def _scan(frame: DataFrame) -> Any:
    """Of a query with one scan."""
    (leaf,) = _sequence(frame._jdf.queryExecution().executedPlan().collectLeaves())
    return leaf


def _sequence(scala: Any) -> list[Any]:
    return [scala.apply(number) for number in range(scala.size())]


# -- what is pushed


def test_a_query_reads_the_columns_that_it_needs(spark: SparkSession) -> None:
    frame = _read(spark, includeHeaders="true")
    for query, columns in (
        (frame.select("offset"), "struct<offset:bigint>"),
        (frame.selectExpr("length(value)"), "struct<value:binary>"),
        (frame.selectExpr("headers.key"), "struct<headers:array<struct<key:string>>>"),
        (frame.selectExpr("headers.value"), "struct<headers:array<struct<value:binary>>>"),
        (frame.groupBy().count(), "struct<>"),
    ):
        scan = query._jdf.queryExecution().sparkPlan().collectLeaves().apply(0).scan()
        assert scan.readSchema().simpleString() == columns
    assert frame.groupBy().count().first() == (1500,)


def test_headers_are_pruned_in_all_their_forms(spark: SparkSession, tmp_path: Path) -> None:
    with open_logs(tmp_path / "logs") as logs:
        logs.create_topic("t", 1)
        for headers in ([], [("a", b"1")], [("b", None), ("", b"")], []):
            logs.append("t", b"x", headers=headers)
    read = _read(spark, tmp_path / "logs", subscribe="t", includeHeaders="true")
    all_of_them = [row.headers for row in read.orderBy("offset").collect()]
    assert any(all_of_them)
    for field in ("key", "value"):
        found = read.selectExpr("offset", f"headers.{field} as f").orderBy("offset").collect()
        assert [row.f for row in found] == [
            None if each is None else [header[field] for header in each] for each in all_of_them
        ]


def test_spark_checks_only_what_is_left(spark: SparkSession) -> None:
    frame = _read(spark)
    exact = frame.where("offset >= 1490 and partition = 0 and topic like 'multi%'")
    assert "Filter" not in _plan(exact).replace("PushedFilters", "").replace("RuntimeFilters", "")
    assert exact.count() == 10
    inexact = frame.where("offset in (3, 800) and length(value) > 0 and key is not null")
    assert re.search(r"Filter .*offset#\d+L? IN \(3,800\)", _plan(inexact))
    assert inexact.count() == 2


def test_explain_tells_what_is_read(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    query = _read(spark).where("offset >= 1490").select("key").limit(4)
    query.explain("formatted")
    shown = capsys.readouterr().out
    for line in (
        f"Location: {GoldenCase('multiseg').root}",
        "Offsets: multiseg-0 1490..1500",
        "PushedFilters: [IsNotNull(offset), GreaterThanOrEqual(offset,1490)]",
        "PushedLimit: 4",
        "ReadSchema: struct<key:binary>",
    ):
        assert line in shown.splitlines()
    assert re.search(r"^Reads: 1 splits read \d+ of 147513 bytes .* 1 of 10 segments", shown, re.M)
    query.explain()
    assert "stratalog (columnar, PushedFilters: [" in capsys.readouterr().out


def test_metrics_of_a_scan(spark: SparkSession) -> None:
    query = _read(spark, minPartitions="3").where("offset >= 700").select("offset")
    assert len(query.collect()) == 800
    metrics = _scan(query).metrics()
    found = {
        name: metrics.apply(name).value()
        for name in ("logBytes", "arrowBatches", "logRecords", "segmentsRead", "segmentsPruned")
    }
    assert found["logRecords"] == 800
    assert 3 <= found["arrowBatches"] <= 12
    assert 0 < found["logBytes"] < 147_513
    assert found["segmentsRead"] + found["segmentsPruned"] == 10
    assert found["segmentsPruned"] >= 3


def test_a_limit_ends_the_task(spark: SparkSession) -> None:
    """And the worker runs the next one: starting another takes a second."""
    frame = _read(spark)
    frame.count()
    workers = _workers(spark)
    query = frame.select("offset").limit(3)
    assert [row.offset for row in query.collect()] == [0, 1, 2]
    assert _scan(query).metrics().apply("logRecords").value() == 3
    assert workers <= _workers(spark)


# -- what is read


def test_texts_outlive_their_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Vectors point into memory that the next batch replaces."""
    topics = [f"{letter * 20}-{letter}" for letter in "mzak"]
    with open_logs(tmp_path / "logs") as logs:
        for topic in topics:
            logs.create_topic(topic, 1)
            for number in range(200):
                logs.append(topic, str(number).encode(), key=topic.encode())
    options = {"subscribePattern": ".*", "splitBytes": "1g"}
    reader = spark.read.format("stratalog").options(**options)
    spark.conf.set(BATCH, "7")
    try:
        frame = reader.load(str(tmp_path / "logs")).coalesce(1)
        found = frame.selectExpr(
            "max(topic)", "min(topic)", "max(key)", "max_by(topic, offset + length(topic))",
            "array_sort(collect_set(topic))", "first(topic) = any_value(topic)",
        )  # fmt: skip
        for is_generated in ("true", "false"):
            spark.conf.set("spark.sql.codegen.wholeStage", is_generated)
            (row,) = found.collect()
            high, low = max(topics), min(topics)
            assert row[:3] == (high, low, bytearray(high.encode()))
            assert row[3] in topics
            assert row[4] == sorted(topics)
            assert row[5]
    finally:
        spark.conf.unset(BATCH)
        spark.conf.unset("spark.sql.codegen.wholeStage")


ARROW = "spark.sql.execution.arrow"


@pytest.mark.parametrize(
    "setting",
    [
        (f"{ARROW}.useLargeVarTypes", "true"),
        (f"{ARROW}.maxRecordsPerOutputBatch", "7"),
        (f"{ARROW}.maxBytesPerOutputBatch", "3000"),
        (f"{ARROW}.maxRecordsPerBatch", "7"),
        (f"{ARROW}.maxRecordsPerBatch", "-1"),
        ("spark.sql.codegen.wholeStage", "false"),
        ("spark.sql.codegen.factoryMode", "NO_CODEGEN"),
    ],
    ids=lambda setting: "=".join(setting).removeprefix("spark.sql."),
)
def test_settings_of_spark_change_no_answer(spark: SparkSession, setting: tuple[str, str]) -> None:
    frame = _read(spark, includeHeaders="true")
    expected = frame.orderBy("offset").collect()
    spark.conf.set(*setting)
    try:
        assert _read(spark, includeHeaders="true").orderBy("offset").collect() == expected
    finally:
        spark.conf.unset(setting[0])


def test_cached_data_and_frames_without_columns(spark: SparkSession) -> None:
    frame = _read(spark).where("offset < 1000").cache()
    try:
        assert frame.where("offset >= 990").select("value").count() == 10
        assert "InMemoryTableScan" in _plan(frame.select("offset"))
        assert frame.count() == 1000
    finally:
        frame.unpersist()
    assert [len(row) for row in _read(spark).select().limit(3).collect()] == [0, 0, 0]


@pytest.mark.slow
def test_a_checkpoint_is_the_same_with_and_without(spark: SparkSession, tmp_path: Path) -> None:
    reading = Reading(spark, tmp_path, maxOffsetsPerTrigger="20")
    with open_logs(reading.logs) as logs:
        logs.create_topic("t", 2)
        for number, is_columnar in enumerate(("false", "true", "false")):
            for partition in (0, 1):
                for offset in range(number * 15, number * 15 + 15):
                    logs.append("t", f"t-{partition}-{offset}".encode(), partition=partition)
            spark.conf.set(SETTING, is_columnar)
            query = reading.run()
            assert len(reading.read) == len(set(reading.read)) == 30 * (number + 1)
            plan = query._jsq.streamingQuery().lastExecution().toString()
            assert ("columnar" in plan) is (is_columnar == "true")
    assert len(reading.batches) == 6


def test_metrics_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    reading = Reading(spark, tmp_path)
    with open_logs(reading.logs) as logs:
        logs.create_topic("t", 1)
        for offset in range(9):
            logs.append("t", f"t-0-{offset}".encode())
    reader = spark.readStream.format("stratalog").options(**reading.options)
    writer = reader.load(str(reading.logs)).writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(reading.checkpoint)).start()
    query.awaitTermination()
    running: Any = query._jsq
    plan = running.streamingQuery().lastExecution().executedPlan()
    (scan,) = _sequence(plan.collectLeaves())
    metrics = scan.metrics()
    assert metrics.apply("logRecords").value() == 9
    assert not metrics.contains("logBytes")


# -- what is estimated and compared


def test_statistics_are_of_the_columns_and_ranges(spark: SparkSession) -> None:
    frame = _read(spark)

    def size(query: DataFrame) -> tuple[int, int]:
        stats = query._jdf.queryExecution().optimizedPlan().stats()
        return int(str(stats.rowCount().get())), int(str(stats.sizeInBytes()))

    spark.conf.set("spark.sql.cbo.enabled", "true")  # else Spark looks at bytes only
    try:
        records, whole = size(frame)
        few, small = size(frame.where("offset >= 1400").select("offset"))
    finally:
        spark.conf.unset("spark.sql.cbo.enabled")
    assert records == 1500
    assert whole > 147_513
    assert few == 100
    assert small < whole // 10


def test_a_small_range_of_a_log_is_broadcast(spark: SparkSession) -> None:
    frame = _read(spark)
    few = frame.where("offset < 5").select("offset")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "4096")
    try:
        joined = frame.select("offset", "value").join(few, "offset")
        assert "BroadcastHashJoin" in _plan(joined)
        assert joined.count() == 5
        assert "BroadcastHashJoin" not in _plan(frame.join(frame.select("offset"), "offset"))
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def test_equal_scans_share_an_exchange(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        counted = [
            _read(spark).where(f"offset < {end}").groupBy("timestamp").count()
            for end in (100, 100, 101)
        ]
        for other, is_reused in ((counted[1], True), (counted[2], False)):
            joined = counted[0].join(other, "timestamp")
            assert len(joined.collect()) == 100
            assert ("ReusedExchange" in _plan(joined)) is is_reused
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def test_all_queries_of_a_frame_see_the_same_records(spark: SparkSession, tmp_path: Path) -> None:
    with open_logs(tmp_path / "logs") as logs:
        logs.create_topic("t", 2)
        for number in range(10):
            logs.append("t", b"x", partition=number % 2)
        frame = _read(spark, tmp_path / "logs", subscribe="t")
        assert frame.where("offset >= 3").count() == 4
        logs.append("t", b"late", partition=0)
        assert frame.count() == 10
        assert frame.where("partition = 0").count() == 5
        assert frame.where("value = 'late'").count() == 0
        later = _read(spark, tmp_path / "logs", subscribe="t")
        assert later.count() == 11
        assert later.exceptAll(frame).select("value").collect() == [(bytearray(b"late"),)]


@pytest.mark.parametrize("is_tolerated", [False, True])
def test_what_is_deleted_between_two_queries(
    spark: SparkSession, tmp_path: Path, is_tolerated: bool
) -> None:
    with open_logs(tmp_path / "logs") as logs:
        logs.create_topic("t", 1)
        for _ in range(10):
            logs.append("t", b"x")
    frame = _read(
        spark, tmp_path / "logs", subscribe="t", failOnDataLoss=str(not is_tolerated).lower()
    )
    assert frame.count() == 10
    with open_logs(tmp_path / "logs") as logs:
        logs.delete_records("t", 0, 4)
    query = frame.where("offset < 6")
    if is_tolerated:
        assert query.count() == 2
    else:
        with pytest.raises(PySparkException, match=r"offsets 0 to 10 .* the log has 4 to 10"):
            query.count()


# -- how queries end


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic that does not fit into the buffers of a socket."""
    root = tmp_path_factory.mktemp("big")
    values = pa.array([bytes(2000) + str(number).encode() for number in range(BIG_RECORDS)])
    with open_logs(root / "logs") as logs:
        logs.create_topic("big", 2)
        for partition in (0, 1):
            table = pa.table({"value": values, "partition": np.full(BIG_RECORDS, partition)})
            logs.append_columns("big", table)
    return root / "logs"


def _workers(spark: SparkSession) -> set[int]:
    """Python workers of the session's daemons."""
    jvm: Any = spark._jvm
    found = jvm.java.lang.ProcessHandle.current().descendants().toArray()
    return {each.pid() for each in found if each.children().count() == 0}


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


class _Running:
    """A slow query in a thread of its own."""

    def __init__(self, spark: SparkSession, query: DataFrame, group: str) -> None:
        self.error: BaseException | None = None
        self._spark, self._query, self._group = spark, query, group
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._spark.sparkContext.setJobGroup(self._group, self._group, interruptOnCancel=True)
        try:
            self._query.count()
        except Exception as error:
            self.error = error

    def __enter__(self) -> _Running:
        self._spark.conf.set(BATCH, "100")
        self._thread.start()
        tracker = self._spark.sparkContext.statusTracker()
        _wait(
            lambda: any(
                info.numActiveTasks
                for stage in tracker.getActiveStageIds()
                if (info := tracker.getStageInfo(stage)) is not None
            )
        )
        time.sleep(1)  # until workers wait for the JVM to read
        return self

    def __exit__(self, *_: object) -> None:
        self._spark.conf.unset(BATCH)
        self._thread.join(_PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.mark.slow
def test_a_cancelled_query_leaves_nothing(spark: SparkSession, big: Path) -> None:
    frame = _read(spark, big, subscribe="big")
    assert frame.count() == 2 * BIG_RECORDS
    with _Running(spark, frame.where(SLOW), "cancelled") as running:
        spark.sparkContext.cancelJobGroup("cancelled")
    assert running.error is not None
    assert "cancel" in str(running.error).lower()
    assert frame.count() == 2 * BIG_RECORDS


@pytest.mark.slow
def test_a_killed_worker_ends_the_query_with_one_line(spark: SparkSession, big: Path) -> None:
    frame = _read(spark, big, subscribe="big")
    with _Running(spark, frame.where(SLOW), "killed") as running:
        for pid in _workers(spark):
            os.kill(pid, signal.SIGKILL)
    assert running.error is not None
    assert message_of(running.error).startswith("a Python worker of Spark died")
    assert frame.count() == 2 * BIG_RECORDS


def test_an_error_in_the_middle_of_a_task(spark: SparkSession, tmp_path: Path) -> None:
    """The same line with and without the accelerator, after records that are fine."""
    with open_logs(tmp_path / "logs") as logs:
        logs.create_topic("t", 1)
        for _ in range(100):
            logs.append("t", bytes(100_000))
    (log,) = (tmp_path / "logs" / "t-0").glob("*.log")
    with log.open("r+b") as file:
        file.seek(log.stat().st_size * 9 // 10 + 5000)  # in a value
        file.write(b"corrupt")
    lines = set()
    for is_columnar in ("false", "true"):
        spark.conf.set(SETTING, is_columnar)
        with pytest.raises(PySparkException) as caught:
            _read(spark, tmp_path / "logs", subscribe="t").selectExpr(
                "sum(length(value))"
            ).collect()
        lines.add(message_of(caught.value))
    (line,) = lines
    assert "CRC" in line
    assert str(log) in line


def test_a_limit_that_python_is_not_told(spark: SparkSession, big: Path) -> None:
    """Spark stops in the middle of a batch, and with the worker waiting to send more."""
    frame = _read(spark, big, subscribe="big")
    for number in range(3):
        assert len(frame.where("length(value) > 1").limit(number + 1).collect()) == number + 1
    assert frame.count() == 2 * BIG_RECORDS


@pytest.mark.slow
def test_many_queries_leave_no_memory_and_no_workers(spark: SparkSession) -> None:
    """`make test-long` with EFFORT=20 runs a thousand. The fixture looks for memory."""
    frame = _read(spark)
    frame.count()
    before = len(_workers(spark))
    for number in range(scaled(50)):
        if number % 10 == 0:
            frame = _read(spark)
        if number % 3 == 0:
            assert len(frame.where(f"offset >= {number % 1000}").limit(5).collect()) == 5
        else:
            assert len(frame.select("value").limit(number % 100).collect()) == number % 100
    assert len(_workers(spark)) <= before + 4


# -- where it does not fit


def test_it_can_be_switched_off(spark: SparkSession) -> None:
    spark.conf.set(SETTING, "false")
    assert "columnar" not in _plan(_read(spark))
    spark.conf.set(SETTING, "yes")
    with pytest.raises(PySparkException, match=f"{SETTING} should be true or false, but was yes"):
        _read(spark)


def test_the_jar_for_a_setting(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    jar = str(build())
    assert accelerator_jar() == jar
    assert with_accelerator({}) == {"spark.jars": jar}
    assert with_accelerator({"spark.jars": "a.jar"}) == {"spark.jars": f"a.jar,{jar}"}
    assert caplog.records == []
    monkeypatch.setattr(accelerator, "version", lambda _: "9.1.2")
    assert accelerator_jar() == ""
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "no accelerator for Spark 9.1.2" in warning
    assert with_accelerator({"spark.jars": "a.jar"}) == {"spark.jars": "a.jar"}


@pytest.mark.parametrize(
    ("defaults", "jars"),
    [
        ("spark.jars /a.jar,/b.jar  \nspark.jars.packages x:y:1\n", "/a.jar,/b.jar,"),
        ("# spark.jars /a.jar\nspark.jars=/c.jar", "/c.jar,"),
        ("spark.jars.packages x:y:1\n", ""),
    ],
)
def test_jars_of_the_installation_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, defaults: str, jars: str
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert with_accelerator({}) == {"spark.jars": f"{jars}{build()}"}
    assert with_accelerator({"spark.jars": "d.jar"}) == {"spark.jars": f"d.jar,{build()}"}


def test_the_same_sources_give_the_same_jar() -> None:
    with zipfile.ZipFile(build()) as jar:
        assert {entry.date_time[0] for entry in jar.infolist()} == {1980}
        about = jar.read(PROPERTIES).decode()
    assert about.startswith("spark=4.3\n")


PROGRAM = """
import sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.jars", sys.argv[1])
    .config("spark.ui.enabled", "false").config("spark.driver.memory", "512m").getOrCreate())
for _ in range(2):
    read = spark.read.format("stratalog").option("subscribe", "multiseg").load(sys.argv[2])
    print(read.count(), "columnar" in read._jdf.queryExecution().executedPlan().toString())
"""


@pytest.fixture
def foreign_jar(tmp_path: Path) -> Path:
    """The accelerator, for a Spark of another version."""
    with zipfile.ZipFile(build()) as ours, zipfile.ZipFile(tmp_path / "f.jar", "w") as foreign:
        for name in ours.namelist():
            content = ours.read(name)
            foreign.writestr(name, b"spark=9.1\n" if name == PROPERTIES else content)
    return tmp_path / "f.jar"


@pytest.mark.spark
@pytest.mark.slow
def test_another_version_of_spark_reads_rows_with_one_warning(foreign_jar: Path) -> None:
    root = str(GoldenCase("multiseg").root)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(foreign_jar), root],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.stdout.split() == ["1500", "False"] * 2
    warnings = [line for line in done.stderr.splitlines() if "accelerator" in line]
    (warning,) = warnings
    assert "WARN" in warning
    assert "is for Spark 9.1 and does not fit Spark 4.3." in warning

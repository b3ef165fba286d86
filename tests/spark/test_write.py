"""Batch writes through Spark: what ends up in the logs, and what is refused in one line."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException

from stratalog import LogDir
from stratalog.bulk.target import Target, commit_staged
from stratalog.commits.journal import JournalFile, plan_commit
from stratalog.commits.staged import StagedCommit
from stratalog.errors import CommitError, CommitPendingError
from stratalog.format.murmur import partition_for_key
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.maintenance.verify.directory import verify_partition
from stratalog.storage.disk import Disk
from tests.commits.staging import JOB, rows, stage
from tests.golden_metadata import broker_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from stratalog.format.record import Record


def write(df: DataFrame, path: Path, **options: object) -> None:
    writer = df.write.format("stratalog").mode("append")
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), str(value))
    writer.save(str(path))


def records_of(path: Path, topic: str = "orders") -> dict[int, list[Record]]:
    with LogDir.open(path, background=False) as logs:
        return {
            log.topic_partition.partition: list(log.read()) for log in logs.partitions_of(topic)
        }


def make(path: Path, partitions: int = 3, config: dict[str, object] | None = None) -> None:
    with LogDir.open(path, background=False) as logs:
        logs.create_topic("orders", partitions, config=config)


def test_rows_become_records(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path)
    when = datetime(2026, 11, 1, 10, 0, 0, 250_000, tzinfo=UTC)
    given = [
        ("alice", b"one", [("h", b"1"), ("h", None)], 2, when),
        ("bob", b"two", [], None, when),
        ("carol", None, None, None, None),
    ]
    schema = (
        "key string, value binary, headers array<struct<key:string,value:binary>>, "
        "partition int, timestamp timestamp, more double"
    )
    df = spark.createDataFrame([(*row, 0.5) for row in given], schema).coalesce(1)
    before = int(datetime.now(UTC).timestamp() * 1000)
    write(df, tmp_path, topic="orders")
    found = records_of(tmp_path)
    everything = {record.key: (number, record) for number, part in found.items() for record in part}
    number, alice = everything[b"alice"]
    assert (number, alice.value, alice.timestamp) == (2, b"one", int(when.timestamp() * 1000))
    assert [(header.key, header.value) for header in alice.headers] == [("h", b"1"), ("h", None)]
    number, bob = everything[b"bob"]
    assert (number, bob.value, bob.headers) == (partition_for_key(b"bob", 3), b"two", ())
    number, carol = everything[b"carol"]
    assert (number, carol.value) == (partition_for_key(b"carol", 3), None)
    assert carol.timestamp >= before


def test_every_row_once_in_order_and_where_kafka_puts_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    make(tmp_path, config={"segment.bytes": 200_000})
    count = 30_000
    df = spark.range(0, count, 1, 3).selectExpr(
        "cast(id as string) value", "if(id % 10 = 0, null, concat('k', id % 1000)) key"
    )
    write(df, tmp_path, topic="orders", kafka__batch__size="4k")
    found = records_of(tmp_path)
    seen = [int(record.value or b"") for part in found.values() for record in part]
    assert sorted(seen) == list(range(count))
    for number, part in found.items():
        assert [record.offset for record in part] == list(range(len(part)))
        for record in part:
            assert record.key is None or partition_for_key(record.key, 3) == number
        for task in range(3):
            of_task = [n for n in (int(r.value or b"") for r in part) if n // 10_000 == task]
            assert of_task == sorted(of_task)
        assert sum(record.key is None for record in part) > 200
    assert not list(tmp_path.rglob("*.staged"))


def test_what_was_written_is_found_untouched_by_recovery(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A recovery of everything, as after a crash, builds the same indexes and cuts nothing."""
    make(tmp_path, 1, {"segment.bytes": 100_000})
    write(spark.range(20_000).selectExpr("cast(id as string) value"), tmp_path, topic="orders")
    directory = tmp_path / "orders-0"

    def files() -> dict[str, bytes]:
        kinds = (".log", ".index", ".timeindex")
        return {p.name: p.read_bytes() for p in directory.iterdir() if p.suffix in kinds}

    before = files()
    assert len(before) > 9
    report = verify_partition(directory)
    assert (report.counts.records, list(report.findings)) == (20_000, [])
    with LogDir.open(tmp_path, background=False) as logs:
        config = logs.topic("orders").config
    point = LoadPoint(was_clean=False)
    open_log(directory, config, disk=Disk(), now_ms=lambda: 0, point=point).close()
    assert files() == before


def test_topics_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Each row names its topic; those that are missing are made, with the settings given."""
    df = spark.range(0, 3000, 1, 2).selectExpr(
        "cast(id as string) value", "concat('topic-', id % 3) topic"
    )
    write(df, tmp_path, topicPartitions=2, topicConfig__compression__type="lz4")
    for number in range(3):
        found = records_of(tmp_path, f"topic-{number}")
        values = sorted(int(record.value or b"") for part in found.values() for record in part)
        assert values == list(range(number, 3000, 3))
    with LogDir.open(tmp_path, background=False) as logs:
        assert logs.topic("topic-1").config.compression_type == "lz4"
    write(df, tmp_path, topic="topic-0")  # the option overrides the column
    assert sum(len(part) for part in records_of(tmp_path, "topic-0").values()) == 4000


def test_an_application_that_writes_again(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path)
    df = spark.range(100).selectExpr("cast(id as string) value")
    for version in (1, 1, 2, 1):
        write(df, tmp_path, topic="orders", txnAppId="nightly", txnVersion=version)
    assert sum(len(part) for part in records_of(tmp_path).values()) == 200
    assert not list(tmp_path.rglob("*.staged"))


def test_nothing_to_write(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path)
    write(spark.range(0).selectExpr("cast(id as string) value"), tmp_path, topic="orders")
    assert sum(len(part) for part in records_of(tmp_path).values()) == 0


def test_an_abort_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """One task has staged its rows when the other fails."""
    make(tmp_path)
    logs = str(tmp_path)

    def fail_late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 1:
            deadline = time.monotonic() + 60
            while not list(Path(logs).rglob("*.staged")) and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.5)  # it has told the driver by then
            raise ValueError("no such luck")

    df = spark.range(0, 1000, 1, 2).selectExpr("cast(id as string) value")
    with pytest.raises(PySparkException, match="no such luck"):
        write(df.mapInArrow(fail_late, df.schema), tmp_path, topic="orders")
    assert not list(tmp_path.rglob("*.staged"))
    assert sum(len(part) for part in records_of(tmp_path).values()) == 0


# -- one clear line


VALUE = "cast(id as string) value"
REFUSALS: dict[str, tuple[str, dict[str, object], str]] = {
    "no value": ("id key", {"topic": "orders"}, "Required attribute 'value' not found"),
    "value of another type": (
        "id value",
        {"topic": "orders"},
        r"value attribute unsupported type bigint. value must be a\(n\) string or binary",
    ),
    "no topic": (VALUE, {}, "topic option required when no 'topic' attribute is present"),
    "missing topic": (VALUE, {"topic": "nope"}, "topic 'nope' does not exist in .*topicPartitions"),
    "bad topic": (VALUE, {"topic": "a/b"}, "topic: Topic name is invalid: 'a/b' contains"),
    "unknown option": (VALUE, {"topik": "orders"}, "topik: .*did you mean 'topic'"),
    "broker": (
        VALUE,
        {"topic": "orders", "kafka__bootstrap__server": "x"},
        "kafka.bootstrap.server: unknown option; did you mean 'kafka.bootstrap.servers'",
    ),
    "bad codec": (
        VALUE,
        {"topic": "orders", "kafka__compression__type": "rar"},
        "kafka.compression.type: not one of none, gzip, snappy, lz4, zstd",
    ),
    "half an identity": (VALUE, {"topic": "orders", "txnAppId": "x"}, "txnAppId and txnVersion"),
    "settings of no new topic": (
        VALUE,
        {"topic": "orders", "topicConfig__retention__ms": "1"},
        "only for topics that are created",
    ),
    "bad setting": (
        VALUE,
        {"topic": "orders", "topicPartitions": 1, "topicConfig__retention__mss": "1"},
        "topicConfig.retention.mss: .*did you mean 'topicConfig.retention.ms'",
    ),
    "internal topic": (VALUE, {"topic": "__consumer_offsets"}, "rows cannot be written to it"),
}


@pytest.mark.parametrize(("columns", "options", "match"), REFUSALS.values(), ids=list(REFUSALS))
def test_refused_on_the_driver(
    spark: SparkSession, tmp_path: Path, columns: str, options: dict[str, object], match: str
) -> None:
    make(tmp_path)
    with LogDir.open(tmp_path, background=False) as logs:
        logs.create_topic("__consumer_offsets", 1)
    with pytest.raises(AnalysisException, match=match) as caught:
        write(spark.range(3).selectExpr(columns), tmp_path, **options)
    check_one_line(caught.value)


def check_one_line(error: PySparkException) -> None:
    text = str(error)
    assert "Traceback" not in text
    assert "\tat " not in text
    assert len(text.strip().splitlines()) <= 2  # the second is Spark's SQLSTATE


def test_overwrite_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path)
    df = spark.range(3).selectExpr(VALUE)
    writer = df.write.format("stratalog").option("topic", "orders")
    with pytest.raises(AnalysisException, match="logs are append-only") as caught:
        writer.mode("overwrite").save(str(tmp_path))
    check_one_line(caught.value)
    with pytest.raises(AnalysisException, match="Append"):
        df.write.format("stratalog").option("topic", "orders").save(str(tmp_path))


def test_directories_that_cannot_be_written(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(3).selectExpr(VALUE)
    with pytest.raises(AnalysisException, match="no such directory") as caught:
        write(df, tmp_path / "none", topic="orders")
    check_one_line(caught.value)
    make(tmp_path)
    with (
        LogDir.open(tmp_path),
        pytest.raises(AnalysisException, match=r"locked by process \d+ \(") as caught,
    ):
        write(df, tmp_path, topic="orders", lockTimeout="100ms")
    check_one_line(caught.value)
    with pytest.raises(AnalysisException, match="use its parent directory") as caught:
        write(df, tmp_path / "orders-0", topic="orders")
    check_one_line(caught.value)


def test_topics_in_a_broker_s_directory_are_created_if_that_is_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = broker_dir(tmp_path / "data")
    before = contents(directory)
    df = spark.range(0, 10, 1, 1).selectExpr(VALUE, "'new' topic")
    for options in ({"topic": "new"}, {}):  # refused on the driver, and in a task
        with pytest.raises(
            PySparkException, match=r"node 1 of a Kafka.*createInBrokerDir"
        ) as caught:
            write(df, directory, topicPartitions=1, **options)
        assert "Traceback" not in str(caught.value)
        if options:
            check_one_line(caught.value)
        assert contents(directory) == before
    write(df, directory, topicPartitions=1, topic="new", createInBrokerDir=True)
    assert {number: len(part) for number, part in records_of(directory, "new").items()} == {0: 10}


def contents(directory: Path) -> dict[Path, bytes]:
    """Every file but the lock, which is created empty."""
    return {
        path: path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


ROWS: dict[str, tuple[str, dict[str, Any], str]] = {
    "null topic": (f"{VALUE}; if(id = 7, null, 'orders') topic", {}, "null topic present"),
    "partition": (
        f"{VALUE}; 9 partition",
        {"topic": "orders"},
        r"Invalid partition given with record: 9 is not in the range \[0...3\)",
    ),
    "unknown topic": (f"{VALUE}; 'what' topic", {}, "topic 'what' does not exist"),
    "too large": (
        "repeat('x', 2000000) value",
        {"topic": "orders"},
        r"row \d needs a batch of .* more than max.message.bytes",
    ),
    "future": (
        f"{VALUE}; timestamp'2100-01-01 00:00:00' timestamp",
        {"topic": "orders"},
        "timestamp 4102444800000 is outside of what topic 'orders' allows",
    ),
}


@pytest.mark.parametrize(("columns", "options", "match"), ROWS.values(), ids=list(ROWS))
def test_refused_in_a_task(
    spark: SparkSession, tmp_path: Path, columns: str, options: dict[str, Any], match: str
) -> None:
    make(tmp_path)
    df = spark.range(0, 10, 1, 1).selectExpr(*columns.split("; "))
    with pytest.raises(PySparkException, match=match) as caught:
        write(df, tmp_path, **options)
    assert "Traceback" not in str(caught.value)
    assert "\tat " not in str(caught.value)
    assert not list(tmp_path.rglob("*.staged"))


def test_null_keys_on_a_compacted_topic(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path, config={"cleanup.policy": "compact"})
    df = spark.range(0, 10, 1, 1).selectExpr(VALUE, "if(id = 5, null, 'k') key")
    with pytest.raises(PySparkException, match="cannot accept message without key"):
        write(df, tmp_path, topic="orders")


def test_a_commit_that_fails_when_it_is_decided_says_so(tmp_path: Path) -> None:
    """Whoever runs the job again would write the rows twice."""
    make(tmp_path, 1)
    commit = StagedCommit(stage([tmp_path], [rows(0, 10)]), JOB)
    journal = plan_commit(commit, {run.topic_partition: 0 for run in commit.runs}, 1)
    JournalFile(Disk(), [tmp_path]).write(journal)
    run = tmp_path / "orders-0" / commit.runs[0].name
    run.rename(tmp_path / "elsewhere")
    with pytest.raises(CommitPendingError, match=r"is missing.* do not write its rows again"):
        commit_staged(Target((tmp_path,)), StagedCommit(()))
    (tmp_path / "elsewhere").rename(run)
    assert len(records_of(tmp_path)[0]) == 10
    with pytest.raises(CommitError) as caught:
        commit_staged(Target((tmp_path,)), commit)
    assert "decided" not in str(caught.value)

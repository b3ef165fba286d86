"""Tables and views of Spark SQL, for reading and writing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from stratalog.partitions.view import open_dirs
from stratalog.spark.failures import message_of
from tests.golden.cases import GoldenCase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

ROWS = "VALUES (cast('k1' as binary), cast('v1' as binary)), (cast('k2' as binary), null)"


@pytest.fixture(autouse=True)
def no_tables_left(spark: SparkSession) -> Iterator[None]:
    yield
    for table in spark.catalog.listTables():
        kind = "VIEW" if table.isTemporary else "TABLE"
        spark.sql(f"DROP {kind} {table.name}")


def written(path: Path, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return [
        (record.key, record.value)
        for partition in open_dirs(path).partitions_of(topic)
        for record in partition.read()
    ]


def failure(spark: SparkSession, statement: str) -> str:
    with pytest.raises(PySparkException) as caught:
        spark.sql(statement).collect()
    return message_of(caught.value)


@pytest.mark.parametrize(
    "clauses",
    [
        "OPTIONS (subscribe 'multiseg', startingOffsets 'earliest') LOCATION '{}'",
        "OPTIONS (subscribe 'multiseg', path '{}', `kafka.bootstrap.servers` 'h:9092') "
        "TBLPROPERTIES ('team' = 'x') COMMENT 'orders'",
        "OPTIONS (assign '{{\"multiseg\":[0]}}') LOCATION 'file:{}'",
    ],
)
def test_a_table_is_read_and_dropping_it_leaves_the_log(
    spark: SparkSession, tmp_path: Path, clauses: str
) -> None:
    root = GoldenCase("multiseg").copy_to(tmp_path)
    spark.sql(f"CREATE TABLE orders USING stratalog {clauses.format(root)}")
    counted = spark.sql("SELECT count(*), max(offset) FROM orders WHERE partition = 0")
    assert counted.collect()[0][:] == (1500, 1499)
    bounded = 'SELECT count(*) FROM orders WITH (startingOffsets \'{"multiseg":{"0":1490}}\')'
    assert spark.sql(bounded).collect()[0][0] == 10
    files = sorted(root.rglob("*"))
    spark.sql("DROP TABLE orders")
    assert sorted(root.rglob("*")) == files


def test_a_table_is_written_and_read_back(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "logs"
    spark.sql(
        "CREATE TABLE events USING stratalog OPTIONS (topic 'events', topicPartitions '1', "
        f"`topicConfig.retention.ms` '-1', `kafka.compression.type` 'lz4') LOCATION '{path}'"
    )
    spark.sql(f"INSERT INTO events (key, value) {ROWS}")
    spark.sql("INSERT INTO events (value) SELECT value FROM events WHERE value IS NOT NULL")
    frame = spark.sql("SELECT cast('k3' as binary) key, cast('v3' as binary) value")
    frame.writeTo("events").append()
    expected = [(b"k1", b"v1"), (b"k2", None), (None, b"v1"), (b"k3", b"v3")]
    assert written(path, "events") == expected
    rows = spark.sql("SELECT key, value FROM events ORDER BY offset").collect()
    assert [tuple(row) for row in rows] == expected


def test_a_table_of_one_topic_may_be_written(spark: SparkSession, tmp_path: Path) -> None:
    root = GoldenCase("multiseg").copy_to(tmp_path)
    spark.sql(f"CREATE TABLE t USING stratalog OPTIONS (subscribe 'multiseg') LOCATION '{root}'")
    spark.sql(f"INSERT INTO t (key, value) {ROWS}")
    assert written(root, "multiseg")[1500:] == [(b"k1", b"v1"), (b"k2", None)]


def test_rows_of_one_table_never_go_to_another(spark: SparkSession, tmp_path: Path) -> None:
    """Spark passes the options of `a` with such rows: without a check they would be in `a`."""
    for name in "ab":
        spark.sql(
            f"CREATE TABLE {name} USING stratalog OPTIONS (topic '{name}', topicPartitions '1') "
            f"LOCATION '{tmp_path / name}'"
        )
        spark.sql(f"INSERT INTO {name} (key, value) {ROWS}")
    refused = "rows with an offset cannot be inserted into a table. Name the columns"
    assert refused in failure(spark, "INSERT INTO b SELECT * FROM a")
    spark.sql("INSERT INTO b (key, value, timestamp) SELECT key, value, timestamp FROM a")
    with pytest.raises(PySparkException, match="rows with an offset"):
        spark.table("a").write.format("stratalog").mode("append").save()
    assert len(written(tmp_path / "a", "a")) == 2
    assert len(written(tmp_path / "b", "b")) == 4


def test_a_view_is_read_and_written(spark: SparkSession, tmp_path: Path) -> None:
    root = GoldenCase("multiseg").copy_to(tmp_path)
    spark.sql(
        "CREATE TEMPORARY VIEW v USING stratalog "
        f"OPTIONS (path '{root}', subscribe 'multiseg', `kafka.compression.type` 'lz4')"
    )
    spark.sql(f"INSERT INTO v (key, value) {ROWS}")
    assert written(root, "multiseg")[1500:] == [(b"k1", b"v1"), (b"k2", None)]
    assert spark.sql("SELECT count(*) FROM v").collect()[0][0] == 1502
    spark.sql(f"INSERT INTO v (key, value) {ROWS}")
    # A view is planned once, by its first query.
    assert spark.sql("SELECT count(*) FROM v").collect()[0][0] == 1502
    spark.sql(
        "CREATE TEMPORARY VIEW narrow (offset long, partition int) USING stratalog "
        f"OPTIONS (path '{root}', subscribe 'multiseg')"
    )
    assert spark.sql("SELECT max(offset) FROM narrow").collect()[0][0] == 1503


def test_a_table_is_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    root = GoldenCase("multiseg").copy_to(tmp_path)
    spark.sql(
        "CREATE TABLE s USING stratalog OPTIONS (subscribe 'multiseg', startingOffsets 'earliest') "
        f"LOCATION '{root}'"
    )
    stream = spark.readStream.table("s").writeStream.format("memory").queryName("seen")
    query = stream.trigger(availableNow=True).start()
    query.awaitTermination()
    assert spark.sql("SELECT count(*) FROM seen").collect()[0][0] == 1500


def test_what_spark_does_not_pass_on_is_explained(spark: SparkSession, tmp_path: Path) -> None:
    """When this fails, Spark passes options where it did not, and more is possible."""
    root = GoldenCase("multiseg").copy_to(tmp_path)
    options = f"USING stratalog OPTIONS (subscribe 'multiseg') LOCATION '{root}'"
    spark.sql(f"CREATE TABLE listed (key binary, value binary) {options}")
    assert "without a list of columns" in failure(spark, "SELECT * FROM listed")
    assert "without a list of columns" in failure(spark, f"INSERT INTO listed {ROWS}")
    selected = f"CREATE TABLE selected {options} AS SELECT cast('v' as binary) value"
    assert "not by AS SELECT" in failure(spark, selected)
    assert written(root, "multiseg")[1500:] == []


def test_mistakes_in_create_table_are_named(spark: SparkSession, tmp_path: Path) -> None:
    root = GoldenCase("multiseg").copy_to(tmp_path)
    for clauses, message in {
        f"OPTIONS (subscibe 'x') LOCATION '{root}'": "did you mean 'subscribe'",
        f"OPTIONS (subscribe 'x') LOCATION '{root}'": "no topic 'x'; topics here: multiseg",
        "OPTIONS (subscribe 'x')": "path: give the log directory to read",
        f"LOCATION '{root}'": "One of the following options must be specified",
    }.items():
        assert message in failure(spark, f"CREATE TABLE bad USING stratalog {clauses}")
    spark.sql(f"CREATE TABLE t USING stratalog OPTIONS (subscribe 'multiseg') LOCATION '{root}'")
    assert "logs are append-only" in failure(spark, "INSERT OVERWRITE t SELECT * FROM t")


def test_a_write_needs_a_mode(spark: SparkSession, tmp_path: Path) -> None:
    """The connector appends without one; Spark asks no Python source. When this fails, it does."""
    frame = spark.sql("SELECT cast('v' as binary) value")
    for mode in ("error", "ignore"):
        writer = frame.write.format("stratalog").option("topic", "t").mode(mode)
        with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            writer.save(str(tmp_path))

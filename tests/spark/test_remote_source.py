"""The Spark source on URIs and tiered topics: the records of a local read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import ConfigError
from stratalog.spark import session_storage
from stratalog.spark.options import parse_read_options, parse_write_options, storage_options
from tests.effort import IS_LONG
from tests.golden.cases import GoldenCase
from tests.golden_tiered import consumed, unpack
from tests.stores import SECRET_KEY

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.stores import S3Server


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    found = frame.selectExpr("topic", "partition", "offset", "key", "value").collect()
    return sorted(tuple(row) for row in found)


@pytest.mark.slow
def test_batch_and_stream_read_s3(
    spark: SparkSession, seaweed: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, isolations in (
        ("txn", ("read_uncommitted", "read_committed")),
        *((("multiseg", ("read_committed",)),) if IS_LONG else ()),  # no transactions, ten segments
    ):
        case = GoldenCase(name)
        uri = seaweed.upload(case.root, f"spark/{name}").replace("s3://", "s3a://")
        for isolation in isolations:
            given = {"subscribePattern": ".*", "kafka.isolation.level": isolation}
            local = rows(spark.read.format("stratalog").options(**given).load(str(case.root)))
            remote = spark.read.format("stratalog").options(**given, **seaweed.options)
            many = remote.option("minPartitions", "5").load(uri)
            assert rows(many) == local
        many.explain(True)
        assert SECRET_KEY not in capsys.readouterr().out
        stream = spark.readStream.format("stratalog").options(**given, **seaweed.options)
        query = (
            stream.option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", len(local) // 2)
            .load(uri)
            .writeStream.format("memory")
            .queryName(f"remote_{name}")
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert rows(spark.table(f"remote_{name}")) == local


@pytest.mark.slow
def test_tiered_topics(spark: SparkSession, tmp_path: Path) -> None:
    cases = {str(case): case for case in unpack(tmp_path / "golden")}
    for name in ("lts-unclean", "aiven-enc"):
        case = cases[name]
        reader = spark.read.format("stratalog").option("remote", str(case.remote))
        if case.keys:
            reader = reader.option("remote.key", case.keys[0])
        for topic, number, facts in case.partitions():
            for isolation in ("read_uncommitted", "read_committed"):
                expected = [
                    (topic, number, each[0], each[2], each[3])
                    for each in consumed(facts, isolation)
                ]
                options = {"subscribe": topic, "kafka.isolation.level": isolation}
                frame = reader.options(**options).load(",".join(map(str, case.log_dirs)))
                found = rows(frame)
                as_bytes = [
                    (*each[:3], *(None if x is None else bytes(x) for x in each[3:]))  # type: ignore[call-overload]
                    for each in found
                ]
                assert as_bytes == expected, (case, topic)


@pytest.mark.slow
def test_tiered_topics_in_s3(
    spark: SparkSession, seaweed: S3Server, tmp_path: Path, is_columnar: bool
) -> None:
    """Batch with many splits, and a stream from the remote part into the local one. Both levels of
    isolation, of which `make test` reads one in rows and the other in columns."""
    levels = ("read_uncommitted", "read_committed")
    cases = {str(case): case for case in unpack(tmp_path / "golden")}
    for name, topic in (("lts-unclean", "fork"), ("lts-basic", "overlap")):
        case = cases[name]
        paths = ",".join(
            seaweed.upload(path, f"spark/{name}/{path.name}") for path in case.log_dirs
        )
        remote = seaweed.upload(case.remote, f"spark/{name}/remote")
        for isolation in levels if IS_LONG else levels[is_columnar : is_columnar + 1]:
            (facts,) = (facts for each, _, facts in case.partitions() if each == topic)
            expected = [(topic, 0, *each[:1], *each[2:4]) for each in consumed(facts, isolation)]
            given = {
                "subscribe": topic,
                "remote": remote,
                "startingOffsets": "earliest",
                "kafka.isolation.level": isolation,
                **seaweed.options,
            }
            batch = spark.read.format("stratalog").options(**given).option("minPartitions", "7")
            assert rows(batch.load(paths)) == expected
            stream = spark.readStream.format("stratalog").options(**given)
            table = f"tiered_{topic}_{isolation}"
            query = (
                stream.option("maxOffsetsPerTrigger", len(expected) // 3)
                .load(paths)
                .writeStream.format("memory")
                .queryName(table)
                .option("checkpointLocation", str(tmp_path / table))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            assert rows(spark.table(table)) == expected


@pytest.mark.slow
def test_a_wrong_key_is_an_error_without_the_secret(spark: SparkSession, seaweed: S3Server) -> None:
    uri = seaweed.upload(GoldenCase("txn-simple").root, "spark/denied")
    options = {**seaweed.options, "s3.secret.key": "not-the-secret-at-all"}
    reader = spark.read.format("stratalog").option("subscribePattern", ".*").options(**options)
    with pytest.raises(Exception, match="no permission") as raised:
        reader.load(uri).collect()
    assert "not-the-secret-at-all" not in str(raised.value)


def test_settings_of_the_session_are_taken_over(tmp_path: Path) -> None:
    properties = tmp_path / "spark.properties"
    properties.write_text(
        "spark.hadoop.fs.s3a.endpoint http://one:9000\nspark.hadoop.fs.s3a.access.key=file\n"
        "spark.master local[2]\n"
    )
    command = [
        "java",
        "org.apache.spark.deploy.SparkSubmit",
        "--properties-file",
        str(properties),
        "--conf",
        "spark.hadoop.fs.s3a.access.key=AKIA=1",
        "--conf",
        "spark.ui.enabled=false",
        "pyspark-shell",
    ]
    assert session_storage._from_arguments(command) == {
        "spark.hadoop.fs.s3a.access.key": "AKIA=1",
        "spark.hadoop.fs.s3a.endpoint": "http://one:9000",
    }


def test_options_of_a_query_replace_those_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "stratalog.spark.options.session_storage_options",
        lambda: {"s3.endpoint": "http://session", "s3.region": "here"},
    )
    found = storage_options({"s3.endpoint": "http://query", "subscribe": "a"})
    assert found == {"s3.endpoint": "http://query", "s3.region": "here"}
    found = storage_options({"fs.s3a.endpoint": "http://query"})
    assert found == {"fs.s3a.endpoint": "http://query", "s3.region": "here"}
    parsed = parse_read_options({"path": "s3://b/x,/y", "subscribe": "a", "s3.anonymous": "true"})
    assert [str(path) for path in parsed.paths] == ["s3://b/x", "/y"]


def test_logs_are_not_written_to_stores() -> None:
    with pytest.raises(ConfigError, match="logs can be written only to disks"):
        parse_write_options({"path": "s3://bucket/logs", "topic": "orders"})

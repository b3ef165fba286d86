"""Topics that are deleted, or deleted and created again, while they are read."""

from __future__ import annotations

import json
import logging
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from stratalog import open_dirs
from stratalog.errors import DataLossError
from stratalog.format.uuids import encode_id
from stratalog.spark.offset_json import TOPIC_IDS, offsets_from_json
from stratalog.spark.options import parse_offsets, plan_read, stream_read_options
from stratalog.spark.schema import full_schema
from stratalog.spark.stream import StratalogStreamReader
from tests.bulk.reading import read_plan
from tests.opening import open_logs
from tests.spark.test_read_stream import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from stratalog import LogDir

ALL = ReadAllAvailable()
AGAIN = "deleted and created again"


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogDir]:
    with open_logs(tmp_path / "logs") as found:
        fill(found, "old", 20)
        yield found


def fill(logs: LogDir, word: str, count: int) -> None:
    logs.create_topic("t", 1)
    append(logs, word, count)


def append(logs: LogDir, word: str, count: int) -> None:
    for number in range(count):
        logs.append("t", f"{word}-{number}".encode(), partition=0)


def recreate(logs: LogDir, count: int = 30) -> None:
    logs.delete_topic("t")
    fill(logs, "new", count)


def id_of(path: Path) -> str:
    topic_id = open_dirs(path).partition("t", 0).topic_id
    assert topic_id is not None
    return encode_id(topic_id)


# -- batch queries


def test_a_plan_is_for_one_topic(logs: LogDir, tmp_path: Path) -> None:
    path = tmp_path / "logs"
    plan = plan_read({"path": str(path), "subscribe": "t"})
    assert pickle.loads(pickle.dumps(plan)) == plan
    before = id_of(path)
    recreate(logs)
    with pytest.raises(DataLossError, match=f"topic t was {AGAIN}") as caught:
        read_plan(plan)
    assert before in str(caught.value)
    assert id_of(path) in str(caught.value)


def test_a_recreated_topic_may_be_left_out(
    logs: LogDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_read({"path": str(tmp_path / "logs"), "subscribe": "t"})
    recreate(logs)
    with caplog.at_level(logging.WARNING):
        assert read_plan(plan, fails_on_data_loss=False) == {}
    assert AGAIN in caplog.text


def test_a_reused_inode_does_not_deceive(logs: LogDir, tmp_path: Path) -> None:
    """A new topic whose segment has the inode of the old one: here, the same file."""
    partition = tmp_path / "logs" / "t-0"
    plan = plan_read({"path": str(tmp_path / "logs"), "subscribe": "t"})
    other = tmp_path / "other"
    with open_logs(other) as others:
        others.create_topic("t", 1)
    metadata = (other / "t-0" / "partition.metadata").read_text()
    (partition / "partition.metadata").write_text(metadata)
    with pytest.raises(DataLossError, match=AGAIN):
        read_plan(plan)
    (partition / "partition.metadata").unlink()  # as before Kafka 2.8: nothing to compare
    assert len(read_plan(plan)[0]) == 20
    (partition / "partition.metadata").write_text("junk")
    assert len(read_plan(plan)[0]) == 20


def test_a_deleted_topic_is_lost_data_or_left_out(
    logs: LogDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_read({"path": str(tmp_path / "logs"), "subscribe": "t"})
    logs.delete_topic("t")
    with pytest.raises(DataLossError, match="t-0 was deleted"):
        read_plan(plan)
    with caplog.at_level(logging.WARNING):
        assert read_plan(plan, fails_on_data_loss=False) == {}
    assert "t-0 was deleted" in caplog.text


# -- streams, without Spark's processes


def opened(path: Path, *, fails: bool) -> StratalogStreamReader:
    options = {"path": str(path), "subscribe": "t", "failOnDataLoss": str(fails).lower()}
    schema = full_schema(includes_headers=False)
    return StratalogStreamReader(stream_read_options(options), schema)


def rows(reader: StratalogStreamReader, start: Any, end: Any) -> list[str]:
    return [
        bytes(value.as_py()).decode()
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for value in batch.column("value")
    ]


def test_offsets_have_the_ids_of_topics(logs: LogDir, tmp_path: Path) -> None:
    path = tmp_path / "logs"
    found = opened(path, fails=True).initialOffset()
    assert found == {"t": {"0": 20}, TOPIC_IDS: {"t": id_of(path)}}
    assert offsets_from_json(found) == {("t", 0): 20}
    assert parse_offsets("startingOffsets", json.dumps(found)) == ((("t", 0), 20),)


@pytest.mark.parametrize("count", [5, 20, 30])
def test_a_recreated_topic_is_read_from_its_start(logs: LogDir, tmp_path: Path, count: int) -> None:
    path = tmp_path / "logs"
    start = opened(path, fails=True).initialOffset()
    recreate(logs, count)
    with pytest.raises(DataLossError, match=AGAIN):
        opened(path, fails=True).latestOffset(start, ALL)
    bold = opened(path, fails=False)
    end = bold.latestOffset(start, ALL)
    assert rows(bold, start, end) == [f"new-{number}" for number in range(count)]
    append(logs, "more", 2)
    assert rows(bold, end, bold.latestOffset(end, ALL)) == ["more-0", "more-1"]
    # The same batch again, after a restart.
    with pytest.raises(DataLossError, match=AGAIN):
        opened(path, fails=True).partitions(start, end)
    assert rows(bold, start, end) == [f"new-{number}" for number in range(count)]


def test_a_planned_batch_of_the_old_topic_reads_nothing_of_the_new(
    logs: LogDir, tmp_path: Path
) -> None:
    path = tmp_path / "logs"
    strict, bold = opened(path, fails=True), opened(path, fails=False)
    start = strict.initialOffset()
    append(logs, "more", 5)
    end = strict.latestOffset(start, ALL)
    late = bold.partitions(start, end)  # planned before, read after
    recreate(logs)
    with pytest.raises(DataLossError, match=AGAIN):
        strict.partitions(start, end)
    assert rows(bold, start, end) == []
    assert [batch for partition in late for batch in bold.read(partition)] == []
    following = bold.latestOffset(end, ALL)
    assert rows(bold, end, following) == [f"new-{number}" for number in range(30)]


def test_a_deleted_topic_comes_back_later(logs: LogDir, tmp_path: Path) -> None:
    path = tmp_path / "logs"
    strict, bold = opened(path, fails=True), opened(path, fails=False)
    start = bold.initialOffset()
    logs.delete_topic("t")
    with pytest.raises(DataLossError, match="no topic 't'"):
        strict.latestOffset(start, ALL)
    without = bold.latestOffset(start, ALL)
    assert (without, rows(bold, start, without)) == ({}, [])
    fill(logs, "new", 3)
    assert rows(bold, without, bold.latestOffset(without, ALL)) == ["new-0", "new-1", "new-2"]


def test_old_checkpoints_have_no_ids(logs: LogDir, tmp_path: Path) -> None:
    """Of an earlier version, or of the connector: they are read, and the next one has the ids."""
    path = tmp_path / "logs"
    strict = opened(path, fails=True)
    start = {"t": {"0": 12}}
    end = strict.latestOffset(start, ALL)
    assert end == {"t": {"0": 20}, TOPIC_IDS: {"t": id_of(path)}}
    assert rows(strict, start, end) == [f"old-{number}" for number in range(12, 20)]


# -- on Spark


@pytest.mark.parametrize("how", ["deleted", "recreated"])
def test_a_batch_query_that_was_planned_before(
    spark: SparkSession, logs: LogDir, tmp_path: Path, how: str
) -> None:
    def planned(fails: str) -> Any:
        reader = spark.read.format("stratalog").options(subscribe="t", failOnDataLoss=fails)
        rdd = reader.load(str(tmp_path / "logs")).rdd
        assert rdd.getNumPartitions() == 1
        return rdd

    strict, bold = planned("true"), planned("false")
    if how == "deleted":
        logs.delete_topic("t")
    else:
        recreate(logs)
    with pytest.raises(
        Exception, match=r"DataLossError: .*" + (AGAIN if how != "deleted" else how)
    ):
        strict.collect()
    assert bold.collect() == []


class Values(Reading):
    """All values that were read."""

    def __init__(self, spark: SparkSession, root: Path, **options: str) -> None:
        super().__init__(spark, root, **options)
        self.values: list[str] = []

    def start(self, **trigger: Any) -> Any:
        def collect(frame: Any, _: int) -> None:
            self.values += [bytes(row.value).decode() for row in frame.collect()]

        frame = self.spark.readStream.format("stratalog").options(**self.options)
        writer = frame.load(str(self.logs)).writeStream.foreachBatch(collect)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "restarted"])
def test_a_stream_of_a_recreated_topic(
    spark: SparkSession, logs: LogDir, tmp_path: Path, is_running: bool
) -> None:
    bold = Values(spark, tmp_path, failOnDataLoss="false")
    query = bold.start(processingTime="100 milliseconds")
    query.processAllAvailable()
    assert bold.values == [f"old-{number}" for number in range(20)]
    if not is_running:
        query.stop()
    recreate(logs)
    if not is_running:
        strict = Values(spark, tmp_path)
        failed = strict.start(processingTime="100 milliseconds")
        with pytest.raises(Exception, match=rf"DataLossError: .*{AGAIN}"):
            failed.processAllAvailable()
        assert strict.values == []
        query = bold.start(processingTime="100 milliseconds")
    query.processAllAvailable()
    query.stop()
    assert bold.values[20:] == [f"new-{number}" for number in range(30)]

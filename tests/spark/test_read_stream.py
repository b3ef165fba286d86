"""Streaming reads: over restarts, of growing logs and topics, and when data is lost."""

from __future__ import annotations

import json
import shutil
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from stratalog.bulk.splits import Split
from stratalog.errors import DataLossError
from stratalog.format.directory_metadata import PartitionMetadata, encode_partition_metadata
from stratalog.spark import stream
from stratalog.spark.offset_json import TOPIC_IDS
from stratalog.spark.options import stream_read_options
from stratalog.spark.schema import full_schema
from stratalog.spark.stream import StratalogStreamReader
from tests.opening import open_logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from stratalog import LogDir

ALL = ReadAllAvailable()


def plain(offsets: dict[str, Any]) -> dict[str, Any]:
    """As the connector has them: without the ids of topics."""
    return {topic: found for topic, found in offsets.items() if topic != TOPIC_IDS}


def _append(logs: LogDir, topic: str, partition: int, count: int) -> None:
    """Records that say where they are: offset by offset, in batches of at most ten."""
    start = logs.partition(topic, partition).log_end_offset
    with logs.producer() as producer:
        for offset in range(start, start + count):
            value = f"{topic}-{partition}-{offset}".encode()
            producer.append(topic, value, partition=partition)
            if offset % 10 == 9:
                producer.flush()


class Reading:
    """A streaming query that can be started again and again, and what it has read."""

    def __init__(self, spark: SparkSession, root: Path, **options: str) -> None:
        self.spark, self.logs, self.checkpoint = spark, root / "logs", root / "checkpoint"
        self.options = {"startingOffsets": "earliest", "subscribe": "t", **options}
        self.batches: dict[int, list[str]] = {}

    def start(self, **trigger: Any) -> Any:
        def collect(frame: DataFrame, number: int) -> None:
            self.batches[number] = [
                f"{row.topic}-{row.partition}-{row.offset}"
                for row in frame.collect()
                if bytes(row.value).decode() == f"{row.topic}-{row.partition}-{row.offset}"
            ]

        frame = self.spark.readStream.format("stratalog").options(**self.options)
        writer = frame.load(str(self.logs)).writeStream.foreachBatch(collect)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    def run(self) -> Any:
        query = self.start(availableNow=True)
        query.awaitTermination()
        return query

    @property
    def read(self) -> list[str]:
        return sorted(name for batch in self.batches.values() for name in batch)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was reported as lost."""
    lost = "Some data may have been lost: "
    return [text.removeprefix(lost) for text in caplog.messages if text.startswith(lost)]


def _names(**counts: int) -> list[str]:
    return sorted(
        f"t-{partition}-{offset}"
        for name, count in counts.items()
        for partition in [int(name.removeprefix("p"))]
        for offset in range(count)
    )


def test_restarts_go_on_where_the_checkpoint_says(spark: SparkSession, tmp_path: Path) -> None:
    reading = Reading(spark, tmp_path, maxOffsetsPerTrigger="30")
    with open_logs(reading.logs) as logs:
        logs.create_topic("t", 2, config={"segment.bytes": 1000})
        _append(logs, "t", 0, 70)
        _append(logs, "t", 1, 31)
        query = reading.run()
        assert reading.read == _names(p0=70, p1=31)
        assert [len(batch) for _, batch in sorted(reading.batches.items())] == [29, 29, 29, 14]
        text = (reading.checkpoint / "offsets" / "3").read_text().splitlines()[-1]
        assert plain(json.loads(text)) == {"t": {"0": 70, "1": 31}}
        assert json.loads(query.lastProgress["sources"][0]["latestOffset"]) == json.loads(text)
        logs.add_partitions("t", 3)
        _append(logs, "t", 0, 5)
        _append(logs, "t", 2, 12)
        reading.run()
        assert reading.read == _names(p0=75, p1=31, p2=12)
        reading.run()  # nothing new: no batch more
    assert len(reading.batches) == 5


def test_a_live_directory_is_followed(spark: SparkSession, tmp_path: Path) -> None:
    reading = Reading(spark, tmp_path)
    with open_logs(reading.logs) as logs:
        logs.create_topic("t", 1, config={"segment.bytes": 2000})
        query = reading.start(processingTime="100 milliseconds")

        def write() -> None:
            for _ in range(8):
                _append(logs, "t", 0, 25)

        writer = threading.Thread(target=write)
        writer.start()
        writer.join()
        query.processAllAvailable()
        query.stop()
    assert reading.read == _names(p0=200)


# -- without Spark's processes


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., StratalogStreamReader]:
    def make(**options: str) -> StratalogStreamReader:
        which = {} if "assign" in options else {"subscribe": "t"}
        given = {"path": str(tmp_path), **which, **options}
        parsed = stream_read_options({name.replace("_", "."): text for name, text in given.items()})
        return StratalogStreamReader(parsed, full_schema(includes_headers=False))

    return make


def _rows(reader: StratalogStreamReader, start: Any, end: Any) -> list[str]:
    found = []
    for partition in reader.partitions(start, end):
        assert isinstance(partition.value, Split)
        for batch in reader.read(partition):
            found += [bytes(value.as_py()).decode() for value in batch.column("value")]
    return found


def test_a_stream_begins_at_the_end_unless_told(
    opened: Callable[..., StratalogStreamReader], tmp_path: Path
) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1)
        _append(logs, "t", 0, 7)
        assert plain(opened().initialOffset()) == {"t": {"0": 7}}
        assert plain(opened(startingOffsets="earliest").initialOffset()) == {"t": {"0": 0}}
        assert plain(opened(startingOffsets='{"t":{"0":3}}').initialOffset()) == {"t": {"0": 3}}


def test_the_limits_that_spark_is_told(
    opened: Callable[..., StratalogStreamReader], tmp_path: Path
) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1)
        assert opened().getDefaultReadLimit() == ALL
        assert opened(maxOffsetsPerTrigger="5").getDefaultReadLimit() == ReadMaxRows(5)
        assert opened(minOffsetsPerTrigger="5").getDefaultReadLimit() == ReadMinRows(5)


def test_a_minimum_holds_a_batch_back(
    opened: Callable[..., StratalogStreamReader], tmp_path: Path
) -> None:
    reader_options = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1)
        reader = opened(**reader_options)
        limit = reader.getDefaultReadLimit()
        _append(logs, "t", 0, 3)
        first = reader.latestOffset({"t": {"0": 0}}, limit)
        assert plain(first) == {"t": {"0": 3}}  # the first batch does not wait
        _append(logs, "t", 0, 9)
        assert reader.latestOffset(first, limit) == first
        assert plain(reader.latestOffset(first, ALL)) == {"t": {"0": 12}}
        _append(logs, "t", 0, 1)
        assert plain(reader.latestOffset(first, limit)) == {"t": {"0": 13}}


def test_available_now_ends_where_the_logs_ended_at_the_start(
    opened: Callable[..., StratalogStreamReader], tmp_path: Path
) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1)
        _append(logs, "t", 0, 20)
        reader = opened()
        reader.prepareForTriggerAvailableNow()
        _append(logs, "t", 0, 20)
        logs.add_partitions("t", 2)
        assert plain(reader.latestOffset({"t": {"0": 0}}, ALL)) == {"t": {"0": 20}}
        assert plain(reader.latestOffset({"t": {"0": 20}}, ALL)) == {"t": {"0": 20}}


def test_a_micro_batch_is_divided_by_offsets(
    opened: Callable[..., StratalogStreamReader], tmp_path: Path
) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1)
        _append(logs, "t", 0, 200)
    reader = opened(minPartitions="50")
    start, end = {"t": {"0": 20}}, {"t": {"0": 170}}
    assert len(reader.partitions(start, end)) == 50
    assert _rows(reader, start, end) == [f"t-0-{offset}" for offset in range(20, 170)]


def test_committed_reads_stop_at_an_open_transaction(
    opened: Callable[..., StratalogStreamReader], tmp_path: Path
) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1)
        _append(logs, "t", 0, 4)
        reader = opened(kafka_isolation_level="read_committed")
        with logs.transaction("mine") as transaction:
            transaction.append("t", b"t-0-4", partition=0).result()
            assert plain(reader.latestOffset({"t": {"0": 0}}, ALL)) == {"t": {"0": 4}}
        end = reader.latestOffset({"t": {"0": 0}}, ALL)
        assert plain(end) == {"t": {"0": 6}}  # the marker counts
        assert _rows(reader, {"t": {"0": 3}}, end) == ["t-0-3", "t-0-4"]


def test_lost_data_is_an_error_or_passed_over(
    opened: Callable[..., StratalogStreamReader], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1)
        _append(logs, "t", 0, 20)
        logs.delete_records("t", 0, 12)
        logs.checkpoint()
        start, end = {"t": {"0": 5}}, {"t": {"0": 20}}
        with pytest.raises(DataLossError, match="starts at offset 12"):
            opened().latestOffset(start, ALL)
        with pytest.raises(DataLossError, match="but the log has 12 to 20"):
            opened().partitions(start, end)
        bold = opened(failOnDataLoss="false")
        assert plain(bold.latestOffset(start, ALL)) == end
        assert _rows(bold, start, end) == [f"t-0-{offset}" for offset in range(12, 20)]
        assert _warnings(caplog) == [
            "t-0 starts at offset 12, but was read only up to 5",
            "offsets 5 to 20 of t-0 were requested, but the log has 12 to 20",
        ]
        strict = opened()
    shutil.rmtree(tmp_path / "t-0")
    with pytest.raises(DataLossError, match="no topic 't'"):
        strict.latestOffset(start, ALL)
    caplog.clear()
    assert plain(bold.latestOffset(start, ALL)) == {}
    assert bold.partitions(start, end) == []
    missing, *deleted = _warnings(caplog)
    assert "no topic 't'" in missing
    assert deleted == ["t-0 was deleted", "t-0 was deleted"]


def test_a_deleted_partition_leaves_the_other_assigned_ones(
    opened: Callable[..., StratalogStreamReader],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 2)
        _append(logs, "t", 0, 20)
        _append(logs, "t", 1, 8)
    assign = '{"t": [0, 1]}'
    strict = opened(assign=assign)
    bold = opened(assign=assign, failOnDataLoss="false")
    shutil.rmtree(tmp_path / "t-1")
    start = {"t": {"0": 5, "1": 3}}
    with pytest.raises(DataLossError, match="no partition t-1"):
        strict.latestOffset(start, ALL)
    end = plain(bold.latestOffset(start, ALL))
    assert end == {"t": {"0": 20}}
    assert _rows(bold, start, end) == [f"t-0-{offset}" for offset in range(5, 20)]
    bold.latestOffset(end, ALL)
    missing, *deleted = _warnings(caplog)
    assert "no partition t-1" in missing
    assert deleted == ["t-1 was deleted"]


@pytest.mark.parametrize("step", ["subscribed_partitions", "open_partitions"])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_partition_that_a_broker_moves_meanwhile_is_not_lost(
    opened: Callable[..., StratalogStreamReader],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    fails: str,
) -> None:
    dirs = [tmp_path / "one", tmp_path / "two"]
    with open_logs(*dirs) as logs:
        logs.create_topic("t", 2)
        _append(logs, "t", 0, 8)
        _append(logs, "t", 1, 8)
    reader = opened(path=",".join(map(str, dirs)), failOnDataLoss=fails)
    take_step = getattr(stream, step)

    def moved(*given: Any) -> Any:
        taken = take_step(*given)
        source, target = dirs if (dirs[0] / "t-1").exists() else reversed(dirs)
        (source / "t-1").rename(target / "t-1")
        return taken

    monkeypatch.setattr(stream, step, moved)
    start = {"t": {"0": 8, "1": 3}}
    end = plain(reader.latestOffset(start, ALL))
    assert end == {"t": {"0": 8, "1": 8}}
    assert _rows(reader, start, end) == [f"t-1-{offset}" for offset in range(3, 8)]
    assert plain(reader.initialOffset()) == end


def test_a_partition_that_is_moved_after_a_batch_was_planned_is_read_where_it_is(
    opened: Callable[..., StratalogStreamReader], tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with open_logs(one, two) as logs:
        logs.create_topic("t", 1)
        _append(logs, "t", 0, 8)
    if (two / "t-0").exists():
        one, two = two, one
    reader = opened(path=f"{one},{two}")
    (planned,) = reader.partitions({"t": {"0": 3}}, {"t": {"0": 8}})
    (one / "t-0").rename(two / "t-0")
    offsets = [offset.as_py() for batch in reader.read(planned) for offset in batch["offset"]]
    assert offsets == [3, 4, 5, 6, 7]
    metadata = two / "t-0" / "partition.metadata"
    metadata.write_bytes(encode_partition_metadata(PartitionMetadata(uuid.uuid4())))
    with pytest.raises(DataLossError, match="created again"):
        list(reader.read(planned))


def test_lost_data_does_not_count_towards_a_limit(
    opened: Callable[..., StratalogStreamReader], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1)
        _append(logs, "t", 0, 20)
        logs.delete_records("t", 0, 12)
        logs.checkpoint()
    reader = opened(failOnDataLoss="false", maxOffsetsPerTrigger="5")
    start = {"t": {"0": 2}}
    end = plain(reader.latestOffset(start, ReadMaxRows(5)))
    assert end == {"t": {"0": 17}}
    assert _rows(reader, start, end) == [f"t-0-{offset}" for offset in range(12, 17)]
    assert len(_warnings(caplog)) == 2
    assert plain(reader.latestOffset(end, ReadMaxRows(5))) == {"t": {"0": 20}}
    assert len(_warnings(caplog)) == 2


def test_a_loss_is_reported_once_while_a_minimum_holds_batches_back(
    opened: Callable[..., StratalogStreamReader], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 3)
        for number in range(3):
            _append(logs, "t", number, 20)
        logs.delete_records("t", 0, 12)
        logs.checkpoint()
    shutil.rmtree(tmp_path / "t-2")
    reader = opened(failOnDataLoss="false", minOffsetsPerTrigger="100", maxTriggerDelay="1h")
    reader.latestOffset({}, ReadMinRows(100))  # the first batch does not wait
    caplog.clear()
    start = {"t": {"0": 5, "1": 30, "2": 20}}
    end = reader.latestOffset(start, ReadMinRows(100))
    assert plain(end) == {"t": {"0": 12, "1": 20}}
    assert _rows(reader, start, end) == []
    reported = _warnings(caplog)
    assert [text.split(",")[0] for text in reported[:3]] == [
        "t-0 starts at offset 12",
        "t-1 ends at offset 20",
        "t-2 was deleted",
    ]
    assert reader.latestOffset(end, ReadMinRows(100)) == end
    assert _warnings(caplog) == reported


def test_a_new_partition_without_its_start_is_lost_data(
    opened: Callable[..., StratalogStreamReader], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 2)
        _append(logs, "t", 1, 8)
        logs.delete_records("t", 1, 3)
        logs.checkpoint()
        found = plain(opened(failOnDataLoss="false").latestOffset({"t": {"0": 0}}, ALL))
    assert found == {"t": {"0": 0, "1": 8}}
    assert _warnings(caplog) == ["t-1 is new and starts at offset 3, not 0"]

"""Streaming writes: every micro-batch once, through failures, restarts and replays."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from stratalog import LogDir
from tests.spark.killing import KillingSource

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

FILES, ROWS = 6, 40


class Stream:
    """Files as a source, one micro-batch each, and a query that can be started again and again."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.logs, self.checkpoint, self.source = root / "logs", root / "checkpoint", root / "in"
        self.source.mkdir()
        for number in range(FILES):
            lines = [
                json.dumps({"key": f"k{row % 5}", "value": str(number * ROWS + row)})
                for row in range(ROWS)
            ]
            path = self.source / f"{number}.json"
            path.write_text("\n".join(lines))
            os.utime(path, (1_700_000_000 + number,) * 2)  # the order in which Spark takes them
        with LogDir.open(self.logs, background=False) as logs:
            logs.create_topic("orders", 2, config={"segment.bytes": 1500})

    def run(self, form: str = "stratalog", **options: object) -> None:
        reader = self.spark.readStream.schema("key string, value string")
        df = reader.option("maxFilesPerTrigger", 1).json(str(self.source))
        writer = df.writeStream.format(form).option("topic", "orders")
        for name, value in options.items():
            writer = writer.option(name, str(value))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start(str(self.logs))
        query.awaitTermination()

    def values(self, writers: int = 1) -> list[int]:
        """All of them; offsets without gaps, those of one key in order, by writer."""
        found = []
        with LogDir.open(self.logs, background=False) as logs:
            for log in logs.partitions_of("orders"):
                records = list(log.read())
                assert [r.offset for r in records] == list(range(log.log_end_offset))
                for key in {record.key for record in records}:
                    of_key = [int(r.value or b"") for r in records if r.key == key]
                    each = len(of_key) // writers
                    for start in range(0, len(of_key), each):
                        part = of_key[start : start + each]
                        assert part == sorted(part)
                found += [int(record.value or b"") for record in records]
        return found

    def check_complete(self) -> None:
        assert sorted(self.values()) == list(range(FILES * ROWS))
        assert not list(self.logs.rglob("*.staged"))


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def test_all_micro_batches(stream: Stream) -> None:
    stream.run()
    stream.check_complete()


def test_a_replayed_micro_batch_changes_nothing(stream: Stream) -> None:
    """Spark has forgotten that it committed, the log directory has not."""
    stream.run()
    for number in (FILES - 1, FILES - 2):
        (stream.checkpoint / "commits" / str(number)).unlink()
        for crc in (stream.checkpoint / "commits").glob(f".{number}.crc"):
            crc.unlink()
        stream.run()
        stream.check_complete()


def test_another_query_is_another_writer(stream: Stream) -> None:
    stream.run()
    shutil.rmtree(stream.checkpoint)
    stream.run()
    assert sorted(stream.values(2)) == sorted([*range(FILES * ROWS)] * 2)


@pytest.mark.slow
def test_killed_between_any_two_steps_of_its_commits(stream: Stream) -> None:
    """The process that commits is killed somewhere else each time, and the query restarted."""
    stream.spark.dataSource.register(KillingSource)
    kills = 0
    for kill_at in range(2, 80, 6):
        try:
            stream.run("killing", killAt=kill_at)
            break
        except StreamingQueryException:
            kills += 1
        if kills % 2:  # else it is the query itself that finishes what it finds
            seen = stream.values()
            assert sorted(seen) == list(range(len(seen)))
            assert len(seen) % ROWS == 0
    assert kills >= FILES
    stream.run()
    stream.check_complete()


def test_refusals(stream: Stream) -> None:
    with pytest.raises(PySparkException, match="checkpoint; omit txnAppId"):
        stream.run(txnAppId="x", txnVersion=1)
    with pytest.raises(PySparkException, match="did you mean 'lockTimeout'"):
        stream.run(lokTimeout=1)
    with (
        LogDir.open(stream.logs),
        pytest.raises(PySparkException, match=r"locked by process \d+ \("),
    ):
        stream.run(lockTimeout="100ms")
    stream.run()
    stream.check_complete()

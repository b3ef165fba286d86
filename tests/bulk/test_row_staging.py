"""Rows into staged runs: where they go, what the files hold, what is refused."""

from __future__ import annotations

import random
import resource
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.bulk import row_staging as row_stager
from stratalog.bulk.row_staging import StagingOptions
from stratalog.bulk.target import NewTopics, Target
from stratalog.config import BrokerConfig
from stratalog.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    NotALogDirError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.batch import BatchHeader, Codec
from stratalog.format.hashing import UNASSIGNED, partition_keys
from stratalog.format.murmur import murmur2, partition_for_key
from stratalog.producing.arrow_rows import RowPartitioner
from stratalog.storage.disk import Disk
from tests.commits.staging import open_logs, rows, stage
from tests.disks import FaultyDisk
from tests.log.building import batches_of
from tests.opening import NOW_MS, UNSYNCED


def partitioner_of(
    partitions: int, task: int = 0, *, missing: tuple[int, ...] = (), sticky_bytes: int = 1000
) -> RowPartitioner:
    here = [n for n in range(partitions) if n not in missing]
    return RowPartitioner("t", partitions, here, sticky_bytes, task)


@pytest.fixture
def logs_dir(tmp_path: Path) -> Path:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 3)
        logs.create_topic("compacted", 1, config={"cleanup.policy": "compact"})
        logs.create_topic("small", 1, config={"max.message.bytes": 200})
        logs.create_topic("old", 1, config={"message.timestamp.before.max.ms": 1000})
        logs.create_topic("zstd", 1, config={"compression.type": "zstd"})
    return tmp_path


# -- partitions


@given(st.lists(st.none() | st.binary(max_size=40)), st.integers(1, 300), st.integers(0, 5))
def test_keys_go_where_kafka_puts_them(keys: list[bytes | None], count: int, skipped: int) -> None:
    for kind in (pa.binary(), pa.large_binary()):
        column = pa.array([b"x"] * skipped + keys, kind).slice(skipped)
        found = np.full(len(keys), UNASSIGNED, np.int32)
        left = partition_keys(column, count, found)
        expected = [UNASSIGNED if key is None else partition_for_key(key, count) for key in keys]
        assert found.tolist() == expected
        assert left == expected.count(UNASSIGNED)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_the_compiled_hash(key: bytes, hashed: int) -> None:
    """Kafka's own test values."""
    assert murmur2(key) == hashed % (1 << 32)
    partitions = np.full(1, UNASSIGNED, np.int32)
    partition_keys(pa.array([key]), 1 << 30, partitions)
    assert partitions[0] == (hashed & 0x7FFF_FFFF) % (1 << 30)


def test_a_given_partition_comes_before_the_key() -> None:
    batch = rows(0, 4, partition=pa.array([2, None, 0, None], pa.int32()))
    found = partitioner_of(3).partitions_of(batch).tolist()
    keys = batch.column("key").to_pylist()
    assert found == [2, partition_for_key(keys[1], 3), 0, partition_for_key(keys[3], 3)]


@pytest.mark.parametrize("number", [-1, 3, 2_000_000_000])
def test_a_partition_out_of_range(number: int) -> None:
    batch = rows(0, 2, partition=pa.array([1, number], pa.int32()))
    with pytest.raises(InvalidRecordError, match=f"given with record: {number} is not in the"):
        partitioner_of(3).partitions_of(batch)


def test_a_partition_that_is_elsewhere() -> None:
    """Of a cluster's topic perhaps not all partitions are in the directory."""
    partitioner = partitioner_of(3, missing=(1,))
    with pytest.raises(UnknownTopicOrPartitionError, match="partition 1 of topic 't'"):
        partitioner.partitions_of(rows(0, 2, partition=pa.array([0, 1], pa.int32())))
    without_key = pa.record_batch({"value": pa.array([b"x" * 100] * 100)})
    assert set(partitioner.partitions_of(without_key).tolist()) == {0, 2}


def test_rows_without_a_key_stick_for_a_batch() -> None:
    partitioner = partitioner_of(4, 7)
    batch = pa.record_batch({"value": pa.array([b"x" * 84] * 25)})  # 100 bytes each, as counted
    found = [number for _ in range(8) for number in partitioner.partitions_of(batch).tolist()]
    turns = [found[start : start + 10] for start in range(0, 200, 10)]
    assert all(len(set(turn)) == 1 for turn in turns)
    assert all(first[0] != second[0] for first, second in pairwise(turns))
    assert {turn[0] for turn in turns} == {0, 1, 2, 3}


def test_tasks_begin_with_different_partitions() -> None:
    batch = pa.record_batch({"value": pa.array([b"x"])})
    first = {int(partitioner_of(8, task).partitions_of(batch)[0]) for task in range(40)}
    assert len(first) > 5


# -- what is staged


def test_a_run_is_a_log_of_its_own(logs_dir: Path) -> None:
    """Offsets count from zero through all batches, however the rows came in."""
    headers = pa.array(
        [[("h", b"v"), ("h", None)], [], None] * 10,
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    parts = [rows(first, 30, headers=headers) for first in range(0, 300, 30)]
    runs = stage([logs_dir], parts)
    assert sum(run.record_count for run in runs) == 300
    for run in runs:
        data = (logs_dir / str(run.topic_partition) / run.name).read_bytes()
        batches = batches_of(data)
        records = [record for batch in batches for record in batch.records]
        assert len(data) == run.size_bytes
        assert [record.offset for record in records] == list(range(run.record_count))
        assert all(record.timestamp == NOW_MS for record in records)
        assert len(batches) > 3
        for record in records:
            assert record.value is not None
            number = int(record.value)
            assert partition_for_key(record.key or b"", 3) == run.topic_partition.partition
            expected = [("h", b"v"), ("h", None)] if number % 3 == 0 else []
            assert [tuple(header) for header in record.headers] == expected


@pytest.mark.parametrize(("topic", "codec"), [("orders", Codec.LZ4), ("zstd", Codec.ZSTD)])
def test_the_codec_is_the_topics_or_else_the_writers(
    logs_dir: Path, topic: str, codec: Codec
) -> None:
    runs = stage([logs_dir], [rows(0, 10)], terms=StagingOptions(topic, Codec.LZ4))
    for run in runs:
        data = (logs_dir / str(run.topic_partition) / run.name).read_bytes()
        assert BatchHeader.unpack(data).codec_id == codec
        entry = batches_of(data)[0]
        assert entry.records


def test_topics_of_rows(logs_dir: Path) -> None:
    names = random.Random(5).choices(["orders", "old", "zstd"], k=100)
    runs = stage([logs_dir], [rows(0, 100, topic=pa.array(names))], terms=StagingOptions())
    counts = dict.fromkeys(names, 0)
    for run in runs:
        counts[run.topic.name] += run.record_count
    assert counts == {name: names.count(name) for name in counts}


def times(*milliseconds: int | None) -> pa.Array:
    micros = [None if ms is None else ms * 1000 + 999 for ms in milliseconds]
    return pa.array(micros, pa.timestamp("us", "UTC"))


def test_timestamps_are_cut_to_milliseconds_and_filled_in(logs_dir: Path) -> None:
    batch = rows(0, 2, timestamp=times(NOW_MS - 5, None))
    (run,) = stage([logs_dir], [batch], terms=StagingOptions("zstd"))
    data = (logs_dir / "zstd-0" / run.name).read_bytes()
    assert [r.timestamp for r in batches_of(data)[0].records] == [NOW_MS - 5, NOW_MS]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_no_timestamp_may_be_told_as_the_source_does(logs_dir: Path, unit: str) -> None:
    """A copy of records of magic 0, which have none, gets the time of staging."""
    column = pa.array([-1, NOW_MS - 5], pa.timestamp("ms", "UTC")).cast(pa.timestamp(unit, "UTC"))
    (run,) = stage([logs_dir], [rows(0, 2, timestamp=column)], terms=StagingOptions("zstd"))
    data = (logs_dir / "zstd-0" / run.name).read_bytes()
    assert [r.timestamp for r in batches_of(data)[0].records] == [NOW_MS, NOW_MS - 5]


REFUSALS: dict[str, tuple[str | None, dict[str, Any], type[Exception], str]] = {
    "null topic": (
        None,
        {"topic": pa.array(["orders", None])},
        InvalidRecordError,
        "null topic present in the data. Use the topic option",
    ),
    "unknown topic": (
        "nope",
        {},
        UnknownTopicOrPartitionError,
        "topic 'nope' does not exist .* set the option topicPartitions",
    ),
    "null key": (
        "compacted",
        {"key": pa.array([b"k", None])},
        InvalidRecordError,
        "cannot accept message without key",
    ),
    "too large": ("small", {"value": pa.array([b"x", b"y" * 300])}, MessageTooLargeError, "row 1"),
    "too old": ("old", {"timestamp": times(NOW_MS, NOW_MS - 1001)}, InvalidTimestampError, "old"),
    "future": (
        "orders",
        {"timestamp": times(NOW_MS, NOW_MS + 3_600_001)},
        InvalidTimestampError,
        "outside",
    ),
    "less than a millisecond before 1970": (
        "orders",
        {"timestamp": pa.array([-1, 1], pa.timestamp("us", "UTC"))},
        InvalidTimestampError,
        "Invalid timestamp: -1",
    ),
    "seconds that are no 64 bits of milliseconds": (
        "orders",
        {"timestamp": pa.array([1 << 62, 1], pa.timestamp("s", "UTC"))},
        InvalidTimestampError,
        "outside",
    ),
    "before 1970": ("orders", {"timestamp": times(-5, 1)}, InvalidTimestampError, "non-negative"),
    "header without key": (
        "orders",
        {"headers": pa.array([[{"key": None, "value": b""}], []])},
        InvalidRecordError,
        "header",
    ),
}


@pytest.mark.parametrize(
    ("topic", "columns", "kind", "match"), REFUSALS.values(), ids=list(REFUSALS)
)
def test_refused_rows_leave_nothing(
    logs_dir: Path, topic: str | None, columns: dict[str, Any], kind: type[Exception], match: str
) -> None:
    batch = pa.record_batch({"value": pa.array([b"a", b"b"]), "key": pa.array([b"k", b"l"])})
    for name, column in columns.items():
        index = batch.schema.get_field_index(name)
        if index >= 0:
            batch = batch.set_column(index, name, column)
        else:
            batch = batch.append_column(name, column)
    with pytest.raises(kind, match=match):
        stage([logs_dir], [batch], terms=StagingOptions(topic))
    assert not list(logs_dir.rglob("*.staged"))


def test_a_full_disk_leaves_nothing(logs_dir: Path) -> None:
    faulty = FaultyDisk(UNSYNCED)
    faulty.fail_next(28, skip=3)
    with pytest.raises(StorageError):
        stage([logs_dir], [rows(0, 1000)], disk=faulty.disk)
    assert not list(logs_dir.rglob("*.staged"))


def test_more_partitions_than_open_files(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    try:
        keys = pa.array([b"%d" % n for n in range(2000)])
        batch = pa.record_batch({"value": keys, "key": keys})
        runs = stage([tmp_path], [batch], disk=Disk(UNSYNCED))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(runs) == 60


def test_small_arrow_batches_make_full_record_batches(logs_dir: Path) -> None:
    parts = [rows(first, 5) for first in range(0, 5000, 5)]
    (run,) = stage([logs_dir], parts, terms=StagingOptions("zstd", batch_bytes=4096))
    batches = batches_of((logs_dir / "zstd-0" / run.name).read_bytes())
    assert all(len(batch.records) > 100 for batch in batches[:-1])


def test_what_is_gathered_is_bounded(logs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each so many bytes everything is in the files."""
    monkeypatch.setattr(row_stager, "GATHER_BYTES", 10_000)
    parts = [rows(first, 500) for first in range(0, 5000, 500)]
    runs = stage([logs_dir], parts)
    values = []
    for run in runs:
        data = (logs_dir / str(run.topic_partition) / run.name).read_bytes()
        for batch in batches_of(data):
            values += [int(record.value or b"") for record in batch.records]
    assert sorted(values) == list(range(5000))


# -- targets


def test_targets(tmp_path: Path) -> None:
    with pytest.raises(NotALogDirError, match="no such directory"):
        Target((tmp_path / "none",)).find("orders")
    target = Target((tmp_path / "new",), NewTopics(2, {"retention.ms": "5"}))
    topic = target.find("orders")
    assert (topic.partition_count, len(topic.dirs)) == (2, 2)
    assert target.find("orders") == topic
    with open_logs(tmp_path / "new") as logs:
        assert logs.topic("orders").config.retention_ms == 5
    config = BrokerConfig.parse({"log.segment.bytes": 5000, "message.max.bytes": 700})
    rules = Target((tmp_path / "new",), config=config).find("orders").rules
    assert (rules.segment_bytes, rules.max_message_bytes) == (5000, 700)
    with Target((tmp_path / "new",), config=config).open() as logs:
        assert logs.catalog.topic("orders").config.segment_bytes == 5000

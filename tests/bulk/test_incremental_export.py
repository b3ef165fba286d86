"""Incremental exports: each record once, whatever happened to the topics in between."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from stratalog import LogDir
from stratalog.bulk import read_planning
from stratalog.bulk.export import FileSpec, export, plan_export, run_export
from stratalog.bulk.incremental import (
    STATE_FILE,
    ExportedUpTo,
    ExportState,
    IncrementalTarget,
    StagedFile,
    decode_state,
    encode_state,
)
from stratalog.bulk.splits import segment_ranges
from stratalog.errors import (
    ConfigError,
    CorruptCheckpointError,
    DataLossError,
    LockedError,
    PartitionGoneError,
    StorageError,
    UnsupportedError,
)
from stratalog.format.names import TopicPartition
from stratalog.format.uuids import METADATA_TOPIC_ID
from stratalog.storage.disk import Disk, SystemCalls
from tests.bulk.options import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from stratalog.bulk.export import ExportResult

Offsets = list[tuple[str, int, int]]
FORMATS = [
    FileSpec(),
    FileSpec("jsonl", has_headers=True),
    FileSpec(codec="zstd", is_text=True, by_date=False),
]


def append(path: Path, count: int, topic: str = "orders", partition: int = 0) -> None:
    with LogDir.open(path) as logs:
        if topic not in logs.topics:
            logs.create_topic(topic, 2)
        for number in range(count):
            logs.append(topic, b"%d" % number, partition=partition, timestamp=number * 50_000_000)


def run(
    logs: Path, target: Path, spec: FileSpec | None = None, options: Mapping[str, str] | None = None
) -> ExportResult:
    return export(reading(logs, options), target, spec, incremental=True)


def exported(target: Path) -> Offsets:
    """Topic, partition and offset of every record, sorted."""
    found: Offsets = []
    for file in target.rglob("part-*"):
        (topic,) = (part[6:] for part in file.parts if part.startswith("topic="))
        if file.suffix == ".jsonl":
            rows = [json.loads(line) for line in file.read_text().splitlines()]
        else:
            rows = pq.ParquetFile(file).read(["partition", "offset"]).to_pylist()
        found += [(topic, row["partition"], row["offset"]) for row in rows]
    return sorted(found)


def expected(*ranges: tuple[str, int, int, int]) -> Offsets:
    return sorted(
        (topic, partition, offset)
        for topic, partition, start, end in ranges
        for offset in range(start, end)
    )


@pytest.mark.parametrize("spec", FORMATS, ids=["parquet", "jsonl", "text"])
def test_each_record_is_exported_once(spec: FileSpec, tmp_path: Path) -> None:
    logs, target = tmp_path / "logs", tmp_path / "out"
    append(logs, 5)
    assert run(logs, target, spec).records == 5
    assert run(logs, target, spec).records == 0
    append(logs, 3)
    append(logs, 2, partition=1)
    result = run(logs, target, spec)
    assert result.records == 5
    assert [tuple(each) for each in result.partitions] == [("orders", 0, 5, 8), ("orders", 1, 0, 2)]
    assert exported(target) == expected(("orders", 0, 0, 8), ("orders", 1, 0, 2))
    assert not list(target.glob("_stratalog-*"))


def test_topics_and_partitions_may_be_added(tmp_path: Path) -> None:
    logs, target = tmp_path / "logs", tmp_path / "out"
    append(logs, 4)
    latest = {"startingOffsets": '{"orders":{"0":3,"1":0}}'}
    assert run(logs, target, options=latest).records == 1
    with LogDir.open(logs) as opened:
        opened.add_partitions("orders", 3)
    append(logs, 2, partition=2)
    append(logs, 6, "payments")
    assert run(logs, target).records == 8
    assert exported(target) == expected(
        ("orders", 0, 3, 4), ("orders", 2, 0, 2), ("payments", 0, 0, 6)
    )


def test_a_partition_that_was_added_is_exported_from_its_start(tmp_path: Path) -> None:
    logs, target = tmp_path / "logs", tmp_path / "out"
    append(logs, 4)
    since = {"startingTimestamp": "150000000", "startingOffsetsByTimestampStrategy": "latest"}
    assert run(logs, target, options=since).records == 1
    with LogDir.open(logs) as opened:
        opened.add_partitions("orders", 3)
    append(logs, 2, partition=2)
    assert run(logs, target, options=since).records == 2


def test_an_end_in_time_is_continued_from(tmp_path: Path) -> None:
    logs, target = tmp_path / "logs", tmp_path / "out"
    append(logs, 5)
    assert run(logs, target, options={"endingTimestamp": "100000000"}).records == 2
    assert run(logs, target, options={"endingTimestamp": "50000000"}).records == 0
    assert run(logs, target).records == 3
    assert exported(target) == expected(("orders", 0, 0, 5))


def test_open_transactions_wait_for_their_end(tmp_path: Path) -> None:
    logs, target = tmp_path / "logs", tmp_path / "out"
    committed = {"kafka.isolation.level": "read_committed"}
    append(logs, 2)
    with LogDir.open(logs) as opened:
        with opened.transaction("t") as transaction:
            transaction.append("orders", b"x", partition=0).result()
            opened.append("orders", b"y", partition=0)
            assert run(logs, target, options=committed).records == 2
            assert run(logs, target / "other").partitions[0].end_offset == 4
            assert run(logs, target / "other", options=committed).records == 0
        assert run(logs, target, options=committed).records == 2
    assert exported(target / "topic=orders") == expected(("orders", 0, 0, 4))


# -- lost records


def test_records_that_were_deleted_meanwhile(tmp_path: Path) -> None:
    logs, target = tmp_path / "logs", tmp_path / "out"
    append(logs, 5)
    run(logs, target)
    append(logs, 5)
    with LogDir.open(logs) as opened:
        opened.delete_records("orders", 0, 8)
    before = (target / STATE_FILE).read_bytes()
    with pytest.raises(DataLossError, match="offsets 5 to 7 of orders-0 were deleted"):
        run(logs, target)
    assert (target / STATE_FILE).read_bytes() == before
    result = run(logs, target, options={"failOnDataLoss": "false"})
    (lost,) = result.lost
    assert (lost.topic_partition, lost.start, lost.end) == (TopicPartition("orders", 0), 5, 8)
    assert exported(target) == expected(("orders", 0, 0, 5), ("orders", 0, 8, 10))
    assert run(logs, target).lost == ()


def test_a_partition_that_is_moved_while_its_export_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, other, target = tmp_path / "logs", tmp_path / "other", tmp_path / "out"
    append(logs, 5)
    append(other, 1, "more")
    options = {"path": f"{logs},{other}", "subscribe": "orders", "failOnDataLoss": "false"}
    run(logs, target, options=options)
    append(logs, 5)
    with LogDir.open(logs) as opened:
        opened.delete_records("orders", 0, 8)
    checkpoint = (logs / "log-start-offset-checkpoint").read_bytes()

    def moved(*given: Any, **more: Any) -> Any:
        if (logs / "orders-0").exists():
            (other / "log-start-offset-checkpoint").write_bytes(checkpoint)
            (logs / "orders-0").rename(other / "orders-0")
            raise PartitionGoneError(logs / "orders-0")
        return segment_ranges(*given, **more)

    monkeypatch.setattr(read_planning, "segment_ranges", moved)
    result = run(logs, target, options=options)
    assert [(lost.start, lost.end) for lost in result.lost] == [(5, 8)]
    assert exported(target) == expected(("orders", 0, 0, 5), ("orders", 0, 8, 10))


def test_a_topic_that_was_created_again(tmp_path: Path) -> None:
    logs, target = tmp_path / "logs", tmp_path / "out"
    append(logs, 5)
    run(logs, target)
    with LogDir.open(logs) as opened:
        opened.delete_topic("orders")
    append(logs, 7)
    with pytest.raises(DataLossError, match="topic orders was deleted and created again"):
        run(logs, target)
    result = run(logs, target, options={"failOnDataLoss": "false"})
    assert result.records == 7
    assert {lost.end for lost in result.lost} == {None}
    assert run(logs, target).records == 0


def test_a_log_that_is_shorter_than_what_was_exported(tmp_path: Path) -> None:
    logs, target = tmp_path / "logs", tmp_path / "out"
    append(logs, 5)
    run(logs, target)
    with LogDir.open(logs) as opened:
        opened.partition("orders", 0).truncate_to(3)
    with pytest.raises(DataLossError, match="orders-0 ends at offset 3, but was exported up to 5"):
        run(logs, target)
    assert run(logs, target, options={"failOnDataLoss": "false"}).records == 0
    append(logs, 1)
    assert run(logs, target).partitions[0][2:] == (3, 4)


def test_topics_without_an_id_are_not_compared(tmp_path: Path) -> None:
    logs, target = tmp_path / "logs", tmp_path / "out"
    append(logs, 5)
    for file in logs.rglob("partition.metadata"):
        file.unlink()
    run(logs, target)
    append(logs, 1)
    assert run(logs, target).records == 1


# -- the target


def test_the_target_belongs_to_one_kind_of_export(tmp_path: Path) -> None:
    logs, target = tmp_path / "logs", tmp_path / "out"
    append(logs, 1)
    export(reading(logs), tmp_path / "plain")
    with pytest.raises(ConfigError, match="is not empty, and was not written by incremental"):
        run(logs, tmp_path / "plain")
    run(logs, target)
    for appends in (False, True):
        with pytest.raises(ConfigError, match="has incremental exports"):
            export(reading(logs), target, FileSpec(appends=appends))
    for other in (FileSpec("jsonl"), FileSpec(by_date=False), FileSpec(is_text=True)):
        with pytest.raises(ConfigError, match="use the same options"):
            run(logs, target, other)
    assert run(logs, target, FileSpec(codec="zstd")).records == 0
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not a directory"):
        run(logs, tmp_path / "file")


def test_one_export_at_a_time(tmp_path: Path) -> None:
    logs, target = tmp_path / "logs", tmp_path / "out"
    append(logs, 1)
    with (
        IncrementalTarget(target, FileSpec().layout),
        pytest.raises(LockedError, match="another incremental export is writing to it"),
    ):
        run(logs, target)
    assert run(logs, target).records == 1


def test_the_state_is_read_as_it_was_written() -> None:
    partitions = {
        TopicPartition("a", 0): ExportedUpTo(None, 5),
        TopicPartition("a.b", 11): ExportedUpTo(METADATA_TOPIC_ID, 0),
    }
    state = ExportState(FileSpec().layout, partitions, (StagedFile("_s/x", "topic=a/x"),))
    assert decode_state(encode_state(state)) == state


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"{", CorruptCheckpointError),
        (b"[]", CorruptCheckpointError),
        (b'{"version":1}', CorruptCheckpointError),
        (b'{"version":1,"layout":{},"partitions":[{}],"moving":[]}', CorruptCheckpointError),
        (b'{"version":1,"layout":{},"partitions":[],"moving":[1]}', CorruptCheckpointError),
        (b'{"version":2}', UnsupportedError),
    ],
)
def test_a_state_that_cannot_be_used(data: bytes, error: type[Exception], tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_bytes(data)
    with pytest.raises(error, match=STATE_FILE):
        IncrementalTarget(tmp_path, FileSpec().layout)
    assert (tmp_path / STATE_FILE).read_bytes() == data


def test_a_file_that_vanished_is_reported(tmp_path: Path) -> None:
    state = ExportState(FileSpec().layout, {}, (StagedFile("_stratalog-1/x", "topic=a/x"),))
    (tmp_path / STATE_FILE).write_bytes(encode_state(state))
    with pytest.raises(CorruptCheckpointError, match="topic=a/x is missing"):
        IncrementalTarget(tmp_path, FileSpec().layout)


# -- a disk that fails


class FailingDisk:
    """Lets so many calls succeed, and then fails one."""

    def __init__(self, calls: int) -> None:
        self._left = calls
        changes = ("open", "pwrite", "fsync", "rename", "unlink", "mkdir", "rmdir")
        plain = SystemCalls()
        counted = {name: partial(self._call, getattr(plain, name)) for name in changes}
        self.disk = Disk(replace(plain, **counted))

    def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        self._left -= 1
        if self._left == -1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(*args)

    @property
    def has_failed(self) -> bool:
        return self._left < 0


@pytest.mark.slow
def test_a_full_disk_at_any_time(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    append(logs, 4)
    spec = FileSpec("jsonl")
    for calls in range(100):
        target, failing = tmp_path / f"out-{calls}", FailingDisk(calls)
        with (
            suppress(StorageError),  # and no other
            IncrementalTarget(target, spec.layout, disk=failing.disk) as opened,
        ):
            run_export(plan_export(reading(logs), spec, opened), opened)
        found = exported(target)
        assert len(found) == len(set(found))
        run(logs, target, spec)
        assert exported(target) == expected(("orders", 0, 0, 4)), calls
        if not failing.has_failed:
            break
    assert 20 < calls < 99

"""Indexes built again are what recovery writes, byte for byte; what is right is left alone."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.format.txn_index import ENTRY_BYTES
from stratalog.log_dir import LogDir
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.maintenance.reindex import IndexChange, Reindexed, plan_reindex, reindex_segment
from stratalog.storage.disk import Disk
from tests.golden.cases import GOLDEN_DIR, GoldenCase, all_cases
from tests.log.building import copy_partition
from tests.looping import for_each
from tests.storage.segments import files_of

if TYPE_CHECKING:
    from pathlib import Path

UNCHANGED = IndexChange.UNCHANGED
NOW_MS = 1_700_000_000_000
DERIVED = (".index", ".timeindex", ".txnindex")


def reindex(
    partition: Path, interval_bytes: int = 4096, *, is_dry_run: bool = False
) -> list[Reindexed]:
    tasks = plan_reindex(partition, interval_bytes=interval_bytes)
    return [reindex_segment(task, Disk(), is_dry_run=is_dry_run) for task in tasks]


def recovered(partition: Path, into: Path, interval_bytes: int) -> dict[str, bytes]:
    """What recovery makes of a copy that has no index at all."""
    copy = into / "recovered" / partition.name
    shutil.copytree(partition, copy)
    for path in copy.iterdir():
        if path.suffix in DERIVED:
            path.unlink()
    config = LogConfig(index_interval_bytes=interval_bytes)
    open_log(copy, config, disk=Disk(), now_ms=lambda: NOW_MS, point=LoadPoint()).close()
    return files_of(copy, *DERIVED)


@pytest.mark.slow
@pytest.mark.parametrize("interval_bytes", [0, 4096])
@for_each("case", [case for case in all_cases() if not case.is_unclean])
def test_the_same_bytes_as_recovery(case: GoldenCase, interval_bytes: int, tmp_path: Path) -> None:
    expected = recovered(case.partition_dir, tmp_path, interval_bytes)
    partition = copy_partition(case.partition_dir, tmp_path)
    for path in list(partition.iterdir()):
        if path.suffix in DERIVED:
            path.unlink()
    assert not [each.failure for each in reindex(partition, interval_bytes) if each.failure]
    assert files_of(partition, *DERIVED) == expected


@pytest.mark.parametrize("name", ["multiseg", "txn", "txn-simple", "index1", "idempotent"])
def test_kafkas_own_indexes_are_right_already(name: str, tmp_path: Path) -> None:
    """Those of logs that Kafka wrote batch by batch, with the interval it was told."""
    (source,) = (GOLDEN_DIR / name).glob("*-0")
    partition = copy_partition(source, tmp_path)
    config = GoldenCase(name).manifest["topic_config"]
    interval_bytes = int(config.get("index.interval.bytes", 4096))
    before = {path.name: path.stat().st_mtime_ns for path in partition.iterdir()}
    done = reindex(partition, interval_bytes)
    changes = {change.change for each in done for change in each.changes}
    assert changes == {IndexChange.UNCHANGED}
    assert {path.name: path.stat().st_mtime_ns for path in partition.iterdir()} == before


def test_a_dry_run_tells_and_changes_nothing(tmp_path: Path) -> None:
    (source,) = (GOLDEN_DIR / "multiseg").glob("*-0")
    partition = copy_partition(source, tmp_path)
    (partition / "00000000000000000000.index").unlink()
    (partition / "00000000000000000156.index").write_bytes(b"\xff" * 80)
    (partition / "00000000000000000156.txnindex").write_bytes(b"x")
    before = files_of(partition)
    told = {
        os.path.basename(change.path): (change.change, change.bytes_before)  # noqa: PTH119
        for each in reindex(partition, 256, is_dry_run=True)
        for change in each.changes
    }
    assert told["00000000000000000000.index"] == (IndexChange.CREATED, 0)
    assert told["00000000000000000156.index"] == (IndexChange.REPLACED, 80)
    assert told["00000000000000000156.txnindex"] == (IndexChange.REMOVED, 1)
    assert files_of(partition) == before


def test_a_segment_damaged_in_its_middle_is_left_alone(tmp_path: Path) -> None:
    (source,) = (GOLDEN_DIR / "multiseg").glob("*-0")
    partition = copy_partition(source, tmp_path)
    log = partition / "00000000000000000156.log"
    raw = bytearray(log.read_bytes())
    raw[5000] ^= 1
    log.write_bytes(raw)
    (partition / "00000000000000000156.index").write_bytes(b"")
    before = files_of(partition)
    damaged = [each for each in reindex(partition, 256) if each.failure]
    assert [each.path for each in damaged] == [str(log)]
    assert "CRC" in damaged[0].failure
    assert files_of(partition) == before


def test_a_torn_tail_is_as_good_as_absent(tmp_path: Path) -> None:
    (source,) = (GOLDEN_DIR / "multiseg").glob("*-0")
    partition = copy_partition(source, tmp_path)
    log = partition / "00000000000000001485.log"
    log.write_bytes(log.read_bytes() + b"\x00\x00\x00\x00\x00\x00\x05\xdc\x00\x00\x01")
    size = log.stat().st_size
    expected = files_of(source, *DERIVED)
    for path in list(partition.iterdir()):
        if path.suffix in DERIVED:
            path.unlink()
    config = GoldenCase("multiseg").manifest["topic_config"]
    reindex(partition, int(config["index.interval.bytes"]))
    assert files_of(partition, *DERIVED) == expected
    assert log.stat().st_size == size


def test_transactions_that_began_before_the_segment_without_its_snapshot(tmp_path: Path) -> None:
    (source,) = (GOLDEN_DIR / "txn").glob("*-0")
    partition = copy_partition(source, tmp_path)
    expected = files_of(partition, ".txnindex")
    for path in list(partition.iterdir()):
        if path.suffix in {".snapshot", ".txnindex"}:
            path.unlink()
    reindex(partition)
    assert files_of(partition, ".txnindex") == expected


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_transaction_index_that_lacks_an_entry_is_replaced(slot: int, tmp_path: Path) -> None:
    """The first two transactions began in the segment before."""
    (source,) = (GOLDEN_DIR / "txn").glob("*-0")
    partition = copy_partition(source, tmp_path)
    before = files_of(partition)
    path = partition / "00000000000000000011.txnindex"
    raw = path.read_bytes()
    path.write_bytes(raw[: slot * ENTRY_BYTES] + raw[(slot + 1) * ENTRY_BYTES :])
    changes = [change for each in reindex(partition) for change in each.changes]
    assert [change.path for change in changes if change.is_change] == [str(path)]
    assert files_of(partition) == before


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("00000000000000000156.index", b"\0\0\0\x0f\0\0\x01\x02"),  # no batch begins there
        ("00000000000000000156.index", b"\0" * 16),  # not trimmed
        ("00000000000000000156.timeindex", b""),  # the largest timestamp is missing
    ],
    ids=["wrong entry", "zeros", "no last entry"],
)
def test_what_is_not_right_is_replaced(name: str, data: bytes, tmp_path: Path) -> None:
    (source,) = (GOLDEN_DIR / "multiseg").glob("*-0")
    partition = copy_partition(source, tmp_path)
    before = files_of(partition)
    (partition / name).write_bytes(data)
    changes = [change for each in reindex(partition, 256) for change in each.changes]
    assert [change.path for change in changes if change.is_change] == [str(partition / name)]
    assert files_of(partition) == before


def test_a_log_that_was_closed_after_every_append_is_right(tmp_path: Path) -> None:
    """As in Kafka, the bytes to the next entry are counted again, and each stop leaves a time."""
    for number in range(8):
        with LogDir.open(tmp_path, background=False) as logs:
            if not number:
                logs.create_topic("t")
            logs.append("t", bytes(2000), timestamp=NOW_MS + number)
    partition = tmp_path / "t-0"
    before = files_of(partition, *DERIVED)
    assert before["00000000000000000000.index"] == b""
    (done,) = reindex(partition)
    assert [change.change for change in done.changes] == [
        IndexChange.KEPT,
        IndexChange.KEPT,
        UNCHANGED,
    ]
    assert files_of(partition, *DERIVED) == before
    for task in plan_reindex(partition, is_forced=True):
        forced = reindex_segment(task, Disk())
        assert [change.change for change in forced.changes[:2]] == [IndexChange.REPLACED] * 2
    assert len(files_of(partition, ".index")["00000000000000000000.index"]) == 24

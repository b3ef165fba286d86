"""What Kafka's loader makes of a golden directory, ours makes too."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.format.checkpoint import decode_leader_epochs
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk
from tests.golden.cases import GoldenCase, all_cases
from tests.golden.writing import (
    DERIVED,
    WALL_CLOCK_MS,
    config_of,
    differences,
    is_cleaned,
    is_old_format,
    partition_of,
)
from tests.looping import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog

EPOCHS = "leader-epoch-checkpoint"
UNCLEAN = [case for case in all_cases() if case.is_unclean]
OTHER_INDEX_RULES = {
    "real09-gzip": "0.9 indexed the first offset of an append",
    "real09-none": "0.9 indexed the first offset of an append",
    "real09-snappy": "0.9 indexed the first offset of an append",
    "v0-none": "one entry at most per append, which had several messages",
    "v1-none": "one entry at most per append, which had several messages",
    "v1-logappend": "one entry at most per append, which had several messages",
    "epochs": "the broker was restarted, which begins the index interval again",
}
BEFORE_PRODUCER_EXPIRY_MS = 1_700_000_003_000


def copy_of(partition: Path, into: Path) -> Path:
    return shutil.copytree(partition, into / partition.name)


def recover(
    path: Path,
    config: LogConfig,
    point: LoadPoint,
    now_ms: int = BEFORE_PRODUCER_EXPIRY_MS,
) -> PartitionLog:
    return open_log(path, config, disk=Disk(), now_ms=lambda: now_ms, point=point)


def drop_derived(path: Path) -> None:
    dropped = [file for file in path.iterdir() if file.name.endswith(DERIVED)]
    assert dropped
    for file in dropped:
        file.unlink()


def config_for(case: GoldenCase) -> LogConfig:
    return LogConfig() if case.name.startswith("real09-") else config_of(case)


@pytest.mark.slow
@for_each("case", all_cases())
def test_everything_derived_is_built_again(case: GoldenCase, tmp_path: Path) -> None:
    """Indexes, epochs and producer state, from nothing but the logs."""
    kafka = partition_of(case)
    path = copy_of(case.partition_dirs()[0], tmp_path)
    drop_derived(path)
    point = LoadPoint(log_start_offset=case.manifest.get("delete_records_to") or 0)
    recover(path, config_for(case), point).close()
    found = differences(path, kafka)
    check_epochs(case, path, kafka)
    found.pop(EPOCHS, None)
    if case.name in OTHER_INDEX_RULES or is_cleaned(case):
        found = {name: how for name, how in found.items() if not name.endswith("index")}
    if is_old_format(case) or is_cleaned(case) or case.name == "epochs":
        found = {name: how for name, how in found.items() if not name.endswith(".snapshot")}
        check_producers(case, path)
    assert found == {}


def check_epochs(case: GoldenCase, path: Path, kafka: Path) -> None:
    """The log tells each epoch that wrote records which are still there, and where the first of
    them lies; a broker also knows leaders that wrote nothing."""
    recovered = decode_leader_epochs((path / EPOCHS).read_bytes())
    written = {
        entry["leaderEpoch"] for entry in case.loaddir["records"] if entry["leaderEpoch"] >= 0
    }
    known = decode_leader_epochs((kafka / EPOCHS).read_bytes()) if (kafka / EPOCHS).exists() else ()
    expected = [entry for entry in known if entry.epoch in written]
    assert [entry.epoch for entry in recovered] == [entry.epoch for entry in expected]
    if not is_cleaned(case):
        assert list(recovered) == expected


def check_producers(case: GoldenCase, path: Path) -> None:
    """At the end of the log, whatever snapshots there are on the way: retention, compaction and
    restarts remove some."""
    expected = {producer["producerId"]: producer for producer in case.loaddir["producers"]}
    with PartitionView(path) as view:
        found = {entry.producer_id: entry for entry in view.producers}
    assert found.keys() == expected.keys()
    for producer_id, entry in found.items():
        assert entry.producer_epoch == expected[producer_id]["producerEpoch"]
        assert entry.last_sequence == expected[producer_id]["lastSeq"]
        assert entry.last_offset == expected[producer_id]["lastDataOffset"]
        assert entry.timestamp == expected[producer_id]["lastTimestamp"]
        assert entry.coordinator_epoch == expected[producer_id]["coordinatorEpoch"]


@pytest.mark.slow
@for_each("case", UNCLEAN)
@pytest.mark.parametrize("keeps_derived", [True, False], ids=["as found", "logs only"])
def test_after_a_kill(case: GoldenCase, keeps_derived: bool, tmp_path: Path) -> None:
    """Cut where Kafka cut, later segments gone, the rest rebuilt byte for byte."""
    before, after = case.partition_dirs()
    path = copy_of(before, tmp_path)
    if not keeps_derived:
        drop_derived(path)
    with recover(path, config_of(case), LoadPoint()) as log:
        assert log.log_end_offset == case.loaddir["logEndOffset"]
    assert differences(path, after) == {}


@for_each("case", UNCLEAN)
def test_only_what_the_recovery_point_requires(case: GoldenCase, tmp_path: Path) -> None:
    """With the base offset of the last segment as recovery point, only that one is checked. Damage
    before it is not looked for, as in Kafka."""
    before, after = case.partition_dirs()
    path = copy_of(before, tmp_path)
    bases = sorted(int(log.stem) for log in path.glob("*.log"))
    with recover(path, config_of(case), LoadPoint(recovery_point=bases[-1])) as log:
        assert log.recovery_point == bases[-1]
    last = f"{bases[-1]:020d}"
    if (after / f"{last}.log").exists():
        found = differences(path, after)
        assert [name for name in found if name.startswith(last)] == []


@pytest.mark.slow
@for_each("case", all_cases())
def test_the_loader_finds_and_leaves_what_kafka_does(case: GoldenCase, tmp_path: Path) -> None:
    """Kafka's loader was run with default settings on the cleanly stopped directories, and on those
    of killed brokers as after an unclean stop; and closed what it had loaded."""
    expected = case.loaddir
    path = copy_of(case.partition_dirs()[0], tmp_path)
    point = LoadPoint(was_clean=not case.is_unclean)
    with recover(path, LogConfig(), point, WALL_CLOCK_MS) as log:
        assert log.log_start_offset == expected["logStartOffset"]
        assert log.log_end_offset == expected["logEndOffset"]
        assert log.last_stable_offset == expected["lastStableOffset"]
        assert [[entry.epoch, entry.start_offset] for entry in log.epochs.entries] == (
            expected["epochs"]
        )
        assert sorted(log.producers.producers) == [
            producer["producerId"] for producer in expected["producers"]
        ]
        segments = {segment.base_offset: segment for segment in log.maintenance.segments}
        assert [segment["baseOffset"] for segment in expected["segments"]] == list(segments)
        for segment in expected["segments"]:
            assert segments[segment["baseOffset"]].size_bytes == segment["size"]
    files = {f"{file.name} {file.stat().st_size}" for file in path.iterdir()}
    assert files - {"partition.metadata 43"} == set(expected["filesAfterClose"])


@pytest.mark.parametrize("was_clean", [True, False])
@for_each("case", [case for case in all_cases() if case.name == "epochs"])
def test_corrupt_leader_epochs_are_rebuilt_as_the_broker_wrote_them(
    case: GoldenCase, tmp_path: Path, *, was_clean: bool
) -> None:
    path = copy_of(partition_of(case), tmp_path)
    good = (path / EPOCHS).read_bytes()
    assert len(decode_leader_epochs(good)) == 3
    (path / EPOCHS).write_bytes(good[:-3] + b"x\n")
    with recover(path, config_of(case), LoadPoint(was_clean=was_clean)) as log:
        assert (path / EPOCHS).read_bytes() == good
        assert log.leader_epoch == 6

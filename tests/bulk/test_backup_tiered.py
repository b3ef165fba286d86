"""Backups of a broker with tiered topics: remote storage is neither copied nor changed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stratalog
from stratalog.bulk import backup as backup_module
from stratalog.bulk import backup_cut
from stratalog.bulk.backup import backup
from stratalog.bulk.restore import Selection, restore
from stratalog.errors import BackupError
from stratalog.format.batch import BatchHeader
from stratalog.format.names import (
    CLUSTER_METADATA_TOPIC,
    REMOTE_METADATA_TOPIC,
    TopicPartition,
)
from tests.cli.command import inside
from tests.golden_tiered import TieredCase, consumed, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
OVERLAP = TopicPartition("overlap", 0)
LOCAL_START = 168


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TieredCase:
    cases = unpack(tmp_path_factory.mktemp("tiered"))
    return next(each for each in cases if str(each) == "lts-basic")


@pytest.fixture(scope="module")
def where(case: TieredCase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("backups")
    backup(case.log_dirs, path)
    return path


def offsets_in(case: TieredCase, path: Path, topic: str, number: int) -> list[int]:
    logs = stratalog.open_dirs(path, remote=case.remote)
    with logs.partition(topic, number) as view:
        return [record.offset for record in view.read()]


def check_complete(case: TieredCase, path: Path) -> None:
    for topic, number, facts in case.partitions():
        expected = [each[0] for each in consumed(facts, "read_uncommitted")]
        assert offsets_in(case, path, topic, number) == expected, (topic, number)


def test_a_restore_up_to_a_time_keeps_what_is_known_of_remote_segments(
    case: TieredCase, where: Path, tmp_path: Path
) -> None:
    """The time is after all records, but before some segments were copied to the store."""
    (log_dir,) = case.log_dirs
    times = []
    with stratalog.open_dirs(log_dir) as logs:
        for view in logs.partitions_of(REMOTE_METADATA_TOPIC):
            times += [record.timestamp for record in view.read()]
    until_ms = sorted(times)[len(times) * 2 // 3]
    result = restore(where, [tmp_path / "out"], Selection(until_ms=until_ms))
    cut = {each.topic for each in result.partitions if each.end_offset < each.backup_end_offset}
    assert REMOTE_METADATA_TOPIC not in cut
    assert not any(each.may_have_later_remote_records for each in result.partitions)
    check_complete(case, tmp_path / "out")


def test_remote_records_after_the_time_are_reported(
    case: TieredCase, where: Path, tmp_path: Path
) -> None:
    result = restore(where, [tmp_path / "out"], Selection(until_ms=1000))
    found = {each[:2] for each in result.partitions if each.may_have_later_remote_records}
    assert OVERLAP in found
    assert all(
        offsets_in(case, tmp_path / "out", *at) == [] or at in found
        for at in {(topic, number) for topic, number, _ in case.partitions()}
    )


def test_the_command_warns_of_remote_records(where: Path, tmp_path: Path) -> None:
    shown = inside("restore", where, tmp_path / "out", "--until", "1970-01-01T00:00:01Z")
    assert "warning: overlap-0: remote storage, which a restore does not change" in shown.stderr


def test_a_log_is_not_truncated_in_remote_storage(
    case: TieredCase, where: Path, tmp_path: Path
) -> None:
    for offset in (0, 100, LOCAL_START - 1):
        with pytest.raises(BackupError, match=rf"give offset {LOCAL_START} or a higher one"):
            restore(where, [tmp_path / "no"], Selection(to_offsets=((OVERLAP, offset),)))
        assert not (tmp_path / "no").exists()
    for offset in (LOCAL_START, LOCAL_START + 60):
        out = tmp_path / str(offset)
        result = restore(where, [out], Selection(to_offsets=((OVERLAP, offset),)))
        end = next(each.end_offset for each in result.partitions if each[:2] == OVERLAP)
        assert LOCAL_START <= end <= offset
        assert offsets_in(case, out, *OVERLAP) == list(range(end))


@pytest.mark.parametrize("topic", [REMOTE_METADATA_TOPIC, CLUSTER_METADATA_TOPIC, "unknown"])
def test_what_cannot_be_truncated(topic: str, where: Path, tmp_path: Path) -> None:
    selection = Selection(to_offsets=((TopicPartition(topic, 0), 5),))
    with pytest.raises(BackupError, match=f"{topic}:0"):
        restore(where, [tmp_path / "out"], selection)
    assert not (tmp_path / "out").exists()


def test_remote_metadata_of_a_live_broker_are_later_than_its_data(
    case: TieredCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker moves a segment to remote storage while the backup is running."""
    (source,) = case.log_dirs
    live, out = Path(shutil.copytree(source, tmp_path / "live")), tmp_path / "out"
    (events,) = (live / f"{REMOTE_METADATA_TOPIC}-0").glob("*.log")
    after = events.read_bytes()
    *_, last = batch_positions(after)
    events.write_bytes(after[:last])
    copy = backup_module._BackupJob._copy

    def copy_then_append(self: Any, files: Any, saved: Any, cut: Any) -> set[str]:
        gone = copy(self, files, saved, cut)
        events.write_bytes(after)
        return gone

    monkeypatch.setattr(backup_cut, "is_locked", lambda _path: True)
    monkeypatch.setattr(backup_module._BackupJob, "_copy", copy_then_append)
    (saved,) = backup([live], tmp_path / "backups").dirs
    assert len({file.path for file in saved.files}) == len(saved.files)
    ends = {each[:2]: each.end_offset for each in saved.partitions}
    restore(tmp_path / "backups", [out])
    restored, *_ = sorted((out / f"{REMOTE_METADATA_TOPIC}-0").glob("*.log"))
    assert restored.read_bytes() == after
    with stratalog.open_dirs(out) as logs:
        assert (
            logs.partition(REMOTE_METADATA_TOPIC, 0).log_end_offset
            == ends[REMOTE_METADATA_TOPIC, 0]
        )
    check_complete(case, out)


def batch_positions(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        yield position
        position += BatchHeader.unpack(data, position).size_bytes

"""A log whose older part a broker has in remote storage: its start and epochs stay known."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from tests.handmade import Head, Rec, batch, write_segment
from tests.opening import open_logs

if TYPE_CHECKING:
    from pathlib import Path

STARTS = "log-start-offset-checkpoint"
EPOCHS = "leader-epoch-checkpoint"


def tiered(root: Path, start: int | None) -> Path:
    """Segments from 1000 on; epochs from 400 on, as the log starts there in remote storage."""
    path = root / "tiered-0"
    for base, epoch in ((1000, 4), (1001, 6)):
        log = write_segment(
            path, base, batch(base, [Rec(0, 0, b"k", b"v")], Head(leader_epoch=epoch))
        )
        log.with_suffix(".index").touch()
        log.with_suffix(".timeindex").write_bytes(struct.pack(">qi", 1000, 0))
    (path / EPOCHS).write_text("0\n3\n2 400\n4 700\n6 1001\n")
    entries = "0\n0\n" if start is None else f"0\n1\ntiered 0 {start}\n"
    (root / STARTS).write_text(entries)
    (root / ".kafka_cleanshutdown").touch()
    return path


def test_start_and_epochs_below_the_first_segment_are_kept(tmp_path: Path) -> None:
    path = tiered(tmp_path, 400)
    with open_logs(tmp_path) as logs:
        assert logs.partition("tiered", 0).log_start_offset == 1000
        assert logs.append("tiered", b"new").offset == 1002
    assert (tmp_path / STARTS).read_text() == "0\n1\ntiered 0 400\n"
    assert (path / EPOCHS).read_text() == "0\n3\n2 400\n4 700\n6 1001\n"


def test_a_remote_log_may_start_at_zero(tmp_path: Path) -> None:
    path = tiered(tmp_path, 0)
    with open_logs(tmp_path) as logs:
        logs.append("tiered", b"new")
    assert (tmp_path / STARTS).read_text() == "0\n1\ntiered 0 0\n"
    assert (path / EPOCHS).read_text() == "0\n3\n2 400\n4 700\n6 1001\n"


@pytest.mark.parametrize("start", [None, -1])
def test_without_an_entry_the_log_starts_with_its_first_segment(
    tmp_path: Path, start: int | None
) -> None:
    path = tiered(tmp_path, start)
    with open_logs(tmp_path) as logs:
        logs.append("tiered", b"new")
    assert (tmp_path / STARTS).read_text() == "0\n0\n"
    assert (path / EPOCHS).read_text() == "0\n2\n4 1000\n6 1001\n"


def test_a_start_inside_the_log_takes_the_place_of_the_remote_one(tmp_path: Path) -> None:
    path = tiered(tmp_path, 400)
    with open_logs(tmp_path) as logs:
        logs.append("tiered", b"new")
        logs.delete_records("tiered", 0, before_offset=1003)
    assert (tmp_path / STARTS).read_text() == "0\n1\ntiered 0 1003\n"
    assert (path / EPOCHS).read_text() == "0\n1\n6 1003\n"


def test_deleted_records_do_not_come_back_when_their_segments_go(tmp_path: Path) -> None:
    tiered(tmp_path, 400)
    with open_logs(tmp_path) as logs:
        logs.append("tiered", b"new")
        assert logs.delete_records("tiered", 0, before_offset=1001) == 1001
        assert logs.partition("tiered", 0).maintenance.delete_oldest(1) == 1001
    assert (tmp_path / STARTS).read_text() == "0\n1\ntiered 0 1001\n"


def test_nothing_to_delete_leaves_the_remote_start(tmp_path: Path) -> None:
    tiered(tmp_path, 400)
    with open_logs(tmp_path) as logs:
        assert logs.delete_records("tiered", 0, before_offset=1000) == 1000
    assert (tmp_path / STARTS).read_text() == "0\n1\ntiered 0 400\n"

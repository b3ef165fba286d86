"""Which producer snapshots are worth a note: not those that every log has after a few restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.log_dir import LogDir
from stratalog.maintenance.verify.directory import verify_directory
from stratalog.maintenance.verify.partition import stray_snapshots

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("snapshots", "bases", "strays"),
    [
        ([], [0], []),
        ([100], [0], []),  # closed once
        ([100, 200], [0], []),  # opened at 100, closed at 200
        ([50, 100, 200], [0], [50]),  # which opening at 100 would have removed
        ([100, 150, 200], [0, 150], []),  # rolled meanwhile
        ([50, 100, 150, 200], [0, 150], [50]),
        ([100, 150], [0, 150], []),  # not closed yet
        ([50, 100, 150], [0, 150], [50]),
        ([100, 150], [150], []),  # retention took the segment around 100
        ([40, 100, 150], [150], [40]),
        ([100], [], []),
    ],
)
def test_all_but_those_of_segments_and_of_two_closes(
    snapshots: list[int], bases: list[int], strays: list[int]
) -> None:
    assert stray_snapshots(snapshots, bases) == strays


def test_ordinary_use_gives_no_note(tmp_path: Path) -> None:
    value = bytes(2000)
    for session in range(4):
        with LogDir.open(tmp_path) as logs:
            if not session:
                logs.create_topic("orders", config={"segment.bytes": 16384})
            for _ in range(5):
                logs.append("orders", value, key=b"k")
        assert verify_directory(tmp_path).findings == ()
    assert len(list((tmp_path / "orders-0").glob("*.log"))) > 1
    assert len(list((tmp_path / "orders-0").glob("*.snapshot"))) > 2

"""Replacements in flight that cover very many offsets are settled as fast as any."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stratalog.maintenance.interrupted_changes import finish_swaps
from stratalog.storage.disk import Disk
from tests.handmade import plain, write_segment

if TYPE_CHECKING:
    from pathlib import Path

FAR = 300_000_000
SECONDS_MAX = 3.0  # counting the offsets one by one takes three times as long


def test_files_without_an_offset_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "far-0"
    write_segment(path, 0, plain(0))
    write_segment(path, FAR // 2, plain(FAR // 2))
    write_segment(path, 0, plain(0), plain(FAR), suffix=".swap")
    (path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (path / "partition.metadata").write_text("version: 0\ntopic_id: 5mQ6Zr5yRTG6dvZ4rTyYZg")
    begun = time.process_time()
    finish_swaps(Disk(), path)
    assert time.process_time() - begun < SECONDS_MAX
    assert sorted(file.name for file in path.iterdir()) == [
        "00000000000000000000.log",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]

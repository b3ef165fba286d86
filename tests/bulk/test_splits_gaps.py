"""Offsets that compaction left empty cost no tasks and no time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from stratalog.format.batch import Codec
from stratalog.format.legacy import encode_legacy
from stratalog.format.record import Record
from stratalog.spark.options import plan_read
from tests.bulk.reading import read_plan
from tests.handmade import Head, Rec, batch, plain, write_segment

if TYPE_CHECKING:
    from pathlib import Path

FAR = 300_000
SECONDS_MAX = 2.0  # looking for each offset takes several times as long


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "gaps-0"
    survivors = [Rec(2, 0, b"k", b"v12"), Rec(7, 0, b"k", b"v17")]
    sparse = batch(10, survivors, Head(last_offset_delta=9))
    write_segment(path, 0, plain(3), sparse, plain(FAR, 5), plain(2 * FAR, 1))
    write_segment(path, 3 * FAR)
    return {"path": str(tmp_path), "subscribe": "gaps"}


@pytest.mark.parametrize("records_max", [1, 2, 3, 100, FAR])
def test_every_record_is_read_once(options: dict[str, str], records_max: int) -> None:
    begun = time.process_time()
    plan = plan_read({**options, "maxRecordsPerPartition": str(records_max)})
    assert time.process_time() - begun < SECONDS_MAX
    assert [record.offset for record in read_plan(plan)[0]] == [
        *(3, 4, 12, 17),
        *range(FAR, FAR + 5),
        2 * FAR,
    ]
    pieces = [piece for split in plan.splits for piece in split.ranges]
    assert all(piece.end_offset - piece.start_offset <= records_max for piece in pieces[:-1])
    assert len(pieces) <= 18  # gaps inside a batch are not known


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_gaps_between_old_messages(magic: int, codec: Codec, tmp_path: Path) -> None:
    groups = [[3, 4], [FAR, FAR + 1, FAR + 2], [2 * FAR]]
    sets = [
        encode_legacy([Record(offset, 1000, b"k", b"v") for offset in offsets], magic, codec=codec)
        for offsets in groups
    ]
    write_segment(tmp_path / "gaps-0", 0, *sets)
    begun = time.process_time()
    plan = plan_read(
        {"path": str(tmp_path), "subscribe": "gaps", "maxRecordsPerPartition": "2"},
    )
    assert time.process_time() - begun < SECONDS_MAX
    assert [record.offset for record in read_plan(plan)[0]] == [
        offset for offsets in groups for offset in offsets
    ]
    assert len([piece for split in plan.splits for piece in split.ranges]) <= 8

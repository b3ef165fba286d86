"""The torture's own idea of retention, held against the engine's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stratalog.log.segment_changes import SegmentChanges
from tests.torture.model import Model
from tests.torture.retention import Deletion, SegmentNote, note_deletions
from tests.torture.setup import KINDS, Journal, Kind, Place, events_of, now_ms

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.log_dir import LogDir

TIMED = KINDS["timed"]
THREE = Deletion(
    at_ms=10_000,
    count=1,
    log_start_offset=0,
    high_watermark=30,
    segments=(
        SegmentNote(0, 10, 100, 1000),
        SegmentNote(10, 20, 100, 7000),
        SegmentNote(20, 30, 100, 2000),
    ),
)
CASES = {
    "by time, up to the first young one": (TIMED, {}, 1),
    "no longer than retention.ms": (TIMED, {"at_ms": 5000}, 0),
    "all of them": (TIMED, {"at_ms": 20_000}, 3),
    "not above the high watermark": (TIMED, {"at_ms": 20_000, "high_watermark": 25}, 2),
    "by size, and then by time": (Kind(1, {"retention.bytes": 199, "retention.ms": 9000}), {}, 1),
    "exactly one too many": (Kind(1, {"retention.bytes": 200}), {}, 1),
    "not quite one too many": (Kind(1, {"retention.bytes": 201}), {}, 0),
    "the log start offset": (KINDS["table"], {"log_start_offset": 20, "at_ms": 10**9}, 2),
    "compaction alone": (KINDS["table"], {"at_ms": 10**9}, 0),
    "size counts what the log start leaves": (
        Kind(1, {"retention.bytes": 150}),
        {"log_start_offset": 10},
        1,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_kafka_would_delete(case: tuple[Kind, dict[str, int], int]) -> None:
    kind, changes, count = case
    assert replace(THREE, **changes).count_allowed(kind) == count  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """With a topic of twenty segments, half of them old, in a process that notes deletions."""
    monkeypatch.setattr(SegmentChanges, "delete_oldest", SegmentChanges.delete_oldest)
    place = Place(tmp_path, (tmp_path / "data",), 0)
    place.journals.mkdir()
    note_deletions(Journal(place, "w"))
    with place.open(background=False) as logs:
        logs.create_topic("timed", TIMED.partitions, config=TIMED.settings)
        for number in range(20):
            at_ms = now_ms() - 60_000 if number < 10 else now_ms() + 60_000
            logs.append("timed", bytes(20_000), partition=0, timestamp=at_ms)
    return place


def noted(place: Place) -> Model:
    model = Model()
    for event in events_of(place.journals / "w.jsonl"):
        model.take(event)
    return model


def deleted_to(model: Model) -> int:
    (topic,) = model.topics.values()
    return topic.partitions[0].deleted_to


def opened(place: Place) -> LogDir:
    return place.open(background=False)


def test_what_the_engine_deletes_is_right(place: Place) -> None:
    with opened(place) as logs:
        logs.maintenance.run_once()
        assert logs.partition("timed", 0).log_start_offset == 10
    assert deleted_to(noted(place)) == 10


def test_one_segment_too_many_is_noticed(place: Place) -> None:
    with opened(place) as logs:
        logs.partition("timed", 0).maintenance.delete_oldest(11)
    with pytest.raises(AssertionError, match="11 segments where 10 may"):
        noted(place)


def test_young_records_go_by_size_and_old_ones_after_them_by_time(tmp_path: Path) -> None:
    """Late rows have older timestamps than the records before them. The log is smaller than
    retention.bytes afterwards, and lacks records that are younger than retention.ms."""
    place = Place(tmp_path, (tmp_path / "data",), 0)
    with opened(place) as logs:
        logs.create_topic("timed", TIMED.partitions, config=TIMED.settings)
        for number in range(35):
            at_ms = now_ms() + 60_000 if number < 10 else now_ms() - 60_000
            logs.append("timed", bytes(20_000), partition=0, timestamp=at_ms)
        log = logs.partition("timed", 0)
        assert Deletion.of(log.maintenance, 0).count_allowed(TIMED) == 35
        assert logs.partition("timed", 0).size_bytes > 400_000
        logs.maintenance.run_once()
        assert (log.log_start_offset, log.size_bytes) == (35, 0)

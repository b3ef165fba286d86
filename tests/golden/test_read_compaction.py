"""Logs before and after Kafka's own cleaner: holes, empty batches, emptied segments, horizons."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog.format.batch import NO_PRODUCER_ID, NO_TIMESTAMP
from stratalog.log.partition_view import PartitionView
from tests.golden.cases import CompactionCase, compaction_cases
from tests.golden.expected import compacted
from tests.log.readers import over_readers
from tests.looping import for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stratalog.format.record import Record
    from stratalog.storage.segment_view import LoadedBatch
    from tests.golden.cases import Json
    from tests.log.readers import Reader

over_cases = for_each("case", compaction_cases())


class State(NamedTuple):
    """One directory of a compaction case, and the round that it begins or ends."""

    directory: str
    path: Path
    step: Json


def states(case: CompactionCase, root: Path) -> Iterator[State]:
    partition = f"{case.case['topic']}-{case.case['partition']}"
    for step in case.case["rounds"]:
        for directory in (step["before"], step["after"]):
            if directory is not None:
                yield State(directory, root / directory / partition, step)


@pytest.mark.slow
@over_readers
@over_cases
def test_records(
    case: CompactionCase, reader: Reader, compaction_dir: Callable[[str], Path]
) -> None:
    for state in states(case, compaction_dir(case.name)):
        with PartitionView(state.path, log_start_offset=0) as view:
            assert tuple(reader(view)) == compacted(case, state.directory)


def test_cleaning_changes_what_is_read() -> None:
    """Or the test above would prove little."""
    changed = sum(compacted(case, "before") != _last_records(case) for case in compaction_cases())
    assert changed >= 36


def _last_records(case: CompactionCase) -> tuple[Record, ...]:
    *_, last = (step["after"] for step in case.case["rounds"] if step["after"] is not None)
    return compacted(case, last)


@pytest.mark.slow
@over_cases
def test_offsets_between_survivors(
    case: CompactionCase, compaction_dir: Callable[[str], Path]
) -> None:
    """Whatever offset is asked for, the next record that is left answers."""
    for state in states(case, compaction_dir(case.name)):
        records = compacted(case, state.directory)
        with PartitionView(state.path, log_start_offset=0) as view:
            end = view.log_end_offset
            for target in {*range(0, end, max(1, end // 25)), end - 1, end}:
                following = next((r for r in records if r.offset >= target), None)
                assert next(view.read(target), None) == following
                found = view.locate(target)
                while found is not None and found.header.is_control:
                    found = view.locate(found.record.offset + 1)
                assert (None if found is None else found.record) == following


@pytest.mark.slow
@over_cases
def test_offsets_of_the_log(case: CompactionCase, compaction_dir: Callable[[str], Path]) -> None:
    for state in states(case, compaction_dir(case.name)):
        start = state.step["log_start_offset"]
        with PartitionView(state.path, log_start_offset=start) as view:
            assert view.log_start_offset == start
            assert view.log_end_offset == state.step["log_end_offset"]
            assert view.last_stable_offset == state.step["last_stable_offset"]


@pytest.mark.slow
@over_cases
def test_batches(case: CompactionCase, compaction_dir: Callable[[str], Path]) -> None:
    for state in states(case, compaction_dir(case.name)):
        told = case.records(state.directory)["segments"]
        with PartitionView(state.path, log_start_offset=0) as view:
            assert [segment.path.name for segment in view.segments] == [s["file"] for s in told]
            for segment, of_segment in zip(view.segments, told, strict=True):
                batches = segment.batches(0, segment.size_bytes)
                assert [_facts(batch) for batch in batches] == [
                    _facts_told(batch) for batch in of_segment["batches"]
                ]


def _facts(batch: LoadedBatch) -> tuple[object, ...]:
    header = batch.header
    return (
        batch.position,
        batch.entry.size_bytes,
        header.magic,
        header.next_offset - 1,
        header.crc,
        header.max_timestamp,
        header.producer_id,
        header.is_control,
    )


def _facts_told(batch: Json) -> tuple[object, ...]:
    return (
        batch["position"],
        batch["size"],
        batch["magic"],
        batch["last_offset"],
        batch["crc"],
        batch.get("max_timestamp", NO_TIMESTAMP),
        batch.get("producer_id", NO_PRODUCER_ID),  # a legacy message has none
        batch.get("control", False),
    )

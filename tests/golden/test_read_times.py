"""Lookups by time: Kafka's own answers, and the truth by looking at every record."""

from __future__ import annotations

import pytest

from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import OffsetAndTimestamp
from tests.golden.cases import GoldenCase
from tests.golden.expected import directory_to_read, loaded, log_start_offset, undamaged_cases
from tests.looping import for_each

ASKED = [
    case
    for case in undamaged_cases()
    if case.offsets_for_times is not None and case.name != "txn"  # asked after one marker more
]
EMPTIED_FIRST = {
    "compact",
    "compact-droptomb",
    "compact-gzip",
    "compact-logappend",
    "compact-lz4",
    "compact-snappy",
}
"""Compaction emptied the first segment. Kafka then takes its file's modification time for its
largest timestamp, looks there, finds nothing and looks no further."""

over_asked = for_each("case", ASKED)


def first_at_or_after(
    case: GoldenCase, timestamp: int, start_offset: int
) -> OffsetAndTimestamp | None:
    """The answer by definition, from all that Kafka's loader found. Markers count as records."""
    for facts in loaded(case):
        record = facts.record
        if record.offset >= start_offset and record.timestamp >= timestamp:
            return OffsetAndTimestamp(record.offset, record.timestamp)
    return None


def test_enough_was_asked() -> None:
    assert len(ASKED) == 40
    assert {case.name for case in ASKED} >= EMPTIED_FIRST


@pytest.mark.slow
@over_asked
def test_kafkas_answers(case: GoldenCase) -> None:
    answers = case.offsets_for_times
    assert answers is not None
    told_null = 0
    for directory in case.partition_dirs():
        with PartitionView(directory, log_start_offset=log_start_offset(case)) as view:
            for answer in answers["offsets_for_times"]:
                found = view.find_time(answer["query"])
                assert found == first_at_or_after(case, answer["query"], view.log_start_offset)
                if answer["offset"] is None:
                    told_null += found is not None
                else:
                    assert found == (answer["offset"], answer["timestamp"])
    assert (told_null > 0) == (case.name in EMPTIED_FIRST)


@pytest.mark.slow
@over_asked
def test_ends_of_the_log(case: GoldenCase) -> None:
    answers = case.offsets_for_times
    assert answers is not None
    for directory in case.partition_dirs():
        with PartitionView(directory, log_start_offset=log_start_offset(case)) as view:
            assert view.resolve("earliest") == answers["earliest"]["offset"]
            assert view.resolve("latest") == answers["latest"]["offset"]
            assert _or_minus_1(view.find_max_timestamp()) == (
                answers["max_timestamp"]["offset"],
                answers["max_timestamp"]["timestamp"],
            )


def _or_minus_1(found: OffsetAndTimestamp | None) -> tuple[int, int]:
    return (-1, -1) if found is None else found


@pytest.mark.slow
@for_each("case", undamaged_cases())
def test_every_timestamp_and_its_neighbours(case: GoldenCase) -> None:
    stored = {facts.record.timestamp for facts in loaded(case)}
    asked = sorted({near for t in stored for near in (t - 1, t, t + 1)} | {0, 1, 1 << 62})
    sample = asked[:: max(1, len(asked) // 150)]
    with PartitionView(directory_to_read(case)) as view:
        for timestamp in sample:
            found = view.find_time(timestamp)
            assert found == first_at_or_after(case, timestamp, view.log_start_offset)


@pytest.mark.parametrize("name", ["ooo-createtime", "deleterecords", "txn", "compact-txn"])
def test_log_start_inside_hides_what_lies_below(name: str) -> None:
    """Both lookups by time, for log start offsets all over the log, inside batches too."""
    case = GoldenCase(name)
    records = [facts.record for facts in loaded(case)]
    bounds = case.loaddir["logStartOffset"], case.loaddir["logEndOffset"]
    timestamps = sorted({record.timestamp for record in records})[::9]
    for start in range(*bounds, 7):
        with PartitionView(directory_to_read(case), log_start_offset=start) as view:
            for timestamp in timestamps:
                expected = first_at_or_after(case, timestamp, start)
                assert view.find_time(timestamp) == expected
            largest = max(record.timestamp for record in records if record.offset >= start)
            assert view.find_max_timestamp() == first_at_or_after(case, largest, start)

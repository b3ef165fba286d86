"""Every record that Kafka's consumer and Kafka's loader read comes back equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import CorruptBatchError
from stratalog.format.batch import Codec, next_entry
from stratalog.format.log_entry import header_of, records_of
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import IsolationLevel
from tests.golden.cases import GoldenCase, all_cases
from tests.golden.expected import (
    BatchFacts,
    consumed,
    consumed_offsets,
    directory_to_read,
    is_consumed,
    loaded,
    log_start_offset,
    undamaged_cases,
    visible,
)
from tests.log.readers import over_readers
from tests.looping import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.format.record import Record
    from stratalog.log.reader import Skipped
    from tests.log.readers import Reader

START_OFFSETS_MAX = 15
over_isolation = pytest.mark.parametrize("isolation", IsolationLevel, ids=lambda level: level.value)
CONSUMED = [case for case in undamaged_cases() if is_consumed(case)]


@pytest.mark.slow
def test_most_cases_were_consumed() -> None:
    assert len(CONSUMED) == 42
    assert sum(len(consumed(case, IsolationLevel.READ_COMMITTED)) for case in CONSUMED) > 9_000


@pytest.mark.slow
@over_readers
@over_isolation
@for_each("case", CONSUMED)
def test_what_the_consumer_read(
    case: GoldenCase, isolation: IsolationLevel, reader: Reader
) -> None:
    for directory in case.partition_dirs():
        with PartitionView(directory, log_start_offset=log_start_offset(case)) as view:
            assert tuple(reader(view, isolation=isolation)) == consumed(case, isolation)


@pytest.mark.slow
@over_isolation
@for_each("case", CONSUMED)
def test_where_the_consumer_began_and_ended(case: GoldenCase, isolation: IsolationLevel) -> None:
    offsets = consumed_offsets(case, isolation)
    for directory in case.partition_dirs():
        with PartitionView(directory, log_start_offset=log_start_offset(case)) as view:
            assert view.log_start_offset == offsets.beginning
            is_committed = isolation is IsolationLevel.READ_COMMITTED
            end = view.last_stable_offset if is_committed else view.log_end_offset
            assert end == offsets.end


@pytest.mark.slow
@over_readers
@for_each("case", undamaged_cases())
def test_what_the_loader_found(case: GoldenCase, reader: Reader) -> None:
    for directory in case.partition_dirs():
        with PartitionView(directory) as view:
            assert tuple(reader(view)) == visible(case)


@pytest.mark.slow
@over_readers
@for_each("case", undamaged_cases())
def test_from_any_offset_on(case: GoldenCase, reader: Reader) -> None:
    records = visible(case)
    with PartitionView(directory_to_read(case)) as view:
        first, end = view.log_start_offset, view.log_end_offset
        step = max(1, (end - first) // START_OFFSETS_MAX)
        for start in {*range(first, end, step), end}:
            expected = [record for record in records if record.offset >= start][:7]
            assert list(reader(view, start, max_records=7)) == expected


@pytest.mark.slow
@over_readers
@over_isolation
@pytest.mark.parametrize("name", ["txn", "txn-now", "txn-simple", "compact-txn"])
def test_isolation_holds_from_any_offset_to_any_other(
    name: str, isolation: IsolationLevel, reader: Reader
) -> None:
    case = GoldenCase(name)
    with PartitionView(directory_to_read(case)) as view:
        for start in range(view.log_start_offset, view.log_end_offset + 1, 2):
            for end in {start + 1, start + 10, view.log_end_offset}:
                assert list(reader(view, start, end, isolation=isolation)) == [
                    record for record in consumed(case, isolation) if start <= record.offset < end
                ]


# -- batch facts, by the format layer alone


@for_each("case", all_cases())
def test_batch_facts(case: GoldenCase) -> None:
    last_dir = case.partition_dirs()[-1]  # of an unclean case the one that Kafka recovered
    assert tuple(_facts_in(last_dir)) == loaded(case)


def _facts_in(directory: Path) -> Iterator[BatchFacts]:
    for path in sorted(directory.glob("*.log")):
        buf, at = path.read_bytes(), 0
        while (entry := next_entry(buf, at)) is not None:
            header = header_of(buf, entry)
            for record in records_of(buf, entry):
                yield BatchFacts(
                    record=record,
                    sequence=header.sequence_of(record.offset),
                    producer_id=header.producer_id,
                    is_transactional=header.is_transactional,
                    is_control=header.is_control,
                    leader_epoch=header.partition_leader_epoch,
                    codec=Codec(header.codec_id).name.lower(),
                    magic=header.magic,
                )
            at = entry.end
        assert at == len(buf)


# -- a damaged batch in the middle: Kafka cut the log there, a reader must not


def test_damage_in_the_middle_is_an_error_after_all_that_precedes_it(
    bad_crc: PartitionView,
) -> None:
    case = GoldenCase("u-badcrc")
    seen: list[Record] = []
    with pytest.raises(CorruptBatchError) as caught:
        seen.extend(bad_crc.read())
    assert tuple(seen) == visible(case)
    assert caught.value.path == directory_to_read(case) / "00000000000000000240.log"
    assert caught.value.position == 978
    assert caught.value.offsets == (249, 249)
    assert "CRC" in str(caught.value)


@over_readers
@over_isolation
def test_damage_in_the_middle_can_be_skipped(
    bad_crc: PartitionView, isolation: IsolationLevel, reader: Reader
) -> None:
    case = GoldenCase("u-badcrc")
    skipped: list[Skipped] = []
    records = tuple(reader(bad_crc, isolation=isolation, on_skip=skipped.append))
    assert records[: len(visible(case))] == visible(case)
    assert [record.offset for record in records] == [*range(249), *range(250, 260)]
    produced = {entry["offset"]: entry["value"] for entry in case.manifest["produced"]}
    assert produced.keys() >= set(range(260))
    (only,) = skipped
    assert only.path.name == "00000000000000000240.log"
    assert (only.position, only.first_offset, only.next_offset) == (978, 249, 250)
    assert "CRC" in only.reason


@over_readers
def test_damage_is_none_of_a_reader_who_starts_behind_it(
    bad_crc: PartitionView, reader: Reader
) -> None:
    for start in range(250, 261):
        assert [record.offset for record in reader(bad_crc, start)] == list(range(start, 260))


@over_readers
def test_damage_is_none_of_a_reader_who_stops_before_it(
    bad_crc: PartitionView, reader: Reader
) -> None:
    assert [record.offset for record in reader(bad_crc, 200, 249)] == list(range(200, 249))


@pytest.fixture
def bad_crc() -> Iterator[PartitionView]:
    with PartitionView(directory_to_read(GoldenCase("u-badcrc"))) as view:
        yield view

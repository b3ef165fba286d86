"""A directory caught at any moment of Kafka's swap of compacted segments.

At each step a reader must see either the segments as they were or as they become; after a crash
Kafka's loader decides the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import IsolationLevel
from tests.golden.cases import CompactionCase, GoldenCase
from tests.golden.expected import consumed
from tests.log.broker_steps import purge, replace_group
from tests.log.building import (
    batches_of,
    copy_partition,
    log_name,
    plain_segment,
    write_partition,
)
from tests.log.readers import columns, over_readers, scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stratalog.format.record import Record
    from tests.golden.cases import Json
    from tests.log.readers import Reader

CASES = [
    ("plain", 0),
    ("plain-onegroup", 0),
    ("group-many", 0),
    ("group-time-index", 0),
    ("gaps-empty-segments", 0),
    ("gaps-empty-segments", 1),
    ("gaps-empty-segments", 2),
    ("legacy-v1-gzip", 1),
    ("txn-rounds", 0),
    ("txn-open", 1),
    ("random-1", 1),
    ("last-batch-emptied", 0),
]
STEPS_MAX = 60  # of a case that are looked at


class Swap(NamedTuple):
    """One round of the cleaner: the directory before it, after it, and what became what."""

    before: Path
    after: Path
    groups: Sequence[Sequence[int]]

    @classmethod
    def of(cls, name: str, round_: int, root: Path) -> Swap:
        case: Json = CompactionCase(name).case
        step = case["rounds"][round_]
        partition = f"{case['topic']}-{case['partition']}"
        before, after = (root / step[moment] / partition for moment in ("before", "after"))
        return cls(before, after, step["groups"])

    @property
    def steps(self) -> int:
        """An upper bound on how many states there are between before and after."""
        return sum(1 for _ in self.before.iterdir()) + 4 * 3 * len(self.groups)


def read(path: Path, isolation: IsolationLevel, reader: Reader = scalar) -> list[Record]:
    with PartitionView(path, log_start_offset=0) as view:
        return list(reader(view, isolation=isolation))


def log_end(path: Path) -> int:
    with PartitionView(path, log_start_offset=0) as view:
        return view.log_end_offset


def part(records: list[Record], first: int, end: int | None) -> list[Record]:
    return [r for r in records if first <= r.offset and (end is None or r.offset < end)]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", IsolationLevel, ids=lambda level: level.value)
@pytest.mark.parametrize(("name", "round_"), CASES)
def test_every_step_of_a_swap(
    name: str,
    round_: int,
    isolation: IsolationLevel,
    compaction_dir: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    swap = Swap.of(name, round_, compaction_dir(name))
    path = copy_partition(swap.before, tmp_path)
    before, after = read(swap.before, isolation), read(swap.after, isolation)
    every = max(1, swap.steps // STEPS_MAX)
    turn = 0
    for group, following in zip(swap.groups, [*swap.groups[1:], None], strict=True):
        # Up to one of these offsets the new records, from there on the old ones. Those inside the
        # group: the new segment says nothing of an old one behind its last batch.
        ends = [*group, log_end(swap.before) if following is None else following[0]]
        may_be = [part(after, 0, end) + part(before, end, None) for end in ends]
        for _ in replace_group(path, swap.after, group):
            turn += 1
            if turn % every == 0:
                found = read(path, isolation, (scalar, columns)[turn % 2])
                assert found in may_be, sorted(file.name for file in path.iterdir())
        assert read(path, isolation) == may_be[-1]
    for _ in purge(path):
        pass
    assert read(path, isolation) == after


@over_readers
def test_unfinished_files_are_worth_nothing(reader: Reader, tmp_path: Path) -> None:
    path = write_partition(tmp_path / "t-0", {0: plain_segment(0, 2), 4: plain_segment(4, 2)})
    (path / "00000000000000000000.log.cleaned").write_bytes(plain_segment(0, 1))
    (path / "00000000000000000002.log.deleted").write_bytes(plain_segment(2, 1))
    (path / "00000000000000000008.log.deleted").write_bytes(plain_segment(8, 1))
    assert [r.offset for r in read(path, IsolationLevel.READ_UNCOMMITTED, reader)] == list(range(8))


@over_readers
def test_swap_above_an_unfinished_one_never_completed(reader: Reader, tmp_path: Path) -> None:
    """Kafka splits a segment into several: only a swap file below every unfinished one counts."""
    path = write_partition(tmp_path / "t-0", {0: plain_segment(0, 4)})
    (path / "00000000000000000000.log.cleaned").write_bytes(plain_segment(0, 2))
    (path / "00000000000000000004.log.swap").write_bytes(plain_segment(4, 1))
    assert [r.offset for r in read(path, IsolationLevel.READ_UNCOMMITTED, reader)] == list(range(8))


@over_readers
def test_split_segment_whose_parts_are_complete(reader: Reader, tmp_path: Path) -> None:
    path = write_partition(tmp_path / "t-0", {0: plain_segment(0, 4), 8: plain_segment(8, 1)})
    (path / "00000000000000000000.log.swap").write_bytes(plain_segment(0, 2))
    (path / "00000000000000000004.log.swap").write_bytes(plain_segment(4, 2))
    with PartitionView(path) as view:
        assert [segment.size_bytes for segment in view.segments] == [
            len(plain_segment(0, 2)),
            len(plain_segment(4, 2)),
            len(plain_segment(8, 1)),
        ]
        assert [record.offset for record in reader(view)] == list(range(10))


def test_segment_view_follows_its_file_through_renames(
    compaction_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """Listed before the swap, opened only after it: the old records, as of the listing."""
    swap = Swap.of("plain-onegroup", 0, compaction_dir("plain-onegroup"))
    path = copy_partition(swap.before, tmp_path)
    before = read(swap.before, IsolationLevel.READ_UNCOMMITTED)
    view = PartitionView(path, log_start_offset=0)
    for _ in replace_group(path, swap.after, swap.groups[0]):
        pass
    assert list(view.read()) == before
    view.refresh()
    assert list(view.read()) == read(swap.after, IsolationLevel.READ_UNCOMMITTED)


def test_view_looks_again_when_its_files_are_gone_for_good(
    compaction_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    swap = Swap.of("plain-onegroup", 0, compaction_dir("plain-onegroup"))
    after = read(swap.after, IsolationLevel.READ_UNCOMMITTED)
    for ask in (
        lambda view: list(view.read()) == after,
        lambda view: view.find_time(0) == (after[0].offset, after[0].timestamp),
        lambda view: view.find_max_timestamp().offset > 0,
        lambda view: view.locate(0).record == after[0],
        lambda view: view.producers == (),
        lambda view: view.aborted_transactions() == [],
    ):
        path = copy_partition(swap.before, tmp_path)
        view = PartitionView(path, log_start_offset=0)
        for _ in (*replace_group(path, swap.after, swap.groups[0]), *purge(path)):
            pass
        assert ask(view)
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


@over_readers
def test_aborted_records_stay_hidden_when_their_index_goes(reader: Reader, tmp_path: Path) -> None:
    """The old segments are open still; what tells their aborted records went with their names."""
    case, level = GoldenCase("txn"), IsolationLevel.READ_COMMITTED
    path = copy_partition(case.partition_dir, tmp_path)
    old = b"".join((path / log_name(base_offset)).read_bytes() for base_offset in (0, 11))
    committed = {record.offset for record in consumed(case, level)}
    kept = [
        batch.raw
        for batch in batches_of(old)
        if not batch.records or batch.first_offset in committed
    ]
    cleaned = write_partition(tmp_path / "cleaned", {0: b"".join(kept)})
    with PartitionView(path) as view:
        assert len(list(reader(view))) > len(committed)
        for _ in (*replace_group(path, cleaned, [0, 11]), *purge(path)):
            pass
        assert tuple(reader(view, isolation=level)) == consumed(case, level)

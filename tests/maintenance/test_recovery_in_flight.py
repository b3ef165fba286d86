"""Loading what a crash left in the middle of something, and crashing while loading it."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.errors import StorageError
from stratalog.format.batch import BatchHeader
from stratalog.format.record import BatchFields, encode_batch
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk
from tests.disks import SECTOR_BYTES, Fault, FaultyDisk, SimulatedDisk
from tests.golden.cases import CompactionCase
from tests.log.broker_steps import purge, replace_group
from tests.log.building import (
    batches_of,
    copy_partition,
    log_name,
    plain_records,
    plain_segment,
    write_partition,
)
from tests.model.index_checks import check_indexes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stratalog.format.record import Record
    from stratalog.log.partition_log import PartitionLog

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=2000, segment_index_bytes=240, index_interval_bytes=150)
REACH = 1 << 31
CALLS_MAX = 200
LAST_ONLY = LoadPoint(recovery_point=1 << 62)
EVERY = 3  # steps; no swap is so regular that some would never be looked at
IN_FLIGHT = {".cleaned", ".deleted", ".swap"}


def opened(path: Path, disk: Disk | None = None, point: LoadPoint = LoadPoint()) -> PartitionLog:  # noqa: B008
    return open_log(path, CONFIG, disk=disk or Disk(), now_ms=lambda: NOW_MS, point=point)


def records_of(path: Path) -> list[Record]:
    with PartitionView(path, log_start_offset=0) as view:
        return list(view.read())


def bases_of(path: Path) -> list[int]:
    return sorted(int(log.stem) for log in path.glob("*.log"))


def interrupted(
    root: Path,
    name: str,
    point: LoadPoint = LoadPoint(),  # noqa: B008
    seeds: Sequence[int] = (0,),
) -> Iterator[Path]:
    """The directory once for each call that loading it makes, after a loss of power at that call,
    and at last without any. It is for the caller to load it again."""
    for seed in seeds:
        yield from _interrupted(root, name, point, seed)


def _interrupted(root: Path, name: str, point: LoadPoint, seed: int) -> Iterator[Path]:
    for at in range(1, CALLS_MAX):
        copy = root.parent / f"{root.name}-{at}"
        shutil.copytree(root, copy)
        sim = SimulatedDisk(copy)
        faulty = FaultyDisk(sim.calls, Fault(at, is_lasting=True))
        try:
            opened(copy / name, faulty.disk, point)
        except StorageError:
            assert faulty.has_failed
        sim.crash(random.Random(f"{seed}/{at}"))
        yield copy / name
        shutil.rmtree(copy)
        if not faulty.has_failed:
            return
    raise AssertionError("loading never comes to its end")


# -- compaction

SWAPS = [("plain", 0), ("group-many", 0), ("gaps-empty-segments", 1), ("txn-rounds", 0)]


class Swap:
    """A round of Kafka's cleaner, from one directory to the other."""

    def __init__(self, name: str, round_: int, root: Path) -> None:
        case = CompactionCase(name).case
        step = case["rounds"][round_]
        partition = f"{case['topic']}-{case['partition']}"
        self.before, self.after = (root / step[side] / partition for side in ("before", "after"))
        self.groups: Sequence[Sequence[int]] = step["groups"]

    def states(self, path: Path) -> Iterator[None]:
        """Goes through the swap in `path`, a change at a time."""
        for group in self.groups:
            yield from replace_group(path, self.after, group)


def logs_of(path: Path) -> dict[int, bytes]:
    return {int(log.stem): log.read_bytes() for log in path.glob("*.log")}


def expected(path: Path) -> dict[int, bytes]:
    """What a directory comes to that was left like this: what is only `.cleaned` is undone, and a
    complete `.swap` takes the place of the segments between its base and its last record. (Those
    behind, of which it kept nothing, stay until they are cleaned again: so does Kafka.)"""
    logs = logs_of(path)
    swaps = {int(log.name.split(".")[0]): log.read_bytes() for log in path.glob("*.log.swap")}
    if swaps and not list(path.glob("*.cleaned")):
        end = max(max([base, *(b.next_offset for b in batches_of(s))]) for base, s in swaps.items())
        logs = {base: log for base, log in logs.items() if not min(swaps) <= base < end}
        logs.update(swaps)
    return logs


@pytest.mark.slow
@pytest.mark.parametrize(("name", "round_"), SWAPS)
def test_every_step_of_a_swap_is_finished_or_undone(
    name: str, round_: int, compaction_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    swap = Swap(name, round_, compaction_dir(name))
    path = copy_partition(swap.before, tmp_path)
    for step, _ in enumerate(swap.states(path)):
        if step % EVERY:
            continue
        copy = copy_partition(path, tmp_path / str(step))
        with opened(copy, point=LAST_ONLY) as log:
            offsets = [record.offset for record in log.read()]
            assert offsets == sorted(set(offsets))
        assert logs_of(copy) == expected(path)
        assert not [file for file in copy.iterdir() if file.suffix in IN_FLIGHT]
        shutil.rmtree(copy)
    for _ in purge(path):
        pass
    opened(path).close()
    assert logs_of(path) == logs_of(swap.after)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "round_"), SWAPS[:1])
def test_a_loss_of_power_while_finishing_or_undoing_a_swap(
    name: str, round_: int, compaction_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """At every call of loading, from several states of the first swap."""
    swap = Swap(name, round_, compaction_dir(name))
    root = tmp_path / "root"
    root.mkdir()
    path = copy_partition(swap.before, root)
    for step, _ in enumerate(swap.states(path)):
        if step in {2, 3, 5, 6, 9}:
            state = shutil.copytree(root, tmp_path / f"state-{step}")
            for copy in interrupted(state, path.name, LAST_ONLY):
                opened(copy, point=LAST_ONLY).close()
                assert logs_of(copy) == expected(path)
    assert swap.groups[0]


@pytest.mark.slow
def test_a_cleaned_file_undoes_the_swap_files_behind_it(tmp_path: Path) -> None:
    """A split makes several; they are renamed from the last one down, so the first is missing."""
    path = write_partition(tmp_path / "t-0", {0: plain_segment(0, 10), 20: plain_segment(20, 2)})
    (path / log_name(0, ".log.cleaned")).write_bytes(plain_segment(0, 5))
    (path / log_name(10, ".log.swap")).write_bytes(plain_segment(10, 5))
    before = records_of(path)
    for copy in interrupted(tmp_path, "t-0"):
        opened(copy).close()
        assert bases_of(copy) == [0, 20]
        assert records_of(copy) == before


@pytest.mark.slow
def test_a_replaced_segment_does_not_come_back_beside_its_replacement(tmp_path: Path) -> None:
    root = tmp_path / "root"
    segments = {base: plain_segment(base, 5) for base in (0, 10, 20, 30)}
    path = write_partition(root / "t-0", segments)
    swap = plain_segment(0, 2) + plain_segment(26, 2)  # all that compaction has left of three
    (path / log_name(0, ".log.swap")).write_bytes(swap)
    for copy in interrupted(root, path.name, LAST_ONLY, range(6)):
        opened(copy, point=LAST_ONLY).close()
        assert logs_of(copy) == {0: swap, 30: segments[30]}


def test_deleted_files_go(tmp_path: Path) -> None:
    path = write_partition(tmp_path / "t-0", {10: plain_segment(10, 2)})
    for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
        (path / log_name(0, f"{suffix}.deleted")).write_bytes(b"old")
    opened(path).close()
    assert not list(path.glob("*.deleted"))
    assert records_of(path)[0].offset == 10


# -- damage


@pytest.mark.slow
def test_a_loss_of_power_while_cutting_at_damage_leaves_no_hole(tmp_path: Path) -> None:
    """Later segments go before the cut: once it is made, nothing tells that there was damage."""
    root = tmp_path / "root"
    segments = {base: plain_segment(base, 5) for base in (0, 10, 20, 30)}
    broken = bytearray(segments[10])
    broken[len(broken) // 2] ^= 0xFF
    path = write_partition(root / "t-0", {**segments, 10: bytes(broken)})
    good = [batch for batch in batches_of(segments[10]) if batch.end <= len(broken) // 2]
    end = good[-1].next_offset
    assert 10 < end < 20
    for copy in interrupted(root, path.name):
        with opened(copy) as log:
            assert log.log_end_offset == end
            assert log.append(plain_segment(0, 1)).first_offset == end
            assert [record.offset for record in log.read()] == list(range(end + 2))
        assert bases_of(copy) == [0, 10]
        check_indexes(copy, is_closed=True)


def sector(offset: int) -> bytes:
    """A batch of one record that fills a sector of the disk."""
    for value_bytes in range(400, SECTOR_BYTES):
        raw = encode_batch(plain_records(offset, 1, value_bytes=value_bytes))
        if len(raw) == SECTOR_BYTES:
            return raw
    raise AssertionError("no batch has this size")


@pytest.mark.slow
def test_what_recovery_cut_does_not_come_back(tmp_path: Path) -> None:
    """Behind the damage is a good batch. A new one of the same size takes the place of the damaged
    one, and then the power goes: the old bytes must not follow it."""
    broken = bytearray(sector(11))
    broken[100] ^= 0xFF
    for seed in range(60):
        root = tmp_path / str(seed)
        path = write_partition(root / "t-0", {10: sector(10) + bytes(broken) + sector(12)})
        sim = SimulatedDisk(root)
        log = opened(path, sim.disk)
        assert log.log_end_offset == 11
        log.append_as_follower(sector(11))
        sim.crash(random.Random(seed))
        with opened(path) as log:
            assert log.log_end_offset in {11, 12}


# -- segments that reach too far


def far_segment(*offsets: int) -> bytes:
    return b"".join(encode_batch(plain_records(offset, 2), BatchFields()) for offset in offsets)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "offsets", "parts"),
    [
        (0, (0, 10, REACH, REACH + 4), [0, REACH]),
        (0, (0, REACH - 1, REACH + 5), [0, REACH - 1]),
        (5, (6, 2 * REACH, 4 * REACH, 4 * REACH + 2), [5, 2 * REACH, 4 * REACH]),
        (0, (3 * REACH, 3 * REACH + 2), [3 * REACH]),
    ],
    ids=["two", "the end counts", "three", "none within reach"],
)
def test_a_segment_that_reaches_too_far_is_split(
    base: int, offsets: tuple[int, ...], parts: list[int], tmp_path: Path
) -> None:
    """Old brokers wrote such ones. Cutting there would lose what is not damaged."""
    root = tmp_path / "root"
    path = write_partition(root / "t-0", {base: far_segment(*offsets)})
    (path / log_name(base, ".index")).write_bytes(b"")
    for copy in interrupted(root, path.name):
        with opened(copy) as log:
            assert [record.offset for record in log.read()] == [
                offset + n for offset in offsets for n in range(2)
            ]
            assert log.log_end_offset == offsets[-1] + 2
            log.append(plain_segment(0, 1))
        assert bases_of(copy) == parts
        assert not list(copy.glob("*.swap")) + list(copy.glob("*.cleaned"))
        check_indexes(copy, is_closed=True)


def test_damage_in_a_segment_that_reaches_too_far(tmp_path: Path) -> None:
    raw = far_segment(0, REACH, REACH + 2)
    last = batches_of(raw)[-1]
    broken = bytearray(raw)
    broken[last.position + 70] ^= 0xFF
    path = write_partition(tmp_path / "t-0", {0: bytes(broken), 4 * REACH: plain_segment(9, 1)})
    (path / log_name(4 * REACH)).write_bytes(far_segment(4 * REACH))
    with opened(path) as log:
        assert [record.offset for record in log.read()] == [0, 1, REACH, REACH + 1]
    assert bases_of(path) == [0, REACH]


def test_a_base_offset_is_no_reason_to_split(tmp_path: Path) -> None:
    """The last offset that an index can tell is still within reach."""
    raw = encode_batch(plain_records(0, 1), BatchFields())
    header = BatchHeader.unpack(raw)
    far = header._replace(base_offset=REACH - 1).pack() + raw[61:]
    path = write_partition(tmp_path / "t-0", {0: raw + far})
    with opened(path) as log:
        assert log.log_end_offset == REACH
    assert bases_of(path) == [0]

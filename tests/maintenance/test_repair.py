"""Planted faults of every kind: what is valid stays, every loss is listed, and undoing gives the
bytes back."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import InvalidArgumentError, RepairError, StorageError
from stratalog.format.batch import BatchHeader, with_payload
from stratalog.log.partition_view import PartitionView
from stratalog.log_dir import LogDir
from stratalog.maintenance.repair.files import (
    apply_repair,
    finish_interrupted,
    forget_repairs,
    undo_repair,
)
from stratalog.maintenance.repair.journal import repairs_of
from stratalog.maintenance.repair.plan import plan_repair
from stratalog.maintenance.verify.directory import verify_partition
from stratalog.storage.disk import Disk
from tests.disks import Fault, FaultyDisk
from tests.effort import scaled
from tests.golden.cases import GoldenCase
from tests.log.damaging import flip
from tests.maintenance.partition_copies import copy_of, files_of, records_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratalog.format.record import Record

MIDDLE, LAST = f"{453:020d}.log", f"{1485:020d}.log"


def _batches(path: Path) -> list[tuple[int, BatchHeader]]:
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        header = BatchHeader.unpack(data, at)
        found.append((at, header))
        at += header.size_bytes
    return found


def _edit(path: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def _set(data: bytearray, at: int, new: bytes | bytearray) -> None:
    data[at : at + len(new)] = new


# -- faults


def payload(partition: Path) -> None:
    at, _ = _batches(partition / MIDDLE)[5]
    flip(partition / MIDDLE, at + 70, 3)


def length(partition: Path) -> None:
    at, _ = _batches(partition / MIDDLE)[5]
    flip(partition / MIDDLE, at + 10, 0)


def base_offset(partition: Path) -> None:
    at, _ = _batches(partition / MIDDLE)[5]
    flip(partition / MIDDLE, at + 6, 2)


def base_offset_below(partition: Path) -> None:
    at, _ = _batches(partition / MIDDLE)[5]
    _edit(partition / MIDDLE, lambda data: _set(data, at, bytes(8)))


def last_base_offset(partition: Path) -> None:
    at, _ = _batches(partition / MIDDLE)[-1]
    flip(partition / MIDDLE, at + 4, 1)


def base_offset_of_a_record_before(partition: Path) -> None:
    """The batch seems to begin in the middle of the one before it."""
    batches = _batches(partition / MIDDLE)
    slot = next(slot for slot, (_, header) in enumerate(batches) if header.record_count > 2)
    inside = (batches[slot][1].base_offset + 1).to_bytes(8)
    _edit(partition / MIDDLE, lambda data: _set(data, batches[slot + 1][0], inside))


def leader_epoch(partition: Path) -> None:
    """No CRC covers it either."""
    at, _ = _batches(partition / MIDDLE)[5]
    flip(partition / MIDDLE, at + 14, 3)


def zeros(partition: Path) -> None:
    at, _ = _batches(partition / MIDDLE)[7]
    _edit(partition / MIDDLE, lambda data: _set(data, at + 10, bytes(1000)))


def bad_records(partition: Path) -> None:
    """The CRC is right, the records are not."""
    at, header = _batches(partition / MIDDLE)[4]

    def change(data: bytearray) -> None:
        batch = data[at : at + header.size_bytes]
        _set(data, at, with_payload(batch, b"\xff" * (header.size_bytes - 61)))

    _edit(partition / MIDDLE, change)


def torn_tail(partition: Path) -> None:
    path = partition / LAST
    os.truncate(path, path.stat().st_size - 20)


def garbage_at_the_end(partition: Path) -> None:
    _edit(partition / LAST, lambda data: data.extend(b"\x07" * 300))


def garbage_in_between(partition: Path) -> None:
    _edit(partition / MIDDLE, lambda data: data.extend(b"\x07" * 300))


def short_segment(partition: Path) -> None:
    path = partition / MIDDLE
    os.truncate(path, path.stat().st_size - 200)


def first_batch(partition: Path) -> None:
    flip(partition / f"{0:020d}.log", 40, 5)


def whole_segment(partition: Path) -> None:
    _edit(partition / MIDDLE, lambda data: _set(data, 0, random.Random(1).randbytes(len(data))))


def missing_index(partition: Path) -> None:
    (partition / MIDDLE).with_suffix(".index").unlink()


def corrupt_index(partition: Path) -> None:
    (partition / MIDDLE).with_suffix(".index").write_bytes(b"\x7f" * 80)


def corrupt_time_index(partition: Path) -> None:
    flip((partition / MIDDLE).with_suffix(".timeindex"), 3, 1)


def corrupt_snapshot(partition: Path) -> None:
    flip((partition / MIDDLE).with_suffix(".snapshot"), 4, 1)


def corrupt_epochs(partition: Path) -> None:
    (partition / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n")


def orphan_index(partition: Path) -> None:
    (partition / f"{77:020d}.index").write_bytes(bytes(8))


def corrupt_segment_inside_another(partition: Path) -> None:
    """All offsets that it could have are in the segment before it."""
    (partition / f"{500:020d}.log").write_bytes(bytes(3000) + b"XXXX")
    (partition / f"{500:020d}.index").write_bytes(bytes(8))


def empty_segment_inside_another(partition: Path) -> None:
    (partition / f"{500:020d}.log").touch()


def overlapping_segment(partition: Path) -> None:
    """A file of another replica, which rolled elsewhere."""
    batches = _batches(partition / MIDDLE)
    at, header = batches[len(batches) // 2]
    data = (partition / MIDDLE).read_bytes()
    (partition / f"{header.base_offset:020d}.log").write_bytes(data[at:])


def several(partition: Path) -> None:
    for fault in (first_batch, base_offset, zeros, corrupt_index, torn_tail):
        fault(partition)


FAULTS = [
    payload, length, base_offset, base_offset_below, last_base_offset, leader_epoch, zeros,
    bad_records, torn_tail, garbage_at_the_end, garbage_in_between, short_segment, first_batch,
    whole_segment, missing_index, corrupt_index, corrupt_time_index, corrupt_snapshot,
    corrupt_epochs, orphan_index, base_offset_of_a_record_before, corrupt_segment_inside_another,
    empty_segment_inside_another, overlapping_segment, several,
]  # fmt: skip
HARMLESS = {base_offset, base_offset_below, last_base_offset, leader_epoch,
            garbage_in_between, missing_index, corrupt_index, corrupt_time_index,
            corrupt_snapshot, corrupt_epochs, orphan_index, garbage_at_the_end,
            base_offset_of_a_record_before, corrupt_segment_inside_another,
            empty_segment_inside_another, overlapping_segment}  # fmt: skip
"""No record is lost."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_faults(fault: Callable[[Path], None], tmp_path: Path) -> None:
    partition = copy_of("multiseg", tmp_path)
    expected = records_of(partition)
    fault(partition)
    faulty = files_of(partition)
    plan = plan_repair(partition)
    assert not plan.is_empty
    assert files_of(partition) == faulty  # planning writes nothing
    assert [path for path in partition.iterdir() if path.is_dir()] == []

    repair = apply_repair(plan, Disk())
    found = records_of(partition)
    missing = expected.keys() - found.keys()
    for offset, record in found.items():
        assert record == expected[offset]
    end = 1 << 62
    listed = [(lost.first_offset, lost.next_offset or end) for lost in plan.lost]
    assert all(any(a <= offset < b for a, b in listed) for offset in missing)
    assert bool(missing) is (fault not in HARMLESS)
    assert not verify_partition(partition).has_errors
    assert plan_repair(partition).is_empty

    kept = {path.name: path.read_bytes() for path in (repair.directory / "old").iterdir()}
    assert kept or fault is missing_index
    assert all(data == faulty[name] for name, data in kept.items())
    undo_repair(repair, Disk())
    assert files_of(partition) == faulty
    assert [path for path in partition.iterdir() if path.is_dir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(scaled(6)))
def test_random_faults(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    partition = copy_of(chance.choice(["multiseg", "txn", "java-lz4", "v1-gzip"]), tmp_path)
    expected = records_of(partition)
    for path in chance.sample(sorted(partition.glob("*.log")), 1):
        for _ in range(chance.randrange(1, 4)):
            _edit(path, lambda data: _set(data, chance.randrange(len(data)), chance.randbytes(9)))
    faulty = files_of(partition)
    plan = plan_repair(partition)
    repair = apply_repair(plan, Disk())
    found = records_of(partition)
    assert all(record == expected[offset] for offset, record in found.items())
    end = 1 << 62
    listed = [(lost.first_offset, lost.next_offset or end) for lost in plan.lost]
    for offset in expected.keys() - found.keys():
        assert any(a <= offset < b for a, b in listed)
    assert plan_repair(partition).segments == ()
    undo_repair(repair, Disk())
    assert files_of(partition) == faulty


@pytest.mark.parametrize("name", ["txnindex", "snapshot"])
def test_what_transactions_need_is_rebuilt(name: str, tmp_path: Path) -> None:
    partition = copy_of("txn", tmp_path)
    before = files_of(partition)
    path = sorted(partition.glob(f"*.{name}"))[0 if name == "txnindex" else 1]
    flip(path, 5, 0)
    apply_repair(plan_repair(partition), Disk())
    assert not verify_partition(partition).has_errors
    if name == "txnindex":
        assert files_of(partition) == before


MARKERS = [11, 12, 24, 25, 37, 38, 48, 51]


@pytest.mark.parametrize("offset", MARKERS)
def test_a_lost_marker_changes_no_other_transaction(offset: int, tmp_path: Path) -> None:
    """Which transactions were aborted is known from the indexes, and which have ended from the
    snapshots, where the log has lost its markers."""
    partition = copy_of("txn", tmp_path)
    expected = _committed(partition)
    for path in partition.glob("*.log"):
        for at, header in _batches(path):
            if header.base_offset == offset:
                assert header.is_control
                flip(path, at + header.size_bytes - 2, 1)
    plan = plan_repair(partition)
    assert [(lost.first_offset, lost.next_offset) for lost in plan.lost] == [(offset, offset + 1)]
    repair = apply_repair(plan, Disk())
    assert repair.open_transactions == ()
    assert _committed(partition) == expected
    assert not verify_partition(partition).has_errors
    assert plan_repair(partition).is_empty


def test_a_transaction_without_its_marker_is_reported(tmp_path: Path) -> None:
    partition = copy_of("txn-simple", tmp_path)
    path = sorted(partition.glob("*.log"))[-1]
    at, header = _batches(path)[-1]
    assert header.is_control
    flip(path, at + header.size_bytes - 2, 1)
    repair = apply_repair(plan_repair(partition), Disk())
    assert repair.open_transactions == ((header.producer_id, 18),)


def _committed(partition: Path) -> dict[int, Record]:
    with PartitionView(partition) as view:
        return {record.offset: record for record in view.read(isolation="read_committed")}


# -- copies


def test_three_copies_each_corrupt_elsewhere_give_the_whole_log(tmp_path: Path) -> None:
    whole = records_of(GoldenCase("multiseg").partition_dir)
    copies = []
    for number, faults in enumerate(
        [(payload, torn_tail), (first_batch, whole_segment), (zeros, base_offset)]
    ):
        (tmp_path / str(number)).mkdir()
        copies.append(copy_of("multiseg", tmp_path / str(number)))
        for fault in faults:
            fault(copies[-1])
    os.truncate(copies[2] / f"{0:020d}.log", 3000)
    for main in copies:
        others = [copy for copy in copies if copy != main]
        plan = plan_repair(main, others)
        assert plan.lost == ()
        repair = apply_repair(plan, Disk())
        assert records_of(main) == whole
        for path in GoldenCase("multiseg").partition_dir.glob("*.log"):
            assert (main / path.name).read_bytes() == path.read_bytes()
        assert not verify_partition(main).has_errors
        undo_repair(repair, Disk())


def test_lost_segments_and_a_lost_end_come_back(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    main, copy = copy_of("multiseg", tmp_path / "a"), copy_of("multiseg", tmp_path / "b")
    for base in (453, 1295, 1485):
        for path in main.glob(f"{base:020d}.*"):
            path.unlink()
    plan = plan_repair(main, [copy])
    assert [segment.base_offset for segment in plan.segments] == [453, 1295, 1485]
    repair = apply_repair(plan, Disk())
    assert records_of(main) == records_of(copy)
    assert {path.name for path in main.glob("*.log")} == {path.name for path in copy.glob("*.log")}
    undo_repair(repair, Disk())
    assert not (main / LAST).exists()


def test_the_newest_leader_epoch_counts(tmp_path: Path) -> None:
    """A follower that has not truncated yet has other records at the same offsets."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    main, stale, fresh = (copy_of("multiseg", tmp_path / name) for name in "abc")
    payload(main)
    at, header = _batches(stale / MIDDLE)[5]
    _edit(stale / MIDDLE, lambda data: _set(data, at, with_payload(
        data[at : at + header.size_bytes], bytes(data[at + 61 : at + header.size_bytes])[:-1] + b"!"
    )))  # fmt: skip
    _edit(stale / MIDDLE, lambda data: _set(data, at + 12, (-1).to_bytes(4, signed=True)))
    assert plan_repair(main, [stale]).lost
    plan = plan_repair(main, [stale, fresh])
    assert [restored.path for restored in plan.restored] == [fresh]


def _set_epochs(partition: Path, starts: dict[int, int], *, has_file: bool = True) -> None:
    """Let the batches have these leader epochs, each from its offset on."""
    for path in partition.glob("*.log"):
        data = bytearray(path.read_bytes())
        for at, header in _batches(path):
            epoch = max(each for each, start in starts.items() if start <= header.base_offset)
            _set(data, at + 12, epoch.to_bytes(4))
        path.write_bytes(data)
    file = partition / "leader-epoch-checkpoint"
    lines = [f"{epoch} {start}" for epoch, start in sorted(starts.items())]
    file.write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    if not has_file:
        file.unlink()


def _three(tmp_path: Path) -> list[Path]:
    for name in "abc":
        (tmp_path / name).mkdir()
    return [copy_of("multiseg", tmp_path / name) for name in "abc"]


def test_copies_of_another_history_are_not_mixed_in(tmp_path: Path) -> None:
    """Epoch 2 began at offset 1000 while the log still followed the leader of epoch 1."""
    main, other, same = _three(tmp_path)
    _set_epochs(main, {0: 0, 1: 900})
    _set_epochs(other, {0: 0, 2: 1000})
    _set_epochs(same, {0: 0, 1: 900})
    torn_tail(main)
    payload(main)
    plan = plan_repair(main, [other])
    assert [(each.offset, each.leader_epoch, each.copy_epoch) for each in plan.diverging] == [
        (900, 1, 0)
    ]
    middle = [(each.first_offset, each.next_offset) for each in plan.restored]
    assert len(middle) == 1  # before they part ways the copy is good
    assert middle[0][1] <= 900
    assert len(plan.lost) == 1
    plan = plan_repair(main, [other, same])
    assert plan.lost == ()
    assert {each.path for each in plan.restored if each.first_offset >= 900} == {same}


@pytest.mark.parametrize("has_file", [False, True])
def test_where_copies_part_ways_is_not_guessed(tmp_path: Path, has_file: bool) -> None:
    """The log changes to epoch 2 in the corrupt range. A stale copy has epoch 0 there, and nothing
    but the checkpoint tells how long that was right."""
    main, stale, _ = _three(tmp_path)
    at, header = _batches(main / MIDDLE)[6]
    _set_epochs(main, {0: 0, 2: header.base_offset}, has_file=has_file)
    _set_epochs(stale, {0: 0, 1: 1400})
    begin = _batches(main / MIDDLE)[5][0] + 61
    _edit(main / MIDDLE, lambda data: _set(data, begin, bytes(at + 80 - begin)))
    plan = plan_repair(main, [stale])
    restored = [(each.first_offset, each.next_offset) for each in plan.restored]
    first = _batches(GoldenCase("multiseg").partition_dir / MIDDLE)[5][1].base_offset
    assert restored == ([(first, header.base_offset)] if has_file else [])
    assert [each.offset for each in plan.diverging]
    assert plan.lost


def test_the_end_follows_the_newest_leader_epoch(tmp_path: Path) -> None:
    """Of two copies that part ways after the end of the log, the one of the newer epoch counts,
    even where it is corrupt itself."""
    main, old, new = _three(tmp_path)
    os.truncate(main / LAST, 0)
    first, *others = [header.base_offset for _, header in _batches(old / LAST)]
    _set_epochs(old, {0: 0, 1: others[2]})
    _set_epochs(new, {0: 0, 2: others[1]})
    begin = _batches(new / LAST)[2][0]
    flip(new / LAST, begin + 70, 1)
    plan = plan_repair(main, [old, new])
    assert [each.path for each in plan.diverging] == [old]
    taken = [(each.first_offset, each.next_offset) for each in plan.restored]
    assert taken[0][0] == first
    assert all(stop <= others[1] or start >= others[2] for start, stop in taken)


def test_what_was_quarantined_can_be_restored_later(tmp_path: Path) -> None:
    main, copy, _ = _three(tmp_path)
    payload(main)
    apply_repair(plan_repair(main), Disk())
    assert plan_repair(main).is_empty
    plan = plan_repair(main, [copy])
    assert len(plan.restored) == 1
    apply_repair(plan, Disk())
    assert records_of(main) == records_of(copy)
    assert (main / MIDDLE).read_bytes() == (copy / MIDDLE).read_bytes()


def test_gaps_of_compaction_stay(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    main, copy = copy_of("multiseg", tmp_path / "a"), copy_of("multiseg", tmp_path / "b")
    for path in main.glob(f"{453:020d}.*"):
        path.unlink()
    (missing,) = plan_repair(main).missing
    assert (missing.first_offset, missing.next_offset) == (453, 602)
    assert plan_repair(main, [copy]).missing == ()
    (main.parent / "cleaner-offset-checkpoint").write_text("0\n1\nmultiseg 0 1000\n")
    assert plan_repair(main).missing == ()
    assert plan_repair(main, [copy]).is_empty


@pytest.mark.parametrize("case", ["compact", "compact-txn", "compact-droptomb", "deleterecords"])
def test_there_is_nothing_to_repair(case: str) -> None:
    plan = plan_repair(GoldenCase(case).partition_dir)
    assert plan.is_empty
    assert (plan.lost, plan.missing, plan.left) == ((), (), ())


def test_a_missing_start_is_listed_and_restored(tmp_path: Path) -> None:
    """Deleting old segments raises the start of the first leader epoch, so this was not that."""
    main, copy, _ = _three(tmp_path)
    for path in main.glob(f"{0:020d}.*"):
        path.unlink()
    (missing,) = plan_repair(main).missing
    assert missing.first_offset == 0
    apply_repair(plan_repair(main, [copy]), Disk())
    assert records_of(main) == records_of(copy)


@pytest.mark.parametrize("fault", ["zeros", "cut", "removed"])
def test_a_lost_end_is_listed_by_what_a_checkpoint_knows(tmp_path: Path, fault: str) -> None:
    main = copy_of("multiseg", tmp_path)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nmultiseg 0 1500\n")
    batches = _batches(main / LAST)
    at, header = batches[3]
    if fault == "zeros":
        _edit(main / LAST, lambda data: _set(data, at, bytes(len(data) - at)))
    elif fault == "cut":
        os.truncate(main / LAST, at)
    else:
        for path in main.glob(f"{1485:020d}.*"):
            path.unlink()
    first = 1485 if fault == "removed" else header.base_offset
    plan = plan_repair(main)
    assert [(each.first_offset, each.next_offset) for each in plan.lost] == [(first, 1500)]


def test_a_copy_of_another_partition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="is txn-0, not a copy of multiseg-0"):
        plan_repair(copy_of("multiseg", tmp_path), [copy_of("txn", tmp_path)])


# -- doing and undoing


def test_a_repaired_log_can_be_written_to_and_then_not_undone(tmp_path: Path) -> None:
    with LogDir.open(tmp_path / "logs", background=False) as logs:
        logs.create_topic("t")
        for number in range(100):
            logs.append("t", b"%d" % number)
    partition = tmp_path / "logs" / "t-0"
    log = partition / f"{0:020d}.log"
    os.truncate(log, log.stat().st_size - 20)  # below the recovery point
    plan = plan_repair(partition)
    assert next((name, before, after) for name, before, after in plan.checkpoints) == (
        "recovery-point-offset-checkpoint", 100, 99,
    )  # fmt: skip
    repair = apply_repair(plan, Disk())
    with LogDir.open(tmp_path / "logs", background=False) as logs:
        assert logs.partition("t", 0).log_end_offset == 99
        logs.append("t", b"new")
    assert len(records_of(partition)) == 100
    before = files_of(partition)
    with pytest.raises(RepairError, match="changed since the repair"):
        undo_repair(repair, Disk())
    assert files_of(partition) == before


def test_an_interrupted_repair_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = copy_of("multiseg", tmp_path)
    several(partition)
    faulty = files_of(partition)
    renamed = Disk.rename
    done: list[Path] = []

    def rename(self: Disk, source: Path, target: Path) -> None:
        if source.parent.parent.name == "new" and target.parent == partition:
            if len(done) == 2:
                raise KeyboardInterrupt
            done.append(target)
        renamed(self, source, target)

    monkeypatch.setattr(Disk, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        apply_repair(plan_repair(partition), Disk())
    monkeypatch.undo()
    assert any(files_of(partition)[name] != data for name, data in faulty.items())
    finish_interrupted(partition, Disk())
    assert plan_repair(partition).is_empty
    (repair,) = repairs_of(partition)
    undo_repair(repair, Disk())
    assert files_of(partition) == faulty


def test_a_repair_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = copy_of("multiseg", tmp_path)
    payload(partition)
    before = files_of(partition)
    monkeypatch.setattr(Disk, "link", lambda *_: (_ for _ in ()).throw(RepairError("no")))
    with pytest.raises(RepairError):
        apply_repair(plan_repair(partition), Disk())
    assert files_of(partition) == before
    assert [path for path in partition.iterdir() if path.is_dir()] == []


def corrupt_batch_and_index(partition: Path) -> None:
    first_batch(partition)
    corrupt_index(partition)


def foreign_misnamed_and_swapped_files(partition: Path) -> None:
    corrupt_segment_inside_another(partition)
    (partition / f"{920:020d}.log").rename(partition / f"{920:020d}.log.swap")
    (partition / f"{1105:020d}.log").rename(partition / f"{1110:020d}.log")


@pytest.mark.slow
@pytest.mark.parametrize("action", ["repair", "undo", "forget"])
@pytest.mark.parametrize("fault", [corrupt_batch_and_index, foreign_misnamed_and_swapped_files])
def test_a_kill_at_any_step(tmp_path: Path, fault: Callable[[Path], None], action: str) -> None:
    """No change of the disk succeeds after the kill. The partition is as it was, or as repaired, or
    the next run makes it so."""
    original = copy_of("multiseg", tmp_path)
    fault(original)
    faulty = files_of(original)
    repaired: dict[str, bytes] | None = None
    for step in range(1, 400, max(1, 4 // scaled(1))):
        partition = _copied(original, tmp_path / str(step))
        if action != "repair":
            apply_repair(plan_repair(partition), Disk())
        dying = FaultyDisk(fault=Fault(step, is_lasting=True))
        with suppress(StorageError):
            if action == "repair":
                apply_repair(plan_repair(partition), dying.disk)
            elif action == "undo":
                undo_repair(repairs_of(partition)[0], dying.disk)
            else:
                forget_repairs(partition, dying.disk)
        for repair in repairs_of(partition) if action == "undo" else ():
            undo_repair(repair, Disk())
        finish_interrupted(partition, Disk())
        if repaired is None and action != "undo":
            whole = _copied(original, tmp_path / "whole")
            apply_repair(plan_repair(whole), Disk())
            repaired = files_of(whole)
        now = files_of(partition)
        right = {"repair": (faulty, repaired), "undo": (faulty,), "forget": (repaired,)}[action]
        assert any(now == each for each in right)
        if action == "repair":
            assert bool(repairs_of(partition)) is (now == repaired)
        elif action == "forget" and repairs_of(partition):
            undo_repair(repairs_of(partition)[0], Disk())
            assert files_of(partition) == faulty
        shutil.rmtree(partition.parent)
        if not dying.has_failed:
            break
    assert not dying.has_failed
    assert step > 5


def _copied(partition: Path, to: Path) -> Path:
    to.mkdir()
    return Path(shutil.copytree(partition, to / partition.name))


def test_files_keep_their_mode_and_time(tmp_path: Path) -> None:
    partition = copy_of("multiseg", tmp_path)
    payload(partition)
    (partition / MIDDLE).chmod(0o640)
    os.utime(partition / MIDDLE, (1_700_000_000, 1_700_000_000))
    apply_repair(plan_repair(partition), Disk())
    status = (partition / MIDDLE).stat()
    assert (status.st_mode & 0o777, int(status.st_mtime)) == (0o640, 1_700_000_000)


def test_forgotten_repairs_cannot_be_undone(tmp_path: Path) -> None:
    partition = copy_of("multiseg", tmp_path)
    payload(partition)
    apply_repair(plan_repair(partition), Disk())
    assert forget_repairs(partition, Disk()) == 1
    assert repairs_of(partition) == []

"""Files that are misnamed, copied, emptied or left over: a repair keeps every batch at its offset,
and lists what no file has."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.maintenance.repair.files import apply_repair, undo_repair
from stratalog.maintenance.repair.plan import plan_repair
from stratalog.maintenance.verify.directory import verify_partition
from stratalog.storage.disk import Disk
from tests.golden.cases import GoldenCase
from tests.maintenance.partition_copies import copy_of, files_of, records_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _log(partition: Path, base: int) -> Path:
    return partition / f"{base:020d}.log"


def _rename(partition: Path, base: int, to: int) -> None:
    _log(partition, base).rename(_log(partition, to))


# -- faults that lose no batch


def name_above(partition: Path) -> None:
    _rename(partition, 453, 500)


def name_far_above(partition: Path) -> None:
    """The segment sorts after all others, and would be the end of the log."""
    _rename(partition, 453, 10**6)


def first_name_above(partition: Path) -> None:
    _rename(partition, 0, 2)


def name_below(partition: Path) -> None:
    """Batches of the segment before it are at or above its name."""
    _rename(partition, 453, 440)


def name_in_a_batch(partition: Path) -> None:
    """The last batch of the segment before has offsets 918 and 919."""
    _rename(partition, 920, 919)


def swapped_names(partition: Path) -> None:
    _log(partition, 453).rename(partition / "other")
    _rename(partition, 1105, 453)
    (partition / "other").rename(_log(partition, 1105))


def swapped_names_at_the_start(partition: Path) -> None:
    _log(partition, 0).rename(partition / "other")
    _rename(partition, 156, 0)
    (partition / "other").rename(_log(partition, 156))


def copied_under_the_next_name(partition: Path) -> None:
    """The first batch of the segment has offsets 453 and 454."""
    shutil.copy(_log(partition, 453), _log(partition, 454))


def copied_into_the_middle(partition: Path) -> None:
    shutil.copy(_log(partition, 453), _log(partition, 520))


def copied_below(partition: Path) -> None:
    shutil.copy(_log(partition, 453), _log(partition, 450))


def swap_file_below_its_batches(partition: Path) -> None:
    """A compaction that was interrupted, whose file has a wrong name too."""
    _log(partition, 453).rename(partition / f"{440:020d}.log.swap")


HARMLESS = [
    name_above, name_far_above, first_name_above, name_below, name_in_a_batch, swapped_names,
    swapped_names_at_the_start, copied_under_the_next_name, copied_into_the_middle, copied_below,
    swap_file_below_its_batches,
]  # fmt: skip


@pytest.mark.parametrize("fault", HARMLESS, ids=lambda fault: fault.__name__)
def test_misnamed_files_lose_nothing(fault: Callable[[Path], None], tmp_path: Path) -> None:
    partition = copy_of("multiseg", tmp_path)
    expected = records_of(partition)
    fault(partition)
    faulty = files_of(partition)
    assert verify_partition(partition).has_errors
    plan = plan_repair(partition)
    assert (plan.lost, plan.missing, plan.corrected) == ((), (), ())
    repair = apply_repair(plan, Disk())
    assert records_of(partition) == expected
    assert not verify_partition(partition).has_errors
    assert plan_repair(partition).is_empty
    undo_repair(repair, Disk())
    assert files_of(partition) == faulty


def test_a_renamed_segment_of_a_compacted_log_keeps_its_batches(tmp_path: Path) -> None:
    partition = copy_of("compact-gzip", tmp_path)
    expected = records_of(partition)
    first, second = sorted(partition.glob("*.log"))[1:3]
    first.rename(partition / "other")
    second.rename(first)
    (partition / "other").rename(second)
    plan = plan_repair(partition)
    assert plan.lost == ()
    apply_repair(plan, Disk())
    assert records_of(partition) == expected
    assert plan_repair(partition).is_empty


def test_a_batch_keeps_its_offset_where_names_are_wrong(tmp_path: Path) -> None:
    """The last batch of a segment would fit the room that a wrong name leaves it."""
    partition = copy_of("txn", tmp_path)
    expected = records_of(partition)
    _rename(partition, 117, 112)
    plan = plan_repair(partition)
    assert plan.corrected == ()
    apply_repair(plan, Disk())
    assert records_of(partition) == expected


def test_a_misnamed_segment_is_restored_once(tmp_path: Path) -> None:
    """The copy has a segment of the name that a corrupt one has here."""
    partition, copy = copy_of("multiseg", tmp_path / "a"), copy_of("multiseg", tmp_path / "b")
    _log(partition, 760).unlink()
    _log(partition, 1485).rename(_log(partition, 760))
    os.truncate(_log(partition, 0), 0)
    apply_repair(plan_repair(partition, [copy]), Disk())
    assert records_of(partition) == records_of(copy)
    assert plan_repair(partition, [copy]).is_empty


def test_a_batch_that_fits_nowhere_is_listed(tmp_path: Path) -> None:
    """Nothing beside the only batch of a segment tells whether its name or its offset is wrong."""
    partition = copy_of("v0-lz4", tmp_path)
    _log(partition, 85).rename(partition / "other")
    _rename(partition, 199, 85)
    (partition / "other").rename(_log(partition, 199))
    before = records_of(GoldenCase("v0-lz4").partition_dir)
    plan = plan_repair(partition)
    apply_repair(plan, Disk())
    after = records_of(partition)
    listed = [(each.first_offset, each.next_offset) for each in plan.lost]
    assert max(before) == 206
    assert 206 not in after
    assert (206, 207) in listed


def test_old_batches_are_restored_beside_leader_epochs_of_another_log(tmp_path: Path) -> None:
    """They have no leader epoch, whatever the checkpoint says."""
    partition, copy = copy_of("v0-none", tmp_path / "a"), copy_of("v0-none", tmp_path / "b")
    name = "leader-epoch-checkpoint"
    shutil.copy(GoldenCase("txn").partition_dir / name, partition / name)
    _log(partition, 64).write_bytes(bytes(1000))
    apply_repair(plan_repair(partition, [copy]), Disk())
    assert records_of(partition) == records_of(copy)


def test_an_empty_file_inside_a_segment_does_not_look_compacted(tmp_path: Path) -> None:
    partition, copy = copy_of("multiseg", tmp_path / "a"), copy_of("multiseg", tmp_path / "b")
    _log(partition, 1484).touch()
    for path in partition.glob(f"{453:020d}.*"):
        path.unlink()
    (missing,) = plan_repair(partition).missing
    assert (missing.first_offset, missing.next_offset) == (453, 602)
    apply_repair(plan_repair(partition, [copy]), Disk())
    assert records_of(partition) == records_of(copy)


@pytest.mark.parametrize("content", ["empty", "zeros"])
def test_an_emptied_segment_does_not_look_compacted(content: str, tmp_path: Path) -> None:
    """Cleaners leave empty segments too, but not an index past the end, and no zeros."""
    partition, copy = copy_of("multiseg", tmp_path / "a"), copy_of("multiseg", tmp_path / "b")
    path = _log(partition, 453)
    path.write_bytes(b"" if content == "empty" else bytes(path.stat().st_size))
    plan = plan_repair(partition)
    listed = [(each.first_offset, each.next_offset) for each in (*plan.lost, *plan.missing)]
    assert (453, 602) in listed
    apply_repair(plan_repair(partition, [copy]), Disk())
    assert records_of(partition) == records_of(copy)


@pytest.mark.parametrize(("swap", "hidden", "end"), [(312, 453, 602), (1295, 1485, 1500)])
def test_what_an_interrupted_compaction_hides_is_listed(
    swap: int, hidden: int, end: int, tmp_path: Path
) -> None:
    """The file that is to be replaced goes on after the end of the file in its place."""
    partition = copy_of("multiseg", tmp_path)
    expected = records_of(partition)
    _log(partition, swap).rename(partition / f"{swap:020d}.log.swap")
    _rename(partition, hidden, hidden - 5)
    faulty = files_of(partition)
    plan = plan_repair(partition)
    assert [(each.first_offset, each.next_offset) for each in plan.missing] == [(hidden, end)]
    repair = apply_repair(plan, Disk())
    assert expected.keys() - records_of(partition).keys() == set(range(hidden, end))
    undo_repair(repair, Disk())
    assert files_of(partition) == faulty

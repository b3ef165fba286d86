"""Rounds whose work is done as tasks end in the very files that a local round leaves."""

from __future__ import annotations

import pickle
import shutil
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pytest

from stratalog.errors import CleaningAbortedError, CorruptBatchError
from stratalog.maintenance.cleaning import distributed as spread
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.distributed import DistributedCleaner
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.interrupted_changes import CLEANING_DIRECTORY
from tests.golden.cases import compaction_cases
from tests.maintenance.cleaning.cleaning_cases import opened, over_cases, rounds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.distributed import (
        MapPart,
        MapTask,
        RewriteTask,
        RewrittenGroup,
    )
    from stratalog.maintenance.cleaning.plan import CleaningPlan, CleaningResult
    from tests.golden.cases import CompactionCase
    from tests.maintenance.cleaning.cleaning_cases import GoldenRound

T = TypeVar("T")

MEMORY_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def _small_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "SPILL_BYTES", 24 * 100)


class Elsewhere:
    """Every task goes to its worker as bytes; each is run twice, as a cluster may do, and out of
    order. The first answer counts."""

    def map_all(self, tasks: Sequence[MapTask]) -> list[MapPart]:
        answers = {id(task): sent(sent(task).run(spill_bytes=24 * 400)) for task in tasks[::-1]}
        return [answers[id(task)] for task in tasks]

    def rewrite_all(self, tasks: Sequence[RewriteTask]) -> list[RewrittenGroup]:
        answers = {id(task): sent(sent(task).run()) for task in tasks[::-1]}
        for task in tasks:
            sent(task).run()
        return [answers[id(task)] for task in tasks]


def sent(value: T) -> T:
    received: T = pickle.loads(pickle.dumps(value))
    return received


@pytest.mark.slow
@over_cases
def test_same_files_as_a_local_round(
    case: CompactionCase, compaction_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    for golden in rounds_of(case, compaction_dir(case.name)):
        if not golden.was_cleaned:
            continue
        local, there = tmp_path / "local" / golden.before.name, tmp_path / golden.before.name
        here = clean(golden, case, local, Cleaner(MEMORY_BYTES))
        elsewhere = clean(golden, case, there, DistributedCleaner(Elsewhere()))
        assert facts(here) == facts(elsewhere)
        assert files_of(local) == files_of(there)
        shutil.rmtree(local)
        shutil.rmtree(there)


def clean(
    golden: GoldenRound, case: CompactionCase, path: Path, cleaner: Cleaner | DistributedCleaner
) -> CleaningResult:
    shutil.copytree(golden.before, path)
    with opened(golden, path, case) as log:
        looked = cleaner_log(log, golden.told["checkpoint_before"])
        result = cleaner.clean(log, plan_cleaning(looked, golden.config, golden.now_ms))
        log.maintenance.remove_discarded(golden.now_ms, at_once=True)
    return result


def facts(result: CleaningResult) -> tuple[object, ...]:
    return (
        result.end_offset,
        result.groups,
        result.map_entries,
        result.bytes_read,
        result.bytes_written,
        result.records_read,
        result.records_kept,
        result.records_without_key,
    )


def files_of(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        file.name: (file.read_bytes(), file.stat().st_mtime_ns if "log" in file.name else 0)
        for file in path.iterdir()
    }


def test_merging_grows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spread, "SPILL_BYTES", 24 * 10)
    monkeypatch.setattr(spread, "MERGE_ENTRIES", 4)
    rng = np.random.default_rng(7)
    entries = rng.integers(-(1 << 63), 1 << 63, (1000, 3), np.int64)
    entries[:, 2] = np.arange(1000)
    newer = entries[::2] + np.array([0, 0, 1000])
    parts = []
    for number, part in enumerate((newer, entries)):
        file = tmp_path / str(number)
        part.tofile(file)
        parts.append(spread.MapPart(number, (file,), ()))
    merged = spread.merge(parts, 0, (1, 2))
    assert merged.entries == 1000
    expected = {(a, b): c for a, b, c in entries.tolist()} | {
        (a, b): c for a, b, c in newer.tolist()
    }
    assert {(a, b): c for a, b, c in merged.entries_in().tolist()} == expected


class Plain(NamedTuple):
    """The first round of the plain case, and a copy of its log."""

    case: CompactionCase
    golden: GoldenRound
    path: Path

    def open(self) -> PartitionLog:
        return opened(self.golden, self.path, self.case)

    def select(self, log: PartitionLog) -> CleaningPlan:
        return plan_cleaning(cleaner_log(log, None), self.golden.config, self.golden.now_ms)

    def check_nothing_is_left(self) -> None:
        assert not (self.path / CLEANING_DIRECTORY).exists()
        assert not list(self.path.glob("*.cleaned"))


@pytest.fixture
def plain(compaction_dir: Callable[[str], Path], tmp_path: Path) -> Plain:
    case = next(case for case in compaction_cases() if case.name == "plain")
    golden = next(iter(rounds_of(case, compaction_dir(case.name))))
    path = tmp_path / golden.before.name
    shutil.copytree(golden.before, path)
    return Plain(case, golden, path)


def test_failed_task_leaves_the_log_as_it_was(plain: Plain) -> None:
    class Failing(Elsewhere):
        def rewrite_all(self, tasks: Sequence[RewriteTask]) -> list[RewrittenGroup]:
            super().rewrite_all(tasks)
            raise CorruptBatchError("made up", position=0)

    with plain.open() as log, pytest.raises(CorruptBatchError, match="made up"):
        DistributedCleaner(Failing()).clean(log, plain.select(log))
    expected = {name for name in files_of(plain.golden.before) if not name.endswith("snapshot")}
    assert {name for name in files_of(plain.path) if not name.endswith("snapshot")} == expected


def test_log_that_is_cut_meanwhile(plain: Plain) -> None:
    with plain.open() as log:

        class Truncating(Elsewhere):
            def rewrite_all(self, tasks: Sequence[RewriteTask]) -> list[RewrittenGroup]:
                done = super().rewrite_all(tasks)
                log.truncate_to(log.log_end_offset - 1)
                return done

        before = [segment.base_offset for segment in log.segments]
        with pytest.raises(CleaningAbortedError, match="cut"):
            DistributedCleaner(Truncating()).clean(log, plain.select(log))
        assert [segment.base_offset for segment in log.segments] == before
        plain.check_nothing_is_left()


def test_corruption_by_a_truncation_aborts_the_pass(plain: Plain) -> None:
    with plain.open() as log:

        class Truncating(Elsewhere):
            def map_all(self, tasks: Sequence[MapTask]) -> list[MapPart]:
                log.truncate_to(log.log_end_offset - 1)
                raise CorruptBatchError("half of it is gone", path=tasks[0].source.path)

        with pytest.raises(CleaningAbortedError, match="truncated meanwhile"):
            DistributedCleaner(Truncating()).clean(log, plain.select(log))


def test_segments_that_are_deleted_meanwhile(plain: Plain) -> None:
    with plain.open() as log:

        class Deleting(Elsewhere):
            def rewrite_all(self, tasks: Sequence[RewriteTask]) -> list[RewrittenGroup]:
                done = super().rewrite_all(tasks)
                log.maintenance.delete_oldest(len(tasks[0].sources))
                return done

        with pytest.raises(CleaningAbortedError, match="deleted"):
            DistributedCleaner(Deleting()).clean(log, plain.select(log))
        assert log.is_usable
        plain.check_nothing_is_left()


def test_opening_sweeps_what_a_dead_leader_left(plain: Plain) -> None:
    left = plain.path / CLEANING_DIRECTORY / "group-0-0123"
    left.mkdir(parents=True)
    (left / f"{0:020d}.log.cleaned").write_bytes(b"half a")
    with plain.open():
        assert not (plain.path / CLEANING_DIRECTORY).exists()

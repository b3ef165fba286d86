"""Leads a round of cleaning that is spread over processes: see `spread` for its tasks."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from stratalog.errors import CleaningAbortedError
from stratalog.maintenance.cleaning.offset_map import random_secret
from stratalog.maintenance.cleaning.rewrite_plan import RewritePlan
from stratalog.maintenance.cleaning.rounds import CleaningResult, given_up_if_cut
from stratalog.maintenance.cleaning.sources import sources_of
from stratalog.maintenance.cleaning.spread import (
    MapTask,
    RewriteTask,
    merge,
    transactions_before,
)
from stratalog.maintenance.settling import ROUND_DIRECTORY
from stratalog.storage.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.offset_map import OffsetMap
    from stratalog.maintenance.cleaning.selection import Selection
    from stratalog.maintenance.cleaning.sources import Source
    from stratalog.maintenance.cleaning.spread import MapPart, RewrittenGroup


class TaskRunner(Protocol):
    """Runs tasks, wherever: their answers in the order of the tasks. Raises what a task raised."""

    def map_all(self, tasks: Sequence[MapTask]) -> list[MapPart]: ...

    def rewrite_all(self, tasks: Sequence[RewriteTask]) -> list[RewrittenGroup]: ...


class SpreadCleaner:
    """Has the interface of `Cleaner`. The log must lie where all that run tasks see it."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    def clean(
        self,
        log: PartitionLog,
        selection: Selection,
        *,
        on_progress: Callable[[int], None] = lambda _: None,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> CleaningResult:
        """One round, as `Cleaner.clean`, with the same errors if the runner raises what tasks do.
        Progress is told when a pass, or a group, is done."""
        directory, disk = log.path / ROUND_DIRECTORY, log.disk
        disk.remove_tree(directory)
        disk.mkdir(directory)
        try:
            return _Round(log, selection, directory, may_go_on, on_progress).run(self._runner)
        finally:
            disk.remove_tree(directory)


class _Round:
    def __init__(
        self,
        log: PartitionLog,
        selection: Selection,
        directory: Path,
        may_go_on: Callable[[], bool],
        on_progress: Callable[[int], None],
    ) -> None:
        self._log = log
        self._selection = selection
        self._directory = directory
        self._may_go_on = may_go_on
        self._on_progress = on_progress
        self._is_cut = log.cut_detector()
        self._started = time.monotonic()

    def run(self, runner: TaskRunner) -> CleaningResult:
        with given_up_if_cut(self._log.path, self._is_cut):
            return self._run(runner)

    def _run(self, runner: TaskRunner) -> CleaningResult:
        log, selection = self._log, self._selection
        first_dirty, bound = selection.first_dirty_offset, selection.first_uncleanable_offset
        if bound > log.last_stable_offset:
            raise CleaningAbortedError(log.path, "it was cut since it was selected")
        sources = sources_of(log, selection)
        secret = random_secret()
        parts = runner.map_all(
            [MapTask(source, first_dirty, secret, self._directory) for source in sources]
        )
        keys = merge(parts, first_dirty, secret)
        keys.skip_to(bound)
        self._step([source for source in sources if source.end_offset > first_dirty])
        plan = RewritePlan.of(log, selection, max(first_dirty, bound))
        groups = plan.grouped(sources)
        done = runner.rewrite_all(self._rewrite_tasks(plan, groups, parts, keys))
        for group, rewritten in zip(groups, done, strict=True):
            self._install(group, rewritten)
            self._step(group)
        return self._result(plan, done, keys)

    def _rewrite_tasks(
        self,
        plan: RewritePlan,
        groups: Sequence[tuple[Source, ...]],
        parts: Sequence[MapPart],
        keys: OffsetMap,
    ) -> list[RewriteTask]:
        saved = keys.save(self._directory / "offset-map")
        small = replace(plan, groups=())
        befores = transactions_before(groups, parts)
        return [
            RewriteTask(group, small, saved, before, self._directory)
            for group, before in zip(groups, befores, strict=True)
        ]

    def _install(self, group: Sequence[Source], rewritten: RewrittenGroup) -> None:
        log, bases = self._log, [source.base_offset for source in group]
        path = rewritten.move_to(log.path, log.disk)
        new = Segment(log.disk, path, rewritten.base_offset, rewritten.size_bytes, log.config)
        old_bytes = sum(source.facts.size_bytes for source in group)
        log.replace_segments(bases, new, old_bytes=old_bytes, is_cut=self._is_cut)

    def _step(self, sources: Sequence[Source]) -> None:
        if not self._may_go_on():
            raise CleaningAbortedError(self._log.path, "it was told to stop")
        self._on_progress(sum(source.facts.size_bytes for source in sources))

    def _result(
        self, plan: RewritePlan, done: Sequence[RewrittenGroup], keys: OffsetMap
    ) -> CleaningResult:
        return CleaningResult(
            first_dirty_offset=self._selection.first_dirty_offset,
            end_offset=plan.end_offset,
            first_uncleanable_offset=plan.bound,
            groups=plan.bases,
            map_entries=keys.entries,
            is_map_full=False,
            bytes_read=sum(facts.size_bytes for group in plan.groups for facts in group),
            bytes_written=sum(group.size_bytes for group in done),
            records_read=sum(group.records_read for group in done),
            records_kept=sum(group.records_kept for group in done),
            records_without_key=sum(group.records_without_key for group in done),
            seconds=time.monotonic() - self._started,
        )

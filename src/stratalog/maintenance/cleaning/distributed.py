"""A cleaning pass that runs as tasks in other processes. Tasks are values and safe to repeat.

The steps are those of `cleaner`. In the first, one task per segment writes the last offsets of its
keys to files, and the leader merges them into one offset map, which is a file too. In the second,
one task per group of segments rewrites it with that map. Only the leader changes the log: it
installs the rewritten segments, group by group.

All files are in a directory inside the partition directory, so that installing them never crosses
file systems and the next opening of the log removes leftovers. Each attempt of a task writes to a
directory of its own.

The result is that of a local pass with memory for all keys. A task needs memory for the keys of a
part of a segment (it spills), and maps the merged table from its file.
"""

from __future__ import annotations

import secrets
import time
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from stratalog.errors import LimitExceededError
from stratalog.format.counts import added
from stratalog.format.kernels.offset_map import SLOT_BYTES
from stratalog.format.names import FileKind, FileState, segment_file_name
from stratalog.maintenance.cleaning.filtering import CleanedTransactions
from stratalog.maintenance.cleaning.offset_map import OffsetMap, events_of, put_run, random_secret
from stratalog.maintenance.cleaning.plan import UNCONTROLLED, RecordCounts, abort_if_truncated
from stratalog.maintenance.cleaning.rewriting import CleanedSegment, RewritePlan, Rewriter
from stratalog.maintenance.cleaning.sources import BatchReader, sources_of_log
from stratalog.maintenance.interrupted_changes import CLEANING_DIRECTORY
from stratalog.storage.disk import Disk
from stratalog.storage.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.offset_map import SavedMap, TxnEvent
    from stratalog.maintenance.cleaning.plan import CleaningPlan, CleaningResult, PassControl
    from stratalog.maintenance.cleaning.sources import BatchRun, SourceSegment

SPILL_BYTES: Final = 64 << 20
MERGE_ENTRIES: Final = 1 << 20
SEGMENT_KINDS: Final = (
    FileKind.LOG,
    FileKind.OFFSET_INDEX,
    FileKind.TIME_INDEX,
    FileKind.TXN_INDEX,
)


# -- the first step: map keys to offsets


@dataclass(frozen=True, slots=True)
class MapTask:
    """Find the last offset of each key in one segment."""

    source: SourceSegment
    first_dirty_offset: int
    secret: tuple[int, int]
    directory: Path

    @property
    def size_bytes(self) -> int:
        return self.source.facts.size_bytes

    def run(self, spill_bytes: int = SPILL_BYTES) -> MapPart:
        """Run the task, in any process that can read the files. In a clean segment only
        transactions are recorded."""
        attempt = self.directory / f"keys-{self.source.base_offset}-{secrets.token_hex(8)}"
        keys = _SpillingMap(self, attempt, spill_bytes)
        events: list[TxnEvent] = []
        is_dirty = self.source.end_offset > self.first_dirty_offset
        with BatchReader() as reader:
            for run in self.source.runs(reader):
                events += events_of(run)
                if is_dirty:
                    keys.put(run)
        return MapPart(self.source.base_offset, keys.finish(), tuple(events))


@dataclass(frozen=True, slots=True)
class MapPart:
    """What a MapTask found."""

    base_offset: int
    files: tuple[Path, ...]
    """Hash and offset of each key, three words an entry."""
    events: tuple[TxnEvent, ...]


class _SpillingMap:
    """A map that is written to a file and cleared whenever it might get full."""

    def __init__(self, task: MapTask, attempt: Path, memory_bytes: int) -> None:
        self._first_dirty_offset = task.first_dirty_offset
        self._attempt = attempt
        self._keys = OffsetMap(memory_bytes, secret=task.secret)
        self._keys.clear(task.first_dirty_offset)
        self._transactions = CleanedTransactions()
        self._transactions.add_aborted(task.source.aborted)
        self._files: list[Path] = []

    def put(self, run: BatchRun) -> None:
        if run.payloads is not None:
            self._put(run, int(run.rows["record_count"].sum(dtype=np.int64)))
            return
        for row in range(len(run.rows)):  # old sets do not declare their record count
            self._put(run._replace(rows=run.rows[row : row + 1]), self._keys.entries_max // 2)

    def _put(self, run: BatchRun, records_max: int) -> None:
        keys = self._keys
        if keys.entries + records_max > keys.entries_max:
            self._spill()
        put_run(keys, run, self._transactions, self._first_dirty_offset)
        if keys.is_full:
            raise LimitExceededError(
                f"{run.path}: the keys of one batch do not fit into {keys.slots * SLOT_BYTES} bytes"
            )

    def _spill(self) -> None:
        if self._keys.entries:
            path = self._attempt.with_name(f"{self._attempt.name}-{len(self._files)}")
            self._keys.entries_in().tofile(path)
            self._files.append(path)
            self._keys.clear(self._first_dirty_offset)

    def finish(self) -> tuple[Path, ...]:
        """The files that together have all keys."""
        self._spill()
        return tuple(self._files)


def merge(parts: Iterable[MapPart], first_dirty_offset: int, secret: tuple[int, int]) -> OffsetMap:
    """One map of all keys. It grows as it needs to."""
    merged = OffsetMap(SPILL_BYTES, secret=secret)
    merged.clear(first_dirty_offset)
    for file in [file for part in parts for file in part.files]:
        entries = np.memmap(file, np.int64, "r").reshape(-1, 3)
        for first in range(0, len(entries), MERGE_ENTRIES):
            some = entries[first : first + MERGE_ENTRIES]
            while merged.entries + len(some) > merged.entries_max:
                merged = _doubled(merged, secret, first_dirty_offset)
            merged.put_entries(some)
    return merged


def _doubled(keys: OffsetMap, secret: tuple[int, int], first_dirty_offset: int) -> OffsetMap:
    larger = OffsetMap(2 * keys.slots * SLOT_BYTES, secret=secret)
    larger.clear(first_dirty_offset)
    larger.put_entries(keys.entries_in())
    return larger


# -- the second step: rewrite segments


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Rewrite a group of adjacent segments into one."""

    sources: tuple[SourceSegment, ...]
    rewrite_plan: RewritePlan
    keys: SavedMap
    transactions: CleanedTransactions
    """The state after all segments before the group."""
    directory: Path

    @property
    def size_bytes(self) -> int:
        return sum(source.facts.size_bytes for source in self.sources)

    def run(self) -> RewrittenGroup:
        """Run the task, in any process that can read the files."""
        disk, keys = Disk(), OffsetMap.load(self.keys)
        attempt = self.directory / f"group-{self.sources[0].base_offset}-{secrets.token_hex(8)}"
        disk.mkdir(attempt)
        rules = self.rewrite_plan.rules(keys.get)
        rewriter = Rewriter(keys, rules, deepcopy(self.transactions))
        cleaned = CleanedSegment(
            disk, attempt, self.sources[0].base_offset, self.rewrite_plan.config
        )
        try:
            with BatchReader() as reader:
                for source in self.sources:
                    rewriter.rewrite_segment(source, cleaned, reader, lambda _: None)
            segment = cleaned.finish(self.sources[-1].facts.mtime_ms)
        except BaseException:
            cleaned.discard()
            raise
        base_offset = self.sources[0].base_offset
        return RewrittenGroup(attempt, base_offset, segment.size_bytes, rewriter.counts)


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """What a RewriteTask wrote: `.cleaned` files, complete and durable, in its directory."""

    directory: Path
    base_offset: int
    size_bytes: int
    counts: RecordCounts

    def move_to(self, target: Path, disk: Disk) -> Path:
        """Move the files into the partition directory; returns the path of the log file."""
        for kind in SEGMENT_KINDS:
            name = segment_file_name(self.base_offset, kind, FileState.CLEANED)
            if disk.exists(self.directory / name):
                disk.rename(self.directory / name, target / name)
        disk.fsync_dir(target)
        return target / segment_file_name(self.base_offset, FileKind.LOG, FileState.CLEANED)


def transactions_before(
    groups: Sequence[Sequence[SourceSegment]], parts: Iterable[MapPart]
) -> list[CleanedTransactions]:
    """The state of transactions before each group."""
    events = {part.base_offset: part.events for part in parts}
    transactions = CleanedTransactions()
    found = []
    for group in groups:
        found.append(deepcopy(transactions))
        for source in group:
            transactions.add_aborted(source.aborted)
            for event in events[source.base_offset]:
                event.apply(transactions)
            transactions.take_kept()
    return found


# -- the leader


class TaskRunner(Protocol):
    """Runs tasks anywhere; returns results in the order of the tasks. Raises what a task raised."""

    def map_all(self, tasks: Sequence[MapTask]) -> list[MapPart]: ...

    def rewrite_all(self, tasks: Sequence[RewriteTask]) -> list[RewrittenGroup]: ...


class DistributedCleaner:
    """Has the interface of `Cleaner`. All processes that run tasks must see the log's files."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    def clean(
        self, log: PartitionLog, plan: CleaningPlan, control: PassControl = UNCONTROLLED
    ) -> CleaningResult:
        """One cleaning pass, see `Cleaner.clean`. Progress is reported when a step or a group is
        done."""
        directory, disk = log.path / CLEANING_DIRECTORY, log.maintenance.disk
        disk.remove_tree(directory)
        disk.mkdir(directory)
        epoch = log.truncation_epoch
        try:
            with abort_if_truncated(log, epoch):
                return _DistributedPass(log, plan, directory, control, epoch).run(self._runner)
        finally:
            disk.remove_tree(directory)


@dataclass(frozen=True)
class _DistributedPass:
    log: PartitionLog
    plan: CleaningPlan
    directory: Path
    control: PassControl
    truncation_epoch: int
    started: float = field(default_factory=time.monotonic)

    def run(self, runner: TaskRunner) -> CleaningResult:
        log, plan = self.log, self.plan
        first_dirty, bound = plan.first_dirty_offset, plan.first_uncleanable_offset
        sources = sources_of_log(log, plan)
        secret = random_secret()
        parts = runner.map_all(
            [MapTask(source, first_dirty, secret, self.directory) for source in sources]
        )
        keys = merge(parts, first_dirty, secret)
        keys.skip_to(bound)
        self._step([source for source in sources if source.end_offset > first_dirty])
        rewrite_plan = RewritePlan.of_log(log, plan, max(first_dirty, bound))
        groups = rewrite_plan.grouped(sources)
        done = runner.rewrite_all(self._rewrite_tasks(rewrite_plan, groups, parts, keys))
        for group, rewritten in zip(groups, done, strict=True):
            self._install(group, rewritten)
            self._step(group)
        counts = added(RecordCounts(), *(group.counts for group in done))
        bytes_written = sum(group.size_bytes for group in done)
        seconds = time.monotonic() - self.started
        return rewrite_plan.result(plan, keys, counts, bytes_written, seconds)

    def _rewrite_tasks(
        self,
        rewrite_plan: RewritePlan,
        groups: Sequence[tuple[SourceSegment, ...]],
        parts: Sequence[MapPart],
        keys: OffsetMap,
    ) -> list[RewriteTask]:
        saved = keys.save(self.directory / "offset-map")
        small = replace(rewrite_plan, groups=())
        befores = transactions_before(groups, parts)
        return [
            RewriteTask(group, small, saved, before, self.directory)
            for group, before in zip(groups, befores, strict=True)
        ]

    def _install(self, group: Sequence[SourceSegment], rewritten: RewrittenGroup) -> None:
        log, bases = self.log, [source.base_offset for source in group]
        disk, epoch = log.maintenance.disk, self.truncation_epoch
        path = rewritten.move_to(log.path, disk)
        new = Segment(disk, path, rewritten.base_offset, rewritten.size_bytes, log.config)
        old_bytes = sum(source.facts.size_bytes for source in group)
        log.maintenance.replace_segments(bases, new, old_bytes=old_bytes, truncation_epoch=epoch)

    def _step(self, sources: Sequence[SourceSegment]) -> None:
        self.control.step(self.log.path, sum(source.facts.size_bytes for source in sources))

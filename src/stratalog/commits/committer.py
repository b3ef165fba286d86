"""Bulk commits: staged runs are appended to the logs, all of them once or none.

    result = logs.commits.commit(StagedCommit(runs, identity=CommitIdentity(query_id, batch_id)))

Steps, each durable before the next: read and check the staged files, and write their offsets into
those that will become segments; write the journal (from here on the commit is decided); for every
partition install and flush the runs, record that in the journal, remove the staged files; record
the identity; remove the journal. A failure before the journal is written leaves the logs unchanged.
A failure after it leaves the journal, and the staged files that are not recorded as installed; the
next commit or the next `LogDir.open` finishes it.

Readers, who need no lock, may see a part of a commit while it is being installed.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.commits import install
from stratalog.commits.install import check_run, install_partition, is_as_planned, resume
from stratalog.commits.journal import CommitProgress, JournalFile, plan_commit
from stratalog.commits.replays import CommitHistory
from stratalog.commits.staged import (
    STALE_MS,
    has_staged_files,
    sweep_commit,
    sweep_job,
    sweep_stale,
)
from stratalog.errors import (
    CommitError,
    CommitPendingError,
    CorruptError,
    InconsistentLogDirsError,
    StorageError,
    StratalogError,
)
from stratalog.format.names import TRANSACTION_STATE_TOPIC
from stratalog.log.offset_assignment import AppendRules
from stratalog.partitions.opening import OpenLogDirs, raise_first
from stratalog.partitions.root import LogContext
from stratalog.storage.closeable import Closeable
from stratalog.storage.locks import ProcessOwned
from stratalog.storage.staged_names import parse_staged_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from stratalog.commits.journal import CommitIdentity, Journal, JournalRun, PartitionCommit
    from stratalog.commits.staged import StagedCommit, StagedTopic
    from stratalog.config import BrokerConfig
    from stratalog.format.names import TopicPartition
    from stratalog.log.offset_assignment import FileBatches
    from stratalog.partitions.catalog import TopicCatalog
    from stratalog.partitions.opening import OpenOptions
    from stratalog.partitions.partition_table import PartitionSlot
    from stratalog.partitions.schedule import Schedule
    from stratalog.storage.disk import Disk

INSTALLERS_MAX: Final = 8
SWEEP_INTERVAL_MS: Final = 60 * 60 * 1000
_NONE_CHECKED: Final[Mapping[Path, FileBatches]] = {}

_log = logging.getLogger(__name__)


class CommitResult(NamedTuple):
    """The result of a commit."""

    record_count: int
    size_bytes: int
    is_replay: bool = False
    """Whether it was already committed: nothing was appended."""
    skipped_records: int = 0
    """Records that were already committed to their topics."""


class Commits(ProcessOwned):
    """Commits to log directories that are open for writing. Thread-safe: one at a time."""

    def __init__(self, catalog: TopicCatalog, context: LogContext) -> None:
        super().__init__(catalog.roots[0].path)
        self._catalog = catalog
        self._context = context
        self._disk = context.disk
        self._journal = JournalFile(context.disk, [root.path for root in catalog.roots])
        self._history = CommitHistory(catalog)

    def resume(self) -> None:
        """Finish the commit that the last writer has decided, if that is possible.

        If it is not (the disk is full, a staged file is corrupt), the directory still opens:
        the journal stays, and the next commit raises the error. If log directories are missing,
        perhaps with a journal, nothing is finished, and every partition with staged files counts
        as one that a decided commit still needs.
        """
        if self._catalog.missing_dirs:
            for slot in self._catalog.slots():
                slot.set_pending_commit(0 if has_staged_files(self._disk, slot.path) else None)
            return
        try:
            is_finished = self.finish()
        except StratalogError as error:
            _log.warning("%s", error)
        else:
            if is_finished or not all(root.last_shutdown.was_clean for root in self._catalog.roots):
                self.sweep()

    def schedule_sweeps(self, schedule: Schedule) -> None:
        """Finish a decided commit, and remove stale staged files, once an hour."""
        schedule.every(SWEEP_INTERVAL_MS, "removal of stale staged files", self._finish_and_sweep)

    def last_number(self, writer: str, topic: str | None = None) -> int | None:
        """The number of the writer's last commit to the topic (None: to any topic); None if there
        was none."""
        return self._history.last_number(writer, topic)

    def is_committed(self, identity: CommitIdentity | None, topic: str | None = None) -> bool:
        """Whether this commit, or a later one of the same writer, was committed to the topic."""
        if identity is None:
            return False
        last = self.last_number(identity.writer, topic)
        return last is not None and last >= identity.number

    def commit(self, commit: StagedCommit) -> CommitResult:
        """Append all staged runs, once.

        Raises CommitError or another StratalogError, and appends nothing, if a staged file is
        missing, unreadable or corrupt, or the topic has changed. Raises CommitReplayError if a
        commit with this identity has written other rows, and CommitPendingError if a commit is
        decided but could not be finished; the message names it.
        """
        self.check_process()
        with self._lock:
            self._catalog.check_complete("commit staged batches")
            self.finish()
            replay = self._history.check(commit)
            new = replay.new
            slots = self._slots_of(new)
            ends = {slot.topic_partition: slot.log().log_end_offset for slot in slots}
            for slot in slots:
                self._disk.fsync_dir(slot.path)  # the names; tasks have synced the content
            journal = plan_commit(new, ends, len(self._catalog.roots))
            checked = self._make_durable(new, journal)
            if journal.partitions:
                self._carry_out(self._decide(journal), journal, checked)
            self._sweep_commit(commit)
            is_replay = bool(replay.skipped_topics) and not new.runs
            return CommitResult(new.record_count, new.size_bytes, is_replay, replay.skipped_records)

    def is_pending(self, job: str, number: int = 0) -> bool:
        """Whether the commit is decided but not finished."""
        return any((found.job, found.number) == (job, number) for _, found in self._journal.read())

    def finish(self) -> bool:
        """Finish a decided commit. Returns whether there was one."""
        self.check_process()
        failure: CommitPendingError | None = None
        with self._lock:
            found = self._journal.read()
            for path, journal in found:
                try:
                    self._carry_out(path, journal)
                except CommitPendingError as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return bool(found)

    def forget_missing(self) -> None:
        """Log directories were declared lost: drop their parts of a decided commit."""
        with self._lock:
            for path, journal in self._journal.read():
                self._forget_missing(path, journal)

    def _forget_missing(self, path: Path, journal: Journal) -> None:
        parts = tuple(p for p in journal.partitions if self._catalog.find(p.topic_partition))
        for part in journal.partitions:
            if part not in parts:
                _log.warning(
                    "%s: %d records of commit %s were lost with a log directory",
                    part.topic_partition,
                    part.record_count,
                    journal.job,
                )
        if parts:
            left = replace(journal, partitions=parts, dir_count=len(self._catalog.roots))
            self._journal.write(left, path)
        else:
            self._journal.remove(path)  # none of its partitions is here, so it may be repeated

    def sweep(self, stale_ms: int = STALE_MS) -> int:
        """Remove staged files that were not written to for `stale_ms`. Returns how many."""
        self.check_process()
        with self._lock:
            if self._catalog.missing_dirs:
                return 0  # a journal in them may name the files
            needed = self._journal.run_names()
            now_ms = self._context.now_ms()
            return sum(
                sweep_stale(self._disk, slot.path, now_ms, needed, stale_ms)
                for slot in self._catalog.slots()
            )

    def _finish_and_sweep(self) -> None:
        """Partitions of a decided commit are not compacted until it is finished."""
        if not self._catalog.missing_dirs:
            try:
                self.finish()
            except StratalogError as error:
                _log.warning("%s", error)
        self.sweep()

    # -- steps

    def _slots_of(self, commit: StagedCommit) -> list[PartitionSlot]:
        """The partitions of the commit. Raises unless it belongs to them as they are now."""
        slots: dict[TopicPartition, PartitionSlot] = {}
        seen: set[Path] = set()
        for topic in {id(run.topic): run.topic for run in commit.runs}.values():
            self._check_topic(topic)
        for run in commit.runs:
            slot = self._catalog.find(run.topic_partition)
            if slot is None:
                raise CommitError(
                    f"partition {run.topic_partition} was deleted after rows were staged for it"
                )
            path, name = slot.path / run.name, parse_staged_name(run.name)
            if name is None or name[:2] != (commit.job, commit.number) or path in seen:
                raise CommitError(f"{path}: not a staged file of this commit, or named twice")
            seen.add(path)
            slots[run.topic_partition] = slot
        return list(slots.values())

    def _make_durable(self, commit: StagedCommit, journal: Journal) -> dict[Path, FileBatches]:
        """Before the decision: check all staged files, stamp large ones with the offsets that are
        planned for them, which syncs them, and sync what tasks have left to the commit.

        Each file goes through these steps by itself: while the disk writes one, another is read.
        Returns the batches of large runs, which may become segments.
        """
        unsynced = {run.name for run in commit.runs if not run.is_synced}
        large: dict[Path, FileBatches] = {}

        def make_durable(found: tuple[PartitionSlot, JournalRun, int]) -> None:
            slot, run, offset = found
            path = slot.path / run.name
            batches, is_stamped = _checked_run(path, run), False
            if run.size_bytes >= install.SEGMENT_BYTES_MIN:
                large[path] = batches
                is_stamped = slot.log().stamp_file(path, batches, offset)
            if not is_stamped and run.name in unsynced:
                self._disk.fsync(path)

        found = []
        for part in journal.partitions:
            slot, offset = self._catalog.slot(part.topic_partition), part.start_offset
            for run in part.runs:
                found.append((slot, run, offset))
                offset += run.record_count
        with _threads(len(found), "stratalog-sync") as pool:
            list(pool.map(make_durable, found))
        return large

    def _check_topic(self, staged: StagedTopic) -> None:
        info = self._catalog.topics.get(staged.name)
        if info is None or info.topic_id != staged.topic_id:
            raise CommitError(f"topic {staged.name!r} was deleted after rows were staged for it")
        if AppendRules.of(info.config) != staged.rules:
            raise CommitError(
                f"the settings of topic {staged.name!r} were changed after rows were staged for "
                "it; nothing was written, run the job again"
            )
        if info.partitions[-1] + 1 != staged.partition_count:
            raise CommitError(
                f"topic {staged.name!r} has {info.partitions[-1] + 1} partitions, but had "
                f"{staged.partition_count} when rows were staged for it; nothing was written, run "
                "the job again"
            )

    def _decide(self, journal: Journal) -> Path:
        """Write the journal. If that fails after it was renamed, the next opening finds it."""
        try:
            return self._journal.write(journal)
        except StorageError as error:
            if not self.is_pending(journal.job, journal.number):
                raise
            raise CommitPendingError(
                f"the journal of commit {journal.job}-{journal.number} was written, but perhaps "
                f"not durably: {error}. Open the directory again: this finishes the commit if the "
                "journal still exists. Until then do not write its rows again"
            ) from error

    def _carry_out(
        self, path: Path, journal: Journal, checked: Mapping[Path, FileBatches] = _NONE_CHECKED
    ) -> None:
        """Everything after the decision. Can be interrupted and repeated at any time."""
        progress = CommitProgress(self._journal, path, journal)
        try:
            present = self._present(journal)
            for slot, part in present:
                slot.set_pending_commit(None if part.is_installed else part.start_offset)
            with _threads(len(present), "stratalog-install") as pool:
                for _ in pool.map(partial(self._install, progress, checked), present):
                    pass
            self._history.record(journal)
            self._journal.remove(path)
        except StratalogError as error:
            raise CommitPendingError(
                f"commit {journal.job}-{journal.number} is decided ({path}) but could not be "
                f"finished: {error}. The next commit, or opening the directory again, finishes it; "
                "do not write its rows again"
            ) from error

    def _install(
        self,
        progress: CommitProgress,
        checked: Mapping[Path, FileBatches],
        found: tuple[PartitionSlot, PartitionCommit],
    ) -> None:
        """Install the runs of a partition. Holds the log's lock, so that nobody appends between
        reading the log end and installing there."""
        slot, part = found
        if not part.is_installed:
            log = slot.log()
            with log.maintenance.lock:
                left = resume(log, part)
                if not is_as_planned(part, left):
                    log.flush()  # what was found must survive a crash, too
                    progress.record(left)
                install_partition(log, left, checked)
            progress.record(replace(left, is_installed=True))
            slot.set_pending_commit(None)
        for run in part.runs:  # at once, so that a large commit does not need twice its space
            _remove_staged(self._disk, slot.path / run.name)

    def _present(self, journal: Journal) -> list[tuple[PartitionSlot, PartitionCommit]]:
        """The partitions of a commit, without those that were deleted since."""
        present = []
        for part in journal.partitions:
            slot = self._catalog.find(part.topic_partition)
            info = self._catalog.topics.get(part.topic_partition.topic)
            if slot is not None and info is not None and info.topic_id == part.topic_id:
                present.append((slot, part))
            elif len(self._catalog.roots) < journal.dir_count:
                raise InconsistentLogDirsError(
                    f"{part.topic_partition} is needed to finish a commit: open all "
                    f"{journal.dir_count} log directories together"
                )
        return present

    def _sweep_commit(self, commit: StagedCommit) -> None:
        """Remove files of other attempts of its tasks, and stale files in the same directories."""
        directories = {path for run in commit.runs for _, path in run.topic.dirs}
        sweep_commit(self._disk, directories, commit.job, commit.number)
        now_ms = self._context.now_ms()
        for directory in directories:
            sweep_stale(self._disk, directory, now_ms)


ResumeTransactions: TypeAlias = "Callable[[TopicCatalog, LogContext, bool], None]"
"""What takes over the transactions of the last writer, given whether its shutdown was clean."""


class CommitDirs(Closeable):
    """Log directories opened for bulk commits only: their topics and commits, but no producers and
    no background work. Use it as a context manager."""

    def __init__(
        self,
        paths: Sequence[Path],
        config: BrokerConfig,
        options: OpenOptions | None = None,
        resume_transactions: ResumeTransactions | None = None,
    ) -> None:
        """Open the directories. After an unclean shutdown every log is recovered, and a decided
        commit is finished. `resume_transactions` ends transactions that have timed out or were
        decided; without it they wait for the next `LogDir.open`."""
        self._dirs = OpenLogDirs(paths, LogContext.of(config), options)
        self.catalog = self._dirs.catalog
        try:
            self._dirs.start()
            self.catalog.finish_changes()
            self._dirs.recover()
            if resume_transactions is None:
                self._leave_transactions()
            else:
                was_clean = not self._dirs.unclean_roots
                resume_transactions(self.catalog, self._dirs.context, was_clean)
            self.commits = Commits(self.catalog, self._dirs.context)
            self.commits.resume()
        except BaseException:
            self._dirs.abandon()
            raise

    def _leave_transactions(self) -> None:
        """Transactions that a crash left open are ended by the next `LogDir.open`, which knows by
        the missing clean-shutdown marker that it has to."""
        if TRANSACTION_STATE_TOPIC in self.catalog.topics:
            for root in self._dirs.unclean_roots:
                root.needs_recovery = True

    def close(self) -> None:
        """Close all logs and release the lock. Raises the first error."""
        raise_first(self._dirs.close())


def _threads(count: int, name: str) -> ThreadPoolExecutor:
    threads = min(INSTALLERS_MAX, 2 * (os.cpu_count() or 1), max(1, count))
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


def _checked_run(path: Path, run: JournalRun) -> FileBatches:
    """Before the decision: afterwards the commit cannot be refused."""
    try:
        return check_run(path, run)
    except StorageError as error:
        raise CommitError(
            f"{error}. Nothing was written; tasks and driver must run as users who can read each "
            "other's files"
        ) from error
    except CorruptError as error:
        raise CommitError(f"{error}. Nothing was written, run the job again") from error


def _remove_staged(disk: Disk, path: Path) -> None:
    """Remove a file whose records are in the log. If that fails, it is swept when it is stale."""
    try:
        disk.unlink(path, missing_ok=True)
    except StorageError as error:
        _log.warning("%s", error)


def remove_staged_files(
    disk: Disk,
    dirs: Sequence[Path],
    staged_dirs: Iterable[Path],
    *,
    job: str | None = None,
    names: Collection[str] = (),
) -> int:
    """Remove the staged files of a failed job, unless its commit is decided: all files of `job`,
    which nobody else may use, and those in `names`. Returns how many were removed.

    The caller holds the lock of the directories. Without it the job's own commit, if it is still
    running somewhere, could decide on files that are being removed.
    """
    decided = JournalFile(disk, dirs).run_names()
    return sweep_job(disk, staged_dirs, job, set(names), decided)

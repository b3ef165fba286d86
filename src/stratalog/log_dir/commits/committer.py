"""Commits of staged runs to log directories that are open for writing.

    result = logs.commits.commit(StagedCommit(runs, identity=CommitIdentity(query_id, batch_id)))

Steps, each durable before the next: check what was staged; write the journal (from here on the
commit is decided); install and flush every partition; note the identity; remove what is left of
the staged files, then the journal. Before the journal is written a failure leaves the logs as they
were. Afterwards it leaves a journal that the next commit, or the next `LogDir.open`, finishes.

Readers, who need no lock, may see a part of a commit while it is being installed.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CommitError, InconsistentLogDirsError, StratalogError
from stratalog.format.staged_names import parse_staged_name
from stratalog.log.appends import AppendRules
from stratalog.log_dir.commits.install import install_partition, resume
from stratalog.log_dir.commits.journal import Decision, JournalFile, plan_commit
from stratalog.log_dir.commits.sweeping import STALE_MS, sweep_commit, sweep_stale

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.format.names import TopicPartition
    from stratalog.log_dir.catalog import TopicCatalog
    from stratalog.log_dir.commits.journal import CommitIdentity, Journal, PartitionCommit
    from stratalog.log_dir.commits.staged import StagedCommit, StagedRun, StagedTopic
    from stratalog.log_dir.root import Engine, PartitionSlot
    from stratalog.log_dir.schedule import Schedule
    from stratalog.storage.disk import Disk

INSTALLERS_MAX: Final = 8
SWEEP_INTERVAL_MS: Final = 60 * 60 * 1000

_log = logging.getLogger(__name__)


class CommitResult(NamedTuple):
    """What a commit has done."""

    record_count: int
    size_bytes: int
    is_replay: bool = False
    """The same commit came before: nothing was appended."""


class Commits:
    """Commits to the log directories whose lock is held. Thread-safe: they take turns."""

    def __init__(self, catalog: TopicCatalog, engine: Engine) -> None:
        self._catalog = catalog
        self._engine = engine
        self._disk = engine.disk
        self._journal = JournalFile(engine.disk, [root.path for root in catalog.roots])
        self._lock = threading.RLock()

    def begin(self, schedule: Schedule) -> None:
        """Finish what the last writer has decided, if that is possible.

        If it is not (the disk is full, a staged file is damaged), the directory opens all the same:
        the journal stays, and the next commit says what is wrong.
        """
        try:
            is_finished = self.finish()
        except StratalogError as error:
            _log.warning("a commit could not be finished and is left for later: %s", error)
        else:
            if is_finished or not all(root.last_stop.was_clean for root in self._catalog.roots):
                self.sweep()
        schedule.every(SWEEP_INTERVAL_MS, "sweep of staged files", self._sweep_all)

    def last_number(self, writer: str) -> int | None:
        """The number of the writer's last commit; None if it never had one."""
        return self._catalog.store.state.commits.get(writer)

    def is_committed(self, identity: CommitIdentity | None) -> bool:
        """Whether this commit, or a later one of the same writer, was made already."""
        if identity is None:
            return False
        last = self.last_number(identity.writer)
        return last is not None and last >= identity.number

    def commit(self, commit: StagedCommit) -> CommitResult:
        """Append all staged runs, once.

        Raises CommitError if they are not what was staged or the topic is not what it was: nothing
        is appended then. After any other error the commit may be decided; `is_pending` tells.
        """
        with self._lock:
            self.finish()
            if self.is_committed(commit.identity):
                self._sweep_commit(commit)
                return CommitResult(0, 0, is_replay=True)
            slots = self._checked_slots(commit)
            ends = {slot.topic_partition: slot.log().log_end_offset for slot in slots}
            for slot in slots:
                self._disk.fsync_dir(slot.path)  # the names; tasks have synced the content
            journal = plan_commit(commit, ends, len(self._catalog.roots))
            if journal.partitions:
                self._carry_out(self._journal.write(journal), journal)
            elif commit.identity is not None:
                self._note(commit.identity)
            self._sweep_commit(commit)
            return CommitResult(commit.record_count, commit.size_bytes)

    def is_pending(self, job: str, number: int = 0) -> bool:
        """Whether the commit is decided and not finished."""
        found = self._journal.read()
        return found is not None and (found[1].job, found[1].number) == (job, number)

    def finish(self) -> bool:
        """Finish the commit that was decided and not finished; whether there was one."""
        with self._lock:
            found = self._journal.read()
            if found is not None:
                self._carry_out(*found)
            return found is not None

    def sweep(self, stale_ms: int = STALE_MS) -> int:
        """Remove staged files that nobody has written to for so long; how many."""
        with self._lock:
            found = self._journal.read()
            kept: set[str] = set()
            if found is not None:
                kept = {run.name for part in found[1].partitions for run in part.runs}
            now_ms = self._engine.now_ms()
            return sum(
                sweep_stale(self._disk, slot.path, now_ms, kept, stale_ms)
                for slot in self._catalog.slots()
            )

    def _sweep_all(self) -> None:
        self.sweep()

    # -- steps

    def _checked_slots(self, commit: StagedCommit) -> list[PartitionSlot]:
        """The partitions that get something, once all that was staged is found to be here."""
        slots: dict[TopicPartition, PartitionSlot] = {}
        seen: set[Path] = set()
        for topic in {id(run.topic): run.topic for run in commit.runs}.values():
            self._check_topic(topic)
        for run in commit.runs:
            slot = self._catalog.find(run.topic_partition)
            if slot is None:
                raise CommitError(f"partition {run.topic_partition} is gone since it was staged to")
            path, name = slot.path / run.name, parse_staged_name(run.name)
            if name is None or name[:2] != (commit.job, commit.number) or path in seen:
                raise CommitError(f"{path}: not a run of this commit, or twice")
            _check_run(self._disk, path, run)
            seen.add(path)
            slots[run.topic_partition] = slot
        return list(slots.values())

    def _check_topic(self, staged: StagedTopic) -> None:
        info = self._catalog.topics.get(staged.name)
        if info is None or info.topic_id != staged.topic_id:
            raise CommitError(f"topic {staged.name!r} was deleted since it was staged to")
        if AppendRules.of(info.config) != staged.rules:
            raise CommitError(
                f"the settings of topic {staged.name!r} were changed since it was staged to; "
                "nothing was written, run the job again"
            )
        if info.partitions[-1] + 1 != staged.partition_count:
            raise CommitError(
                f"topic {staged.name!r} has {info.partitions[-1] + 1} partitions, of which "
                f"{staged.partition_count} were there when it was staged to; nothing was written, "
                "run the job again"
            )

    def _carry_out(self, path: Path, journal: Journal) -> None:
        """Everything after the decision. May be repeated from the start at any point."""
        decision = Decision(self._journal, path, journal)
        found = self._present(journal)
        threads = min(INSTALLERS_MAX, 2 * (os.cpu_count() or 1), max(1, len(found)))
        with ThreadPoolExecutor(threads, thread_name_prefix="stratalog-install") as pool:
            for _ in pool.map(partial(self._install, decision), found):
                pass
        if journal.identity is not None:
            self._note(journal.identity)
        self._journal.remove(path)

    def _install(self, decision: Decision, found: tuple[PartitionSlot, PartitionCommit]) -> None:
        """Nobody may append between looking at the log's end and going on from there."""
        slot, part = found
        log = slot.log()
        with log.changing():
            left = resume(log, part)
            if left is not part:
                decision.move(part, left)
            install_partition(log, left)
        for run in part.runs:  # now, so that a large commit does not need twice its space
            self._disk.unlink(slot.path / run.name, missing_ok=True)

    def _present(self, journal: Journal) -> list[tuple[PartitionSlot, PartitionCommit]]:
        """Without partitions that were deleted since: their part of the commit went with them."""
        present = []
        for part in journal.partitions:
            slot = self._catalog.find(part.topic_partition)
            info = self._catalog.topics.get(part.topic_partition.topic)
            if slot is not None and info is not None and info.topic_id == part.topic_id:
                present.append((slot, part))
            elif len(self._catalog.roots) < journal.dir_count:
                raise InconsistentLogDirsError(
                    f"{part.topic_partition} has to be here to finish a commit: "
                    f"open all {journal.dir_count} log directories together"
                )
        return present

    def _note(self, identity: CommitIdentity) -> None:
        commits = {**self._catalog.store.state.commits, identity.writer: identity.number}
        self._catalog.store.update(commits=commits)

    def _sweep_commit(self, commit: StagedCommit) -> None:
        """What other attempts of its tasks have left, and what is stale beside it."""
        directories = {path for run in commit.runs for _, path in run.topic.dirs}
        sweep_commit(self._disk, directories, commit.job, commit.number)
        now_ms = self._engine.now_ms()
        for directory in directories:
            sweep_stale(self._disk, directory, now_ms)


def _check_run(disk: Disk, path: Path, run: StagedRun) -> None:
    size_bytes = disk.size_of(path)
    if size_bytes is None:
        raise CommitError(
            f"{path}: staged, but not here; the tasks and the driver must share the storage of the "
            f"log directory, and commit within {STALE_MS // 3_600_000} hours"
        )
    if size_bytes != run.size_bytes:
        raise CommitError(f"{path}: {size_bytes} bytes, of {run.size_bytes} that were staged")


def abandon(disk: Disk, dirs: Sequence[Path], staged_dirs: Sequence[Path], job: str) -> int:
    """Remove what a job has staged in these partitions, unless its commit is decided.

    For a job that failed. Needs no lock: the files are the job's own. How many were removed.
    """
    found = JournalFile(disk, dirs).read()
    if found is not None and found[1].job == job:
        return 0
    return sweep_commit(disk, staged_dirs, job, number=(1 << 63) - 1)

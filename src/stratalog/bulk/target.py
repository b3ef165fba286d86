"""The target of a write: its log directories, their topics, and the commit.

Topics are found without the lock, and created under it if that is asked for. Tasks stage rows; the
driver commits them under the lock, or removes what was staged.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.bulk.workers import interrupts_ignored
from stratalog.commits.committer import CommitDirs, remove_staged_files
from stratalog.commits.staged import StagedTopic
from stratalog.config import BrokerConfig
from stratalog.errors import (
    ConfigError,
    InvalidTopicError,
    NotALogDirError,
    StratalogError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    WriteSchemaError,
)
from stratalog.format.names import RootFile, TopicPartition
from stratalog.log.offset_assignment import AppendRules
from stratalog.partitions.lock import lock_dirs
from stratalog.partitions.opening import OpenOptions
from stratalog.partitions.saved_state import ProducerIds
from stratalog.partitions.topics import TopicsView
from stratalog.producing.coordinator import TransactionCoordinator
from stratalog.storage.disk import Disk
from stratalog.storage.staged_names import parse_staged_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from contextlib import ExitStack

    from stratalog.bulk.options import WriteOptions
    from stratalog.commits.committer import CommitResult
    from stratalog.commits.staged import StagedCommit, StagedRun
    from stratalog.partitions.catalog import TopicCatalog
    from stratalog.partitions.root import LogContext

_log: Final = logging.getLogger(__name__)

LOCK_WAIT_MS: Final = 10_000
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class NewTopics:
    """How missing topics are created."""

    partition_count: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """The log directories to write to, and what to do about missing topics. Picklable."""

    paths: tuple[Path, ...]
    new_topics: NewTopics | None = None
    lock_wait_ms: int = LOCK_WAIT_MS
    config: BrokerConfig = field(default_factory=BrokerConfig)
    """Settings of the broker, for what topics do not override."""
    create_in_broker_dir: bool = False
    """Whether topics may be created in the directory of a Kafka broker."""

    def open(self) -> CommitDirs:
        """Open the directories for writing. Waits up to `lock_wait_ms` for another writer."""
        options = OpenOptions(create=self.new_topics is not None, lock_wait_ms=self.lock_wait_ms)
        return CommitDirs(self.paths, self.config, options, _resume_transactions)

    def check(self) -> None:
        """Raise NotALogDirError unless the directories exist or may be created."""
        for path in self.paths:
            if not path.is_dir() and self.new_topics is None:
                raise NotALogDirError(
                    f"{path}: no such directory; set the option topicPartitions to create it and "
                    "missing topics"
                )

    def kernel_and_devices(self) -> tuple[str, ...] | None:
        """Equal for two processes that see the directories through the memory of one kernel, so
        that one can sync what the other has written. None: unknown."""
        try:
            devices = [str(path.stat().st_dev) for path in self.paths]
            return (_BOOT_ID.read_text().strip(), *devices)
        except OSError:
            return None

    def check_lock(self) -> None:
        """Raise LogDirLockedError if another writer holds the lock for as long as this waits."""
        self.lock().close()

    def lock(self) -> ExitStack:
        """Lock the directories without opening them. Waits as `open` does.

        No lock file is created: without one nobody writes, and it may not be a log directory.
        """
        paths = [path for path in self.paths if (path / RootFile.LOCK.value).exists()]
        return lock_dirs(Disk(), paths, wait_ms=self.lock_wait_ms)

    def find(self, name: str) -> StagedTopic:
        """One topic, see `TopicFinder.find`."""
        return TopicFinder(self).find(name)


class TopicFinder:
    """Finds topics of a target, and lists the directories as rarely as possible."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._view: TopicsView | None = None
        self._created: set[str] = set()

    def created(self) -> tuple[StagedTopic, ...]:
        """The topics that this finder has created."""
        return tuple(topic for name in sorted(self._created) if (topic := self._known(name)))

    def find(self, name: str) -> StagedTopic:
        """The topic; created now if it is missing and the target has `new_topics`."""
        topic = self._known(name) or self._found(name)
        new_topics = self._target.new_topics
        if self._is_being_created(name):
            self._target.open().close()  # waits for its creator, or finishes what a crash left
            topic = self._found(name)
        if topic is None and new_topics is not None:
            self._create(name, new_topics)
            topic = self._found(name)
        if topic is None:
            where = ", ".join(map(str, self._target.paths))
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} does not exist in {where}; create it first, or set "
                "the option topicPartitions to the number of partitions to create it with"
            )
        return topic

    def _found(self, name: str) -> StagedTopic | None:
        """The topic, from a new listing of the directories."""
        target = self._target
        target.check()
        if not all(path.is_dir() for path in target.paths):
            return None
        self._view = TopicsView.read(target.paths, target.config, wait_ms=target.lock_wait_ms)
        return self._known(name)

    def _is_being_created(self, name: str) -> bool:
        view = self._view
        creates = () if view is None else view.store.state.creates
        return any(create.topic == name for create in creates)

    def _known(self, name: str) -> StagedTopic | None:
        view = self._view
        info = None if view is None else view.topics.get(name)
        if view is None or info is None:
            return None
        if info.is_internal:
            raise InvalidTopicError(
                f"{name} is an internal topic of the log directory: rows cannot be written to it"
            )
        dirs = tuple(
            (number, view.partitions[TopicPartition(name, number)]) for number in info.partitions
        )
        return StagedTopic(name, info.topic_id, AppendRules.of(info.config), dirs)

    def _create(self, name: str, new: NewTopics) -> None:
        may_create = self._target.create_in_broker_dir
        if self._view is not None and not may_create:
            self._view.check_may_create(name)  # before the directory is opened for writing
        with self._target.open() as dirs:
            try:
                dirs.catalog.create(
                    name, new.partition_count, overrides=new.config, in_broker_dir=may_create
                )
            except TopicAlreadyExistsError:  # another task was faster
                return
        self._created.add(name)


def roll_back_topics(target: Target, created: Sequence[StagedTopic]) -> tuple[str, ...]:
    """Delete topics that a failed job has created, and return the names of those that stay.

    A topic is deleted under the lock, and only if it is as the job created it: the same id, no
    record in any log, nothing staged. A job that has found it and stages later fails at its commit,
    as for any deleted topic.
    """
    if not created:
        return ()
    kept = []
    with _without_delay(target).open() as dirs:
        for topic in created:
            if _is_unused(dirs.catalog, topic):
                dirs.catalog.delete(topic.name)
            else:
                kept.append(topic.name)
    return tuple(kept)


def _without_delay(target: Target) -> Target:
    """The files of an empty topic need no delay, unless those of other topics wait for theirs."""
    for root in target.paths:
        for path in root.iterdir():
            if path.is_dir() and path.name.endswith("-delete"):
                return target
    config = target.config
    log_config = replace(config.log_config, file_delete_delay_ms=0)
    return replace(target, config=replace(config, log_config=log_config))


def _is_unused(catalog: TopicCatalog, topic: StagedTopic) -> bool:
    info = catalog.topics.get(topic.name)
    if info is None or info.topic_id != topic.topic_id:
        return False
    slots = [catalog.slot(TopicPartition(topic.name, number)) for number in info.partitions]
    if any(slot.log().log_end_offset for slot in slots):
        return False
    names = (path.name for _, directory in topic.dirs for path in directory.iterdir())
    return not any(parse_staged_name(name) for name in names)


def check_topic_column(topic: str | None, *, is_present: bool) -> None:
    """Raise unless there is a topic of all rows, or a column that has it."""
    if topic is None and not is_present:
        raise WriteSchemaError(
            "topic option required when no 'topic' attribute is present. "
            "Use the topic option for setting a topic."
        )


def find_topics(options: WriteOptions, names: Iterable[str]) -> tuple[StagedTopic, ...]:
    """Check that rows can be written to these topics, and return those that had to be created.

    A topic that exists with another number of partitions than was asked for is an error.
    """
    target = options.target
    target.check()
    target.check_lock()
    finder = TopicFinder(target)
    try:
        for name in names:
            _check_partitions(options, finder.find(name))
    except BaseException:
        with interrupts_ignored(), suppress(StratalogError):
            roll_back_topics(target, finder.created())
        raise
    return finder.created()


def _check_partitions(options: WriteOptions, topic: StagedTopic) -> None:
    wanted = options.target.new_topics
    if wanted is not None and wanted.partition_count != topic.partition_count:
        raise ConfigError(
            "topicPartitions",
            f"{wanted.partition_count} partitions were requested, but topic {topic.name!r} has "
            f"{topic.partition_count}; omit the option to write to the existing topic",
        )


# -- commits


def _resume_transactions(catalog: TopicCatalog, context: LogContext, was_clean: bool) -> None:
    """A directory that only bulk jobs write to has no timer: each of them ends what is overdue."""
    ids = ProducerIds(catalog.store)
    TransactionCoordinator(catalog, ids, context).resume(was_clean=was_clean)


def commit_staged(target: Target, commit: StagedCommit) -> CommitResult:
    """Commit under the lock."""
    dirs = target.open()
    try:
        result = dirs.commits.commit(commit)
    except StratalogError:
        with suppress(StratalogError):
            dirs.close()
        raise
    try:
        dirs.close()
    except StratalogError as error:  # the rows are durable; the next writer recovers the rest
        _log.warning("%s", error)
    return result


def abandon_job(target: Target, job: str) -> None:
    """Remove what a failed job has staged, in all partitions. Job ids are unique."""
    roots = [root for root in target.paths if root.is_dir()]
    directories = [path for root in roots for path in root.iterdir() if path.is_dir()]
    _abandon(target, directories, job=job)


def abandon_runs(target: Target, runs: Sequence[StagedRun]) -> None:
    """Remove these staged files and no others: another driver may write for the same query."""
    directories = {path for run in runs for _, path in run.topic.dirs}
    _abandon(target, directories, names={run.name for run in runs})


def _abandon(
    target: Target,
    directories: Iterable[Path],
    *,
    job: str | None = None,
    names: AbstractSet[str] = frozenset(),
) -> None:
    """If the lock cannot be taken, the files stay, and are removed when they are a day old."""
    try:
        with target.lock():
            remove_staged_files(Disk(), target.paths, directories, job=job, names=names)
    except StratalogError as error:
        _log.warning(
            "cannot remove the staged files of a failed job now; a later job removes them: %s",
            error,
        )

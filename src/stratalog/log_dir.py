"""What comes before the first record: the config, the directories, the logs that need recovery."""

from __future__ import annotations

import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from stratalog.commits.committer import Commits
from stratalog.config import BrokerConfig
from stratalog.errors import (
    InconsistentLogDirsError,
    LogOfflineError,
    NotALogDirError,
    StratalogError,
)
from stratalog.format.batch import Codec
from stratalog.format.names import TopicPartition
from stratalog.partitions.catalog import TopicCatalog
from stratalog.partitions.lock import lock_dirs
from stratalog.partitions.root import LogContext, LogRoot, PartitionSlot
from stratalog.partitions.schedule import Schedule
from stratalog.partitions.state import ProducerIds
from stratalog.producing.coordinator import OpenTransaction, TransactionCoordinator
from stratalog.producing.producer import Producer, ProducerOptions, SequenceNumbers
from stratalog.producing.transaction_log import ProducerIdentity
from stratalog.producing.transactions import Transaction, TransactionalProducer
from stratalog.service.cleaners import CleanerManager, CleaningWorker
from stratalog.service.health import Health
from stratalog.service.housekeeping import Housekeeping
from stratalog.service.maintenance import Maintenance
from stratalog.storage.disk import Disk
from stratalog.storage.locks import detach_in_children, inherited_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.recovery_plan import Truncation
    from stratalog.partitions.dir_set import MissingDirs
    from stratalog.partitions.topics import TopicInfo
    from stratalog.producing.batches import RecordMetadata
    from stratalog.producing.producer import Headers


def broker_config_of(
    config: BrokerConfig | Mapping[str, object] | Path | str | None,
) -> BrokerConfig:
    """A broker's config as an object, its properties, a `server.properties` file, or Kafka's own
    defaults."""
    if config is None:
        return BrokerConfig()
    if isinstance(config, BrokerConfig):
        return config
    if isinstance(config, Path | str):
        return BrokerConfig.from_properties_file(Path(config))
    return BrokerConfig.parse(config)


def prepare_dirs(disk: Disk, dirs: Sequence[Path], *, create: bool) -> None:
    """See that the log directories are there, each of them once. With `create`, those that are not
    are made, durably."""
    if not dirs:
        raise NotALogDirError("no log directory given")
    resolved = [path.resolve() for path in dirs]
    for path in resolved:
        if resolved.count(path) > 1:
            raise InconsistentLogDirsError(f"{path} is given twice")
    for path in dirs:
        if path.is_dir():
            continue
        if not create:
            raise NotALogDirError(f"{path}: no such directory")
        _make_with_parents(disk, path)


def _make_with_parents(disk: Disk, path: Path) -> None:
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        disk.mkdir(directory, exist_ok=True)
        disk.fsync_dir(directory.parent)


def load_all(slots: Iterable[PartitionSlot], threads: int) -> None:
    """Open the logs, several at a time. Raises what the first of them raises."""
    with ThreadPoolExecutor(threads, thread_name_prefix="stratalog-load") as pool:
        for _ in pool.map(PartitionSlot.log, slots):
            pass


def give_up(slots: Iterable[PartitionSlot]) -> None:
    """Opening failed: close what is open. The next one recovers."""
    for slot in slots:
        log = slot.retire()
        if log is not None:
            with suppress(StratalogError):
                log.close()


# LogDir: log directories opened for writing, as a Kafka broker would open its own.
#
#     with LogDir.open("data") as logs:
#         logs.create_topic("orders", 3)
#         logs.append("orders", b"2 apples", key=b"alice")
#         for record in logs.partition("orders", 0).read("earliest"):
#             ...
#
# Kafka's `.lock` is held from `open` to `close`, so no broker and no other writer comes in
# between; readers need no lock. What a broker does at its start and end is done here too: recovery
# where the last stop was not clean, checkpoints, and the marker of a clean stop.

_MS_NS = 1_000_000


class LogDir:
    """One or several log directories with one writer: this one. Thread-safe."""

    def __init__(
        self, engine: LogContext, catalog: TopicCatalog, locks: ExitStack, schedule: Schedule
    ) -> None:
        """`LogDir.open` makes one."""
        self._engine = engine
        self._catalog = catalog
        self._locks = locks
        self._schedule = schedule
        self._ids = ProducerIds(catalog.store)
        self._coordinator = TransactionCoordinator(catalog, self._ids, engine)
        self._health = Health(engine.now_ms)
        self._upkeep = Housekeeping(catalog, self._coordinator, engine, self._health)
        self.cleaning = CleanerManager(catalog, engine)
        """Compaction: which log is due, and how each partition stands."""
        work = CleaningWorker(self.cleaning, engine.config, self._health)
        self.maintenance = Maintenance(catalog, engine, self._health, work)
        """Retention and compaction in the background. Runs once it is started."""
        self.commits = Commits(catalog, engine)
        """Appending batches that were staged in files, all of them once or none."""
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._direct = Producer(catalog, engine, schedule, ProducerOptions(linger_ms=0))
        self._is_closed = False
        self._is_detached = False
        detach_in_children(self)

    @classmethod
    def open(  # noqa: PLR0913  # independent choices, all by keyword
        cls,
        *paths: Path | str,
        config: BrokerConfig | Mapping[str, object] | Path | str | None = None,
        create: bool = True,
        background: bool = True,
        missing_dirs: MissingDirs = "refuse",
        recover_all: bool = True,
        assumed_config: Mapping[str, object] | None = None,
        create_in_broker_dir: bool = False,
        disk: Disk | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> Self:
        """Open log directories for writing; without `paths`, those that the config names.

        `config` is a broker's: an object, its properties, or a `server.properties` file. With
        `create` a directory that is not there is made. `background` keeps a thread for what is due
        from time to time (checkpoints, removals, timeouts); without it, call `run_due_tasks`.
        Retention and compaction begin with `maintenance.start()`.

        Directories that were opened together belong together from then on: opening only some of
        them raises MissingLogDirsError, unless `missing_dirs` is "offline" (they are away for a
        while) or "forget" (they are lost for good); see `dir_set.MissingDirs`. A directory may be
        added to a set at any time, and be moved.

        After an unclean stop every log is recovered, as by a broker; `recovery` lists what was
        truncated. Without `recover_all` a log is recovered when it is first used: the others, their
        checkpoints and open transactions stay as they are, and so the directory is not marked as
        cleanly shut down when it is closed.

        Settings of a Kafka cluster's topics are read from the cluster's metadata, in one of the
        directories or in `metadata.log.dir` of the config. `assumed_config` has settings by Kafka's
        names for topics whose own are unknown (`TopicInfo.unknown`); with a `cleanup.policy` among
        them such topics are deleted from and compacted, too. `create_in_broker_dir` lets topics be
        created in the directory of a Kafka broker, which sets aside what its cluster does not know.

        Raises LogDirLockedError while a broker or another writer has one of them open.

        What is opened belongs to this process: a child that is forked from it cannot use it, and
        writes nothing when it exits.
        """
        broker_config = broker_config_of(config)
        dirs = [Path(path) for path in paths]
        if not dirs and config is not None:
            dirs = list(broker_config.log_dir_paths)
        writer_disk = (disk or Disk()).for_this_process()
        engine = LogContext(writer_disk, now_ms or _wall_clock_ms, broker_config)
        prepare_dirs(engine.disk, dirs, create=create)
        with lock_dirs(engine.disk, dirs) as locks, ExitStack() as undo:
            catalog = TopicCatalog(
                [LogRoot(path, engine) for path in dirs],
                engine,
                missing_dirs,
                assumed=assumed_config,
                creates_in_broker_dir=create_in_broker_dir,
            )
            writer_disk.on_failed_fsync = catalog.on_failed_fsync
            undo.callback(lambda: give_up(catalog.slots()))
            logs = cls(engine, catalog, locks, Schedule(engine.now_ms))
            logs._begin(background=background, recover_all=recover_all)
            undo.pop_all()
            logs._locks = locks.pop_all()
            return logs

    def _begin(self, *, background: bool, recover_all: bool) -> None:
        roots = self._catalog.roots
        for root in roots:
            root.begin()
        is_forgetting, is_partial = self._catalog.is_forgetting, bool(self._catalog.missing_dirs)
        if is_forgetting:
            self.commits.forget_missing()
        self._catalog.begin()
        unclean = [root for root in roots if not root.last_stop.was_clean]
        if unclean and recover_all:
            threads = self._engine.config.num_recovery_threads_per_data_dir * len(unclean)
            load_all((slot for root in unclean for slot in root.slots.values()), threads)
        for root in unclean if is_partial or not recover_all else ():
            root.is_doubtful = True  # so that lost transactions are found when all are here
        self._coordinator.begin(
            was_clean=not unclean and not is_forgetting,
            ends_nothing=bool(unclean) and not recover_all,
        )
        if is_partial:
            self.commits.begin_partially()
        else:
            self.commits.begin(self._schedule)
        self._upkeep.plan(self._schedule)
        self.maintenance.has_threads = background
        if background:
            self._schedule.start("stratalog-log-dir")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LogDir({', '.join(repr(str(path)) for path in self.paths)})"

    def close(self) -> None:
        """Write what waits, abort open transactions, close all logs, mark the stop as clean, and
        give the lock back. Idempotent.

        If something cannot be written, the first error is raised at the end. The directory is then
        recovered by whoever opens it next.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self.maintenance.close()
        self._schedule.stop()
        self.cleaning.close()
        errors: list[Exception] = []
        for action in (*(producer.close for producer in self._producers), self._coordinator.close):
            try:
                action()
            except Exception as error:  # the logs are closed all the same
                errors.append(error)
        self._catalog.close()
        with self._locks:
            self._upkeep.remove_deleted()
            for root in self._catalog.roots:
                threads = self._engine.config.num_recovery_threads_per_data_dir
                errors += root.close(threads)
        _raise_first(errors)

    def detach(self) -> None:
        """In a forked child: the directories are the parent's. Waits for nobody."""
        self._is_closed = self._is_detached = True
        self._catalog.detach()
        for root in self._catalog.roots:
            root.take_offline(inherited_reason())

    def _check_process(self) -> None:
        if self._is_detached:
            raise LogOfflineError(self.paths[0], inherited_reason())

    # -- what there is

    @property
    def paths(self) -> list[Path]:
        """The log directories."""
        return [root.path for root in self._catalog.roots]

    @property
    def missing_dirs(self) -> list[Path]:
        """Log directories of the set that are offline, by the paths that they had last."""
        return [Path(path) for path in self._catalog.missing_dirs.values()]

    @property
    def recovery(self) -> tuple[Truncation, ...]:
        """What recovery has truncated since the directories were opened."""
        return tuple(self._catalog.truncations)

    @property
    def config(self) -> BrokerConfig:
        return self._engine.config

    @property
    def topics(self) -> dict[str, TopicInfo]:
        """Topics by name, those of the log directory itself (`is_internal`) included."""
        return dict(sorted(self._catalog.topics.items()))

    def topic(self, name: str) -> TopicInfo:
        """One topic; raises UnknownTopicOrPartitionError."""
        return self._catalog.topic(name)

    def partition(self, topic: str, partition: int) -> PartitionLog:
        """One partition, to read from by offset and time, or to append ready batches to."""
        return self._catalog.slot(TopicPartition(topic, partition)).log()

    def partitions_of(self, topic: str) -> Iterator[PartitionLog]:
        """Every partition of a topic, in order."""
        info = self._catalog.topic(topic)
        return (self.partition(topic, number) for number in info.partitions)

    # -- topics

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        config: Mapping[str, object] | None = None,
        replication_factor: int | None = None,
        create_in_broker_dir: bool = False,
    ) -> TopicInfo:
        """Create a topic. `partitions` defaults to the config's `num.partitions`; `config` has
        settings by Kafka's names (`retention.ms`, …). One broker has one replica.

        In the directory of a Kafka broker (it has a `meta.properties`) this raises
        BrokerDirectoryError unless `create_in_broker_dir` is given here or to `open`.
        """
        return self._catalog.create(
            name,
            partitions,
            replication_factor=replication_factor,
            overrides=config,
            in_broker_dir=create_in_broker_dir,
        )

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Let a topic have `partitions` partitions in all. Keys may go elsewhere from then on."""
        return self._catalog.add_partitions(name, partitions)

    def alter_config(self, name: str, changes: Mapping[str, object | None]) -> TopicInfo:
        """Change settings of a topic by Kafka's names; None takes the override back."""
        return self._catalog.alter_config(name, changes)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Its files go after `log.segment.delete.delay.ms`, a minute by default."""
        info = self._catalog.topics.get(name)
        partitions = () if info is None else info.partitions
        with self.cleaning.paused(TopicPartition(name, number) for number in partitions):
            self._catalog.delete(name)

    # -- records

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Append one record at once, see `Producer.append`. For many, use a `producer`."""
        delivery = self._direct.append(
            topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition
        )
        return delivery.result()

    def producer(
        self,
        *,
        linger_ms: int = 5,
        batch_bytes: int = 16_384,
        compression: Codec | str = Codec.NONE,
        compression_level: int | None = None,
        idempotent: bool = False,
    ) -> Producer:
        """A producer that gathers records into batches.

        With `idempotent` it has a producer id and numbers its batches, so that the log takes each
        of them once, even if a failed append is tried again.
        """
        self._check_process()
        options = ProducerOptions.of(linger_ms, batch_bytes, compression, compression_level)
        numbering = None
        if idempotent:
            numbering = SequenceNumbers(self._new_identity, is_transactional=False)
        producer = Producer(
            self._catalog, self._engine, self._schedule, options, numbering=numbering
        )
        self._producers.add(producer)
        return producer

    def _new_identity(self) -> ProducerIdentity:
        return ProducerIdentity(self._ids.take(), 0)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Delete the records below `before_offset`; the new log start offset. The files go when
        whole segments are below it."""
        slot = self._catalog.slot(TopicPartition(topic, partition))
        return slot.delete_records(before_offset)

    def flush(self) -> None:
        """Make everything appended so far survive a crash of the machine.

        If an fsync fails (FsyncError), the log directory it failed in is offline: its partitions
        refuse everything (LogOfflineError) until it is opened again and recovered.
        Raises what producers' records were refused with, too."""
        self._check_process()
        slots = [slot for slot in self._catalog.slots() if slot.loaded is not None]
        errors: list[Exception] = []
        for flush in (*(p.flush for p in list(self._producers)), *(slot.flush for slot in slots)):
            try:
                flush()
            except StratalogError as error:  # other log directories are flushed all the same
                errors.append(error)
        _raise_first(errors)

    # -- transactions

    def transaction(
        self,
        transactional_id: str,
        *,
        timeout_ms: int | None = None,
        flush: bool = False,
        compression: Codec | str = Codec.NONE,
    ) -> Transaction:
        """Begin a transaction; use it as a context manager. See `transactional_producer`, which
        also has more options.

        With `flush`, a commit survives a crash of the machine: data, decision and markers are
        fsynced, in this order. Without, losing power may cost parts of what was written last.
        """
        producer = self.transactional_producer(
            transactional_id, timeout_ms=timeout_ms, compression=compression
        )
        return producer.transaction(flush=flush)

    def transactional_producer(
        self,
        transactional_id: str,
        *,
        timeout_ms: int | None = None,
        linger_ms: int = 5,
        batch_bytes: int = 16_384,
        compression: Codec | str = Codec.NONE,
        compression_level: int | None = None,
    ) -> TransactionalProducer:
        """Become the producer of a transactional id, for several transactions.

        Whoever was it before is fenced: what it left open is aborted, and what it still tries
        raises ProducerFencedError. `timeout_ms` is how long a transaction may stay open, at most
        and by default `transaction.max.timeout.ms`.
        """
        self._check_process()
        options = ProducerOptions.of(linger_ms, batch_bytes, compression, compression_level)
        parts = (self._catalog, self._engine, self._schedule)
        return TransactionalProducer(
            parts, self._coordinator, transactional_id, options, timeout_ms
        )

    def open_transactions(self) -> list[OpenTransaction]:
        """Transactions that have not ended, those that a crash left included."""
        self._check_process()
        return self._coordinator.open_transactions()

    def abort_transaction(self, transactional_id: str) -> bool:
        """End what is open under the id (a crash left it, or its producer hangs) and fence its
        producer. Whether there was something to end."""
        self._check_process()
        return self._coordinator.abort(transactional_id)

    # -- upkeep

    def checkpoint(self) -> None:
        """Write recovery points, log start offsets and high watermarks now."""
        self._check_process()
        for root in self._catalog.roots:
            root.checkpoint()

    def run_due_tasks(self) -> int:
        """Do what is due by now; how many tasks that were. Needed only without `background`."""
        self._check_process()
        return self._schedule.run_due() + self.maintenance.run_due()


def _raise_first(errors: list[Exception]) -> None:
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"also: {other}")
        raise errors[0]


def _wall_clock_ms() -> int:
    return time.time_ns() // _MS_NS

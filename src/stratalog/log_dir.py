"""`LogDir`: log directories opened for writing, as a Kafka broker opens its own.

    with LogDir.open("data") as logs:
        logs.create_topic("orders", 3)
        logs.append("orders", b"2 apples", key=b"alice")
        for record in logs.partition("orders", 0).read("earliest"):
            ...

The parts: `partitions` (lock, topics, logs, recovery), `producing` (producers and transactions),
`commits` (bulk commits), `service` (background work). To read only, use `stratalog.open_dirs`.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from stratalog.commits.committer import Commits
from stratalog.config import BrokerConfig
from stratalog.errors import StratalogError
from stratalog.format.batch import Codec
from stratalog.format.names import TopicPartition
from stratalog.partitions.opening import OpenLogDirs, OpenOptions, raise_first
from stratalog.partitions.root import LogContext
from stratalog.partitions.saved_state import ProducerIds
from stratalog.partitions.schedule import Schedule
from stratalog.partitions.topic_reading import TopicReader
from stratalog.producing.coordinator import OpenTransaction, TransactionCoordinator
from stratalog.producing.producer import Producer, ProducerOptions, ProducerParts, SequenceNumbers
from stratalog.producing.transaction_log import ProducerIdentity
from stratalog.producing.transactions import Transaction, TransactionalProducer
from stratalog.service.cleaners import CleanerManager, CleaningWorker
from stratalog.service.health import Health, ServedDirs
from stratalog.service.housekeeping import Housekeeping
from stratalog.service.maintenance import Maintenance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stratalog.format.directory_metadata import MetaProperties
    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.recovery_plan import Truncation
    from stratalog.partitions.saved_state import MissingDirs
    from stratalog.partitions.topics import TopicInfo
    from stratalog.producing.batches import AppendedRange, RecordMetadata
    from stratalog.producing.producer import RecordFields
    from stratalog.service.health import Failure, Subject
    from stratalog.storage.disk import Disk


class LogDir(TopicReader):
    """One or several log directories with one writer: this one. Thread-safe."""

    def __init__(self, dirs: OpenLogDirs) -> None:
        """Use `LogDir.open`."""
        catalog, context = dirs.catalog, dirs.context
        self._dirs = dirs
        self._catalog = catalog
        self._context = context
        self._schedule = Schedule(context.now_ms)
        self._producer_ids = ProducerIds(catalog.store)
        self._coordinator = TransactionCoordinator(catalog, self._producer_ids, context)
        self._health = Health(context.now_ms)
        served = ServedDirs(catalog, context, self._health)
        self._housekeeping = Housekeeping(served, self._coordinator)
        self.cleaning = CleanerManager(catalog, context)
        """Compaction: which logs are eligible, and the state of each partition."""
        worker = CleaningWorker(self.cleaning, context.config, self._health)
        self.maintenance = Maintenance(served, worker)
        """Retention and compaction in the background. Call its `start` to run them."""
        self.commits = Commits(catalog, context)
        """Appends batches that were staged in files: all of them once, or none."""
        self.deletion_listeners: list[Callable[[TopicInfo], None]] = []
        """Called with each topic that was deleted, in the thread that has deleted it."""
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._producers_lock = threading.Lock()
        self._producer_parts = ProducerParts(catalog, context, self._schedule)
        self._direct = Producer(self._producer_parts, ProducerOptions(linger_ms=0))
        self._is_closed = False

    # -- opening and closing

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
        """Open log directories for writing; without `paths`, those in `log.dirs` of the config.

        `config` is a broker's: an object, its properties, or a `server.properties` file. With
        `create`, missing directories are created. With `background`, a thread writes checkpoints,
        removes deleted files and aborts timed-out transactions; without, call `run_pending_tasks`.
        Retention and compaction start with `maintenance.start()`.

        Directories that were opened together belong together from then on: opening only some of
        them raises MissingLogDirsError, unless `missing_dirs` is "offline" (they are temporarily
        unavailable) or "forget" (they are lost for good); see
        `partitions.saved_state.MissingDirs`. A directory can be moved, or added to the others, at
        any time.

        After an unclean shutdown every log is recovered, as by a broker; `recovery` lists what was
        truncated. With `recover_all=False` a log is recovered when it is first used: the others,
        their checkpoints and open transactions are left alone, and closing does not mark the
        directory as cleanly shut down.

        Settings of a Kafka cluster's topics are read from the cluster's metadata, in one of the
        directories or in `metadata.log.dir` of the config. `assumed_config` has settings, by
        Kafka's names, for topics whose own are unknown (`TopicInfo.unknown`); with a
        `cleanup.policy` among them, such topics are subject to retention and compaction too.
        `create_in_broker_dir` allows creating topics in the directory of a Kafka broker, which
        renames topics that its cluster does not know.

        Raises LogDirLockedError while a broker or another writer has one of the directories open.

        An open LogDir belongs to this process: a forked child cannot use it, and writes nothing
        when it exits.
        """
        broker_config = BrokerConfig.of(config)
        dirs = [Path(path) for path in paths]
        if not dirs and config is not None:
            dirs = list(broker_config.log_dir_paths)
        options = OpenOptions(create, missing_dirs, assumed_config or {}, create_in_broker_dir)
        opened = OpenLogDirs(dirs, LogContext.of(broker_config, disk, now_ms), options)
        try:
            logs = cls(opened)
            logs._start(background=background, recover_all=recover_all)
        except BaseException:
            opened.abandon()
            raise
        return logs

    def _start(self, *, background: bool, recover_all: bool) -> None:
        self._dirs.start()
        if self._catalog.is_forgetting:
            self.commits.forget_missing()
        self._catalog.finish_changes()
        if recover_all:
            self._dirs.recover()
        self._resume_transactions(recover_all=recover_all)
        self.commits.resume()
        self.commits.schedule_sweeps(self._schedule)
        self._housekeeping.schedule_all(self._schedule)
        self.maintenance.has_threads = background
        if background:
            self._schedule.start("stratalog-log-dir")

    def _resume_transactions(self, *, recover_all: bool) -> None:
        unclean = self._dirs.unclean_roots
        if self._catalog.missing_dirs or not recover_all:
            for root in unclean:
                root.needs_recovery = True  # lost transactions are found when all logs are here
        self._coordinator.resume(
            was_clean=not unclean and not self._catalog.is_forgetting,
            ends_nothing=bool(unclean) and not recover_all,
        )

    def __repr__(self) -> str:
        return f"LogDir({', '.join(repr(str(path)) for path in self.paths)})"

    def close(self) -> None:
        """Write waiting records, abort open transactions, close all logs, mark the shutdown as
        clean, and release the lock. Idempotent.

        If something cannot be written, the first error is raised at the end; the directory is then
        recovered by its next writer.
        """
        if self._is_closed or self._dirs.is_detached:
            return
        self._is_closed = True
        self.maintenance.close()
        self._schedule.stop()
        self.cleaning.close()
        errors: list[Exception] = []
        for close in (*(p.close for p in self._open_producers()), self._coordinator.close):
            try:
                close()
            except Exception as error:  # the logs must still be closed
                errors.append(error)
        self._housekeeping.remove_deleted()
        raise_first(errors + self._dirs.close())

    # -- topics and partitions

    @property
    def paths(self) -> list[Path]:
        """The log directories."""
        return self._dirs.paths

    @property
    def meta_properties(self) -> MetaProperties | None:
        """The cluster and node that the first directory belongs to; None if it is no broker's."""
        return self._catalog.roots[0].meta

    @property
    def missing_dirs(self) -> list[Path]:
        """Log directories of the set that are offline, by their last paths."""
        return [Path(path) for path in self._catalog.missing_dirs.values()]

    @property
    def recovery(self) -> tuple[Truncation, ...]:
        """What recovery has truncated since the directories were opened."""
        return tuple(self._catalog.truncations)

    def failures(self) -> list[tuple[Subject, Failure]]:
        """Background tasks whose last run failed, and on what: a partition or a directory."""
        return self._health.unresolved()

    @property
    def config(self) -> BrokerConfig:
        """The broker's config."""
        return self._context.config

    @property
    def topics(self) -> dict[str, TopicInfo]:
        """Topics by name, internal ones (`is_internal`) included."""
        return dict(sorted(self._catalog.topics.items()))

    def topic(self, name: str) -> TopicInfo:
        """One topic. Raises UnknownTopicOrPartitionError."""
        return self._catalog.topic(name)

    def partition(self, topic: str, partition: int) -> PartitionLog:
        """The log of one partition, to read by offset or time, or to append encoded batches."""
        return self._catalog.slot(TopicPartition(topic, partition)).log()

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The current leader epoch of one partition. Does not open its log."""
        return self._catalog.slot(TopicPartition(topic, partition)).leader_epoch

    def is_empty(self, topic: str, partition: int) -> bool:
        """Whether the log of a partition is known to have no records. Does not open it."""
        return self._catalog.slot(TopicPartition(topic, partition)).is_empty

    def partitions_of(self, topic: str) -> Iterator[PartitionLog]:
        """The logs of all partitions of a topic, in order."""
        info = self._catalog.topic(topic)
        return (self.partition(topic, number) for number in info.partitions)

    @property
    def partition_numbers(self) -> dict[str, list[int]]:
        """The numbers of each topic's partitions."""
        return {name: list(info.partitions) for name, info in self.topics.items()}

    def _opened(self, tp: TopicPartition) -> tuple[PartitionLog, nullcontext[None]]:
        return self.partition(*tp), nullcontext()

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        config: Mapping[str, object] | None = None,
        replication_factor: int | None = None,
        create_in_broker_dir: bool = False,
        validate_only: bool = False,
    ) -> TopicInfo:
        """Create a topic. `partitions` defaults to `num.partitions` of the config; `config` has
        settings by Kafka's names (`retention.ms`, …). The replication factor can only be 1. With
        `validate_only` it is checked, not created.

        In the directory of a Kafka broker (it has a `meta.properties`) this raises
        BrokerDirectoryError unless `create_in_broker_dir` is given here or to `open`.
        """
        return self._catalog.create(
            name,
            partitions,
            replication_factor=replication_factor,
            overrides=config,
            in_broker_dir=create_in_broker_dir,
            validate_only=validate_only,
        )

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Increase a topic's number of partitions to `partitions`. New records of a key may go to
        another partition than its old ones."""
        return self._catalog.add_partitions(name, partitions)

    def alter_config(
        self, name: str, changes: Mapping[str, object | None], *, validate_only: bool = False
    ) -> TopicInfo:
        """Change settings of a topic by Kafka's names; None removes an override. With
        `validate_only` the changes are checked, not made."""
        return self._catalog.alter_config(name, changes, validate_only=validate_only)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Its files are removed after `log.segment.delete.delay.ms`, by default a
        minute."""
        info = self._catalog.topics.get(name)
        partitions = () if info is None else info.partitions
        with self.cleaning.paused(TopicPartition(name, number) for number in partitions):
            self._catalog.delete(name)
        if info is not None:
            for listener in self.deletion_listeners:
                listener(info)

    # -- records

    def append(
        self, topic: str, value: bytes | None, **fields: Unpack[RecordFields]
    ) -> RecordMetadata:
        """Append one record, and return its partition, offset and timestamp.

        Takes `key`, `headers`, `timestamp` (an int in milliseconds, or a `datetime`) and
        `partition` as `Producer.append` does. The record is written, but not synced: see `flush`.
        To append many records, use a `producer`."""
        return self._direct.append(topic, value, **fields).result()

    def append_columns(
        self,
        topic: str | None,
        data: Any,
        *,
        batch_bytes: int = 65_536,
        compression: Codec | str = Codec.NONE,
        compression_level: int | None = None,
    ) -> list[AppendedRange]:
        """Append the rows of Arrow data (a pyarrow Table, RecordBatch or RecordBatchReader, a
        DataFrame of pandas or polars, a relation of DuckDB), and return what was stored in each
        partition.

        Takes columns as `Producer.append_columns` does. `topic` may be None if the data has a
        column of that name. `batch_bytes` is the size of a record batch before compression;
        `compression` is for topics that leave it to the producer.
        """
        options = ProducerOptions.of(0, batch_bytes, compression, compression_level)
        producer = Producer(self._producer_parts, options)
        return producer.append_columns(topic, data)

    def producer(
        self,
        *,
        linger_ms: int = 5,
        batch_bytes: int = 16_384,
        compression: Codec | str = Codec.NONE,
        compression_level: int | None = None,
        idempotent: bool = False,
    ) -> Producer:
        """A producer that collects records into batches.

        With `idempotent` it has a producer id and numbers its batches, so that the log takes each
        batch once, even if a failed append is retried.
        """
        self._dirs.check_process()
        options = ProducerOptions.of(linger_ms, batch_bytes, compression, compression_level)
        sequences = None
        if idempotent:
            sequences = SequenceNumbers(self._new_identity, is_transactional=False)
        producer = Producer(self._producer_parts, options, sequences)
        with self._producers_lock:
            self._producers.add(producer)
        return producer

    def _open_producers(self) -> list[Producer]:
        with self._producers_lock:  # another thread may be creating one
            return list(self._producers)

    def _new_identity(self) -> ProducerIdentity:
        return ProducerIdentity(self._producer_ids.take(), 0)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Delete the records before `before_offset`. Returns the new log start offset. Files are
        removed once all of a segment is before it."""
        slot = self._catalog.slot(TopicPartition(topic, partition))
        return slot.delete_records(before_offset)

    def flush(self) -> None:
        """Make everything appended so far survive a crash of the machine.

        If an fsync fails (FsyncError), its log directory is offline: its partitions refuse every
        operation (LogOfflineError) until the directory is opened again and recovered. Also raises
        errors of producers' records that nobody has seen yet.
        """
        self._dirs.check_process()
        slots = [slot for slot in self._catalog.slots() if slot.loaded is not None]
        errors: list[Exception] = []
        for flush in (*(p.flush for p in self._open_producers()), *(slot.flush for slot in slots)):
            try:
                flush()
            except StratalogError as error:  # other log directories must still be flushed
                errors.append(error)
        raise_first(errors)

    # -- transactions

    def transaction(
        self,
        transactional_id: str,
        *,
        timeout_ms: int | None = None,
        flush: bool = False,
        compression: Codec | str = Codec.NONE,
    ) -> Transaction:
        """Begin a transaction; use it as a context manager. `transactional_producer` has more
        options.

        With `flush`, a commit survives a crash of the machine: data, decision and markers are
        fsynced, in this order. Without, a power failure may lose parts of what was written last.
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
        """Become the producer of a transactional id, for any number of transactions.

        The previous producer of the id is fenced: its open transaction is aborted, and its further
        writes raise ProducerFencedError. `timeout_ms` is how long a transaction may stay open, at
        most and by default `transaction.max.timeout.ms`.
        """
        self._dirs.check_process()
        options = ProducerOptions.of(linger_ms, batch_bytes, compression, compression_level)
        return TransactionalProducer(
            self._producer_parts, self._coordinator, transactional_id, options, timeout_ms
        )

    @property
    def coordinator(self) -> TransactionCoordinator:
        """The transaction coordinator, for a broker that serves its requests."""
        return self._coordinator

    def open_transactions(self) -> list[OpenTransaction]:
        """Transactions that have not ended, including those that a crash left open."""
        self._dirs.check_process()
        return self._coordinator.open_transactions()

    def abort_transaction(self, transactional_id: str) -> bool:
        """Abort the open transaction of an id (a crash left it, or its producer hangs) and fence
        its producer. Returns whether there was one."""
        self._dirs.check_process()
        return self._coordinator.abort(transactional_id)

    # -- background work

    def checkpoint(self) -> None:
        """Write recovery points, log start offsets and high watermarks now."""
        self._dirs.check_process()
        for root in self._catalog.roots:
            root.checkpoint()

    def run_pending_tasks(self) -> int:
        """Run overdue background tasks on this thread, if the LogDir was opened with
        `background=False`. Returns how many there were."""
        self._dirs.check_process()
        return self._schedule.run_pending() + self.maintenance.run_pending()

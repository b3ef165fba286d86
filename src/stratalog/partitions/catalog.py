"""The topics of the log directories: found, made, changed and deleted.

A topic spans directories that cannot be changed at once, so each change is first noted in the kept
state, then done, then struck off the note. Whatever a crash leaves is finished by the next open:
a topic has all its partitions or is not there at all.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.config import LogConfig
from stratalog.errors import (
    BrokerDirectoryError,
    InvalidTopicError,
    LogOfflineError,
    StorageError,
    StratalogError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.names import TopicPartition
from stratalog.log.producer_state import ProducerStateConfig
from stratalog.maintenance.recovery import open_log
from stratalog.maintenance.recovery_plan import last_index_limits
from stratalog.partitions.dir_set import find_dir_set
from stratalog.partitions.settings import ConfigSource, TopicSettings, base_config
from stratalog.partitions.state import BLOCK, PendingCreate, PendingDelete, SavedTopic, StateStore
from stratalog.partitions.table import PartitionTable
from stratalog.partitions.topics import (
    TopicInfo,
    check_more_partitions,
    check_new_topic,
    check_replication_factor,
    new_topic_id,
    partition_count_of,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from stratalog.errors import FsyncError
    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.recovery_plan import LoadPoint, Truncation
    from stratalog.partitions.dir_set import MissingDirs
    from stratalog.partitions.root import LogContext, LogRoot, PartitionSlot

_log = logging.getLogger(__name__)


class TopicCatalog:
    """Every topic and where its partitions are. Changes take turns; looking needs no lock."""

    def __init__(
        self,
        roots: Sequence[LogRoot],
        engine: LogContext,
        missing_dirs: MissingDirs = "refuse",
        *,
        assumed: Mapping[str, object] | None = None,
        creates_in_broker_dir: bool = False,
    ) -> None:
        """The roots are looked at; nothing is changed before `begin`.

        `assumed` are settings of topics whose own are unknown; `creates_in_broker_dir` lets topics
        be created in directories of a Kafka broker.
        """
        self.roots = roots
        self.topics: dict[str, TopicInfo] = {}
        self._engine = engine
        self._config = engine.config
        self._lock = threading.RLock()
        self._is_closed = False
        self.truncations: list[Truncation] = []
        """What recovery has dropped since the directories were opened."""
        self._creating: dict[str, LogConfig] = {}  # the settings of topics that are not found yet
        self._producer_config = ProducerStateConfig(
            producer_id_expiration_ms=engine.config.producer_id_expiration_ms,
            transaction_max_timeout_ms=engine.config.transaction_max_timeout_ms,
        )
        paths = [root.path for root in roots]
        self.store = StateStore(engine.disk, paths)
        self.settings = TopicSettings(
            paths, engine.config, assumed=assumed, state=lambda: self.store.state
        )
        self._creates_in_broker_dir = creates_in_broker_dir
        self._dir_set = find_dir_set(roots, self.store.copies)
        if self._dir_set.missing and missing_dirs == "refuse":
            where = ", ".join(str(root.path) for root in roots)
            raise self._dir_set.error(f"open {where} for writing")
        self.is_forgetting = bool(self._dir_set.missing) and missing_dirs == "forget"
        """Directories of the set are declared lost."""
        self.missing_dirs = {} if self.is_forgetting else self._dir_set.missing
        """Directories that are offline: their last paths by id."""
        self._partitions = PartitionTable(roots, engine, self._open)
        for name, numbers in self._partitions.numbers().items():
            self._describe(name, self._partitions.topic_id_of(name, numbers), numbers)

    def begin(self) -> None:
        """Finish what the last writer left unfinished, as far as all directories are here."""
        self._record_dirs()
        state = self.store.state
        for delete in state.deletes:
            self._throw_away(delete)
        if self.missing_dirs:
            return
        for create in state.creates:
            info = self.topics.get(create.topic)
            if info is None or info.topic_id in {create.topic_id, None}:
                config = self.settings.of(create.topic, create.topic_id).config
                self._make_partitions(create, config)
        if state.deletes or state.creates:
            self.store.update(creates=(), deletes=())
        self._list_topics()
        counts = self._counts()
        if counts and counts["partition_counts"] != self.store.state.partition_counts:
            self.store.update(**counts)

    def _list_topics(self) -> None:
        """Record the topics that an earlier version created, which listed only those that override
        settings. Until this has succeeded, all topics here count as created here."""
        state = self.store.state
        if state.lists_all_topics or self.settings.is_broker_s:
            return
        known = {info.name: info for info in self.topics.values() if info.unknown is None}
        topics = {name: SavedTopic(info.topic_id, info.overrides) for name, info in known.items()}
        with suppress(StorageError):  # a full disk is to be opened all the same
            self.store.update(topics={**topics, **state.kept_topics}, lists_all_topics=True)

    def _record_dirs(self) -> None:
        """Let each directory know which others belong to it."""
        if not self._dir_set.is_set:
            return
        if self.store.dir_ids != list(self._dir_set.ids):
            self.store.dir_ids = list(self._dir_set.ids)
            self.store.update()
        state = self.store.state
        members = {**self._dir_set.members, **self.missing_dirs}
        changes: dict[str, Any] = {} if members == state.dirs else {"dirs": members}
        if self._dir_set.missing:  # they may know of ids that were handed out since
            changes["next_producer_id"] = state.next_producer_id + BLOCK
        if self.is_forgetting:
            changes["creates"] = (*state.creates, *self._lost())
        if changes:
            self.store.update(**changes)

    def _lost(self) -> list[PendingCreate]:
        """Of each topic that has lost partitions: create them again, empty, so that keys keep
        their partitions."""
        lost = []
        for name, count in self.store.state.partition_counts.items():
            info = self.topics.get(name)
            numbers = set(range(count)) - set(() if info is None else info.partitions)
            if not numbers:
                continue
            _log.warning(
                "topic %r has lost partitions %s with a log directory", name, sorted(numbers)
            )
            if info is not None:
                lost.append(PendingCreate(name, info.topic_id, 0, count))
        return lost

    def _counts(self) -> dict[str, Any]:
        """How many partitions topics have, as a change of the state; nothing if there is no set."""
        if not self._dir_set.is_set:
            return {}
        counts = {name: info.partition_count for name, info in sorted(self.topics.items())}
        return {"partition_counts": counts}

    def check_complete(self, action: str) -> None:
        """Raise MissingLogDirsError if directories of the set are offline."""
        if self.missing_dirs:
            raise self._dir_set.error(action)

    def close(self) -> None:
        """Change nothing any more: others may hold the lock from now on."""
        with self._lock:
            self._is_closed = True

    def on_failed_fsync(self, error: FsyncError) -> None:
        """Take the log directory offline that the file is in."""
        for root in self.roots:
            root.on_failed_fsync(error)

    def detach(self) -> None:
        """In a forked child: change nothing."""
        self._lock = threading.RLock()  # a thread that does not exist here may have the other
        self._is_closed = True

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            if self._is_closed:
                raise LogOfflineError(self.roots[0].path, "the LogDir is closed")
            yield

    # -- finding

    def topic(self, name: str) -> TopicInfo:
        """A topic by name."""
        info = self.topics.get(name)
        if info is None:
            if name in self.store.state.partition_counts:
                self.check_complete(f"use topic {name!r}")
            known = ", ".join(sorted(self.topics)[:10]) or "none"
            raise UnknownTopicOrPartitionError(f"no topic {name!r}; topics here: {known}")
        return info

    def find(self, topic_partition: TopicPartition) -> PartitionSlot | None:
        """A partition's place, if there is one."""
        return self._partitions.find(topic_partition)

    def has(self, slot: PartitionSlot) -> bool:
        """Whether the partition is still there and is not being deleted. One of its name that was
        created since is another."""
        return self.find(slot.topic_partition) is slot and not slot.is_retired

    def slot(self, topic_partition: TopicPartition) -> PartitionSlot:
        """A partition's place."""
        slot = self._partitions.find(topic_partition)
        if slot is None:
            info = self.topic(topic_partition.topic)
            if 0 <= topic_partition.partition < info.partition_count:
                self.check_complete(f"use partition {topic_partition}")
            here = ", ".join(map(str, info.partitions[:10]))
            raise UnknownTopicOrPartitionError(
                f"no partition {topic_partition}; of {info.name!r} there are here: {here}"
            )
        return slot

    def slots(self) -> list[PartitionSlot]:
        """All of them."""
        return self._partitions.slots()

    def _open(self, slot: PartitionSlot, point: LoadPoint) -> PartitionLog:
        name = slot.topic_partition.topic
        config = self._creating.get(name) or self.topics[name].config
        limits = None
        if self._is_index_size_unknown(slot):
            limits = last_index_limits(slot.path, config, was_clean=point.was_clean)
            shown = limits.segment_index_bytes
            if shown is not None and shown < config.segment_index_bytes:
                _log.warning(
                    "%s: segment.index.bytes is unknown, and assumed to be %d, the size of the "
                    "index files that the broker left",
                    slot.topic_partition,
                    shown,
                )
                config = replace(config, segment_index_bytes=shown)
        log = open_log(
            slot.path,
            config,
            disk=self._engine.disk,
            now_ms=self._engine.now_ms,
            point=point,
            producer_config=self._producer_config,
            on_truncation=self.truncations.append,
        )
        log.maintenance.before_truncation = partial(slot.root.lower_cleaned, slot)
        log.maintenance.last_index_sizes = None if limits is None else limits.sizes
        return log

    def _is_index_size_unknown(self, slot: PartitionSlot) -> bool:
        """Whether a Kafka broker will open the partition, by a setting that nobody told."""
        info = self.topics.get(slot.topic_partition.topic)
        if info is None or not info.is_assumed or slot.root.meta is None:
            return False
        return info.sources.get("segment.index.bytes") is not ConfigSource.GIVEN

    def _describe(
        self, name: str, topic_id: uuid.UUID | None, partitions: Iterable[int]
    ) -> TopicInfo:
        found = self.settings.of(name, topic_id)
        counts = self.store.state.partition_counts if self.missing_dirs else {}
        info = TopicInfo(
            name,
            topic_id,
            tuple(sorted(partitions)),
            found.overrides,
            found.config,
            max(counts.get(name, 0), found.partition_count or 0),
            found.sources,
            found.unknown,
            is_cluster_s=found.partition_count is not None,
            is_assumed=found.is_assumed,
        )
        self.topics[name] = info
        return info

    def _parsed(self, name: str, overrides: Mapping[str, object]) -> LogConfig:
        return LogConfig.parse(overrides, base_config(name, self._config.log_config))

    # -- making

    def create(
        self,
        name: str,
        partition_count: int | None = None,
        *,
        replication_factor: int | None = None,
        overrides: Mapping[str, object] | None = None,
        in_broker_dir: bool = False,
    ) -> TopicInfo:
        """Create a topic with all its partitions, or nothing."""
        with self._changing():
            self.check_complete(f"create topic {name!r}")
            check_new_topic(name, self.topics)
            if not in_broker_dir:
                self.check_may_create(name)
            count = partition_count_of(partition_count, self._config.num_partitions)
            check_replication_factor(replication_factor, self._config.default_replication_factor)
            config = self._parsed(name, overrides or {})
            pending = PendingCreate(name, new_topic_id(), 0, count)
            topics = dict(self.store.state.kept_topics)
            topics[name] = SavedTopic(pending.topic_id, _texts_of(config, overrides or {}))
            return self._create(pending, config, topics=topics)

    def add_partitions(self, name: str, partition_count: int) -> TopicInfo:
        """Let a topic have `partition_count` partitions in all."""
        with self._changing():
            info = self.topic(name)
            self.check_complete(f"add partitions to topic {name!r}")
            check_more_partitions(info, partition_count)
            if name not in self.store.state.kept_topics:
                self.check_may_create(name)
            pending = PendingCreate(name, info.topic_id, info.partition_count, partition_count)
            return self._create(pending, info.config)

    def check_may_create(self, name: str) -> None:
        """Raise BrokerDirectoryError where a Kafka broker would set aside what is created."""
        broker_s = next((root for root in self.roots if root.meta is not None), None)
        if broker_s is None or self._creates_in_broker_dir:
            return
        raise BrokerDirectoryError(
            f"topic {name!r}: {broker_s.path} belongs to node {broker_s.meta_node} of a Kafka "
            "cluster, whose brokers rename partitions that their cluster does not know to -stray; "
            "create the topic in the cluster, or create it here all the same with "
            "create_in_broker_dir=True (Spark: option createInBrokerDir; ingest: "
            "--create-in-broker-dir)"
        )

    def ensure(self, name: str) -> TopicInfo:
        """The topic, created now if the config says that using one creates it."""
        info = self.topics.get(name)
        if info is not None:
            return info
        with self._changing():
            if name in self.topics or not self._config.auto_create_topics_enable:
                return self.topic(name)
            return self.create(name)

    def _create(self, pending: PendingCreate, config: LogConfig, **changes: Any) -> TopicInfo:
        before = self.store.state
        try:
            self.store.update(creates=(*before.creates, pending), **changes)
            info = self._make_partitions(pending, config)
        except StratalogError:
            self._undo_create(pending, before.creates)
            raise
        self.store.update(creates=before.creates, **self._counts())
        return info

    def _make_partitions(self, pending: PendingCreate, config: LogConfig) -> TopicInfo:
        """Make those that are missing. The topic can be found once all are there."""
        self._creating[pending.topic] = config  # the first segment is created by them, too
        try:
            self._partitions.make(_partitions_of(pending), pending.topic_id)
            info = self.topics.get(pending.topic)
            present = () if info is None else info.partitions
            made = range(pending.first_partition, pending.partition_count)
            return self._describe(pending.topic, pending.topic_id, {*present, *made})
        finally:
            del self._creating[pending.topic]

    def _undo_create(self, pending: PendingCreate, creates: tuple[PendingCreate, ...]) -> None:
        """Leave nothing of a topic that could not be made. If the disk does not let that happen
        either, the note stays, and the next open makes the topic after all."""
        with suppress(StorageError):
            self._partitions.remove(_partitions_of(pending))
            self.store.update(creates=creates)

    # -- changing

    def alter_config(self, name: str, changes: Mapping[str, object | None]) -> TopicInfo:
        """Override settings of a topic; None takes an override back."""
        with self._changing():
            info = self.topic(name)
            self._check_may_alter(info)
            wanted: dict[str, object] = {**info.overrides}
            for key, value in changes.items():
                if value is None:
                    wanted.pop(key, None)
                else:
                    wanted[key] = value
            config = self._parsed(name, wanted)
            topics = dict(self.store.state.kept_topics)
            topics[name] = SavedTopic(info.topic_id, _texts_of(config, wanted))
            self.store.update(topics=topics)
            info = self._describe(name, info.topic_id, info.partitions)
            for partition in info.partitions:
                log = self.slot(TopicPartition(name, partition)).loaded
                if log is not None:
                    log.update_config(config)
            return info

    def _check_may_alter(self, info: TopicInfo) -> None:
        if info.is_cluster_s:
            raise BrokerDirectoryError(
                f"the settings of topic {info.name!r} are in the metadata of its Kafka cluster: "
                "change them there (kafka-configs.sh)"
            )

    # -- deleting

    def delete(self, name: str) -> None:
        """Delete a topic: it is gone at once, its files after `log.segment.delete.delay.ms`."""
        with self._changing():
            if not self._config.delete_topic_enable:
                raise TopicDeletionDisabledError(f"delete.topic.enable is false: {name!r} stays")
            info = self.topic(name)
            self.check_complete(f"delete topic {name!r}")
            if info.is_internal:
                raise InvalidTopicError(f"{name} is the log directory's own and cannot be deleted")
            before = self.store.state
            pending = PendingDelete(name, info.topic_id)
            others = tuple(delete for delete in before.deletes if delete != pending)
            self.store.update(deletes=(*others, pending))
            self._throw_away(pending)
            topics = dict(before.kept_topics)
            topics.pop(name, None)
            self.store.update(deletes=others, topics=topics, **self._counts())

    def _throw_away(self, pending: PendingDelete) -> None:
        """Rename what is left of the topic. One that was made again since is another topic."""
        info = self.topics.get(pending.topic)
        if info is None or info.topic_id != pending.topic_id:
            return
        self._partitions.throw_away(TopicPartition(info.name, number) for number in info.partitions)
        del self.topics[pending.topic]


def _partitions_of(pending: PendingCreate) -> list[TopicPartition]:
    numbers = range(pending.first_partition, pending.partition_count)
    return [TopicPartition(pending.topic, number) for number in numbers]


def _texts_of(config: LogConfig, names: Iterable[str]) -> dict[str, str]:
    """Settings as Kafka would show them."""
    texts = config.as_dict()
    return {name: texts[name] for name in names}

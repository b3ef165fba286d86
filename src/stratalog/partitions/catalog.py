"""The topics of log directories that are open for writing: look up, create, alter, delete.

A topic spans directories that cannot be changed atomically. So each change is first recorded in the
saved state, then carried out, then removed from the record. Whatever a crash leaves unfinished is
finished by the next open: a topic has all its partitions, or does not exist.
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
from stratalog.log.producer_state_manager import ProducerStateConfig
from stratalog.maintenance.recovery import open_log
from stratalog.maintenance.recovery_plan import last_index_limits
from stratalog.partitions.partition_table import PartitionTable
from stratalog.partitions.root import LogRoot
from stratalog.partitions.saved_state import (
    PRODUCER_ID_BLOCK,
    PendingCreate,
    PendingDelete,
    SavedTopic,
)
from stratalog.partitions.settings import ConfigSource, EffectiveConfig, base_config
from stratalog.partitions.topics import (
    check_more_partitions,
    check_new_topic,
    check_replication_factor,
    describe_topic,
    new_topic_id,
    partition_count_of,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Iterator, Mapping

    from stratalog.errors import FsyncError
    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.recovery_plan import LoadPoint, Truncation
    from stratalog.partitions.partition_table import PartitionSlot
    from stratalog.partitions.root import LogContext
    from stratalog.partitions.topics import TopicInfo, TopicsView

_log = logging.getLogger(__name__)


class TopicCatalog:
    """Every topic and its partitions. Changes are serialized; lookups need no lock."""

    def __init__(
        self, view: TopicsView, context: LogContext, *, creates_in_broker_dir: bool = False
    ) -> None:
        """Starts with the topics that `view` has read. Nothing changes on disk before
        `finish_changes`. `creates_in_broker_dir` allows topics in directories of a Kafka broker."""
        self.roots = [LogRoot(log_dir, context) for log_dir in view.dirs]
        self.topics = dict(view.topics)
        self.store = view.store
        self.is_forgetting = view.is_forgetting
        """Whether missing directories of the set are declared lost."""
        self.missing_dirs = view.missing_dirs
        """Directories of the set that are offline: their last paths by id."""
        self.check_complete = view.check_complete
        self.truncations: list[Truncation] = []
        """What recovery has truncated since the directories were opened."""
        self._view = view
        self._context = context
        self._config = context.config
        self._lock = threading.RLock()
        self._is_closed = False
        self._creates_in_broker_dir = creates_in_broker_dir
        self._creating: dict[str, LogConfig] = {}  # settings of topics that are not in `topics` yet
        self._producer_config = ProducerStateConfig(
            producer_id_expiration_ms=context.config.producer_id_expiration_ms,
        )
        self._partitions = PartitionTable(self.roots, context, self._open)

    # -- opening and closing

    def finish_changes(self) -> None:
        """Finish what the last writer left unfinished, as far as all directories are here."""
        self._record_dirs()
        state = self.store.state
        for delete in state.deletes:
            self._delete_partitions(delete)
        if self.missing_dirs:
            return
        for create in state.creates:
            info = self.topics.get(create.topic)
            if info is None or info.topic_id in {create.topic_id, None}:
                config = self._view.settings.of(create.topic, create.topic_id).config
                self._create_partitions(create, config)
        if state.deletes or state.creates:
            self.store.update(creates=(), deletes=())
        self._list_topics()
        counts = self._partition_counts()
        if counts and counts["partition_counts"] != self.store.state.partition_counts:
            self.store.update(**counts)

    def _list_topics(self) -> None:
        """Record the topics that an earlier version created, which only listed those that override
        settings. Until this succeeds, all topics count as created here."""
        state = self.store.state
        if state.lists_all_topics or self._view.settings.is_broker_dir:
            return
        known = {info.name: info for info in self.topics.values() if info.unknown is None}
        topics = {name: SavedTopic(info.topic_id, info.overrides) for name, info in known.items()}
        with suppress(StorageError):  # it must be possible to open a full disk
            self.store.update(topics={**topics, **state.saved_topics}, lists_all_topics=True)

    def _record_dirs(self) -> None:
        """Record in each directory which others belong to its set."""
        dir_set = self._view.dir_set
        if not dir_set.is_set:
            return
        if self.store.dir_ids != list(dir_set.ids):
            self.store.dir_ids = list(dir_set.ids)
            self.store.update()
        state = self.store.state
        members = {**dir_set.members, **self.missing_dirs}
        changes: dict[str, Any] = {} if members == state.dirs else {"dirs": members}
        if dir_set.missing:  # they may record producer ids that were assigned since
            changes["next_producer_id"] = state.next_producer_id + PRODUCER_ID_BLOCK
        if self.is_forgetting:
            changes["creates"] = (*state.creates, *self._lost_partitions())
        if changes:
            self.store.update(**changes)

    def _lost_partitions(self) -> list[PendingCreate]:
        """Create lost partitions again, empty, so that keys keep their partitions."""
        lost = []
        for name, count in self.store.state.partition_counts.items():
            info = self.topics.get(name)
            numbers = set(range(count)) - set(() if info is None else info.partitions)
            if not numbers:
                continue
            _log.warning(
                "partitions of topic %r are lost with their log directory, and created again, "
                "empty: %s",
                name,
                sorted(numbers),
            )
            if info is not None:
                lost.append(PendingCreate(name, info.topic_id, 0, count))
        return lost

    def _partition_counts(self) -> dict[str, Any]:
        """The number of partitions of each topic, as a change of the saved state; empty if the
        directory is not part of a set."""
        if not self._view.dir_set.is_set:
            return {}
        counts = {name: info.partition_count for name, info in sorted(self.topics.items())}
        return {"partition_counts": counts}

    def close(self) -> None:
        """Refuse all further changes: another writer may lock the directories from now on."""
        with self._lock:
            self._is_closed = True

    def on_failed_fsync(self, error: FsyncError) -> None:
        """Take the log directory of the file offline."""
        for root in self.roots:
            root.on_failed_fsync(error)

    def detach(self) -> None:
        """In a forked child: refuse all changes."""
        self._lock = threading.RLock()  # a thread that does not exist here may hold the other
        self._is_closed = True

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            if self._is_closed:
                raise LogOfflineError(self.roots[0].path, "the LogDir is closed")
            yield

    # -- looking up

    def topic(self, name: str) -> TopicInfo:
        """A topic by name. Raises UnknownTopicOrPartitionError."""
        info = self.topics.get(name)
        if info is None:
            if name in self.store.state.partition_counts:
                self.check_complete(f"use topic {name!r}")
            known = ", ".join(sorted(self.topics)[:10]) or "none"
            raise UnknownTopicOrPartitionError(f"no topic {name!r}; topics here: {known}")
        return info

    def find(self, topic_partition: TopicPartition) -> PartitionSlot | None:
        """A partition's slot, if it exists."""
        return self._partitions.find(topic_partition)

    def has(self, slot: PartitionSlot) -> bool:
        """Whether the partition still exists and is not being deleted. A partition of the same
        name that was created since is another."""
        return self.find(slot.topic_partition) is slot and not slot.is_retired

    def slot(self, topic_partition: TopicPartition) -> PartitionSlot:
        """A partition's slot. Raises UnknownTopicOrPartitionError."""
        slot = self._partitions.find(topic_partition)
        if slot is None:
            info = self.topic(topic_partition.topic)
            if 0 <= topic_partition.partition < info.partition_count:
                self.check_complete(f"use partition {topic_partition}")
            here = ", ".join(map(str, info.partitions[:10]))
            raise UnknownTopicOrPartitionError(
                f"no partition {topic_partition}; topic {info.name!r} has partitions {here} in "
                "this directory"
            )
        return slot

    def slots(self) -> list[PartitionSlot]:
        """The slots of all partitions."""
        return self._partitions.slots()

    # -- opening logs

    def _open(self, slot: PartitionSlot, point: LoadPoint) -> PartitionLog:
        name = slot.topic_partition.topic
        config = self._creating.get(name) or self.topics[name].config
        limits = None
        if self._is_index_size_unknown(slot):
            limits = last_index_limits(slot.path, config, was_clean=point.was_clean)
            found = limits.segment_index_bytes
            if found is not None and found < config.segment_index_bytes:
                _log.warning(
                    "%s: segment.index.bytes is unknown; using %d, the size of the broker's index "
                    "files",
                    slot.topic_partition,
                    found,
                )
                config = replace(config, segment_index_bytes=found)
        log = open_log(
            slot.path,
            config,
            disk=self._context.disk,
            now_ms=self._context.now_ms,
            point=point,
            producer_config=self._producer_config,
            on_truncation=self.truncations.append,
        )
        log.maintenance.before_truncation = partial(slot.root.lower_cleaner_offset, slot)
        log.maintenance.last_index_sizes = None if limits is None else limits.sizes
        return log

    def _is_index_size_unknown(self, slot: PartitionSlot) -> bool:
        """Whether a Kafka broker will open the partition with a setting that is unknown here."""
        info = self.topics.get(slot.topic_partition.topic)
        if info is None or not info.is_assumed or slot.root.meta is None:
            return False
        return info.sources.get("segment.index.bytes") is not ConfigSource.GIVEN

    # -- creating

    def create(
        self,
        name: str,
        partition_count: int | None = None,
        *,
        replication_factor: int | None = None,
        overrides: Mapping[str, object] | None = None,
        in_broker_dir: bool = False,
        validate_only: bool = False,
    ) -> TopicInfo:
        """Create a topic with all its partitions, or nothing. With `validate_only`, describe what
        would be created."""
        with self._changing():
            self.check_complete(f"create topic {name!r}")
            check_new_topic(name, self.topics)
            if not in_broker_dir:
                self._check_may_create(name)
            count = partition_count_of(partition_count, self._config.num_partitions)
            check_replication_factor(replication_factor, self._config.default_replication_factor)
            config = self._parse(name, overrides or {})
            texts = _as_texts(config, overrides or {})
            if validate_only:
                sources = dict.fromkeys(self._config.topic_settings, ConfigSource.STATIC)
                sources |= dict.fromkeys(texts, ConfigSource.TOPIC)
                found = EffectiveConfig(config, texts, sources)
                return describe_topic(name, None, range(count), found, 0)
            pending = PendingCreate(name, new_topic_id(), 0, count)
            topics = dict(self.store.state.saved_topics)
            topics[name] = SavedTopic(pending.topic_id, texts)
            return self._create(pending, config, topics=topics)

    def ensure(self, name: str) -> TopicInfo:
        """The topic, created now if it is missing and `auto.create.topics.enable` is set."""
        info = self.topics.get(name)
        if info is not None:
            return info
        with self._changing():
            if name in self.topics or not self._config.auto_create_topics_enable:
                return self.topic(name)
            return self.create(name)

    def add_partitions(self, name: str, partition_count: int) -> TopicInfo:
        """Increase a topic's number of partitions to `partition_count`."""
        with self._changing():
            info = self.topic(name)
            self.check_complete(f"add partitions to topic {name!r}")
            check_more_partitions(info, partition_count)
            if name not in self.store.state.saved_topics:
                self._check_may_create(name)
            pending = PendingCreate(name, info.topic_id, info.partition_count, partition_count)
            return self._create(pending, info.config)

    def _check_may_create(self, name: str) -> None:
        if not self._creates_in_broker_dir:
            self._view.check_may_create(name)

    def _create(self, pending: PendingCreate, config: LogConfig, **changes: Any) -> TopicInfo:
        before = self.store.state
        try:
            self.store.update(creates=(*before.creates, pending), **changes)
            info = self._create_partitions(pending, config)
        except StratalogError:
            self._roll_back_create(pending, before.creates)
            raise
        self.store.update(creates=before.creates, **self._partition_counts())
        return info

    def _create_partitions(self, pending: PendingCreate, config: LogConfig) -> TopicInfo:
        """Create the missing partitions. The topic can be found once all of them exist."""
        self._creating[pending.topic] = config  # opening a new log needs it
        try:
            self._partitions.create(_partitions_of(pending), pending.topic_id)
            info = self.topics.get(pending.topic)
            present = () if info is None else info.partitions
            created = range(pending.first_partition, pending.partition_count)
            return self._describe(pending.topic, pending.topic_id, {*present, *created})
        finally:
            del self._creating[pending.topic]

    def _roll_back_create(self, pending: PendingCreate, creates: tuple[PendingCreate, ...]) -> None:
        """Remove what was created of a topic. If the disk prevents this as well, the record stays,
        and the next open creates the topic."""
        with suppress(StorageError):
            self._partitions.remove(_partitions_of(pending))
            self.store.update(creates=creates)

    def _describe(
        self, name: str, topic_id: uuid.UUID | None, partitions: Iterable[int]
    ) -> TopicInfo:
        info = self.topics[name] = self._view.describe(name, topic_id, partitions)
        return info

    def _parse(self, name: str, overrides: Mapping[str, object]) -> LogConfig:
        return LogConfig.parse(overrides, base_config(name, self._config.log_config))

    # -- altering

    def alter_config(
        self, name: str, changes: Mapping[str, object | None], *, validate_only: bool = False
    ) -> TopicInfo:
        """Override settings of a topic; None removes an override. With `validate_only`, only check
        the changes."""
        with self._changing():
            info = self.topic(name)
            if info.is_in_cluster:
                raise BrokerDirectoryError(
                    f"the settings of topic {name!r} are in the metadata of its Kafka cluster: "
                    "change them there (kafka-configs.sh)"
                )
            merged = {**info.overrides, **changes}
            wanted = {key: value for key, value in merged.items() if value is not None}
            config = self._parse(name, wanted)
            if validate_only:
                return info
            topics = dict(self.store.state.saved_topics)
            topics[name] = SavedTopic(info.topic_id, _as_texts(config, wanted))
            self.store.update(topics=topics)
            info = self._describe(name, info.topic_id, info.partitions)
            for partition in info.partitions:
                log = self.slot(TopicPartition(name, partition)).loaded
                if log is not None:
                    log.update_config(config)
            return info

    # -- deleting

    def delete(self, name: str) -> None:
        """Delete a topic. Its name is free at once; its files are removed after
        `log.segment.delete.delay.ms`.

        If this fails, the deletion may be on disk, and then the next writer completes it. So the
        topic can no longer be used: delete it again, or open the directory again.
        """
        with self._changing():
            if not self._config.delete_topic_enable:
                raise TopicDeletionDisabledError(
                    f"cannot delete topic {name!r}: delete.topic.enable is false"
                )
            info = self.topic(name)
            self.check_complete(f"delete topic {name!r}")
            if info.is_internal:
                raise InvalidTopicError(f"{name} is an internal topic and cannot be deleted")
            before = self.store.state
            pending = PendingDelete(name, info.topic_id)
            others = tuple(delete for delete in before.deletes if delete != pending)
            self._partitions.retire(TopicPartition(name, number) for number in info.partitions)
            self.store.update(deletes=(*others, pending))
            self._delete_partitions(pending)
            topics = dict(before.saved_topics)
            topics.pop(name, None)
            self.store.update(deletes=others, topics=topics, **self._partition_counts())

    def _delete_partitions(self, pending: PendingDelete) -> None:
        """Rename what is left of the topic. One that was created again since is another topic."""
        info = self.topics.get(pending.topic)
        if info is None or info.topic_id != pending.topic_id:
            return
        self._partitions.delete(TopicPartition(info.name, number) for number in info.partitions)
        del self.topics[pending.topic]


def _partitions_of(pending: PendingCreate) -> list[TopicPartition]:
    numbers = range(pending.first_partition, pending.partition_count)
    return [TopicPartition(pending.topic, number) for number in numbers]


def _as_texts(config: LogConfig, names: Iterable[str]) -> dict[str, str]:
    """Settings as Kafka shows them."""
    texts = config.as_dict()
    return {name: texts[name] for name in names}

"""Topics: what is known of each, reading those of log directories, and Kafka's rules for changes.

The checks come in Kafka's order, so that a request with several faults gets Kafka's error, and in
Kafka's words: a broker passes them on to its clients.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stratalog.config import BrokerConfig, LogConfig
from stratalog.errors import (
    BrokerDirectoryError,
    InconsistentLogDirsError,
    InvalidNameError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    StratalogError,
    TopicAlreadyExistsError,
)
from stratalog.format.names import (
    CLUSTER_METADATA_TOPIC,
    INT32_MAX,
    INTERNAL_TOPICS,
    TopicPartition,
    check_topic_name,
    do_topics_collide,
)
from stratalog.format.uuids import METADATA_TOPIC_ID, ZERO_ID, encode_id
from stratalog.log.partition_view import read_topic_id
from stratalog.partitions.saved_state import StateStore, find_dir_set
from stratalog.partitions.settings import EffectiveConfig, TopicSettings
from stratalog.partitions.view import LogDirView, live_partitions, numbers_by_topic
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from stratalog.partitions.saved_state import MissingDirs
    from stratalog.partitions.settings import ConfigSource

BROKERS: Final = 1
_DEFAULT: Final = -1
"""What clients send to ask for the broker's default."""


@dataclass(frozen=True)
class TopicInfo:
    """A topic of the log directories."""

    name: str
    topic_id: uuid.UUID | None
    """None for a topic that was created before Kafka had topic ids (2.8)."""
    partitions: tuple[int, ...]
    """The numbers of the partitions in these directories; a cluster may have more of them."""
    overrides: Mapping[str, str]
    """The settings of the topic itself, by Kafka's names."""
    config: LogConfig
    """All settings, defaults included."""
    known_count: int = 0
    """The number of its partitions according to its Kafka cluster, or before a log directory went
    missing; 0 if unknown."""
    sources: Mapping[str, ConfigSource] = field(default_factory=dict)
    """The source of each setting that is not Kafka's default."""
    unknown: str | None = None
    """Why the topic's settings are unknown; None if they are known. A topic with unknown settings
    is neither compacted nor subject to retention."""
    is_in_cluster: bool = False
    """Whether the metadata of a Kafka cluster has the topic, by its name and id."""
    is_assumed: bool = False
    """Whether the topic's own settings are unknown, and those of `assumed_config` are used."""

    @property
    def partition_count(self) -> int:
        """Number of partitions of the whole topic, which may have more partitions than are here."""
        return max(self.partitions[-1] + 1, self.known_count)

    @property
    def is_internal(self) -> bool:
        """Whether it is one of Kafka's internal topics, which clients cannot write to."""
        return self.name in INTERNAL_TOPICS


def describe_topic(
    name: str,
    topic_id: uuid.UUID | None,
    partitions: Iterable[int],
    found: EffectiveConfig,
    saved_count: int,
) -> TopicInfo:
    """A topic with the settings that were found for it. `saved_count` is how many partitions it
    had with all log directories online."""
    return TopicInfo(
        name,
        topic_id,
        tuple(sorted(partitions)),
        found.overrides,
        found.config,
        max(saved_count, found.partition_count or 0),
        found.sources,
        found.unknown,
        is_in_cluster=found.partition_count is not None,
        is_assumed=found.is_assumed,
    )


def read_topics(
    dirs: Sequence[Path], live: Mapping[TopicPartition, Sequence[Path]]
) -> dict[str, TopicInfo]:
    """The topics of these live partitions, for a reader. Settings that cannot be read are unknown:
    they do not keep anybody from the records."""
    settings: TopicSettings | StratalogError
    try:
        settings = TopicSettings(dirs, BrokerConfig())
    except StratalogError as error:
        settings = error
    topics = {}
    for name, numbers in numbers_by_topic(live).items():
        paths = (live[TopicPartition(name, number)] for number in numbers)
        places = [found[0] for found in paths if found]  # others are only in a store
        topic_id, found = _read_settings(settings, name, places)
        topics[name] = describe_topic(name, topic_id, numbers, found, 0)
    return topics


def _read_settings(
    settings: TopicSettings | StratalogError, name: str, places: Iterable[Path]
) -> tuple[uuid.UUID | None, EffectiveConfig]:
    topic_id = None
    problem = settings
    try:
        topic_id = _first_topic_id(places)
        if isinstance(settings, TopicSettings):
            return topic_id, settings.of(name, topic_id)
    except StratalogError as error:
        problem = error
    return topic_id, EffectiveConfig(LogConfig(), unknown=str(problem))


def _first_topic_id(places: Iterable[Path]) -> uuid.UUID | None:
    """From the first partition that has it in its `partition.metadata`."""
    ids = map(read_topic_id, places)
    return next((topic_id for topic_id in ids if topic_id is not None), None)


class TopicsView:
    """The topics of log directories with their settings, as they were when it was created.

    This is also what a writer starts from (`TopicCatalog`), so both raise the same errors for
    directories that one broker could not have together.
    """

    def __init__(
        self,
        dirs: Sequence[LogDirView],
        config: BrokerConfig,
        missing_dirs: MissingDirs = "refuse",
        *,
        assumed: Mapping[str, object] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """`assumed` has settings for topics whose own are unknown, see `TopicSettings`."""
        for log_dir in dirs:
            log_dir.check_writable()
        self.dirs = dirs
        paths = [log_dir.path for log_dir in dirs]
        self.store = StateStore(disk or Disk(), paths)
        self.settings = TopicSettings(
            paths, config, assumed=assumed, state=lambda: self.store.state
        )
        self.dir_set = find_dir_set(dirs, self.store.copies)
        if self.dir_set.missing and missing_dirs == "refuse":
            raise self.dir_set.error(f"open {', '.join(map(str, paths))} for writing")
        self.is_forgetting = bool(self.dir_set.missing) and missing_dirs == "forget"
        """Whether missing directories of the set are declared lost."""
        self.missing_dirs = {} if self.is_forgetting else self.dir_set.missing
        """Directories of the set that are offline: their last paths by id."""
        live = live_partitions(dirs)
        live.pop(TopicPartition(CLUSTER_METADATA_TOPIC, 0), None)  # not a topic of the log manager
        _check_consistent(dirs, live)
        self.partitions = {tp: found[0] for tp, found in live.items()}
        """Live partitions and their directories."""
        self.topics = {
            name: self.describe(name, _first_topic_id(self._places(name, numbers)), numbers)
            for name, numbers in numbers_by_topic(self.partitions).items()
        }

    @classmethod
    def read(cls, paths: Sequence[Path], config: BrokerConfig, *, wait_ms: int) -> TopicsView:
        """Read directories that a writer may be changing. They may also be empty.

        A writer updates the saved state before and after each change of a topic. So if the state
        did not change during the read, no topic is incomplete other than those in
        `state.creates`. Reads again until that is so, for `wait_ms` at most.
        """
        deadline = time.monotonic() + wait_ms / 1000
        while True:
            before = StateStore(Disk(), paths).state.generation
            view = cls([LogDirView(path, may_be_new=True) for path in paths], config)
            after = StateStore(Disk(), paths).state.generation
            if before == after or time.monotonic() >= deadline:
                return view

    def describe(
        self, name: str, topic_id: uuid.UUID | None, partitions: Iterable[int]
    ) -> TopicInfo:
        """A topic with these partitions, its settings looked up now."""
        counts = self.store.state.partition_counts if self.missing_dirs else {}
        found = self.settings.of(name, topic_id)
        return describe_topic(name, topic_id, partitions, found, counts.get(name, 0))

    def _places(self, topic: str, numbers: Iterable[int]) -> Iterator[Path]:
        return (self.partitions[TopicPartition(topic, number)] for number in numbers)

    def check_complete(self, action: str) -> None:
        """Raise MissingLogDirsError if directories of the set are offline."""
        if self.missing_dirs:
            raise self.dir_set.error(action)

    def check_may_create(self, name: str) -> None:
        """Raise BrokerDirectoryError where a Kafka broker would rename a new topic to `-stray`."""
        for log_dir in self.dirs:
            meta = log_dir.meta_properties
            if meta is not None:
                raise BrokerDirectoryError(
                    f"topic {name!r}: {log_dir.path} belongs to node {meta.node_id} of a Kafka "
                    "cluster, whose brokers rename partitions that their cluster does not know to "
                    "-stray; create the topic in the cluster, or create it here anyway with "
                    "create_in_broker_dir=True"
                )


def _check_consistent(dirs: Sequence[LogDirView], live: dict[TopicPartition, list[Path]]) -> None:
    """Raise unless one broker could have all these log directories."""
    for topic_partition, (first_path, *others) in live.items():
        if others:
            raise InconsistentLogDirsError(
                f"{topic_partition} is in both {first_path.parent} and {others[0].parent}"
            )
    known = [(each.path, each.meta_properties) for each in dirs]
    owned = [(path, meta) for path, meta in known if meta is not None]
    for path, meta in owned[1:]:
        first, first_meta = owned[0]
        if (meta.cluster_id, meta.node_id) != (first_meta.cluster_id, first_meta.node_id):
            raise InconsistentLogDirsError(
                f"{first} belongs to node {first_meta.node_id} of cluster "
                f"{first_meta.cluster_id}, {path} to node {meta.node_id} of cluster "
                f"{meta.cluster_id}"
            )


def check_new_topic(name: str, existing: Collection[str]) -> None:
    """Raise unless a topic of this name may be created beside the `existing` ones."""
    try:
        check_topic_name(name)
    except InvalidNameError as error:
        raise InvalidTopicError(str(error)) from None
    if name == CLUSTER_METADATA_TOPIC:
        raise InvalidTopicError(f"{name} is the metadata log of a Kafka cluster")
    if name in existing:
        raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")
    if "." in name or "_" in name:
        for other in existing:
            if do_topics_collide(name, other):
                raise InvalidTopicError(f"Topic '{name}' collides with existing topic: {other}")


def partition_count_of(requested: int | None, default: int) -> int:
    """The number of partitions to create a topic with."""
    if requested is None or requested == _DEFAULT:
        return default
    if not 0 < requested <= INT32_MAX:
        raise InvalidPartitionsError(
            "Number of partitions was set to an invalid non-positive value."
            if requested <= 0
            else f"a topic cannot have {requested} partitions"
        )
    return requested


def check_replication_factor(requested: int | None, default: int) -> None:
    """Raise unless a single broker can have this many replicas."""
    factor = default if requested is None or requested == _DEFAULT else requested
    if factor <= 0:
        raise InvalidReplicationFactorError(
            "Replication factor must be larger than 0, or -1 to use the default value."
        )
    if factor > BROKERS:
        raise InvalidReplicationFactorError(
            f"Unable to replicate the partition {factor} time(s): The target replication factor of "
            f"{factor} cannot be reached because only {BROKERS} broker(s) are registered."
        )


def check_more_partitions(topic: TopicInfo, partition_count: int) -> None:
    """Raise unless the topic can grow to this many partitions; it can never shrink."""
    has = topic.partition_count
    if not has < partition_count <= INT32_MAX:
        raise InvalidPartitionsError(
            f"The topic {topic.name} currently has {has} partition(s); {partition_count} would not "
            "be an increase."
        )


def new_topic_id() -> uuid.UUID:
    """Random. As in Kafka, its text never starts with `-`, like a command-line option."""
    while True:
        topic_id = uuid.uuid4()
        if topic_id not in {ZERO_ID, METADATA_TOPIC_ID} and not encode_id(topic_id).startswith("-"):
            return topic_id

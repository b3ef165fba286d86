"""What a topic is, and Kafka's rules for making and changing one. No I/O.

The checks come in Kafka's order, so that a request with several faults is answered as Kafka does.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stratalog.errors import (
    InvalidNameError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    TopicAlreadyExistsError,
)
from stratalog.format.metadata import METADATA_TOPIC_ID, ZERO_ID, encode_id
from stratalog.format.names import (
    CLUSTER_METADATA_TOPIC,
    INT32_MAX,
    INTERNAL_TOPICS,
    check_topic_name,
    do_topics_collide,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from stratalog.config import LogConfig
    from stratalog.partitions.settings import ConfigSource

BROKERS: Final = 1
_DEFAULT: Final = -1
"""What clients send to ask for the broker's default."""


@dataclass(frozen=True)
class TopicInfo:
    """A topic of a log directory."""

    name: str
    topic_id: uuid.UUID | None
    """None for a topic that was made before Kafka had topic ids (2.8)."""
    partitions: tuple[int, ...]
    """The numbers of the partitions that are here: of a cluster's topic perhaps not all."""
    overrides: Mapping[str, str]
    """The settings in which the topic differs from the log directory's config, by Kafka's names."""
    config: LogConfig
    """All settings."""
    known_count: int = 0
    """How many partitions it has if some are in a log directory that is missing, or as its Kafka
    cluster has it."""
    sources: Mapping[str, ConfigSource] = field(default_factory=dict)
    """Where each setting comes from that is not Kafka's default."""
    unknown: str | None = None
    """Why the topic's settings are not known; None if they are. Nothing of a topic is deleted or
    compacted whose settings are unknown."""
    is_cluster_s: bool = False
    """Whether a Kafka cluster knows the topic, by its name and id."""
    is_assumed: bool = False
    """Whether the topic's own settings are unknown; `assumed_config` may stand for some."""

    @property
    def partition_count(self) -> int:
        """Of the topic, which may have more than are here."""
        return max(self.partitions[-1] + 1, self.known_count)

    @property
    def is_internal(self) -> bool:
        """Of the broker's own making: not for clients to write to."""
        return self.name in INTERNAL_TOPICS


def check_new_topic(name: str, existing: Collection[str]) -> None:
    """Raise unless a topic of this name may be created beside the `existing` ones."""
    try:
        check_topic_name(name)
    except InvalidNameError as error:
        raise InvalidTopicError(str(error)) from None
    if name == CLUSTER_METADATA_TOPIC:
        raise InvalidTopicError(f"{name} is the metadata log of a Kafka cluster")
    if name in existing:
        raise TopicAlreadyExistsError(f"topic {name!r} already exists")
    if "." in name or "_" in name:
        for other in existing:
            if do_topics_collide(name, other):
                raise InvalidTopicError(
                    f"topic {name!r} collides with {other!r}: they differ only in '.' and '_', "
                    "which metric names do not tell apart"
                )


def partition_count_of(asked: int | None, default: int) -> int:
    """The number of partitions to create a topic with."""
    if asked is None or asked == _DEFAULT:
        return default
    if not 0 < asked <= INT32_MAX:
        raise InvalidPartitionsError(f"a topic cannot have {asked} partitions")
    return asked


def check_replication_factor(asked: int | None, default: int) -> None:
    """Raise unless one broker can have so many replicas."""
    factor = default if asked is None or asked == _DEFAULT else asked
    if factor <= 0:
        raise InvalidReplicationFactorError(f"replication factor {factor} is not positive")
    if factor > BROKERS:
        raise InvalidReplicationFactorError(
            f"replication factor {factor} is more than the number of brokers, which is {BROKERS}"
        )


def check_more_partitions(topic: TopicInfo, partition_count: int) -> None:
    """Raise unless the topic can grow to so many: partitions never go away."""
    has = topic.partition_count
    if not has < partition_count <= INT32_MAX:
        raise InvalidPartitionsError(
            f"topic {topic.name!r} has {has} partitions; {partition_count} would be no increase"
        )


def new_topic_id() -> uuid.UUID:
    """Random, and as Kafka's never one whose text could be taken for an option."""
    while True:
        topic_id = uuid.uuid4()
        if topic_id not in {ZERO_ID, METADATA_TOPIC_ID} and not encode_id(topic_id).startswith("-"):
            return topic_id


def emptiest(partition_counts: Sequence[int]) -> int:
    """Which of the log directories a new partition goes to: the one with the fewest partitions."""
    return min(range(len(partition_counts)), key=partition_counts.__getitem__)

"""The options of a read or a write, as typed values. Option strings are parsed elsewhere.

All values are frozen and picklable, and know nothing of what the directories hold. The names of the
options of Spark's Kafka connector are in `stratalog.spark.options`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from stratalog.format.arguments import choice_of
from stratalog.format.batch import Codec
from stratalog.log.reader import IsolationLevel

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.bulk.target import Target
    from stratalog.commits.journal import CommitIdentity
    from stratalog.format.names import TopicPartition
    from stratalog.storage.tiered_store import TieredStore

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

SPLIT_BYTES_DEFAULT: Final = 128 << 20
"""As for Spark's file sources. A task of a Python source costs Spark as much as reading tens of
megabytes, so small splits are slow."""
TRIGGER_DELAY_MS_DEFAULT: Final = 15 * 60 * 1000
BATCH_BYTES_DEFAULT: Final = 64 << 10

PartitionNumbers: TypeAlias = "tuple[tuple[TopicPartition, int], ...]"
"""A number for each partition, sorted. A tuple, so that options stay frozen."""


@dataclass(frozen=True)
class ByTimestamp:
    """Start or end at the first record at or after a time."""

    for_all: int | None = None
    """Milliseconds since 1970."""
    each: PartitionNumbers = ()


OffsetBound: TypeAlias = "str | PartitionNumbers | ByTimestamp"
"""`earliest`, `latest`, offsets by partition, or timestamps."""


@dataclass(frozen=True)
class Subscription:
    """Which partitions to read: one of the three, or every topic that is not internal."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class ReadOptions:
    """Every choice of a read."""

    paths: tuple[Path, ...]
    subscription: Subscription = Subscription()
    starting: OffsetBound | None = None
    """None: batch queries start at the earliest offset, streams at the latest."""
    ending: OffsetBound | None = None
    """None: at the latest offset."""
    starting_or_latest: bool = False
    """If no record is as late as the starting timestamp, start at the end instead of failing."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    parallelism: int = 1
    """How many tasks can run at once. Partitions share a task only if there are more of them."""
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int | None = None
    includes_headers: bool = False
    fail_on_data_loss: bool = True
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    split_bytes: int = SPLIT_BYTES_DEFAULT
    skips_corruption: bool = False
    timestamp_disorder_ms: int | None = None
    """How much older than an earlier record a record may be; None: unknown."""
    remote: TieredStore | None = None
    """The store of tiered topics."""
    takes_filters: bool = False
    """Whether to prune by the filters that Spark pushes; `stratalog.spark.reader` says why this is
    a choice."""

    def __post_init__(self) -> None:
        level = choice_of(IsolationLevel, self.isolation, "isolation")
        object.__setattr__(self, "isolation", level)


@dataclass(frozen=True)
class WriteOptions:
    """Every choice of a write."""

    target: Target
    topic: str | None = None
    """The topic of all rows, whatever their `topic` column says."""
    codec: Codec = Codec.NONE
    """For topics that leave compression to the producer."""
    level: int | None = None
    batch_bytes: int = BATCH_BYTES_DEFAULT
    """Size of a batch before compression, unless a single record is larger."""
    identity: CommitIdentity | None = None
    compares_content: bool = True
    """A repeated commit must have the same keys and values, not only as many rows."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", choice_of(Codec, self.codec, "codec"))

"""LogConfig: the settings of one topic's logs, by Kafka's names, checked and frozen.

Invariant: a `LogConfig` that exists is valid. Constructor and `parse` reject what Kafka 4.0
rejects."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stratalog.config.definitions import Definitions, Synonym, setting, unknown_name
from stratalog.config.values import (
    DAY_MS,
    HOUR_MS,
    LONG_MAX,
    MINUTE_MS,
    Boolean,
    Choice,
    Choices,
    Decimal,
    Lifetime,
    TextList,
    integer,
    long_integer,
)
from stratalog.errors import ConfigError
from stratalog.format.batch import Codec, TimestampType

if TYPE_CHECKING:
    from collections.abc import Mapping


class CleanupPolicy(enum.StrEnum):
    """What happens to old segments: nothing, dropped by retention, compacted by key, or both."""

    COMPACT = "compact"
    DELETE = "delete"


class TopicCompression(enum.StrEnum):
    """A topic's `compression.type`: a codec that the log enforces, or whatever producers send."""

    UNCOMPRESSED = "uncompressed"
    ZSTD = "zstd"
    LZ4 = "lz4"
    SNAPPY = "snappy"
    GZIP = "gzip"
    PRODUCER = "producer"

    @property
    def codec(self) -> Codec | None:
        """The codec to store with; None keeps that of the producer."""
        return _CODECS[self]


_CODECS = {
    TopicCompression.UNCOMPRESSED: Codec.NONE,
    TopicCompression.ZSTD: Codec.ZSTD,
    TopicCompression.LZ4: Codec.LZ4,
    TopicCompression.SNAPPY: Codec.SNAPPY,
    TopicCompression.GZIP: Codec.GZIP,
    TopicCompression.PRODUCER: None,
}

POLICIES = Choices(Choice(tuple((policy.value, policy) for policy in CleanupPolicy)))
COMPRESSION = Choice(tuple((compression.value, compression) for compression in TopicCompression))
TIMESTAMP_TYPES = Choice(
    tuple(
        (kind.kafka_name, kind) for kind in TimestampType if kind is not TimestampType.NO_TIMESTAMP
    )
)
THROTTLED = TextList(
    r"[0-9]+:[0-9]+", wildcard="*", described="partition:broker, partition:broker, …, or * alone"
)


# Kafka 4.0's rules between settings of a topic.

LOCAL_AS_TOTAL: Final = -2
"""`local.retention.*` has the value of `retention.*`."""


def check_rules(config: LogConfig) -> None:
    """Raise ConfigError for the first setting that contradicts another."""
    _check_lags(config)
    if config.remote_storage_enable:
        _check_remote(config)


def _check_lags(config: LogConfig) -> None:
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        reason = (
            f"{config.min_compaction_lag_ms} is more than max.compaction.lag.ms, "
            f"which is {config.max_compaction_lag_ms}"
        )
        raise ConfigError("min.compaction.lag.ms", reason, value=config.min_compaction_lag_ms)


def _check_remote(config: LogConfig) -> None:
    """Kafka's rules between tiered storage and the rest."""
    if config.is_compacted:
        reason = "true is not allowed if cleanup.policy has compact"
        raise ConfigError("remote.storage.enable", reason, value=True)
    _check_local("local.retention.ms", config.local_retention_ms, config.retention_ms)
    _check_local("local.retention.bytes", config.local_retention_bytes, config.retention_bytes)


def _check_local(name: str, local: int, total: int) -> None:
    if total < 0 or local == LOCAL_AS_TOTAL:
        return
    if local < 0 or local > total:
        shown = f"{local} (no limit)" if local < 0 else str(local)
        reason = f"{shown} is more than {name.removeprefix('local.')}, which is {total}"
        raise ConfigError(name, reason, value=local)


LATER_SEGMENT_BYTES_MIN: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """A topic's settings. `LogConfig()` is a Kafka 4.0 broker without any configuration."""

    cleanup_policy: frozenset[CleanupPolicy] = setting(
        POLICIES, frozenset({CleanupPolicy.DELETE}), "log.cleanup.policy"
    )
    """How space is freed: `delete` deletes old segments, `compact` keeps the last value of each
    key."""
    compression_gzip_level: int = setting(integer(1, 9, also=-1), -1, "compression.gzip.level")
    """Level for recompression with gzip; -1 is zlib's own choice."""
    compression_lz4_level: int = setting(integer(1, 17), 9, "compression.lz4.level")
    """Level for recompression with lz4."""
    compression_type: TopicCompression = setting(  # noqa: RUF009 - makes a field
        COMPRESSION, TopicCompression.PRODUCER, "compression.type"
    )
    """Codec that batches are stored with; `producer` stores them as they are sent."""
    compression_zstd_level: int = setting(integer(-131072, 22), 3, "compression.zstd.level")
    """Level for recompression with zstd."""
    delete_retention_ms: int = setting(long_integer(0), DAY_MS, "log.cleaner.delete.retention.ms")
    """How long a tombstone or transaction marker is kept after it was first cleaned."""
    file_delete_delay_ms: int = setting(long_integer(0), MINUTE_MS, "log.segment.delete.delay.ms")
    """Time between renaming a file to `.deleted` and removing it."""
    flush_messages: int = setting(long_integer(1), LONG_MAX, "log.flush.interval.messages")
    """Number of records that may be appended before the log is fsynced."""
    flush_ms: int = setting(
        long_integer(0), LONG_MAX, "log.flush.interval.ms", "log.flush.scheduler.interval.ms"
    )
    """Time after which appended records are fsynced."""
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        THROTTLED, (), is_carried=True
    )
    """Replicas whose replication is slowed down on the follower's side."""
    index_interval_bytes: int = setting(integer(0), 4096, "log.index.interval.bytes")
    """Bytes of log between two entries of the offset index and of the time index."""
    leader_replication_throttled_replicas: tuple[str, ...] = setting(THROTTLED, (), is_carried=True)
    """Replicas whose replication is slowed down on the leader's side."""
    local_retention_bytes: int = setting(
        long_integer(LOCAL_AS_TOTAL), LOCAL_AS_TOTAL, "log.local.retention.bytes", is_carried=True
    )
    """With tiered storage, size of the part kept locally; -2 takes `retention.bytes`."""
    local_retention_ms: int = setting(
        long_integer(LOCAL_AS_TOTAL), LOCAL_AS_TOTAL, "log.local.retention.ms", is_carried=True
    )
    """With tiered storage, age of the part kept locally; -2 takes `retention.ms`."""
    max_compaction_lag_ms: int = setting(
        long_integer(1), LONG_MAX, "log.cleaner.max.compaction.lag.ms"
    )
    """Age at which a record must become eligible for compaction; limits `segment.ms` on compacted
    topics."""
    max_message_bytes: int = setting(integer(0), 1048588, "message.max.bytes")
    """Largest record batch that may be appended, as it is stored."""
    message_timestamp_after_max_ms: int = setting(
        long_integer(0), HOUR_MS, "log.message.timestamp.after.max.ms"
    )
    """With CreateTime, how far a record's timestamp may be in the future."""
    message_timestamp_before_max_ms: int = setting(
        long_integer(0), LONG_MAX, "log.message.timestamp.before.max.ms"
    )
    """With CreateTime, how far a record's timestamp may be in the past."""
    message_timestamp_type: TimestampType = setting(  # noqa: RUF009 - makes a field
        TIMESTAMP_TYPES, TimestampType.CREATE_TIME, "log.message.timestamp.type"
    )
    """Who sets the timestamp of a record: the producer, or the broker when it appends the
    record."""
    min_cleanable_dirty_ratio: float = setting(
        Decimal(0, 1), 0.5, "log.cleaner.min.cleanable.ratio"
    )
    """Share of a log that must be dirty before it is compacted."""
    min_compaction_lag_ms: int = setting(long_integer(0), 0, "log.cleaner.min.compaction.lag.ms")
    """Age below which a record is not compacted."""
    min_insync_replicas: int = setting(integer(1), 1, "min.insync.replicas", is_carried=True)
    """Number of replicas that must have a record before `acks=all` is acknowledged."""
    preallocate: bool = setting(Boolean(), False, "log.preallocate")
    """Whether the `.log` file of a new segment is preallocated on disk."""
    remote_log_copy_disable: bool = setting(Boolean(), False, is_carried=True)
    """With tiered storage, whether uploading has stopped."""
    remote_log_delete_on_disable: bool = setting(Boolean(), False, is_carried=True)
    """Whether turning tiered storage off deletes what was uploaded."""
    remote_storage_enable: bool = setting(Boolean(), False)
    """Whether segments are uploaded to tiered storage; retention then deletes none of them here."""
    retention_bytes: int = setting(long_integer(), -1, "log.retention.bytes")
    """Size of a partition above which its oldest segments are deleted; negative: no limit."""
    retention_ms: int = setting(
        long_integer(-1),
        7 * DAY_MS,
        Synonym("log.retention.ms", Lifetime(64)),
        Synonym("log.retention.minutes", Lifetime(32), MINUTE_MS),
        Synonym("log.retention.hours", Lifetime(32), HOUR_MS),
    )
    """Age of a segment's newest record at which the segment is deleted; -1: no limit."""
    segment_bytes: int = setting(
        integer(14), 1 << 30, "log.segment.bytes", later_minimum=LATER_SEGMENT_BYTES_MIN
    )
    """Size of a `.log` file at which the next segment is rolled."""
    segment_index_bytes: int = setting(integer(4), 10 << 20, "log.index.size.max.bytes")
    """Size to which each index of the active segment is preallocated; a full index rolls the
    segment."""
    segment_jitter_ms: int = setting(
        long_integer(0),
        0,
        "log.roll.jitter.ms",
        Synonym("log.roll.jitter.hours", integer(0), HOUR_MS),
    )
    """Upper bound of a random time subtracted from `segment.ms`, so that not all segments roll at
    once."""
    segment_ms: int = setting(
        long_integer(1), 7 * DAY_MS, "log.roll.ms", Synonym("log.roll.hours", integer(1), HOUR_MS)
    )
    """Span of record timestamps after which a segment is rolled even if it is not full."""
    unclean_leader_election_enable: bool = setting(
        Boolean(), False, "unclean.leader.election.enable", is_carried=True
    )
    """Whether a replica that is not in sync may become leader, which can lose records."""

    def __post_init__(self) -> None:
        TOPIC_DEFINITIONS.validate(self)
        check_rules(self)

    @classmethod
    def parse(cls, overrides: Mapping[str, object], base: LogConfig | None = None) -> LogConfig:
        """`base` (Kafka's defaults if None) with `overrides`: Kafka's names, texts or values."""
        values: dict[str, Any] = {}
        for name, raw in overrides.items():
            if name not in TOPIC_DEFINITIONS:
                raise unknown_topic_config(name)
            values[TOPIC_DEFINITIONS[name].field] = raw
        return dataclasses.replace(cls() if base is None else base, **values)

    def as_dict(self) -> dict[str, str]:
        """Every setting by Kafka's name, as the text Kafka would show."""
        return {
            definition.name: definition.kind.text(getattr(self, definition.field))
            for definition in TOPIC_DEFINITIONS.values()
        }

    def overrides(self, base: LogConfig | None = None) -> dict[str, str]:
        """The settings that differ from `base`: `parse(c.overrides(base), base) == c`."""
        other = (LogConfig() if base is None else base).as_dict()
        return {name: text for name, text in self.as_dict().items() if other[name] != text}

    @property
    def is_compacted(self) -> bool:
        """Whether the cleaner works on these logs."""
        return CleanupPolicy.COMPACT in self.cleanup_policy

    @property
    def has_delete_policy(self) -> bool:
        """Whether retention by size and by time works on these logs."""
        return CleanupPolicy.DELETE in self.cleanup_policy

    @property
    def effective_segment_ms(self) -> int:
        """`segment.ms`; on compacted topics, at most `max.compaction.lag.ms`."""
        if self.is_compacted:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def effective_segment_jitter_ms(self) -> int:
        """Exclusive upper bound of a segment's jitter; 0 is no jitter."""
        return min(self.segment_jitter_ms, self.segment_ms)

    @property
    def codec(self) -> Codec | None:
        """The codec every batch is stored with; None keeps that of the producer."""
        return self.compression_type.codec

    def level_of(self, codec: Codec) -> int | None:
        """The configured level, None where a codec has no levels."""
        return {
            Codec.GZIP: self.compression_gzip_level,
            Codec.LZ4: self.compression_lz4_level,
            Codec.ZSTD: self.compression_zstd_level,
        }.get(codec)

    def rejected_by_newer_kafka(self) -> tuple[str, ...]:
        """What Kafka 4.0 accepts and Kafka 4.1 rejects, one line each; for a warning."""
        return tuple(
            f"{definition.name} is {value}; Kafka 4.1 and later require {minimum} or more"
            for definition in TOPIC_DEFINITIONS.values()
            if (minimum := definition.later_minimum) is not None
            and (value := getattr(self, definition.field)) < minimum
        )


TOPIC_DEFINITIONS: Final = Definitions.of(LogConfig)
"""Every topic setting by Kafka's name."""


def unknown_topic_config(name: str) -> ConfigError:
    """The error for an unknown topic setting; recognizes the broker's names."""
    for definition in TOPIC_DEFINITIONS.values():
        if any(synonym.name == name for synonym in definition.synonyms):
            reason = f"is the name of a broker setting; the topic setting is {definition.name!r}"
            return ConfigError(name, reason, suggestions=(definition.name,))
    return unknown_name(name, "topic config", TOPIC_DEFINITIONS)

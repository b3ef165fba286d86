"""BrokerConfig: the storage settings in a broker's `server.properties`.

Such a file has three kinds of names:

* settings of the broker itself: the fields below;
* defaults for topics, under the broker's names (`log.retention.hours`): they become `log_config`,
  where of several names for one setting the finest unit wins, as in Kafka;
* settings of Kafka's other parts (listeners, security, quorum, quotas): kept in `others`, not
  parsed.

Any other name is an error in a mapping and in flags, because it is most likely a typo. In a
`server.properties` it may belong to a plugin: as in Kafka, it is ignored with a warning."""

from __future__ import annotations

import dataclasses
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.config.definitions import Definitions, Synonym, setting, similar_names, unknown_name
from stratalog.config.ignored_settings import IGNORED_SETTINGS, is_ignored
from stratalog.config.topic import TOPIC_DEFINITIONS, LogConfig
from stratalog.config.values import (
    DAY_MS,
    HOUR_MS,
    INT_MAX,
    LONG_MAX,
    MINUTE_MS,
    Boolean,
    Decimal,
    TextList,
    integer,
    long_integer,
    short_integer,
)
from stratalog.errors import ConfigError, CorruptCheckpointError
from stratalog.format.java_text import decode_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)

_MIB = 1 << 20
_TYPO_SIMILARITY: Final = 0.8
"""An unknown name that is at least this similar to a known one is probably a typo."""


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """A broker's settings. `BrokerConfig()` is a Kafka 4.0 broker without any configuration."""

    auto_create_topics_enable: bool = setting(Boolean(), True)
    """Whether using a topic that does not exist creates it."""
    default_replication_factor: int = setting(integer(), 1)
    """Default number of replicas of a new topic; only 1 is supported here."""
    delete_topic_enable: bool = setting(Boolean(), True)
    """Whether topics may be deleted."""
    group_consumer_heartbeat_interval_ms: int = setting(integer(1), 5_000)
    """Time between two heartbeats of a member of a consumer group."""
    group_consumer_max_size: int = setting(integer(1), INT_MAX)
    """Maximum number of members of a consumer group."""
    group_consumer_session_timeout_ms: int = setting(integer(1), 45_000)
    """Time without a heartbeat after which a consumer group drops a member."""
    group_initial_rebalance_delay_ms: int = setting(integer(), 3_000)
    """Time that an empty group waits for more members after the first one has joined."""
    group_max_session_timeout_ms: int = setting(integer(), 30 * MINUTE_MS)
    """Longest session timeout that a member may request."""
    group_max_size: int = setting(integer(1), INT_MAX)
    """Maximum number of members of a classic group."""
    group_min_session_timeout_ms: int = setting(integer(), 6_000)
    """Shortest session timeout that a member may request."""
    log_cleaner_backoff_ms: int = setting(long_integer(0), 15_000)
    """Pause of the cleaner when there is nothing to compact."""
    log_cleaner_dedupe_buffer_size: int = setting(long_integer(), 128 * _MIB)
    """Memory for the keys of the logs being compacted, for all threads together."""
    log_cleaner_enable: bool = setting(Boolean(), True)
    """Whether compaction runs at all."""
    log_cleaner_io_buffer_load_factor: float = setting(Decimal(), 0.9)
    """Share of the memory for keys that may be filled in one cleaning pass."""
    log_cleaner_io_buffer_size: int = setting(integer(0), 512 * 1024, is_carried=True)
    """Memory for reading and writing during compaction, for all threads together."""
    log_cleaner_io_max_bytes_per_second: float = setting(Decimal(), sys.float_info.max)
    """Maximum number of bytes per second that compaction reads and writes."""
    log_cleaner_threads: int = setting(integer(0), 1)
    """Number of cleaner threads."""
    log_dir_failure_timeout_ms: int = setting(long_integer(1), 30_000, is_carried=True)
    """Time to report a failed directory to the controller before giving up."""
    log_dirs: tuple[str, ...] = setting(
        TextList(described="paths, none twice", drops_empty=True),
        ("/tmp/kafka-logs",),
        "log.dirs",
        "log.dir",
    )
    """The log directories; a new partition is placed in the one with the fewest partitions."""
    log_flush_offset_checkpoint_interval_ms: int = setting(integer(0), MINUTE_MS)
    """Time between two writes of the recovery-point checkpoint."""
    log_flush_scheduler_interval_ms: int = setting(long_integer(), LONG_MAX)
    """Time between two checks for logs whose `flush.ms` has passed."""
    log_flush_start_offset_checkpoint_interval_ms: int = setting(integer(0), MINUTE_MS)
    """Time between two writes of the log-start-offset checkpoint."""
    log_initial_task_delay_ms: int = setting(long_integer(0), 30_000)
    """Time from the start to the first background task."""
    log_retention_check_interval_ms: int = setting(long_integer(1), 5 * MINUTE_MS)
    """Time between two checks for segments to delete."""
    node_id: int = setting(integer(0, also=-1), -1, "node.id", "broker.id")
    """The id of this node in its cluster; -1: not set."""
    num_partitions: int = setting(integer(1), 1)
    """Default number of partitions of a new topic."""
    num_recovery_threads_per_data_dir: int = setting(integer(1), 2)
    """Threads per log directory that load logs at startup and flush them at shutdown."""
    offset_metadata_max_bytes: int = setting(integer(), 4096)
    """Largest metadata that a client may attach to a committed offset."""
    offsets_commit_timeout_ms: int = setting(integer(1), 5_000, is_carried=True)
    """Time within which a committed offset must be stored."""
    offsets_load_buffer_size: int = setting(integer(1), 5 * _MIB, is_carried=True)
    """Bytes per read while the offsets topic is loaded."""
    offsets_retention_check_interval_ms: int = setting(long_integer(1), 10 * MINUTE_MS)
    """Time between two checks for expired offsets."""
    offsets_retention_minutes: int = setting(integer(1), 7 * 24 * 60)
    """Minutes that the offsets of an empty group are kept."""
    offsets_topic_compression_codec: int = setting(integer(0, 4), 0, is_carried=True)
    """Codec of the offsets topic, by its number in a batch's attributes."""
    offsets_topic_num_partitions: int = setting(integer(1), 50)
    """Partitions of the offsets topic; fixed once it exists."""
    offsets_topic_replication_factor: int = setting(short_integer(1), 3, is_carried=True)
    """Replicas of the offsets topic."""
    offsets_topic_segment_bytes: int = setting(integer(1), 100 * _MIB)
    """`segment.bytes` of the offsets topic."""
    producer_id_expiration_check_interval_ms: int = setting(integer(1), 10 * MINUTE_MS)
    """Time between two checks for expired producers."""
    producer_id_expiration_ms: int = setting(integer(1), DAY_MS)
    """Time without a write after which a producer's state is forgotten."""
    replica_high_watermark_checkpoint_interval_ms: int = setting(long_integer(), 5_000)
    """Time between two writes of the high-watermark checkpoint."""
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(integer(1), 10_000)
    """Time between two checks for transactions that have timed out."""
    transaction_max_timeout_ms: int = setting(integer(1), 15 * MINUTE_MS)
    """Longest timeout that a transactional producer may request."""
    transaction_partition_verification_enable: bool = setting(Boolean(), True)
    """Whether an append asks the coordinator if the partition is part of the transaction."""
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(integer(1), HOUR_MS)
    """Time between two checks for expired transactional ids."""
    transaction_state_log_load_buffer_size: int = setting(integer(1), 5 * _MIB, is_carried=True)
    """Bytes per read while the transaction topic is loaded."""
    transaction_state_log_min_isr: int = setting(integer(1), 2, is_carried=True)
    """`min.insync.replicas` of the transaction topic."""
    transaction_state_log_num_partitions: int = setting(integer(1), 50)
    """Partitions of the transaction topic; fixed once it exists."""
    transaction_state_log_replication_factor: int = setting(short_integer(1), 3, is_carried=True)
    """Replicas of the transaction topic."""
    transaction_state_log_segment_bytes: int = setting(integer(1), 100 * _MIB)
    """`segment.bytes` of the transaction topic."""
    transactional_id_expiration_ms: int = setting(integer(1), 7 * DAY_MS)
    """Time without a change after which a transactional id expires."""

    log_config: LogConfig = dataclasses.field(default_factory=LogConfig)
    """The defaults of topics."""
    topic_settings: frozenset[str] = dataclasses.field(default=frozenset(), repr=False)
    """Topics' names of the settings that are configured, not Kafka's default."""
    others: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    """Names and texts that other parts of Kafka read. Not shown: passwords are among them."""

    def __post_init__(self) -> None:
        BROKER_DEFINITIONS.validate(self)
        topic_settings = self.topic_settings.union(self.log_config.overrides())
        object.__setattr__(self, "topic_settings", topic_settings)
        _check_dirs(self.log_dirs)
        _check_cleaner(self)

    @classmethod
    def parse(cls, properties: Mapping[str, object]) -> BrokerConfig:
        """The config in a broker's `properties`: the broker's names, with texts or values."""
        others = []
        for name, raw in properties.items():
            if name in _NAMES:
                continue
            if not _is_known(name):
                raise unknown_broker_config(name)
            others.append((name, raw if isinstance(raw, str) else str(raw)))
        values = BROKER_DEFINITIONS.choose(properties)
        topic_values = TOPIC_DEFINITIONS.choose(properties)
        try:
            log_config = LogConfig(**topic_values)
        except ConfigError as error:
            raise _in_broker_words(error) from None
        names = frozenset(field.replace("_", ".") for field in topic_values)
        return cls(**values, log_config=log_config, topic_settings=names, others=tuple(others))

    @classmethod
    def of(
        cls,
        config: BrokerConfig | Mapping[str, object] | Path | str | None,
        defaults: Mapping[str, object] | None = None,
    ) -> BrokerConfig:
        """A config, the properties of one, or a `server.properties` file. `defaults` are used
        instead of Kafka's, unless `config` is complete already."""
        if isinstance(config, BrokerConfig):
            return config
        if isinstance(config, Path | str):
            return cls.from_properties_file(Path(config), defaults)
        return cls.parse({**(defaults or {}), **(config or {})})

    @classmethod
    def from_properties_file(
        cls, path: Path, defaults: Mapping[str, object] | None = None
    ) -> BrokerConfig:
        """The config in a `server.properties` file; an error names the file and the setting. A
        warning lists unknown names."""
        try:
            return cls.of(read_server_properties(path), defaults)
        except ConfigError as error:
            raise error.located(path) from None

    @property
    def log_dir_paths(self) -> tuple[Path, ...]:
        """`log.dirs` as paths."""
        return tuple(Path(log_dir) for log_dir in self.log_dirs)

    @property
    def metadata_log_dir(self) -> Path | None:
        """`metadata.log.dir`: where a KRaft node keeps the cluster's metadata, unless that is in
        the first of `log.dirs`."""
        found = dict(self.others).get("metadata.log.dir", "").strip()
        return Path(found) if found else None


def read_properties(path: Path) -> dict[str, str]:
    """The names and texts in a file of Java properties."""
    try:
        return decode_properties(path.read_bytes())
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise ConfigError("", reason, path=path) from error
    except CorruptCheckpointError as error:
        raise error.located(path) from None


def read_server_properties(path: Path) -> dict[str, str]:
    """The settings in a `server.properties` file. As in Kafka, unknown ones are ignored: a warning
    lists them, with the setting that was probably meant."""
    properties = read_properties(path)
    unknown = [name for name in properties if not _is_known(name)]
    if unknown:
        listed = ", ".join(map(_with_suggestion, unknown))
        _log.warning("%s: ignored settings that a Kafka broker does not have: %s", path, listed)
    return {name: text for name, text in properties.items() if name not in unknown}


def _is_known(name: str) -> bool:
    return name in _NAMES or is_ignored(name)


def _with_suggestion(name: str) -> str:
    """An unknown name, for a list."""
    suggestions = unknown_broker_config(name).suggestions
    if name not in TOPIC_DEFINITIONS:
        suggestions = similar_names(name, suggestions, _TYPO_SIMILARITY)
    return f"{name} (did you mean {suggestions[0]!r}?)" if suggestions else name


BROKER_DEFINITIONS: Final = Definitions(
    {
        name: dataclasses.replace(definition, synonyms=definition.synonyms or (Synonym(name),))
        for name, definition in Definitions.of(BrokerConfig).items()
    }
)
"""Every setting of the broker itself by Kafka's name."""

_NAMES = frozenset(
    synonym.name
    for definition in (*BROKER_DEFINITIONS.values(), *TOPIC_DEFINITIONS.values())
    for synonym in definition.synonyms
)


def unknown_broker_config(name: str) -> ConfigError:
    """The error for an unknown broker setting; recognizes the topics' names."""
    definition = TOPIC_DEFINITIONS.get(name)
    if definition is None:
        return unknown_name(name, "broker config", _NAMES | IGNORED_SETTINGS)
    if not definition.synonyms:
        return ConfigError(name, "is a topic setting; a broker has no default for it")
    broker_name = definition.synonyms[0].name
    reason = f"is the name of a topic setting; the broker setting is {broker_name!r}"
    return ConfigError(name, reason, suggestions=(broker_name,))


def _in_broker_words(error: ConfigError) -> ConfigError:
    """An error between two topic settings, with the broker's name."""
    synonyms = TOPIC_DEFINITIONS[error.name].synonyms
    name = synonyms[0].name if synonyms else error.name
    return ConfigError(name, f"as {error.name}: {error.reason}", value=error.value)


def _check_dirs(log_dirs: tuple[str, ...]) -> None:
    if not log_dirs:
        raise ConfigError(
            "log.dirs", "is empty; a broker needs at least one log directory", value=log_dirs
        )
    repeated = next((path for path in log_dirs if log_dirs.count(path) > 1), None)
    if repeated is not None:
        raise ConfigError("log.dirs", f"lists {repeated!r} twice", value=log_dirs)


def _check_cleaner(config: BrokerConfig) -> None:
    threads = config.log_cleaner_threads
    size = config.log_cleaner_dedupe_buffer_size
    if threads > 0 and size // threads <= _MIB:
        reason = (
            f"{size} is too small: each of the {threads} log.cleaner.threads needs more than "
            "1048576 bytes"
        )
        raise ConfigError("log.cleaner.dedupe.buffer.size", reason, value=size)

"""Options of a write, parsed once on the driver into one frozen value.

Names are those of Spark's Kafka connector, and the settings of Kafka's producer that decide what
batches look like; as in Spark, case does not matter. Anything else is an error with a suggestion.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from stratalog.bulk.topics import LOCK_WAIT_MS, NewTopics, Target
from stratalog.commits.journal import CommitIdentity
from stratalog.config import BrokerConfig, LogConfig
from stratalog.config.definitions import unknown_name
from stratalog.errors import ConfigError, InvalidNameError
from stratalog.format.batch import Codec
from stratalog.format.names import check_topic_name
from stratalog.spark.option_values import parse_bool, parse_bytes, parse_choice, parse_duration_ms
from stratalog.spark.option_values import parse_positive as parse_count
from stratalog.spark.paths import parse_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

BATCH_BYTES_DEFAULT: Final = 64 << 10

_LEVELS: Final = tuple(f"kafka.compression.{codec}.level" for codec in ("gzip", "lz4", "zstd"))
WRITE_OPTIONS: Final = (
    "path",
    "topic",
    "topicPartitions",
    "createInBrokerDir",
    "kafka.compression.type",
    *_LEVELS,
    "kafka.batch.size",
    "txnAppId",
    "txnVersion",
    "replayCheck",
    "lockTimeout",
    "serverProperties",
)
_OF_SPARK: Final = ("checkpointlocation", "queryname", "includeheaders")
"""Of no effect here. Jobs for Kafka's connector give the last one; there and here it is the column
`headers` that counts."""
_TOPIC_CONFIG: Final = "topicconfig."
_ADVICE: Final = "give the log directory to write to: save('/var/lib/kafka/data')"


@dataclass(frozen=True)
class WriteOptions:
    """Every choice of a write. Picklable; knows nothing of what the directories hold."""

    target: Target
    topic: str | None = None
    """Of all rows, whatever their `topic` column says."""
    codec: Codec = Codec.NONE
    level: int | None = None
    batch_bytes: int = BATCH_BYTES_DEFAULT
    identity: CommitIdentity | None = None
    compares_content: bool = True
    """A commit that comes again must have the same keys and values, not only as many rows."""
    _given: frozenset[str] = field(default=frozenset(), repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Names in any case. Raises ConfigError for the first thing that is wrong."""
        given, topic_config = _by_known_name(options)
        topic = given.get("topic")
        if topic is not None:
            _check_topic(topic)
        codec, level = _compression(given)
        lock_wait_ms = parse_duration_ms(given, "lockTimeout")
        target = Target(
            parse_paths(given, _ADVICE),
            _new_topics(given, topic_config),
            LOCK_WAIT_MS if lock_wait_ms is None else lock_wait_ms,
            _broker_config(given.get("serverProperties")),
            parse_bool(given, "createInBrokerDir", default=False),
        )
        return cls(
            target=target,
            topic=topic,
            codec=codec,
            level=level,
            batch_bytes=parse_bytes(given, "kafka.batch.size") or BATCH_BYTES_DEFAULT,
            identity=_identity(given),
            compares_content=parse_choice(given, "replayCheck", ("content", "count")) != "count",
            _given=frozenset(given),
        )

    def for_stream(self) -> Self:
        """Checked for a streaming query."""
        if self.identity is not None:
            raise ConfigError(
                "txnAppId",
                "a streaming query has an identity of its own, its checkpoint's: leave "
                "txnAppId and txnVersion out",
            )
        return self


def _by_known_name(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options under their proper names, and the settings of topics that are to be made."""
    proper = {name.lower(): name for name in WRITE_OPTIONS}
    given: dict[str, str] = {}
    topic_config: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        if lower in proper:
            given[proper[lower]] = value
        elif lower.startswith(_TOPIC_CONFIG):
            topic_config[lower.removeprefix(_TOPIC_CONFIG)] = value
        elif lower not in _OF_SPARK:
            raise _unknown(name)
    return given, topic_config


def _unknown(name: str) -> ConfigError:
    if name.lower().startswith("kafka."):
        return ConfigError(
            name,
            "is for writing through a broker; here the files are written (option 'path'): leave "
            "it out",
        )
    return unknown_name(name, "option", (*WRITE_OPTIONS, "topicConfig.<setting>"))


def _broker_config(path: str | None) -> BrokerConfig:
    """As the file on the driver says it; tasks get what was read."""
    return BrokerConfig() if path is None else BrokerConfig.from_properties_file(Path(path))


def _check_topic(topic: str) -> None:
    try:
        check_topic_name(topic)
    except InvalidNameError as error:
        raise ConfigError("topic", str(error)) from None


def _new_topics(given: Mapping[str, str], config: Mapping[str, str]) -> NewTopics | None:
    count = parse_count(given, "topicPartitions")
    if count is None:
        if config:
            raise ConfigError(
                "topicConfig." + next(iter(config)),
                "only for topics that are created: set topicPartitions too",
            )
        return None
    LogConfig.parse(config)  # to be told now, not by the first task
    return NewTopics(count, dict(config))


def _compression(given: Mapping[str, str]) -> tuple[Codec, int | None]:
    """As a producer is told; levels are understood as those of a topic's settings."""
    names = [codec.name.lower() for codec in Codec]
    codec = Codec[(parse_choice(given, "kafka.compression.type", names) or "none").upper()]
    levels = {name.removeprefix("kafka."): given[name] for name in _LEVELS if name in given}
    return codec, LogConfig.parse(levels).level_of(codec) if levels else None


def _identity(given: Mapping[str, str]) -> CommitIdentity | None:
    names = [name for name in ("txnAppId", "txnVersion") if name in given]
    if not names:
        return None
    if len(names) == 1:
        raise ConfigError(names[0], "txnAppId and txnVersion are given together or not at all")
    text = given["txnVersion"].strip()
    if not re.fullmatch(r"\d{1,18}", text):
        raise ConfigError("txnVersion", f"not a whole number of 0 or more: {text!r}", value=text)
    return CommitIdentity(given["txnAppId"], int(text))

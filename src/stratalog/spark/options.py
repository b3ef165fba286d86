"""Options of a read, parsed once on the driver into one frozen value.

Names are those of Spark's Kafka connector and, as in Spark, case does not matter. What the
connector would ignore is an error here, with a suggestion; what it says itself is said in its
words.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from stratalog.config.definitions import unknown_name
from stratalog.errors import ConfigError
from stratalog.log.reader import IsolationLevel
from stratalog.spark.offsets import (
    EARLIEST,
    LATEST,
    ByTimestamp,
    OffsetBound,
    parse_offsets,
    parse_timestamps,
)
from stratalog.spark.option_values import parse_bool, parse_bytes, parse_choice, parse_duration_ms
from stratalog.spark.option_values import parse_positive as parse_count
from stratalog.spark.paths import parse_paths

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SPLIT_BYTES_DEFAULT: Final = 128 << 20
"""As for Spark's file sources. A task of a Python source costs Spark as much as reading tens of
megabytes, so small splits are slow ones."""
TRIGGER_DELAY_MS_DEFAULT: Final = 15 * 60 * 1000

READ_OPTIONS: Final = (
    "path",
    "paths",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "failOnDataLoss",
    "kafka.isolation.level",
    "splitBytes",
    "onDamage",
    "timestampDisorder",
    "filterPushdown",
)
_OF_A_BROKER: Final = frozenset(
    {
        "groupidprefix",
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
    }
)
_NO_TOPICS: Final = (
    "One of the following options must be specified for Kafka source: "
    "subscribe, subscribepattern, assign. See the docs for more details."
)


@dataclass(frozen=True)
class Subscription:
    """Which partitions to read; one of the three is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class ReadOptions:
    """Every choice of a read. Picklable; knows nothing of what the directories hold."""

    paths: tuple[Path, ...]
    subscription: Subscription
    starting: OffsetBound | None = None
    """None: not given; batch queries begin at the earliest offset, streams at the latest."""
    ending: OffsetBound | None = None
    starting_or_latest: bool = False
    """Where no record is as late as the starting timestamp: begin at the end, do not fail."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = TRIGGER_DELAY_MS_DEFAULT
    includes_headers: bool = False
    fail_on_data_loss: bool = True
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    split_bytes: int = SPLIT_BYTES_DEFAULT
    skips_damage: bool = False
    timestamp_disorder_ms: int | None = None
    """How much older than a record before it a record may be; None: nothing is known."""
    takes_filters: bool = False
    """Whether to prune by the filters that Spark pushes; see `reader` for why this is a choice."""
    _given: frozenset[str] = field(default=frozenset(), repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Names in any case. Raises ConfigError for the first thing that is wrong."""
        given = _by_known_name(options)
        subscription = _subscription(given)
        starting = _bound(given, "starting")
        ending = _bound(given, "ending")
        strategy = parse_choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest"))
        isolation = parse_choice(
            given, "kafka.isolation.level", [level.value for level in IsolationLevel]
        )
        parsed = cls(
            paths=parse_paths(given, "give the log directory to read: load('/var/lib/kafka/data')"),
            subscription=subscription,
            starting=starting,
            ending=ending,
            starting_or_latest=strategy == "latest",
            min_partitions=parse_count(given, "minPartitions"),
            max_records_per_partition=parse_count(given, "maxRecordsPerPartition"),
            max_offsets_per_trigger=parse_count(given, "maxOffsetsPerTrigger"),
            min_offsets_per_trigger=parse_count(given, "minOffsetsPerTrigger"),
            max_trigger_delay_ms=parse_duration_ms(given, "maxTriggerDelay")
            or TRIGGER_DELAY_MS_DEFAULT,
            includes_headers=parse_bool(given, "includeHeaders", default=False),
            fail_on_data_loss=parse_bool(given, "failOnDataLoss", default=True),
            isolation=IsolationLevel(isolation) if isolation else IsolationLevel.READ_UNCOMMITTED,
            split_bytes=parse_bytes(given, "splitBytes") or SPLIT_BYTES_DEFAULT,
            skips_damage=parse_choice(given, "onDamage", ("fail", "skip")) == "skip",
            timestamp_disorder_ms=parse_duration_ms(given, "timestampDisorder"),
            takes_filters=parse_bool(given, "filterPushdown", default=False),
            _given=frozenset(given),
        )
        parsed._check_together()
        return parsed

    def _check_together(self) -> None:
        low, high = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if low is not None and high is not None and low > high:
            raise ConfigError(
                "minOffsetsPerTrigger",
                f"the value of minOffsetsPerTrigger({low}) is higher than the "
                f"maxOffsetsPerTrigger({high})",
            )

    def for_batch(self) -> Self:
        """Checked for a batch query."""
        if self.starting == LATEST:
            raise ConfigError(
                "startingOffsets", "starting offset can't be latest for batch queries on Kafka"
            )
        if isinstance(self.starting, tuple) and any(at == -1 for _, at in self.starting):
            raise ConfigError(
                "startingOffsets",
                "startingOffsets can't be latest (-1) for a partition for batch queries on Kafka",
            )
        if self.ending == EARLIEST:
            raise ConfigError(
                "endingOffsets", "ending offset can't be earliest for batch queries on Kafka"
            )
        if isinstance(self.ending, tuple) and any(at == -2 for _, at in self.ending):
            raise ConfigError(
                "endingOffsets",
                "endingOffsets can't be earliest (-2) for a partition for batch queries on Kafka",
            )
        self._refuse(
            ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
            "has no meaning in a batch query; endingOffsets bounds what it reads",
        )
        return replace(self, starting=self.starting or EARLIEST, ending=self.ending or LATEST)

    def for_stream(self) -> Self:
        """Checked for a streaming query."""
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            self._refuse((name,), "ending offset not valid in streaming queries")
        return replace(self, starting=self.starting or LATEST, ending=None)

    def _refuse(self, names: tuple[str, ...], reason: str) -> None:
        for name in names:
            if name in self._given:
                raise ConfigError(name, reason)


def _by_known_name(options: Mapping[str, str]) -> dict[str, str]:
    """The options under their proper names. One that is not known is an error."""
    proper = {name.lower(): name for name in READ_OPTIONS}
    given = {}
    for name, value in options.items():
        known = proper.get(name.lower())
        if known is None:
            raise _unknown(name)
        given[known] = value
    return given


def _unknown(name: str) -> ConfigError:
    lower = name.lower()
    if lower in _OF_A_BROKER or lower.startswith("kafka."):
        return ConfigError(
            name,
            "is for reading through a broker; here the files are read (option 'path'): leave it "
            "out",
        )
    return unknown_name(name, "option", READ_OPTIONS)


def _subscription(given: Mapping[str, str]) -> Subscription:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if not names:
        raise ConfigError("", _NO_TOPICS)
    if len(names) > 1:
        raise ConfigError(
            "",
            f"Only one of the following options can be specified for Kafka source: "
            f"subscribe, subscribepattern, assign; given are {', '.join(names)}.",
        )
    text = given[names[0]]
    if names[0] == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise ConfigError(
                "subscribe",
                f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'",
            )
        return Subscription(topics=topics)
    if names[0] == "subscribePattern":
        return Subscription(pattern=_pattern(text))
    return Subscription(assigned=_assigned(text))


def _pattern(text: str) -> str:
    if not text.strip():
        raise ConfigError(
            "subscribePattern",
            "Pattern to subscribe is empty as specified value "
            f"for option 'subscribePattern' is '{text}'",
        )
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError("subscribePattern", f"{text!r} is no pattern: {error}") from None
    return text


def _assigned(text: str) -> tuple[tuple[str, int], ...]:
    expected = 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got ' + text
    try:
        found = json.loads(text)
    except ValueError:
        raise ConfigError("assign", expected) from None
    if not isinstance(found, dict) or not all(
        isinstance(numbers, list) and all(type(number) is int for number in numbers)
        for numbers in found.values()
    ):
        raise ConfigError("assign", expected)
    pairs = {(topic, number) for topic, numbers in found.items() for number in numbers}
    if not pairs:
        raise ConfigError("assign", f"No topicpartitions to assign as specified value is '{text}'")
    return tuple(sorted(pairs))


def _bound(given: Mapping[str, str], which: str) -> OffsetBound | None:
    """The connector's order: one timestamp for all, timestamps by partition, offsets."""
    for_all, by_partition, offsets = (
        f"{which}Timestamp",
        f"{which}OffsetsByTimestamp",
        f"{which}Offsets",
    )
    if for_all in given:
        text = given[for_all].strip()
        if not text.isdecimal():
            raise ConfigError(for_all, f"not a time in milliseconds since 1970: {text!r}")
        return ByTimestamp(for_all=int(text))
    if by_partition in given:
        return ByTimestamp(each=parse_timestamps(by_partition, given[by_partition]))
    if offsets in given:
        return parse_offsets(offsets, given[offsets])
    return None

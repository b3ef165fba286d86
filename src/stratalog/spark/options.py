"""The options of `format("stratalog")`, for reads and writes: strings in, typed values out.

`READ_OPTIONS` and `WRITE_OPTIONS` are the names. `_READ_TABLE` maps each option of a read to its
field and parser; `parse_write_options` does the same for writes. Names are those of Spark's Kafka
connector, and of Kafka's producer where they determine what batches look like; as in Spark, case
does not matter. The connector ignores an option that it does not know; here it is an error with a
suggestion. Options that only a broker needs (`stratalog.spark.connector_options`) are ignored with
a warning, and so are options of the other direction: those of a write in a read, and those of a
read in a write. Where the connector has an error message of its own, the same message is used.

Nothing here needs PySpark.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from stratalog.bulk import read_planning
from stratalog.bulk.options import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    ByTimestamp,
    ReadOptions,
    Subscription,
    WriteOptions,
)
from stratalog.bulk.predicates import EVERYTHING, parse_where
from stratalog.bulk.target import NewTopics, Target
from stratalog.commits.journal import CommitIdentity
from stratalog.config import BrokerConfig, LogConfig
from stratalog.config.definitions import unknown_name
from stratalog.config.values import LONG_MAX
from stratalog.errors import ConfigError, InvalidNameError
from stratalog.format.batch import Codec
from stratalog.format.names import check_topic_name
from stratalog.format.times import InvalidTimeError, current_time_ms, parse_time
from stratalog.log.reader import IsolationLevel
from stratalog.spark.connector_options import CONNECTOR_OPTIONS, split_off_ignored
from stratalog.spark.offset_json import offsets_from_json
from stratalog.spark.session_storage import session_storage_options
from stratalog.storage.remote_path import RemotePath, location
from stratalog.storage.store_options import is_storage_option, layered
from stratalog.storage.tiered_store import TieredStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stratalog.bulk.options import OffsetBound, PartitionNumbers
    from stratalog.bulk.predicates import Predicate
    from stratalog.bulk.splits import SplitPlan

    Parser: TypeAlias = Callable[[str, str], Any]
    """Takes the name of the option, for errors, and its text."""

_log: Final = logging.getLogger(__name__)
_SIZE_SHIFTS: Final = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


# -- values


def parse_count(name: str, text: str) -> int:
    """1 or more."""
    text = text.strip()
    if not re.fullmatch(r"\d{1,19}", text) or not 0 < int(text) <= LONG_MAX:
        raise ConfigError(name, f"not a whole number of 1 or more: {text!r}", value=text)
    return int(text)


def parse_bool(name: str, text: str) -> bool:
    text = text.strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(name, f"not true or false: {text!r}", value=text)
    return text == "true"


def parse_bytes(name: str, text: str) -> int:
    """A size such as `1048576`, `64m` or `1GB`."""
    text = text.strip().lower()
    found = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)(i?b)?", text)
    if found is None or not int(found[1]):
        raise ConfigError(name, f"not a size such as 64m or 1048576: {text!r}", value=text)
    return int(found[1]) << _SIZE_SHIFTS[found[2]]


def parse_duration_ms(name: str, text: str) -> int:
    """A time such as `500ms`, `15m` or `2h`; a bare number is in milliseconds."""
    text = text.strip().lower()
    found = re.fullmatch(r"(\d{1,15})\s*(ms|s|min|m|h|d)?", text)
    if found is None:
        raise ConfigError(name, f"not a time such as 500ms, 15m or 2h: {text!r}", value=text)
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


def _choice(values: Mapping[str, Any]) -> Parser:
    """One of these words, in any case, and the value that it stands for."""

    def parse(name: str, text: str) -> Any:
        word = text.strip().lower()
        if word not in values:
            raise ConfigError(name, f"not one of {', '.join(values)}: {word!r}", value=word)
        return values[word]

    return parse


def parse_paths(
    given: Mapping[str, str], advice: str, storage: Mapping[str, str]
) -> tuple[Path, ...]:
    """One directory, several separated by commas, or a JSON list, which is what `load([...])`
    passes; each may be a URI, of a store with the options `storage`. `advice` tells the user what
    to do if there is none."""
    texts: list[str] = []
    for name in ("path", "paths"):
        text = given.get(name, "").strip()
        if text.startswith("["):
            texts += _json_list(name, text)
        else:
            texts += [part.strip() for part in text.split(",") if part.strip()]
    if not texts:
        raise ConfigError("path", advice)
    return tuple(location(text, storage).absolute() for text in dict.fromkeys(texts))


def _writable(path: Path) -> Path:
    if isinstance(path, RemotePath):
        raise ConfigError(
            "path",
            f"{path}: logs can be written only to disks that driver and executors have "
            "mounted, not to stores",
            value=str(path),
        )
    return path


def storage_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of stores: those of the Spark session, overridden by those of the query."""
    given = {name: value for name, value in options.items() if is_storage_option(name)}
    return layered(session_storage_options(), given)


def _json_list(name: str, text: str) -> list[str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(name, f"not a JSON list of paths: {error}", value=text) from None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ConfigError(name, "not a JSON list of paths", value=text)
    return found


# -- offsets by partition


def parse_offsets(name: str, text: str) -> OffsetBound:
    """The value of `startingOffsets` and `endingOffsets`."""
    word = text.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    expected = (
        'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, "earliest" or "latest", got '
        f"{text}"
    )
    numbers = _parse_numbers(name, text, expected)
    below = [at for _, at in numbers if at < EARLIEST_OFFSET]
    if below:
        raise ConfigError(name, f"{below[0]} is not an offset; -2 is the earliest, -1 the latest")
    return numbers


def _parse_timestamps(name: str, text: str) -> ByTimestamp:
    """A time for each partition: milliseconds, or a text with what `_parse_timestamp` takes."""
    expected = (
        'Expected e.g. {"topicA": {"0": 123456789, "1": 123456789}, "topicB": {"0": 123456789}}, '
        f"got {text}"
    )
    return ByTimestamp(
        each=_parse_numbers(name, text, expected, functools.partial(_milliseconds, name))
    )


def _parse_timestamp(name: str, text: str) -> ByTimestamp:
    return ByTimestamp(for_all=_milliseconds(name, text))


def _milliseconds(name: str, given: object) -> int:
    """A time as on the command line: ISO 8601, `-2h`, or milliseconds since 1970."""
    try:
        found = parse_time(str(given), now_ms=current_time_ms())
    except InvalidTimeError as error:
        raise ConfigError(name, str(error), value=given) from None
    if found < 0:
        raise ConfigError(name, f"{given} is before 1970", value=given)
    return found


def _parse_numbers(
    name: str, text: str, expected: str, from_text: Callable[[str], int] | None = None
) -> PartitionNumbers:
    try:
        numbers = offsets_from_json(json.loads(text), from_text)
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(name, expected, value=text) from None
    return tuple(sorted(numbers.items()))


# -- reads

_READ_TABLE: Final[Mapping[str, tuple[str, Parser] | None]] = {
    "path": None,
    "paths": None,
    "subscribe": None,
    "subscribePattern": None,
    "assign": None,
    "startingOffsets": None,
    "endingOffsets": None,
    "startingTimestamp": None,
    "endingTimestamp": None,
    "startingOffsetsByTimestamp": None,
    "endingOffsetsByTimestamp": None,
    "startingOffsetsByTimestampStrategy": (
        "starting_or_latest",
        _choice({"error": False, "latest": True}),
    ),
    "minPartitions": ("min_partitions", parse_count),
    "maxRecordsPerPartition": ("max_records_per_partition", parse_count),
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", parse_count),
    "minOffsetsPerTrigger": ("min_offsets_per_trigger", parse_count),
    "maxTriggerDelay": ("max_trigger_delay_ms", parse_duration_ms),
    "includeHeaders": ("includes_headers", parse_bool),
    "failOnDataLoss": ("fail_on_data_loss", parse_bool),
    "kafka.isolation.level": (
        "isolation",
        _choice({each.value: each for each in IsolationLevel}),
    ),
    "splitBytes": ("split_bytes", parse_bytes),
    "onCorruption": ("skips_corruption", _choice({"fail": False, "skip": True})),
    "timestampDisorder": ("timestamp_disorder_ms", parse_duration_ms),
    "filterPushdown": ("takes_filters", parse_bool),
    "remote": None,
    "remote.layout": None,
    "remote.key": None,
}
"""Options, and the field of `ReadOptions` with its parser; None: parsed together with others."""
READ_OPTIONS: Final = tuple(_READ_TABLE)
_SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
_NO_TOPICS: Final = (
    "One of the following options must be specified for Kafka source: "
    "subscribe, subscribePattern, assign. See the docs for more details."
)
_READ_ADVICE: Final = (
    "give the log directory to read: load('/var/lib/kafka/data'). A table has one if it was "
    "created with LOCATION, and without a list of columns"
)


def plan_read(options: Mapping[str, str], where: str | Predicate = EVERYTHING) -> SplitPlan:
    """What a batch query with these options reads: its splits, and a summary of what is pruned.

    `where` is what the query has as `where`, with the option `filterPushdown`: comparisons of
    topic, partition, offset and timestamp joined by `and`, such as
    `partition = 3 and timestamp >= '2026-11-01T12:00'`. Times without a zone are UTC.
    """
    predicate = parse_where(where, now_ms=current_time_ms()) if isinstance(where, str) else where
    return read_planning.plan_read(batch_read_options(options), predicate)


def parse_read_options(options: Mapping[str, str], base: ReadOptions | None = None) -> ReadOptions:
    """Raises ConfigError for the first option that is wrong.

    With a `base` its values are the defaults, and neither path nor topics are required.
    """
    given = _read_options_by_name(options)
    fields: dict[str, Any] = {}
    if "remote" in given and not {"path", "paths"} & set(given):
        fields["paths"] = ()  # the store alone
    elif base is None or "path" in given or "paths" in given:
        fields["paths"] = parse_paths(given, _READ_ADVICE, storage_options(options))
    if "remote" in given:
        fields["remote"] = _tiered_store(given, storage_options(options))
    if base is None or any(name in given for name in _SUBSCRIPTIONS):
        fields["subscription"] = _subscription(given)
    for which in ("starting", "ending"):
        if (bound := _bound(given, which)) is not None:
            fields[which] = bound
    for name, text in given.items():
        known = _READ_TABLE[name]
        if known is not None:
            fields[known[0]] = known[1](name, text)
    parsed = ReadOptions(**fields) if base is None else replace(base, **fields)
    low, high = parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger
    if low is not None and high is not None and low > high:
        raise ConfigError(
            "minOffsetsPerTrigger",
            f"the value of minOffsetsPerTrigger({low}) is higher than the "
            f"maxOffsetsPerTrigger({high})",
        )
    return parsed


def _tiered_store(given: Mapping[str, str], storage: Mapping[str, str]) -> TieredStore:
    keys = [part.strip() for part in given.get("remote.key", "").split(",") if part.strip()]
    layout = given.get("remote.layout", "").strip().lower() or None
    return TieredStore.found_at(location(given["remote"].strip(), storage), layout, keys)


def batch_read_options(options: Mapping[str, str]) -> ReadOptions:
    """For a batch query."""
    parsed = parse_read_options(options)
    _warn_of_ignored(options, is_read=True)
    for name, bound, forbidden, number in (
        ("starting", parsed.starting, LATEST, LATEST_OFFSET),
        ("ending", parsed.ending, EARLIEST, EARLIEST_OFFSET),
    ):
        if bound == forbidden:
            raise ConfigError(
                f"{name}Offsets", f"{name} offset can't be {forbidden} for batch queries on Kafka"
            )
        if isinstance(bound, tuple) and any(at == number for _, at in bound):
            raise ConfigError(
                f"{name}Offsets",
                f"{name}Offsets can't be {forbidden} ({number}) for a partition for batch queries "
                "on Kafka",
            )
    _refuse(
        options,
        ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
        "has no effect in a batch query; use endingOffsets to limit what it reads",
    )
    return replace(parsed, parallelism=_parallelism())


def stream_read_options(options: Mapping[str, str]) -> ReadOptions:
    """For a streaming query."""
    parsed = parse_read_options(options)
    _warn_of_ignored(options, is_read=True)
    _refuse(
        options,
        ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
        "ending offset not valid in streaming queries",
    )
    return replace(parsed, starting=parsed.starting or LATEST, parallelism=_parallelism())


def _parallelism() -> int:
    """How many tasks run at once with `local[*]`. Spark tells a Python source neither its default
    parallelism nor its executors; `minPartitions` asks for more tasks."""
    return len(os.sched_getaffinity(0))


def _refuse(options: Mapping[str, str], names: Iterable[str], reason: str) -> None:
    given = {name.lower() for name in options}
    for name in names:
        if name.lower() in given:
            raise ConfigError(name, reason)


def _read_options_by_name(options: Mapping[str, str]) -> dict[str, str]:
    """The options, spelled as in the table."""
    proper = {name.lower(): name for name in READ_OPTIONS}
    given = {}
    for name, value in _split(options, is_read=True)[0].items():
        known = proper.get(name.lower())
        if known is None:
            raise _unknown_option(name, READ_OPTIONS)
        given[known] = value
    return given


def _split(options: Mapping[str, str], *, is_read: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """The options of a read or of a write, and the names of those that are ignored: what only a
    broker needs, and options of the other direction, which a view needs that is read and written.
    """
    known, other = (READ_OPTIONS, WRITE_OPTIONS) if is_read else (WRITE_OPTIONS, READ_OPTIONS)
    left, ignored = split_off_ignored(
        {name: value for name, value in options.items() if not is_storage_option(name)}, known
    )
    others = _lowered(other) - _lowered(known) - set(_IGNORED)
    proper = {name.lower(): name for name in (*READ_OPTIONS, *WRITE_OPTIONS)}
    of_other = [
        name
        for name in left
        if name.lower() in others or (is_read and name.lower().startswith(_TOPIC_CONFIG))
    ]
    values = {proper.get(name.lower(), name): left.pop(name) for name in of_other}
    topics = values.pop("topic" if is_read else "subscribe", "")
    if is_read and topics and not _lowered(_SUBSCRIPTIONS) & _lowered(left):
        left["subscribe"] = topics
    elif not is_read and topics and "," not in topics and "topic" not in _lowered(left):
        left["topic"] = topics.strip()
    return left, tuple(sorted((*ignored, *values)))


def _lowered(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}


def _unknown_option(name: str, known: Iterable[str]) -> ConfigError:
    return unknown_name(name, "option", dict.fromkeys([*known, *CONNECTOR_OPTIONS]))


def _warn_of_ignored(options: Mapping[str, str], *, is_read: bool) -> None:
    """Log one warning that names the options which are ignored, if there are any."""
    ignored = _split(options, is_read=is_read)[1]
    if ignored:
        _warn(ignored)


@functools.cache
def _warn(ignored: tuple[str, ...]) -> None:
    """Warn once in a process: Spark creates a writer for every micro-batch."""
    _log.warning(
        "these options have no effect here, because they are for brokers, or only for reads or "
        "writes: %s",
        ", ".join(ignored),
    )


def _subscription(given: Mapping[str, str]) -> Subscription:
    names = [name for name in _SUBSCRIPTIONS if name in given]
    if not names:
        raise ConfigError("", _NO_TOPICS)
    if len(names) > 1:
        raise ConfigError(
            "",
            f"Only one of the following options can be specified for Kafka source: "
            f"subscribe, subscribePattern, assign; given are {', '.join(names)}.",
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
        raise ConfigError("subscribePattern", f"{text!r} is not a pattern: {error}") from None
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
    """The starting or ending bound. The order of precedence is the connector's: one timestamp for
    all, timestamps by partition, offsets."""
    parsers: tuple[tuple[str, Callable[[str, str], OffsetBound]], ...] = (
        (f"{which}Timestamp", _parse_timestamp),
        (f"{which}OffsetsByTimestamp", _parse_timestamps),
        (f"{which}Offsets", parse_offsets),
    )
    for name, parse in parsers:
        if name in given:
            return parse(name, given[name])
    return None


# -- writes

_LEVELS: Final = tuple(f"kafka.compression.{codec}.level" for codec in ("gzip", "lz4", "zstd"))
_IGNORED: Final = ("checkpointlocation", "queryname", "includeheaders")
"""Spark passes the first two. Jobs written for Kafka's connector pass the last; the column
`headers` decides, there and here."""
_TOPIC_CONFIG: Final = "topicconfig."
_WRITE_ADVICE: Final = (
    "give the log directory to write to: save('/var/lib/kafka/data'). A table has one if it was "
    "created without a list of columns, and not by AS SELECT; insert into the columns that you "
    "name: INSERT INTO table (key, value)"
)
_CODECS: Final = {codec.name.lower(): codec for codec in Codec}


def _topic(name: str, topic: str) -> str:
    try:
        check_topic_name(topic)
    except InvalidNameError as error:
        raise ConfigError(name, str(error)) from None
    return topic


def _broker_config(_: str, path: str) -> BrokerConfig:
    """Read on the driver; tasks get the value."""
    return BrokerConfig.from_properties_file(Path(path))


_WRITE_TABLE: Final[Mapping[str, tuple[type, str, Parser] | None]] = {
    "path": None,
    "topic": (WriteOptions, "topic", _topic),
    "topicPartitions": None,
    "createInBrokerDir": (Target, "create_in_broker_dir", parse_bool),
    "kafka.compression.type": (WriteOptions, "codec", _choice(_CODECS)),
    **dict.fromkeys(_LEVELS),
    "kafka.batch.size": (WriteOptions, "batch_bytes", parse_bytes),
    "txnAppId": None,
    "txnVersion": None,
    "replayCheck": (WriteOptions, "compares_content", _choice({"content": True, "count": False})),
    "lockTimeout": (Target, "lock_wait_ms", parse_duration_ms),
    "serverProperties": (Target, "config", _broker_config),
}
"""Each option of a write, with its field and parser. None: what it means depends on others."""
WRITE_OPTIONS: Final = tuple(_WRITE_TABLE)


def _parsed(kind: type, given: Mapping[str, str]) -> dict[str, Any]:
    """Fields of this class, as far as they are given."""
    fields = {}
    for name, text in given.items():
        known = _WRITE_TABLE[name]
        if known is not None and known[0] is kind:
            fields[known[1]] = known[2](name, text)
    return fields


def parse_write_options(
    options: Mapping[str, str], base: WriteOptions | None = None
) -> WriteOptions:
    """Raises ConfigError for the first option that is wrong.

    With a `base` its values are the defaults, and no path is required.
    """
    given, topic_config = _write_options_by_name(options)
    _warn_of_ignored(options, is_read=False)
    target = _target(given, topic_config, None if base is None else base.target)
    defaults = WriteOptions(target) if base is None else replace(base, target=target)
    fields = _parsed(WriteOptions, given)
    levels = {name.removeprefix("kafka."): given[name] for name in _LEVELS if name in given}
    if levels:  # as for the settings of a topic
        settings = _settings(levels, "kafka.")
        fields["level"] = settings.level_of(fields.get("codec", defaults.codec))
    if (identity := _identity(given)) is not None:
        fields["identity"] = identity
    return replace(defaults, **fields)


def stream_write_options(options: Mapping[str, str]) -> WriteOptions:
    """For a streaming query."""
    parsed = parse_write_options(options)
    if parsed.identity is not None:
        raise ConfigError(
            "txnAppId",
            "a streaming query is identified by its checkpoint; omit txnAppId and txnVersion",
        )
    return parsed


def _write_options_by_name(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options, spelled as in the table, and the settings of topics to create."""
    proper = {name.lower(): name for name in WRITE_OPTIONS}
    given: dict[str, str] = {}
    topic_config: dict[str, str] = {}
    for name, value in _split(options, is_read=False)[0].items():
        lower = name.lower()
        if lower in proper:
            given[proper[lower]] = value
        elif lower.startswith(_TOPIC_CONFIG):
            topic_config[lower.removeprefix(_TOPIC_CONFIG)] = value
        elif lower not in _IGNORED:
            raise _unknown_option(name, (*WRITE_OPTIONS, "topicConfig.<setting>"))
    return given, topic_config


# -- tables


class TableOptions(NamedTuple):
    """The options of a table of Spark's catalog, for each direction."""

    reads: dict[str, str]
    writes: dict[str, str]

    @property
    def creates_topics(self) -> bool:
        """Whether the first write creates what is missing."""
        return "topicPartitions" in self.writes


def parse_table_options(options: Mapping[str, str]) -> TableOptions:
    """What `CREATE TABLE` is given: options of reads and of writes. Raises ConfigError for the
    first that is neither, or is wrong."""
    given = split_off_ignored(options, (*READ_OPTIONS, *WRITE_OPTIONS))[0]
    reads = _read_options_by_name(given)
    writes, topic_config = _write_options_by_name(given)
    writes |= {f"topicConfig.{name}": value for name, value in topic_config.items()}
    parse_read_options(reads)
    parse_write_options(writes)
    return TableOptions(reads, writes)


def _target(
    given: Mapping[str, str], topic_config: Mapping[str, str], base: Target | None
) -> Target:
    fields = _parsed(Target, given)
    if base is None or "path" in given:
        fields["paths"] = tuple(map(_writable, parse_paths(given, _WRITE_ADVICE, {})))
    new_topics = _new_topics(given, topic_config, None if base is None else base.new_topics)
    if new_topics is not None:
        fields["new_topics"] = new_topics
    return Target(**fields) if base is None else replace(base, **fields)


def _new_topics(
    given: Mapping[str, str], config: Mapping[str, str], base: NewTopics | None
) -> NewTopics | None:
    if "topicPartitions" in given:
        count = parse_count("topicPartitions", given["topicPartitions"])
        base = NewTopics(count, {} if base is None else base.config)
    if base is None:
        if config:
            raise ConfigError(
                "topicConfig." + next(iter(config)),
                "only for topics that are created: set topicPartitions too",
            )
        return None
    merged = {**base.config, **config}
    _settings(merged, "topicConfig.")  # fails here, not in the first task
    return replace(base, config=merged)


def _settings(settings: Mapping[str, str], prefix: str) -> LogConfig:
    """Settings of a topic. Errors name the option: the setting with this prefix."""
    try:
        return LogConfig.parse(settings)
    except ConfigError as error:
        similar = tuple(prefix + name for name in error.suggestions)
        reason = error.reason
        for name, option in zip(error.suggestions, similar, strict=True):
            reason = reason.replace(repr(name), repr(option))
        raise ConfigError(
            prefix + error.name, reason, value=error.value, suggestions=similar
        ) from None


def _identity(given: Mapping[str, str]) -> CommitIdentity | None:
    names = [name for name in ("txnAppId", "txnVersion") if name in given]
    if not names:
        return None
    if len(names) == 1:
        raise ConfigError(names[0], "txnAppId and txnVersion must be set together")
    text = given["txnVersion"].strip()
    if not re.fullmatch(r"\d{1,18}", text):
        raise ConfigError("txnVersion", f"not a whole number of 0 or more: {text!r}", value=text)
    return CommitIdentity(given["txnAppId"], int(text))

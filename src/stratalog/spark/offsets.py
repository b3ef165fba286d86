"""Offsets as Spark's Kafka connector writes them: `{"topic":{"0":23,"1":-1}}`.

-2 stands for the earliest offset, -1 for the latest. Checkpoints of streams hold the same JSON with
plain offsets: where the next micro-batch begins; and in one more key, which no topic can have for
its name, the ids of the topics: `"@topicIds":{"topic":"…"}`. Checkpoints of the connector, and of
earlier versions, lack it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from stratalog.errors import ConfigError
from stratalog.format.metadata import decode_id, encode_id
from stratalog.format.names import TopicPartition

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
TOPIC_IDS: Final = "@topicIds"

PartitionNumbers: TypeAlias = tuple[tuple[TopicPartition, int], ...]
"""A number for each partition, sorted. A tuple, so that options stay frozen."""


@dataclass(frozen=True)
class ByTimestamp:
    """Begin or end where the first record at or after a time lies."""

    for_all: int | None = None
    """Milliseconds since 1970."""
    each: PartitionNumbers = ()


OffsetBound: TypeAlias = str | PartitionNumbers | ByTimestamp
"""`earliest`, `latest`, offsets by partition, or timestamps."""


def parse_offsets(name: str, text: str) -> OffsetBound:
    """What `startingOffsets` and `endingOffsets` may hold."""
    word = text.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    expected = (
        'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, "earliest" or "latest", got '
        f"{text}"
    )
    numbers = _parse(name, text, expected)
    below = [at for _, at in numbers if at < EARLIEST_OFFSET]
    if below:
        raise ConfigError(name, f"{below[0]} is no offset; -2 is the earliest, -1 the latest")
    return numbers


def parse_timestamps(name: str, text: str) -> PartitionNumbers:
    """What the options by timestamp may hold: milliseconds for each partition."""
    expected = (
        'Expected e.g. {"topicA": {"0": 123456789, "1": 123456789}, "topicB": {"0": 123456789}}, '
        f"got {text}"
    )
    return _parse(name, text, expected)


def _parse(name: str, text: str, expected: str) -> PartitionNumbers:
    try:
        found = json.loads(text)
        numbers = from_json(found)
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(name, expected, value=text) from None
    return tuple(sorted(numbers.items()))


def from_json(found: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """Offsets of a checkpoint, or of an option once its JSON is read. ValueError if it is none."""
    numbers = {}
    for topic, by_partition in found.items():
        if topic == TOPIC_IDS:
            continue
        for partition, number in by_partition.items():
            if type(number) is not int or not partition.isdecimal():
                raise ValueError(f"{topic}-{partition}: {number!r}")
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def ids_from_json(found: Mapping[str, Mapping[str, Any]]) -> dict[str, uuid.UUID]:
    """Ids of topics, those that a checkpoint has."""
    ids = {topic: decode_id(text) for topic, text in found.get(TOPIC_IDS, {}).items()}
    return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}


def to_json(
    offsets: Mapping[TopicPartition, int], ids: Mapping[str, uuid.UUID] | None = None
) -> dict[str, dict[str, Any]]:
    """What a checkpoint holds, topics and partitions in order."""
    found: dict[str, dict[str, Any]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    texts = {topic: encode_id(ids[topic]) for topic in found if ids and topic in ids}
    return {**found, TOPIC_IDS: texts} if texts else found

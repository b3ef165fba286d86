"""Offsets by partition as JSON: `{"topic":{"0":23,"1":-1}}`, in options and in checkpoints.

In the options `startingOffsets` and `endingOffsets`, -2 is the earliest offset and -1 the latest.
The checkpoint of a streaming query has plain offsets: where the next micro-batch starts. It also
has the ids of the topics, under a key that cannot be the name of a topic:
`"@topicIds":{"topic":"…"}`. Checkpoints of Spark's Kafka connector, and of earlier versions of
Stratalog, do not have this key.

Nothing here needs PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stratalog.format.names import TopicPartition
from stratalog.format.uuids import decode_id, encode_id

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping

TOPIC_IDS: Final = "@topicIds"


def offsets_from_json(
    found: Mapping[str, Mapping[str, Any]], from_text: Callable[[str], int] | None = None
) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint or an option. Raises ValueError for anything else. `from_text`
    parses offsets that are given as text."""
    numbers = {}
    for topic, by_partition in found.items():
        if topic == TOPIC_IDS:
            continue
        for partition, number in by_partition.items():
            if type(number) is str and from_text is not None:
                number = from_text(number)  # noqa: PLW2901 - the number that it stands for
            if type(number) is not int or not partition.isdecimal():
                raise ValueError(f"{topic}-{partition}: {number!r}")
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def topic_ids_from_json(found: Mapping[str, Mapping[str, Any]]) -> dict[str, uuid.UUID]:
    """The topic ids of a checkpoint, as far as it has them."""
    ids = {topic: decode_id(text) for topic, text in found.get(TOPIC_IDS, {}).items()}
    return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}


def offsets_to_json(
    offsets: Mapping[TopicPartition, int], ids: Mapping[str, uuid.UUID] | None = None
) -> dict[str, dict[str, Any]]:
    """The content of a checkpoint, topics and partitions sorted."""
    found: dict[str, dict[str, Any]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    texts = {topic: encode_id(ids[topic]) for topic in found if ids and topic in ids}
    return {**found, TOPIC_IDS: texts} if texts else found

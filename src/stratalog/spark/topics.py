"""Which partitions a subscription means in the directories at hand."""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from stratalog.errors import (
    AccessDeniedError,
    CorruptError,
    NoSegmentError,
    PartitionGoneError,
    SourceError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.names import SYSTEM_TOPICS, TopicPartition
from stratalog.log.partition_view import read_topic_id
from stratalog.partitions.view import LogDirsView
from stratalog.spark.failures import lost

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from stratalog.log.partition_view import PartitionView
    from stratalog.spark.options import ReadOptions

_log: Final = logging.getLogger(__name__)


def open_logs(options: ReadOptions) -> LogDirsView:
    """The directories, listed. Raises NotALogDirError, or PermissionError."""
    return LogDirsView(options.paths)


def check_topics(options: ReadOptions) -> None:
    """Raise unless every topic asked for is there."""
    subscribed(open_logs(options), options)


def subscribed(logs: LogDirsView, options: ReadOptions) -> list[TopicPartition]:
    """The partitions to read, in order."""
    wanted = options.subscription
    if wanted.assigned:
        return [_known(logs, TopicPartition(*pair)) for pair in wanted.assigned]
    if wanted.pattern is not None:
        names = _matching(logs, wanted.pattern)
    else:
        for topic in wanted.topics:
            logs.partitions_of(topic)  # raises for one that is not there
        names = set(wanted.topics)
    return [found for found in logs.topic_partitions if found.topic in names]


def opened(
    logs: LogDirsView, partitions: Iterable[TopicPartition], options: ReadOptions
) -> dict[TopicPartition, PartitionView]:
    """Views of these partitions, without those that have no segment: a broker creates them now."""
    views = {}
    for each in partitions:
        with losing(each, options), suppress(NoSegmentError):
            views[each] = logs.partition(*each)
    return views


@contextmanager
def losing(topic_partition: TopicPartition, options: ReadOptions) -> Iterator[None]:
    """A partition that is deleted while it is looked at is lost data, or is left out with a
    warning."""
    try:
        yield
    except PartitionGoneError as error:
        report_loss(
            f"{topic_partition} was deleted: {error}", fails_on_data_loss=options.fail_on_data_loss
        )


def report_loss(what: str, *, fails_on_data_loss: bool) -> None:
    """Raise DataLossError, or log a warning."""
    if fails_on_data_loss:
        raise lost(what)
    _log.warning("Some data may have been lost: %s", what)


def topic_id_of(directory: Path) -> uuid.UUID | None:
    """Of a partition, from `partition.metadata`. None where there is no such file (Kafka before
    2.8, copies of logs), or none that can be read: then ids are not compared."""
    try:
        return read_topic_id(directory)
    except (CorruptError, AccessDeniedError) as error:
        _log.warning("the topic id is unknown and is not compared: %s", error)
        return None


def _matching(logs: LogDirsView, pattern: str) -> set[str]:
    """A pattern does not mean system topics, as it does not for Kafka's clients."""
    names = [name for name in logs.topics if name not in SYSTEM_TOPICS]
    found = {name for name in names if re.fullmatch(pattern, name)}
    if not found:
        known = ", ".join(names[:10]) or "none"
        where = ", ".join(str(log_dir.path) for log_dir in logs.dirs)
        raise SourceError(f"{where}: no topic matches {pattern!r}; topics here: {known}")
    return found


def _known(logs: LogDirsView, wanted: TopicPartition) -> TopicPartition:
    numbers = logs.topics.get(wanted.topic, [])
    if wanted.partition not in numbers:
        where = ", ".join(str(log_dir.path) for log_dir in logs.dirs)
        known = f"it has {numbers}" if numbers else "there is no such topic"
        raise UnknownTopicOrPartitionError(f"{where}: no partition {wanted}: {known}")
    return wanted

"""The topics of an ingest: found, or made, before anything is read."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.bulk.topics import TopicFinder, roll_back_topics
from stratalog.errors import ConfigError, StratalogError
from stratalog.spark.jobs.running import interrupts_held

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stratalog.commits.staged import StagedTopic
    from stratalog.spark.write_options import WriteOptions


def find_topics(options: WriteOptions, names: Iterable[str]) -> tuple[StagedTopic, ...]:
    """Raise unless rows can go to these topics; make those that are missing, and tell which.

    A topic that has another number of partitions than was asked for is an error: it keeps its own.
    """
    target = options.target
    target.check()
    target.check_lock()
    finder = TopicFinder(target)
    try:
        for name in names:
            _check_partitions(options, finder.find(name))
    except BaseException:
        with interrupts_held(), suppress(StratalogError):
            roll_back_topics(target, finder.made())
        raise
    return finder.made()


def _check_partitions(options: WriteOptions, topic: StagedTopic) -> None:
    wanted = options.target.new_topics
    if wanted is not None and wanted.partition_count != topic.partition_count:
        raise ConfigError(
            "topicPartitions",
            f"(--partitions) {wanted.partition_count} are asked for, but topic {topic.name!r} has "
            f"{topic.partition_count}; leave it out to write to it as it is",
        )

"""How much the next micro-batch of a stream takes: pure functions of offsets and the clock.

The rules are those of Spark's Kafka connector, so that a query that moves over keeps its rhythm.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from stratalog.spark.failures import lost, recreated

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from stratalog.format.names import TopicPartition

    Offsets = Mapping[TopicPartition, int]


class LogEnds(NamedTuple):
    """What one partition holds for a reader now."""

    start: int
    end: int
    """Exclusive; for committed reads the last stable offset."""
    topic_id: uuid.UUID | None = None


def share_limit(start: Offsets, latest: Offsets, limit: int) -> dict[TopicPartition, int]:
    """End offsets so that about `limit` offsets are taken, each partition in proportion to what it
    has: rounded down, but at least one, so that small partitions do not starve."""
    sizes = {at: max(0, end - start.get(at, end)) for at, end in latest.items()}
    total = sum(sizes.values())
    if limit >= total:
        return dict(latest)
    ends = {}
    for at, size in sizes.items():
        share = limit * (size / total)
        taken = math.ceil(share) if share < 1 else math.floor(share)
        ends[at] = min(latest[at], start.get(at, latest[at]) + taken)
    return ends


def is_delayed(
    start: Offsets, latest: Offsets, *, offsets_min: int, waited_ms: int, delay_max_ms: int
) -> bool:
    """Whether to wait for more: too little is new, and not for too long yet."""
    if waited_ms >= delay_max_ms:
        return False
    new = sum(max(0, end - start.get(at, end)) for at, end in latest.items())
    return new < offsets_min


def with_new_partitions(
    start: Offsets, logs: Mapping[TopicPartition, LogEnds], *, fails_on_data_loss: bool
) -> dict[TopicPartition, int]:
    """Where the next batch begins, partitions that came since the last one included: those at the
    beginning."""
    begin = dict(start)
    for at, log in logs.items():
        if at not in begin:
            if log.start > 0 and fails_on_data_loss:
                raise lost(f"{at} is new and begins with offset {log.start}, not 0")
            begin[at] = log.start
    return begin


def find_recreated(
    ids: Mapping[str, uuid.UUID], logs: Mapping[TopicPartition, LogEnds]
) -> dict[TopicPartition, str]:
    """Partitions whose topic had another id when it was read last, and what to say of each. Where
    an id is unknown, they are taken for the same."""
    found = {}
    for at, log in logs.items():
        before = ids.get(at.topic)
        if before is not None and log.topic_id is not None and log.topic_id != before:
            found[at] = recreated(at.topic, before, log.topic_id)
    return found


def topic_ids(logs: Mapping[TopicPartition, LogEnds]) -> dict[str, uuid.UUID]:
    """Those that are known."""
    return {at.topic: log.topic_id for at, log in logs.items() if log.topic_id is not None}


def check_still_there(
    start: Offsets, logs: Mapping[TopicPartition, LogEnds], *, fails_on_data_loss: bool
) -> None:
    """Raise if the logs have lost what is to be read next."""
    if not fails_on_data_loss:
        return
    for at, offset in start.items():
        log = logs.get(at)
        if log is None:
            raise lost(f"{at} is gone")
        if log.end < offset:
            raise lost(f"{at} ends with offset {log.end}, but was read up to {offset}")
        if log.start > offset:
            raise lost(f"{at} begins with offset {log.start}, but was read up to {offset} only")

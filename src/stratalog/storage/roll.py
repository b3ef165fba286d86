"""The rule that rolls a segment: a pure decision, as in Kafka.

Before most appends, `SegmentWriter.roll_reason` finds sooner that no limit is exceeded.

Time is record time: from the timestamp of the segment's first batch to the largest incoming one. So
an idle partition never rolls, and a replay of old data rolls as the original did. Only if the first
batch has no timestamp does the wall clock count: the time since the segment's creation.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from stratalog.format.index_search import RELATIVE_OFFSET_MAX

NO_FIRST_TIMESTAMP: Final = -1


class RollReason(enum.Enum):
    """Why the next append needs a new segment."""

    SIZE = "the segment would exceed segment.bytes"
    TIME = "the segment spans more than segment.ms"
    OFFSET_INDEX_FULL = "the offset index is full"
    TIME_INDEX_FULL = "the time index is full"
    OFFSET_OVERFLOW = "the last offset is too far above the base offset"


class ActiveSegment(NamedTuple):
    """The active segment before the append."""

    base_offset: int
    size_bytes: int
    first_timestamp: int
    """Max timestamp of the first batch; negative if it has none."""
    created_ms: int
    is_offset_index_full: bool
    is_time_index_full: bool


class IncomingAppend(NamedTuple):
    """The append to decide on, and its time."""

    size_bytes: int
    last_offset: int
    max_timestamp: int
    now_ms: int


class RollLimits(NamedTuple):
    """How large and how old a segment may get."""

    segment_bytes: int
    segment_ms: int
    """`segment.ms` minus the random jitter of this segment."""


def roll_reason(
    segment: ActiveSegment, incoming: IncomingAppend, limits: RollLimits
) -> RollReason | None:
    """Why `incoming` needs a new segment; None if it fits into this one.

    Even an empty segment has to roll if its index has no room for a single entry.
    """
    if segment.size_bytes > limits.segment_bytes - incoming.size_bytes:
        return RollReason.SIZE
    if segment.first_timestamp >= 0:
        waited_ms = incoming.max_timestamp - segment.first_timestamp
    else:
        waited_ms = incoming.now_ms - segment.created_ms
    if segment.size_bytes > 0 and waited_ms > limits.segment_ms:
        return RollReason.TIME
    if segment.is_offset_index_full:
        return RollReason.OFFSET_INDEX_FULL
    if segment.is_time_index_full:
        return RollReason.TIME_INDEX_FULL
    if not 0 <= incoming.last_offset - segment.base_offset <= RELATIVE_OFFSET_MAX:
        return RollReason.OFFSET_OVERFLOW
    return None

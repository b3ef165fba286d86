"""Facts for retention to decide on, and plans in short."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.config import LogConfig
from stratalog.config.topic import CleanupPolicy
from stratalog.format.names import TopicPartition
from stratalog.maintenance.retention import RetentionLog, RetentionSegment
from tests.log.building import log_name

if TYPE_CHECKING:
    from stratalog.maintenance.retention import RetentionPlan


NOW_MS = 1_000_000
HOUR_MS = 3_600_000
UNLIMITED = LogConfig(retention_ms=-1)
COMPACTED = frozenset({CleanupPolicy.COMPACT})
BOTH = frozenset({CleanupPolicy.COMPACT, CleanupPolicy.DELETE})


def facts(
    *segments: tuple[int, int],
    start: int = 0,
    high_watermark: int | None = None,
    end: int | None = None,
) -> RetentionLog:
    """Segments as (bytes, largest timestamp), ten offsets each; the last one is active."""
    end_offset = 10 * len(segments) if end is None else end
    return RetentionLog(
        topic_partition=TopicPartition("t", 0),
        path=Path("t-0"),
        log_start_offset=start,
        high_watermark=end_offset if high_watermark is None else high_watermark,
        log_end_offset=end_offset,
        segments=tuple(
            RetentionSegment(
                path=Path("t-0", log_name(10 * slot)),
                base_offset=10 * slot,
                end_offset=end_offset if slot == len(segments) - 1 else 10 * slot + 10,
                size_bytes=size_bytes,
                largest_timestamp=timestamp,
                timestamp_offset=10 * slot + 9,
                mtime_ms=NOW_MS,
                is_active=slot == len(segments) - 1,
            )
            for slot, (size_bytes, timestamp) in enumerate(segments)
        ),
    )


def outcome(plan: RetentionPlan) -> list[str]:
    """For each segment, which pass takes it; `keep` if none does."""
    return [decision.deleted_by or "keep" for decision in plan.decisions]


def reasons(plan: RetentionPlan, slot: int) -> list[tuple[str, str, int]]:
    return [tuple(result) for result in plan.decisions[slot].results]  # type: ignore[misc]

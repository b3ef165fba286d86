"""Traps: settings that, together with the data, have surprising effects.

Each is found by arithmetic on a workload and a config, or seen in the headers of the log.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.config.topic import LATER_SEGMENT_BYTES_MIN
from stratalog.config.values import INT_MAX
from stratalog.format import offset_index, time_index
from stratalog.format.batch import HEADER_BYTES
from stratalog.format.index_search import RELATIVE_OFFSET_MAX
from stratalog.format.quantities import duration_text, human_size
from stratalog.tuning.advice import entry_spacing, index_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.config import LogConfig
    from stratalog.tuning.workload import Workload

HEADER_SHARE_MAX: Final = 0.25
LATE_SHARE_MIN: Final = 0.001


class TrapSeverity(enum.StrEnum):
    """How much it matters."""

    WARNING = "warning"
    NOTE = "note"


class Trap(NamedTuple):
    """Something that may surprise."""

    code: str
    severity: TrapSeverity
    what: str
    arithmetic: str
    advice: str


def find_traps(workload: Workload, config: LogConfig, *, segments: int | None = None) -> list[Trap]:
    """What to beware of under `config`. `segments` are those of the whole broker, if known."""
    found: list[Trap] = []
    found += _index_traps(workload, config)
    found += _offset_traps(workload, config)
    found += _size_traps(workload, config)
    found += _time_traps(workload, config)
    found += _retention_traps(workload, config)
    found += _limit_traps(workload, config, segments)
    found += _batch_traps(workload)
    return found


def _wanted_segment_bytes(workload: Workload, config: LogConfig) -> int:
    """The segment size that the user asks for, which may exceed Kafka's maximum, else the
    configured one."""
    return config.segment_bytes if workload.segment_bytes is None else workload.segment_bytes


def _index_traps(workload: Workload, config: LogConfig) -> Iterator[Trap]:
    size = _wanted_segment_bytes(workload, config)
    interval, index_bytes = config.index_interval_bytes, config.segment_index_bytes
    limit = index_limit(index_bytes, interval, workload.batch_bytes)
    spacing = human_size(round(entry_spacing(interval, workload.batch_bytes)))
    slots = index_bytes // time_index.ENTRY_BYTES - 1
    if size > limit.offset_index_bytes:
        yield Trap(
            "index-full-early",
            TrapSeverity.WARNING,
            f"Segments roll at {human_size(limit.segment_bytes)}, not at {human_size(size)}, "
            "because their indexes are full.",
            f"{human_size(index_bytes)} / {offset_index.ENTRY_BYTES} bytes = "
            f"{index_bytes // offset_index.ENTRY_BYTES:,} offset entries, "
            f"* {spacing} = {human_size(limit.offset_index_bytes)}",
            "Raise segment.index.bytes or index.interval.bytes, or lower segment.bytes.",
        )
    if size > limit.time_index_bytes:
        yield Trap(
            "time-index-first",
            TrapSeverity.WARNING,
            f"The time index fills before the offset index, at {human_size(limit.time_index_bytes)}"
            " of log, if every entry has a newer timestamp.",
            f"{human_size(index_bytes)} / {time_index.ENTRY_BYTES} bytes - 1 = {slots:,} time "
            f"entries, * {spacing} = {human_size(limit.time_index_bytes)}",
            f"Allow {time_index.ENTRY_BYTES} bytes per entry in segment.index.bytes, not "
            f"{offset_index.ENTRY_BYTES}.",
        )


def _offset_traps(workload: Workload, config: LogConfig) -> Iterator[Trap]:
    if not workload.message_bytes:
        return
    records = config.segment_bytes / workload.message_bytes
    if records > RELATIVE_OFFSET_MAX:
        yield Trap(
            "relative-offset-overflow",
            TrapSeverity.WARNING,
            "Segments roll before they are full: an index stores offsets as 31 bits above the base "
            "offset.",
            f"{human_size(config.segment_bytes)} / {workload.message_bytes:.2f} bytes a record = "
            f"{records:,.0f} records, more than {RELATIVE_OFFSET_MAX:,}",
            "Lower segment.bytes to the size of 2^31 records.",
        )


def _size_traps(workload: Workload, config: LogConfig) -> Iterator[Trap]:
    size = _wanted_segment_bytes(workload, config)
    if size > INT_MAX:
        yield Trap(
            "segment-over-2gib",
            TrapSeverity.WARNING,
            "Kafka rejects this segment.bytes: positions in a segment are 32-bit.",
            f"{size:,} > {INT_MAX:,}",
            "Use 1 GiB; larger segments only make recovery and retention coarser.",
        )
    if size < LATER_SEGMENT_BYTES_MIN:
        yield Trap(
            "segment-under-1mib",
            TrapSeverity.WARNING,
            "Kafka 4.1 and later reject this segment.bytes.",
            f"{size:,} < {LATER_SEGMENT_BYTES_MIN:,}",
            "Use segment.ms to roll often.",
        )
    largest = max(workload.largest_batch_bytes, int(workload.batch_bytes or 0))
    if largest > size:
        yield Trap(
            "batch-over-segment",
            TrapSeverity.WARNING,
            "A batch is larger than a segment: producers get RECORD_LIST_TOO_LARGE.",
            f"{human_size(largest)} > {human_size(size)}",
            "Raise segment.bytes above max.message.bytes.",
        )


def _time_traps(workload: Workload, config: LogConfig) -> Iterator[Trap]:
    is_create_time = config.message_timestamp_type.kafka_name == "CreateTime"
    if workload.future_ms > 0:
        yield Trap(
            "future-timestamps",
            TrapSeverity.WARNING,
            "Records have timestamps in the future: their segment and all later ones are kept "
            "until retention.ms after that time.",
            f"{duration_text(workload.future_ms)} ahead; message.timestamp.after.max.ms is "
            f"{_limit_text(config.message_timestamp_after_max_ms)}",
            "Set message.timestamp.after.max.ms, and correct the producer's clock or its unit "
            "(seconds, microseconds). Until then, set retention.bytes.",
        )
    if workload.late_share > LATE_SHARE_MIN and is_create_time:
        rolls = workload.late_ms > config.effective_segment_ms
        yield Trap(
            "create-time-disorder",
            TrapSeverity.WARNING if rolls else TrapSeverity.NOTE,
            "CreateTime is out of order: a lookup by the time of a late record finds an earlier "
            "offset" + (", and alternating old and new records roll segments." if rolls else "."),
            f"{workload.late_share:.1%} of records are late, by up to "
            f"{duration_text(workload.late_ms)}",
            "If the time of arrival matters, use message.timestamp.type=LogAppendTime.",
        )
    if workload.append_time_share is not None and is_create_time == (
        workload.append_time_share > 0.5
    ):
        yield Trap(
            "timestamp-type-changed",
            TrapSeverity.NOTE,
            "The log was written with a different message.timestamp.type than it has now, so "
            "rolling, retention and lookups by time are based on two clocks.",
            f"{workload.append_time_share:.0%} of batches have LogAppendTime, the setting is "
            f"{config.message_timestamp_type.kafka_name}",
            "With CreateTime, producers decide when segments roll and expire; with "
            "LogAppendTime, the broker's clock decides.",
        )


def _retention_traps(workload: Workload, config: LogConfig) -> Iterator[Trap]:
    if not config.has_delete_policy:
        return
    retention_ms, rate = config.retention_ms, workload.bytes_per_second
    fills_ms = config.segment_bytes / rate * 1000 if rate else None
    spans_ms = min([config.effective_segment_ms, *([fills_ms] if fills_ms else [])])
    if 0 < retention_ms < spans_ms:
        yield Trap(
            "segment-outlives-retention",
            TrapSeverity.WARNING,
            "A segment spans more time than retention.ms, so its first records stay far beyond it.",
            f"a segment spans {duration_text(round(spans_ms))}, retention.ms is "
            f"{duration_text(retention_ms)}: up to {duration_text(round(spans_ms))} longer",
            "Lower segment.ms to a tenth of retention.ms.",
        )
    if 0 <= config.retention_bytes < config.segment_bytes:
        yield Trap(
            "retention-below-segment",
            TrapSeverity.WARNING,
            "retention.bytes is less than one segment: a partition takes more than its limit "
            "before anything can be deleted.",
            f"{human_size(config.retention_bytes)} < {human_size(config.segment_bytes)}",
            "Lower segment.bytes to a tenth of retention.bytes.",
        )


class _SystemLimit(NamedTuple):
    """How many of something a process may have, and how many a segment needs."""

    allowed: int
    per_segment: int


_MAPS: Final = _SystemLimit(65_530, 2)
"""Linux's vm.max_map_count by default."""
_FILES: Final = _SystemLimit(100_000, 4)
"""The minimum in Kafka's documentation (`ulimit -n`)."""


def _limit_traps(workload: Workload, config: LogConfig, segments: int | None) -> Iterator[Trap]:
    partitions = workload.broker_partitions or workload.partitions
    if segments is None:
        rate, retention_ms = workload.bytes_per_second, config.retention_ms
        if not rate or retention_ms < 0:
            return
        per_partition = rate * retention_ms / 1000 / config.segment_bytes + 1
        by_time = retention_ms / config.effective_segment_ms + 1
        segments = round(partitions * max(per_partition, by_time))
    maps, files = segments * _MAPS.per_segment, segments * _FILES.per_segment
    text = f"{segments:,} segments in {partitions:,} partitions"
    if maps > _MAPS.allowed:
        yield Trap(
            "map-count",
            TrapSeverity.WARNING,
            "The broker needs more memory maps than Linux allows a process by default; it fails "
            "with OutOfMemoryError: Map failed.",
            f"{text} * {_MAPS.per_segment} = {maps:,} maps > vm.max_map_count {_MAPS.allowed:,}",
            f"Set sysctl vm.max_map_count={max(262144, 2 * maps)}, or use larger segments.",
        )
    if files > _FILES.allowed:
        yield Trap(
            "file-count",
            TrapSeverity.WARNING,
            "The broker has more files than the usual limit of open files.",
            f"{text} * {_FILES.per_segment} = {files:,} files > {_FILES.allowed:,}",
            f"Set ulimit -n {max(262144, 2 * files)}, or use larger segments.",
        )


def _batch_traps(workload: Workload) -> Iterator[Trap]:
    if not workload.batch_bytes:
        return
    share = HEADER_BYTES / workload.batch_bytes
    if share > HEADER_SHARE_MAX:
        outweigh = "outweigh" if share > 0.5 else "are large compared with"
        yield Trap(
            "tiny-batches",
            TrapSeverity.WARNING if share > 0.5 else TrapSeverity.NOTE,
            f"Batches are small: their headers {outweigh} the records, and they hardly compress.",
            f"{HEADER_BYTES} of {workload.batch_bytes:.0f} bytes = {share:.0%} header",
            "Raise linger.ms (5 to 100) and batch.size of the producers.",
        )


def _limit_text(ms: int) -> str:
    return "unlimited" if ms > 1 << 60 else duration_text(ms)

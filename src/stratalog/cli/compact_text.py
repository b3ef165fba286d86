"""Plans, results and keys of `stratalog compact`: as tables, in words, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.cli.record_text import visible
from stratalog.cli.tables import NOTHING, Column, human_size, print_table, table_time
from stratalog.cli.when import format_time
from stratalog.maintenance.cleaning.groups import group_segments
from stratalog.maintenance.cleaning.selection import BoundKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.config import LogConfig
    from stratalog.maintenance.cleaning.key_trace import KeyTrace, RecordTrace
    from stratalog.maintenance.cleaning.rounds import CleaningResult
    from stratalog.maintenance.cleaning.selection import Bound, Selection

NOTHING_COMPACTED: Final = (
    "No topic here has cleanup.policy=compact. Settings of a Kafka cluster's topics are not in its "
    "log directories: name the topics and give --config cleanup.policy=compact."
)
_LABEL_CHARS: Final = 9
_GROUPS_SHOWN: Final = 5


class Outcome(NamedTuple):
    """One partition after a run."""

    selection: Selection
    """As of the start."""
    before_bytes: int
    after_bytes: int
    rounds: tuple[CleaningResult, ...]
    """None when nothing was due."""
    error: Exception | None


# -- plans


def print_plans(selections: Sequence[Selection]) -> None:
    """One line per partition."""
    columns = (
        Column("PARTITION"),
        Column("DUE"),
        Column("DIRTY FROM", is_number=True),
        Column("UP TO", is_number=True),
        Column("CLEAN", is_number=True, rank=2),
        Column("DIRTY", is_number=True),
        Column("RATIO", is_number=True, rank=1),
        Column("WHY", fold_at=40),
    )
    print_table(columns, [_plan_cells(selection) for selection in selections])


def _plan_cells(selection: Selection) -> tuple[str, ...]:
    return (
        str(selection.topic_partition),
        "yes" if selection.is_selected else "no",
        str(selection.first_dirty_offset),
        str(selection.first_uncleanable_offset),
        human_size(selection.clean_bytes),
        human_size(selection.cleanable_bytes),
        f"{selection.ratio:.2f}",
        "; ".join(selection.reasons),
    )


def plan_story(selection: Selection, config: LogConfig) -> Iterator[str]:
    """Why a partition is, or is not, to be cleaned now."""
    is_due = "a round is due" if selection.is_selected else "no round is due"
    yield f"{selection.topic_partition}: {is_due}"
    start = f"offset {selection.first_dirty_offset}"
    if selection.checkpoint_reset is not None:
        start += f", the log start: the cleaner's checkpoint is {selection.checkpoint_reset}"
    yield _line("dirty", f"from {start}")
    yield _line("up to", bound_text(selection.bound))
    yield _line(
        "bytes",
        f"{selection.clean_bytes} clean, {selection.cleanable_bytes} dirty, ratio "
        f"{selection.ratio:.3g}",
    )
    for number, reason in enumerate(selection.reasons):
        yield _line("" if number else "why", reason)
    groups = _groups(selection, config)
    if groups and selection.cleanable_bytes:
        count = len(selection.segments)
        yield _line("rewrites", f"{count} segments into {len(groups)}, if all keys fit the memory")
        for group in groups[:_GROUPS_SHOWN]:
            yield _line("", f"{group[0]}: from {len(group)}")
        if len(groups) > _GROUPS_SHOWN:
            yield _line("", f"and {len(groups) - _GROUPS_SHOWN} more")


def bound_text(bound: Bound) -> str:
    """Where a round has to end, and why."""
    if bound.kind is BoundKind.MIN_LAG and bound.timestamp is not None:
        until = "" if bound.cleanable_from_ms is None else format_time(bound.cleanable_from_ms)
        return (
            f"offset {bound.offset}: the segment there has a record of "
            f"{format_time(bound.timestamp)}, too young for min.compaction.lag.ms until {until}"
        )
    return str(bound)


def _groups(selection: Selection, config: LogConfig) -> list[list[int]]:
    bound = selection.first_uncleanable_offset
    groups = group_segments(selection.segments, bound, bound, config)
    return [[segment.base_offset for segment in group] for group in groups]


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_CHARS}} {text}"


def plan_row(selection: Selection, config: LogConfig) -> dict[str, Any]:
    """For JSON: exact numbers, milliseconds."""
    bound, reset = selection.bound, selection.checkpoint_reset
    return {
        **selection.topic_partition._asdict(),
        "isDue": selection.is_selected,
        "reasons": list(selection.reasons),
        "firstDirtyOffset": selection.first_dirty_offset,
        "checkpointReset": None if reset is None else reset.value,
        "firstUncleanableOffset": bound.offset,
        "bound": {
            "kind": bound.kind.value,
            "rawOffset": bound.raw_offset,
            "timestamp": bound.timestamp,
            "cleanableFrom": bound.cleanable_from_ms,
        },
        "cleanBytes": selection.clean_bytes,
        "cleanableBytes": selection.cleanable_bytes,
        "dirtyRatio": selection.ratio,
        "maxLagExceededMs": selection.max_lag_exceeded_ms,
        "groups": _groups(selection, config) if selection.cleanable_bytes else [],
    }


# -- results


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """One line per partition, and what all of them freed."""
    if not outcomes:
        print(NOTHING_COMPACTED)
        return
    columns = (
        Column("PARTITION"),
        Column("BEFORE", is_number=True),
        Column("AFTER", is_number=True),
        Column("RECORDS", is_number=True, rank=1),
        Column("KEPT", is_number=True, rank=1),
        Column("ROUNDS", is_number=True, rank=2),
        Column("SECONDS", is_number=True, rank=3),
        Column("WHY", fold_at=40),
    )
    print_table(columns, [_outcome_cells(outcome) for outcome in outcomes])
    cleaned = [outcome for outcome in outcomes if outcome.rounds]
    before = sum(outcome.before_bytes for outcome in cleaned)
    after = sum(outcome.after_bytes for outcome in cleaned)
    if cleaned:
        print(
            f"{len(cleaned)} of {len(outcomes)} partitions compacted: "
            f"{human_size(before)} before, {human_size(after)} after"
        )


def _outcome_cells(outcome: Outcome) -> tuple[str, ...]:
    rounds = outcome.rounds
    why = "; ".join(outcome.selection.reasons)
    if outcome.error is not None:
        why = str(outcome.error)
    elif rounds and not outcome.selection.is_selected:
        why = f"forced: {why}"
    records = kept = seconds = NOTHING
    if rounds:
        removed = sum(done.records_read - done.records_kept for done in rounds)
        kept = str(rounds[-1].records_kept)
        records = str(rounds[-1].records_kept + removed)
        seconds = f"{sum(done.seconds for done in rounds):.1f}"
    return (
        str(outcome.selection.topic_partition),
        human_size(outcome.before_bytes),
        human_size(outcome.after_bytes) if rounds else NOTHING,
        records,
        kept,
        str(len(rounds)) if rounds else NOTHING,
        seconds,
        why,
    )


def outcome_row(outcome: Outcome, config: LogConfig) -> dict[str, Any]:
    """The plan of the first round, and what came of it."""
    return {
        **plan_row(outcome.selection, config),
        "beforeBytes": outcome.before_bytes,
        "afterBytes": outcome.after_bytes,
        "rounds": [_round_row(done) for done in outcome.rounds],
        "error": None if outcome.error is None else str(outcome.error),
    }


def _round_row(done: CleaningResult) -> dict[str, Any]:
    return {
        "firstDirtyOffset": done.first_dirty_offset,
        "endOffset": done.end_offset,
        "groups": [list(group) for group in done.groups],
        "keys": done.map_entries,
        "isMemoryFull": done.is_map_full,
        "bytesRead": done.bytes_read,
        "bytesWritten": done.bytes_written,
        "recordsRead": done.records_read,
        "recordsKept": done.records_kept,
        "recordsWithoutKey": done.records_without_key,
        "seconds": round(done.seconds, 6),
    }


# -- one key


def print_trace(trace: KeyTrace) -> None:
    """Where the records of a key are in one partition, and what keeps each."""
    shown = visible("utf-8")(trace.key)
    more = trace.record_count - len(trace.records)
    count = f"{trace.record_count} record{'' if trace.record_count == 1 else 's'}"
    print(
        f"{trace.selection.topic_partition}: {count} of key {shown}"
        + (f"; the newest {len(trace.records)} of them:" if more else "")
    )
    columns = (
        Column("OFFSET", is_number=True),
        Column("TIME", rank=1),
        Column("VALUE", is_number=True, rank=2),
        Column("SEGMENT", rank=3),
        Column("AT BYTE", is_number=True, rank=4),
        Column("A ROUND NOW", fold_at=30),
        Column("THEN", fold_at=30),
    )
    print_table(columns, [_record_cells(record, trace.selection) for record in trace.records])
    is_due = "is due now" if trace.selection.is_selected else "is not due"
    print(f"A round {is_due}: {'; '.join(trace.selection.reasons)}")


def _record_cells(record: RecordTrace, selection: Selection) -> tuple[str, ...]:
    return (
        str(record.offset),
        table_time(record.timestamp),
        "tombstone" if record.value_bytes is None else human_size(record.value_bytes),
        record.path.name,
        str(record.position),
        _verdict_text(record),
        _next_text(record, selection),
    )


def _verdict_text(record: RecordTrace) -> str:
    verdict = record.verdict
    if verdict is None:
        return "does not come here"
    if verdict.is_kept:
        return f"keeps it: {verdict.reason}"
    newer = f" at {verdict.newer_offset}" if verdict.newer_offset >= 0 else ""
    return f"drops it: {verdict.reason}{newer}"


def _next_text(record: RecordTrace, selection: Selection) -> str:
    if record.verdict is None:
        return f"{record.next_event}; now a round ends at {bound_text(selection.bound)}"
    if record.next_event_ms is not None:
        return f"{record.next_event}, {format_time(record.next_event_ms)}"
    return str(record.next_event)


def trace_row(trace: KeyTrace) -> dict[str, Any]:
    """For JSON."""
    return {
        **trace.selection.topic_partition._asdict(),
        "key": trace.key.hex(),
        "isDue": trace.selection.is_selected,
        "reasons": list(trace.selection.reasons),
        "bound": bound_text(trace.selection.bound),
        "recordCount": trace.record_count,
        "records": [_record_row(record) for record in trace.records],
    }


def _record_row(record: RecordTrace) -> dict[str, Any]:
    verdict = record.verdict
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "valueBytes": record.value_bytes,
        "file": str(record.path),
        "position": record.position,
        "isKept": None if verdict is None else verdict.is_kept,
        "reason": None if verdict is None else verdict.reason.value,
        "supersededBy": None
        if verdict is None or verdict.newer_offset < 0
        else verdict.newer_offset,
        "next": record.next_event.value,
        "nextFrom": record.next_event_ms,
    }

"""Plans, results and keys of `stratalog compact`: as tables and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.cli.record_text import visible
from stratalog.cli.tables import NOTHING, Column, counted, human_size, print_table, table_time
from stratalog.cli.when import format_time
from stratalog.maintenance.cleaning.plan import BoundKind, group_segments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.config import LogConfig
    from stratalog.maintenance.cleaning.key_trace import KeyTrace, RecordTrace
    from stratalog.maintenance.cleaning.plan import CleaningBound, CleaningPlan, CleaningResult
    from stratalog.partitions.settings import EffectiveConfig

NOTHING_COMPACTED: Final = (
    "No topic here is known to have cleanup.policy=compact. Where the settings of topics are "
    "unknown (see --explain), name the topics and give --config cleanup.policy=compact."
)
SETTINGS: Final = (
    "cleanup.policy",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "delete.retention.ms",
)
"""Those that decide."""
_LABEL_CHARS: Final = 9
_GROUPS_SHOWN: Final = 5


class Outcome(NamedTuple):
    """One partition after a run."""

    selection: CleaningPlan
    """As of the start."""
    before_bytes: int
    after_bytes: int
    rounds: tuple[CleaningResult, ...]
    """None when nothing was due."""
    error: Exception | None

    @property
    def records_kept(self) -> int:
        """Of the records that rounds have read."""
        return self.rounds[-1].records_kept if self.rounds else 0

    @property
    def records(self) -> int:
        """That rounds have read, each counted once."""
        removed = sum(done.records_read - done.records_kept for done in self.rounds)
        return self.records_kept + removed

    @property
    def bytes_read(self) -> int:
        return sum(done.bytes_read for done in self.rounds)


# -- plans


def print_plans(selections: Sequence[CleaningPlan]) -> None:
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


def _plan_cells(selection: CleaningPlan) -> tuple[str, ...]:
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


def plan_story(selection: CleaningPlan, settings: EffectiveConfig) -> Iterator[str]:
    """Why a partition is, or is not, to be cleaned now."""
    config = settings.config
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
    texts = config.as_dict()
    for number, name in enumerate(SETTINGS):
        source = settings.source_of(name).label
        if name == "cleanup.policy" and settings.unknown is not None:
            source = "assumed"
        yield _line("" if number else "settings", f"{name}={texts[name]} ({source})")
    groups = groups_of(selection, config)
    if groups and selection.cleanable_bytes:
        count = len(selection.segments)
        what = f"{counted(count, 'segment')} into {len(groups)}, if all keys fit the memory"
        yield _line("rewrites", what)
        for group in groups[:_GROUPS_SHOWN]:
            yield _line("", f"{group[0]}: from {len(group)}")
        if len(groups) > _GROUPS_SHOWN:
            yield _line("", f"and {len(groups) - _GROUPS_SHOWN} more")


def bound_text(bound: CleaningBound) -> str:
    """Where a round has to end, and why."""
    if bound.kind is BoundKind.MIN_LAG and bound.timestamp is not None:
        until = "" if bound.cleanable_from_ms is None else format_time(bound.cleanable_from_ms)
        return (
            f"offset {bound.offset}: the segment there has a record of "
            f"{format_time(bound.timestamp)}, too young for min.compaction.lag.ms until {until}"
        )
    return str(bound)


def groups_of(selection: CleaningPlan, config: LogConfig) -> list[list[int]]:
    """Base offsets of the segments that a round would make one."""
    bound = selection.first_uncleanable_offset
    groups = group_segments(selection.segments, bound, bound, config)
    return [[segment.base_offset for segment in group] for group in groups]


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_CHARS}} {text}"


# -- results


def print_outcomes(outcomes: Sequence[Outcome], seconds: float) -> None:
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
        records = sum(outcome.records for outcome in cleaned)
        kept = sum(outcome.records_kept for outcome in cleaned)
        rate = human_size(round(before / seconds)) if seconds else NOTHING
        print(
            f"{len(cleaned)} of {counted(len(outcomes), 'partition')} compacted: "
            f"{counted(records, 'record')} before, {kept:,} after; {human_size(before)} before, "
            f"{human_size(after)} after, in {seconds:.1f} s ({rate}/s)"
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
        kept, records = str(outcome.records_kept), str(outcome.records)
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


# -- one key


def print_trace(trace: KeyTrace) -> None:
    """Where the records of a key are in one partition, and what keeps each."""
    shown = visible("utf-8")(trace.key)
    more = trace.record_count - len(trace.records)
    print(
        f"{trace.selection.topic_partition}: {counted(trace.record_count, 'record')} of key {shown}"
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


def _record_cells(record: RecordTrace, selection: CleaningPlan) -> tuple[str, ...]:
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


def _next_text(record: RecordTrace, selection: CleaningPlan) -> str:
    if record.verdict is None:
        return f"{record.next_event}; now a round ends at {bound_text(selection.bound)}"
    if record.next_event_ms is not None:
        return f"{record.next_event}, {format_time(record.next_event_ms)}"
    return str(record.next_event)

"""Plans, results and keys of `stratalog compact` as JSON: exact numbers, milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratalog.cli.compact_text import SETTINGS, bound_text, groups_of
from stratalog.cli.output import summary_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.cli.compact_text import Outcome
    from stratalog.maintenance.cleaning.key_trace import KeyTrace, RecordTrace
    from stratalog.maintenance.cleaning.plan import CleaningPlan, CleaningResult
    from stratalog.partitions.settings import EffectiveConfig


def plan_row(selection: CleaningPlan, settings: EffectiveConfig) -> dict[str, Any]:
    """Of one partition."""
    config = settings.config
    texts = config.as_dict()
    bound, reset = selection.bound, selection.checkpoint_reset
    return {
        "kind": "partition",
        **selection.topic_partition._asdict(),
        "config": {name: texts[name] for name in SETTINGS},
        "configSources": {name: settings.source_of(name).value for name in SETTINGS},
        "settingsUnknown": settings.unknown,
        "isDue": selection.is_selected,
        "reasons": list(selection.reasons),
        "firstDirtyOffset": selection.first_dirty_offset,
        "checkpointReset": None if reset is None else reset.value,
        "firstUncleanableOffset": bound.offset,
        "bound": {
            "kind": bound.kind.value,
            "rawOffset": bound.raw_offset,
            "timestamp": bound.timestamp,
            "cleanableFromMs": bound.cleanable_from_ms,
        },
        "cleanBytes": selection.clean_bytes,
        "cleanableBytes": selection.cleanable_bytes,
        "dirtyRatio": selection.ratio,
        "maxLagExceededMs": selection.max_lag_exceeded_ms,
        "groups": groups_of(selection, config) if selection.cleanable_bytes else [],
    }


def plans_row(selections: Sequence[CleaningPlan], failed: int) -> dict[str, Any]:
    """All of them together."""
    return {
        "kind": "summary",
        "isDryRun": True,
        "partitions": len(selections) + failed,
        "failed": failed,
        "due": sum(selection.is_selected for selection in selections),
        "cleanBytes": sum(selection.clean_bytes for selection in selections),
        "cleanableBytes": sum(selection.cleanable_bytes for selection in selections),
    }


def outcome_row(outcome: Outcome, settings: EffectiveConfig) -> dict[str, Any]:
    """The plan of the first round, and what came of it."""
    return {
        **plan_row(outcome.selection, settings),
        "beforeBytes": outcome.before_bytes,
        "afterBytes": outcome.after_bytes,
        "rounds": [_round_row(done) for done in outcome.rounds],
        "error": None if outcome.error is None else str(outcome.error),
    }


def outcomes_row(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """All of them together."""
    return summary_row(
        sum(outcome.records for outcome in outcomes),
        sum(outcome.bytes_read for outcome in outcomes),
        seconds,
        isDryRun=False,
        partitions=len(outcomes),
        failed=sum(outcome.error is not None for outcome in outcomes),
        compacted=sum(bool(outcome.rounds) for outcome in outcomes),
        beforeBytes=sum(outcome.before_bytes for outcome in outcomes),
        afterBytes=sum(outcome.after_bytes for outcome in outcomes),
        recordsKept=sum(outcome.records_kept for outcome in outcomes),
    )


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


def trace_row(trace: KeyTrace) -> dict[str, Any]:
    """Where the records of a key are in one partition."""
    return {
        "kind": "partition",
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
        "nextFromMs": record.next_event_ms,
    }

"""All records of one key in a log: what a cleaning pass would do to each now, and what comes next.

The log is scanned once, keys only. The decisions are those of `filtering`, for a pass whose offset
map has room for every key.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.format.batch import MAGIC_2
from stratalog.log.reader import AbortedRanges
from stratalog.maintenance.cleaning.filtering import (
    NOT_MAPPED,
    CleaningRules,
    RecordDecision,
    RecordFilter,
    RecordReason,
)
from stratalog.maintenance.cleaning.plan import legacy_delete_horizon_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.log.reader import Location, LogReader
    from stratalog.maintenance.cleaning.plan import CleaningPlan

RECORDS_MAX: Final = 1000
_KEY_COLUMNS: Final = ("offset", "key")


class NextEvent(enum.StrEnum):
    """What happens to a record next."""

    STAYS = "kept until there is a newer record of its key"
    NEXT_PASS = "dropped by the next pass"
    NEWER_REACHED = "dropped by the first pass that reaches the newer record of its key"
    HORIZON_SET = "gets its delete horizon from the next pass"
    HORIZON_PASSES = "dropped by the first pass after its delete horizon"
    LEGACY_AGE = "dropped by a pass after younger segments were cleaned"
    SEGMENT_REACHED = "waits for a pass that reaches its segment"


class RecordTrace(NamedTuple):
    """One record of the key."""

    path: Path
    position: int
    """Position of its batch in the file."""
    offset: int
    timestamp: int
    value_bytes: int | None
    """None for a tombstone."""
    decision: RecordDecision | None
    """Decision of a pass now; None if it would not reach the record."""
    next_event: NextEvent
    next_event_ms: int | None
    """The earliest time, if it depends on the clock."""


@dataclass(frozen=True, slots=True)
class KeyTrace:
    """The records of one key, and what happens to them."""

    key: bytes
    plan: CleaningPlan
    records: tuple[RecordTrace, ...]
    """Records in offset order; only the newest if there are very many."""
    record_count: int
    """How many there are, listed or not."""


def trace_key(
    log: LogReader,
    key: bytes,
    plan: CleaningPlan,
    config: LogConfig,
    *,
    records_max: int = RECORDS_MAX,
    on_progress: Callable[[int], None] = lambda _: None,
) -> KeyTrace:
    """Search the log for the key. `on_progress` is called with offsets as they are passed."""
    offsets = [offset for found in _scan(log, key, on_progress) for offset in found]
    tracer = _Tracer(log, offsets, plan, config)
    newest = offsets[max(0, len(offsets) - records_max) :]
    records = tuple(trace for offset in newest if (trace := tracer.trace(offset)) is not None)
    return KeyTrace(key, plan, records, len(offsets))


def _scan(log: LogReader, key: bytes, on_progress: Callable[[int], None]) -> Iterator[list[int]]:
    """Offsets of the key's records."""
    import pyarrow as pa  # noqa: PLC0415  # slow to import
    import pyarrow.compute as pc  # noqa: PLC0415

    wanted = pa.scalar(key, pa.binary())
    for batch in log.read_columns(columns=_KEY_COLUMNS):
        if not batch.num_rows:
            continue
        column = batch.column("offset")
        yield column.filter(pc.equal(batch.column("key"), wanted)).to_pylist()
        on_progress(column[-1].as_py() + 1)


class _Tracer:
    def __init__(
        self, log: LogReader, offsets: Sequence[int], plan: CleaningPlan, config: LogConfig
    ) -> None:
        self._log = log
        self._offsets = offsets
        self._plan = plan
        self._mtimes = [segment.mtime_ms for segment in plan.segments]
        self._bases = [segment.base_offset for segment in plan.segments]
        self._aborted = AbortedRanges(log.aborted_transactions())
        self._located = lru_cache(maxsize=2 * RECORDS_MAX)(self._locate)
        mapped = self._newest_mapped()
        bound = plan.first_uncleanable_offset
        self._rules = CleaningRules(
            newest_offset_of=lambda _key: mapped,
            map_latest_offset=bound - 1,
            bound=bound,
            now_ms=plan.now_ms,
            delete_retention_ms=config.delete_retention_ms,
            legacy_horizon_ms=legacy_delete_horizon_ms(
                plan.segments, plan.first_dirty_offset, config.delete_retention_ms
            ),
            producers={},
        )

    def trace(self, offset: int) -> RecordTrace | None:
        """None if a live broker's cleaner has removed the record since the log was scanned."""
        found = self._located(offset)
        if found is None:
            return None
        decision = self._decision(found)
        event, event_ms = self._next_event(found, decision)
        value = found.record.value
        return RecordTrace(
            found.path,
            found.position,
            offset,
            found.record.timestamp,
            None if value is None else len(value),
            decision,
            event,
            event_ms,
        )

    def _locate(self, offset: int) -> Location | None:
        found = self._log.locate(offset)
        return found if found is not None and found.record.offset == offset else None

    def _newest_mapped(self) -> int:
        """The key's offset in the offset map: its newest dirty record that is not aborted."""
        start = bisect_left(self._offsets, self._plan.first_dirty_offset)
        stop = bisect_left(self._offsets, self._plan.first_uncleanable_offset)
        for offset in reversed(self._offsets[start:stop]):
            found = self._located(offset)
            if found is not None and not self._is_aborted(found):
                return offset
        return NOT_MAPPED

    def _has_newer_beyond(self) -> bool:
        """Whether there is a record of the key that a pass does not reach yet, and that counts."""
        later = self._offsets[bisect_left(self._offsets, self._rules.bound) :]
        found = (self._located(offset) for offset in reversed(later))
        return any(each is not None and not self._is_aborted(each) for each in found)

    def _is_aborted(self, found: Location) -> bool:
        header = found.header
        if not header.is_transactional or header.base_offset is None:
            return False
        return self._aborted.covers(header.producer_id, header.base_offset)

    def _decision(self, found: Location) -> RecordDecision | None:
        offset = found.record.offset
        if offset >= self._rules.bound:
            return None
        if self._is_aborted(found):
            return RecordDecision(offset, False, RecordReason.ABORTED)
        slot = max(0, bisect_right(self._bases, offset) - 1)
        return RecordFilter(self._rules, found.header, self._mtimes[slot]).decide(found.record)

    def _next_event(
        self, found: Location, decision: RecordDecision | None
    ) -> tuple[NextEvent, int | None]:
        if decision is None:
            return NextEvent.SEGMENT_REACHED, self._plan.bound.cleanable_from_ms
        if not decision.is_kept:
            return NextEvent.NEXT_PASS, None
        if decision.reason is RecordReason.TOMBSTONE_PROTECTED:
            return self._end_of_tombstone(found)
        if self._has_newer_beyond():
            return NextEvent.NEWER_REACHED, self._plan.bound.cleanable_from_ms
        return NextEvent.STAYS, None

    def _end_of_tombstone(self, found: Location) -> tuple[NextEvent, int | None]:
        if found.header.magic < MAGIC_2:
            return NextEvent.LEGACY_AGE, None
        horizon = found.header.delete_horizon_ms
        if horizon is None:
            return NextEvent.HORIZON_SET, None
        return NextEvent.HORIZON_PASSES, horizon

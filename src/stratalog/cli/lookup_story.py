"""The steps of a lookup as a story: what was compared, what was chosen, and why.

Pure: from a trace to sections of text. `explain` prints them, with colours and finer lines on a
terminal.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.cli.describe import time_text
from stratalog.cli.tables import Column, Row, counted, human_size
from stratalog.cli.when import format_time
from stratalog.format.batch import HEADER_BYTES
from stratalog.format.index_search import WARM_BYTES
from stratalog.storage.index_view import FROM_FILE, OFFSET_INDEX, TIME_INDEX
from stratalog.storage.trace import IndexStep, RecordStep, ScanStep, SegmentStep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stratalog.format.batch import Peek
    from stratalog.storage.trace import Step, Trace

BAR_CELLS: Final = 32
CELLS_BESIDE_BAR: Final = 52
"""What the other columns of the widest table with a bar take."""
ROWS_MAX: Final = 12
_ENTRY_BYTES: Final = {of.kind: of.entry_bytes for of in (OFFSET_INDEX, TIME_INDEX)}


class Glyphs(NamedTuple):
    """What the picture of a binary search is drawn with, and how wide."""

    left: str
    """A slot that may still be the answer."""
    probe: str
    """The slot that is looked at."""
    gone: str
    cells: int = BAR_CELLS


ASCII: Final = Glyphs("=", "o", ".")
UNICODE: Final = Glyphs("\u2501", "\u25cf", "\u00b7")


@dataclass(frozen=True)
class Section:
    """One step: a title, a sentence of why, what was compared, and the outcome."""

    title: str
    why: str
    outcome: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    left_out: str = ""
    """What happened before the first row, where there were too many."""


@dataclass(frozen=True)
class Totals:
    """What the lookup cost, and what there was."""

    segments_compared: int
    index_probes: int
    index_bytes: int
    headers_scanned: int
    bytes_passed: int
    """Log between the first header that was looked at and the end of the batch that was found."""
    records_passed: int
    batch_bytes: int
    """Of the batch that was read and decoded; 0 if none was."""
    log_bytes: int

    @property
    def bytes_looked_at(self) -> int:
        return self.index_bytes + self.headers_scanned * HEADER_BYTES + self.batch_bytes

    def __str__(self) -> str:
        share = f" ({100 * self.bytes_looked_at / self.log_bytes:.2g} %)" if self.log_bytes else ""
        return (
            f"{counted(self.segments_compared, 'segment')} and "
            f"{counted(self.index_probes, 'index entry')} compared, "
            f"{counted(self.headers_scanned, 'batch header')} scanned, "
            f"{counted(self.records_passed, 'record')} passed: looked at "
            f"{human_size(self.bytes_looked_at)} of a log of {human_size(self.log_bytes)}{share}."
        )


def totals_of(trace: Trace, *, batch_bytes: int, log_bytes: int) -> Totals:
    """Add up the steps."""
    segments = [step for step in trace.steps if isinstance(step, SegmentStep)]
    searches = [step for step in trace.steps if isinstance(step, IndexStep)]
    scans = [step for step in trace.steps if isinstance(step, ScanStep)]
    records = [step for step in trace.steps if isinstance(step, RecordStep)]
    return Totals(
        segments_compared=sum(len(step.compared) for step in segments),
        index_probes=sum(len(step.probes) for step in searches),
        index_bytes=sum(len(step.probes) * _ENTRY_BYTES[step.kind] for step in searches),
        headers_scanned=sum(len(step.batches) for step in scans),
        bytes_passed=sum(step.bytes_scanned for step in scans),
        records_passed=sum(step.records_passed for step in records),
        batch_bytes=batch_bytes,
        log_bytes=log_bytes,
    )


def sections_of(
    trace: Trace, *, bases: Sequence[int], codec: str = "none", glyphs: Glyphs = ASCII
) -> list[Section]:
    """One section per step.

    `bases` are the base offsets of all segments of the log, `codec` is that of the batch found.
    """
    target = next((step.target for step in trace.steps if isinstance(step, IndexStep)), 0)
    is_time = any(isinstance(step, IndexStep) and step.kind == "time" for step in trace.steps)
    sections = []
    sought_offset: int | None = None  # by the scan that follows an offset index; else a time
    for step, following in zip_longest(trace.steps, trace.steps[1:]):
        if isinstance(step, SegmentStep):
            sections.append(
                _segment_by_time(step, target, bases)
                if is_time
                else _segment_by_offset(step, target)
            )
        elif isinstance(step, IndexStep):
            sought_offset = step.target if step.kind == "offset" else None
            sections.append(_index(step, glyphs, is_refuted=_is_same_search(step, following)))
        elif isinstance(step, ScanStep):
            sections.append(
                _scan_for_time(step, target)
                if sought_offset is None
                else _scan_for_offset(step, sought_offset)
            )
            sought_offset = None
        else:
            sections.append(_record(step, target, codec, is_time=is_time))
    return sections


# -- the segment


def _segment_by_offset(step: SegmentStep, target: int) -> Section:
    rows = [
        (
            str(base),
            _sign(base <= target, "<=", ">"),
            str(target),
            _sign(base <= target, "this one or a later one", "an earlier one"),
        )
        for base in step.compared
    ]
    return Section(
        title="Choose the segment",
        why="A segment is named after its first offset, so a binary search over the names is "
        "enough: no file is opened.",
        columns=_columns("BASE#", "", "TARGET#", "SO IT IS"),
        rows=rows,
        outcome=f"{step.path.name}: {step.reason}",
    )


def _segment_by_time(step: SegmentStep, target: int, bases: Sequence[int]) -> Section:
    pairs = list(zip(bases, step.compared, strict=False))
    rows = [
        (
            str(base),
            format_time(largest),
            _sign(largest < target, "<", ">="),
            _sign(largest < target, "all of it is older", "this one reaches the target"),
        )
        for base, largest in pairs
    ]
    return Section(
        title="Choose the segment",
        why="The last entry of a time index is the largest timestamp of its segment. Oldest first, "
        "because the first record that is new enough is wanted.",
        columns=_columns("BASE#", "LARGEST TIMESTAMP", "", "SO"),
        rows=rows[-ROWS_MAX:],
        left_out=_left_out(rows, "older segment"),
        outcome=f"{step.path.name}: {step.reason}",
    )


# -- the indexes


def _is_same_search(step: IndexStep, following: Step | None) -> bool:
    """Whether the next step searches the same index once more: then the first was in vain."""
    return (
        isinstance(following, IndexStep)
        and (following.kind, following.path) == (step.kind, step.path)
        and following.origin != step.origin
    )


def _index(step: IndexStep, glyphs: Glyphs, *, is_refuted: bool) -> Section:
    is_time = step.kind == "time"
    key_text: Callable[[int], str] = format_time if is_time else str
    rows = [
        (
            str(probe.slot),
            key_text(probe.key),
            _sign(probe.key <= step.target, "<=", ">"),
            str(probe.value),
            bar,
        )
        for probe, bar in zip(step.probes, search_bars(step, glyphs), strict=True)
    ]
    origin = "" if step.origin == FROM_FILE else f" This one was {step.origin}."
    titles = ("TIMESTAMP", "", "OFFSET#") if is_time else ("OFFSET#", "", "BYTE#")
    return Section(
        title=f"Search the {step.kind} index for {key_text(step.target)}",
        why=(_TIME_WHY if is_time else _OFFSET_WHY) + _order_of_search(step) + origin,
        columns=_columns("SLOT#", *titles, f"OF {counted(step.entries, 'entry')}"),
        rows=rows,
        outcome=f"{step.path.name}: {_index_outcome(step, is_refuted=is_refuted)}",
    )


_OFFSET_WHY: Final = (
    "The index is sparse, one entry for every few KiB of log. The greatest entry at or below the "
    "target is the closest place before it where a batch is known to begin."
)
_TIME_WHY: Final = (
    "An entry says: up to this offset, nothing is newer than this timestamp. The greatest entry at "
    "or below the target rules out all that lies before it."
)


def _index_outcome(step: IndexStep, *, is_refuted: bool) -> str:
    found = step.found
    if is_refuted:
        return "the log has no such batch there, so this file is not believed"
    if found is None:
        nothing = "every entry lies above the target" if step.entries else "it has no entries"
        start = "from the first record on" if step.kind == "time" else "from byte 0 on"
        return f"{nothing}, so {'look' if step.kind == 'time' else 'scan'} {start}"
    if step.kind == "time":
        return f"slot {found.slot}, so look from offset {found.value} on"
    return f"slot {found.slot}, so scan from byte {found.value} on"


def _order_of_search(step: IndexStep) -> str:
    first_warm = step.entries - 1 - WARM_BYTES // _ENTRY_BYTES[step.kind]
    if first_warm <= 0:
        return ""
    return (
        f" The first look is at slot {first_warm}: the last {human_size(WARM_BYTES)} of an index "
        "are asked for most and likely in memory, so they are searched first."
    )


def search_bars(step: IndexStep, glyphs: Glyphs) -> list[str]:
    """For each probe, a picture of the slots that were still possible when it was made."""
    low, high = 0, step.entries - 1
    bars = []
    for probe in step.probes:
        bars.append(_bar((low, high), probe.slot, step.entries, glyphs))
        if probe.key <= step.target:
            low = max(low, probe.slot)
        else:
            high = min(high, probe.slot - 1)
    return bars


def _bar(possible: tuple[int, int], probe: int, entries: int, glyphs: Glyphs) -> str:
    cells = min(glyphs.cells, entries)
    first, last, at = (slot * cells // entries for slot in (*possible, probe))
    return "".join(
        glyphs.probe if cell == at else glyphs.left if first <= cell <= last else glyphs.gone
        for cell in range(cells)
    )


# -- the scans


def _scan_for_offset(step: ScanStep, target: int) -> Section:
    rows = [
        (
            *_batch_cells(position, batch),
            _sign(batch.last_offset < target, f"ends before {target}", f"reaches {target}"),
        )
        for position, batch in step.batches
    ]
    return Section(
        title=f"Scan batch headers for offset {target}",
        why="Batches follow each other without gaps and say how long they are, so a scan hops from "
        "header to header and reads no records.",
        columns=_columns("BYTE#", "SIZE#", "FIRST#", "LAST#", "SO IT"),
        rows=rows[-ROWS_MAX:],
        left_out=_left_out(rows, "batch"),
        outcome=_scan_outcome(step),
    )


def _scan_for_time(step: ScanStep, target: int) -> Section:
    rows = [
        (
            *_batch_cells(position, batch),
            format_time(batch.max_timestamp),
            _sign(batch.max_timestamp < target, "is too old", "may hold it"),
        )
        for position, batch in step.batches
    ]
    return Section(
        title=f"Scan batch headers for {format_time(target)}",
        why="A header has the largest timestamp of its batch, so batches that are too old are "
        "passed over unread.",
        columns=_columns("BYTE#", "SIZE#", "FIRST#", "LAST#", "LARGEST TIMESTAMP", "SO IT"),
        rows=rows[-ROWS_MAX:],
        left_out=_left_out(rows, "batch"),
        outcome=_scan_outcome(step),
    )


def _batch_cells(position: int, batch: Peek) -> Row:
    return str(position), str(batch.size_bytes), str(batch.base_offset), str(batch.last_offset)


def _scan_outcome(step: ScanStep) -> str:
    if not step.batches:
        return f"{step.path.name}: nothing from byte {step.start_position} on"
    headers = counted(len(step.batches), "header")
    return (
        f"{step.path.name}: the batch at byte {step.batches[-1][0]}, after {headers} in "
        f"{human_size(step.bytes_scanned)} of log"
    )


def _record(step: RecordStep, target: int, codec: str, *, is_time: bool) -> Section:
    wanted = f"at {format_time(target)} or later" if is_time else f"with offset {target} or above"
    unpacked = "" if codec == "none" else f"all are decompressed ({codec}), then "
    return Section(
        title="Walk the records of that batch",
        why=f"Records have no index inside their batch: {unpacked}they are decoded one by one, up "
        f"to the first {wanted}.",
        columns=(),
        rows=(),
        outcome=f"offset {step.offset}, {time_text(step.timestamp)}, "
        f"having passed {counted(step.records_passed, 'record')}",
    )


def _columns(*titles: str) -> tuple[Column, ...]:
    """A title that ends with # is of a column of numbers."""
    return tuple(Column(title.removesuffix("#"), title.endswith("#")) for title in titles)


def _left_out(rows: Sequence[Row], noun: str) -> str:
    return f"{counted(len(rows) - ROWS_MAX, noun)} before these" if len(rows) > ROWS_MAX else ""


def _sign(condition: bool, if_true: str, if_false: str) -> str:
    return if_true if condition else if_false

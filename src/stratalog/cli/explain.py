"""`stratalog explain`: the lookup of an offset or time, step by step, with the reason for each.

A lookup records its steps in a trace. They become sections of text: what was compared, what was
chosen, and why. A terminal gets colours and finer lines.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from stratalog.cli.arguments import (
    JsonOption,
    KeyFormatOption,
    ValueFormatOption,
    reads_stores,
    with_groups,
)
from stratalog.cli.find import LookupArguments, look_up_offset, look_up_time
from stratalog.cli.output import json_line, json_names, report_error
from stratalog.cli.records import LocationPrinter, time_text
from stratalog.cli.tables import Column, Row, columns_of, counted, human_size, plain_lines
from stratalog.errors import CorruptError
from stratalog.format.batch import HEADER_BYTES
from stratalog.format.index_search import WARM_BYTES
from stratalog.format.times import format_time
from stratalog.partitions.inventory import codec_name, label_of
from stratalog.storage.index_view import FROM_FILE, OFFSET_INDEX, TIME_INDEX
from stratalog.storage.store import noted_fetches
from stratalog.storage.trace import IndexStep, RecordStep, ScanStep, SegmentStep, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stratalog.cli.find import LookupQuery, LookupResult
    from stratalog.format.batch import Peek
    from stratalog.log.partition_view import PartitionView
    from stratalog.storage.store import Fetch
    from stratalog.storage.trace import Step

FAILS_WHEN = "nothing was found, or a file is corrupt"


@reads_stores
@with_groups
def run(
    *,
    lookup: LookupArguments,
    key_format: KeyFormatOption = "utf-8",
    value_format: ValueFormatOption = "utf-8",
    as_json: JsonOption = False,
) -> None:
    """Show how Kafka looks up an offset or time, step by step.

    The steps are those of a Kafka broker that serves a fetch or a list-offsets request: choose the
    segment, search its sparse indexes, scan a few batch headers, decode the records of one batch.
    If an index is missing or wrong, it is first rebuilt in memory, and the step says so.

    \b
    Examples:
      stratalog explain /var/lib/kafka/data/orders-3 --offset 123456
      stratalog explain orders:3 -d /var/lib/kafka/data --time 2024-05-01T12:30:00
      stratalog explain /var/lib/kafka/data/orders-3 -o 123456 --json | jq .step

    With --json, each object has a step: segment, index, scan, record, and finally total and found.
    For a log in an object store, objects with step fetch follow, one per request. If a file is
    corrupt, the last object is an error with file, position and reason.
    """
    query = lookup.query()
    printer = LocationPrinter(key_format, value_format)
    is_found = is_corrupt = False
    for at, view in enumerate(lookup.views()):
        if at and not as_json:
            print()
        trace = Trace()
        with view:
            try:
                with noted_fetches() as fetches:
                    result = _look_up(view, query, trace)
            except CorruptError as error:
                is_corrupt = True
                _print_error(view, trace, error, as_json=as_json)
                continue
            is_found |= result.location is not None
            _print_result(result, trace, printer, as_json=as_json)
            _print_fetches(fetches, as_json=as_json)
    if is_corrupt or not is_found:
        raise typer.Exit(1)


def _look_up(view: PartitionView, query: LookupQuery, trace: Trace) -> LookupResult:
    if query.offset is not None:
        return look_up_offset(view, query.offset.resolve(view), trace)
    return look_up_time(view, query.timestamp or 0, trace)


def _print_result(
    result: LookupResult, trace: Trace, printer: LocationPrinter, *, as_json: bool
) -> None:
    view, found = result.view, result.location
    totals = totals_of(
        trace, batch_bytes=found.header.size_bytes if found else 0, log_bytes=view.size_bytes
    )
    if as_json:
        for row in _rows(result, trace, totals, printer):
            print(json_line(row))
    else:
        codec = codec_name(found.header.codec_id) if found else "none"
        record = [] if found is None else [result.headline, *printer.lines(found)]
        _print_story(view, trace, codec, [record, [f"Total: {totals}"]])
    if found is None:
        report_error(result.headline)


def _print_fetches(fetches: Sequence[Fetch], *, as_json: bool) -> None:
    """What was requested of a store; nothing on a disk."""
    if fetches and not as_json:
        size_bytes = sum(each.size_bytes for each in fetches)
        print(f"\nRequests: {len(fetches)}, {size_bytes} bytes")
    for each in fetches:
        if as_json:
            print(json_line({"step": "fetch", **json_names(asdict(each)), "path": str(each.path)}))
        else:
            end = each.position + each.size_bytes
            where = f" bytes {each.position} to {end}" if each.what == "range" else ""
            print(f"  {each.what:<5}  {each.path}{where}")


def _print_error(view: PartitionView, trace: Trace, error: CorruptError, *, as_json: bool) -> None:
    """The steps up to the corrupt file, then the error."""
    if as_json:
        for row in (*_step_rows(view, trace), _error_row(view, error)):
            print(json_line(row))
    else:
        _print_story(view, trace, "none", [])
    report_error(str(error))


# -- JSON


def _rows(
    result: LookupResult, trace: Trace, totals: Totals, printer: LocationPrinter
) -> Iterator[dict[str, Any]]:
    yield from _step_rows(result.view, trace)
    place = result.view.topic_partition._asdict()
    yield {"step": "total", **place, **json_names(asdict(totals))}
    yield {"step": "found", **result.row(printer)}


def _step_rows(view: PartitionView, trace: Trace) -> Iterator[dict[str, Any]]:
    names = view.topic_partition._asdict()
    for step in trace.steps:
        yield {"step": _step_name(step), **names, **_step_row(step)}


def _error_row(view: PartitionView, error: CorruptError) -> dict[str, Any]:
    return {
        "step": "error",
        **view.topic_partition._asdict(),
        "file": None if error.path is None else str(error.path),
        "position": error.position,
        "reason": error.reason,
    }


def _step_name(step: Step) -> str:
    return type(step).__name__.removesuffix("Step").lower()


def _step_row(step: Step) -> dict[str, Any]:
    if isinstance(step, RecordStep):
        return json_names(asdict(step))
    return {"file": str(step.path), **_file_row(step)}


def _file_row(step: SegmentStep | IndexStep | ScanStep) -> dict[str, Any]:
    if isinstance(step, SegmentStep):
        return {"baseOffset": step.base_offset, "compared": step.compared, "reason": step.reason}
    if isinstance(step, IndexStep):
        return {
            "index": step.kind,
            "origin": step.origin,
            "entries": step.entries,
            "target": step.target,
            "probes": [asdict(probe) for probe in step.probes],
            "found": None if step.found is None else asdict(step.found),
        }
    return {
        "position": step.start_position,
        "sizeBytes": step.bytes_scanned,
        "batches": [
            {
                "position": position,
                "size": batch.size_bytes,
                "baseOffset": batch.base_offset,
                "lastOffset": batch.last_offset,
                "maxTimestamp": batch.max_timestamp,
                "magic": batch.magic,
            }
            for position, batch in step.batches
        ],
    }


# -- text


def _print_story(
    view: PartitionView, trace: Trace, codec: str, end: Sequence[Sequence[str]]
) -> None:
    """`codec` is that of the batch found; `end` are paragraphs after the steps."""
    is_terminal = sys.stdout.isatty()
    sections = sections_of(
        trace,
        bases=view.segments.bases,
        codec=codec,
        glyphs=_terminal_glyphs() if is_terminal else ASCII,
    )
    head = (
        f"{label_of(view.topic_partition)}: {counted(len(view.segments), 'segment')}, "
        f"{human_size(view.size_bytes)}, log start offset {view.log_start_offset}"
    )
    if view.knows_end:
        head += f", log end offset {view.log_end_offset}"
    if is_terminal:
        _print_rich(head, sections, end)
    else:
        print("\n".join(_plain(head, sections, end)))


def _terminal_glyphs() -> Glyphs:
    room = shutil.get_terminal_size().columns - CELLS_BESIDE_BAR
    return UNICODE._replace(cells=max(8, min(BAR_CELLS, room)))


def _plain(
    head: str, sections: Sequence[ExplainedStep], end: Sequence[Sequence[str]]
) -> Iterator[str]:
    yield head
    for number, section in enumerate(sections, 1):
        yield ""
        yield f"{number}. {section.title}"
        yield f"   {section.why}"
        if section.left_out:
            yield f"     ({section.left_out})"
        if section.rows:
            yield from (f"     {line}" for line in plain_lines(section.columns, section.rows))
        yield f"   -> {section.outcome}"
    for lines in filter(None, end):
        yield ""
        yield from lines


def _print_rich(head: str, sections: Sequence[ExplainedStep], end: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415  # only a terminal needs rich
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from stratalog.cli.tables import rich_table  # noqa: PLC0415

    console = Console(highlight=False)
    console.print(Text(head, style="bold"))
    for number, section in enumerate(sections, 1):
        console.print()
        console.print(Text(f"{number}. {section.title}", style="bold cyan"))
        console.print(Padding(Text(section.why, style="dim"), (0, 0, 0, 3), expand=False))
        if section.left_out:
            console.print(
                Padding(Text(f"({section.left_out})", style="dim"), (0, 0, 0, 5), expand=False)
            )
        if section.rows:
            table = rich_table(section.columns, section.rows)
            console.print(Padding(table, (0, 0, 0, 5), expand=False))
        console.print(
            Padding(Text(f"\u2192 {section.outcome}", style="green"), (0, 0, 0, 3), expand=False)
        )
    for lines in filter(None, end):
        console.print()
        for line in lines:
            console.print(Text(line, style="bold" if lines is end[-1] else ""))


# -- the steps as sections of text

BAR_CELLS: Final = 32
CELLS_BESIDE_BAR: Final = 52
"""Width of the other columns of the widest table that has a bar."""
ROWS_MAX: Final = 12
_ENTRY_BYTES: Final = {of.kind: of.entry_bytes for of in (OFFSET_INDEX, TIME_INDEX)}


class Glyphs(NamedTuple):
    """Characters of the picture of a binary search, and its width."""

    left: str
    """A slot that may still be the result."""
    probe: str
    """The slot that is compared."""
    excluded: str
    cells: int = BAR_CELLS


ASCII: Final = Glyphs("=", "o", ".")
UNICODE: Final = Glyphs("\u2501", "\u25cf", "\u00b7")


@dataclass(frozen=True)
class ExplainedStep:
    """One step: a title, the reason, what was compared, and the result."""

    title: str
    why: str
    outcome: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    left_out: str = ""
    """Number of rows that are not shown, if there were too many."""


def sections_of(
    trace: Trace, *, bases: Sequence[int], codec: str = "none", glyphs: Glyphs = ASCII
) -> list[ExplainedStep]:
    """One section per step.

    `bases` are the base offsets of all segments of the log, `codec` is that of the batch found.
    """
    target = next((step.target for step in trace.steps if isinstance(step, IndexStep)), 0)
    is_time = any(isinstance(step, IndexStep) and step.kind == "time" for step in trace.steps)
    sections = []
    wanted_offset: int | None = None  # by the scan after an offset index; None: a time
    for step, following in zip_longest(trace.steps, trace.steps[1:]):
        if isinstance(step, SegmentStep):
            sections.append(
                _segment_by_time(step, target, bases)
                if is_time
                else _segment_by_offset(step, target)
            )
        elif isinstance(step, IndexStep):
            wanted_offset = step.target if step.kind == "offset" else None
            sections.append(_index(step, glyphs, is_refuted=_is_same_search(step, following)))
        elif isinstance(step, ScanStep):
            sought = target if wanted_offset is None else wanted_offset
            sections.append(_scan(step, sought, is_time=wanted_offset is None))
            wanted_offset = None
        else:
            sections.append(_record(step, target, codec, is_time=is_time))
    return sections


# -- the segment


def _segment_by_offset(step: SegmentStep, target: int) -> ExplainedStep:
    rows = [
        (
            str(base),
            _sign(base <= target, "<=", ">"),
            str(target),
            _sign(base <= target, "this or a later one", "an earlier one"),
        )
        for base in step.compared
    ]
    return ExplainedStep(
        title="Choose the segment",
        why="A segment file is named after its base offset, so a binary search over the names is "
        "enough. No file is opened.",
        columns=columns_of("BASE# | | TARGET# | SEGMENT"),
        rows=rows,
        outcome=f"{step.path.name}: {step.reason}",
    )


def _segment_by_time(step: SegmentStep, target: int, bases: Sequence[int]) -> ExplainedStep:
    pairs = list(zip(bases, step.compared, strict=False))
    rows = [
        (
            str(base),
            format_time(largest),
            _sign(largest < target, "<", ">="),
            _sign(largest < target, "entirely older", "the first that is new enough"),
        )
        for base, largest in pairs
    ]
    return ExplainedStep(
        title="Choose the segment",
        why="The last entry of a time index is the largest timestamp of its segment. Segments are "
        "compared from the oldest on, to find the first record that is new enough.",
        columns=columns_of("BASE# | LARGEST TIMESTAMP | | SEGMENT"),
        rows=rows[-ROWS_MAX:],
        left_out=_left_out(rows, "older segment"),
        outcome=f"{step.path.name}: {step.reason}",
    )


# -- the indexes


def _is_same_search(step: IndexStep, following: Step | None) -> bool:
    """Whether the next step searches a rebuilt index, because this one was wrong."""
    return (
        isinstance(following, IndexStep)
        and (following.kind, following.path) == (step.kind, step.path)
        and following.origin != step.origin
    )


def _index(step: IndexStep, glyphs: Glyphs, *, is_refuted: bool) -> ExplainedStep:
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
    origin = "" if step.origin == FROM_FILE else f" This index was {step.origin}."
    titles = "TIMESTAMP | | OFFSET#" if is_time else "OFFSET# | | BYTE#"
    return ExplainedStep(
        title=f"Search the {step.kind} index for {key_text(step.target)}",
        why=(_TIME_WHY if is_time else _OFFSET_WHY) + _order_of_search(step) + origin,
        columns=columns_of(f"SLOT# | {titles} | OF {counted(step.entries, 'entry')}"),
        rows=rows,
        outcome=f"{step.path.name}: {_index_outcome(step, is_refuted=is_refuted)}",
    )


_OFFSET_WHY: Final = (
    "The index is sparse: one entry for every few KiB of log. The largest entry at or below the "
    "target is the closest position before it where a batch is known to start."
)
_TIME_WHY: Final = (
    "An entry says that up to this offset, no record is newer than this timestamp. The largest "
    "entry at or below the target excludes all records before it."
)


def _index_outcome(step: IndexStep, *, is_refuted: bool) -> str:
    found = step.found
    if is_refuted:
        return "the log has no such batch there, so the index file is wrong and not used"
    if found is None:
        nothing = "every entry is above the target" if step.entries else "it has no entries"
        start = "search from the first record on" if step.kind == "time" else "scan from byte 0 on"
        return f"{nothing}, so {start}"
    if step.kind == "time":
        return f"slot {found.slot}, so search from offset {found.value} on"
    return f"slot {found.slot}, so scan from byte {found.value} on"


def _order_of_search(step: IndexStep) -> str:
    first_warm = step.entries - 1 - WARM_BYTES // _ENTRY_BYTES[step.kind]
    if first_warm <= 0:
        return ""
    return (
        f" The first comparison is at slot {first_warm}: the last {human_size(WARM_BYTES)} of an "
        "index are used most and are likely in the page cache, so they are searched first."
    )


def search_bars(step: IndexStep, glyphs: Glyphs) -> list[str]:
    """For each probe, a picture of the slots that were still possible at that time."""
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
        glyphs.probe if cell == at else glyphs.left if first <= cell <= last else glyphs.excluded
        for cell in range(cells)
    )


# -- the scans


def _scan(step: ScanStep, target: int, *, is_time: bool) -> ExplainedStep:
    cells = _cells_by_time if is_time else _cells_by_offset
    rows = [cells(position, batch, target) for position, batch in step.batches]
    time_column = " | LARGEST TIMESTAMP" if is_time else ""
    what = format_time(target) if is_time else f"offset {target}"
    return ExplainedStep(
        title=f"Scan batch headers for {what}",
        why=_SCAN_TIME_WHY if is_time else _SCAN_OFFSET_WHY,
        columns=columns_of(f"BYTE# | SIZE# | FIRST# | LAST#{time_column} | BATCH"),
        rows=rows[-ROWS_MAX:],
        left_out=_left_out(rows, "batch"),
        outcome=_scan_outcome(step),
    )


_SCAN_OFFSET_WHY: Final = (
    "Batches are stored without gaps, and each header has the length of its batch, so a scan goes "
    "from header to header and reads no records."
)
_SCAN_TIME_WHY: Final = (
    "A header has the largest timestamp of its batch, so batches that are too old are skipped "
    "without reading their records."
)


def _cells_by_offset(position: int, batch: Peek, target: int) -> Row:
    verdict = _sign(batch.last_offset < target, f"ends before {target}", f"contains {target}")
    return *_batch_cells(position, batch), verdict


def _cells_by_time(position: int, batch: Peek, target: int) -> Row:
    verdict = _sign(batch.max_timestamp < target, "too old", "new enough")
    return *_batch_cells(position, batch), format_time(batch.max_timestamp), verdict


def _batch_cells(position: int, batch: Peek) -> Row:
    return str(position), str(batch.size_bytes), str(batch.base_offset), str(batch.last_offset)


def _scan_outcome(step: ScanStep) -> str:
    if not step.batches:
        return f"{step.path.name}: no batch from byte {step.start_position} on"
    headers = counted(len(step.batches), "header")
    return (
        f"{step.path.name}: the batch at byte {step.batches[-1][0]}, after {headers} in "
        f"{human_size(step.bytes_scanned)} of log"
    )


def _record(step: RecordStep, target: int, codec: str, *, is_time: bool) -> ExplainedStep:
    wanted = f"at {format_time(target)} or later" if is_time else f"with offset {target} or above"
    unpacked = "" if codec == "none" else f"all are decompressed ({codec}), then "
    return ExplainedStep(
        title="Decode the records of the batch",
        why=f"A batch has no index of its records: {unpacked}they are decoded one by one, up to "
        f"the first {wanted}.",
        columns=(),
        rows=(),
        outcome=f"offset {step.offset}, {time_text(step.timestamp)}, "
        f"after skipping {counted(step.records_passed, 'record')}",
    )


def _left_out(rows: Sequence[Row], noun: str) -> str:
    return f"{counted(len(rows) - ROWS_MAX, noun)} before these" if len(rows) > ROWS_MAX else ""


def _sign(condition: bool, if_true: str, if_false: str) -> str:
    return if_true if condition else if_false


# -- the cost of all steps


@dataclass(frozen=True)
class Totals:
    """The cost of the lookup, and the size of the log."""

    segments_compared: int
    index_probes: int
    index_bytes: int
    headers_scanned: int
    records_passed: int
    batch_bytes: int
    """Size of the batch that was decoded; 0 if there was none."""
    log_bytes: int

    @property
    def bytes_read(self) -> int:
        return self.index_bytes + self.headers_scanned * HEADER_BYTES + self.batch_bytes

    def __str__(self) -> str:
        share = f" ({100 * self.bytes_read / self.log_bytes:.2g} %)" if self.log_bytes else ""
        return (
            f"{counted(self.segments_compared, 'segment')} and "
            f"{counted(self.index_probes, 'index entry')} compared, "
            f"{counted(self.headers_scanned, 'batch header')} scanned, "
            f"{counted(self.records_passed, 'record')} skipped: read "
            f"{human_size(self.bytes_read)} of a log of {human_size(self.log_bytes)}{share}."
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
        records_passed=sum(step.records_passed for step in records),
        batch_bytes=batch_bytes,
        log_bytes=log_bytes,
    )

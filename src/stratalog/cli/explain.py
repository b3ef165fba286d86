"""`stratalog explain`: a lookup by offset or time, step by step, with the reason for each."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.arguments import (
    KeyFormatOption,
    OffsetOption,
    SearchedDirsOption,
    TargetArgument,
    TimeOption,
    ValueFormatOption,
)
from stratalog.cli.describe import Look
from stratalog.cli.find import answer_offset, answer_time, question_of
from stratalog.cli.inventory import codec_name, label_of
from stratalog.cli.lookup_story import (
    ASCII,
    BAR_CELLS,
    CELLS_BESIDE_BAR,
    UNICODE,
    sections_of,
    totals_of,
)
from stratalog.cli.output import json_line, json_names, report_error
from stratalog.cli.tables import counted, human_size, plain_lines
from stratalog.cli.targets import open_targets
from stratalog.errors import CorruptError
from stratalog.storage.trace import IndexStep, RecordStep, ScanStep, SegmentStep, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.cli.find import Answer, Question
    from stratalog.cli.lookup_story import Glyphs, Section, Totals
    from stratalog.log.partition_view import PartitionView
    from stratalog.storage.trace import Step


FAILS_WHEN = "nothing is found, or damage is met on the way"


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    target: TargetArgument,
    log_dir: SearchedDirsOption = None,
    offset: OffsetOption = None,
    time: TimeOption = None,
    key_format: KeyFormatOption = "utf-8",
    value_format: ValueFormatOption = "utf-8",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, one per step.")
    ] = False,
) -> None:
    """Show every step of a look-up by offset or time.

    The steps are those of Kafka's broker when it serves a fetch or asks for an offset by time:
    choose the segment, search its sparse indexes, scan a few batch headers, walk the records of one
    batch. An index that is missing or wrong is built in memory first, and the step says so.

    \b
    Examples:
      stratalog explain /var/lib/kafka/data/orders-3 --offset 123456
      stratalog explain orders:3 -d /var/lib/kafka/data --time 2024-05-01T12:30:00
      stratalog explain /var/lib/kafka/data/orders-3 -o 123456 --json | jq .step

    With --json each object has a step: segment, index, scan, record, and at last total and found.
    A look-up that meets damage has its steps up to there, and at last error: file, position and
    reason.
    """
    question = question_of(offset, time)
    is_found = is_damaged = False
    for at, view in enumerate(open_targets(target, log_dir or [])):
        if at and not as_json:
            print()
        trace = Trace()
        with view:
            try:
                answer = _answer(view, question, trace)
            except CorruptError as error:
                is_damaged = True
                _print_damage(view, trace, error, as_json=as_json)
                continue
            is_found |= answer.location is not None
            _print_answer(answer, trace, Look(key_format, value_format), as_json=as_json)
    if is_damaged or not is_found:
        raise typer.Exit(1)


def _answer(view: PartitionView, question: Question, trace: Trace) -> Answer:
    if question.offset is not None:
        return answer_offset(view, question.offset.resolve(view), trace)
    return answer_time(view, question.timestamp or 0, trace)


def _print_answer(answer: Answer, trace: Trace, look: Look, *, as_json: bool) -> None:
    view, found = answer.view, answer.location
    totals = totals_of(
        trace, batch_bytes=found.header.size_bytes if found else 0, log_bytes=view.size_bytes
    )
    if as_json:
        for row in _rows(answer, trace, totals, look):
            print(json_line(row))
    else:
        codec = codec_name(found.header.codec_id) if found else "none"
        record = [] if found is None else [answer.headline, *look.lines(found)]
        _print_story(view, trace, codec, [record, [f"Total: {totals}"]])
    if found is None:
        report_error(answer.headline)


def _print_damage(view: PartitionView, trace: Trace, error: CorruptError, *, as_json: bool) -> None:
    """The steps that led there, then what was met."""
    if as_json:
        for row in (*_step_rows(view, trace), _error_row(view, error)):
            print(json_line(row))
    else:
        _print_story(view, trace, "none", [])
    report_error(str(error))


# -- JSON


def _rows(answer: Answer, trace: Trace, totals: Totals, look: Look) -> Iterator[dict[str, Any]]:
    names = answer.view.topic_partition._asdict()
    yield from _step_rows(answer.view, trace)
    yield {"step": "total", **names, **json_names(asdict(totals))}
    nothing = {"file": None, "batch": None, "record": None}
    found = nothing if answer.location is None else look.row(answer.location)
    yield {"step": "found", **names, "asked": answer.asked, **found}


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
    if isinstance(step, SegmentStep):
        return {
            "file": str(step.path),
            "baseOffset": step.base_offset,
            "compared": step.compared,
            "reason": step.reason,
        }
    if isinstance(step, IndexStep):
        return {
            "file": str(step.path),
            "index": step.kind,
            "origin": step.origin,
            "entries": step.entries,
            "target": step.target,
            "probes": [asdict(probe) for probe in step.probes],
            "found": None if step.found is None else asdict(step.found),
        }
    if isinstance(step, ScanStep):
        return {
            "file": str(step.path),
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
    return _record_row(step)


def _record_row(step: RecordStep) -> dict[str, Any]:
    return json_names(asdict(step))


# -- text


def _print_story(
    view: PartitionView, trace: Trace, codec: str, end: Sequence[Sequence[str]]
) -> None:
    """`codec` is that of the batch found; `end` are the paragraphs below the steps."""
    is_terminal = sys.stdout.isatty()
    sections = sections_of(
        trace,
        bases=view.segments.bases,
        codec=codec,
        glyphs=_terminal_glyphs() if is_terminal else ASCII,
    )
    head = (
        f"{label_of(view.topic_partition)}: {counted(len(view.segments), 'segment')}, "
        f"{human_size(view.size_bytes)}, log start offset {view.log_start_offset}, "
        f"log end offset {view.log_end_offset}"
    )
    if is_terminal:
        _print_rich(head, sections, end)
    else:
        print("\n".join(_plain(head, sections, end)))


def _terminal_glyphs() -> Glyphs:
    room = shutil.get_terminal_size().columns - CELLS_BESIDE_BAR
    return UNICODE._replace(cells=max(8, min(BAR_CELLS, room)))


def _plain(head: str, sections: Sequence[Section], end: Sequence[Sequence[str]]) -> Iterator[str]:
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


def _print_rich(head: str, sections: Sequence[Section], end: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415  # only a terminal pays for rich
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

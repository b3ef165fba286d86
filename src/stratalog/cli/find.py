"""`stratalog find`: from an offset or a time to a file, a position and a record."""

from __future__ import annotations

import time as clock
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stratalog.cli.arguments import (
    KeyFormatOption,
    OffsetOption,
    SearchedDirsOption,
    TargetArgument,
    TimeOption,
    ValueFormatOption,
)
from stratalog.cli.describe import Look, time_text
from stratalog.cli.inventory import label_of
from stratalog.cli.output import json_line, report_error
from stratalog.cli.targets import open_targets
from stratalog.cli.when import NotAPointError, Point, parse_offset, parse_time
from stratalog.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.reader import Location
    from stratalog.storage.trace import Trace


FAILS_WHEN = "no partition has an answer, or something could not be read"


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    target: TargetArgument,
    log_dir: SearchedDirsOption = None,
    offset: OffsetOption = None,
    time: TimeOption = None,
    max_timestamp: Annotated[
        bool, typer.Option("--max-timestamp", help="The first record with the largest timestamp.")
    ] = False,
    key_format: KeyFormatOption = "utf-8",
    value_format: ValueFormatOption = "utf-8",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, one per partition.")
    ] = False,
) -> None:
    """Find where an offset or a time lies: file, position, record.

    An offset that compaction removed leads to the next one there is. Of several partitions each
    gives its answer.

    \b
    Examples:
      stratalog find /var/lib/kafka/data/orders-3 --offset 123456
      stratalog find orders:3 -d /var/lib/kafka/data --time 2024-05-01T12:30:00
      stratalog find orders -d /disk1 -d /disk2 --max-timestamp --json

    With --json the keys are topic, partition, asked, file, batch and record; names inside are those
    of dump. What was not found is null.
    """
    question = question_of(offset, time, is_max_timestamp=max_timestamp)
    look = Look(key_format, value_format)
    answers = [_answer(view, question) for view in open_targets(target, log_dir or [])]
    for answer in answers:
        if as_json:
            print(json_line(_row(answer, look)))
        elif answer.location is not None:
            print("\n".join([answer.headline, *look.lines(answer.location)]))
        if answer.location is None:
            report_error(answer.headline)
    if not any(answer.location for answer in answers):
        raise typer.Exit(1)


class Question(NamedTuple):
    """What to look for; exactly one is given."""

    offset: Point | None = None
    timestamp: int | None = None

    @property
    def is_max_timestamp(self) -> bool:
        return self.offset is None and self.timestamp is None


class Answer(NamedTuple):
    """What one partition said."""

    view: PartitionView
    asked: dict[str, Any]
    headline: str
    location: Location | None


def question_of(
    offset: str | None, time: str | None, *, is_max_timestamp: bool | None = None
) -> Question:
    """Raises a usage error unless exactly one question is asked.

    `is_max_timestamp` is None for a command that has no such option.
    """
    if sum((offset is not None, time is not None, bool(is_max_timestamp))) != 1:
        choice = "--offset, --time and --max-timestamp"
        if is_max_timestamp is None:
            choice = "--offset and --time"
        raise typer.BadParameter(f"give one of {choice}")
    try:
        if offset is not None:
            return Question(offset=parse_offset(offset))
        if time is not None:
            return Question(timestamp=parse_time(time, now_ms=clock.time_ns() // 1_000_000))
    except NotAPointError as error:
        raise typer.BadParameter(str(error)) from None
    return Question()


def _answer(view: PartitionView, question: Question) -> Answer:
    with view:
        if question.offset is not None:
            return answer_offset(view, question.offset.resolve(view))
        if question.timestamp is not None:
            return answer_time(view, question.timestamp)
        hit = view.find_max_timestamp()
        name = label_of(view.topic_partition)
        asked = {"maxTimestamp": True}
        if hit is None:
            return Answer(view, asked, f"{name}: no record has a timestamp", None)
        headline = f"{name}: the largest timestamp, {time_text(hit.timestamp)}"
        return Answer(view, asked, headline, view.locate(hit.offset))


def answer_offset(view: PartitionView, offset: int, trace: Trace | None = None) -> Answer:
    """Look for an offset."""
    name, asked = label_of(view.topic_partition), {"offset": offset}
    try:
        location = view.locate(offset, trace)
    except OffsetOutOfRangeError as error:
        return Answer(view, asked, f"{name}: {error}", None)
    headline = f"{name}: offset {offset}"
    if location is None:
        headline += " is the log end offset: the next record will get it"
    elif location.record.offset != offset:
        headline += (
            f" has no record (compaction leaves such holes); the next is {location.record.offset}"
        )
    return Answer(view, asked, headline, location)


def answer_time(view: PartitionView, timestamp: int, trace: Trace | None = None) -> Answer:
    """Look for a time."""
    name, asked = label_of(view.topic_partition), {"timestamp": timestamp}
    hit = view.find_time(timestamp, trace)
    if hit is None:
        headline = f"{name}: no record at or after {time_text(timestamp)}"
        return Answer(view, asked, headline, None)
    headline = (
        f"{name}: the first record at or after {time_text(timestamp)} has offset {hit.offset}"
    )
    return Answer(view, asked, headline, view.locate(hit.offset))


def _row(answer: Answer, look: Look) -> dict[str, Any]:
    nothing = {"file": None, "batch": None, "record": None}
    found = nothing if answer.location is None else look.row(answer.location)
    return {**answer.view.topic_partition._asdict(), "asked": answer.asked, **found}

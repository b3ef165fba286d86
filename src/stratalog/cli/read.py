"""`stratalog read`: records of a topic, from an offset or a time on, and as they arrive."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from stratalog.cli.arguments import SearchedDirsOption, TargetArgument
from stratalog.cli.batchless import Junk, Zeros, batchless
from stratalog.cli.following import Tail
from stratalog.cli.output import report_error, use_colour
from stratalog.cli.record_text import (
    FIELD_NAMES,
    TOKENS_HELP,
    BadTemplateError,
    json_printer,
    line_of_fields,
    separator_of,
    shown_as,
    template,
    terminal_printer,
)
from stratalog.cli.targets import open_targets
from stratalog.cli.when import (
    EARLIEST,
    POINT_HELP,
    TIME_HELP,
    NotAPointError,
    Point,
    parse_point,
    parse_time,
)
from stratalog.errors import (
    FlushedCorruptionError,
    NotALogDirError,
    OffsetOutOfRangeError,
    StratalogError,
)
from stratalog.log.reader import NO_LIMIT, IsolationLevel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.cli.record_text import Printer
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.reader import Skipped

FAILS_WHEN: Final = "something could not be found or read, or was skipped"
POLL_SECONDS: Final = 0.2
INTERRUPTED: Final = 130

FormatName = Literal["raw", "utf-8", "hex", "base64", "json", "int32", "int64"]
Isolation = Literal["read_uncommitted", "read_committed"]


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    target: TargetArgument,
    log_dir: SearchedDirsOption = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", "--from-offset", "-o", metavar="POINT", help=f"Where to begin: {POINT_HELP}."
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to", "--to-offset", metavar="POINT", help="Where to end, this point not included."
        ),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option("--from-time", metavar="TIME", help=f"Begin at a time: {TIME_HELP}."),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="TIME",
            help="End before the first record of this time or later.",
        ),
    ] = None,
    max_messages: Annotated[
        int | None,
        typer.Option(
            "--max-messages", "-n", "--limit", metavar="N", min=0, help="End after N records."
        ),
    ] = None,
    isolation_level: Annotated[
        Isolation,
        typer.Option(
            "--isolation-level",
            help="read_committed leaves out aborted transactions and ends at the first open one.",
        ),
    ] = "read_uncommitted",
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="At the end, wait for more. Ctrl-C ends it, with exit status 0."
        ),
    ] = False,
    skip_corrupt: Annotated[
        bool,
        typer.Option(
            "--skip-corrupt",
            help="Go on after damage; what was skipped is told, and the exit status is 1.",
        ),
    ] = False,
    key_format: Annotated[
        FormatName, typer.Option("--key-format", help="How to show keys; raw: as they are.")
    ] = "raw",
    value_format: Annotated[
        FormatName, typer.Option("--value-format", help="How to show values, also of headers.")
    ] = "raw",
    headers: Annotated[bool, typer.Option("--headers", help="Show headers as well.")] = False,
    fields: Annotated[
        str | None,
        typer.Option(
            "--print", metavar="FIELD,...", help=f"What to print of {', '.join(FIELD_NAMES)}."
        ),
    ] = None,
    separator: Annotated[
        str, typer.Option("--separator", metavar="TEXT", help="What goes between fields.")
    ] = "\\t",
    format_text: Annotated[
        str | None,
        typer.Option("--format", metavar="TEMPLATE", help=f"As kcat's -f: {TOKENS_HELP}."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print records from an offset or a time on, and follow a growing log.

    A line has the value of a record, as it does in Kafka's console consumer; on a terminal it also
    has offset, time and key. A null key or value is printed as null. Several partitions are read
    one after the other, or in turns with --follow.

    A time stands for the first record at or after it. Where timestamps are out of order, older
    records may follow, as they do for Kafka's consumers.

    \b
    Examples:
      stratalog read orders -d /var/lib/kafka/data
      stratalog read /var/lib/kafka/data/orders-3 --from -10
      stratalog read orders:3 -d /disk1 -d /disk2 --from 2024-05-01 --to 2024-05-02
      stratalog read orders -d /var/lib/kafka/data --from latest --follow
      stratalog read /backup/orders-0 --print time,key,value --separator ' | '
      stratalog read /backup/orders-0 --format '%p:%o %k=%s\\n'
      stratalog read /backup/orders-0 --json | jq .value

    With --json the keys are topic, partition, offset, timestampType, timestamp (milliseconds),
    key, value and headers (a list of key and value); null is null. Bytes that are no UTF-8 want a
    format such as base64.
    """
    style = _Style(
        formats=(key_format, value_format),
        fields=None if fields is None else [name.strip() for name in fields.split(",")],
        separator=separator,
        template=format_text,
        with_headers=headers,
        as_json=as_json,
    )
    bounds = _point(start, from_time, "--from", EARLIEST), _point(end, to_time, "--to", None)
    views = open_targets(target, log_dir or [])
    reader = _Reader(
        style.printer(with_place=len(views) > 1),
        NO_LIMIT if max_messages is None else max_messages,
    )
    isolation = IsolationLevel(isolation_level)
    try:
        tails = [reader.tail(view, bounds, isolation, skip_corrupt=skip_corrupt) for view in views]
        if follow:
            reader.follow(tails)
        else:
            reader.read(tails)
    except KeyboardInterrupt:
        sys.stdout.buffer.flush()
        raise typer.Exit(0 if follow else INTERRUPTED) from None
    if reader.problems:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Style:
    """How records are to be printed."""

    formats: tuple[str, str]
    """Of keys and of values."""
    fields: list[str] | None
    separator: str
    template: str | None
    with_headers: bool
    as_json: bool

    def printer(self, *, with_place: bool) -> Printer:
        """Raises a usage error when it cannot be done."""
        if sum((self.as_json, self.fields is not None, self.template is not None)) > 1:
            raise typer.BadParameter("give one of --json, --print and --format")
        try:
            if self.as_json:
                return json_printer(*self.formats)
            if self.template is not None:
                return template(self.template, *self.formats)
            if self.fields is None and sys.stdout.isatty():
                return terminal_printer(
                    *self.formats,
                    with_place=with_place,
                    with_headers=self.with_headers,
                    colour=use_colour(sys.stdout),
                )
            return self._line_printer()
        except BadTemplateError as error:
            raise typer.BadParameter(str(error)) from None

    def _line_printer(self) -> Printer:
        fields = ["value"] if self.fields is None else self.fields
        if self.with_headers and "headers" not in fields:
            fields = ["headers", *fields]
        key, value = map(shown_as, self.formats)
        return line_of_fields(fields, separator_of(self.separator), key, value)


def _point(point: str | None, when: str | None, flag: str, default: Point | None) -> Point | None:
    """What a pair such as `--from` and `--from-time` says."""
    now_ms = time.time_ns() // 1_000_000
    try:
        if point is not None and when is not None:
            raise typer.BadParameter(f"give {flag} or {flag}-time, not both")
        if when is not None:
            return Point("time", parse_time(when, now_ms=now_ms))
        return default if point is None else parse_point(point, now_ms=now_ms)
    except NotAPointError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


class _Reader:
    """Prints what tails give, up to a number of records over all of them."""

    def __init__(self, printer: Printer, records_max: int) -> None:
        self.problems = 0
        self._printer = printer
        self._left = records_max

    def tail(
        self,
        view: PartitionView,
        bounds: tuple[Point | None, Point | None],
        isolation: IsolationLevel,
        *,
        skip_corrupt: bool,
    ) -> Tail:
        """Raises when the log does not reach the place to begin at."""
        start, end = bounds
        position = (start or EARLIEST).resolve(view)
        if not view.log_start_offset <= position <= view.log_end_offset:
            problem = OffsetOutOfRangeError(
                position,
                log_start_offset=view.log_start_offset,
                log_end_offset=view.log_end_offset,
            )
            raise StratalogError(f"{view.path}: {problem}")
        return Tail(
            view,
            position,
            None if end is None else end.resolve(view),
            isolation,
            self._on_skip if skip_corrupt else None,
            _notice,
        )

    def read(self, tails: Sequence[Tail]) -> None:
        """All of each, one after the other."""
        for tail in tails:
            with tail.view:
                if self._left:
                    self._check_beginning(tail, is_zero_told=True)
                self._print_new(tail)
                if self._left:
                    self._check_end(tail)

    def follow(self, tails: Sequence[Tail]) -> None:
        """Until enough is read or nothing can come: ends reached, partitions deleted."""
        waiting = list(tails)
        for tail in tails:
            self._check_beginning(tail, is_zero_told=False)
        while True:
            for tail in waiting:
                self._print_new(tail)
            sys.stdout.buffer.flush()
            waiting = [tail for tail in waiting if not tail.is_done]
            if not waiting or not self._left:
                return
            time.sleep(POLL_SECONDS)
            waiting = [tail for tail in waiting if self._is_there(tail)]

    def _check_beginning(self, tail: Tail, *, is_zero_told: bool) -> None:
        """Raise for bytes that are no log at all; with --skip-corrupt, tell of them.

        What looks like junk may be a batch that is just being written, so it gets a second look.
        """
        found = batchless(tail.view)
        if isinstance(found, Junk):
            time.sleep(POLL_SECONDS)
            tail.look_again()
            found = batchless(tail.view)
        if isinstance(found, Zeros):
            if is_zero_told:
                _notice(str(found))
        elif found is not None:
            if tail.on_skip is None:
                raise found.error
            tail.on_skip(found.skipped)

    def _check_end(self, tail: Tail) -> None:
        """Raise for a log that ends in damage; with --skip-corrupt, tell of it."""
        try:
            if tail.end_offset is None or tail.end_offset >= tail.view.log_end_offset:
                tail.view.check_end()
        except FlushedCorruptionError as error:
            if tail.on_skip is None:
                raise
            self._problem(str(error))

    def _is_there(self, tail: Tail) -> bool:
        try:
            tail.poll()
        except NotALogDirError:
            self._problem(f"{tail.view.path}: the partition was deleted")
            return False
        return True

    def _print_new(self, tail: Tail) -> None:
        if not self._left:
            return
        write, printer, where = sys.stdout.buffer.write, self._printer, tail.view.topic_partition
        try:
            for record in tail.take(self._left):
                write(printer(where, record))
                self._left -= 1
        finally:
            sys.stdout.buffer.flush()

    def _on_skip(self, skipped: Skipped) -> None:
        sys.stdout.buffer.flush()
        self._problem(str(skipped))

    def _problem(self, text: str) -> None:
        self.problems += 1
        report_error(text)


def _notice(text: str) -> None:
    sys.stdout.buffer.flush()
    print(f"stratalog: {text}", file=sys.stderr, flush=True)

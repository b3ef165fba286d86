"""`stratalog read`: records of a topic from an offset or time on, and new ones as they arrive."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from stratalog.cli.arguments import (
    JsonOption,
    LogDirOption,
    SkipCorruptOption,
    argument,
    flag,
    key_bytes,
    option,
    reads_stores,
    time_of,
    time_option,
)
from stratalog.cli.offset_spec import EARLIEST, POINT_HELP, Point, parse_point
from stratalog.cli.output import Progress, report_error, report_line, use_colour
from stratalog.cli.records import (
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
from stratalog.errors import (
    FlushedCorruptionError,
    NotALogDirError,
    OffsetOutOfRangeError,
    SegmentGoneError,
)
from stratalog.format.times import InvalidTimeError, current_time_ms
from stratalog.log.reader import NO_LIMIT, IsolationLevel
from stratalog.maintenance.logs_without_batches import NotALog, OnlyZeros, no_batches_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stratalog.cli.records import Printer
    from stratalog.format.record import Record
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.reader import Skipped
    from stratalog.log.record_query import RecordQuery

FAILS_WHEN: Final = "anything could not be found or read, or was skipped as corrupt"
POLL_SECONDS: Final = 0.2
INTERRUPTED: Final = 130

FormatName = Literal["raw", "utf-8", "hex", "base64", "json", "int32", "int64"]
Isolation = Literal["read_uncommitted", "read_committed"]


@reads_stores
def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    where: Annotated[
        list[str] | None,
        argument(
            "WHERE",
            "Topics or partitions (TOPIC, TOPIC:PARTITION), with their log directory before "
            "them, in --log-dir, or as a path (DIR/TOPIC). Also partition directories and .log "
            "files; with --key or --grep, entire log directories.",
        ),
    ] = None,
    log_dir: LogDirOption = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            "--from-offset",
            "-o",
            metavar="POINT",
            help=(f"Where to start: {POINT_HELP}. Default: earliest."),
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            "--to-offset",
            metavar="POINT",
            help=(
                "Where to stop (exclusive); takes the same forms as --from. Default: the end of "
                "the log."
            ),
        ),
    ] = None,
    from_time: Annotated[str | None, time_option("--from-time", "Start at this time")] = None,
    to_time: Annotated[
        str | None,
        option("--to-time", "TIME", "Stop before the first record at or after this time."),
    ] = None,
    key: Annotated[
        str | None,
        option("--key", "KEY", "Only records with this key, given in the format of --key-format."),
    ] = None,
    grep: Annotated[
        str | None,
        option(
            "--grep",
            "TEXT",
            "Only records with this text in the key, the value or a header.",
            short="-g",
        ),
    ] = None,
    ignore_case: Annotated[
        bool, flag("--ignore-case", "With --grep: ignore case.", short="-i")
    ] = False,
    max_messages: Annotated[
        int | None,
        typer.Option(
            "--max-messages", "-n", "--limit", metavar="N", min=0, help="Stop after N records."
        ),
    ] = None,
    isolation_level: Annotated[
        Isolation,
        typer.Option(
            "--isolation-level",
            help=(
                "read_committed omits aborted transactions and stops at the first open transaction."
            ),
        ),
    ] = "read_uncommitted",
    follow: Annotated[
        bool,
        flag(
            "--follow",
            "At the end, wait for new records. Stop with Ctrl-C (exit status 0).",
            short="-f",
        ),
    ] = False,
    skip_corrupt: SkipCorruptOption = False,
    key_format: Annotated[
        FormatName,
        typer.Option(
            "--key-format", help="Format of printed keys; raw prints the bytes unchanged."
        ),
    ] = "raw",
    value_format: Annotated[
        FormatName,
        typer.Option("--value-format", help="Format of printed values and header values."),
    ] = "raw",
    headers: Annotated[bool, flag("--headers", "Also print record headers.")] = False,
    fields: Annotated[
        str | None,
        option(
            "--print",
            "FIELD,...",
            f"Fields to print, separated by commas: {', '.join(FIELD_NAMES)}.",
        ),
    ] = None,
    separator: Annotated[str, option("--separator", "TEXT", "Separator between fields.")] = "\\t",
    format_text: Annotated[
        str | None, option("--format", "TEMPLATE", f"Output template, as kcat's -f: {TOKENS_HELP}.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print records, starting at an offset or time; follow a growing log.

    Each line is the value of a record, as Kafka's console consumer prints it. On a terminal, the
    line also has offset, time and key. A null key or value is printed as null. Several partitions
    are read one after the other; with --follow, in turn.

    If you start at a time, output begins with the first record at or after it. If timestamps are
    out of order, older records may follow, as with Kafka's consumers.

    \b
    Examples:
      stratalog read /var/lib/kafka/data orders
      stratalog read /var/lib/kafka/data/orders-3 --from -10
      stratalog read orders:3 -d /disk1 -d /disk2 --from 2024-05-01 --to 2024-05-02
      stratalog read /var/lib/kafka/data orders payments --key customer-17
      stratalog read /var/lib/kafka/data --grep 'order 4711' --from 14:05 --json
      stratalog read /var/lib/kafka/data orders --from latest --follow
      stratalog read /backup/orders-0 --print time,key,value --separator ' | '
      stratalog read /backup/orders-0 --format '%p:%o %k=%s\\n'
      stratalog read /backup/orders-0 --json | jq .value
      stratalog read /backup orders --json | stratalog ingest - --to /data --partitions 3

    With --key or --grep, the whole range is read and only matching records are printed. If you give
    a log directory without topics, all its topics are searched except internal ones.

    With --json, each object has topic, partition, offset, timestamp (milliseconds), timestampType,
    key, value and headers (a list of key and value). Bytes that are not UTF-8 become an object
    {"base64": "…"}, unless you choose a format. `stratalog export` writes the same lines, and
    `stratalog ingest` restores the records from them.
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
    query = _query(key, key_format, grep, ignores_case=ignore_case)
    if not where and (query is None or not log_dir):
        raise typer.BadParameter("name a topic, a partition directory or a .log file")
    views = open_targets(where or [], log_dir or [], takes_directories=query is not None)
    reader = _Reader(
        style.printer(with_place=len(views) > 1),
        NO_LIMIT if max_messages is None else max_messages,
        query,
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
    """How to print records."""

    formats: tuple[str, str]
    """Formats of keys and of values."""
    fields: list[str] | None
    separator: str
    template: str | None
    with_headers: bool
    as_json: bool

    def printer(self, *, with_place: bool) -> Printer:
        """Raises a usage error if the options contradict each other."""
        if sum((self.as_json, self.fields is not None, self.template is not None)) > 1:
            raise typer.BadParameter("give only one of --json, --print and --format")
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


def _query(
    key: str | None, key_format: str, text: str | None, *, ignores_case: bool
) -> RecordQuery | None:
    """What --key and --grep ask for; None if they are not given."""
    if ignores_case and text is None:
        raise typer.BadParameter("--ignore-case requires --grep")
    if key is None and text is None:
        return None
    from stratalog.log.record_query import RecordQuery  # noqa: PLC0415  # loads kernels

    return RecordQuery(
        None if key is None else key_bytes(key, key_format),
        None if text is None else text.encode("utf-8", "surrogateescape"),
        ignores_case,
    )


def _point(point: str | None, when: str | None, flag: str, default: Point | None) -> Point | None:
    """The position given with a pair of flags such as `--from` and `--from-time`."""
    if point is not None and when is not None:
        raise typer.BadParameter(f"give {flag} or {flag}-time, not both")
    if (timestamp := time_of(when, f"{flag}-time")) is not None:
        return Point("time", timestamp)
    try:
        return default if point is None else parse_point(point, now_ms=current_time_ms())
    except InvalidTimeError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


class _Reader:
    """Prints records of one or several partitions, up to a total number."""

    def __init__(
        self, printer: Printer, records_max: int, query: RecordQuery | None = None
    ) -> None:
        self.problems = 0
        self._printer = printer
        self._left = records_max
        self._query = query

    def tail(
        self,
        view: PartitionView,
        bounds: tuple[Point | None, Point | None],
        isolation: IsolationLevel,
        *,
        skip_corrupt: bool,
    ) -> Tail:
        """Raises if the start is outside the log."""
        start, end = bounds
        position = (start or EARLIEST).resolve(view)
        try:
            view.check_range(position)
        except OffsetOutOfRangeError:
            raise OffsetOutOfRangeError(
                position,
                log_start_offset=view.log_start_offset,
                log_end_offset=view.log_end_offset,
                path=view.path,
            ) from None
        return Tail(
            view,
            position,
            None if end is None else end.resolve(view),
            isolation,
            self._on_skip if skip_corrupt else None,
            _notice,
            self._query,
        )

    def read(self, tails: Sequence[Tail]) -> None:
        """Read one partition after the other."""
        for tail in tails:
            with tail.view:
                if self._left:
                    self._check_beginning(tail, reports_zeros=True)
                with _search_progress(tail):
                    self._print_new(tail)
                if self._left:
                    self._check_end(tail)

    def follow(self, tails: Sequence[Tail]) -> None:
        """Read until enough records are printed, all ends are reached or all logs are deleted."""
        waiting = list(tails)
        for tail in tails:
            self._check_beginning(tail, reports_zeros=False)
        while True:
            for tail in waiting:
                self._print_new(tail)
            sys.stdout.buffer.flush()
            waiting = [tail for tail in waiting if not tail.is_done]
            if not waiting or not self._left:
                return
            time.sleep(POLL_SECONDS)
            waiting = [tail for tail in waiting if self._is_there(tail)]

    def _check_beginning(self, tail: Tail, *, reports_zeros: bool) -> None:
        """Raise if the file is not a log at all; with --skip-corrupt, report it.

        Such bytes may be a batch that is just being written, so they are checked twice.
        """
        found = no_batches_reason(tail.view)
        if isinstance(found, NotALog):
            time.sleep(POLL_SECONDS)
            tail.refresh()
            found = no_batches_reason(tail.view)
        if isinstance(found, OnlyZeros):
            if reports_zeros:
                _notice(str(found))
        elif found is not None:
            if tail.on_skip is None:
                raise found.error
            tail.on_skip(found.skipped)

    def _check_end(self, tail: Tail) -> None:
        """Raise if the end of the log is corrupt; with --skip-corrupt, report it."""
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


@contextmanager
def _search_progress(tail: Tail) -> Iterator[None]:
    """A bar while a partition is searched: there may be no output for a while."""
    view = tail.view
    start, size_bytes = tail.position, view.size_bytes
    progress = Progress(size_bytes)

    def update(offset: int) -> None:
        progress.update(size_bytes * (offset - start) // max(1, view.log_end_offset - start))

    tail.on_progress = update
    try:
        yield
    finally:
        progress.clear()


def _notice(text: str) -> None:
    sys.stdout.buffer.flush()
    report_line(f"stratalog: {text}")


# -- following a log that changes

_ATTEMPTS_MAX: Final = 5
_POLLS_PER_REFRESH: Final = 25


@dataclass
class Tail:
    """A position in one partition that advances as records are read.

    Between listing the directory and reading a file, a broker may roll a segment, delete old ones
    or truncate the log. None of that is an error: the directory is listed again, and reading goes
    on at the next offset that exists. Offsets that were deleted before they were read are reported.
    """

    view: PartitionView
    position: int
    """The next offset to read."""
    end_offset: int | None
    """Exclusive; None for the end of the log."""
    isolation: IsolationLevel
    on_skip: Callable[[Skipped], None] | None
    on_notice: Callable[[str], None]
    query: RecordQuery | None = None
    """Which records to take; None for all."""
    on_progress: Callable[[int], None] = lambda _: None
    """Called with offsets that were searched."""
    _seen: tuple[int, ...] | None = None
    _polls: int = 0

    @property
    def is_done(self) -> bool:
        """Whether the end offset is reached."""
        return self.end_offset is not None and self.position >= self.end_offset

    def take(self, records_max: int = NO_LIMIT) -> Iterator[Record]:
        """The records that exist now, from the position on."""
        failures = 0
        left = records_max
        while True:
            try:
                for record in self._read(left):
                    failures = 0
                    left -= 1
                    self.position = record.offset + 1
                    yield record
                if left > 0:
                    self.position = max(self.position, self._readable_end())
                return
            except (SegmentGoneError, OffsetOutOfRangeError):  # deleted before it could be read
                failures += 1
                if failures == _ATTEMPTS_MAX:
                    raise
                self.refresh()

    def poll(self) -> bool:
        """Refresh if the log may have changed. Raises NotALogDirError if it was deleted.

        A stat of the directory and one of the last segment show changes. But a preallocated file
        grows without changing its size, and file system clocks are coarse, so every now and then
        it is refreshed regardless.
        """
        self._polls += 1
        seen = self._signature()
        if seen == self._seen and self._polls % _POLLS_PER_REFRESH:
            return False
        self._seen = seen
        self.refresh()
        return True

    def _signature(self) -> tuple[int, ...]:
        found = []
        for path in (self.view.path, self.view.segments[len(self.view.segments) - 1].path):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            found += [stat.st_ino, stat.st_size, stat.st_mtime_ns]
        return tuple(found)

    def refresh(self) -> None:
        """List the directory again. Raises NotALogDirError if it was deleted."""
        self.view.refresh()
        start, end = self.view.log_start_offset, self.view.log_end_offset
        if self.position < start:
            self._notice(f"offsets {self.position} to {start - 1} were deleted before being read")
            self.position = start
        elif self.position > end:
            self._notice(
                f"the log was truncated to offset {end}, but was already read up to offset "
                f"{self.position}"
            )
            self.position = end

    def _read(self, records_max: int) -> Iterator[Record]:
        if self.query is not None:
            return islice(self._matching(self.query), records_max)
        return self.view.read(
            self.position,
            self.end_offset,
            isolation=self.isolation,
            max_records=records_max,
            on_skip=self.on_skip,
        )

    def _matching(self, query: RecordQuery) -> Iterator[Record]:
        from stratalog.log.record_query import matching_records  # noqa: PLC0415  # loads kernels

        with self.view.read_columns(
            self.position, self.end_offset, isolation=self.isolation, on_skip=self.on_skip
        ) as batches:
            for next_offset, records in matching_records(batches, query):
                yield from records
                self.on_progress(next_offset)

    def _readable_end(self) -> int:
        """End of what this isolation level may read, including control batches."""
        is_committed = self.isolation is IsolationLevel.READ_COMMITTED
        limit = self.view.last_stable_offset if is_committed else self.view.log_end_offset
        return limit if self.end_offset is None else min(limit, self.end_offset)

    def _notice(self, text: str) -> None:
        self.on_notice(f"{self.view.path}: {text}")

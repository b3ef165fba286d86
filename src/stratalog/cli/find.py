"""`stratalog find`: the file, position and record of an offset or time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stratalog.cli.arguments import (
    JsonOption,
    KeyFormatOption,
    LogDirOption,
    OffsetOption,
    TargetArgument,
    TimeOption,
    ValueFormatOption,
    flag,
    reads_stores,
    time_of,
    with_groups,
)
from stratalog.cli.offset_spec import Point, parse_offset
from stratalog.cli.output import json_line, report_error
from stratalog.cli.records import LocationPrinter, time_text
from stratalog.cli.targets import open_targets
from stratalog.errors import OffsetOutOfRangeError
from stratalog.format.times import InvalidTimeError
from stratalog.partitions.inventory import label_of

if TYPE_CHECKING:
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.reader import Location
    from stratalog.storage.trace import Trace


FAILS_WHEN = "nothing was found, or a file could not be read"


class LookupArguments(NamedTuple):
    """Where to look, and for what."""

    target: TargetArgument
    log_dir: LogDirOption = None
    offset: OffsetOption = None
    time: TimeOption = None

    def query(self, *, is_max_timestamp: bool | None = None) -> LookupQuery:
        """Raises a usage error unless exactly one thing to look for is given.

        `is_max_timestamp` is None for a command without that option.
        """
        if sum((self.offset is not None, self.time is not None, bool(is_max_timestamp))) != 1:
            choice = "--offset, --time or --max-timestamp"
            if is_max_timestamp is None:
                choice = "--offset or --time"
            raise typer.BadParameter(f"give exactly one of {choice}")
        timestamp = time_of(self.time, "--time")
        try:
            offset = None if self.offset is None else parse_offset(self.offset)
        except InvalidTimeError as error:
            raise typer.BadParameter(str(error), param_hint="--offset") from None
        return LookupQuery(offset, timestamp)

    def views(self) -> list[PartitionView]:
        """The partitions to search."""
        return open_targets(self.target, self.log_dir or [])


@reads_stores
@with_groups
def run(
    *,
    lookup: LookupArguments,
    max_timestamp: Annotated[
        bool, flag("--max-timestamp", "Find the first record with the largest timestamp.")
    ] = False,
    key_format: KeyFormatOption = "utf-8",
    value_format: ValueFormatOption = "utf-8",
    as_json: JsonOption = False,
) -> None:
    """Find the file, position and record of an offset or time.

    If no record has the offset, for example after compaction, the next record is found. If a target
    has several partitions, each of them is searched.

    \b
    Examples:
      stratalog find /var/lib/kafka/data/orders-3 --offset 123456
      stratalog find orders:3 -d /var/lib/kafka/data --time 2024-05-01T12:30:00
      stratalog find orders -d /disk1 -d /disk2 --max-timestamp --json

    With --json, the command prints one object per partition: topic, partition, asked, file, batch
    and record. Fields of batch and record have the same names as in dump. A value that was not
    found is null.
    """
    query = lookup.query(is_max_timestamp=max_timestamp)
    printer = LocationPrinter(key_format, value_format)
    results = [_look_up(view, query) for view in lookup.views()]
    for result in results:
        if as_json:
            print(json_line(result.row(printer)))
        elif result.location is not None:
            print("\n".join([result.headline, *printer.lines(result.location)]))
        if result.location is None:
            report_error(result.headline)
    if not any(result.location for result in results):
        raise typer.Exit(1)


class LookupQuery(NamedTuple):
    """An offset or a time; without both, the largest timestamp."""

    offset: Point | None = None
    timestamp: int | None = None


class LookupResult(NamedTuple):
    """What was found in one partition."""

    view: PartitionView
    asked: dict[str, Any]
    headline: str
    location: Location | None

    def row(self, printer: LocationPrinter) -> dict[str, Any]:
        """As JSON."""
        place = self.view.topic_partition._asdict()
        return {**place, "asked": self.asked, **printer.row(self.location)}


def _look_up(view: PartitionView, query: LookupQuery) -> LookupResult:
    with view:
        if query.offset is not None:
            return look_up_offset(view, query.offset.resolve(view))
        if query.timestamp is not None:
            return look_up_time(view, query.timestamp)
        hit = view.find_max_timestamp()
        name = label_of(view.topic_partition)
        asked = {"maxTimestamp": True}
        if hit is None:
            return LookupResult(view, asked, f"{name}: no record has a timestamp", None)
        headline = f"{name}: the largest timestamp is {time_text(hit.timestamp)}"
        return LookupResult(view, asked, headline, view.locate(hit.offset))


def look_up_offset(view: PartitionView, offset: int, trace: Trace | None = None) -> LookupResult:
    """The record at an offset, or the next one."""
    name, asked = label_of(view.topic_partition), {"offset": offset}
    try:
        location = view.locate(offset, trace)
    except OffsetOutOfRangeError as error:
        return LookupResult(view, asked, f"{name}: {error}", None)
    headline = f"{name}: offset {offset}"
    if location is None and offset < view.log_end_offset:
        headline += (
            f" has no record, as after compaction, nor has a later one; the log end offset is "
            f"{view.log_end_offset}"
        )
    elif location is None:
        headline += " is the log end offset; the next record will have it"
    elif location.record.offset != offset:
        headline += (
            f" has no record, as after compaction; the next record is at {location.record.offset}"
        )
    return LookupResult(view, asked, headline, location)


def look_up_time(view: PartitionView, timestamp: int, trace: Trace | None = None) -> LookupResult:
    """The first record at or after a time."""
    name, asked = label_of(view.topic_partition), {"timestamp": timestamp}
    hit = view.find_time(timestamp, trace)
    if hit is None:
        headline = f"{name}: no record at or after {time_text(timestamp)}"
        return LookupResult(view, asked, headline, None)
    headline = (
        f"{name}: the first record at or after {time_text(timestamp)} has offset {hit.offset}"
    )
    return LookupResult(view, asked, headline, view.locate(hit.offset))

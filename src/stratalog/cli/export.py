"""`stratalog export`: topics into Parquet or lines of JSON, by topic and day."""

from __future__ import annotations

import time as clock
from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stratalog.cli.arguments import LogDirOption
from stratalog.cli.bulk import (
    BulkProgress,
    ConfOption,
    JsonOption,
    MasterOption,
    WhereArgument,
    key_values,
    result_text,
    workers_of,
)
from stratalog.cli.output import json_line, json_names
from stratalog.cli.tables import counted, human_size
from stratalog.cli.targets import check_place, targets_of
from stratalog.cli.when import TIME_HELP, NotAPointError, parse_time
from stratalog.errors import UnknownTopicOrPartitionError
from stratalog.format.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.bulk.export import ExportResult
    from stratalog.bulk.options import ReadOptions

Codec = Literal["none", "snappy", "lz4", "zstd", "gzip"]


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    where: WhereArgument = None,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Where files go; new or empty.")
    ] = ...,  # type: ignore[assignment]  # required
    log_dir: LogDirOption = None,
    format_: Annotated[
        Literal["parquet", "jsonl"], typer.Option("--format", help="What to write.")
    ] = "parquet",
    codec: Annotated[
        Codec | None, typer.Option("--codec", help="Of Parquet pages. Default: snappy.")
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Keys and values as strings, not as bytes (Parquet).")
    ] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Record headers too.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help=f"Begin at a time: {TIME_HELP}.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End before a time.")
    ] = None,
    committed: Annotated[
        bool, typer.Option("--read-committed", help="Without aborted transactions.")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="KEY=VALUE", help="Any option of spark.read.format('stratalog')."
        ),
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="DIR may have files already; add to them.")
    ] = False,
    by_date: Annotated[
        bool,
        typer.Option(
            "--by-date/--no-by-date",
            help="A directory for each day (UTC); or all in the order of offsets.",
        ),
    ] = True,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write topics as Parquet or lines of JSON, in directories by topic and day.

    Runs on the threads of this process; with --master on Spark, where every worker must see the
    log directories and DIR. Files come into place when all are written. Internal topics are left
    out unless named.

    \b
    Examples:
      stratalog export /var/lib/kafka/data --to /tmp/export
      stratalog export orders -d /var/lib/kafka/data --to orders.parquet --text
      stratalog export orders:3 -d /data --to out --since 2026-11-01 --until 2026-11-02
      stratalog export /mnt/backup --to /mnt/lake --master spark://host:7077

    With --json there is an object for each file, and a last one of kind summary.
    """
    from stratalog.bulk.export import FileSpec, plan_export, run_export  # noqa: PLC0415 - heavy
    from stratalog.spark.options import parse_read_options  # noqa: PLC0415

    check_place("--to", to)
    partitions = targets_of(where, log_dir).all_partitions()
    options = _read_options(partitions, since, until, is_committed=committed)
    if format_ == "jsonl" and (codec is not None or text):
        flag = "--text" if codec is None else "--codec"
        raise typer.BadParameter(f"{flag} is for Parquet; lines of JSON are text, and not packed")
    spec = FileSpec(format_, codec, text, by_date, headers, append)
    plan = plan_export(parse_read_options(key_values("--option", option or []), options), spec)
    with (
        BulkProgress(plan.size_bytes) as progress,
        workers_of("stratalog export", master, conf, progress) as workers,
    ):
        result = run_export(plan, to, workers)
    _print(result, to, as_json=as_json)


def _read_options(
    partitions: Sequence[Path], since: str | None, until: str | None, *, is_committed: bool
) -> ReadOptions:
    """What the flags select; of internal topics only one that is named."""
    from stratalog.bulk.options import ByTimestamp, ReadOptions, Subscription  # noqa: PLC0415
    from stratalog.log.reader import IsolationLevel  # noqa: PLC0415 - heavy

    found = [TopicPartition.parse(path.absolute().name) for path in partitions]
    wanted = [each for each in found if not each.topic.startswith("__") or len(found) == 1]
    if not wanted:
        raise UnknownTopicOrPartitionError("nothing to export: there are only internal topics")
    start_ms, end_ms = _time_ms(since), _time_ms(until)
    return ReadOptions(
        tuple(sorted({path.absolute().parent for path in partitions})),
        Subscription(assigned=tuple(wanted)),
        starting=None if start_ms is None else ByTimestamp(start_ms),
        ending=None if end_ms is None else ByTimestamp(end_ms),
        starting_or_latest=since is not None,
        isolation=IsolationLevel("read_committed" if is_committed else "read_uncommitted"),
    )


def _time_ms(text: str | None) -> int | None:
    try:
        return None if text is None else parse_time(text, now_ms=clock.time_ns() // 1_000_000)
    except NotAPointError as error:
        raise typer.BadParameter(str(error)) from None


def _print(result: ExportResult, to: Path, *, as_json: bool) -> None:
    if as_json:
        for file in result.files:
            print(json_line({"kind": "file", **json_names(file._asdict())}))
        summary = {
            "records": result.records,
            "size_bytes": result.size_bytes,
            "output_bytes": result.output_bytes,
            "files": len(result.files),
            "tasks": result.tasks,
            "seconds": round(result.seconds, 3),
        }
        print(json_line({"kind": "summary", **json_names(summary)}))
        return
    written = f"{counted(len(result.files), 'file')}, {human_size(result.output_bytes)}, in {to}"
    print(f"{result_text(result)}: {written}")

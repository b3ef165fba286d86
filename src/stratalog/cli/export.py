"""`stratalog export`: topics into Parquet or lines of JSON, by topic and day."""

from __future__ import annotations

import json
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

    from stratalog.spark.jobs.export import ExportResult

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
    from stratalog.spark.jobs.export import plan_export, run_export  # noqa: PLC0415 - heavy
    from stratalog.spark.jobs.export_files import FileSpec  # noqa: PLC0415

    check_place("--to", to)
    partitions = targets_of(where, log_dir).all_partitions()
    options = {
        **_ranges(since, until),
        **({"kafka.isolation.level": "read_committed"} if committed else {}),
        **key_values("--option", option or []),
    }
    if format_ == "jsonl" and (codec is not None or text):
        flag = "--text" if codec is None else "--codec"
        raise typer.BadParameter(f"{flag} is for Parquet; lines of JSON are text, and not packed")
    spec = FileSpec(format_, codec, text, by_date, headers, append)
    paths, assigned = _assignment(partitions)
    plan = plan_export(paths, options={"assign": assigned, **options}, spec=spec)
    with (
        BulkProgress(plan.size_bytes) as progress,
        workers_of("stratalog export", master, conf, progress) as workers,
    ):
        result = run_export(workers, plan, to)
    _print(result, to, as_json=as_json)


def _assignment(partitions: Sequence[Path]) -> tuple[list[Path], str]:
    """Log directories, and the partitions in them as the connector's JSON."""
    wanted: dict[str, list[int]] = {}
    for path in partitions:
        topic, number = TopicPartition.parse(path.absolute().name)
        if not topic.startswith("__") or len(partitions) == 1:
            wanted.setdefault(topic, []).append(number)
    if not wanted:
        raise UnknownTopicOrPartitionError("nothing to export: there are only internal topics")
    roots = sorted({path.absolute().parent for path in partitions})
    return roots, json.dumps(wanted)


def _ranges(since: str | None, until: str | None) -> dict[str, str]:
    now_ms = clock.time_ns() // 1_000_000
    found = {}
    try:
        if since is not None:
            found["startingTimestamp"] = str(parse_time(since, now_ms=now_ms))
            found["startingOffsetsByTimestampStrategy"] = "latest"
        if until is not None:
            found["endingTimestamp"] = str(parse_time(until, now_ms=now_ms))
    except NotAPointError as error:
        raise typer.BadParameter(str(error)) from None
    return found


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

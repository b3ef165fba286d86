"""`stratalog export`: write topics as Parquet or JSON lines, by topic and day."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stratalog.bulk.workers import Clock
from stratalog.cli.arguments import (
    JsonOption,
    LogDirOption,
    SkipCorruptOption,
    WhereArgument,
    flag,
    key_values,
    option,
    reads_stores,
    repeatable,
    time_of,
    time_option,
    with_groups,
)
from stratalog.cli.output import (
    AddedProgress,
    JobProgress,
    json_line,
    json_names,
    report_error,
    write_block,
)
from stratalog.cli.tables import counted, human_size
from stratalog.cli.targets import NamedPartitions, check_directory, named_partitions
from stratalog.cli.workers import SparkOptions, result_row, result_text
from stratalog.errors import UnknownTopicOrPartitionError
from stratalog.log.reader import IsolationLevel
from stratalog.storage.remote_path import location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stratalog.bulk.export import ExportPlan, ExportResult
    from stratalog.bulk.options import ReadOptions
    from stratalog.log.reader import Skipped

Codec = Literal["none", "snappy", "lz4", "zstd", "gzip"]
FAILS_WHEN = "anything could not be read or written, or was skipped as corrupt or lost"
_STDOUT = Path("-")
_NOT_TO_STDOUT = ("--append", "--incremental", "--text", "--codec", "--master", "--json")


@reads_stores
@with_groups
def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    where: WhereArgument = None,
    to: Annotated[
        Path,
        option(
            "--to",
            "DIR",
            "Output directory, or its URI (s3://…). It must be new or empty, except with --append "
            "or --incremental. Use - to print JSON lines to standard output.",
            parser=location,
        ),
    ] = ...,  # type: ignore[assignment]  # required
    log_dir: LogDirOption = None,
    format_: Annotated[
        Literal["parquet", "jsonl"] | None,
        typer.Option("--format", help="Output format. Default: parquet; jsonl with --to -."),
    ] = None,
    codec: Annotated[
        Codec | None, typer.Option("--codec", help="Compression of Parquet pages. Default: snappy.")
    ] = None,
    text: Annotated[
        bool, flag("--text", "Write keys and values as strings, not bytes (Parquet only).")
    ] = False,
    headers: Annotated[
        bool, typer.Option("--headers/--no-headers", help="Write the headers of records.")
    ] = True,
    since: Annotated[
        str | None,
        time_option("--since", "Start at this time", default="the start of the log"),
    ] = None,
    until: Annotated[
        str | None, option("--until", "TIME", "Stop before this time. Default: the end of the log.")
    ] = None,
    committed: Annotated[
        bool, flag("--read-committed", "Omit records of aborted and open transactions.")
    ] = False,
    skip_corrupt: SkipCorruptOption = False,
    option: Annotated[
        list[str] | None,
        repeatable("--option", "KEY=VALUE", "An option of spark.read.format('stratalog')."),
    ] = None,
    append: Annotated[
        bool, flag("--append", "Add to an output directory that already has files.")
    ] = False,
    incremental: Annotated[
        bool,
        flag(
            "--incremental",
            "Export only records that earlier --incremental runs did not export to DIR.",
        ),
    ] = False,
    skip_lost: Annotated[
        bool,
        flag(
            "--skip-lost",
            "With --incremental: if records were deleted before they were exported, list them on "
            "standard error, export the rest, and exit with status 1.",
        ),
    ] = False,
    by_date: Annotated[
        bool,
        typer.Option(
            "--by-date/--no-by-date",
            help=(
                "Write one directory per day (UTC), or keep all records of a partition in "
                "offset order."
            ),
        ),
    ] = True,
    *,
    spark: SparkOptions,
    as_json: JsonOption = False,
) -> None:
    """Write topics as Parquet or JSON lines, in directories by topic and day.

    The command runs on threads, or on Spark with --master; all Spark workers need access to the log
    directories and to DIR. Files are moved into place once all of them are written, and _SUCCESS is
    written last. In an object store, they are copied within the store. Internal topics are exported
    only if you name them.

    With --incremental, a state file in DIR holds the next offset of each partition. It is replaced
    once all files are written. If a run is killed, the next one completes or repeats it, so each
    record is exported exactly once. --since applies only to topics that were not exported to DIR
    before. If retention deleted records before they were exported, or if a topic was deleted and
    created again, the command fails and exports nothing, unless you give --skip-lost.

    With --to -, records are printed as JSON lines, partition by partition, in offset order. The
    lines are the same as those of `stratalog read --json`, and `stratalog ingest -` reads them
    back.

    \b
    Examples:
      stratalog export /var/lib/kafka/data --to /tmp/export
      stratalog export orders -d /var/lib/kafka/data --to - | zstd > orders.jsonl.zst
      stratalog export /mnt/broken/orders-3 --to /tmp/saved --skip-corrupt
      stratalog export orders -d /var/lib/kafka/data --to orders.parquet --text
      stratalog export orders:3 -d /data --to out --since 2026-11-01 --until 2026-11-02
      stratalog export orders -d /data --to /lake --incremental
      stratalog export orders -d /data --to s3://lake/kafka --storage-option s3.region=eu-west-1
      stratalog export /mnt/backup --to /mnt/lake --master spark://host:7077

    With --json, the command prints one object per file and one per partition, with the offsets that
    were exported (endOffset is exclusive). Objects of kind loss list what --skip-lost skipped, and
    objects of kind corrupt what --skip-corrupt skipped. The last object is of kind summary.
    """
    clock = Clock()
    from stratalog.bulk.export import FileSpec, plan_export, run_export  # noqa: PLC0415 - heavy
    from stratalog.bulk.incremental import IncrementalTarget  # noqa: PLC0415
    from stratalog.spark.options import parse_read_options  # noqa: PLC0415

    spark.check()
    if to == _STDOUT:
        others = (append, incremental, text, codec, spark.master, as_json)
        _check_stdout(format_, dict(zip(_NOT_TO_STDOUT, others, strict=True)))
        format_, by_date = "jsonl", False
    else:
        check_directory("--to", to)
    if format_ == "jsonl" and (codec is not None or text):
        name = "--text" if codec is None else "--codec"
        raise typer.BadParameter(f"{name} requires --format parquet")
    if skip_lost and not incremental:
        raise typer.BadParameter("--skip-lost requires --incremental")
    if append and incremental:
        raise typer.BadParameter("--incremental already appends to the directory; omit --append")
    spec = FileSpec(format_ or "parquet", codec, text, by_date, headers, append)
    options = _read_options(
        named_partitions(where, log_dir),
        time_of(since, "--since"),
        time_of(until, "--until"),
        is_committed=committed,
    )
    options = parse_read_options(key_values("--option", option or []), options)
    if skip_lost:
        options = replace(options, fail_on_data_loss=False)
    if skip_corrupt:
        options = replace(options, skips_corruption=True)
    if to == _STDOUT:
        _print_lines(plan_export(options, spec))
        return
    with IncrementalTarget(to, spec.layout) if incremental else nullcontext() as target:
        plan = plan_export(options, spec, target)
        with (
            JobProgress(plan.size_bytes) as progress,
            spark.workers("stratalog export", progress) as workers,
        ):
            result = run_export(plan, target or to, workers, clock=clock)
    _print(result, to, as_json=as_json, is_incremental=incremental)
    if result.lost or result.skipped:
        raise typer.Exit(1)


def _check_stdout(format_: str | None, others: Mapping[str, object]) -> None:
    """Raises a usage error for options that --to - does not go with."""
    if format_ == "parquet":
        raise typer.BadParameter("--to - prints JSON lines; omit --format parquet")
    for name, value in others.items():
        if value:
            raise typer.BadParameter(f"{name} requires --to DIR; --to - prints JSON lines")


def _print_lines(plan: ExportPlan) -> None:
    """The records as JSON lines, to standard output."""
    from stratalog.bulk.export import exported_lines  # noqa: PLC0415 - heavy

    skipped: list[Skipped] = []
    progress = AddedProgress(plan.size_bytes)

    def on_skip(found: Skipped) -> None:
        progress.clear()
        skipped.append(found)
        report_error(str(found))

    for lines in exported_lines(plan, on_skip=on_skip, on_bytes=progress.add):
        write_block(memoryview(lines))
    progress.clear()
    if skipped:
        raise typer.Exit(1)


def _read_options(
    named: NamedPartitions, start_ms: int | None, end_ms: int | None, *, is_committed: bool
) -> ReadOptions:
    """What the flags select."""
    from stratalog.bulk.options import ByTimestamp, ReadOptions, Subscription  # noqa: PLC0415

    if not named.partitions:
        raise UnknownTopicOrPartitionError(
            "nothing to export: there are only internal topics; name one to export it"
        )
    return ReadOptions(
        named.log_dirs,
        Subscription(assigned=named.partitions),
        starting=None if start_ms is None else ByTimestamp(start_ms),
        ending=None if end_ms is None else ByTimestamp(end_ms),
        starting_or_latest=start_ms is not None,
        isolation=IsolationLevel("read_committed" if is_committed else "read_uncommitted"),
    )


def _print(result: ExportResult, to: Path, *, as_json: bool, is_incremental: bool) -> None:
    for skipped in result.skipped:
        report_error(str(skipped))
    if as_json:
        for file in result.files:
            print(json_line({"kind": "file", **json_names(file._asdict())}))
        for partition in result.partitions:
            print(json_line({"kind": "partition", **json_names(partition._asdict())}))
        for lost in result.lost:
            row = {**lost.topic_partition._asdict(), "startOffset": lost.start}
            print(json_line({"kind": "loss", **row, "endOffset": lost.end, "reason": lost.reason}))
        for skipped in result.skipped:
            row = json_names({**skipped._asdict(), "path": str(skipped.path)})
            print(json_line({"kind": "corrupt", **row}))
        counts = {"outputBytes": result.output_bytes, "files": len(result.files)}
        print(json_line(result_row(result, **counts, tasks=result.tasks)))
        return
    if not result.files:
        print(f"no {'new ' if is_incremental else ''}records to export, in {result.seconds:.1f} s")
        return
    written = f"{counted(len(result.files), 'file')}, {human_size(result.output_bytes)}, in {to}"
    print(f"{result_text(result)}: {written}")

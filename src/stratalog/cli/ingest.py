"""`stratalog ingest`: write files into topics of a log directory."""

from __future__ import annotations

from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stratalog.bulk.workers import Clock
from stratalog.cli.arguments import (
    CreateInBrokerDirOption,
    JsonOption,
    flag,
    key_values,
    local_path,
    option,
    partitions_option,
    repeatable,
    setting_values,
    with_groups,
)
from stratalog.cli.output import JobProgress, json_line, print_truncations
from stratalog.cli.targets import check_directory
from stratalog.cli.workers import SparkOptions, result_row, result_text

if TYPE_CHECKING:
    from stratalog.bulk.input_files import IngestResult
    from stratalog.bulk.target import Target

_STDIN = Path("-")
FormatName = Literal["json", "csv", "parquet", "text", "records"]
CodecName = Literal["none", "gzip", "snappy", "lz4", "zstd"]


def _field_option(name: str, what: str, default: str) -> Any:
    return option(name, "FIELD", f"Column or JSON field with the {what}. Default: {default}.")


@with_groups
def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Files, directories or glob patterns; - reads lines from standard input.",
        ),
    ],
    to: Annotated[
        Path,
        option("--to", "DIR", "The log directory to write to.", parser=local_path),
    ],
    topic: Annotated[
        str | None,
        option(
            "--topic",
            "TOPIC",
            "The topic to write to. Omit it if each row names its topic.",
            short="-t",
        ),
    ] = None,
    format_: Annotated[
        FormatName | None,
        typer.Option(
            "--format", help="Input format. Default: detected from file names and first lines."
        ),
    ] = None,
    key: Annotated[str | None, _field_option("--key", "key", "no key")] = None,
    value: Annotated[str | None, _field_option("--value", "value", "the entire row")] = None,
    timestamp: Annotated[
        str | None,
        _field_option(
            "--timestamp",
            "timestamp, in milliseconds since 1970 or as a date",
            "the current time",
        ),
    ] = None,
    allow_missing: Annotated[
        bool,
        flag(
            "--allow-missing",
            "Accept rows that lack a named FIELD: they get no key, a null value or the current "
            "time. The summary counts them.",
        ),
    ] = False,
    partitions: Annotated[
        int | None, partitions_option("Create missing topics with this many partitions.")
    ] = None,
    create_in_broker_dir: CreateInBrokerDirOption = False,
    repartition: Annotated[
        bool,
        flag("--repartition", "Choose partitions by key, even if rows name a partition."),
    ] = False,
    codec: Annotated[
        CodecName, typer.Option("--codec", help="Compression of record batches.")
    ] = "none",
    topic_config: Annotated[
        list[str] | None,
        repeatable("--topic-config", "KEY=VALUE", "A setting for topics that the command creates."),
    ] = None,
    option: Annotated[
        list[str] | None,
        repeatable("--option", "KEY=VALUE", "An option of df.write.format('stratalog')."),
    ] = None,
    delimiter: Annotated[str, option("--delimiter", "CHAR", "Separator of CSV columns.")] = ",",
    *,
    spark: SparkOptions,
    as_json: JsonOption = False,
) -> None:
    """Write JSON lines, CSV, Parquet or text files into topics.

    Each line of a JSON or text file becomes the value of a record. Use --key, --value and
    --timestamp to select fields of JSON lines, or columns. A row of CSV or Parquet becomes a JSON
    object of its columns. If it has a column `value`, that column is the value, and columns `key`,
    `timestamp`, `topic`, `partition` and `headers` are used as well. Lines and CSV may be
    compressed (.gz, .bz2, .zst, .lz4). Records without a partition are assigned to one as by
    Kafka's producer.

    From files written by `stratalog export` and from the output of `stratalog read --json`, the
    command restores the original records: in the same partitions unless you give --repartition.
    With --format json, each line becomes a value instead. Files are read in the order of their
    names. So the order of records within a partition is kept only if the export used --no-by-date
    or --to -, or if no partition has records from more than one day.

    Each row is written exactly once, even if tasks fail and are retried. If you run the command
    again, it appends the rows again. If a row is malformed, lacks a named FIELD, or has a timestamp
    that cannot be parsed, the command fails and writes nothing. A null FIELD becomes a null key or
    value.

    With --partitions, the directory and missing topics are created. If the topic of --topic exists,
    it must have this many partitions. In the directory of a Kafka broker (it has a meta.properties
    file), topics are created only with --create-in-broker-dir. The command locks the log directory,
    so it fails while a broker is running.

    \b
    Examples:
      stratalog ingest events.jsonl --to /tmp/logs --topic events --partitions 4 --key user
      stratalog ingest orders.csv --to /tmp/logs -t orders -p 1 --key id --timestamp created
      stratalog ingest /tmp/export --to /tmp/restored --partitions 12 --codec zstd
      stratalog read /backup orders --json | stratalog ingest - --to /tmp/restored -p 3

    With --json, the command prints one object, of kind summary. If recovery truncates logs first,
    objects of kind truncation come before it.
    """
    clock = Clock()
    from stratalog.bulk.ingest import plan_ingest, run_ingest  # noqa: PLC0415 - heavy
    from stratalog.bulk.input_files import FileSource, RecordColumns  # noqa: PLC0415
    from stratalog.bulk.options import WriteOptions  # noqa: PLC0415
    from stratalog.format.batch import Codec  # noqa: PLC0415
    from stratalog.spark.options import parse_write_options  # noqa: PLC0415

    spark.check()
    check_directory("--to", to)
    if spark.master is not None and _STDIN in files:
        raise typer.BadParameter("--master requires files that all workers can read, not -")
    source = FileSource(
        files,
        format_,
        RecordColumns(key, value, timestamp),
        allows_missing=allow_missing,
        keeps_partitions=not repartition,
        delimiter=_one_character(delimiter),
    )
    target = _target(to, partitions, topic_config, create_in_broker_dir=create_in_broker_dir)
    chosen = WriteOptions(target, topic, Codec[codec.upper()])
    options = parse_write_options(key_values("--option", option or []), chosen)
    plan = plan_ingest(source)
    with (
        JobProgress(1 << 20) as progress,
        spark.workers("stratalog ingest", progress) as workers,
    ):
        result = run_ingest(plan, options, workers, clock=clock)
    _print(result, to, as_json=as_json)


def _target(
    to: Path, partitions: int | None, topic_config: list[str] | None, *, create_in_broker_dir: bool
) -> Target:
    from stratalog.bulk.target import NewTopics, Target  # noqa: PLC0415 - heavy
    from stratalog.config import LogConfig  # noqa: PLC0415

    config = setting_values("--topic-config", topic_config or [])
    if config and partitions is None:
        raise typer.BadParameter("--topic-config requires --partitions")
    LogConfig.parse(config)  # fails here, not when the first topic is created
    new_topics = None if partitions is None else NewTopics(partitions, config)
    return Target((to.absolute(),), new_topics, create_in_broker_dir=create_in_broker_dir)


def _one_character(delimiter: str) -> str:
    found = {"\\t": "\t"}.get(delimiter, delimiter)
    if len(found) != 1 or not found.isascii():
        raise typer.BadParameter(f"--delimiter: {delimiter!r} is not a single character")
    return found


def _print(result: IngestResult, to: Path, *, as_json: bool) -> None:
    missing = result.missing
    if as_json:
        print_truncations()
        row = result_row(
            result,
            missingKeys=missing.keys,
            missingValues=missing.values,
            missingTimes=missing.times,
        )
        print(json_line(row))
        return
    counts = [
        f"{count:,} without {name} field"
        for name, count in (("key", missing.keys), ("value", missing.values))
        if count
    ]
    if missing.times:
        counts.append(f"{missing.times:,} without timestamp field (current time used)")
    more = "".join(f"; {text}" for text in counts)
    print(f"{result_text(result)}: written to {to}{more}")

"""`stratalog ingest`: write files into topics of a log directory."""

from __future__ import annotations

import json
import os
from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from stratalog.cli.arguments import JsonOption, key_values
from stratalog.cli.bulk import ConfOption, MasterOption, result_text, spark_session
from stratalog.cli.output import JobProgress, json_line, json_names, print_truncations, report_line
from stratalog.cli.targets import check_directory

if TYPE_CHECKING:
    from stratalog.bulk.input_files import FileSource, IngestResult

FormatName = Literal["json", "csv", "parquet", "text", "records"]
CodecName = Literal["none", "gzip", "snappy", "lz4", "zstd"]


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Files, directories or glob patterns."),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The log directory to write to.")],
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="The topic, unless each row names its own."
        ),
    ] = None,
    format_: Annotated[
        FormatName | None,
        typer.Option(
            "--format", help="Input format. Default: detected from file names and first lines."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="FIELD", help="Column or JSON field with the key."),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            metavar="FIELD",
            help="Column or JSON field with the value. Default: the entire row.",
        ),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp",
            metavar="FIELD",
            help="Column or JSON field with the timestamp, in milliseconds or as a date.",
        ),
    ] = None,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing",
            help="Accept rows without a named FIELD: no key, a null value or the current time. The "
            "summary counts them.",
        ),
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            metavar="N",
            help="Create missing topics with this many partitions.",
        ),
    ] = None,
    create_in_broker_dir: Annotated[
        bool,
        typer.Option(
            "--create-in-broker-dir",
            help="Create missing topics even in the directory of a Kafka broker. At startup the "
            "broker renames partitions that its cluster does not have to -stray.",
        ),
    ] = False,
    repartition: Annotated[
        bool,
        typer.Option(
            "--repartition",
            help="Choose partitions by key, even if the rows of an export name them.",
        ),
    ] = False,
    codec: Annotated[
        CodecName, typer.Option("--codec", help="Compression of record batches.")
    ] = "none",
    topic_config: Annotated[
        list[str] | None,
        typer.Option(
            "--topic-config",
            metavar="KEY=VALUE",
            help="A setting of topics that are created. Repeatable.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="Any option of df.write.format('stratalog'). Repeatable.",
        ),
    ] = None,
    reader_option: Annotated[
        list[str] | None,
        typer.Option(
            "--reader-option",
            metavar="KEY=VALUE",
            help="An option of the Spark reader of the input files. Repeatable.",
        ),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write JSON lines, CSV, Parquet or text files into topics.

    Each line of a JSON or text file becomes the value of a record; --key, --value and --timestamp
    select fields of JSON lines. A row of CSV or Parquet becomes a JSON object of its columns; if it
    has a column `value`, that is the value, and columns `key`, `timestamp`, `topic`, `partition`
    and `headers` are used, too. Records without a partition are distributed as by Kafka's producer.

    Files written by `stratalog export` are restored as the records they were, in the same
    partitions unless you give --repartition; with --format json their lines become values. Files
    are read in the order of their names, so the order of records within a partition is kept only
    for exports with --no-by-date, or if no partition has records of several days.

    Each row is written exactly once, even if tasks fail and are retried. Running the command again
    appends the rows again. If a row lacks a named FIELD or its timestamp cannot be parsed, the
    command fails and nothing is written.

    With --partitions, the directory and missing topics are created; an existing topic named with
    --topic must have this many partitions. In the directory of a Kafka broker (it has a
    meta.properties file), topics are created only with --create-in-broker-dir. The log directory
    is locked, so this fails while a broker is running. CSV, compressed files, glob patterns and
    rows that become JSON objects need Spark, embedded unless you give --master; everything else
    runs on threads.

    \b
    Examples:
      stratalog ingest events.jsonl --to /tmp/logs --topic events --partitions 4 --key user
      stratalog ingest orders.csv --to /tmp/logs -t orders -p 1 --key id --timestamp created
      stratalog ingest /tmp/export --to /tmp/restored --partitions 12 --codec zstd
    """
    from stratalog.bulk.input_files import FileSource, RecordColumns  # noqa: PLC0415 - heavy

    check_directory("--to", to)
    source = FileSource(
        files,
        format_,
        RecordColumns(key, value, timestamp),
        key_values("--reader-option", reader_option or []),
        allows_missing=allow_missing,
        keeps_partitions=not repartition,
    )
    options = {
        "kafka.compression.type": codec,
        **({"topicPartitions": str(partitions)} if partitions is not None else {}),
        "createInBrokerDir": str(create_in_broker_dir),
        **{
            f"topicConfig.{name}": setting
            for name, setting in key_values("--topic-config", topic_config or []).items()
        },
        **key_values("--option", option or []),
    }
    result = _ingest(source, to, topic, options, SparkChoice(master, conf))
    _print(result, to, as_json=as_json)


def _print(result: IngestResult, to: Path, *, as_json: bool) -> None:
    missing = result.missing
    if as_json:
        summary = {
            "records": result.records,
            "size_bytes": result.size_bytes,
            "missing_keys": missing.keys,
            "missing_values": missing.values,
            "missing_times": missing.times,
            "seconds": round(result.seconds, 3),
        }
        print_truncations()
        print(json_line({"kind": "summary", **json_names(summary)}))
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


class SparkChoice(NamedTuple):
    """The Spark master and settings, if given."""

    master: str | None
    conf: list[str] | None


def _ingest(
    source: FileSource,
    to: Path,
    topic: str | None,
    options: dict[str, str],
    spark_choice: SparkChoice,
) -> IngestResult:
    """On threads if possible, unless Spark was asked for."""
    from stratalog.bulk.ingest import plan_ingest, run_ingest  # noqa: PLC0415 - heavy
    from stratalog.bulk.workers import ThreadWorkers  # noqa: PLC0415
    from stratalog.errors import NeedsSparkError  # noqa: PLC0415
    from stratalog.spark.options import parse_write_options  # noqa: PLC0415

    is_local = "HADOOP_CONF_DIR" not in os.environ  # with it, paths may be on HDFS
    with JobProgress(1 << 20) as progress:
        if is_local and not any(spark_choice):
            try:
                plan = plan_ingest(source)
            except NeedsSparkError as reason:
                report_line(f"stratalog: note: starting Spark, which takes some seconds: {reason}")
            else:
                workers = ThreadWorkers(on_progress=progress.groups_done)
                given = {"topic": topic} if topic else {}
                path = json.dumps([str(to.absolute())])
                settings = {**options, **given, "path": path}
                return run_ingest(plan, parse_write_options(settings), workers)
        from stratalog.spark.jobs import ingest_files  # noqa: PLC0415 - loads Spark

        with spark_session("stratalog ingest", *spark_choice) as spark:
            return ingest_files(
                spark, source, to, topic=topic, options=options, on_progress=progress.groups_done
            )

"""`stratalog ingest`: files into topics of a log directory."""

from __future__ import annotations

import json
import os
from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from stratalog.cli.bulk import (
    BulkProgress,
    ConfOption,
    JsonOption,
    MasterOption,
    key_values,
    result_text,
    spark_session,
)
from stratalog.cli.output import json_line, json_names, print_truncations, report_line
from stratalog.cli.targets import check_place

if TYPE_CHECKING:
    from stratalog.bulk.input_files import FileSource, IngestResult

FormatName = Literal["json", "csv", "parquet", "text", "records"]
CodecName = Literal["none", "gzip", "snappy", "lz4", "zstd"]


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Files, directories of files, or patterns."),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The log directory.")],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Of all records.")
    ] = None,
    format_: Annotated[
        FormatName | None,
        typer.Option("--format", help="Default: told from names and first lines."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="FIELD", help="Column or JSON field of the key.")
    ] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="FIELD", help="Of the value. Default: the row.")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", metavar="FIELD", help="Of the time, in ms or as a date."),
    ] = None,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing",
            help="Rows may lack FIELD: no key, a null value, the time of now. They are counted.",
        ),
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, metavar="N", help="Create missing topics so."),
    ] = None,
    create_in_broker_dir: Annotated[
        bool,
        typer.Option(
            "--create-in-broker-dir",
            help="Create missing topics also in the directory of a Kafka broker, which renames "
            "partitions to -stray that its cluster does not know.",
        ),
    ] = False,
    repartition: Annotated[
        bool,
        typer.Option(
            "--repartition", help="Choose partitions by key, not as exported records name them."
        ),
    ] = False,
    codec: Annotated[CodecName, typer.Option("--codec", help="Of batches.")] = "none",
    topic_config: Annotated[
        list[str] | None,
        typer.Option("--topic-config", metavar="KEY=VALUE", help="Of topics that are created."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="Any option of the sink."),
    ] = None,
    reader_option: Annotated[
        list[str] | None,
        typer.Option("--reader-option", metavar="KEY=VALUE", help="Of Spark's reader of FILE."),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write files of JSON lines, CSV, Parquet or text into topics.

    A line of JSON or text is a value as it is; --key, --value and --timestamp take fields out of
    JSON. Files that export has written, Parquet or lines of JSON, come back as the records they
    were, in their partitions unless --repartition is given; --format json takes such lines as
    values, too. Files are read one after the other, by name: where records of several days take
    turns in a partition, only those of `export --no-by-date` keep their order. Other rows of CSV or
    Parquet become JSON objects of their columns; with a column `value` they may have `key`,
    `timestamp`, `topic`, `partition` and `headers`. Records without a partition go where Kafka's
    own producer sends them.

    Every row is written once, even if tasks fail and are run again; to run the command again is to
    write the rows again, behind those that are there. A row without a FIELD that was named, or
    whose time is none, ends the command and nothing is written. With --partitions the directory and
    topics are made if they are missing; a topic that exists must have as many, unless only rows
    name it. In the directory of a Kafka broker (it has a meta.properties) topics are created only
    with --create-in-broker-dir. The lock of the log directory is taken, so this is refused while a
    broker runs. CSV, packed files, patterns and rows that become objects need Spark, embedded
    unless --master names a cluster; all else is done by threads.

    \b
    Examples:
      stratalog ingest events.jsonl --to /tmp/logs --topic events --partitions 4 --key user
      stratalog ingest orders.csv --to /tmp/logs -t orders -p 1 --key id --timestamp created
      stratalog ingest /tmp/export --to /tmp/restored --partitions 12 --codec zstd
    """
    from stratalog.bulk.input_files import FileSource, RecordColumns  # noqa: PLC0415 - heavy

    check_place("--to", to)
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
    result = _ingest(source, to, topic, options, Sparks(master, conf))
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
        f"{count:,} without the field of their {name}"
        for name, count in (("key", missing.keys), ("value", missing.values))
        if count
    ]
    if missing.times:
        counts.append(f"{missing.times:,} without a time, which have that of now")
    lacking = "".join(f"; {text}" for text in counts)
    print(f"{result_text(result)}: written to {to}{lacking}")


class Sparks(NamedTuple):
    """Which Spark was asked for, if any was."""

    master: str | None
    conf: list[str] | None


def _ingest(
    source: FileSource, to: Path, topic: str | None, options: dict[str, str], sparks: Sparks
) -> IngestResult:
    """By threads where they can and nobody asked for Spark."""
    from stratalog.bulk.ingest import plan_ingest, run_ingest  # noqa: PLC0415 - heavy
    from stratalog.bulk.workers import ThreadWorkers  # noqa: PLC0415
    from stratalog.errors import NeedsSparkError  # noqa: PLC0415
    from stratalog.spark.options import parse_write_options  # noqa: PLC0415

    with BulkProgress(1 << 20) as progress:
        if not any(sparks) and "HADOOP_CONF_DIR" not in os.environ:  # which may be where paths lead
            try:
                plan = plan_ingest(source)
            except NeedsSparkError as reason:
                report_line(f"stratalog: note: starting Spark, which takes a while: {reason}")
            else:
                workers = ThreadWorkers(on_progress=progress.groups_done)
                given = {"topic": topic} if topic else {}
                path = json.dumps([str(to.absolute())])
                settings = {**options, **given, "path": path}
                return run_ingest(plan, parse_write_options(settings), workers)
        from stratalog.spark.jobs import ingest_files  # noqa: PLC0415 - loads Spark

        with spark_session("stratalog ingest", *sparks) as spark:
            return ingest_files(
                spark, source, to, topic=topic, options=options, on_progress=progress.groups_done
            )

"""`stratalog restore`: restore log directories from a backup."""

from __future__ import annotations

from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.bulk.workers import Clock
from stratalog.cli.arguments import (
    JsonOption,
    StorageOption,
    argument,
    flag,
    option,
    repeatable,
    time_of,
    time_option,
    with_groups,
)
from stratalog.cli.output import JobProgress, json_line, json_names, report_line
from stratalog.cli.tables import counted, human_size
from stratalog.cli.targets import TopicSpec
from stratalog.cli.workers import SparkOptions
from stratalog.format.names import TopicPartition
from stratalog.storage.remote_path import location

if TYPE_CHECKING:
    from stratalog.bulk.restore import RestoreResult

FAILS_WHEN = "anything could not be read or written, or a checksum does not match"


@with_groups
def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    where: Annotated[
        Path,
        argument(
            "URI",
            "Where the backups are: a URI (s3://bucket/prefix) or a directory.",
            parser=location,
        ),
    ],
    dirs: Annotated[
        list[Path],
        argument(
            "DIR",
            "New or empty directories, one for each log directory of the backup, in the "
            "same order.",
        ),
    ],
    storage_option: StorageOption = None,
    backup: Annotated[
        str | None,
        option(
            "--backup",
            "ID",
            "ID of the backup to restore; stratalog backup URI --list shows the IDs. Default: "
            "the newest backup.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        repeatable("--topic", "TOPIC[:PARTITION]", "Restore only this topic or partition."),
    ] = None,
    until: Annotated[
        str | None,
        time_option("--until", "Truncate every log at its first record at or after this time"),
    ] = None,
    to_offset: Annotated[
        list[str] | None,
        repeatable(
            "--to-offset",
            "TOPIC:PARTITION:OFFSET",
            "Drop the records of this partition from this offset on.",
        ),
    ] = None,
    as_is: Annotated[
        bool,
        flag(
            "--as-is",
            "Leave the files as they were copied. The broker then recovers the logs if necessary.",
        ),
    ] = False,
    *,
    spark: SparkOptions,
    as_json: JsonOption = False,
) -> None:
    """Restore log directories from a backup, so that a broker can start on them.

    Every piece is checked against its checksum. If the directory was in use when it was backed up,
    or if logs are truncated, the command then opens and closes the logs as a broker does, so that
    nothing is left to recover. Otherwise the restored files are identical to those that were
    backed up.

    Until the restore is complete, DIR contains a directory restore.incomplete, and no broker starts
    on it. If a restore is interrupted, run it again with the same arguments to continue it.

    With --until and --to-offset, batches are kept or dropped as a whole: a log ends with the last
    batch that lies entirely before the limit. If __consumer_offsets is restored as well, committed
    offsets above the new end of a log are reset to it. --until also truncates __consumer_offsets
    and __transaction_state, so that groups and transactions are as they were at that time.
    __cluster_metadata and __remote_log_metadata are never truncated. Remote storage is not changed:
    a tiered log cannot be truncated below its first local segment.

    \b
    Examples:
      stratalog restore s3://backups/broker-1 /var/lib/kafka/data
      stratalog restore s3://backups/broker-1 /tmp/look --topic orders --until 2026-11-01T10:00Z
      stratalog restore /mnt/backups/broker-1 /tmp/look --to-offset orders:3:120000
      stratalog restore s3://backups/broker-1 /data/kafka-1 /data/kafka-2

    With --json, the command prints one object per partition and one of kind offset for each
    committed offset that was reset. The last object is of kind summary.
    """
    spark.check()
    clock = Clock()
    from stratalog.bulk.backup_store import find_backup  # noqa: PLC0415 - heavy
    from stratalog.bulk.restore import Selection, plan_restore, run_restore  # noqa: PLC0415 - heavy

    selection = Selection(
        tuple((each.topic, each.partition) for each in map(TopicSpec.parse, topic or ())),
        time_of(until, "--until"),
        tuple(_offset_of(text) for text in to_offset or ()),
    )
    plan = plan_restore(find_backup(where, backup), dirs, selection, as_is=as_is)
    with (
        JobProgress(plan.size_bytes) as progress,
        spark.workers("stratalog restore", progress) as workers,
    ):
        result = run_restore(plan, workers, clock=clock)
    _print(result, as_json=as_json)


def _offset_of(text: str) -> tuple[TopicPartition, int]:
    topic, _, rest = text.partition(":")
    number, _, offset = rest.partition(":")
    if not (topic and number.isascii() and number.isdigit() and offset.isdigit()):
        raise typer.BadParameter(f"--to-offset: {text!r} is not in the form TOPIC:PARTITION:OFFSET")
    return TopicPartition(topic, int(number)), int(offset)


def _print(result: RestoreResult, *, as_json: bool) -> None:
    _warn(result)
    if as_json:
        _print_json(result)
    else:
        _print_text(result)


def _warn(result: RestoreResult) -> None:
    for found in result.partitions:
        if found.has_open_transaction:
            report_line(
                f"stratalog: warning: {found.topic}-{found.partition} ends inside a transaction; "
                "its records stay invisible to read_committed until the transaction is aborted"
            )
        if found.may_have_later_remote_records:
            report_line(
                f"stratalog: warning: {found.topic}-{found.partition}: remote storage, which a "
                "restore does not change, has records at or after --until, or may have some"
            )


def _print_json(result: RestoreResult) -> None:
    for found in result.partitions:
        print(json_line({"kind": "partition", **json_names(found._asdict())}))
    for each in result.clamped:
        print(json_line({"kind": "offset", **json_names(each._asdict())}))
    summary = {
        "id": result.backup_id,
        "dirs": result.dirs,
        "size_bytes": result.size_bytes,
        "files": result.files,
        "fetched_files": result.fetched_files,
        "is_recovered": result.is_recovered,
        "partitions": len(result.partitions),
        "clamped_offsets": len(result.clamped),
        "tasks": result.tasks,
        "seconds": round(result.seconds, 3),
    }
    print(json_line({"kind": "summary", **json_names(summary)}))


def _print_text(result: RestoreResult) -> None:
    for found in result.partitions:
        if found.end_offset < found.backup_end_offset:
            print(
                f"{found.topic}-{found.partition}: ends at offset {found.end_offset}, in the "
                f"backup at {found.backup_end_offset}"
            )
    for each in result.clamped:
        print(
            f"group {each.group}: committed offset of {each.topic}-{each.partition} set back from "
            f"{each.offset} to {each.end_offset}"
        )
    print(
        f"{result.backup_id}: {counted(len(result.partitions), 'partition')}, "
        f"{counted(result.files, 'file')}, {human_size(result.size_bytes)}, restored to "
        f"{', '.join(result.dirs)}, in {result.seconds:.1f} s"
    )

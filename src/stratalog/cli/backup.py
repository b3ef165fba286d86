"""`stratalog backup`: copy log directories into an object store or another directory."""

from __future__ import annotations

from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.bulk.backup_store import Manifest
from stratalog.cli.arguments import JsonOption, StorageOption, argument, flag, option, with_groups
from stratalog.cli.output import JobProgress, json_line, json_names
from stratalog.cli.tables import columns_of, counted, human_size, print_table, table_time
from stratalog.cli.workers import SparkOptions
from stratalog.errors import BackupError
from stratalog.storage.remote_path import location

if TYPE_CHECKING:
    from stratalog.bulk.backup import BackupResult
    from stratalog.bulk.backup_store import Pruned, UnreadableBackup

FAILS_WHEN = "anything could not be read, written or verified"


@with_groups
def run(  # noqa: PLR0913  # a parameter is a flag
    paths: Annotated[
        list[Path],
        argument(
            "DIR... URI",
            "Log directories, then the place for their backups: a URI (s3://bucket/prefix) or a "
            "directory.",
            parser=location,
        ),
    ],
    storage_option: StorageOption = None,
    list_: Annotated[bool, flag("--list", "List the backups at URI. Takes no DIR.")] = False,
    keep: Annotated[
        int | None,
        option(
            "--keep",
            "N",
            "After the backup, remove all but the N newest backups. Without DIR, only remove old "
            "ones.",
            least=1,
        ),
    ] = None,
    read_all: Annotated[
        bool,
        flag(
            "--read-all",
            "Read all files and the objects of the last backup again, and send what is missing or "
            "corrupt. Default: skip a file if its inode, size and modification time are the same "
            "as in the last backup, and do not send an object if URI has one with its name and "
            "size.",
        ),
    ] = False,
    verify: Annotated[
        bool,
        flag(
            "--verify",
            "Read all objects of the backup back and compare checksums; send corrupt ones again. "
            "Without DIR, only verify the newest backup.",
        ),
    ] = False,
    *,
    spark: SparkOptions,
    as_json: JsonOption = False,
) -> None:
    """Copy log directories, live or stopped, into an object store or another directory.

    Only new data is sent: files are divided into pieces, each piece is named by its checksum, and
    pieces that URI already has are not sent again. The manifest, which lists the files of one point
    in time, is written last. If a backup is killed, earlier backups are unaffected; run it again to
    continue. A broker may keep writing during a backup: logs are copied up to their last complete
    batch. The end of __consumer_offsets is looked up first, so that no committed offset points to a
    record that the backup lacks.

    Run one backup at a time for each URI. The command runs on threads, or on Spark with --master;
    all Spark workers need access to the log directories and to URI. `stratalog restore` restores a
    backup.

    \b
    Examples:
      stratalog backup /var/lib/kafka/data s3://backups/broker-1
      stratalog backup /data/kafka-1 /data/kafka-2 s3://backups/broker-1 --keep 14
      stratalog backup /var/lib/kafka/data /mnt/backups/broker-1 --verify
      stratalog backup s3://backups/broker-1 --list
      stratalog backup s3://backups/broker-1 --keep 3

    With --json, the command prints one object per partition, with the offset up to which it was
    copied. With --keep, an object of kind pruned follows. The last object is of kind summary. With
    --list, it prints one object per backup, of kind unreadable if its manifest cannot be read.
    """
    spark.check()
    *dirs, where = paths
    if list_:
        if dirs or keep is not None or verify:
            raise typer.BadParameter("--list takes a URI only; omit DIR, --keep and --verify")
        _print_list(where, as_json=as_json)
        return
    if not dirs and keep is None and not verify:
        raise typer.BadParameter("give log directories and the URI of their backups")
    if not dirs:
        _check_only(where, keep, spark, verifies=verify, as_json=as_json)
        return
    from stratalog.bulk.backup import backup, size_of_dirs  # noqa: PLC0415 - heavy

    with (
        JobProgress(size_of_dirs(dirs)) as progress,
        spark.workers("stratalog backup", progress) as workers,
    ):
        result = backup(
            dirs, where, workers=workers, keep=keep, reads_all=read_all, verifies=verify
        )
    _print(result, where, as_json=as_json)


def _check_only(
    where: Path, keep: int | None, spark: SparkOptions, *, verifies: bool, as_json: bool
) -> None:
    """--verify and --keep without a new backup."""
    from stratalog.bulk.backup import prune, verify_backup  # noqa: PLC0415
    from stratalog.bulk.backup_store import BackupStore  # noqa: PLC0415

    if verifies:
        manifest = BackupStore.at(where).latest()
        if manifest is None:
            raise BackupError(f"{where}: no backup found")
        with (
            JobProgress(manifest.size_bytes) as progress,
            spark.workers("stratalog backup", progress) as workers,
        ):
            found = verify_backup(BackupStore.at(where), manifest, workers)
        if as_json:
            print(json_line({"kind": "verified", "id": manifest.backup_id, "objects": found}))
        else:
            print(f"{manifest.backup_id}: {counted(found, 'object')} verified")
    if keep is not None:
        _print_pruned(prune(where, keep), as_json=as_json)


def _print_list(where: Path, *, as_json: bool) -> None:
    from stratalog.bulk.backup import find_backups  # noqa: PLC0415 - heavy

    found = find_backups(where)
    if as_json:
        for each in found:
            print(json_line(_row(each)))
        return
    columns = columns_of("BACKUP | TIME/1 | PARTITIONS# | FILES#/3 | SIZE# | OF/2")
    print_table(columns, [_cells(each) for each in found])


def _cells(found: Manifest | UnreadableBackup) -> tuple[str, ...]:
    if not isinstance(found, Manifest):
        return found.backup_id, "unreadable", "", "", "", found.reason
    return (
        found.backup_id,
        table_time(found.created_ms),
        str(sum(len(saved.partitions) for saved in found.dirs)),
        str(sum(1 for _ in found.files)),
        human_size(found.size_bytes),
        ", ".join(saved.path for saved in found.dirs),
    )


def _row(manifest: Manifest | UnreadableBackup) -> dict[str, object]:
    if not isinstance(manifest, Manifest):
        return {"kind": "unreadable", "id": manifest.backup_id, "reason": manifest.reason}
    return {
        "kind": "backup",
        "id": manifest.backup_id,
        "createdMs": manifest.created_ms,
        "sizeBytes": manifest.size_bytes,
        "files": sum(1 for _ in manifest.files),
        "dirs": [
            {
                "path": each.path,
                "isLive": each.is_live,
                "isClean": each.is_clean,
                "isSettled": each.is_settled,
                "partitions": [json_names(found._asdict()) for found in each.partitions],
            }
            for each in manifest.dirs
        ],
    }


def _print(result: BackupResult, where: Path, *, as_json: bool) -> None:
    partitions = [found for each in result.dirs for found in each.partitions]
    if not as_json:
        sent = f"{human_size(result.sent_bytes)} of {human_size(result.size_bytes)} sent"
        print(
            f"{result.backup_id}: {counted(len(partitions), 'partition')}, "
            f"{counted(result.files, 'file')}, {sent} to {where}, in {result.seconds:.1f} s"
        )
        if result.verified_objects is not None:
            print(f"{counted(result.verified_objects, 'object')} verified")
    else:
        for found in partitions:
            print(json_line({"kind": "partition", **json_names(found._asdict())}))
    if result.pruned is not None:
        _print_pruned(result.pruned, as_json=as_json)
    if as_json:
        summary = {
            "id": result.backup_id,
            "size_bytes": result.size_bytes,
            "files": result.files,
            "sent_objects": result.sent_objects,
            "sent_bytes": result.sent_bytes,
            "verified_objects": result.verified_objects,
            "is_settled": all(each.is_settled for each in result.dirs),
            "tasks": result.tasks,
            "seconds": round(result.seconds, 3),
        }
        print(json_line({"kind": "summary", **json_names(summary)}))


def _print_pruned(pruned: Pruned, *, as_json: bool) -> None:
    if as_json:
        row = {
            "backups": pruned.backups,
            "objects": pruned.objects,
            "size_bytes": pruned.size_bytes,
        }
        print(json_line({"kind": "pruned", **json_names(row)}))
        return
    print(
        f"{counted(len(pruned.backups), 'backup')} and {counted(pruned.objects, 'object')} "
        f"removed, {human_size(pruned.size_bytes)}"
    )

"""`stratalog diff`: compare two copies of a partition or of a log directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stratalog.cli.arguments import JsonOption, flag
from stratalog.cli.output import corrupt_row, json_line, json_names, report_error
from stratalog.cli.tables import counted
from stratalog.cli.targets import TopicSpec, find_topic, is_partition_dir, open_topic
from stratalog.errors import NotALogDirError, StratalogError
from stratalog.format.names import CLUSTER_METADATA_TOPIC
from stratalog.log.partition_view import identity_of
from stratalog.partitions.inventory import label_of
from stratalog.partitions.view import open_dirs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.maintenance.diff import PartitionDiff

FAILS_WHEN: Final = "the copies differ, or something could not be read"


def run(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A partition directory, a log directory, or a topic or partition with its path "
            "(DIR/TOPIC, DIR/TOPIC:PARTITION).",
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Its copy.")],
    records: Annotated[
        bool,
        flag(
            "--records",
            "Compare records and offsets only; ignore how they are stored in batches, "
            "segments, indexes and snapshots.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two copies of a partition or of a log directory.

    The copies can be replicas on two brokers, a backup and its original, or a log before and after
    a change. The command shows the offsets of each copy, corrupt bytes, the offset at which leader
    epochs diverge, offset ranges with different batches, records that differ, and indexes,
    snapshots and other files that differ. Partitions of two log directories are matched by name.

    The command takes no lock and never writes, so it is safe on the directory of a running broker.

    \b
    Examples:
      stratalog diff /var/lib/kafka/data/orders-3 /backup/orders-3
      stratalog diff /mnt/broker1/data /mnt/broker2/data --records
      stratalog diff before/orders after/orders --json | jq 'select(.kind == "record")'

    With --json, each object has a kind: partition (with the offsets of both), missing-partition,
    corrupt, divergence, batches, record, file or summary. In arrays the value of A comes first.
    """
    sides = _partitions(a), _partitions(b)
    pairs = list(_pairs(*sides))
    printer = DiffPrinter(as_json=as_json, records_only=records)
    failed = 0
    for name, left, right in pairs:
        if left is None or right is None:
            printer.missing(name, "B" if right is None else "A")
            continue
        try:
            printer.show(name, _compare(left, right))
        except StratalogError as error:
            failed += 1
            report_error(f"{name}: {error}")
    printer.sum_up(len(pairs), failed)
    if printer.differing or failed:
        raise typer.Exit(1)


def _compare(a: Path, b: Path) -> PartitionDiff:
    from stratalog.maintenance.diff import compare_partitions  # noqa: PLC0415 - kernels

    return compare_partitions(a, b)


def _partitions(text: str) -> dict[str, Path]:
    """Partition directories by their names."""
    path = Path(text)
    if path.is_dir() and is_partition_dir(path):
        found = [path]
    elif path.is_dir():
        dirs = open_dirs(path)
        found = [dirs.path_of(*each) for each in dirs.topic_partitions]
    elif path.exists():
        raise NotALogDirError(f"{path}: a file; give a partition directory or a log directory")
    else:
        dirs, spec = find_topic(text, ())
        found = [view.path for view in open_topic(dirs, TopicSpec(*spec))]
    names = {label_of(identity_of(each)[0]): each for each in found}
    return {name: each for name, each in names.items() if CLUSTER_METADATA_TOPIC not in name}


def _pairs(
    a: dict[str, Path], b: dict[str, Path]
) -> Iterator[tuple[str, Path | None, Path | None]]:
    """Two single partitions are compared whatever their names are."""
    if len(a) == len(b) == 1:
        (name, left), (right,) = next(iter(a.items())), b.values()
        yield name, left, right
        return
    for name in sorted({*a, *b}):
        yield name, a.get(name), b.get(name)


class DiffPrinter:
    """Prints differences, as text or JSON."""

    def __init__(self, *, as_json: bool, records_only: bool) -> None:
        self._as_json = as_json
        self._records_only = records_only
        self.differing = 0

    def missing(self, name: str, side: str) -> None:
        self.differing += 1
        if self._as_json:
            print(json_line({"kind": "missing-partition", "name": name, "missingIn": side}))
        else:
            print(f"{name}: not in {side}")

    def show(self, name: str, found: PartitionDiff) -> None:
        is_same = found.has_same_records if self._records_only else found.is_same
        self.differing += not is_same
        if self._as_json:
            for row in _rows(name, found, is_same=is_same, records_only=self._records_only):
                print(json_line(row))
        elif not is_same:
            print(f"{name}: A is {found.paths[0]}, B is {found.paths[1]}")
            for line in _lines(found, records_only=self._records_only):
                print(f"  {line}")

    def sum_up(self, partitions: int, failed: int) -> None:
        if self._as_json:
            row = {"partitions": partitions, "differing": self.differing, "failed": failed}
            print(json_line({"kind": "summary", **row}))
        elif self.differing or failed:
            print(f"{counted(partitions, 'partition')}: {self.differing} with differences")
        else:
            what = "the same records" if self._records_only else "no difference"
            print(f"{counted(partitions, 'partition')}: {what}")


def _lines(found: PartitionDiff, *, records_only: bool) -> Iterator[str]:
    for name, index in (("log start offset", 0), ("log end offset", 1)):
        a, b = found.offsets[0][index], found.offsets[1][index]
        if a != b:
            yield f"{name}: {a} in A, {b} in B"
    for side, corrupt in zip("AB", found.corrupt, strict=True):
        for each in corrupt:
            where = f"{each.path.name} at byte {each.place.position}"
            yield f"corrupt in {side}: {where}: {each.place.reason}"
    yield from _log_lines(found, records_only=records_only)
    if not records_only:
        for file in found.files:
            yield f"{file.name}: {file.what}"


def _log_lines(found: PartitionDiff, *, records_only: bool) -> Iterator[str]:
    if found.divergence is not None:
        offset, (a, b), _ = found.divergence
        yield f"leader epochs diverge at offset {offset}: {a} in A, {b} in B"
    for batches in found.batches:
        if not records_only or not all(batches.batches):
            yield _batches_text(*batches)
    for record in found.records:
        yield f"record {record.offset}: {record.what}"
    if found.record_count > len(found.records):
        yield f"and {found.record_count - len(found.records):,} more records that differ"


def _batches_text(first: int, following: int, counts: tuple[int, int]) -> str:
    a, b = counts
    span = f"offsets {first} to {following - 1}"
    if not b:
        return f"{span}: {counted(a, 'batch')} only in A"
    if not a:
        return f"{span}: {counted(b, 'batch')} only in B"
    return f"{span}: different batches ({a} in A, {b} in B)"


def _rows(
    name: str, found: PartitionDiff, *, is_same: bool, records_only: bool
) -> Iterator[dict[str, Any]]:
    yield {
        "kind": "partition",
        "name": name,
        "paths": [str(path) for path in found.paths],
        "isSame": is_same,
        "logStartOffsets": [offsets[0] for offsets in found.offsets],
        "logEndOffsets": [offsets[1] for offsets in found.offsets],
        "differingRecords": found.record_count,
    }
    for side, corrupt in zip("AB", found.corrupt, strict=True):
        for each in corrupt:
            yield {"kind": "corrupt", "name": name, "side": side, **corrupt_row(each)}
    if found.divergence is not None:
        yield {"kind": "divergence", "name": name, **json_names(found.divergence._asdict())}
    for batches in found.batches:
        yield {"kind": "batches", "name": name, **json_names(batches._asdict())}
    for record in found.records:
        yield {"kind": "record", "name": name, **record._asdict()}
    if not records_only:
        for file in found.files:
            yield {"kind": "file", "name": name, "file": file.name, "what": file.what}

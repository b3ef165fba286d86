"""`stratalog ls`: topics, partitions and segments of log directories, as tables or JSON.

What is shown depends on what was named: for log directories their topics, for a topic its
partitions, for a partition its segments. A partition that cannot be read is listed as unreadable,
and the reason is printed to standard error.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stratalog.cli.arguments import (
    JsonOption,
    LogDirOption,
    RemoteOption,
    SettingsFiles,
    argument,
    flag,
    reads_stores,
    topics_option,
    with_groups,
)
from stratalog.cli.output import json_line, json_names, report_error
from stratalog.cli.settings import Overrides
from stratalog.cli.tables import (
    NOTHING,
    Column,
    Row,
    columns_of,
    counted,
    human_size,
    number_or_dash,
    print_table,
    table_time,
)
from stratalog.cli.targets import lazy_targets
from stratalog.cli.tiered_topics import list_tier
from stratalog.format.uuids import encode_id
from stratalog.partitions.inventory import Details, Inventory, InventoryBuilder, label_of
from stratalog.storage.index_view import BUILT_FROM_LOG, FROM_FILE

if TYPE_CHECKING:
    from stratalog.format.producer_snapshot import ProducerEntry
    from stratalog.partitions.inventory import (
        DiskUse,
        FirstBatch,
        IndexSummary,
        LogDirSummary,
        OtherDirectory,
        PartitionSummary,
        SegmentSummary,
        TopicSummary,
        UnreadablePartition,
    )
    from stratalog.partitions.settings import EffectiveConfig


class SortBy(enum.StrEnum):
    """Orders of `--sort`; all but `name` put the largest first."""

    NAME = "name"
    SIZE = "size"
    SEGMENTS = "segments"
    OFFSETS = "offsets"
    NEWEST = "newest"


@reads_stores
@with_groups
def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    where: Annotated[
        list[str] | None,
        argument(
            "WHERE",
            "Log directories (default: the current directory), topics or partitions in them "
            "(TOPIC, TOPIC:PARTITION), partition directories, or .log files.",
        ),
    ] = None,
    log_dir: LogDirOption = None,
    remote: RemoteOption = None,
    topic: Annotated[list[str] | None, topics_option("List only this topic or partition.")] = None,
    partitions: Annotated[bool, flag("--partitions", "List partitions, not topics.")] = False,
    segments: Annotated[bool, flag("--segments", "Also list segments.", short="-s")] = False,
    epochs: Annotated[bool, flag("--epochs", "Also list leader epochs.")] = False,
    producers: Annotated[
        bool, flag("--producers", "Also list the state of each producer id.")
    ] = False,
    transactions: Annotated[
        bool, flag("--transactions", "Also list aborted transactions and the last stable offset.")
    ] = False,
    everything: Annotated[
        bool, flag("--all", "Same as --segments --epochs --producers --transactions.", short="-a")
    ] = False,
    count: Annotated[bool, flag("--count", "Also count records. This reads the logs.")] = False,
    settings: Annotated[
        bool, flag("--settings", "Also list the settings of topics and their sources.")
    ] = False,
    *,
    settings_files: SettingsFiles,
    sort: Annotated[
        SortBy,
        typer.Option(
            "--sort",
            help=(
                "Sort topics or partitions by this column. Except for name, "
                "the largest comes first."
            ),
        ),
    ] = SortBy.NAME,
    as_json: JsonOption = False,
) -> None:
    """List topics, partitions and segments of log directories.

    For a log directory, the command lists its topics; for a topic, its partitions; for a partition,
    its segments. SIZE is the size of the .log files. DISK is the disk space of all files, as du
    counts it; OTHER is the part of DISK that indexes, snapshots, .deleted and staged files use.
    START is the log start offset, END the log end offset (the offset of the next record). RECORDS
    is the number of records, with --count. OLDEST is the time of the first batch, NEWEST the
    largest timestamp, CODEC the compression of the first batch. HIGH WM (high watermark), RECOVERY
    (recovery point) and CLEANED (first dirty offset) are read from the checkpoint files. INDEXES
    shows problems with index files that are visible without reading every entry; `stratalog verify`
    checks every entry.

    The first line shows whether a process has locked the directory, and whether the last writer
    shut down cleanly.

    The command takes no lock and never writes, so it is safe on the directory of a running broker.

    \b
    Examples:
      stratalog ls /var/lib/kafka/data
      stratalog ls /var/lib/kafka/data orders
      stratalog ls /var/lib/kafka/data/orders-0 --all
      stratalog ls -d /disk1 -d /disk2 --partitions --sort size
      stratalog ls /var/lib/kafka/data orders --count
      stratalog ls /var/lib/kafka/data --segments --json | jq 'select(.kind == "segment")'

    With --remote, the command lists the local and remote segments of tiered topics side by side,
    with the size of their objects in the store. For segments of the log, ROLE is local, remote or
    both. It is unreachable for a complete copy that belongs to no leader epoch of the log,
    incomplete for a copy that was never finished, deleted for a copy whose deletion has begun,
    orphan for objects that are not in the metadata, and unknown if the metadata of the partition is
    not in the log directories.

    If a segment has aborted transactions but no .txnindex file, the command prints a warning to
    standard error; with --json, an object of kind missing-index.

    With --json, each object has a kind: log-dir, topic, partition, unreadable-partition, segment,
    missing-index, file, leader-epoch, producer, aborted-transaction or directory. Sizes are in
    bytes, times in milliseconds; null means unknown.
    """
    if remote is not None:
        list_tier([*(where or []), *(topic or [])], log_dir or [], as_json=as_json)
        return
    targets = lazy_targets(where or [], log_dir or [], topic or [])
    is_detailed = segments or epochs or producers or transactions or everything
    details = Details(
        segments=segments or everything or bool(targets.partitions),
        epochs=epochs or everything,
        producers=producers or everything,
        transactions=transactions or everything,
        records=count,
    )
    problems: list[str] = []

    def on_problem(text: str) -> None:
        problems.append(text)
        report_error(text)

    given = Overrides.parse((), *settings_files)
    finder = given.finder([*(log_dir or []), *(found.path for found in targets.dirs)])
    inventory = InventoryBuilder(details, finder, on_problem).build(targets.dirs, targets.openers())
    inventory = _sorted(inventory, sort)
    by_topic = bool(targets.dirs) and not partitions and not is_detailed
    if as_json:
        for row in _json_rows(inventory, by_topic=by_topic):
            print(json_line(row))
    else:
        _print_text(inventory, by_topic=by_topic, shows_settings=settings)
    if problems:
        raise typer.Exit(1)


def _sorted(inventory: Inventory, by: SortBy) -> Inventory:
    topic_keys: dict[SortBy, Callable[[TopicSummary], int]] = {
        SortBy.SIZE: lambda topic: -topic.size_bytes,
        SortBy.SEGMENTS: lambda topic: -topic.segment_count,
        SortBy.OFFSETS: lambda topic: -topic.offsets,
        SortBy.NEWEST: lambda topic: -topic.largest_timestamp,
    }
    partition_keys: dict[SortBy, Callable[[PartitionSummary], int]] = {
        SortBy.SIZE: lambda found: -found.size_bytes,
        SortBy.SEGMENTS: lambda found: -found.segment_count,
        SortBy.OFFSETS: lambda found: found.log_start_offset - found.log_end_offset,
        SortBy.NEWEST: lambda found: -found.largest_timestamp,
    }
    if by is SortBy.NAME:
        return inventory
    return replace(
        inventory,
        topics=sorted(inventory.topics, key=topic_keys[by]),
        partitions=sorted(inventory.partitions, key=partition_keys[by]),
    )


# -- JSON


def _json_rows(inventory: Inventory, *, by_topic: bool) -> Iterator[dict[str, Any]]:
    yield from map(_log_dir_json, inventory.log_dirs)
    if by_topic:
        for topic in inventory.topics:
            yield _topic_json(topic, inventory.settings.get(topic.topic))
    else:
        yield from map(_partition_json, inventory.partitions)
    yield from map(_unreadable_json, inventory.unreadable)
    for partition in inventory.partitions:
        yield from _detail_rows(partition)
    yield from map(_directory_json, inventory.other_directories)


def _log_dir_json(found: LogDirSummary) -> dict[str, Any]:
    meta = found.meta
    directory_id = meta.directory_id if meta else None
    return {
        "kind": "log-dir",
        "path": str(found.path),
        "clusterId": meta.cluster_id if meta else None,
        "nodeId": meta.node_id if meta else None,
        "directoryId": encode_id(directory_id) if directory_id else None,
        "isCleanShutdown": found.is_clean_shutdown,
        "isUnclean": found.is_unclean,
        "isInUse": found.is_in_use,
        "holder": found.holder,
        "partitions": found.partitions,
    }


def _topic_json(found: TopicSummary, settings: EffectiveConfig | None) -> dict[str, Any]:
    return {
        "kind": "topic",
        "topic": found.topic,
        "topicId": encode_id(found.topic_id) if found.topic_id else None,
        "partitions": found.partitions,
        "unreadablePartitions": found.unreadable,
        "segments": found.segment_count,
        "sizeBytes": found.size_bytes,
        "logStartOffsetMin": found.log_start_offset_min,
        "logEndOffsetMax": found.log_end_offset_max,
        "offsets": found.offsets,
        "records": found.record_count,
        **_disk_json(found.disk_use),
        "firstTimestamp": found.first_timestamp,
        "largestTimestamp": found.largest_timestamp,
        "codecs": list(found.codecs),
        **_settings_json(settings),
    }


def _partition_json(found: PartitionSummary) -> dict[str, Any]:
    return {
        "kind": "partition",
        **_names(found),
        "topicId": encode_id(found.topic_id) if found.topic_id else None,
        "path": str(found.path),
        "segments": found.segment_count,
        "sizeBytes": found.size_bytes,
        "records": found.record_count,
        **_disk_json(found.disk_use),
        "logStartOffset": found.log_start_offset,
        "lastStableOffset": found.last_stable_offset,
        "logEndOffset": found.log_end_offset,
        **json_names(found.checkpoints),
        **_first_json(found.first),
        "largestTimestamp": found.largest_timestamp,
    }


def _disk_json(found: DiskUse) -> dict[str, int]:
    total, log, index, deleted, staged = found
    return {
        "diskBytes": total,
        "diskLogBytes": log,
        "diskIndexBytes": index,
        "diskDeletedBytes": deleted,
        "diskStagedBytes": staged,
    }


def _settings_json(found: EffectiveConfig | None) -> dict[str, Any]:
    if found is None:
        return {"settings": None, "settingsUnknown": None, "clusterPartitions": None}
    return {
        "settings": {
            name: {"value": value, "source": source.value}
            for name, (value, source) in found.shown().items()
        },
        "settingsUnknown": found.unknown,
        "clusterPartitions": found.partition_count,
    }


def _unreadable_json(found: UnreadablePartition) -> dict[str, Any]:
    """Listed for topics, too: it is missing from their sums."""
    return {
        "kind": "unreadable-partition",
        **found.topic_partition._asdict(),
        "path": str(found.path),
        "problem": found.problem,
    }


def _detail_rows(partition: PartitionSummary) -> Iterator[dict[str, Any]]:
    names = _names(partition)
    for missing in partition.missing_indexes:
        yield {"kind": "missing-index", **names, "path": str(missing.path),
               "abortedTransactions": len(missing.aborted), "warning": str(missing)}  # fmt: skip
    for segment in partition.segments:
        yield {"kind": "segment", **names, **_segment_json(segment)}
    for file in partition.in_transit:
        state = file.file.state.name.lower()
        yield {"kind": "file", **names, "path": str(file.path), "state": state,
               "sizeBytes": file.size_bytes}  # fmt: skip
    for epoch in partition.epochs:
        yield {"kind": "leader-epoch", **names, **json_names(epoch._asdict())}
    for producer in partition.producers:
        yield {"kind": "producer", **names, **_producer_json(producer)}
    for txn in partition.aborted:
        yield {"kind": "aborted-transaction", **names, **json_names(txn._asdict())}


def _segment_json(segment: SegmentSummary) -> dict[str, Any]:
    return {
        "path": str(segment.path),
        "baseOffset": segment.base_offset,
        "nextOffset": segment.next_offset,
        "sizeBytes": segment.size_bytes,
        "offsetIndex": _index_json(segment.offset_index),
        "timeIndex": _index_json(segment.time_index),
        "abortedTransactions": segment.aborted_transactions,
        "hasSnapshot": segment.has_snapshot,
        **_first_json(segment.first),
        "largestTimestamp": segment.largest_timestamp,
    }


def _index_json(index: IndexSummary) -> dict[str, Any]:
    return {"entries": index.entries, "sizeBytes": index.size_bytes, "origin": index.origin}


def _producer_json(producer: ProducerEntry) -> dict[str, Any]:
    """With the names of `dump --json`. Sequences and offsets are those of the last batch."""
    row = json_names(producer._asdict())
    row["lastTimestamp"] = row.pop("timestamp")
    row["firstSequence"] = producer.first_sequence if producer.has_batch else None
    row["currentTxnFirstOffset"] = producer.open_txn_first_offset
    return row


def _directory_json(found: OtherDirectory) -> dict[str, Any]:
    topic, partition = found.topic_partition or (None, None)
    return {
        "kind": "directory",
        "path": str(found.path),
        "state": found.state,
        "topic": topic,
        "partition": partition,
        "sizeBytes": found.size_bytes,
    }


def _names(partition: PartitionSummary) -> dict[str, Any]:
    return partition.topic_partition._asdict()


def _first_json(first: FirstBatch | None) -> dict[str, Any]:
    if first is None:
        return {"firstTimestamp": None, "firstCodec": None, "firstMagic": None}
    return {
        "firstTimestamp": first.timestamp,
        "firstCodec": first.codec,
        "firstMagic": first.magic,
    }


# -- tables

_STATES: Final = {
    "delete": "being deleted",
    "stray": "renamed by a broker, because the cluster does not have this partition",
    "future": "being moved here from another log directory",
    "unknown": "not a partition; a broker does not start with it",
}


def _print_text(inventory: Inventory, *, by_topic: bool, shows_settings: bool) -> None:
    for log_dir in inventory.log_dirs:
        print(_log_dir_line(log_dir))
    if by_topic and inventory.topics:
        print_table(TOPIC_COLUMNS, [_topic_row(topic) for topic in inventory.topics])
    elif not by_topic and (inventory.partitions or inventory.unreadable):
        rows = [_partition_row(found) for found in inventory.partitions]
        print_table(PARTITION_COLUMNS, [*rows, *map(_unreadable_row, inventory.unreadable)])
    if shows_settings:
        _print_settings(inventory.settings)
    for title, columns, rows_of in _SECTIONS:
        _print_section(title, columns, rows_of, inventory.partitions)
    _print_others(inventory.other_directories)


def _print_section(
    title: str,
    columns: Sequence[Column],
    rows_of: Callable[[PartitionSummary], list[Row]],
    partitions: Sequence[PartitionSummary],
) -> None:
    """One table for all partitions, with a column for their names if there are several."""
    if len(partitions) == 1:
        rows = rows_of(partitions[0])
    else:
        columns = [*columns_of("PARTITION"), *columns]
        rows = [(found.label, *row) for found in partitions for row in rows_of(found)]
    if rows:
        print(f"\n{title}")
        print_table(columns, rows)


def _print_settings(found: Mapping[str, EffectiveConfig]) -> None:
    """Every setting that differs from Kafka's default, and its source."""
    columns = columns_of("TOPIC | SETTING | VALUE | SOURCE")
    rows: list[Row] = []
    for topic, settings in sorted(found.items()):
        if settings.unknown is not None:
            rows.append((topic, NOTHING, "unknown", settings.unknown))
        rows += [
            (topic, name, value, source.label) for name, (value, source) in settings.shown().items()
        ]
    print("\nSettings")
    print_table(columns, rows)


def _log_dir_line(found: LogDirSummary) -> str:
    facts = [counted(found.partitions, "partition")]
    if found.meta is not None:
        if found.meta.node_id is not None:
            facts.append(f"node {found.meta.node_id}")
        if found.meta.cluster_id is not None:
            facts.append(f"cluster {found.meta.cluster_id}")
    if found.is_in_use:
        facts.append(f"in use by {found.holder or 'a process of another user or container'}")
    elif found.is_clean_shutdown:
        facts.append("clean shutdown")
    elif found.is_unclean:
        facts.append("not shut down cleanly")
    return f"{found.path}: {', '.join(facts)}"


TOPIC_COLUMNS: Final = columns_of(
    "TOPIC | PARTITIONS#/3 | SEGMENTS#/4 | SIZE# | DISK#/6 | OTHER#/7 | START#/5 | END# | "
    "RECORDS#/1 | OLDEST/2 | NEWEST/1 | CODEC/8"
)
PARTITION_COLUMNS: Final = columns_of(
    "PARTITION | SEGMENTS#/4 | SIZE# | DISK#/8 | OTHER#/9 | START# | END# | RECORDS#/1 | "
    "HIGH WM#/5 | RECOVERY#/6 | CLEANED#/7 | STABLE#/3 | OLDEST/2 | NEWEST/1 | CODEC/10"
)


def _topic_row(topic: TopicSummary) -> Row:
    return (
        topic.topic,
        _partition_count(topic),
        *_size_cells(topic),
        number_or_dash(topic.log_start_offset_min),
        number_or_dash(topic.log_end_offset_max),
        number_or_dash(topic.record_count),
        NOTHING if topic.first_timestamp is None else table_time(topic.first_timestamp),
        table_time(topic.largest_timestamp),
        ",".join(topic.codecs) or NOTHING,
    )


def _size_cells(found: TopicSummary | PartitionSummary) -> Row:
    disk = found.disk_use
    sizes = (found.size_bytes, disk.total_bytes, disk.other_bytes)
    return (str(found.segment_count), *map(human_size, sizes))


def _partition_count(topic: TopicSummary) -> str:
    note = f" ({topic.unreadable} unreadable)" if topic.unreadable else ""
    return f"{topic.partitions}{note}"


def _partition_row(found: PartitionSummary) -> Row:
    return (
        found.label,
        *_size_cells(found),
        str(found.log_start_offset),
        str(found.log_end_offset),
        number_or_dash(found.record_count),
        *(number_or_dash(offset) for offset in found.checkpoints.values()),
        number_or_dash(found.last_stable_offset),
        *_time_range(found),
        found.first.codec if found.first else NOTHING,
    )


def _unreadable_row(found: UnreadablePartition) -> Row:
    """The reason is printed to standard error."""
    nothing = [NOTHING] * (len(PARTITION_COLUMNS) - 2)
    return (label_of(found.topic_partition), "unreadable", *nothing)


def _segment_rows(found: PartitionSummary) -> list[Row]:
    return [
        (
            str(segment.base_offset),
            str(segment.next_offset),
            human_size(segment.size_bytes),
            str(segment.offset_index.entries),
            str(segment.time_index.entries),
            str(segment.aborted_transactions),
            "yes" if segment.has_snapshot else "no",
            *_time_range(segment),
            segment.first.codec if segment.first else NOTHING,
            _state(segment),
        )
        for segment in found.segments
    ]


def _state(segment: SegmentSummary) -> str:
    notes = [
        f"{name}: {note}"
        for name, index, entry_bytes in (
            ("index", segment.offset_index, 8),
            ("time index", segment.time_index, 12),
        )
        if (note := _index_note(index, entry_bytes))
    ]
    return "; ".join(notes) or NOTHING


def _index_note(index: IndexSummary, entry_bytes: int) -> str | None:
    if index.origin != FROM_FILE:
        reason = index.origin.removeprefix(BUILT_FROM_LOG)
        is_empty = index.size_bytes == 0 and not index.entries
        return None if is_empty else reason
    if index.size_bytes is not None and index.size_bytes > index.entries * entry_bytes:
        return f"preallocated to {human_size(index.size_bytes)}"
    return None


def _transit_rows(found: PartitionSummary) -> list[Row]:
    return [
        (file.path.name, file.file.state.name.lower(), human_size(file.size_bytes))
        for file in found.in_transit
    ]


def _epoch_rows(found: PartitionSummary) -> list[Row]:
    return [(str(entry.epoch), str(entry.start_offset)) for entry in found.epochs]


def _producer_rows(found: PartitionSummary) -> list[Row]:
    return [
        (
            str(entry.producer_id),
            str(entry.producer_epoch),
            f"{entry.first_sequence}..{entry.last_sequence}" if entry.has_batch else NOTHING,
            f"{entry.first_offset}..{entry.last_offset}" if entry.has_batch else NOTHING,
            table_time(entry.timestamp),
            number_or_dash(None if entry.coordinator_epoch < 0 else entry.coordinator_epoch),
            number_or_dash(entry.open_txn_first_offset),
        )
        for entry in found.producers
    ]


def _aborted_rows(found: PartitionSummary) -> list[Row]:
    return [
        (str(txn.producer_id), str(txn.first_offset), str(txn.last_offset),
         str(txn.last_stable_offset))
        for txn in found.aborted
    ]  # fmt: skip


_SECTIONS: Final = (
    (
        "Segments",
        columns_of(
            "BASE# | NEXT# | SIZE# | INDEX#/3 | TIMEINDEX#/4 | ABORTED#/5 | SNAPSHOT/6 | "
            "OLDEST/2 | NEWEST/1 | CODEC/7",
            Column("INDEXES", fold_at=24),
        ),
        _segment_rows,
    ),
    (
        "Files being deleted or swapped in",
        columns_of("FILE | STATE | SIZE#"),
        _transit_rows,
    ),
    (
        "Leader epochs",
        columns_of("EPOCH# | START#"),
        _epoch_rows,
    ),
    (
        "Producers",
        columns_of(
            "PRODUCER# | EPOCH# | SEQUENCES | OFFSETS | LAST TIME/2 | "
            "COORDINATOR EPOCH#/3 | OPEN TXN FROM#/1"
        ),
        _producer_rows,
    ),
    (
        "Aborted transactions",
        columns_of("PRODUCER# | FIRST# | MARKER# | STABLE AFTER#"),
        _aborted_rows,
    ),
)


def _print_others(directories: Sequence[OtherDirectory]) -> None:
    if not directories:
        return
    print("\nOther directories")
    rows = [
        (
            found.path.name,
            human_size(found.size_bytes),
            label_of(found.topic_partition) if found.topic_partition else NOTHING,
            _STATES[found.state],
        )
        for found in directories
    ]
    print_table(columns_of("DIRECTORY | SIZE# | PARTITION | STATE"), rows)
    sys.stdout.flush()


def _time_range(found: PartitionSummary | SegmentSummary) -> tuple[str, str]:
    first: FirstBatch | None = found.first
    oldest = NOTHING if first is None else table_time(first.timestamp)
    return oldest, table_time(found.largest_timestamp)

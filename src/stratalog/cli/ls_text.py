"""What `ls` found, as tables: human sizes, times in UTC."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from stratalog.cli.inventory import label_of
from stratalog.cli.tables import (
    NOTHING,
    Column,
    Row,
    counted,
    human_size,
    print_table,
    table_time,
)
from stratalog.storage.index_view import FROM_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stratalog.cli.inventory import FirstBatch, IndexFacts, PartitionFacts, SegmentFacts
    from stratalog.cli.ls_report import LogDirFacts, Report, TopicFacts, UnreadablePartition
    from stratalog.partitions.settings import EffectiveConfig

BUILT_FROM_LOG: Final = "built from the log: "
_WHAT_STATES_MEAN: Final = {
    "delete": "is being deleted",
    "stray": "was set aside: the cluster knew no such partition",
    "future": "is the target of a move between log directories",
    "unknown": "is no partition: a broker refuses to start with it",
}


def print_report(report: Report) -> None:
    """Everything that was found."""
    for log_dir in report.log_dirs:
        print(_log_dir_line(log_dir))
    if report.level == "topics" and report.topics:
        print_table(TOPIC_COLUMNS, [_topic_row(topic) for topic in report.topics])
    elif report.partitions or report.unreadable:
        rows = [_partition_row(found) for found in report.partitions]
        print_table(PARTITION_COLUMNS, [*rows, *map(_unreadable_row, report.unreadable)])
    if report.shows_settings:
        _print_settings(report.settings)
    for title, columns, rows_of in _SECTIONS:
        _print_section(title, columns, rows_of, report.partitions)
    _print_others(report)


def _print_section(
    title: str,
    columns: Sequence[Column],
    rows_of: Callable[[PartitionFacts], list[Row]],
    partitions: Sequence[PartitionFacts],
) -> None:
    """One table over all partitions, with their names where there are several."""
    if len(partitions) == 1:
        rows = rows_of(partitions[0])
    else:
        columns = [Column("PARTITION"), *columns]
        rows = [(found.label, *row) for found in partitions for row in rows_of(found)]
    if rows:
        print(f"\n{title}")
        print_table(columns, rows)


def _print_settings(found: Mapping[str, EffectiveConfig]) -> None:
    """Every setting that is not Kafka's default, and where it comes from."""
    columns = (Column("TOPIC", style="cyan"), Column("SETTING"), Column("VALUE"), Column("FROM"))
    rows: list[Row] = []
    for topic, settings in sorted(found.items()):
        if settings.unknown is not None:
            rows.append((topic, NOTHING, "unknown", settings.unknown))
        rows += [
            (topic, name, value, source.label) for name, (value, source) in settings.shown().items()
        ]
    print("\nSettings")
    print_table(columns, rows)


def _log_dir_line(found: LogDirFacts) -> str:
    facts = [counted(found.partitions, "partition")]
    if found.meta is not None:
        if found.meta.node_id is not None:
            facts.append(f"node {found.meta.node_id}")
        if found.meta.cluster_id is not None:
            facts.append(f"cluster {found.meta.cluster_id}")
    if found.is_clean_shutdown:
        facts.append("stopped cleanly")
    return f"{found.path}: {', '.join(facts)}"


TOPIC_COLUMNS: Final = (
    Column("TOPIC", style="cyan"),
    Column("PARTITIONS", is_number=True, rank=3),
    Column("SEGMENTS", is_number=True, rank=4),
    Column("SIZE", is_number=True),
    Column("START", is_number=True, rank=5),
    Column("END", is_number=True),
    Column("OLDEST", rank=2),
    Column("NEWEST", rank=1),
    Column("CODEC", rank=6),
)


def _topic_row(topic: TopicFacts) -> Row:
    return (
        topic.topic,
        _partition_count(topic),
        str(topic.segment_count),
        human_size(topic.size_bytes),
        _number(topic.log_start_offset_min),
        _number(topic.log_end_offset_max),
        NOTHING if topic.first_timestamp is None else table_time(topic.first_timestamp),
        table_time(topic.largest_timestamp),
        ",".join(topic.codecs) or NOTHING,
    )


def _partition_count(topic: TopicFacts) -> str:
    note = f" ({topic.unreadable} unreadable)" if topic.unreadable else ""
    return f"{topic.partitions}{note}"


PARTITION_COLUMNS: Final = (
    Column("PARTITION", style="cyan"),
    Column("SEGMENTS", is_number=True, rank=4),
    Column("SIZE", is_number=True),
    Column("START", is_number=True),
    Column("END", is_number=True),
    Column("HIGH WM", is_number=True, rank=5),
    Column("RECOVERY", is_number=True, rank=6),
    Column("CLEANED", is_number=True, rank=7),
    Column("STABLE", is_number=True, rank=3),
    Column("OLDEST", rank=2),
    Column("NEWEST", rank=1),
    Column("CODEC", rank=8),
)


def _partition_row(found: PartitionFacts) -> Row:
    return (
        found.label,
        str(found.segment_count),
        human_size(found.size_bytes),
        str(found.log_start_offset),
        str(found.log_end_offset),
        *(_number(offset) for offset in found.checkpoints.values()),
        _number(found.last_stable_offset),
        *_time_range(found),
        found.first.codec if found.first else NOTHING,
    )


def _unreadable_row(found: UnreadablePartition) -> Row:
    """Why is told on standard error."""
    nothing = [NOTHING] * (len(PARTITION_COLUMNS) - 2)
    return (label_of(found.topic_partition), "unreadable", *nothing)


def _segment_rows(found: PartitionFacts) -> list[Row]:
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


def _state(segment: SegmentFacts) -> str:
    notes = [
        f"{name}: {note}"
        for name, index, entry_bytes in (
            ("index", segment.offset_index, 8),
            ("time index", segment.time_index, 12),
        )
        if (note := _index_note(index, entry_bytes))
    ]
    return "; ".join(notes) or "ok"


def _index_note(index: IndexFacts, entry_bytes: int) -> str | None:
    if index.origin != FROM_FILE:
        reason = index.origin.removeprefix(BUILT_FROM_LOG)
        is_empty_rightly = index.size_bytes == 0 and not index.entries
        return None if is_empty_rightly else reason
    if index.size_bytes is not None and index.size_bytes > index.entries * entry_bytes:
        return f"preallocated to {human_size(index.size_bytes)}"
    return None


def _transit_rows(found: PartitionFacts) -> list[Row]:
    return [
        (file.path.name, file.file.state.name.lower(), human_size(file.size_bytes))
        for file in found.in_transit
    ]


def _epoch_rows(found: PartitionFacts) -> list[Row]:
    return [(str(entry.epoch), str(entry.start_offset)) for entry in found.epochs]


def _producer_rows(found: PartitionFacts) -> list[Row]:
    return [
        (
            str(entry.producer_id),
            str(entry.producer_epoch),
            f"{entry.first_sequence}..{entry.last_sequence}" if entry.has_batch else NOTHING,
            f"{entry.first_offset}..{entry.last_offset}" if entry.has_batch else NOTHING,
            table_time(entry.timestamp),
            _number(None if entry.coordinator_epoch < 0 else entry.coordinator_epoch),
            _number(entry.open_txn_first_offset),
        )
        for entry in found.producers
    ]


def _aborted_rows(found: PartitionFacts) -> list[Row]:
    return [
        (str(txn.producer_id), str(txn.first_offset), str(txn.last_offset),
         str(txn.last_stable_offset))
        for txn in found.aborted
    ]  # fmt: skip


_SECTIONS: Final = (
    (
        "Segments",
        (
            Column("BASE", is_number=True, style="cyan"),
            Column("NEXT", is_number=True),
            Column("SIZE", is_number=True),
            Column("INDEX", is_number=True, rank=3),
            Column("TIMEINDEX", is_number=True, rank=4),
            Column("ABORTED", is_number=True, rank=5),
            Column("SNAPSHOT", rank=6),
            Column("OLDEST", rank=2),
            Column("NEWEST", rank=1),
            Column("CODEC", rank=7),
            Column("INDEXES", fold_at=24),
        ),
        _segment_rows,
    ),
    (
        "Files in transit",
        (Column("FILE"), Column("STATE"), Column("SIZE", is_number=True)),
        _transit_rows,
    ),
    (
        "Leader epochs",
        (Column("EPOCH", is_number=True), Column("START", is_number=True)),
        _epoch_rows,
    ),
    (
        "Producers",
        (
            Column("PRODUCER", is_number=True),
            Column("EPOCH", is_number=True),
            Column("SEQUENCES"),
            Column("OFFSETS"),
            Column("LAST TIME", rank=2),
            Column("COORDINATOR EPOCH", is_number=True, rank=3),
            Column("OPEN TXN FROM", is_number=True, rank=1),
        ),
        _producer_rows,
    ),
    (
        "Aborted transactions",
        (
            Column("PRODUCER", is_number=True),
            Column("FIRST", is_number=True),
            Column("MARKER", is_number=True),
            Column("STABLE AFTER", is_number=True),
        ),
        _aborted_rows,
    ),
)


def _print_others(report: Report) -> None:
    if not report.other_directories:
        return
    print("\nOther directories")
    rows = [
        (
            found.path.name,
            human_size(found.size_bytes),
            label_of(found.topic_partition) if found.topic_partition else NOTHING,
            _WHAT_STATES_MEAN[found.state],
        )
        for found in report.other_directories
    ]
    columns = (
        Column("DIRECTORY"),
        Column("SIZE", is_number=True),
        Column("PARTITION", rank=1),
        Column("WHAT IT IS"),
    )
    print_table(columns, rows)
    sys.stdout.flush()


def _time_range(found: PartitionFacts | SegmentFacts) -> tuple[str, str]:
    first: FirstBatch | None = found.first
    oldest = NOTHING if first is None else table_time(first.timestamp)
    return oldest, table_time(found.largest_timestamp)


def _number(value: int | None) -> str:
    return NOTHING if value is None else str(value)

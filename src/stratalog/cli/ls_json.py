"""What `ls` found, as JSON: one object a line, told apart by `type`. Numbers are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratalog.cli.output import json_line
from stratalog.format.metadata import encode_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stratalog.cli.inventory import FirstBatch, PartitionFacts, SegmentFacts
    from stratalog.cli.ls_report import DirectoryFacts, LogDirFacts, Report, TopicFacts


def json_lines(report: Report) -> Iterator[str]:
    """Every line of the report."""
    return map(json_line, _objects(report))


def _objects(report: Report) -> Iterator[dict[str, Any]]:
    yield from map(_log_dir, report.log_dirs)
    if report.level == "topics":
        yield from map(_topic, report.topics)
    else:
        yield from map(_partition, report.partitions)
    for partition in report.partitions:
        yield from _details(partition)
    yield from map(_directory, report.other_directories)


def _log_dir(found: LogDirFacts) -> dict[str, Any]:
    meta = found.meta
    directory_id = meta.directory_id if meta else None
    return {
        "type": "log_dir",
        "path": str(found.path),
        "cluster_id": meta.cluster_id if meta else None,
        "node_id": meta.node_id if meta else None,
        "directory_id": encode_id(directory_id) if directory_id else None,
        "is_clean_shutdown": found.is_clean_shutdown,
        "partitions": found.partitions,
    }


def _topic(found: TopicFacts) -> dict[str, Any]:
    return {
        "type": "topic",
        "topic": found.topic,
        "topic_id": encode_id(found.topic_id) if found.topic_id else None,
        "partitions": found.partitions,
        "segments": found.segment_count,
        "size_bytes": found.size_bytes,
        "log_start_offset_min": found.log_start_offset_min,
        "log_end_offset_max": found.log_end_offset_max,
        "offsets": found.offsets,
        "first_timestamp": found.first_timestamp,
        "largest_timestamp": found.largest_timestamp,
        "codecs": list(found.codecs),
    }


def _partition(found: PartitionFacts) -> dict[str, Any]:
    return {
        "type": "partition",
        **_names(found),
        "topic_id": encode_id(found.topic_id) if found.topic_id else None,
        "path": str(found.path),
        "segments": found.segment_count,
        "size_bytes": found.size_bytes,
        "log_start_offset": found.log_start_offset,
        "last_stable_offset": found.last_stable_offset,
        "log_end_offset": found.log_end_offset,
        **found.checkpoints,
        **_first(found.first),
        "largest_timestamp": found.largest_timestamp,
    }


def _details(partition: PartitionFacts) -> Iterator[dict[str, Any]]:
    names = _names(partition)
    for segment in partition.segments:
        yield {"type": "segment", **names, **_segment(segment)}
    for file in partition.in_transit:
        state = file.file.state.name.lower()
        yield {"type": "file", **names, "path": str(file.path), "state": state,
               "size_bytes": file.size_bytes}  # fmt: skip
    yield from _tuples("leader_epoch", names, partition.epochs)
    yield from _tuples("producer", names, partition.producers)
    yield from _tuples("aborted_transaction", names, partition.aborted)


def _segment(segment: SegmentFacts) -> dict[str, Any]:
    return {
        "path": str(segment.path),
        "base_offset": segment.base_offset,
        "next_offset": segment.next_offset,
        "size_bytes": segment.size_bytes,
        "offset_index": vars(segment.offset_index),
        "time_index": vars(segment.time_index),
        "aborted_transactions": segment.aborted_transactions,
        "has_snapshot": segment.has_snapshot,
        **_first(segment.first),
        "largest_timestamp": segment.largest_timestamp,
    }


def _directory(found: DirectoryFacts) -> dict[str, Any]:
    topic, partition = found.topic_partition or (None, None)
    return {
        "type": "directory",
        "path": str(found.path),
        "state": found.state,
        "topic": topic,
        "partition": partition,
        "size_bytes": found.size_bytes,
    }


def _names(partition: PartitionFacts) -> dict[str, Any]:
    return partition.topic_partition._asdict()


def _first(first: FirstBatch | None) -> dict[str, Any]:
    if first is None:
        return {"first_timestamp": None, "first_codec": None, "first_magic": None}
    return {
        "first_timestamp": first.timestamp,
        "first_codec": first.codec,
        "first_magic": first.magic,
    }


def _tuples(kind: str, names: dict[str, Any], values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for value in values:
        yield {"type": kind, **names, **value._asdict()}

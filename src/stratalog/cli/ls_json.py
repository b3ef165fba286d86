"""What `ls` found, as JSON: one object a line, told apart by `kind`. Numbers are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratalog.cli.output import json_line, json_names
from stratalog.format.metadata import encode_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.cli.inventory import FirstBatch, IndexFacts, PartitionFacts, SegmentFacts
    from stratalog.cli.ls_report import (
        DirectoryFacts,
        LogDirFacts,
        Report,
        TopicFacts,
        UnreadablePartition,
    )
    from stratalog.format.snapshot import ProducerEntry
    from stratalog.partitions.settings import EffectiveConfig


def json_lines(report: Report) -> Iterator[str]:
    """Every line of the report."""
    return map(json_line, _objects(report))


def _objects(report: Report) -> Iterator[dict[str, Any]]:
    yield from map(_log_dir, report.log_dirs)
    if report.level == "topics":
        for topic in report.topics:
            yield _topic(topic, report.settings.get(topic.topic))
    else:
        yield from map(_partition, report.partitions)
    yield from map(_unreadable, report.unreadable)
    for partition in report.partitions:
        yield from _details(partition)
    yield from map(_directory, report.other_directories)


def _log_dir(found: LogDirFacts) -> dict[str, Any]:
    meta = found.meta
    directory_id = meta.directory_id if meta else None
    return {
        "kind": "log-dir",
        "path": str(found.path),
        "clusterId": meta.cluster_id if meta else None,
        "nodeId": meta.node_id if meta else None,
        "directoryId": encode_id(directory_id) if directory_id else None,
        "isCleanShutdown": found.is_clean_shutdown,
        "partitions": found.partitions,
    }


def _topic(found: TopicFacts, settings: EffectiveConfig | None) -> dict[str, Any]:
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
        "firstTimestamp": found.first_timestamp,
        "largestTimestamp": found.largest_timestamp,
        "codecs": list(found.codecs),
        **_settings(settings),
    }


def _settings(found: EffectiveConfig | None) -> dict[str, Any]:
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


def _partition(found: PartitionFacts) -> dict[str, Any]:
    return {
        "kind": "partition",
        **_names(found),
        "topicId": encode_id(found.topic_id) if found.topic_id else None,
        "path": str(found.path),
        "segments": found.segment_count,
        "sizeBytes": found.size_bytes,
        "logStartOffset": found.log_start_offset,
        "lastStableOffset": found.last_stable_offset,
        "logEndOffset": found.log_end_offset,
        **json_names(found.checkpoints),
        **_first(found.first),
        "largestTimestamp": found.largest_timestamp,
    }


def _unreadable(found: UnreadablePartition) -> dict[str, Any]:
    """Told on the level of topics, too: it is missing from their sums."""
    return {
        "kind": "unreadable-partition",
        **found.topic_partition._asdict(),
        "path": str(found.path),
        "problem": found.problem,
    }


def _details(partition: PartitionFacts) -> Iterator[dict[str, Any]]:
    names = _names(partition)
    for missing in partition.missing_indexes:
        yield {"kind": "missing-index", **names, "path": str(missing.path),
               "abortedTransactions": len(missing.aborted), "warning": str(missing)}  # fmt: skip
    for segment in partition.segments:
        yield {"kind": "segment", **names, **_segment(segment)}
    for file in partition.in_transit:
        state = file.file.state.name.lower()
        yield {"kind": "file", **names, "path": str(file.path), "state": state,
               "sizeBytes": file.size_bytes}  # fmt: skip
    for epoch in partition.epochs:
        yield {"kind": "leader-epoch", **names, **json_names(epoch._asdict())}
    for producer in partition.producers:
        yield {"kind": "producer", **names, **_producer(producer)}
    for txn in partition.aborted:
        yield {"kind": "aborted-transaction", **names, **json_names(txn._asdict())}


def _segment(segment: SegmentFacts) -> dict[str, Any]:
    return {
        "path": str(segment.path),
        "baseOffset": segment.base_offset,
        "nextOffset": segment.next_offset,
        "sizeBytes": segment.size_bytes,
        "offsetIndex": _index(segment.offset_index),
        "timeIndex": _index(segment.time_index),
        "abortedTransactions": segment.aborted_transactions,
        "hasSnapshot": segment.has_snapshot,
        **_first(segment.first),
        "largestTimestamp": segment.largest_timestamp,
    }


def _index(index: IndexFacts) -> dict[str, Any]:
    return {"entries": index.entries, "sizeBytes": index.size_bytes, "origin": index.origin}


def _producer(producer: ProducerEntry) -> dict[str, Any]:
    """With the names of `dump --json`; sequences and offsets are those of the newest batch."""
    row = json_names(producer._asdict())
    row["lastTimestamp"] = row.pop("timestamp")
    row["firstSequence"] = producer.first_sequence if producer.has_batch else None
    row["currentTxnFirstOffset"] = producer.open_txn_first_offset
    return row


def _directory(found: DirectoryFacts) -> dict[str, Any]:
    topic, partition = found.topic_partition or (None, None)
    return {
        "kind": "directory",
        "path": str(found.path),
        "state": found.state,
        "topic": topic,
        "partition": partition,
        "sizeBytes": found.size_bytes,
    }


def _names(partition: PartitionFacts) -> dict[str, Any]:
    return partition.topic_partition._asdict()


def _first(first: FirstBatch | None) -> dict[str, Any]:
    if first is None:
        return {"firstTimestamp": None, "firstCodec": None, "firstMagic": None}
    return {
        "firstTimestamp": first.timestamp,
        "firstCodec": first.codec,
        "firstMagic": first.magic,
    }

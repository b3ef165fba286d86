"""Which remote segment serves which offsets of a tiered log: Kafka's rule, as values.

Sorting segments by base offset is wrong: after an unclean election two leaders have copied segments
of the same offsets with different records, and both copies are complete. The leader epochs of the
log decide (its *lineage*): for an offset its epoch, for the epoch the segments that were copied in
it. Of several copies of the same offsets in one epoch, the later event in `__remote_log_metadata`
counts.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.format.messages.remote_log_records import PARTITION_DELETE, SEGMENT
from stratalog.format.messages.schema import uuid_bytes
from stratalog.format.murmur import partition_for_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stratalog.format.checkpoint import EpochEntry
    from stratalog.format.messages.remote_log_records import RemoteLogRecord

STARTED: Final = "COPY_SEGMENT_STARTED"
FINISHED: Final = "COPY_SEGMENT_FINISHED"
DELETE_STARTED: Final = "DELETE_SEGMENT_STARTED"
DELETE_FINISHED: Final = "DELETE_SEGMENT_FINISHED"
_MAY_FOLLOW: Final = {
    FINISHED: (STARTED, FINISHED),
    DELETE_STARTED: (STARTED, FINISHED, DELETE_STARTED),
    DELETE_FINISHED: (DELETE_STARTED, DELETE_FINISHED),
    STARTED: (STARTED,),
}


class TopicIdPartition(NamedTuple):
    """A partition of one incarnation of a topic."""

    topic: str
    topic_id: str
    partition: int

    def metadata_partition(self, count: int) -> int:
        """The partition of `__remote_log_metadata` with the events of this one, if there are
        `count`: Kafka's hash of the topic id and the partition number."""
        hashed = 1
        halves = struct.unpack(">QQ", uuid_bytes(self.topic_id))
        for part in (*(half ^ half >> 32 for half in reversed(halves)), self.partition):
            hashed = 31 * hashed + part & 0xFFFF_FFFF
        return partition_for_key(hashed.to_bytes(4), count)


@dataclass(frozen=True)
class RemoteSegmentInfo:
    """One copy of a segment in the store."""

    place: TopicIdPartition
    segment_id: str
    start_offset: int
    end_offset: int
    """Inclusive."""
    epochs: tuple[tuple[int, int], ...]
    """Leader epochs in the segment, and where each begins in it, oldest first."""
    max_timestamp_ms: int
    size_bytes: int
    state: str
    custom_metadata: bytes | None = None

    def end_in(self, epoch: int) -> int:
        """The last offset of an epoch in the segment."""
        following = [start for each, start in self.epochs if each > epoch]
        return following[0] - 1 if following else self.end_offset

    @property
    def name(self) -> str:
        """The name of its objects, without a suffix."""
        return f"{self.start_offset:020d}-{self.segment_id}"


class ServedRange(NamedTuple):
    """Offsets, and the segment that serves them."""

    first_offset: int
    last_offset: int
    segment: RemoteSegmentInfo


@dataclass
class _Epoch:
    """The segments that count in one epoch, by where the epoch begins in them."""

    by_start: dict[int, str] = field(default_factory=dict)
    highest_offset: int = -1

    def add(self, start: int, end: int, segment_id: str) -> None:
        """A longer copy displaces those that it covers."""
        while self.by_start and max(self.by_start) >= start and self.highest_offset <= end:
            del self.by_start[max(self.by_start)]
        self.by_start[start] = segment_id
        self.highest_offset = max(self.highest_offset, end)

    def remove(self, start: int, segment_id: str) -> None:
        if self.by_start.get(start) == segment_id:
            del self.by_start[start]


class RemoteLog:
    """The remote segments of one partition, after the events so far."""

    def __init__(self) -> None:
        self.segments: dict[str, RemoteSegmentInfo] = {}
        """Segments by id, without those that are finally deleted."""
        self._epochs: dict[int, _Epoch] = {}
        self._deleted: list[tuple[int, int]] = []

    def add(self, segment: RemoteSegmentInfo) -> None:
        """A copy that begins, or, from a manifest, is complete."""
        self.segments[segment.segment_id] = replace(segment, state=STARTED)
        if segment.state != STARTED:
            self.update(segment.segment_id, segment.state, segment.custom_metadata)

    def update(self, segment_id: str, state: str, custom_metadata: bytes | None) -> None:
        """A segment changes its state. As in Kafka, an event that cannot follow is dropped."""
        segment = self.segments.get(segment_id)
        if segment is None or segment.state not in _MAY_FOLLOW[state]:
            return
        if segment.state == FINISHED and state == DELETE_STARTED:
            self._deleted.append((segment.start_offset, segment.end_offset))
        if custom_metadata is not None:
            segment = replace(segment, custom_metadata=custom_metadata)
        segment = self.segments[segment_id] = replace(segment, state=state)
        if state == FINISHED:
            for epoch, start in segment.epochs:
                held = self._epochs.setdefault(epoch, _Epoch())
                held.add(start, segment.end_in(epoch), segment_id)
        else:
            for epoch, start in segment.epochs:
                self._epochs.setdefault(epoch, _Epoch()).remove(start, segment_id)
        if state == DELETE_FINISHED:
            del self.segments[segment_id]

    @property
    def live(self) -> list[RemoteSegmentInfo]:
        """Complete copies, by offset."""
        found = [each for each in self.segments.values() if each.state == FINISHED]
        return sorted(found, key=lambda each: (each.start_offset, each.end_offset))

    def has_deleted(self, start: int, end: int) -> bool:
        """Whether the events show that brokers have deleted all offsets in [start, end)."""
        for first, last in sorted(self._deleted):
            if first > start:
                break
            start = max(start, last + 1)
        return start >= end

    def served(self, lineage: Sequence[EpochEntry], first_offset: int) -> list[ServedRange]:
        """The ranges of offsets from `first_offset` on that a log of this lineage has here, in
        order. Neighbours of one segment are one range."""
        found: list[ServedRange] = []
        for slot, (epoch, start) in enumerate(lineage):
            stop = lineage[slot + 1].start_offset if slot + 1 < len(lineage) else None
            for each in self._served_in(epoch, max(start, first_offset), stop):
                last = found[-1] if found else None
                if last and last.segment is each.segment and last.last_offset + 1 == each[0]:
                    found[-1] = last._replace(last_offset=each.last_offset)
                else:
                    found.append(each)
        return found

    def _served_in(self, epoch: int, offset: int, stop: int | None) -> Iterable[ServedRange]:
        held = self._epochs.get(epoch)
        starts = sorted(held.by_start) if held is not None else []
        while held is not None and (stop is None or offset < stop):
            slot = bisect_right(starts, offset) - 1
            segment = self.segments[held.by_start[starts[slot]]] if slot >= 0 else None
            if segment is None or offset > segment.end_in(epoch):
                if slot + 1 >= len(starts):
                    return
                offset = starts[slot + 1]  # nothing is there: a gap
                continue
            last = segment.end_in(epoch)
            if slot + 1 < len(starts):
                last = min(last, starts[slot + 1] - 1)
            if stop is not None:
                last = min(last, stop - 1)
            yield ServedRange(offset, last, segment)
            offset = last + 1


def replay_remote_log(records: Iterable[RemoteLogRecord]) -> dict[TopicIdPartition, RemoteLog]:
    """The state after the records of `__remote_log_metadata`; those of one partition in order."""
    logs: dict[TopicIdPartition, RemoteLog] = {}
    for record in records:
        fields = record.fields
        if record.type_id == PARTITION_DELETE:
            if fields["remotePartitionDeleteState"] == "DELETE_PARTITION_FINISHED":
                logs[_place(fields["topicIdPartition"])] = RemoteLog()
            continue
        segment_id = fields["remoteLogSegmentId"]
        log = logs.setdefault(_place(segment_id["topicIdPartition"]), RemoteLog())
        if record.type_id == SEGMENT:
            log.add(_segment(fields))
        else:
            state, custom = fields["remoteLogSegmentState"], fields["customMetadata"]
            log.update(segment_id["id"], state, custom)
    return logs


def _place(fields: Mapping[str, Any]) -> TopicIdPartition:
    return TopicIdPartition(fields["name"], fields["id"], fields["partition"])


def _segment(fields: Mapping[str, Any]) -> RemoteSegmentInfo:
    epochs = ((each["leaderEpoch"], each["offset"]) for each in fields["segmentLeaderEpochs"])
    return RemoteSegmentInfo(
        place=_place(fields["remoteLogSegmentId"]["topicIdPartition"]),
        segment_id=fields["remoteLogSegmentId"]["id"],
        start_offset=fields["startOffset"],
        end_offset=fields["endOffset"],
        epochs=tuple(sorted(epochs)),
        max_timestamp_ms=fields["maxTimestampMs"],
        size_bytes=fields["segmentSizeInBytes"],
        state=fields["remoteLogSegmentState"],
        custom_metadata=fields["customMetadata"],
    )


def segment_of_manifest(metadata: Mapping[str, Any], size_bytes: int) -> RemoteSegmentInfo:
    """A segment as its manifest describes it. Raises KeyError and TypeError for other fields."""
    segment_id = metadata["remoteLogSegmentId"]
    place = segment_id["topicIdPartition"]
    topic = place["topicPartition"]
    uuid_bytes(segment_id["id"])
    epochs = sorted((int(epoch), start) for epoch, start in metadata["segmentLeaderEpochs"].items())
    return RemoteSegmentInfo(
        place=TopicIdPartition(topic["topic"], place["topicId"], topic["partition"]),
        segment_id=segment_id["id"],
        start_offset=metadata["startOffset"],
        end_offset=metadata["endOffset"],
        epochs=tuple(epochs),
        max_timestamp_ms=metadata["maxTimestampMs"],
        size_bytes=size_bytes,
        state=FINISHED,
    )

"""What `ls` tells of topics, partitions and segments, as values.

Cheap on purpose: a directory listing, and a few small reads per segment (its first batch header,
the ends of its indexes). Logs are not scanned, except where an index is missing or wrong and has to
be built in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.format.batch import HEADER_BYTES, MAGIC_2, BatchHeader, Codec, TimestampType, peek
from stratalog.format.legacy import LegacyHeader
from stratalog.format.names import FileState, RootFile
from stratalog.format.txn_index import ENTRY_BYTES as TXN_ENTRY_BYTES

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from stratalog.format.checkpoint import EpochEntry
    from stratalog.format.names import TopicPartition
    from stratalog.format.snapshot import ProducerEntry
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.listing import ListedFile
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.transactions import MissingIndex
    from stratalog.partitions.view import LogDirView
    from stratalog.storage.index_view import IndexView
    from stratalog.storage.segment_view import SegmentView

CHECKPOINTS: Final = {
    "high_watermark": RootFile.HIGH_WATERMARKS,
    "recovery_point": RootFile.RECOVERY_POINTS,
    "cleaner_offset": RootFile.CLEANER_OFFSETS,
}


@dataclass(frozen=True)
class FirstBatch:
    """What the first batch of a segment says."""

    timestamp: int
    """Of its first record where the header has it, else its largest."""
    codec: str
    magic: int


@dataclass(frozen=True)
class Wanted:
    """What to look at besides the partition as a whole. Each costs some more reads."""

    segments: bool = False
    epochs: bool = False
    producers: bool = False
    transactions: bool = False


@dataclass(frozen=True)
class PartitionFacts:
    """One partition. What was not wanted is empty or None."""

    topic_partition: TopicPartition
    path: Path
    topic_id: uuid.UUID | None
    segment_count: int
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    first: FirstBatch | None
    """None when the log holds no batch."""
    largest_timestamp: int
    checkpoints: Mapping[str, int | None]
    """By the names of `CHECKPOINTS`; None where the log directory has no entry."""
    segments: Sequence[SegmentFacts] = ()
    in_transit: Sequence[ListedFile] = ()
    """Files being deleted, or written and swapped in by compaction."""
    epochs: Sequence[EpochEntry] = ()
    producers: Sequence[ProducerEntry] = ()
    aborted: Sequence[AbortedTxn] = ()
    last_stable_offset: int | None = None
    missing_indexes: Sequence[MissingIndex] = ()
    """Transaction indexes; whatever was wanted."""

    @property
    def label(self) -> str:
        """`topic-partition`, or the directory's name where that is no partition's."""
        return label_of(self.topic_partition)


@dataclass(frozen=True)
class IndexFacts:
    """One sparse index of a segment."""

    entries: int
    size_bytes: int | None
    """Of the file; None when there is none."""
    origin: str
    """`file`, or why the file was not used."""


@dataclass(frozen=True)
class SegmentFacts:
    """One segment."""

    path: Path
    base_offset: int
    next_offset: int
    """Base offset of the next segment, or the log end offset."""
    size_bytes: int
    offset_index: IndexFacts
    time_index: IndexFacts
    aborted_transactions: int
    has_snapshot: bool
    """Of the producers before its first offset."""
    first: FirstBatch | None
    largest_timestamp: int


class Checkpoints:
    """The offset files at the root of one log directory, read once."""

    def __init__(self, log_dir: LogDirView | None) -> None:
        self._offsets = {
            name: log_dir.checkpoint(file) if log_dir else {} for name, file in CHECKPOINTS.items()
        }

    def of(self, topic_partition: TopicPartition) -> dict[str, int | None]:
        return {name: offsets.get(topic_partition) for name, offsets in self._offsets.items()}


def partition_facts(
    view: PartitionView, checkpoints: Checkpoints, wanted: Wanted
) -> PartitionFacts:
    """Look at one partition."""
    segments = view.segments
    return PartitionFacts(
        topic_partition=view.topic_partition,
        path=view.path,
        topic_id=view.topic_id,
        segment_count=len(segments),
        size_bytes=view.size_bytes,
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        first=next(filter(None, map(first_batch, segments)), None),
        largest_timestamp=max(
            segments.largest_timestamp(slot).timestamp for slot in range(len(segments))
        ),
        checkpoints=checkpoints.of(view.topic_partition),
        segments=segment_facts(view) if wanted.segments else (),
        in_transit=files_in_transit(view.listing.files) if wanted.segments else (),
        epochs=view.leader_epochs if wanted.epochs else (),
        producers=view.producers if wanted.producers else (),
        aborted=view.aborted_transactions() if wanted.transactions else (),
        last_stable_offset=view.last_stable_offset if wanted.transactions else None,
        missing_indexes=view.missing_txn_indexes(),
    )


def segment_facts(view: PartitionView) -> list[SegmentFacts]:
    """Look at every segment of one partition."""
    segments = view.segments
    snapshots = {offset for offset, _ in view.listing.snapshots}
    sizes = {listed.path: listed.size_bytes for listed in view.listing.files}
    ends = [*segments.bases[1:], view.log_end_offset]
    found = []
    for slot, segment in enumerate(segments):
        largest = segments.largest_timestamp(slot).timestamp  # has the time index checked
        last = segment.offset_index.last()
        if last is not None:
            segment.seek(last[1])  # has the offset index checked
        found.append(
            SegmentFacts(
                path=segment.path,
                base_offset=segment.base_offset,
                next_offset=ends[slot],
                size_bytes=segment.size_bytes,
                time_index=_index_facts(segment.times.index, sizes),
                offset_index=_index_facts(segment.offset_index, sizes),
                aborted_transactions=sizes.get(segment.sibling(".txnindex"), 0) // TXN_ENTRY_BYTES,
                has_snapshot=segment.base_offset in snapshots,
                first=first_batch(segment),
                largest_timestamp=largest,
            )
        )
    return found


def files_in_transit(files: Iterable[ListedFile]) -> list[ListedFile]:
    """Files being deleted, or written and swapped in by compaction."""
    return [listed for listed in files if listed.file.state is not FileState.LIVE]


def first_batch(segment: SegmentView) -> FirstBatch | None:
    """From the header of the first batch; None when there is no whole one. Proves no CRC."""
    raw = segment.file.read(0, HEADER_BYTES)
    found = peek(raw)
    if found is None or not found.is_plausible(
        offset_min=segment.base_offset, bytes_left=segment.size_bytes
    ):
        return None
    if len(raw) < min(HEADER_BYTES, found.size_bytes):  # the file shrank
        return None
    if found.magic < MAGIC_2:
        legacy = LegacyHeader.unpack(raw)
        return FirstBatch(legacy.max_timestamp, codec_name(legacy.codec_id), legacy.magic)
    header = BatchHeader.unpack(raw)
    is_record_time = (
        header.timestamp_type is TimestampType.CREATE_TIME and header.delete_horizon_ms is None
    )
    timestamp = header.base_timestamp if is_record_time else header.max_timestamp
    return FirstBatch(timestamp, codec_name(header.codec_id), header.magic)


def label_of(topic_partition: TopicPartition) -> str:
    """`orders-3`; a directory that is not named like a partition stands for itself."""
    return str(topic_partition) if topic_partition.partition >= 0 else topic_partition.topic


def codec_name(codec_id: int) -> str:
    """Kafka's word for it; the number where it names no codec."""
    try:
        return Codec(codec_id).name.lower()
    except ValueError:
        return f"unknown({codec_id})"


def _index_facts(index: IndexView, sizes: Mapping[Path, int]) -> IndexFacts:
    return IndexFacts(index.entries, sizes.get(index.path), index.origin)

"""One partition, read-only: its segments as one log.

Opening takes no lock and never writes, so it works on a directory that a broker is appending to, on
a copy, and on a read-only file system. A view shows one moment: the segments that were listed, up
to the end of the last complete batch then; `refresh` lists them again. So does the view itself if a
broker has deleted or compacted a segment that was not open yet. Records that retention has deleted
meanwhile raise OffsetOutOfRangeError, never leave a silent gap.

Offsets in order: log start <= last stable <= log end. The high watermark is taken to be the log
end: on disk a log ends with its last complete batch.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from stratalog.errors import (
    FlushedCorruptionError,
    InvalidNameError,
    NoSegmentError,
    NotALogDirError,
    SegmentGoneError,
)
from stratalog.format.batch import NO_LEADER_EPOCH
from stratalog.format.checkpoint import decode_leader_epochs
from stratalog.format.directory_metadata import decode_partition_metadata
from stratalog.format.names import (
    DirState,
    FileKind,
    FileState,
    RootFile,
    TopicPartition,
    parse_partition_dir,
)
from stratalog.log.aborted_transactions import AbortedLookup, replay_log
from stratalog.log.epochs import LeaderEpochCache
from stratalog.log.partition_listing import list_partition
from stratalog.log.reader import LogReader
from stratalog.log.segment_list import SegmentList
from stratalog.storage.log_dir_scan import read_offset_checkpoint
from stratalog.storage.log_file import read_decoded
from stratalog.storage.remote_path import RemotePath
from stratalog.storage.store import LISTING_AGE_MAX_S

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.format.checkpoint import EpochEntry
    from stratalog.format.producer_snapshot import ProducerEntry
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.aborted_transactions import MissingIndex, ReplayedLog
    from stratalog.log.epochs import EpochEndOffset
    from stratalog.log.partition_listing import Listing
    from stratalog.log.producer_transitions import ProducerReplay
    from stratalog.storage.segment_view import SegmentEnd, SegmentView


class PartitionView(LogReader):
    """A partition directory opened for reading. Use it as a context manager, or `close` it."""

    _replayed: ReplayedLog | None = None
    """The last replay of producer state at the end of the log."""

    def __init__(
        self, path: Path, *, log_start_offset: int | None = None, base_offset: int | None = None
    ) -> None:
        """`log_start_offset` as checkpointed; None: read the log directory's checkpoint.

        `base_offset` narrows the view to the segment of that name, as if it were the whole log.
        """
        self.path = path
        self.topic_partition, self.state = identity_of(path)
        self._checkpointed_start = log_start_offset
        self._base_offset = base_offset
        self._listing = self._list(age_max_s=LISTING_AGE_MAX_S)
        if not self._listing.segments:
            raise _without_segments(path, self._listing)
        self._segments = self._segment_list(self._listing)

    def _segment_list(self, listing: Listing) -> SegmentList:
        return SegmentList(listing.segments)

    def _list(self, *, age_max_s: float = 0.0) -> Listing:
        listing = list_partition(self.path, age_max_s=age_max_s)
        if self._base_offset is None:
            return listing
        return listing._replace(
            segments=tuple(s for s in listing.segments if s.base_offset == self._base_offset)
        )

    def __repr__(self) -> str:
        return f"PartitionView({str(self.path)!r})"

    def close(self) -> None:
        """Close the open files. The view may still be used and opens them again."""
        self._segments.close()

    def refresh(self) -> None:
        """List the directory again: new segments, more bytes, moved log start."""
        listing = self._list()
        if listing.segments:
            self._listing = listing
            self._segments.close()
            self._segments = self._segment_list(listing)
        for name in ("log_start_offset", "_replay", "leader_epochs", "epochs"):
            self.__dict__.pop(name, None)

    # -- what the partition has

    @property
    def listing(self) -> Listing:
        """Every recognized file, when the directory was last listed."""
        return self._listing

    @property
    def segments(self) -> SegmentList:
        return self._segments

    @property
    def size_bytes(self) -> int:
        """Size of the `.log` files."""
        return sum(segment.size_bytes for segment in self._listing.segments)

    @cached_property
    def log_start_offset(self) -> int:
        """The first offset that readers may see."""
        start = self._checkpointed_start
        if start is None:
            start = self._read_log_start()
        return max(start, self._segments.bases[0])

    def _read_log_start(self) -> int:
        return self.checkpointed(RootFile.LOG_START_OFFSETS) or 0

    def checkpointed(self, file: RootFile) -> int | None:
        """The offset that a checkpoint of the log directory has for this partition, if any."""
        return read_offset_checkpoint(self._log_dir, file).get(self.topic_partition)

    @property
    def _log_dir(self) -> Path:
        # "." and ".." have no name to go up from; a linked partition belongs where the link is.
        is_named = self.path.name not in {"", ".."}
        return self.path.parent if is_named else self.path.resolve().parent

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get (exclusive end)."""
        end = self.retry_if_gone(lambda: self._segments.end)
        return max(end.next_offset, self.log_start_offset)

    @property
    def knows_end(self) -> bool:
        """Whether the log end offset is known without a request to the store."""
        return not isinstance(self._segments.last.path, RemotePath) or self._segments.is_end_known

    def check_end(self) -> None:
        """Raise FlushedCorruptionError if the log ends in corruption, not in a torn write.

        Bytes after the last complete batch look the same in both cases; the checkpoint of how far
        the log was flushed, if there is one, distinguishes them.
        """
        flushed = self.checkpointed(RootFile.RECOVERY_POINTS) or 0
        if self._base_offset is not None or self._corrupt_end(flushed) is None:
            return
        with PartitionView(self.path) as again:  # a broker may have appended since
            end = again._corrupt_end(flushed)
            if end is not None:
                raise FlushedCorruptionError(
                    f"corrupt: the log was flushed up to offset {flushed}, but its last complete "
                    f"batch ends at {end.next_offset}",
                    path=again._listing.segments[-1].path,
                    position=end.position,
                )

    def _corrupt_end(self, flushed: int) -> SegmentEnd | None:
        end = self.retry_if_gone(lambda: self._segments.end)
        has_rest = end.position < self._listing.segments[-1].size_bytes
        return end if has_rest and end.next_offset < flushed else None

    @property
    def last_stable_offset(self) -> int:
        """Up to here (exclusive) every transaction has ended."""
        first_open = self._replay.first_open_offset
        if first_open is None:
            return self.log_end_offset
        return max(first_open, self.log_start_offset)

    @property
    def producers(self) -> tuple[ProducerEntry, ...]:
        """What is known of each producer at the end of the log, by producer id."""
        return tuple(entry for _, entry in sorted(self._replay.producers.items()))

    @cached_property
    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """From `leader-epoch-checkpoint`; empty when there is no such file."""
        return read_decoded(self.path / FileKind.LEADER_EPOCHS.value, decode_leader_epochs) or ()

    @cached_property
    def epochs(self) -> LeaderEpochCache:
        """Leader epochs. Do not change them."""
        return LeaderEpochCache(self.leader_epochs)

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the last leader; -1 if unknown."""
        latest = self.epochs.latest_epoch
        return NO_LEADER_EPOCH if latest is None else latest

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        """Where the records of this leader epoch end."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    @cached_property
    def topic_id(self) -> uuid.UUID | None:
        """From `partition.metadata`; None when there is no such file."""
        return read_topic_id(self.path)

    def aborted_transactions(self, start: int = 0, end: int | None = None) -> list[AbortedTxn]:
        """The aborted transactions that touch the offsets [start, end)."""
        stop = self.log_end_offset if end is None else end
        indexed = self.retry_if_gone(lambda: self._aborted_lookup(self._replay).find(start, stop))
        # A live broker writes the marker before the index entry; the replay has seen the marker.
        replayed = [
            txn
            for txn in self._replay.aborted
            if txn.last_offset >= start and txn.first_offset < stop
        ]
        return sorted({*indexed, *replayed}, key=lambda txn: txn.last_offset)

    def missing_txn_indexes(self) -> list[MissingIndex]:
        """The `.txnindex` files that are missing although transactions were aborted in their
        segments; each is also logged as a warning, once.

        Costs a small read per segment, and a walk over the headers of a segment only where
        transactions ended. `aborted_transactions` may find more: it does not sample.
        """
        return self.retry_if_gone(lambda: self._aborted_lookup(None).missing())

    def _aborted_lookup(self, replay: ProducerReplay | None) -> AbortedLookup:
        listing = self._listing
        return AbortedLookup(self._segments, lambda: listing.snapshots, replay=replay)

    @cached_property
    def _replay(self) -> ProducerReplay:
        return self._new_replay()

    def _new_replay(self) -> ProducerReplay:
        earlier, self._replayed = self._replayed, None

        def replay() -> ReplayedLog:
            nonlocal earlier
            continued, earlier = earlier, None  # if it fails halfway, it cannot be continued again
            return replay_log(
                self._segments, self._listing.snapshots, self.log_end_offset, continued
            )

        self._replayed = self.retry_if_gone(replay)
        return self._replayed.replay

    def refresh_segments(self) -> None:
        before = self._listing.segments
        self.refresh()
        if isinstance(self.path, RemotePath):
            self._check_none_lost(before)

    def _check_none_lost(self, before: Sequence[SegmentView]) -> None:
        """Raise SegmentGoneError for a segment that a store has lost. Retention deletes from the
        start; a segment that compaction has merged into the one before it is in that one, which
        then is another file. The end of the log, once it is known, does not move back."""
        now = {segment.base_offset: segment.identity for segment in self._listing.segments}
        first = min(now)
        for earlier, segment in pairwise(before):
            is_gone = segment.base_offset > first and segment.base_offset not in now
            if is_gone and now.get(earlier.base_offset, earlier.identity) == earlier.identity:
                raise SegmentGoneError(segment.path)
        end = before[-1].__dict__.get("end")
        if end is not None and self._segments.end.next_offset < end.next_offset:
            raise SegmentGoneError(before[-1].path)

    def _may_read_without_end(self, offset: int) -> bool:
        return isinstance(self.path, RemotePath) and offset < self._segments.bases[-1]

    def check_range(self, offset: int) -> None:
        # Up to the last segment the log certainly reaches; its end need not be looked for.
        if not self.log_start_offset <= offset <= self._segments.bases[-1]:
            super().check_range(offset)


def read_topic_id(directory: Path) -> uuid.UUID | None:
    """From `partition.metadata`; None when there is no such file."""
    metadata = read_decoded(
        directory / FileKind.PARTITION_METADATA.value, decode_partition_metadata
    )
    return None if metadata is None else metadata.topic_id


def _without_segments(path: Path, listing: Listing) -> NotALogDirError:
    """A directory that a broker is just creating has no file of a segment yet."""
    for listed in listing.files:
        if listed.file.state is FileState.LIVE and listed.file.base_offset is not None:
            return NotALogDirError(
                f"{path}: no segment (*.log) in this directory, but {listed.path.name}; "
                "restore the partition from a replica"
            )
    return NoSegmentError(path)


def identity_of(path: Path) -> tuple[TopicPartition, DirState]:
    """Partition and state by the name of a directory. A copy under another name is a log, too: its
    partition is unknown, -1."""
    name = path.resolve().name
    try:
        directory = parse_partition_dir(name)
    except InvalidNameError:
        directory = None
    if directory is None:
        return TopicPartition(name, -1), DirState.LIVE
    return directory.topic_partition, directory.state

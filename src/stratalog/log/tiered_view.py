"""One tiered log: its remote segments, then its local ones, as one log.

A broker moves closed segments to a store and deletes them from its disk later. Offsets below the
first local segment are read from the store, all others from the disk; where both have a record it
is the same. `remote_segments` decides which remote segment serves which offsets. Records of a
remote segment outside of these are not part of the log, and are not returned.

Without any disk of a broker the log is what the store has. Then its exact start is unknown:
deleted records may still be in the first segment.

Nothing is inferred from what is missing: offsets that the checkpoints of a log directory name, and
that are neither local nor in the store, are an error.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from stratalog.errors import PartitionGoneError, SegmentGoneError, TieredLogError
from stratalog.format.names import DirState, RootFile
from stratalog.format.producer_snapshot import decode_snapshot
from stratalog.log.aborted_transactions import AbortedLookup
from stratalog.log.partition_listing import Listing, list_partition
from stratalog.log.partition_view import PartitionView
from stratalog.log.producer_transitions import ProducerReplay
from stratalog.log.segment_list import SegmentList
from stratalog.storage.index_view import OFFSET_INDEX, IndexView
from stratalog.storage.log_dir_scan import read_offset_checkpoint
from stratalog.storage.remote_path import WHOLE_FILE_BYTES
from stratalog.storage.segment_view import LargestTimestamp, SegmentEnd, SegmentView

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.format.checkpoint import EpochEntry
    from stratalog.format.names import TopicPartition
    from stratalog.log.remote_segments import RemoteLog, ServedRange
    from stratalog.storage.index_view import IndexFormat
    from stratalog.storage.log_file import LogFile
    from stratalog.storage.tiered_store import StoredSegment, TieredStore


class RemoteSegmentView(SegmentView):
    """A segment in the store, up to the last offset that it serves."""

    def __init__(self, stored: StoredSegment, base_offset: int, size_bytes: int) -> None:
        super().__init__(stored.log, base_offset, size_bytes)
        self.stored = stored
        if stored.store.layout == "aiven":  # its manifest says whether there is an index
            self.aborted_not_indexed = ()

    @cached_property
    def file(self) -> LogFile:
        try:
            return self.stored.open()
        except FileNotFoundError:
            reason = (
                "missing in the store, although the segment was copied completely. If a broker has "
                "deleted it meanwhile, open the log directories again; otherwise restore the "
                "object from a copy of the store"
            )
            raise SegmentGoneError(self.path, reason) from None

    def check_in_place(self) -> None:
        """Objects of tiered segments are never replaced."""

    def _load_index_file(self, of: IndexFormat) -> IndexView | None:
        data = self.stored.side_file("offset" if of is OFFSET_INDEX else "timestamp")
        return None if data is None else IndexView(of, self.path, self.base_offset, data)

    @property
    def _is_fetched_whole(self) -> bool:
        return self.stored.size_bytes <= WHOLE_FILE_BYTES and not self._reads_index_files

    def read_txn_index(self) -> bytes | None:
        return self.stored.side_file("transaction")


class TieredView(PartitionView):
    """A partition with a remote part."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        local: Path | None,
        remote: RemoteLog,
        place: tuple[TieredStore, Path],
        lineage: Sequence[EpochEntry] | None = None,
        log_dirs: Sequence[Path] = (),
    ) -> None:
        """`local` is the partition directory; None: there is only the store. `place` is the store
        and the directory of the partition in it. `lineage` replaces the leader epochs of the
        local log. Without `local`, the checkpoints of `log_dirs` may still name the partition."""
        self._local = local
        self.remote = remote
        """All segments of the partition that are in the store."""
        self._store, self._directory = place
        self._given_lineage = lineage
        self._log_dirs = log_dirs
        self._checkpointed_start = None
        self._base_offset = None
        self.path = local or self._directory
        self.topic_partition, self.state = topic_partition, DirState.LIVE
        self._listing = self._list()
        self._segments = self._segment_list(self._listing)

    def _list(self, *, age_max_s: float = 0.0) -> Listing:
        if self._local is None:
            return Listing((), (), ())
        try:
            return list_partition(self._local, age_max_s=age_max_s)
        except PartitionGoneError:
            return Listing((), (), ())

    @property
    def lineage(self) -> Sequence[EpochEntry]:
        """The leader epochs that decide which remote segments count."""
        return self.leader_epochs if self._given_lineage is None else self._given_lineage

    @cached_property
    def served(self) -> list[ServedRange]:
        """The remote part of the log: offsets below the first local segment, in order."""
        local_start = self.local_start_offset
        found = []
        for each in self.remote.served(self.lineage, self._known_start):
            if local_start is not None and each.first_offset >= local_start:
                break
            last = each.last_offset
            if local_start is not None:
                last = min(last, local_start - 1)
            found.append(each._replace(last_offset=last))
        return found

    @property
    def _known_start(self) -> int:
        return self._read_log_start()

    def checkpointed(self, file: RootFile) -> int | None:
        if self._local is not None:
            return super().checkpointed(file)
        found = (read_offset_checkpoint(path, file) for path in self._log_dirs)
        return max(
            (each[at] for each in found if (at := self.topic_partition) in each), default=None
        )

    @property
    def local_start_offset(self) -> int | None:
        """Base offset of the first local segment; None without any."""
        segments = self._listing.segments
        return segments[0].base_offset if segments else None

    def _segment_list(self, listing: Listing) -> SegmentList:
        self.__dict__.pop("served", None)
        served = self.served
        self._check_no_gap(served)
        self._check_known_end(served)
        remote = [self._view_of(each) for each in served]
        if not remote and not listing.segments:
            raise TieredLogError(
                f"{self.topic_partition}: {self._directory} has no complete segment of this log"
            )
        bases = [each.first_offset for each in served]
        bases += [segment.base_offset for segment in listing.segments]
        return SegmentList((*remote, *listing.segments), bases)

    def _check_no_gap(self, served: Sequence[ServedRange]) -> None:
        """Raise if the store lacks offsets of the log: they were copied, so they must be there.
        Those at the start may have been deleted since the checkpoint was written."""
        checkpointed = self.checkpointed(RootFile.LOG_START_OFFSETS)
        expected = self._after_deleted(checkpointed, served)
        for each in served:
            if expected is not None and each.first_offset != expected:
                self._raise_gap(expected, each.first_offset)
            expected = each.last_offset + 1
        start, expected = self.local_start_offset, expected or 0
        if start is None or expected >= start:
            return
        if served or not self.remote.has_deleted(expected, start):
            self._raise_gap(expected, start)

    def _after_deleted(self, checkpointed: int | None, served: Sequence[ServedRange]) -> int | None:
        """Where the remote part must begin; None: anywhere."""
        if checkpointed is None or not served:
            return checkpointed
        first = served[0].first_offset
        return first if self.remote.has_deleted(checkpointed, first) else checkpointed

    def _check_known_end(self, served: Sequence[ServedRange]) -> None:
        """Raise if there are no local segments, and checkpoints name offsets after the remote
        ones: these were on the disk only."""
        if self._listing.segments:
            return
        files = (RootFile.RECOVERY_POINTS, RootFile.HIGH_WATERMARKS)
        known = max(self.checkpointed(file) or 0 for file in files)
        end = served[-1].last_offset + 1 if served else self._known_start
        if end < known:
            place = self._local or ", ".join(map(str, self._log_dirs))
            raise TieredLogError(
                f"{self.topic_partition}: the log ends at offset {known} according to the "
                f"checkpoints in its log directory, but its segments in {self._directory} end at "
                f"{end}, and {place} has no local segment of it; restore the partition directory. "
                "To read only the remote part, give log directories without these checkpoints"
            )

    def _raise_gap(self, start: int, end: int) -> None:
        raise TieredLogError(
            f"{self.topic_partition}: no remote segment has the offsets {start} to {end - 1} of "
            f"this log, looked up by its leader epochs in {self._directory}; check that the log "
            "directories include the ones with all partitions of __remote_log_metadata"
        )

    def _view_of(self, served: ServedRange) -> SegmentView:
        info = served.segment
        stored = self._store.segment(self._directory, info.name, info.size_bytes)
        view = RemoteSegmentView(stored, info.start_offset, info.size_bytes)
        if served.last_offset < info.end_offset:
            view.size_bytes = view.seek(served.last_offset + 1).position
            view.release()  # what was looked up is of the whole segment
        else:
            view.known_largest = LargestTimestamp(info.max_timestamp_ms, info.end_offset)
        view.end = SegmentEnd(view.size_bytes, served.last_offset + 1)
        return view

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    def check_end(self) -> None:
        if self._listing.segments:
            super().check_end()

    def _aborted_lookup(self, replay: ProducerReplay | None) -> AbortedLookup:
        return AbortedLookup(self._segments, lambda: self._all_snapshots, replay=replay)

    @property
    def _all_snapshots(self) -> tuple[tuple[int, Path], ...]:
        """The local ones, and those that are objects: each is of the end of its segment."""
        remote = []
        for part in self.served:
            info = part.segment
            if self._store.layout == "local" and part.last_offset == info.end_offset:
                stored = self._store.segment(self._directory, info.name, info.size_bytes)
                remote.append((info.end_offset + 1, stored.side_path("producerSnapshot")))
        return (*remote, *self._listing.snapshots)

    def _new_replay(self) -> ProducerReplay:
        """A remote segment is stored with the state of producers at its end. Without a local log
        that is the state at the end of the log: a transaction may have ended in a segment that is
        not in the store, then its outcome is not known here."""
        last = self._segments[len(self._segments) - 1]
        if not isinstance(last, RemoteSegmentView):
            return super()._new_replay()
        raw = last.stored.side_file("producerSnapshot")
        entries = decode_snapshot(raw) if raw else ()
        return ProducerReplay(entries, start_offset=self.log_end_offset)

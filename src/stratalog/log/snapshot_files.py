"""Producer snapshots: which ones a log keeps, their files, and producer state reloaded from them.

A snapshot belongs to the segment that begins where it was taken, and one more belongs to the end of
the log, written by a clean shutdown. It is deleted with its segment, and any outside the log is
wrong: state is never loaded from it. Snapshots are derived from the log, so a crash may leave them
old or partial; loading sorts that out.

When the log start moves inside a segment nothing is deleted: the snapshots below it are deleted
with their segments, or at the next load as `snapshots_out_of_range`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from stratalog.format.names import FileKind, FileState, known_partition_file, segment_file_name
from stratalog.log.aborted_transactions import producer_batches
from stratalog.log.segment_list import SegmentList
from stratalog.storage.log_file import read_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from stratalog.format.batch import BatchHeader
    from stratalog.format.control import EndMarker
    from stratalog.log.producer_state_manager import ProducerStateManager
    from stratalog.storage.disk import Disk
    from stratalog.storage.segment import Segment

_log = logging.getLogger(__name__)


def stray_snapshots(snapshots: Iterable[int], segment_bases: Collection[int]) -> list[int]:
    """Snapshots to delete when a log is loaded, because no segment begins there.

    The newest such one stays if it is above every segment's base offset: a clean shutdown wrote it
    at the end of the log.
    """
    bases = frozenset(segment_bases)
    strays = sorted(offset for offset in snapshots if offset not in bases)
    if strays and strays[-1] > max(bases, default=-1):
        strays.pop()
    return strays


def snapshots_out_of_range(
    snapshots: Iterable[int], log_start_offset: int, log_end_offset: int
) -> list[int]:
    """Snapshots to delete before state is reloaded: above the log's end, or not above its start.

    At the log start there is nothing to remember, and what comes later was truncated.
    """
    return sorted(offset for offset in snapshots if not log_start_offset < offset <= log_end_offset)


def snapshots_of_segments(
    snapshots: Iterable[int], removed_bases: Collection[int], kept_bases: Collection[int] = ()
) -> list[int]:
    """Snapshots that are deleted with these segments, by retention, truncation or compaction.

    Compaction removes segments and puts others in their place; where one of those (`kept_bases`)
    begins at the same offset, the snapshot stays.
    """
    removed = set(removed_bases).difference(kept_bases)
    return sorted(removed.intersection(snapshots))


def snapshots_to_take(segment_bases: Collection[int], end_offset: int) -> list[int]:
    """Where to take snapshots while state is rebuilt up to `end_offset`.

    At the last two segments' bases, so that a later truncation need not begin at the first segment
    again, and at the end.
    """
    return sorted({*sorted(segment_bases)[-2:], end_offset})


class SnapshotFiles:
    """The `.snapshot` files of one partition, known by their offsets."""

    def __init__(self, disk: Disk, directory: Path, offsets: Iterable[int] = ()) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets = set(offsets)

    @classmethod
    def found_in(cls, disk: Disk, directory: Path, names: Iterable[str]) -> SnapshotFiles:
        """The snapshots among the names of a directory."""
        found = (_snapshot_offset(name) for name in names)
        return cls(disk, directory, (offset for offset in found if offset is not None))

    @property
    def offsets(self) -> list[int]:
        """Oldest first."""
        return sorted(self._offsets)

    def listed(self) -> tuple[tuple[int, Path], ...]:
        """Offsets and paths, oldest first."""
        return tuple((offset, self.path_of(offset)) for offset in self.offsets)

    @property
    def latest(self) -> int | None:
        return max(self._offsets, default=None)

    def path_of(self, offset: int) -> Path:
        return self._directory / segment_file_name(offset, FileKind.PRODUCER_SNAPSHOT)

    def newest_first(self) -> Iterator[tuple[int, bytes]]:
        """Offset and content, read one at a time."""
        for offset in sorted(self._offsets, reverse=True):
            yield offset, read_file(self.path_of(offset))

    def take(self, producers: ProducerStateManager, *, is_synced: bool = True) -> None:
        """Write a snapshot at the end of the map, unless the newest file covers it."""
        if not producers.needs_snapshot:
            return
        offset = producers.map_end_offset
        self._disk.write_file(self.path_of(offset), producers.snapshot(), is_synced=is_synced)
        self._offsets.add(offset)
        producers.on_snapshot_written()

    def sync(self, offset: int) -> None:
        """Make the snapshot at `offset` durable, if there is one."""
        if offset in self._offsets:
            self._disk.fsync(self.path_of(offset))

    def delete(self, offsets: Iterable[int]) -> None:
        for offset in list(offsets):
            self._disk.unlink(self.path_of(offset), missing_ok=True)
            self._offsets.discard(offset)

    def mark_deleted(self, offsets: Collection[int]) -> None:
        """Rename them to `.deleted`."""
        for offset in self._offsets.intersection(offsets):
            name = segment_file_name(offset, FileKind.PRODUCER_SNAPSHOT, FileState.DELETED)
            self._disk.rename(self.path_of(offset), self._directory / name)
            self._offsets.discard(offset)


def _snapshot_offset(name: str) -> int | None:
    file = known_partition_file(name)
    if file is None or file.kind is not FileKind.PRODUCER_SNAPSHOT:
        return None
    return file.base_offset if file.state is FileState.LIVE else None


class ProducerReload:
    """Reloads producer state after a log was loaded or truncated: the newest valid snapshot and the
    batches after it."""

    def __init__(
        self,
        producers: ProducerStateManager,
        snapshots: SnapshotFiles,
        segments: Sequence[Segment],
        log_start_offset: int,
    ) -> None:
        self._producers = producers
        self._snapshots = snapshots
        self._segments = segments
        self._log_start_offset = log_start_offset

    def run(self, end_offset: int, now_ms: int, *, is_clean: bool = False) -> None:
        """State of everything below `end_offset`, with snapshots where a reload may need them.

        After a clean shutdown without any snapshot there never was a producer (brokers before 0.11
        had none): then nothing is replayed.
        """
        bases = [segment.base_offset for segment in self._segments]
        pending = snapshots_to_take(bases, end_offset)
        if is_clean and not self._snapshots.offsets:
            self._producers.truncate_fully_and_start_at(self._log_start_offset)
            self._take(pending)
            return
        self._restore(end_offset, now_ms)
        for header, marker in self._batches_up_to(end_offset):
            reached = [offset for offset in pending if offset <= header.base_offset]
            pending = pending[len(reached) :]
            self._take(reached)
            self._producers.replay(header, marker)
            if marker is not None:  # nobody reads meanwhile: an ended transaction blocks no reader
                self._producers.on_high_watermark_updated(header.next_offset)
        self._take(pending)

    def _batches_up_to(self, end_offset: int) -> Iterable[tuple[BatchHeader, EndMarker | None]]:
        """The batches after the snapshot. Often there are none, and nothing is read."""
        start_offset = self._producers.map_end_offset
        if start_offset >= end_offset:
            return ()
        views = SegmentList([segment.view() for segment in self._segments])
        return producer_batches(views, start_offset, end_offset)

    def _restore(self, end_offset: int, now_ms: int) -> None:
        snapshots, start_offset = self._snapshots, self._log_start_offset
        outside = snapshots_out_of_range(snapshots.offsets, start_offset, end_offset)
        snapshots.delete(outside)
        unreadable = self._producers.truncate_and_reload(
            start_offset, end_offset, snapshots.newest_first(), now_ms
        )
        snapshots.delete(unreadable)

    def _take(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            if offset > self._producers.map_end_offset or offset == self._log_start_offset:
                self._producers.map_end_offset = max(offset, self._producers.map_end_offset)
            self._snapshots.take(self._producers)

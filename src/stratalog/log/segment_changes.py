"""Deletes the oldest segments of a log, or replaces some with compacted ones.

Retention, the cleaner and other maintenance change a log only through these methods, as
`PartitionLog.maintenance`. As in Kafka, deleted segments are renamed to `.deleted` and stay for
`file.delete.delay.ms`. Readers that have one open read it to its end; others get a new list of
segments, without it.

Invariants, even after a crash or a power failure:

* segments are deleted oldest first, each durably before the next one, so there is never a gap;
* the log start offset is moved before segments are deleted, so nobody sees a log that starts in the
  middle of a deleted segment;
* the directory entry of the remaining segment is durable before the last other segment is renamed,
  so offsets never start again at zero.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stratalog.errors import (
    CleaningAbortedError,
    LogOfflineError,
    OffsetOutOfRangeError,
    StorageError,
)
from stratalog.format.names import FileKind, FileState, segment_file_name
from stratalog.log.log_state import IndexSizes
from stratalog.log.snapshot_files import snapshots_of_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from stratalog.log.log_state import LogOffsets, LogSegments, LogState, WriteGuard
    from stratalog.storage.disk import Disk
    from stratalog.storage.segment import Segment

DELETE_UP_TO_HIGH_WATERMARK: Final = -1

_INDEX_KINDS: Final = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)
_log = logging.getLogger(__name__)


class TruncationEpoch:
    """How often a log was truncated: odd while a truncation is under way."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def __enter__(self) -> None:
        self.value += 1

    def __exit__(self, *_: object) -> None:
        self.value += 1

    def truncated_since(self, epoch: int) -> bool:
        """Whether bytes that could be read at this epoch may have been truncated."""
        return bool(epoch % 2) or self.value != epoch


class SegmentChanges:
    """What maintenance may do to the segments of one log."""

    def __init__(
        self,
        state: LogState,
        guard: WriteGuard,
        segments: LogSegments,
        offsets: LogOffsets,
        truncations: TruncationEpoch,
    ) -> None:
        self.before_truncation: Callable[[int], None] = lambda _offset: None
        """Called before a truncation with the lowest offset that it affects. If it raises, the log
        is not truncated."""
        self.last_index_sizes: IndexSizes | None = None
        """How large the indexes of the last segment may be when the log is closed, if that is
        limited: if they are larger, the log gets a new, empty last segment."""
        self.pending_commit_offset: int | None = None
        """Where a bulk commit begins that is not yet recorded as installed. Retention keeps what
        follows: it shows how much of the commit is installed."""
        self._topic_partition = state.topic_partition
        self._epochs = state.epochs
        self._guard = guard
        self._segments = segments
        self._offsets = offsets
        self._truncations = truncations
        self._discarded: dict[Path, int] = {}  # files that wait to be removed: from when on

    @property
    def lock(self) -> WriteGuard:
        """`with log.maintenance.lock:` keeps other threads from changing the log. Readers can
        continue.

        For maintenance that reads `segments` and then changes them. Raises LogOfflineError if the
        log cannot be changed.
        """
        return self._guard

    @property
    def segments(self) -> Sequence[Segment]:
        """The writable segments, oldest first. To act on them, hold `lock`."""
        return self._segments.all

    @property
    def disk(self) -> Disk:
        """For files that are written next to the log's."""
        return self._segments.disk

    # -- where the log starts

    def delete_records(self, offset: int) -> int:
        """See `PartitionLog.delete_records`."""
        with self._guard:
            offsets = self._offsets
            target = offsets.high_watermark if offset == DELETE_UP_TO_HIGH_WATERMARK else offset
            self._check_start(target)
            if target > offsets.log_start:
                with self._guard.fatal():
                    self._move_start(target)
                    self._epochs.flush()
            return offsets.log_start

    def _move_start(self, offset: int) -> None:
        """Move the log start in memory. The epochs are written after the segments are gone: loading
        can trim epochs, but not restore them."""
        offsets = self._offsets
        if offset > offsets.log_start:
            self._epochs.truncate_from_start(offset)
            offsets.move_start(offset, self._segments.snapshots.latest)

    def _check_start(self, offset: int) -> None:
        offsets = self._offsets
        if not 0 <= offset <= offsets.high_watermark:
            raise OffsetOutOfRangeError(
                offset, log_start_offset=offsets.log_start, log_end_offset=offsets.high_watermark
            )

    # -- deleting segments

    def delete_oldest(self, count: int) -> int:
        """Delete the `count` oldest segments, durably; returns the new log start.

        If those are all there are, the log first begins another one, so the last must not be
        empty. Raises OffsetOutOfRangeError, and changes nothing, if records above the high
        watermark would be deleted.
        """
        with self._guard:
            segments = self._segments
            if not 0 <= count <= len(segments.all):
                raise ValueError(f"{count} of {len(segments.all)} segments cannot be deleted")
            if not count:
                return self._offsets.log_start
            if count == len(segments.all):
                self._roll_to_delete_all()
            deleted, kept = list(segments.all[:count]), list(segments.all[count:])
            self._check_start(kept[0].base_offset)
            with self._guard.fatal():
                self._move_start(kept[0].base_offset)
                segments.use(kept)
                for segment in deleted:
                    self._discard([segment])
                self._epochs.flush()
            return self._offsets.log_start

    def _roll_to_delete_all(self) -> None:
        if not self._segments.active.size_bytes:
            raise ValueError("the last segment is empty; the log needs it")
        self._check_start(self._offsets.end)
        self._segments.roll(self._offsets.end)

    # -- replacing segments

    def replace_segments(
        self, bases: Sequence[int], new: Segment, *, old_bytes: int, truncation_epoch: int
    ) -> None:
        """Put `new`, which is complete and durable under `.cleaned` names, in the place of the
        segments that begin at `bases`.

        They are adjacent, have `old_bytes` bytes in total, and begin where `new` does; the active
        segment is not among them. At each moment, the names show a loader which of the two counts
        (see `maintenance.interrupted_changes`): from `.swap` on it is `new`. Raises
        CleaningAbortedError, leaves the log as it is and removes `new`, if the log no longer has
        the segments as they were, or was truncated at all since `truncation_epoch`: a record that
        `new` lacks because of a newer one, which was truncated, may be the last of its key.
        """
        try:
            with self._guard:
                if self._truncations.truncated_since(truncation_epoch):
                    raise CleaningAbortedError(
                        self._segments.path, "the log was truncated meanwhile"
                    )
                slot = self._slot_of_neighbours(bases, old_bytes)
                self._swap(slot, slot + len(bases), new)
        except (CleaningAbortedError, LogOfflineError):  # nothing was renamed
            with suppress(StorageError):  # the next opening removes what stays
                new.delete()
            raise

    def _swap(self, start: int, stop: int, new: Segment) -> None:
        segments, disk = self._segments, self._segments.disk
        with self._guard.fatal():
            new.rename(FileState.SWAP)
            disk.fsync_dir(self._segments.path)
            old = segments.all[start:stop]
            replaced = [*segments.all[:start], new, *segments.all[stop:]]
            segments.use(replaced)
            self._discard(old, kept_bases=[new.base_offset])
            new.rename(FileState.LIVE)
            disk.fsync_dir(self._segments.path)
            # Another list: readers may have kept views of `replaced`, with `.swap` names.
            segments.use([*replaced])

    def _slot_of_neighbours(self, bases: Sequence[int], size_bytes: int) -> int:
        sealed = self._segments.all[:-1]
        slot = bisect_left(sealed, bases[0], key=lambda segment: segment.base_offset)
        found = sealed[slot : slot + len(bases)]
        is_there = [segment.base_offset for segment in found] == list(bases)
        if not is_there or sum(segment.size_bytes for segment in found) != size_bytes:
            raise CleaningAbortedError(
                self._segments.path, "segments were deleted or truncated meanwhile"
            )
        return slot

    def _discard(self, segments: Sequence[Segment], kept_bases: Collection[int] = ()) -> None:
        """Rename the files of segments that left the log, to be removed after the delay.

        Their snapshots go too, unless another segment now begins there (`kept_bases`). The logs
        are gone for good, in any order among them, before a file that belongs to one is touched:
        a log that came back without its transaction index would show aborted records.
        """
        remove_at_ms = self._segments.now_ms() + self._segments.config.file_delete_delay_ms
        disk, snapshot_files = self._segments.disk, self._segments.snapshots
        for segment in segments:
            segment.release_name()
            self._rename_away(segment.path, remove_at_ms)
        disk.fsync_dir(self._segments.path)
        for segment in segments:
            for kind in _INDEX_KINDS:
                index = segment.sibling(kind)
                if disk.exists(index):
                    self._rename_away(index, remove_at_ms)
            segment.release()
        bases = [segment.base_offset for segment in segments]
        snapshots = snapshots_of_segments(snapshot_files.offsets, bases, kept_bases)
        snapshot_files.mark_deleted(snapshots)
        for offset in snapshots:
            kind = FileKind.PRODUCER_SNAPSHOT
            name = segment_file_name(offset, kind, FileState.DELETED)
            self._discarded[self._segments.path / name] = remove_at_ms

    def _rename_away(self, path: Path, remove_at_ms: int) -> None:
        target = path.with_name(path.name + FileState.DELETED.value)
        self._segments.disk.rename(path, target)
        self._discarded[target] = remove_at_ms

    # -- removing files

    @property
    def discarded(self) -> Sequence[Path]:
        """Files that wait to be removed."""
        return tuple(self._discarded)

    def remove_discarded(self, now_ms: int, *, at_once: bool = False) -> int:
        """Remove the discarded files whose delay is over, or all of them `at_once`; returns how
        many.

        All are tried; those that cannot be removed are tried again the next time, and the first
        error is raised. Files that are left when the log is closed are removed by the next opening.
        """
        with self._guard.lock:
            overdue = [
                path for path, at_ms in self._discarded.items() if at_once or now_ms >= at_ms
            ]
            removed = {path: self._discarded.pop(path) for path in overdue}
        failure: StorageError | None = None
        for path, at_ms in removed.items():  # a large file takes its time: not under the lock
            try:
                self._segments.disk.unlink(path, missing_ok=True)
            except StorageError as error:
                failure = failure or error
                with self._guard.lock:
                    self._discarded.setdefault(path, at_ms)
        if failure is not None:
            raise failure
        return len(removed)

    def forget_discarded(self) -> None:
        """Forget discarded files, because the log is closed or belongs to the parent process.
        Others remove these files, and may reuse their names."""
        self._discarded.clear()

    # -- closing

    def limit_last_indexes(self) -> None:
        """Before the log is closed: see `last_index_sizes`."""
        limit, segments = self.last_index_sizes, self._segments
        if limit is None:
            return
        segments.seal_active()
        last = segments.active
        sizes = IndexSizes(
            segments.disk.size_of(last.sibling(FileKind.OFFSET_INDEX)) or 0,
            segments.disk.size_of(last.sibling(FileKind.TIME_INDEX)) or 0,
        )
        if sizes.exceed(limit):
            _log.warning(
                "%s: segment.index.bytes is unknown and assumed to be at most %d. The index "
                "files of the last segment have up to %d bytes; its broker might not be able to "
                "open them, so a new segment is rolled",
                self._topic_partition,
                max(limit),
                max(sizes),
            )
            segments.roll(self._offsets.end)

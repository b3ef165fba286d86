"""What maintenance does to the segments of a log: moving its start, and dropping segments.

Dropped segments are renamed to `.deleted` and stay for `file.delete.delay.ms`, as in Kafka.
Readers that have one open go on to its end; others look again and find the log without it.

Invariants, whatever a crash or a loss of power leaves:

* segments leave oldest first, and each for good before the next one begins to: no hole;
* the log start moves before they go, so nobody is shown a log that begins in the middle of one;
* the segment that a log goes on with has its name on disk before the last other one loses its own,
  so offsets never begin again at zero.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from stratalog.errors import (
    CleaningAbortedError,
    LogOfflineError,
    OffsetOutOfRangeError,
    StorageError,
)
from stratalog.format.names import FileKind, FileState, segment_file_name
from stratalog.log import snapshots as snapshot_plan
from stratalog.log.segmented_log import SegmentedLog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from stratalog.log.log_state import LogState
    from stratalog.storage.segment import Segment

DELETE_UP_TO_HIGH_WATERMARK: Final = -1

_INDEX_KINDS: Final = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)


class MaintainedLog(SegmentedLog):
    """A log whose segments come and go without a client asking for it."""

    def __init__(self, state: LogState) -> None:
        super().__init__(state)
        self._discarded: dict[Path, int] = {}  # files that wait to be removed: when that is due

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let nobody else change the log meanwhile. Readers go on.

        For maintenance that looks at `writable_segments` and acts on what it sees.
        """
        with self._changing():
            yield

    # -- where the log starts

    def delete_records(self, offset: int) -> int:
        """Let the log start at `offset` (-1: at the high watermark); answers the new log start.

        Records below are hidden at once; their segments go with the next retention pass.
        """
        with self._changing():
            target = self._high_watermark if offset == DELETE_UP_TO_HIGH_WATERMARK else offset
            self._check_start(target)
            if target > self._log_start_offset:
                with self._fatal():
                    self._move_start(target)
                    self._epochs.flush()
            return self._log_start_offset

    def _move_start(self, offset: int) -> None:
        """In memory. The epochs are written after the segments are gone: loading can trim them,
        but not bring them back."""
        if offset > self._log_start_offset:
            self._log_start_offset = offset
            self._epochs.truncate_from_start(offset)
            self._producers.on_log_start_offset_incremented(offset, self._snapshots.latest)
            self._publish(self._end)

    def _check_start(self, offset: int) -> None:
        if not 0 <= offset <= self._high_watermark:
            raise OffsetOutOfRangeError(
                offset,
                log_start_offset=self._log_start_offset,
                log_end_offset=self._high_watermark,
            )

    # -- dropping segments

    def delete_oldest(self, count: int) -> int:
        """Drop the `count` oldest segments; answers the new log start.

        If those are all there are, the log first begins another one, so the last must not be
        empty. Durable when it returns. Raises OffsetOutOfRangeError, and changes nothing, if
        records above the high watermark would go.
        """
        with self._changing():
            if not 0 <= count <= len(self._segments):
                raise ValueError(f"{count} of {len(self._segments)} segments cannot be deleted")
            if not count:
                return self._log_start_offset
            if count == len(self._segments):
                self._leave_all()
            gone, kept = self._segments[:count], self._segments[count:]
            self._check_start(kept[0].base_offset)
            with self._fatal():
                self._move_start(kept[0].base_offset)
                self._use(kept)
                for segment in gone:
                    self._discard([segment])
                self._epochs.flush()
            return self._log_start_offset

    def _leave_all(self) -> None:
        if not self._segments[-1].size_bytes:
            raise ValueError("the last segment is empty; the log goes on with it")
        self._check_start(self._end)
        self._roll(self._end, self._now_ms())

    # -- replacing segments

    def replace_segments(
        self, bases: Sequence[int], new: Segment, *, old_bytes: int, is_cut: Callable[[], bool]
    ) -> None:
        """Let `new`, which is complete and durable under `.cleaned` names, stand for the segments
        that begin at `bases`.

        Those are neighbours of `old_bytes` bytes in all, the first of them begins where `new`
        does, and none is the active one. The names tell a loader at each moment which of the two
        counts (see `maintenance.settling`): from `.swap` on it is `new`. Raises
        CleaningAbortedError, leaves the log as it is and removes `new`, if the log no longer has
        the segments as they were, or was cut at all (`is_cut`, see `cut_detector`): what `new`
        lacks because of newer records may be all that is left of a key.
        """
        try:
            with self._changing():
                if is_cut():
                    raise CleaningAbortedError(self.path, "it was cut meanwhile")
                slot = self._slot_of_neighbours(bases, old_bytes)
                self._swap(slot, slot + len(bases), new)
        except (CleaningAbortedError, LogOfflineError):  # nothing was renamed
            with suppress(StorageError):  # what stays, the next opening removes
                new.delete()
            raise

    def _swap(self, start: int, stop: int, new: Segment) -> None:
        with self._fatal():
            new.rename(FileState.SWAP)
            self._disk.fsync_dir(self.path)
            old = self._segments[start:stop]
            replaced = [*self._segments[:start], new, *self._segments[stop:]]
            self._use(replaced)
            self._discard(old, kept_bases=[new.base_offset])
            new.rename(FileState.LIVE)
            self._disk.fsync_dir(self.path)
            self._use(replaced)  # readers have seen its other name

    def _slot_of_neighbours(self, bases: Sequence[int], size_bytes: int) -> int:
        sealed = self._segments[:-1]
        slot = bisect_left(sealed, bases[0], key=lambda segment: segment.base_offset)
        found = sealed[slot : slot + len(bases)]
        is_there = [segment.base_offset for segment in found] == list(bases)
        if not is_there or sum(segment.size_bytes for segment in found) != size_bytes:
            raise CleaningAbortedError(self.path, "segments were deleted, or cut, meanwhile")
        return slot

    def _discard(self, segments: Sequence[Segment], kept_bases: Collection[int] = ()) -> None:
        """Rename the files of segments that the log has no more, to be removed after the delay.

        Their snapshots go too, unless another segment now begins there (`kept_bases`). The logs
        are gone for good, in any order among them, before a file that belongs to one is touched:
        a log that came back without its transaction index would show aborted records.
        """
        due_ms = self._now_ms() + self.config.file_delete_delay_ms
        for segment in segments:
            segment.give_up_name()
            self._rename_away(segment.path, due_ms)
        self._disk.fsync_dir(self.path)
        for segment in segments:
            for kind in _INDEX_KINDS:
                index = segment.sibling(kind)
                if self._disk.exists(index):
                    self._rename_away(index, due_ms)
            segment.release()
        bases = [segment.base_offset for segment in segments]
        snapshots = snapshot_plan.of_segments(self._snapshots.offsets, bases, kept_bases)
        self._snapshots.mark_deleted(snapshots)
        for offset in snapshots:
            kind = FileKind.PRODUCER_SNAPSHOT
            name = segment_file_name(offset, kind, FileState.DELETED)
            self._discarded[self.path / name] = due_ms

    def _rename_away(self, path: Path, due_ms: int) -> None:
        target = path.with_name(path.name + FileState.DELETED.value)
        self._disk.rename(path, target)
        self._discarded[target] = due_ms

    # -- removing what was dropped

    @property
    def discarded(self) -> Sequence[Path]:
        """Files that wait to be removed."""
        return tuple(self._discarded)

    def remove_discarded(self, now_ms: int, *, at_once: bool = False) -> int:
        """Remove dropped files whose delay is over, or all of them `at_once`; how many that were.

        Each is tried; what could not be removed stays for the next time, and the first error is
        raised then. What is left when the log is closed, the next opening removes.
        """
        with self._lock:
            due = [path for path, due_ms in self._discarded.items() if at_once or now_ms >= due_ms]
            waiting = {path: self._discarded.pop(path) for path in due}
        failure: StorageError | None = None
        for path, due_ms in waiting.items():  # a large file takes its time: not under the lock
            try:
                self._disk.unlink(path, missing_ok=True)
            except StorageError as error:
                failure = failure or error
                with self._lock:
                    self._discarded.setdefault(path, due_ms)
        if failure is not None:
            raise failure
        return len(waiting)

    def detach(self) -> None:
        self._discarded.clear()  # the parent removes them
        super().detach()

    def close(self) -> None:
        """Flush, leave a producer snapshot, trim what was preallocated. Idempotent."""
        with self._lock:
            self._discarded.clear()  # the next opening's, which may give these names to others
            super().close()

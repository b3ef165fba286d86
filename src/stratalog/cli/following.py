"""Reading one partition on and on while it changes: what `read` does, with and without `--follow`.

Between a look at the directory and the reading of a file a broker may roll a segment, delete old
ones, or truncate the log. None of that is an error: the reader looks again and goes on at the next
offset there is. What it could not read because it was gone is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.errors import OffsetOutOfRangeError, SegmentGoneError
from stratalog.log.reader import NO_LIMIT, IsolationLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stratalog.format.record import Record
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.reader import Skipped

_ATTEMPTS_MAX: Final = 5
_POLLS_UNASKED: Final = 25


@dataclass
class Tail:
    """A place in one partition that moves forward as records are taken."""

    view: PartitionView
    position: int
    """The next offset to read."""
    end_offset: int | None
    """Exclusive; None: as far as the log goes."""
    isolation: IsolationLevel
    on_skip: Callable[[Skipped], None] | None
    on_notice: Callable[[str], None]
    _seen: tuple[int, ...] | None = None
    _polls: int = 0

    @property
    def is_done(self) -> bool:
        """Whether no record can come any more."""
        return self.end_offset is not None and self.position >= self.end_offset

    def take(self, records_max: int = NO_LIMIT) -> Iterator[Record]:
        """What there is now, from the position on."""
        failures = 0
        left = records_max
        while True:
            try:
                for record in self._read(left):
                    failures = 0
                    left -= 1
                    self.position = record.offset + 1
                    yield record
                if left > 0:
                    self.position = max(self.position, self._readable_end())
                return
            except (SegmentGoneError, OffsetOutOfRangeError):  # deleted before it could be read
                failures += 1
                if failures == _ATTEMPTS_MAX:
                    raise
                self.look_again()

    def poll(self) -> bool:
        """Look again if something may have happened. Raises NotALogDirError once it is gone.

        Two stats tell: of the directory (segments come and go) and of the last segment. A file
        that is preallocated grows without changing its size, and clocks of file systems are coarse,
        so every now and then the answer is yes regardless.
        """
        self._polls += 1
        seen = self._signature()
        if seen == self._seen and self._polls % _POLLS_UNASKED:
            return False
        self._seen = seen
        self.look_again()
        return True

    def _signature(self) -> tuple[int, ...]:
        found = []
        for path in (self.view.path, self.view.listing.segments[-1].path):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            found += [stat.st_ino, stat.st_size, stat.st_mtime_ns]
        return tuple(found)

    def look_again(self) -> None:
        """See what the directory holds now. Raises NotALogDirError once it is gone."""
        self.view.refresh()
        start, end = self.view.log_start_offset, self.view.log_end_offset
        if self.position < start:
            self._notice(f"offsets {self.position} to {start - 1} were deleted before being read")
            self.position = start
        elif self.position > end:
            self._notice(
                f"the log was cut back to offset {end}, reading had reached {self.position}"
            )
            self.position = end

    def _read(self, records_max: int) -> Iterator[Record]:
        return self.view.read(
            self.position,
            self.end_offset,
            isolation=self.isolation,
            max_records=records_max,
            on_skip=self.on_skip,
        )

    def _readable_end(self) -> int:
        """Up to here all was read, markers and what aborted transactions left included."""
        is_committed = self.isolation is IsolationLevel.READ_COMMITTED
        limit = self.view.last_stable_offset if is_committed else self.view.log_end_offset
        return limit if self.end_offset is None else min(limit, self.end_offset)

    def _notice(self, text: str) -> None:
        self.on_notice(f"{self.view.path}: {text}")

"""A limit on how fast a cleaner reads: `log.cleaner.io.max.bytes.per.second`."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from stratalog.errors import CleaningAbortedError, CorruptError, SegmentGoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.selection import CleaningPlan

_NAP_S: Final = 0.1


class Throttle:
    """Lets its caller wait whenever it is ahead of the rate."""

    def __init__(
        self,
        bytes_per_second: float = math.inf,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def pay(self, size_bytes: int, may_go_on: Callable[[], bool]) -> None:
        """Return when `size_bytes` more are within the rate, or at once when told to stop.

        Time in which nothing was read is not saved up.
        """
        self._free_at = max(self._free_at, self._clock()) + size_bytes / self._rate
        while may_go_on() and (left_s := self._free_at - self._clock()) > 0:
            self._sleep(min(left_s, _NAP_S))


# A round of cleaning as seen from outside: who can do one, and what it did.


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """What a round did."""

    first_dirty_offset: int
    end_offset: int
    """The first dirty offset from now on: what the cleaner's checkpoint gets."""
    first_uncleanable_offset: int
    groups: tuple[tuple[int, ...], ...]
    """Base offsets of the segments that became one, in order."""
    map_entries: int
    is_map_full: bool
    """There is more to clean than the memory took: another round is due at once."""
    bytes_read: int
    """Of the segments that were rewritten."""
    bytes_written: int
    records_read: int
    records_kept: int
    records_without_key: int
    """Dropped: a compacted log cannot have them."""
    seconds: float


class LogCleaner(Protocol):
    """Whoever cleans a log: this process, or a cluster."""

    def clean(
        self,
        log: PartitionLog,
        selection: CleaningPlan,
        *,
        on_progress: Callable[[int], None] = ...,
        may_go_on: Callable[[], bool] = ...,
    ) -> CleaningResult:
        """See `Cleaner.clean`."""
        ...


@contextmanager
def abort_if_truncated(path: Path, is_cut: Callable[[], bool]) -> Iterator[None]:
    """What looks like damage in a log that is being cut is none: then the round is given up."""
    try:
        yield
    except (CorruptError, SegmentGoneError) as error:
        if is_cut() or isinstance(error, SegmentGoneError):
            raise CleaningAbortedError(path, "it was cut meanwhile") from error
        raise

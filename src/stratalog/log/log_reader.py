"""What can be asked of any log, whether it is only looked at or being written.

`PartitionView` (a directory, read-only) and the log of a writer differ in how they know their
segments and offsets; finding and reading are the same. Both may lose segments while they are read:
retention deletes, compaction replaces, a follower truncates. Then the reader looks again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from stratalog.errors import OffsetOutOfRangeError, SegmentGoneError
from stratalog.log.damage import DamagePolicy
from stratalog.log.isolation import AbortedRanges, IsolationLevel
from stratalog.log.listing import LOOKS_MAX
from stratalog.log.lookup import find_max_timestamp, find_time, locate_offset
from stratalog.log.reading import NO_LIMIT, ReadPlan, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import pyarrow as pa

    from stratalog.format.record import Record
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.damage import Skipped
    from stratalog.log.lookup import Location, OffsetAndTimestamp
    from stratalog.log.segments import SegmentList, SegmentPart
    from stratalog.storage.trace import Trace

T = TypeVar("T")

StartOffset: TypeAlias = int | Literal["earliest", "latest"]


class LogReader(ABC):
    """Finding and reading in one log."""

    @property
    @abstractmethod
    def segments(self) -> SegmentList:
        """The segments to read from, as of now."""

    @property
    @abstractmethod
    def log_start_offset(self) -> int:
        """The first offset that readers may see."""

    @property
    @abstractmethod
    def log_end_offset(self) -> int:
        """The offset that the next record will get (exclusive end)."""

    @property
    @abstractmethod
    def last_stable_offset(self) -> int:
        """Up to here (exclusive) every transaction has ended."""

    @property
    def high_watermark(self) -> int:
        """Up to here (exclusive) records are safe to show. On disk that is the log end."""
        return self.log_end_offset

    @abstractmethod
    def aborted_transactions(self, start: int = 0, end: int | None = None) -> list[AbortedTxn]:
        """The aborted transactions that touch the offsets [start, end)."""

    # -- while segments come and go

    @abstractmethod
    def look_again(self) -> None:
        """Learn which segments there are: one of those in `segments` is gone."""

    def parts_from(self, offset: int, trace: Trace | None = None) -> Iterator[SegmentPart]:
        """The parts of the log from `offset` on, each opened before it is handed out.

        Raises OffsetOutOfRangeError when retention has deleted what comes next.
        """
        looks = 0
        while True:
            self._check_range(offset)
            try:
                for part in self.segments.parts_from(offset, trace):
                    _ = part.segment.file  # stays readable from here on, whatever becomes of it
                    yield part
                    if part.next_base is None:
                        return
                    offset = part.next_base
            except SegmentGoneError:
                looks += 1
                if looks > LOOKS_MAX:
                    raise
                self.look_again()

    def looking_again(self, ask: Callable[[], T]) -> T:
        """The answer; a fresh one if it takes a segment that is gone."""
        for _ in range(LOOKS_MAX):
            try:
                return ask()
            except SegmentGoneError:
                self.look_again()
        return ask()

    # -- finding

    def locate(self, offset: int, trace: Trace | None = None) -> Location | None:
        """The record at `offset`, or the next one if compaction removed it; None at the log end."""
        self._check_range(offset)
        return self.looking_again(lambda: locate_offset(self.parts_from(offset, trace), trace))

    def find_time(self, timestamp: int, trace: Trace | None = None) -> OffsetAndTimestamp | None:
        """The earliest record whose timestamp (milliseconds) is `timestamp` or later."""
        return self.looking_again(
            lambda: find_time(self.segments, timestamp, self.log_start_offset, trace)
        )

    def find_max_timestamp(self) -> OffsetAndTimestamp | None:
        """The first record that has the largest timestamp."""
        return self.looking_again(lambda: find_max_timestamp(self.segments, self.log_start_offset))

    def resolve(self, start: StartOffset) -> int:
        """`earliest` and `latest` as numbers; a number as it is."""
        if start == "earliest":
            return self.log_start_offset
        if start == "latest":
            return self.high_watermark
        return start

    # -- reading

    def read(  # independent choices, all but two by keyword
        self,
        start: StartOffset = "earliest",
        end: int | None = None,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        max_bytes: int = NO_LIMIT,
        max_records: int = NO_LIMIT,
        on_skip: Callable[[Skipped], None] | None = None,
    ) -> Iterator[Record]:
        """Records from `start` up to `end` (exclusive; all that may be seen if None).

        `max_bytes` bounds the batches that are read, but the first one is always returned. Damage
        in the middle of the log raises CorruptError; give `on_skip` to be told and go on instead.
        A torn tail is no damage: the log simply ends before it.
        """
        plan = self._plan(start, end, isolation, (max_bytes, max_records), on_skip)
        return read_records(self.parts_from(plan.start_offset), plan)

    def read_columns(  # noqa: PLR0913  # as for `read`
        self,
        start: StartOffset = "earliest",
        end: int | None = None,
        *,
        columns: Collection[str] | None = None,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        max_bytes: int = NO_LIMIT,
        max_records: int = NO_LIMIT,
        on_skip: Callable[[Skipped], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The same records as `read` gives, as Arrow record batches of bounded size.

        `columns` chooses among `stratalog.format.column_types.ALL_COLUMNS`; the default is offset,
        timestamp, timestampType, key, value and headers. What is not chosen is not copied.
        """
        from stratalog.log.column_reading import ColumnReader  # noqa: PLC0415  # loads kernels

        plan = self._plan(start, end, isolation, (max_bytes, max_records), on_skip)
        return ColumnReader(plan, columns).read(self.parts_from(plan.start_offset))

    def _plan(
        self,
        start: StartOffset,
        end: int | None,
        isolation: IsolationLevel,
        limits: tuple[int, int],
        on_skip: Callable[[Skipped], None] | None,
    ) -> ReadPlan:
        start_offset = self.resolve(start)
        self._check_range(start_offset)
        limit = self.high_watermark
        aborted: list[AbortedTxn] = []
        if isolation is IsolationLevel.READ_COMMITTED:
            limit = self.last_stable_offset
            aborted = self.aborted_transactions(start_offset, limit)
        return ReadPlan(
            start_offset=start_offset,
            end_offset=limit if end is None else min(end, limit),
            aborted=AbortedRanges(aborted),
            damage=self.damage_policy(on_skip),
            bytes_max=limits[0],
            records_max=limits[1],
        )

    def damage_policy(self, on_skip: Callable[[Skipped], None] | None) -> DamagePolicy:
        """For one reading that begins now."""
        return DamagePolicy(on_skip)

    def _check_range(self, offset: int) -> None:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                offset,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
            )

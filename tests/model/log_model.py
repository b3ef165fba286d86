"""A log as a list of batches: what every answer of the real one is compared with.

Nothing here is clever. Each answer is worked out from the list, every time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stratalog.format.record import Record

PLAIN = -1


class Sent(NamedTuple):
    """The producer's part of a batch."""

    producer_id: int = PLAIN
    producer_epoch: int = -1
    base_sequence: int = -1
    is_transactional: bool = False


NOT_SENT = Sent()


class Marker(NamedTuple):
    """The end of a transaction."""

    producer_id: int
    producer_epoch: int
    is_commit: bool


class Producer(NamedTuple):
    """What a log must know of a producer."""

    producer_epoch: int
    last_sequence: int
    last_offset: int
    open_txn_first_offset: int


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class ModelBatch:
    """One batch: records, or a marker."""

    first_offset: int
    last_offset: int
    leader_epoch: int
    records: tuple[Record, ...] = ()
    sent: Sent = NOT_SENT
    marker: Marker | None = None
    timestamps: tuple[int, ...] = ()
    """Of all records, a marker's included."""

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    def moved_to(self, first_offset: int, leader_epoch: int) -> ModelBatch:
        """The same records at other offsets."""
        by = first_offset - self.first_offset
        return replace(
            self,
            first_offset=first_offset,
            last_offset=self.last_offset + by,
            leader_epoch=leader_epoch,
            records=tuple(r._replace(offset=r.offset + by) for r in self.records),
        )


@dataclass
class LogModel:
    """Batches in offset order."""

    batches: list[ModelBatch] = field(default_factory=list)
    log_start_offset: int = 0
    end: int = 0
    """A truncation inside a batch removes it whole, but the log goes on where it was told to."""

    # -- what changes it

    def append(self, batch: ModelBatch) -> None:
        assert batch.first_offset >= self.end
        self.batches.append(batch)
        self.end = batch.next_offset

    def truncate_to(self, offset: int) -> None:
        if offset < self.end:
            self.batches = [batch for batch in self.batches if batch.last_offset < offset]
            self.end = offset
            self.log_start_offset = min(self.log_start_offset, offset)

    def start_over_at(self, offset: int) -> None:
        self.batches, self.end, self.log_start_offset = [], offset, offset

    # -- what it answers

    def records(self, start: int, *, end: int | None = None) -> list[Record]:
        stop = self.end if end is None else end
        return [r for batch in self.batches for r in batch.records if start <= r.offset < stop]

    def committed(self, start: int, last_stable_offset: int) -> list[Record]:
        hidden = {
            record.offset
            for txn in self.aborted()
            for batch in self.batches
            if batch.sent.producer_id == txn.producer_id and batch.sent.is_transactional
            for record in batch.records
            if txn.first_offset <= record.offset < txn.last_offset
        }
        visible = self.records(start, end=last_stable_offset)
        return [record for record in visible if record.offset not in hidden]

    def batches_end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def find_time(self, timestamp: int) -> tuple[int, int] | None:
        for batch in self.batches:
            for offset, found in enumerate(batch.timestamps, batch.first_offset):
                if found >= timestamp and offset >= self.log_start_offset:
                    return offset, found
        return None

    def producers(self) -> dict[int, Producer]:
        found: dict[int, Producer] = {}
        for batch in self.batches:
            if batch.marker is not None:
                marker = batch.marker
                before = found.get(marker.producer_id, Producer(-1, -1, -1, -1))
                if before.producer_epoch != marker.producer_epoch:
                    before = Producer(marker.producer_epoch, -1, -1, -1)
                found[marker.producer_id] = before._replace(open_txn_first_offset=-1)
            elif batch.sent.producer_id != PLAIN:
                found[batch.sent.producer_id] = _after(found.get(batch.sent.producer_id), batch)
        return found

    def last_stable_offset(self) -> int:
        first = [
            producer.open_txn_first_offset
            for producer in self.producers().values()
            if producer.open_txn_first_offset >= 0
        ]
        return max(min(first, default=self.end), self.log_start_offset)

    def aborted(self) -> list[Aborted]:
        """Aborted transactions that had data, in the order of their markers."""
        found: list[Aborted] = []
        opened: dict[int, int] = {}
        for batch in self.batches:
            if batch.sent.is_transactional:
                opened.setdefault(batch.sent.producer_id, batch.first_offset)
            marker = batch.marker
            if marker is not None:
                first_offset = opened.pop(marker.producer_id, None)
                if first_offset is not None and not marker.is_commit:
                    found.append(Aborted(marker.producer_id, first_offset, batch.last_offset))
        return found


def _after(before: Producer | None, batch: ModelBatch) -> Producer:
    sent = batch.sent
    first = -1 if before is None else before.open_txn_first_offset
    if first < 0 and sent.is_transactional:
        first = batch.first_offset
    last_sequence = sent.base_sequence + len(batch.records) - 1
    return Producer(sent.producer_epoch, last_sequence, batch.last_offset, first)

"""What one task reads, as values: pieces of segments, packed into splits, and what was left out.

A piece is a run of whole batches of one segment: a byte range, and the offsets wanted from it. A
split is what one task reads, one or several pieces in order. Both are small and picklable, hold no
open file, and can be read from again by offset if a broker has replaced the segment meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stratalog.format.names import TopicPartition

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from stratalog.format.txn_index import AbortedTxn
    from stratalog.storage.log_file import FileIdentity

OPEN_COST_BYTES: Final = 4 << 20
"""What opening a piece costs a task, in bytes it could read instead. Spark's own figure for files:
it keeps tasks from collecting hundreds of tiny segments."""


@dataclass(frozen=True)
class Piece:
    """A run of batches of one segment."""

    directory: Path
    """Of the partition."""
    topic: str
    partition: int
    segment: Path
    base_offset: int
    identity: FileIdentity | None
    """Of the segment's file."""
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    """Exclusive: records from here on are not wanted."""
    limit_offset: int
    """No batch of these bytes reaches it."""
    aborted: tuple[AbortedTxn, ...] = ()
    """Transactions to leave out."""
    topic_id: uuid.UUID | None = None
    """Of the topic that was planned for: one that is created later under its name is another."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position

    @property
    def offsets(self) -> int:
        """How many offsets it spans; of a compacted log more than there are records."""
        return self.end_offset - self.start_offset

    def __str__(self) -> str:
        return (
            f"{self.topic_partition} offsets {self.start_offset} to {self.end_offset} in "
            f"{self.segment.name} bytes {self.start_position} to {self.end_position}"
        )


@dataclass(frozen=True)
class Split:
    """What one task reads."""

    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    def __str__(self) -> str:
        return "; ".join(map(str, self.pieces))


@dataclass(frozen=True)
class PlanSummary:
    """How much of the subscribed topics a plan reads."""

    partitions: int = 0
    partitions_read: int = 0
    segments: int = 0
    segments_read: int = 0
    bytes_total: int = 0
    bytes_read: int = 0
    splits: int = 0

    @property
    def bytes_pruned(self) -> int:
        return self.bytes_total - self.bytes_read

    def __str__(self) -> str:
        share = self.bytes_read / self.bytes_total if self.bytes_total else 0
        return (
            f"{self.splits} splits read {self.bytes_read} of {self.bytes_total} bytes "
            f"({share:.2%}), {self.segments_read} of {self.segments} segments, "
            f"{self.partitions_read} of {self.partitions} partitions"
        )


@dataclass(frozen=True)
class SplitPlan:
    """All splits of a query."""

    splits: tuple[Split, ...] = ()
    summary: PlanSummary = field(default_factory=PlanSummary)


def pack(pieces: Iterable[Piece], *, split_bytes: int, records_max: int | None) -> list[Split]:
    """Splits of about `split_bytes`, pieces in the order they come.

    Pieces are at most that large already; small ones share a task, of several partitions too.
    """
    open_cost = min(OPEN_COST_BYTES, split_bytes // 16)
    splits: list[Split] = []
    held: list[Piece] = []
    cost = offsets = 0
    for piece in pieces:
        added = piece.size_bytes + open_cost
        is_full = cost + added > split_bytes
        is_capped = records_max is not None and offsets + piece.offsets > records_max
        if held and (is_full or is_capped):
            splits.append(Split(tuple(held)))
            held, cost, offsets = [], 0, 0
        held.append(piece)
        cost += added
        offsets += piece.offsets
    if held:
        splits.append(Split(tuple(held)))
    return splits


def one_each(pieces: Iterable[Piece]) -> list[Split]:
    """A split for every piece: when a number of tasks was asked for."""
    return [Split((piece,)) for piece in pieces]


def shares(sizes: Sequence[int], wanted: int) -> Iterator[int]:
    """How many tasks each size gets of about `wanted` in all: its share, rounded, one at least.

    As Spark's Kafka connector does it.
    """
    total = sum(sizes)
    for size in sizes:
        yield max(1, int(size / total * wanted + 0.5)) if total else 1

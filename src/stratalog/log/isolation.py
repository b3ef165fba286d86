"""What a reader may see: isolation levels, and which batches belong to aborted transactions.

Kafka's consumer walks the aborted list beside the batches and keeps a set of producer ids. A reader
that may start anywhere and skip ahead wants a predicate instead: a producer's transactions never
overlap, so a transactional batch is aborted exactly when its base offset lies in one of its
producer's aborted ranges.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stratalog.format.txn_index import AbortedTxn


class IsolationLevel(enum.Enum):
    """Kafka's `isolation.level`, by its names."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class AbortedRanges:
    """The aborted transactions of a log, ready to be asked about one batch at a time."""

    def __init__(self, transactions: Iterable[AbortedTxn]) -> None:
        ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for txn in transactions:
            ranges[txn.producer_id].append((txn.first_offset, txn.last_offset))
        self.by_producer = {pid: sorted(of_producer) for pid, of_producer in ranges.items()}

    def __bool__(self) -> bool:
        return bool(self.by_producer)

    def covers(self, producer_id: int, base_offset: int) -> bool:
        """Whether this producer's batch at `base_offset` was aborted."""
        ranges = self.by_producer.get(producer_id)
        if ranges is None:
            return False
        slot = bisect_right(ranges, base_offset, key=lambda first_last: first_last[0]) - 1
        return slot >= 0 and base_offset <= ranges[slot][1]

"""Transactions as one pass over a log meets them: whose data is aborted, which markers may go.

A pass reads batches in log order, so what it has seen of a transaction is known when its marker
comes. Data of an aborted transaction goes at once. A marker has done its work when the pass has met
no data of its transaction, not even an emptied batch: then it may go, after its delete horizon.

The state belongs to one pass over the log and runs across its segments and groups.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from stratalog.format.control import ControlType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stratalog.format.txn_index import AbortedTxn


class CleanedTransactions:
    """What one pass knows of transactions so far."""

    def __init__(self) -> None:
        self._coming: list[tuple[int, AbortedTxn]] = []  # a heap, by first offset
        self._aborted: dict[int, AbortedTxn] = {}  # open ones, by producer
        self._with_data: set[int] = set()  # producers of those of which data was seen
        self._committed: set[int] = set()  # producers with other transactional data since a marker
        self._kept: list[AbortedTxn] = []

    def add_aborted(self, txns: Iterable[AbortedTxn]) -> None:
        """The aborted transactions that touch what is read next. Known ones do no harm."""
        for txn in txns:
            heapq.heappush(self._coming, (txn.first_offset, txn))

    def on_data(self, producer_id: int, last_offset: int, *, is_transactional: bool) -> bool:
        """A data batch is read. Whether it is aborted: all its records go."""
        self._advance_to(last_offset)
        if not is_transactional:
            return False
        if producer_id in self._aborted:
            self._with_data.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def on_control(self, producer_id: int, last_offset: int, marker: ControlType | None) -> bool:
        """A control batch is read; `marker` is None for one that was emptied.

        Whether it has done its work: no data of its transaction was seen. An abort marker that has
        not keeps its entry of the transaction index (see `take_kept`).
        """
        self._advance_to(last_offset)
        if marker is None:
            return True
        if marker is ControlType.COMMIT:
            had_data = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_data
        if marker is not ControlType.ABORT:
            return False
        txn = self._aborted.pop(producer_id, None)
        if txn is None or producer_id not in self._with_data:
            return True
        self._with_data.discard(producer_id)
        self._kept.append(txn)
        return False

    def take_kept(self) -> list[AbortedTxn]:
        """Index entries of the markers kept since the last call: for the segment being written."""
        kept, self._kept = self._kept, []
        return kept

    def _advance_to(self, last_offset: int) -> None:
        while self._coming and self._coming[0][0] <= last_offset:
            _, txn = heapq.heappop(self._coming)
            self._aborted.setdefault(txn.producer_id, txn)

"""Guards against transactions that their coordinator does not know of, and that would never end.

Before the first batch of a transaction a broker asks the coordinator whether this producer's
transaction really includes the partition. The answer may be late: a marker may have ended that
transaction meanwhile, and another may have begun. So each question has a guard of its own, which
goes with the first batch or marker that is written; an append that comes with an older guard is
told that there is no such transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import OutOfOrderSequenceError

if TYPE_CHECKING:
    from stratalog.format.batch import BatchHeader


class VerificationGuard:
    """Names one question to the coordinator. Equal to itself alone."""

    __slots__ = ()


class _Pending:
    """A question that is out, or answered but not yet used."""

    __slots__ = ("epoch", "guard", "lowest_sequence", "since_ms")

    def __init__(self, header: BatchHeader, now_ms: int) -> None:
        self.guard = VerificationGuard()
        self.since_ms = now_ms
        self.epoch = header.producer_epoch
        self.lowest_sequence = header.base_sequence

    def include(self, header: BatchHeader) -> None:
        """Another batch waits for the same answer; a new epoch counts from its own sequence."""
        if header.producer_epoch > self.epoch:
            self.epoch = header.producer_epoch
            self.lowest_sequence = header.base_sequence
        elif header.producer_epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, header.base_sequence)


class TxnVerifications:
    """The pending ones of a log, at most one per producer."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}

    def __bool__(self) -> bool:
        return bool(self._pending)

    def start(self, header: BatchHeader, now_ms: int) -> VerificationGuard:
        """The guard for the transaction that this batch wants to open."""
        pending = self._pending.get(header.producer_id)
        if pending is None:
            pending = self._pending[header.producer_id] = _Pending(header, now_ms)
        else:
            pending.include(header)
        return pending.guard

    def is_verified(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        """Whether `guard` is the producer's current one."""
        pending = self._pending.get(producer_id)
        return pending is not None and pending.guard is guard

    def check_sequence(self, header: BatchHeader) -> None:
        """Refuse to let a later batch overtake one that still waits for the answer.

        Otherwise the earlier one would be out of order for ever, and its producer retry in vain.
        """
        pending = self._pending.get(header.producer_id)
        if pending is not None and header.base_sequence > pending.lowest_sequence:
            raise OutOfOrderSequenceError(
                f"batch at offset {header.base_offset} of producer {header.producer_id} has base "
                f"sequence {header.base_sequence}, but {pending.lowest_sequence} has to come first"
            )

    def end(self, producer_id: int) -> None:
        """The transaction has data now, or a marker: the guard is used up."""
        self._pending.pop(producer_id, None)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Drop questions that nobody came back to."""
        self._pending = {
            producer_id: pending
            for producer_id, pending in self._pending.items()
            if now_ms - pending.since_ms < expiration_ms
        }

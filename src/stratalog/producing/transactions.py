"""Transactions over any number of topics: all of their records are committed, or none.

    with logs.transaction("transfers") as txn:
        txn.append("accounts", b"-10", key=b"alice")
        txn.append("accounts", b"+10", key=b"bob")

Readers with `IsolationLevel.READ_COMMITTED` see the records once the block has ended without an
error. The transactional id names the writer and stays the same after a restart: a new producer
with this id fences the previous one, and aborts the transaction that it left open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, Unpack

from stratalog.errors import InvalidTxnStateError, StratalogError
from stratalog.producing.producer import Producer, SequenceNumbers

if TYPE_CHECKING:
    from stratalog.format.names import TopicPartition
    from stratalog.producing.batches import AppendedRange, Delivery
    from stratalog.producing.coordinator import TransactionCoordinator
    from stratalog.producing.producer import ProducerOptions, ProducerParts, RecordFields
    from stratalog.producing.transaction_log import ProducerIdentity


class _TransactionRecords(Producer):
    """A producer that adds each partition to the transaction before it writes there."""

    def __init__(
        self, parts: ProducerParts, options: ProducerOptions, owner: TransactionalProducer
    ) -> None:
        super().__init__(parts, options, owner.sequences)
        self._owner = owner
        self._partitions: set[TopicPartition] = set()

    def before_write(self, target: TopicPartition) -> None:
        if target not in self._partitions:
            self._owner.add_partition(target)
            self._partitions.add(target)


class TransactionalProducer:
    """The only producer of a transactional id. Runs one transaction after the other."""

    def __init__(
        self,
        parts: ProducerParts,
        coordinator: TransactionCoordinator,
        transactional_id: str,
        options: ProducerOptions,
        timeout_ms: int | None,
    ) -> None:
        """Use `LogDir.transactional_producer`."""
        self.transactional_id = transactional_id
        self._parts = parts
        self._coordinator = coordinator
        self._options = options
        self._timeout_ms = timeout_ms
        self._current: Transaction | None = None
        self._identity: ProducerIdentity | None = None
        self.sequences = SequenceNumbers(self._new_identity, is_transactional=True)

    def _new_identity(self) -> ProducerIdentity:
        """The first call fences any predecessor. Later calls raise if another producer has taken
        over the id."""
        expected = self._identity
        self._identity = self._coordinator.init_producer(
            self.transactional_id, self._timeout_ms, expected=expected
        )
        return self._identity

    @property
    def identity(self) -> ProducerIdentity:
        """The producer id and epoch in its batches."""
        return self.sequences.identity

    def transaction(self, *, flush: bool = False) -> Transaction:
        """Begin a transaction. With `flush`, a commit survives a crash of the machine: data,
        decision and markers are fsynced, in this order."""
        if self._current is not None and self._current.is_open:
            raise InvalidTxnStateError(f"{self.transactional_id!r} already has an open transaction")
        if self._current is not None:
            self.sequences.renew()  # each transaction has its own epoch
        records = _TransactionRecords(self._parts, self._options, self)
        self._current = Transaction(self, records, flush=flush)
        return self._current

    def add_partition(self, target: TopicPartition) -> None:
        """Called by the open transaction."""
        self._coordinator.add_partition(self.transactional_id, self.identity, target)

    def end(self, *, commit: bool, flush: bool) -> None:
        """Called by the open transaction."""
        self._coordinator.end(self.transactional_id, self.identity, commit=commit, flush=flush)


class Transaction:
    """Records that are committed or aborted together. Leaving the block commits; an exception
    aborts."""

    is_open: bool = True
    """Neither committed nor aborted yet."""

    def __init__(
        self, owner: TransactionalProducer, records: _TransactionRecords, *, flush: bool
    ) -> None:
        self._owner = owner
        self._records = records
        self._flush = flush

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not self.is_open:
            return
        if error is None:
            self.commit()
            return
        try:
            self.abort()
        except StratalogError as failure:
            error.add_note(f"aborting the transaction failed too: {failure}")

    @property
    def transactional_id(self) -> str:
        return self._owner.transactional_id

    def append(self, topic: str, value: bytes | None, **fields: Unpack[RecordFields]) -> Delivery:
        """Append a record in the transaction. Takes `key`, `headers`, `timestamp` and `partition`
        as `Producer.append` does."""
        self._check_open()
        return self._records.append(topic, value, **fields)

    def append_columns(self, topic: str | None, data: Any) -> list[AppendedRange]:
        """Append the rows of Arrow data in the transaction, as `Producer.append_columns` does. All
        of them are committed, or none."""
        self._check_open()
        return self._records.append_columns(topic, data)

    def commit(self) -> None:
        """Make all records visible to readers. If one could not be written, the transaction is
        aborted, and the error raised."""
        self._check_open()
        try:
            self._records.close()
        except StratalogError as error:
            try:
                self.abort()
            except StratalogError as failure:
                error.add_note(f"aborting the transaction failed too: {failure}")
            raise
        self.is_open = False
        self._owner.end(commit=True, flush=self._flush)

    def abort(self) -> None:
        """Never make the records visible to readers."""
        self._check_open()
        self.is_open = False
        self._records.discard()
        self._owner.end(commit=False, flush=self._flush)

    def _check_open(self) -> None:
        self._records.check_process()
        if not self.is_open:
            raise InvalidTxnStateError(f"the transaction of {self.transactional_id!r} has ended")

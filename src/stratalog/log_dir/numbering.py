"""The identity of a producer and the numbers of its batches, by which a log takes each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import InvalidTxnStateError
from stratalog.format.batch import advance_sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratalog.format.names import TopicPartition
    from stratalog.format.record import BatchFields
    from stratalog.log_dir.transaction_steps import ProducerIdentity


class Numbering:
    """Producer id and epoch, and the next sequence number in each partition.

    After a failure it is not certain whether the batch is in the log. Its number must not be used
    for other records: the log might take them for the batch, and drop them. So numbering begins
    anew then, under an identity that has written nothing.
    """

    def __init__(self, renew: Callable[[], ProducerIdentity], *, is_transactional: bool) -> None:
        """`renew` gives such an identity. Within a transaction there can be no other one."""
        self._renew = renew
        self._is_transactional = is_transactional
        self._next: dict[TopicPartition, int] = {}
        self.identity = renew()
        self.is_in_doubt = False
        """A batch failed."""

    def renew(self) -> None:
        """Take another identity, and count from 0 again."""
        self.identity = self._renew()
        self._next.clear()
        self.is_in_doubt = False

    def settle(self) -> bool:
        """Begin anew if there is doubt; whether that was so."""
        if not self.is_in_doubt:
            return False
        if self._is_transactional:
            raise InvalidTxnStateError("a batch of the transaction failed: it can only be aborted")
        self.renew()
        return True

    def stamp(self, fields: BatchFields, topic_partition: TopicPartition) -> BatchFields:
        """The fields of the producer's next batch in this partition."""
        return fields._replace(
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=self._next.get(topic_partition, 0),
            is_transactional=self._is_transactional,
        )

    def advance(self, topic_partition: TopicPartition, records: int) -> None:
        """So many records more of the partition are in the log."""
        before = self._next.get(topic_partition, 0)
        self._next[topic_partition] = advance_sequence(before, records)

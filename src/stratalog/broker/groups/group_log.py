"""`__consumer_offsets`: the records of all groups, in Kafka's own topic and formats.

The hash of a group's id determines its partition. The last record of a key counts; a tombstone
removes it. Records of a transaction count from its commit marker on. A broker that starts reads
every partition that has a record.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from stratalog.broker.requests import coordinator_code
from stratalog.errors import RequestError, StratalogError
from stratalog.format.messages.group_records import encode_group_record, read_group_record
from stratalog.format.names import CONSUMER_OFFSETS_TOPIC
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.latest_records import LatestRecords
from stratalog.log.offset_assignment import AppendOrigin
from stratalog.log.partition_log import PartitionLog
from stratalog.producing.transaction_log import java_abs, java_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stratalog.broker.groups.coordinator import GroupCoordinator
    from stratalog.broker.groups.environment import GroupRecordWrite
    from stratalog.broker.logs import Logs
    from stratalog.format.messages.group_records import GroupRecord
    from stratalog.log.latest_records import StoredValue
    from stratalog.log.reader import LogReader
    from stratalog.producing.transaction_log import ProducerIdentity

_log = logging.getLogger(__name__)


class OffsetsTopic:
    """Reads and writes the topic. Over read-only logs, what is written is kept in memory only: by
    the groups themselves."""

    def __init__(
        self,
        logs: Logs,
        create: Callable[[], None],
        now_ms: Callable[[], int],
        on_append: Callable[[str, int], None],
    ) -> None:
        self._logs = logs
        self._create = create
        self._now_ms = now_ms
        self._on_append = on_append

    def partition_for(self, group_id: str) -> int:
        """The partition with the group's records. Creates the topic if it is missing."""
        info = self._logs.find_topic(CONSUMER_OFFSETS_TOPIC)
        if info is None:
            self._create()
            info = self._logs.find_topic(CONSUMER_OFFSETS_TOPIC)
        count = 1 if info is None else info.partition_count
        return java_abs(java_hash(group_id)) % count

    def append(
        self, group_id: str, records: Sequence[GroupRecordWrite], by: ProducerIdentity | None = None
    ) -> None:
        """Store the records as one batch, or raise RequestError and store nothing. With `by`, they
        are part of the transaction of this producer."""
        if self._logs.is_read_only:
            return
        try:
            partition = self.partition_for(group_id)
            log = self._logs.find(CONSUMER_OFFSETS_TOPIC, partition)
            assert isinstance(log, PartitionLog)  # it is there, and not read-only
            log.append(self._batch(records, by), origin=AppendOrigin.COORDINATOR)
        except StratalogError as error:
            code = coordinator_code(error, f"writing records of group {group_id}")
            raise RequestError(code, str(error)) from error
        self._on_append(CONSUMER_OFFSETS_TOPIC, partition)

    def _batch(
        self, records: Sequence[GroupRecordWrite], producer: ProducerIdentity | None
    ) -> bytes:
        now_ms = self._now_ms()
        encoded = [
            Record(number, now_ms, *encode_group_record(*record))
            for number, record in enumerate(records)
        ]
        if producer is None:
            return encode_batch(encoded)
        fields = BatchFields(
            is_transactional=True,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
        )
        return encode_batch(encoded, fields)

    def load(self, coordinator: GroupCoordinator) -> None:
        """Hand everything in the topic to the coordinator, and let it begin."""
        info = self._logs.find_topic(CONSUMER_OFFSETS_TOPIC)
        for partition in () if info is None else info.partitions:
            if self._logs.is_empty(CONSUMER_OFFSETS_TOPIC, partition):
                continue
            log = self._logs.find(CONSUMER_OFFSETS_TOPIC, partition)
            if log is not None:
                for record, producer_id in _latest_records(log):
                    coordinator.apply(record, producer_id)
        coordinator.resume(with_members=not self._logs.is_read_only)


_NO_PRODUCER: Final = None


def _latest_records(log: LogReader) -> Iterator[tuple[GroupRecord, int | None]]:
    """What counts in a partition, and the producer of what is pending. Decodes only that."""
    latest = LatestRecords.of(log)
    yield from _decoded(latest.committed, _NO_PRODUCER, log)
    for producer_id, records in latest.pending.items():
        yield from _decoded(records, producer_id, log)


def _decoded(
    stored: dict[bytes, StoredValue], producer_id: int | None, log: LogReader
) -> Iterator[tuple[GroupRecord, int | None]]:
    for key, (value, _) in sorted(stored.items(), key=lambda item: item[1].order):
        if value is None:
            continue
        try:
            yield read_group_record(key, value, decode_members=False), producer_id
        except StratalogError as error:  # of a later Kafka, or not written by one
            _log.warning("%s: skipped a record of a group: %s", log, error)

"""The last record of each key of a compacted log, as a coordinator of Kafka counts them.

A record of a transaction counts from its commit marker on, unless the key has a later record by
then. Records of aborted transactions do not count. Those of open transactions are pending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.format.control import ControlType, read_end_marker
from stratalog.format.log_entry import RecordDecoder
from stratalog.log.reader import CorruptionPolicy, batches_of

if TYPE_CHECKING:
    from stratalog.format.record import Record
    from stratalog.log.reader import LogReader


class StoredValue(NamedTuple):
    """The last value of a key, and how many records came before it."""

    value: bytes | None
    order: int


class LatestRecords:
    """The last record of each key, and of each key in an open transaction."""

    def __init__(self) -> None:
        self.committed: dict[bytes, StoredValue] = {}
        self.pending: dict[int, dict[bytes, StoredValue]] = {}
        """The last record of each key in an open transaction, by producer id."""
        self._order = 0

    @classmethod
    def of(cls, log: LogReader) -> LatestRecords:
        latest, decoder = cls(), RecordDecoder()
        for part in log.parts_from(log.log_start_offset):
            for batch in batches_of(part, CorruptionPolicy(None, lambda: False)):
                header = batch.header
                records = decoder.records_of(batch.buf, batch.entry, header)
                if header.is_control:
                    marker = read_end_marker(records[0]) if records else None
                    if marker is not None:
                        is_commit = marker.type is ControlType.COMMIT
                        latest.end_transaction(header.producer_id, commit=is_commit)
                    continue
                producer_id = header.producer_id if header.is_transactional else None
                for record in records:
                    latest.put(record, producer_id)
        return latest

    def put(self, record: Record, producer_id: int | None) -> None:
        if record.key is None:
            return
        self._order += 1
        into = self.committed if producer_id is None else self.pending.setdefault(producer_id, {})
        into[record.key] = StoredValue(record.value, self._order)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        ended = self.pending.pop(producer_id, {})
        for key, stored in ended.items() if commit else ():
            before = self.committed.get(key)
            if before is None or before.order < stored.order:
                self.committed[key] = stored

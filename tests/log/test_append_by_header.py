"""Batches of clients whose records are not read: the same checks, in the same order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stratalog.config import CleanupPolicy
from stratalog.errors import CorruptMessageError, InvalidRecordError, OutOfOrderSequenceError
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.producer_transitions import EPOCH_PER_TRANSACTION
from tests.log.written_log import CONFIG, NOW_MS, PRODUCER, Setup, batch, sent

if TYPE_CHECKING:
    from stratalog.config import LogConfig
    from stratalog.log.partition_log import PartitionLog

COMPACTED = replace(CONFIG, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))


def test_they_are_stored_as_if_they_were_read(log: PartitionLog) -> None:
    assert log.append_by_header(batch(3)).first_offset == 0
    assert log.append(batch(3)).first_offset == 3
    read = [(record.offset, record.key, record.value) for record in log.read()]
    assert read == [(offset, b"key-%d" % (offset % 3), b"v" * 20) for offset in range(6)]


@pytest.mark.parametrize("version", [0, EPOCH_PER_TRANSACTION])
def test_a_client_may_not_write_a_control_batch(log: PartitionLog, version: int) -> None:
    fields = BatchFields(
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
        is_control=True,
    )
    data = encode_batch([Record(0, NOW_MS, b"\0\0\0\1", b"\0" * 6)], fields)
    with pytest.raises(InvalidRecordError, match="control"):
        log.append_by_header(data, version)


@pytest.mark.parametrize("version", [0, EPOCH_PER_TRANSACTION])
def test_a_wrong_checksum_comes_before_a_wrong_sequence(log: PartitionLog, version: int) -> None:
    data = bytearray(sent(5, in_txn=True))
    data[-1] ^= 1
    with pytest.raises(CorruptMessageError):
        log.append_by_header(data, version)


@pytest.mark.parametrize("config", [CONFIG, COMPACTED], ids=["unread", "read"])
def test_a_transaction_with_its_own_epoch_begins_with_sequence_0(
    setup: Setup, config: LogConfig
) -> None:
    log = setup.open(config)
    with pytest.raises(OutOfOrderSequenceError):
        log.append_by_header(sent(5, in_txn=True), EPOCH_PER_TRANSACTION)
    assert log.log_end_offset == 0
    log.append_by_header(sent(0, in_txn=True), EPOCH_PER_TRANSACTION)
    log.append_by_header(sent(0, epoch=1, in_txn=True), EPOCH_PER_TRANSACTION)
    assert log.log_end_offset == 2

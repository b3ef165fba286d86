from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptRecordError, StratalogError, UnsupportedError
from stratalog.format.messages.transaction_records import (
    TransactionState,
    TransactionStatus,
    key_version,
    read_transaction_state,
    read_transactional_id,
)

TIMES = "0000000000000007 0000000000000008"
PLAIN = (
    f"0000 0000000000000005 0002 000927c0 01 00000001 0001 74 00000002 00000001 00000000 {TIMES}"
)
STATE = TransactionState(
    producer_id=5,
    producer_epoch=2,
    timeout_ms=600_000,
    status=TransactionStatus.ONGOING,
    partitions=(("t", (1, 0)),),
    last_update_timestamp=7,
    start_timestamp=8,
)


def test_key() -> None:
    key = bytes.fromhex("0000 0004 74782d61")
    assert key_version(key) == 0
    assert read_transactional_id(key) == "tx-a"
    assert key_version(b"\x00\x01") == 1


def test_state() -> None:
    assert read_transaction_state(bytes.fromhex(PLAIN)) == STATE


def test_state_without_partitions() -> None:
    value = bytes.fromhex(f"0000 0000000000000005 0002 000927c0 00 ffffffff {TIMES}")
    expected = STATE._replace(status=TransactionStatus.EMPTY, partitions=())
    assert read_transaction_state(value) == expected


def test_flexible_state_with_tagged_fields() -> None:
    tags = "03 00 08 000000000000000b 01 08 000000000000000a 02 02 0001"
    value = f"0001 0000000000000005 0002 000927c0 04 02 02 74 02 00000003 00 {TIMES} {tags}"
    assert read_transaction_state(bytes.fromhex(value)) == STATE._replace(
        status=TransactionStatus.COMPLETE_COMMIT,
        partitions=(("t", (3,)),),
        previous_producer_id=11,
        next_producer_id=10,
        client_transaction_version=1,
    )


def test_names_are_kafkas() -> None:
    assert [status.kafka_name for status in TransactionStatus] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
        "Dead", "PrepareEpochFence",
    ]  # fmt: skip


def test_wrong_values() -> None:
    with pytest.raises(UnsupportedError, match="Unknown version 2 from the transaction log"):
        read_transaction_state(bytes.fromhex("0002"))
    with pytest.raises(CorruptRecordError, match="Unknown transaction status byte 9"):
        read_transaction_state(bytes.fromhex(PLAIN.replace("c0 01", "c0 09")))
    with pytest.raises(CorruptRecordError, match="too short"):
        read_transaction_state(b"\x00")


@given(st.binary(max_size=80), st.sampled_from(["", "0000", "0001"]))
def test_any_bytes_give_a_state_or_an_error(data: bytes, start: str) -> None:
    for read in (read_transaction_state, read_transactional_id, key_version):
        try:
            read(bytes.fromhex(start) + data)
        except StratalogError:
            continue

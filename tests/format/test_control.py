from __future__ import annotations

import pytest

from stratalog.errors import CorruptRecordError
from stratalog.format.batch import is_crc_valid, read_header
from stratalog.format.control import (
    ControlType,
    EndMarker,
    encode_end_marker,
    read_control_key,
    read_end_marker,
)
from stratalog.format.record import Record, decode_records

ABORT = bytes.fromhex(
    "0000000000000007"  # base offset
    "00000042"  # length 66
    "00000003"  # leader epoch
    "02"  # magic
    "1f3ca98a"  # CRC
    "0030"  # attributes: transactional, control
    "00000000"  # last offset delta
    "00000000000007d0"  # base timestamp 2000
    "00000000000007d0"  # max timestamp
    "00000000000003e9"  # producer id 1001
    "0000"  # producer epoch
    "ffffffff"  # base sequence: markers have none
    "00000001"  # record count
    "20"  # body of 16 bytes
    "000000"  # attributes, deltas
    "08" + "0000" + "0000"  # key: version 0, type 0
    "0c" + "0000" + "00000005"  # value: version 0, coordinator epoch 5
    "00"  # no headers
)


def control_record(key: str | None, value: str | None = "000000000005") -> Record:
    return Record(
        offset=7,
        timestamp=0,
        key=None if key is None else bytes.fromhex(key),
        value=None if value is None else bytes.fromhex(value),
    )


def test_abort_marker_bytes() -> None:
    raw = encode_end_marker(
        EndMarker(ControlType.ABORT, coordinator_epoch=5),
        offset=7,
        timestamp=2000,
        producer_id=1001,
        producer_epoch=0,
        partition_leader_epoch=3,
    )
    assert raw == ABORT
    assert len(raw) == 78


def test_abort_marker_is_read() -> None:
    header = read_header(ABORT, 0)
    assert is_crc_valid(ABORT, 0, header)
    assert header.is_control
    assert header.is_transactional
    assert header.last_sequence == -1
    (record,) = decode_records(ABORT, 0, header)
    assert (record.offset, record.timestamp) == (7, 2000)
    assert read_end_marker(record) == EndMarker(ControlType.ABORT, 5)


def test_commit_marker_differs_in_the_type_only() -> None:
    raw = encode_end_marker(
        EndMarker(ControlType.COMMIT, coordinator_epoch=5),
        offset=7,
        timestamp=2000,
        producer_id=1001,
        producer_epoch=0,
        partition_leader_epoch=3,
    )
    differs = [at for at in range(78) if raw[at] != ABORT[at]]
    assert [at for at in differs if not 17 <= at < 21] == [69]
    assert raw[66:70].hex() == "00000001"


@pytest.mark.parametrize(
    ("key", "control_type", "name"),
    [
        ("00000000", ControlType.ABORT, "ABORT"),
        ("00000001", ControlType.COMMIT, "COMMIT"),
        ("00000002", ControlType.LEADER_CHANGE, "LEADER_CHANGE"),
        ("00000003", ControlType.SNAPSHOT_HEADER, "SNAPSHOT_HEADER"),
        ("00000004", ControlType.SNAPSHOT_FOOTER, "SNAPSHOT_FOOTER"),
        ("00000005", ControlType.KRAFT_VERSION, "KRAFT_VERSION"),
        ("00000006", ControlType.KRAFT_VOTERS, "KRAFT_VOTERS"),
        ("00000007", ControlType.UNKNOWN, "UNKNOWN"),
        ("00007fff", ControlType.UNKNOWN, "UNKNOWN"),
        ("0000ffff", ControlType.UNKNOWN, "UNKNOWN"),
        ("00008000", ControlType.UNKNOWN, "UNKNOWN"),
    ],
)
def test_types(key: str, control_type: ControlType, name: str) -> None:
    read = read_control_key(control_record(key))
    assert read.type is control_type
    assert read.type.name == name
    assert read.type_id == int.from_bytes(bytes.fromhex(key[4:]), "big", signed=True)


@pytest.mark.parametrize("key", ["00000002", "00000003", "00000006", "00000007", "0000ffff"])
def test_other_types_are_no_end_of_a_transaction_and_no_error(key: str) -> None:
    assert read_end_marker(control_record(key, None)) is None


def test_higher_versions_are_read_as_version_0_with_bytes_to_spare() -> None:
    key, value = "0009" + "0001" + "ff", "0009" + "00000008" + "ffff"
    assert read_control_key(control_record(key)).version == 9
    assert read_end_marker(control_record(key, value)) == EndMarker(ControlType.COMMIT, 8)


def test_coordinator_epoch_may_be_negative() -> None:
    assert read_end_marker(control_record("00000000", "0000ffffffff")) == EndMarker(
        ControlType.ABORT, -1
    )


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        pytest.param(None, None, "key is too short", id="null key"),
        pytest.param("", None, "key is too short", id="empty key"),
        pytest.param("000000", None, "key is too short", id="key of three bytes"),
        pytest.param("ffff0000", None, "invalid key version -1", id="negative key version"),
        pytest.param("00000000", None, "transaction marker is too short", id="null value"),
        pytest.param("00000001", "0000000000", "transaction marker is too short", id="short value"),
        pytest.param("00000001", "ffff00000000", "version -1", id="negative value version"),
    ],
)
def test_broken_markers(key: str | None, value: str | None, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        read_end_marker(control_record(key, value), position=4096)
    assert caught.value.position == 4096
    assert caught.value.offsets == (7, 7)


def test_only_ends_of_transactions_are_written() -> None:
    with pytest.raises(ValueError, match="LEADER_CHANGE"):
        encode_end_marker(
            EndMarker(ControlType.LEADER_CHANGE, 0),
            offset=0,
            timestamp=0,
            producer_id=0,
            producer_epoch=0,
            partition_leader_epoch=0,
        )

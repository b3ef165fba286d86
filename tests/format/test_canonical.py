"""Records that may be copied into another batch: encoding them again would give the same bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.format.batch import BatchHeader
from stratalog.format.kernels.canonical import is_canonical
from stratalog.format.record import (
    BatchFields,
    Header,
    Record,
    decode_records,
    encode_batch,
    seal_batch,
)
from tests import strategies

RECORD = encode_batch([Record(0, 5, b"k", b"v", (Header("h", b"x"),))])[61:]


def test_what_the_encoder_writes() -> None:
    assert RECORD.hex() == "18000000026b02760202680278"
    assert is_canonical(RECORD, 1, 5)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param("9800" + RECORD.hex()[2:], id="long length"),
        pytest.param("18010000026b02760202680278", id="attributes"),
        pytest.param("1a00800000026b02760202680278", id="long timestamp delta"),
        pytest.param("1a00008000026b02760202680278", id="long offset delta"),
        pytest.param("1a00000082006b02760202680278", id="long key length"),
        pytest.param("140000000302760202680278", id="key of length -2"),
        pytest.param("1600000002760202ff0278", id="a header key that is not ASCII"),
        pytest.param("18000200026b02760202680278", id="first delta is not zero"),
        pytest.param("18000000026b027602026802", id="cut short"),
        pytest.param(RECORD.hex() + "00", id="bytes left over"),
        pytest.param("", id="nothing"),
    ],
)
def test_other_ways_to_write_it(payload: str) -> None:
    assert not is_canonical(bytes.fromhex(payload), 1, 5)


@pytest.mark.parametrize("surplus", [0, 0x10, 0x70])
def test_surplus_bits_of_an_int(surplus: int) -> None:
    """Its fifth byte has four bits to give; readers drop the others."""
    offset_delta = 1 << 27
    payload = bytearray(encode_batch([Record(offset_delta, 5, None, b"")], from_zero())[61:])
    assert payload.hex() == "140000" + "8080808001" + "010000"
    payload[7] |= surplus
    assert is_canonical(payload, 1, 5) is (surplus == 0)


@pytest.mark.parametrize("surplus", [0, 0x02, 0x7E])
def test_surplus_bits_of_a_long(surplus: int) -> None:
    """Its tenth byte has one bit to give."""
    records = [Record(0, (1 << 63) - 1, None, b""), Record(1, 0, None, b"")]
    payload = bytearray(encode_batch(records)[61:])
    assert payload[7:].hex() == "1e00" + "fd" + "ff" * 8 + "01" + "02" + "010000"
    payload[18] |= surplus
    assert is_canonical(payload, 2, (1 << 63) - 1) is (surplus == 0)


def from_zero() -> BatchFields:
    return BatchFields(base_offset=0)


def test_timestamps_that_encoders_refuse() -> None:
    for timestamps, expected in (((5, -1), True), ((5, -2), False), ((-2, 5), False)):
        records = [Record(i, timestamp, None, b"") for i, timestamp in enumerate(timestamps)]
        assert is_canonical(encode_batch(records)[61:], 2, timestamps[0]) is expected
    overflowing = [Record(0, 5, None, b""), Record(1, (1 << 63) + 4, None, b"")]
    raw = encode_batch(overflowing, BatchFields(max_timestamp=5))
    assert not is_canonical(raw[61:], 2, 5)


@given(strategies.record_runs(), st.data())
def test_what_is_canonical_is_encoded_as_it_was(drawn: list[Record], data: st.DataObject) -> None:
    raw = encode_batch(drawn)
    payload = bytearray(raw[61:])
    if data.draw(st.booleans()):
        position = data.draw(st.integers(0, len(payload) - 1))
        payload[position] = data.draw(st.integers(0, 255))
    header = BatchHeader.unpack(raw)
    if not is_canonical(payload, header.record_count, header.base_timestamp):
        return
    records = list(decode_records(seal_batch(header, payload), 0, header))
    if [record.offset for record in records] == [record.offset for record in drawn]:
        assert encode_batch(records)[61:] == bytes(payload)


@given(strategies.record_runs(with_headers=False))
def test_what_the_encoder_writes_is_canonical(drawn: list[Record]) -> None:
    records = [record._replace(timestamp=abs(record.timestamp) >> 1) for record in drawn]
    assert is_canonical(encode_batch(records)[61:], len(records), records[0].timestamp)

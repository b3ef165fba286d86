from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptSnapshotError, StratalogError, UnsupportedError
from stratalog.format.buffers import crc32c
from stratalog.format.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot

EMPTY = bytes.fromhex("000148674bc700000000")
ONE = bytes.fromhex(
    "0001 3d7d23e5 00000001"
    "00000000000003e9 0000 00000009 000000000000002a 00000002 0000018bcfe56800 00000005"
    "ffffffffffffffff"
)
ONE_ENTRY = ProducerEntry(1001, 0, 9, 42, 2, 1700000000000, 5, -1)

# The .snapshot of golden case txn at offset 11, and what Kafka's tool printed of it.
GOLDEN = bytes.fromhex(
    "0001526ebc5700000002"
    "000000000000000500000000000400000000000000080000"
    "00010000018bcfe56850ffffffff0000000000000000"
    "0000000000000006000000000003000000000000000a0000"
    "00010000018bcfe56864ffffffff0000000000000003"
)
GOLDEN_ENTRIES = (
    ProducerEntry(5, 0, 4, 8, 1, 1700000000080, -1, 0),
    ProducerEntry(6, 0, 3, 10, 1, 1700000000100, -1, 3),
)


@pytest.mark.parametrize(
    ("raw", "entries"), [(EMPTY, ()), (ONE, (ONE_ENTRY,)), (GOLDEN, GOLDEN_ENTRIES)]
)
def test_snapshot_bytes(raw: bytes, entries: tuple[ProducerEntry, ...]) -> None:
    assert decode_snapshot(raw) == entries
    assert decode_snapshot(memoryview(raw)) == entries
    assert encode_snapshot(entries) == raw


def test_what_an_entry_tells() -> None:
    assert ONE_ENTRY.has_batch
    assert ONE_ENTRY.first_offset == 40
    assert ONE_ENTRY.first_sequence == 7
    assert ONE_ENTRY.open_txn_first_offset is None
    assert GOLDEN_ENTRIES[0].open_txn_first_offset == 0
    assert GOLDEN_ENTRIES[1].first_sequence == 2
    assert not ONE_ENTRY._replace(last_offset=-1).has_batch


def test_first_sequence_counts_back_across_the_wrap() -> None:
    assert ONE_ENTRY._replace(last_sequence=1, offset_delta=4).first_sequence == 2147483645


def test_cut_at_every_byte() -> None:
    for cut in range(len(GOLDEN)):
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(GOLDEN[:cut])


def test_every_flipped_bit_is_noticed() -> None:
    for bit in range(len(ONE) * 8):
        damaged = bytearray(ONE)
        damaged[bit // 8] ^= 0x80 >> bit % 8
        with pytest.raises((CorruptSnapshotError, UnsupportedError)):
            decode_snapshot(damaged)


def test_versions() -> None:
    with pytest.raises(UnsupportedError, match="version 2"):
        decode_snapshot(b"\x00\x02" + ONE[2:])
    with pytest.raises(CorruptSnapshotError, match="invalid version 0"):
        decode_snapshot(b"\x00\x00" + ONE[2:])


def sealed(body: bytes) -> bytes:
    """A snapshot whose CRC is valid, whatever the rest says."""
    return struct.pack(">hI", 1, crc32c(body)) + body


@pytest.mark.parametrize("count", [0, 2, -1, (1 << 31) - 1])
def test_count_must_agree_with_the_size(count: int) -> None:
    with pytest.raises(CorruptSnapshotError, match="entries do not fill 46 bytes"):
        decode_snapshot(sealed(struct.pack(">i", count) + ONE[10:]))


def test_bytes_after_the_last_entry_are_refused() -> None:
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(sealed(ONE[6:] + b"\0"))


def test_entry_cut_short_and_entry_too_large() -> None:
    assert ProducerEntry.unpack(ONE, 10) == ONE_ENTRY
    with pytest.raises(CorruptSnapshotError, match="truncated"):
        ProducerEntry.unpack(ONE, 11)
    with pytest.raises(CorruptSnapshotError, match="does not fit"):
        ONE_ENTRY._replace(producer_epoch=40000).pack()


def test_many_producers() -> None:
    source = random.Random(3)
    entries = [
        ONE_ENTRY._replace(producer_id=source.getrandbits(62), last_offset=offset)
        for offset in range(1000)
    ]
    raw = encode_snapshot(entries)
    assert len(raw) == 10 + 46 * 1000
    assert decode_snapshot(raw) == tuple(entries)


@given(st.binary(max_size=200) | st.binary(max_size=200).map(sealed))
def test_any_bytes_give_a_value_or_a_typed_error(buf: bytes) -> None:
    try:
        entries = decode_snapshot(buf)
    except StratalogError:
        return
    assert encode_snapshot(entries) == buf

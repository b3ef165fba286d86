from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptIndexError, StratalogError, UnsupportedError
from stratalog.format import txn_index
from stratalog.format.txn_index import AbortedTxn, AbortedTxns

VECTOR = bytes.fromhex("0000 00000000000003e9 0000000000000003 0000000000000007 0000000000000008")
VECTOR_TXN = AbortedTxn(0, 1001, 3, 7, 8)

# The .txnindex of golden case txn, segment 11. Transactions A and B interleave: B (from 3) is still
# open when A's marker is written at 11, so the last stable offset after it is 3.
GOLDEN_BASE = 11
GOLDEN = bytes.fromhex(
    "0000 0000000000000005 0000000000000000 000000000000000b 0000000000000003"
    "0000 0000000000000006 0000000000000003 000000000000000c 000000000000000d"
    "0000 0000000000000006 000000000000001d 0000000000000026 0000000000000027"
)
A = AbortedTxn(0, 5, 0, 11, 3)
B = AbortedTxn(0, 6, 3, 12, 13)
C = AbortedTxn(0, 6, 29, 38, 39)


def test_entry_bytes() -> None:
    assert VECTOR_TXN.pack() == VECTOR
    assert AbortedTxn.unpack(VECTOR) == VECTOR_TXN
    assert AbortedTxn.unpack(memoryview(b"x" + VECTOR), 1) == VECTOR_TXN
    assert b"".join(txn.pack() for txn in (A, B, C)) == GOLDEN
    assert list(txn_index.read_entries(GOLDEN)) == [A, B, C]


def test_a_partial_entry_at_the_end_is_skipped() -> None:
    for cut in range(len(GOLDEN) + 1):
        assert list(txn_index.read_entries(GOLDEN[:cut])) == [A, B, C][: cut // 34]


def test_entry_cut_short() -> None:
    for cut in range(34):
        with pytest.raises(CorruptIndexError, match="truncated"):
            AbortedTxn.unpack(VECTOR[:cut])


def test_versions() -> None:
    with pytest.raises(UnsupportedError, match="at byte 0 has version 1"):
        AbortedTxn.unpack(b"\x00\x01" + VECTOR[2:])
    with pytest.raises(UnsupportedError, match="version 256"):  # not one byte of it
        AbortedTxn.unpack(b"\x01\x00" + VECTOR[2:])
    with pytest.raises(CorruptIndexError, match="invalid version -1"):
        AbortedTxn.unpack(b"\xff\xff" + VECTOR[2:])


def test_an_offset_that_does_not_fit() -> None:
    with pytest.raises(CorruptIndexError, match="does not fit"):
        AbortedTxn(0, 1, 0, 1 << 63, 0).pack()


@pytest.mark.parametrize(
    ("from_offset", "to_offset", "expected"),
    [
        pytest.param(0, 100, AbortedTxns((A, B, C), is_complete=False), id="all, and go on"),
        pytest.param(0, 3, AbortedTxns((A,), is_complete=True), id="stable offset 3 ends it"),
        pytest.param(0, 4, AbortedTxns((A, B), is_complete=True), id="B begins at 3"),
        pytest.param(11, 13, AbortedTxns((A, B), is_complete=True), id="markers count"),
        pytest.param(12, 13, AbortedTxns((B,), is_complete=True), id="A ended at 11"),
        pytest.param(13, 29, AbortedTxns((), is_complete=True), id="between"),
        pytest.param(13, 30, AbortedTxns((C,), is_complete=True), id="C begins at 29"),
        pytest.param(39, 40, AbortedTxns((), is_complete=False), id="past the last"),
    ],
)
def test_collect(from_offset: int, to_offset: int, expected: AbortedTxns) -> None:
    assert txn_index.collect_aborted(GOLDEN, from_offset, to_offset) == expected


def test_an_empty_index_says_nothing_about_later_segments() -> None:
    assert txn_index.collect_aborted(b"", 0, 10) == AbortedTxns((), is_complete=False)


@pytest.mark.parametrize(("offset", "kept"), [(11, 0), (12, 1), (13, 2), (38, 2), (39, 3)])
def test_truncation_goes_by_marker(offset: int, kept: int) -> None:
    assert txn_index.entries_below(GOLDEN, offset) == kept


def test_checks_accept_what_kafka_wrote() -> None:
    txn_index.check_sanity(GOLDEN, GOLDEN_BASE)
    txn_index.check_entries(GOLDEN, GOLDEN_BASE)
    txn_index.check_entries(b"", GOLDEN_BASE)


def test_sanity_is_kafkas() -> None:
    with pytest.raises(CorruptIndexError, match="last offset 11 is below base offset 12"):
        txn_index.check_sanity(GOLDEN, 12)
    txn_index.check_sanity(GOLDEN[:-1], GOLDEN_BASE)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (B._replace(producer_id=-1), "producer id"),
        (B._replace(first_offset=13), "transaction from 13 to 12"),
        (B._replace(first_offset=-1), "transaction from -1"),
        (B._replace(last_offset=11), "does not increase"),
        (B._replace(last_stable_offset=2), "decreases"),
        (B._replace(last_offset=10), "below base offset"),
    ],
)
def test_check_refuses(second: AbortedTxn, reason: str) -> None:
    with pytest.raises(CorruptIndexError, match=reason) as caught:
        txn_index.check_entries(A.pack() + second.pack(), GOLDEN_BASE)
    assert caught.value.position == 34


def test_check_refuses_a_partial_entry() -> None:
    with pytest.raises(CorruptIndexError, match="truncated") as caught:
        txn_index.check_entries(GOLDEN[:-1], GOLDEN_BASE)
    assert caught.value.position == 68


@given(st.binary(max_size=200) | st.binary(max_size=128).map(lambda tail: b"\0\0" + tail))
def test_any_bytes_give_a_value_or_a_typed_error(buf: bytes) -> None:
    for call in (
        lambda: txn_index.collect_aborted(buf, 0, 100),
        lambda: txn_index.entries_below(buf, 50),
        lambda: txn_index.check_entries(buf, 0),
    ):
        with contextlib.suppress(StratalogError):
            call()

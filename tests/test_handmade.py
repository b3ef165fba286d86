"""The hand-made encoder gives the bytes that were worked out on paper."""

from __future__ import annotations

from tests.handmade import Head, Rec, batch, crc32c


def test_the_checksum_of_the_standard_digits() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_an_end_of_transaction_marker() -> None:
    head = Head(2000, 0x30, 1001, 0, leader_epoch=3)
    marker = batch(7, [Rec(0, 0, bytes(4), b"\0\0\0\0\0\5")], head)
    assert marker.hex() == (
        "00000000000000070000004200000003021f3ca98a0030"
        "0000000000000000000007d000000000000007d000000000000003e90000"
        "ffffffff000000012000000008000000000c00000000000500"
    )

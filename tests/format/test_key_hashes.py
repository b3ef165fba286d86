"""Hashes of key columns: equal for equal keys, wherever they lie."""

from __future__ import annotations

import pyarrow as pa

from stratalog.format.hashing import hash_keys

KEYS = [b"", b"a", None, b"a" * 7, b"a" * 8, b"a" * 9, b"b" * 100, b"a", b"\x00", b"\x00\x00"]


def test_equal_keys_have_equal_hashes_and_others_do_not() -> None:
    hashes = hash_keys(pa.array(KEYS, pa.binary())).tolist()
    by_key = dict(zip((key or b"" for key in KEYS), hashes, strict=True))
    assert [by_key[key or b""] for key in KEYS] == hashes
    assert len(set(by_key.values())) == len(by_key)


def test_a_part_of_a_column() -> None:
    column = pa.array(KEYS, pa.binary())
    assert hash_keys(column[3:8]).tolist() == hash_keys(column).tolist()[3:8]


def test_a_hash_is_the_same_for_ever() -> None:
    """Tasks of one job may run on different machines."""
    assert hash_keys(pa.array([b"orders-1"])).tolist() == [HASH_OF_ORDERS_1]


def test_many_keys_hardly_collide() -> None:
    keys = pa.array([b"key-%d" % n for n in range(200_000)])
    assert len(set(hash_keys(keys).tolist())) == 200_000


def test_nothing_at_all() -> None:
    assert hash_keys(pa.array([], pa.binary())).tolist() == []
    assert len(hash_keys(pa.array([None, None], pa.binary()))) == 2


HASH_OF_ORDERS_1 = -8848986394098870525

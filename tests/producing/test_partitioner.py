from __future__ import annotations

import random
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.format.hashing import partition_key
from stratalog.format.murmur import murmur2, partition_for_key
from stratalog.producing.partitioner import StickyPartitioner

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it reads its schemas in a way that Python deprecates
    from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

# As tested in Kafka itself (UtilsTest.testMurmur2), where the hash is a signed number.
VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "signed_hash"), VECTORS)
def test_murmur2_is_kafkas(key: bytes, signed_hash: int) -> None:
    assert murmur2(key) == signed_hash & 0xFFFF_FFFF


@given(st.binary(max_size=70))
def test_murmur2_agrees_with_another_implementation(key: bytes) -> None:
    assert murmur2(key) == murmur2_of_kafka_python(key) & 0xFFFF_FFFF


def test_partition_of_a_key_drops_the_sign() -> None:
    # -973932308 without its sign bit is 1173551340
    assert partition_for_key(b"21", 1000) == 340
    assert partition_for_key(b"abc", 1000) == 107


@pytest.mark.parametrize(("key", "signed_hash"), VECTORS)
def test_the_compiled_hash_is_kafkas(key: bytes, signed_hash: int) -> None:
    assert partition_key(key, 1 << 31) == signed_hash & 0x7FFF_FFFF


@given(st.binary(max_size=70), st.integers(1, 1000))
def test_the_compiled_partitioner_is_the_readable_one(key: bytes, count: int) -> None:
    assert partition_key(key, count) == partition_for_key(key, count)


def test_an_empty_key_is_a_key() -> None:
    assert partition_for_key(b"", 1000) == 275646681 % 1000


def test_records_without_a_key_stick_until_a_batch_is_full() -> None:
    sticky = StickyPartitioner(100, random.Random(1))
    chosen = [sticky.choose(range(5), 30) for _ in range(12)]
    runs = [chosen[at : at + 4] for at in range(0, 12, 4)]  # 4 x 30 is the first sum from 100 on
    assert all(len(set(run)) == 1 for run in runs)
    assert runs[0][0] != runs[1][0] != runs[2][0]


def test_every_partition_gets_its_share() -> None:
    sticky = StickyPartitioner(1, random.Random(1))
    chosen = [sticky.choose(range(4), 1) for _ in range(4000)]
    counts = [chosen.count(partition) for partition in range(4)]
    assert min(counts) > 800


def test_the_only_partition_is_chosen_again() -> None:
    sticky = StickyPartitioner(1)
    assert [sticky.choose([7], 10) for _ in range(3)] == [7, 7, 7]

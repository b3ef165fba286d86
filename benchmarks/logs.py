"""Logs to measure on: seeded, built by aiokafka's encoder, never by our own."""

from __future__ import annotations

import random
import struct
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder

BATCH_BYTES = 16 << 10
TIMESTAMP_MS = 1_700_000_000_000
_CODEC_IDS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_BASE_OFFSET = struct.Struct(">q")
_TYPES = (b"view", b"click", b"cart", b"order", b"refund")
_COUNTRIES = (b"DE", b"FR", b"US", b"JP", b"BR", b"IN", b"NG", b"PL")


class BenchLog(NamedTuple):
    """The bytes of one `.log` file, and what a right answer over it is."""

    data: bytes
    records: int
    batches: int
    key_bytes: int
    value_bytes: int
    offset_sum: int
    timestamp_sum: int


def build_log(*, bytes_min: int, value_bytes: int, codec: str = "none") -> BenchLog:
    """Batches of 16 KiB (before compression), end to end, until `bytes_min` of them are there.

    A few hundred different batches are built and then repeated under new base offsets, which lie
    outside the CRC: encoding in Python would take longer than everything that is measured.
    """
    distinct = [_Batch.build(seed, value_bytes, codec) for seed in range(_distinct(value_bytes))]
    out: list[bytes] = []
    size = offset = key_bytes = values = offset_sum = timestamp_sum = 0
    while size < bytes_min:
        batch = distinct[len(out) % len(distinct)]
        out.append(_BASE_OFFSET.pack(offset) + batch.data[_BASE_OFFSET.size :])
        size += len(batch.data)
        offset_sum += batch.records * offset + batch.records * (batch.records - 1) // 2
        offset += batch.records
        key_bytes += batch.key_bytes
        values += batch.records * value_bytes
        timestamp_sum += batch.timestamp_sum
    return BenchLog(b"".join(out), offset, len(out), key_bytes, values, offset_sum, timestamp_sum)


def _distinct(value_bytes: int) -> int:
    return 300 if value_bytes <= 256 else 600


class _Batch(NamedTuple):
    data: bytes
    records: int
    key_bytes: int
    timestamp_sum: int

    @classmethod
    def build(cls, seed: int, value_bytes: int, codec: str) -> _Batch:
        rng = random.Random(seed)
        words = _words()
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=_CODEC_IDS[codec],
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=BATCH_BYTES,
        )
        count = key_bytes = timestamp_sum = 0
        while True:
            key = b"user-%05d" % rng.randrange(50_000)
            timestamp = TIMESTAMP_MS + seed * 1000 + count // 4
            value = _value(rng, words, value_bytes)
            if builder.append(count, timestamp, key, value, []) is None:
                break
            count += 1
            key_bytes += len(key)
            timestamp_sum += timestamp
        return cls(bytes(builder.build()), count, key_bytes, timestamp_sum)


def events(count: int, value_bytes: int) -> tuple[list[bytes], list[bytes]]:
    """Keys of 10 bytes, and values of this size."""
    rng, words = random.Random(count), _words()
    keys = [b"user-%05d" % rng.randrange(50_000) for _ in range(count)]
    return keys, [_value(rng, words, value_bytes) for _ in range(count)]


def _words() -> list[bytes]:
    rng = random.Random(0)
    return [
        bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(2000)
    ]


def _value(rng: random.Random, words: list[bytes], size: int) -> bytes:
    """An event as JSON: the same field names in each, small and large domains, free text at the end
    to fill it up. zstd makes about a third of it, lz4 half."""
    event = b'{"id":%d,"type":"%s","country":"%s","amount":%d.%02d,"note":"' % (
        rng.randrange(10**9),
        rng.choice(_TYPES),
        rng.choice(_COUNTRIES),
        rng.randrange(1000),
        rng.randrange(100),
    )
    note = b" ".join(rng.choices(words, k=size // 5))
    return (event + note)[: size - 2].ljust(size - 2, b".") + b'"}'

"""Damage of every kind: the scalar decoders give records or a typed error, in bounded memory."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import CorruptBatchError, StratalogError
from stratalog.format.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    PREFIX_BYTES,
    BatchHeader,
    Codec,
    TimestampType,
    next_entry,
)
from stratalog.format.buffers import crc32c
from stratalog.format.control import (
    ControlType,
    EndMarker,
    encode_end_marker,
    read_control_key,
    read_end_marker,
)
from stratalog.format.legacy import encode_legacy
from stratalog.format.log_entry import header_of, records_of
from stratalog.format.record import (
    BatchFields,
    Header,
    Record,
    encode_batch,
    encode_empty_batch,
    seal_batch,
)
from stratalog.format.resync import FoundBatch, find_next_batch
from tests.effort import scaled
from tests.memory import peak_bytes, restart_peak
from tests.strategies import LONG_MAX, LONG_MIN, GeneratedLog, logs

MUTATIONS = 10_000
DECOMPRESSED_BYTES_MAX = 1 << 20
MEMORY_BYTES_MAX = 32 << 20

RECORDS = [
    Record(10, 1_700_000_000_000, b"key", b"value" * 20, (Header("h", b"x"), Header("h", None))),
    Record(11, 1_699_999_999_000, None, None),
    Record(13, 1_700_000_000_900, b"", b"", (Header("", b""),)),
]
OLD_RECORDS = [record._replace(headers=()) for record in RECORDS]
OLDEST_RECORDS = [
    record._replace(timestamp=-1, timestamp_type=TimestampType.NO_TIMESTAMP)
    for record in OLD_RECORDS
]


def corpus() -> list[bytes]:
    """One batch of each kind, small enough that a mutation is likely to hit something."""
    plain = encode_batch(RECORDS)
    return [
        *(encode_batch(RECORDS, BatchFields(codec=codec)) for codec in Codec),
        encode_batch(
            RECORDS,
            BatchFields(
                timestamp_type=TimestampType.LOG_APPEND_TIME,
                is_transactional=True,
                producer_id=7,
                producer_epoch=1,
                base_sequence=(1 << 31) - 2,
            ),
        ),
        encode_batch(RECORDS, BatchFields(delete_horizon_ms=1_800_000_000_000, last_offset=20)),
        encode_empty_batch(BatchHeader.unpack(plain)),
        encode_end_marker(
            EndMarker(ControlType.COMMIT, 3),
            offset=10,
            timestamp=0,
            producer_id=7,
            producer_epoch=1,
            partition_leader_epoch=0,
        ),
        *(
            encode_legacy(OLDEST_RECORDS, 0, codec=codec)
            for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
        ),
        *(
            encode_legacy(OLD_RECORDS, 1, codec=codec)
            for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
        ),
    ]


CORPUS = corpus()
LOG = b"".join(
    [
        encode_legacy(OLDEST_RECORDS[:1], 0),
        encode_legacy(OLD_RECORDS[1:], 1, codec=Codec.GZIP),
        encode_batch([Record(20, 5, b"k", b"v")]),
        encode_batch([Record(21, 6, b"k", b"v" * 40)], BatchFields(codec=Codec.LZ4)),
    ]
)


def read(raw: bytes, *, check_crc: bool = True) -> list[Record]:
    """Everything a reader does with bytes, up to the first error."""
    records: list[Record] = []
    at = 0
    while (entry := next_entry(raw, at)) is not None:
        header = header_of(raw, entry)
        for record in records_of(
            raw, entry, check_crc=check_crc, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
        ):
            assert LONG_MIN <= record.offset <= LONG_MAX
            assert LONG_MIN <= record.timestamp <= LONG_MAX
            if header.is_control:
                read_control_key(record)
                read_end_marker(record)
            records.append(record)
        assert entry.end > at
        at = entry.end
    return records


def outcome(raw: bytes, *, check_crc: bool) -> list[Record] | StratalogError:
    """Records or the typed error; every other exception fails the test that called."""
    try:
        return read(raw, check_crc=check_crc)
    except StratalogError as error:
        return error


def resealed(raw: bytes) -> bytes:
    """`raw` with the CRC its first entry ought to have, so that damage gets past the check."""
    if len(raw) <= ATTRIBUTES_AT:
        return raw
    if raw[16] == 2:
        crc = struct.pack(">I", crc32c(raw[ATTRIBUTES_AT:]))
        return raw[:CRC_AT] + crc + raw[ATTRIBUTES_AT:]
    return raw[:12] + struct.pack(">I", zlib.crc32(raw[16:])) + raw[16:]


def mutated(raw: bytes, rng: random.Random) -> bytes:
    out = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out))
        kind = rng.randrange(6)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice((0x00, 0x01, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            extreme = rng.choice((0, 1, -1, (1 << 31) - 1, -(1 << 31), len(raw)))
            out[at : at + 4] = struct.pack(">i", extreme)
        elif kind == 3:
            out[at:at] = rng.randbytes(rng.randrange(1, 6))
        elif kind == 4 and len(out) > 1:
            del out[at : at + rng.randrange(1, 6)]
            out = out or bytearray(1)
        else:
            other = rng.choice(CORPUS)
            out[at:] = other[min(at, len(other)) :]
            out = out or bytearray(1)
    if rng.random() < 0.5 and len(out) > 12:
        out[8:12] = struct.pack(">i", len(out) - 12)  # else most mutations end in the length
    return bytes(out)


def test_the_corpus_itself_is_sound() -> None:
    assert [len(read(raw)) for raw in CORPUS] == [3] * 7 + [0, 1] + [3] * 8


def test_mutated_batches() -> None:
    rng = random.Random(20_240_607)
    before = restart_peak()
    survivors = errors = 0
    for number in range(MUTATIONS):
        raw = mutated(CORPUS[number % len(CORPUS)], rng)
        if rng.random() < 0.8:
            raw = resealed(raw)
        result = outcome(raw, check_crc=rng.random() < 0.7)
        if isinstance(result, StratalogError):
            errors += 1
        else:
            survivors += 1
    # Both ways out are well trodden, or the mutations are too tame or too wild to test anything.
    assert errors > MUTATIONS // 10
    assert survivors > MUTATIONS // 10
    assert peak_bytes() - before < MEMORY_BYTES_MAX


def guarded_positions(raw: bytes) -> list[int]:
    """Every byte that a CRC covers, and the CRCs themselves."""
    positions: list[int] = []
    at = 0
    while (entry := next_entry(raw, at)) is not None:
        positions.extend(range(at + (CRC_AT if entry.magic == 2 else PREFIX_BYTES), entry.end))
        at = entry.end
    return positions


def test_damage_never_passes_the_crc_as_other_records() -> None:
    rng = random.Random(7)
    for raw in CORPUS:
        for at in guarded_positions(raw):
            damaged = bytearray(raw)
            damaged[at] ^= rng.randrange(1, 256)
            assert isinstance(outcome(bytes(damaged), check_crc=True), CorruptBatchError), at


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        raw = rng.randbytes(rng.randrange(200))
        outcome(raw, check_crc=True)
        outcome(raw, check_crc=False)
        header = CORPUS[rng.randrange(len(CORPUS))][: rng.choice((12, 17, 21, 26, 61))]
        raw = header[:8] + struct.pack(">i", len(header) + len(raw) - 12) + header[12:] + raw
        outcome(raw, check_crc=False)
        outcome(resealed(raw), check_crc=True)
        find_next_batch(raw, 0, len(raw), offset_min=0)


@settings(max_examples=scaled(80))
@given(st.binary(max_size=300))
def test_any_bytes(raw: bytes) -> None:
    outcome(raw, check_crc=False)
    find_next_batch(raw, 0, len(raw), offset_min=0)


def test_truncation_at_every_byte() -> None:
    ends = {0: 0}
    at = count = 0
    while (entry := next_entry(LOG, at)) is not None:
        count += len(list(records_of(LOG, entry)))
        at = entry.end
        ends[at] = count
    assert list(ends.values()) == [0, 1, 3, 4, 5]
    everything = read(LOG)
    for cut in range(len(LOG) + 1):
        whole = max(end for end in ends if end <= cut)
        assert read(LOG[:cut]) == everything[: ends[whole]], cut


def test_truncation_of_a_payload_at_every_byte() -> None:
    """The length and the CRC say the batch is whole; its records are not."""
    for raw in CORPUS:
        for cut in range(26, len(raw)):
            short = raw[:8] + struct.pack(">i", cut - 12) + raw[12:cut]
            outcome(resealed(short), check_crc=True)
            outcome(short, check_crc=False)


@pytest.mark.slow
@settings(max_examples=40)
@given(logs(legacy=True), st.data())
def test_reading_goes_on_after_damage(log: GeneratedLog, data: st.DataObject) -> None:
    """A flipped byte costs the entry it lies in; the next one is found again, and is the next."""
    raw = log.raw
    index = data.draw(st.integers(0, len(log.batches) - 1))
    start = sum(len(batch.raw) for batch in log.batches[:index])
    entry = next_entry(raw, start)
    assert entry is not None
    at = data.draw(st.integers(start + ATTRIBUTES_AT, entry.end - 1))
    damaged = raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :]
    with pytest.raises(CorruptBatchError):
        list(records_of(damaged, entry))
    found = find_next_batch(damaged, entry.end, len(raw), offset_min=0, log_end=len(raw))
    following = next_entry(raw, entry.end)
    if following is None:
        assert not isinstance(found, FoundBatch)
    else:
        assert found == FoundBatch(following)


def bombs() -> list[bytes]:
    """Small batches that declare huge things, with the valid CRC."""
    plain = BatchHeader.unpack(encode_batch(RECORDS))._replace(record_count=1)
    huge = "feffffff0f"  # 2147483647 as a zig-zag varint
    key_of_2_gib = b"\x01\x00" + struct.pack(">qi", 0, (1 << 31) - 1) + bytes(8)
    return [
        seal_batch(plain._replace(record_count=(1 << 31) - 1), bytes(64)),
        seal_batch(plain, bytes.fromhex(huge) + bytes(64)),  # body length
        seal_batch(plain, bytes.fromhex("14000000" + huge + "0000")),  # key length
        seal_batch(plain, bytes.fromhex("1400000001" + huge + "00")),  # value length
        seal_batch(plain, bytes.fromhex("140000000101" + huge)),  # header count
        seal_batch(plain._replace(attributes=Codec.GZIP), gzip.compress(bytes(64 << 20), mtime=0)),
        seal_batch(
            plain._replace(attributes=Codec.SNAPPY), bytes.fromhex("ffffffff0f") + bytes(64)
        ),
        seal_batch(
            plain._replace(attributes=Codec.ZSTD),
            bytes.fromhex("28b52ffd" + "e0" + "ffffffffffffff0f") + bytes(64),
        ),
        seal_batch(
            plain._replace(attributes=Codec.LZ4),
            bytes.fromhex("04224d18" + "6070" + "73" + "00004000") + bytes(64),
        ),
        encode_legacy([Record(0, 0, None, bytes(64 << 20))], 1, codec=Codec.GZIP),
        resealed(struct.pack(">qiI", 0, 4 + len(key_of_2_gib), 0) + key_of_2_gib),
    ]


@pytest.mark.slow
def test_declared_sizes_are_checked_before_memory_is_taken() -> None:
    prepared = bombs()
    tracemalloc.start()
    try:
        for number, raw in enumerate(prepared):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            assert isinstance(outcome(raw, check_crc=True), StratalogError), number
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 8 * DECOMPRESSED_BYTES_MAX, number
    finally:
        tracemalloc.stop()

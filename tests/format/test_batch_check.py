"""The fast check of records agrees with the readable decoder, on good, bad and mutated batches."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import StratalogError
from stratalog.format.batch import Codec, next_entry
from stratalog.format.batch_check import BatchChecker, BatchStatus, reason_of
from stratalog.format.batch_table import scan_batches
from stratalog.format.buffers import crc32c
from stratalog.format.legacy import encode_legacy, encode_message
from stratalog.format.log_entry import header_of, records_of
from stratalog.format.record import BatchFields, Header, Record, encode_batch
from tests.effort import scaled
from tests.golden.cases import GOLDEN_DIR

PLAIN = encode_batch(
    [
        Record(7, 1000, b"k", b"v" * 30, (Header("h", b"x"), Header("h", None))),
        Record(9, 1005, None, None),
        Record(10, 1002, b"", b"z" * 200),
    ],
    BatchFields(),
)


def verdicts(raw: bytes) -> list[BatchStatus]:
    found = BatchChecker().check(raw, scan_batches(raw))
    return [BatchStatus(number) for number in found["status"].tolist()]


def with_crc(raw: bytes | bytearray) -> bytes:
    return bytes(raw[:17]) + struct.pack(">I", crc32c(raw[21:])) + bytes(raw[21:])


def is_readable(raw: bytes) -> bool:
    entry = next_entry(raw, 0)
    assert entry is not None
    try:
        for _ in records_of(raw, entry):
            pass
    except StratalogError:
        return False
    return True


def test_facts_of_a_good_batch() -> None:
    (found,) = BatchChecker().check(PLAIN, scan_batches(PLAIN))
    assert found["status"] == BatchStatus.GOOD
    assert found["last_record_offset"] == 10
    assert found["max_timestamp"] == 1005


@pytest.mark.parametrize(
    ("at", "raw", "status"),
    [
        (35, struct.pack(">q", 1006), BatchStatus.BAD_TIMESTAMP),
        (23, struct.pack(">i", 2), BatchStatus.BAD_OFFSETS),
        (57, struct.pack(">i", 2), BatchStatus.BAD_RECORDS),
        (57, struct.pack(">i", 4), BatchStatus.BAD_RECORDS),
        (57, struct.pack(">i", -1), BatchStatus.BAD_BATCH),
        (23, struct.pack(">i", -1), BatchStatus.BAD_BATCH),
        (57, struct.pack(">i", 1 << 20), BatchStatus.BAD_BATCH),
    ],
)
def test_what_a_right_crc_does_not_excuse(at: int, raw: bytes, status: BatchStatus) -> None:
    changed = bytearray(PLAIN)
    changed[at : at + len(raw)] = raw
    assert verdicts(with_crc(changed)) == [status]


def test_a_wrong_crc() -> None:
    changed = bytearray(PLAIN)
    changed[-1] ^= 1
    assert verdicts(bytes(changed)) == [BatchStatus.BAD_BATCH]
    assert "CRC" in reason_of(bytes(changed), scan_batches(bytes(changed)).rows[0])


def test_log_append_time_has_one_timestamp_for_all() -> None:
    changed = bytearray(PLAIN)
    changed[22] |= 0x08
    changed[35:43] = struct.pack(">q", 99)
    assert verdicts(with_crc(changed)) == [BatchStatus.GOOD]


def test_bad_batches_among_good_ones() -> None:
    bad = bytearray(PLAIN)
    bad[57:61] = struct.pack(">i", 2)
    raw = PLAIN + with_crc(bad) + PLAIN
    assert verdicts(raw) == [BatchStatus.GOOD, BatchStatus.BAD_RECORDS, BatchStatus.GOOD]


@pytest.mark.parametrize("case", ["java-gzip", "java-snappy", "java-lz4", "rdk-zstd", "v1-lz4"])
def test_compressed_batches(case: str) -> None:
    (log, *_) = sorted((GOLDEN_DIR / case).glob("*-0/*.log"))
    raw = log.read_bytes()
    good = verdicts(raw)
    assert set(good) == {BatchStatus.GOOD}
    assert len(good) == len(scan_batches(raw))


def test_corrupt_message_in_an_old_set() -> None:
    """The CRC of the set is valid; that of a message inside is not."""
    messages = [Record(0, 5, b"k", b"a"), Record(1, 5, b"k", b"b")]
    inner = bytearray(encode_legacy(messages, 1))
    good = Record(1, 5, None, gzip.compress(inner, mtime=0))
    inner[-1] ^= 1
    bad = good._replace(value=gzip.compress(inner, mtime=0))
    sets = [encode_message(wrapper, 1, codec=Codec.GZIP) for wrapper in (good, bad, good)]
    expected = [BatchStatus.GOOD, BatchStatus.BAD_RECORDS, BatchStatus.GOOD]
    assert verdicts(b"".join(sets)) == expected


def test_records_that_cannot_be_decompressed() -> None:
    (log, *_) = sorted((GOLDEN_DIR / "rdk-zstd").glob("*-0/*.log"))
    table = scan_batches(log.read_bytes())
    second = table.rows[1]
    raw = bytearray(log.read_bytes())
    start, end = int(second["position"]), int(second["position"] + second["size_bytes"])
    raw[start + 61 : start + 70] = bytes(9)
    raw[start:end] = with_crc(raw[start:end])
    found = verdicts(bytes(raw))
    assert found[1] is BatchStatus.BAD_RECORDS
    assert set(found) - {BatchStatus.BAD_RECORDS} == {BatchStatus.GOOD}
    assert found.count(BatchStatus.BAD_RECORDS) == 1


@settings(max_examples=scaled(150), deadline=None)
@given(at=st.integers(21, len(PLAIN) - 1), to=st.integers(0, 255))
def test_mutated_batches_are_judged_as_the_readable_decoder_does(at: int, to: int) -> None:
    changed = bytearray(PLAIN)
    changed[at] = to
    raw = with_crc(changed)
    (status,) = verdicts(raw)
    entry = next_entry(raw, 0)
    assert entry is not None
    if status in {BatchStatus.BAD_RECORDS, BatchStatus.BAD_BATCH}:
        assert not is_readable(raw)
    else:
        assert is_readable(raw)
        header_of(raw, entry)
        offsets = np.array([record.offset for record in records_of(raw, entry)])
        is_rising = bool((np.diff(offsets) > 0).all())
        last = scan_batches(raw).rows["last_offset"][0]
        is_inside = bool(((offsets >= 7) & (offsets <= last)).all())
        assert (status is BatchStatus.BAD_OFFSETS) == (not (is_rising and is_inside))

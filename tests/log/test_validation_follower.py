"""Data that a leader has placed: kept as it is, as long as it continues the log."""

from __future__ import annotations

import pytest

from stratalog.errors import CorruptMessageError, UnexpectedAppendOffsetError
from stratalog.format.batch import BatchHeader, BatchSpan, Codec
from stratalog.format.legacy import encode_legacy
from stratalog.format.record import BatchFields, Record, encode_batch, encode_empty_batch
from stratalog.log.offset_assignment import EMPTY_APPEND
from stratalog.log.validation import validate_follower


def batch(*offsets: int, timestamp: int = 1000, last_offset: int | None = None) -> bytes:
    records = [Record(offset, timestamp, b"k", b"v") for offset in offsets]
    return encode_batch(records, BatchFields(last_offset=last_offset, partition_leader_epoch=4))


def test_batches_are_kept_with_their_holes() -> None:
    first, second = batch(10, 12, timestamp=7, last_offset=15), batch(20, timestamp=5)
    empty = encode_empty_batch(BatchHeader.unpack(batch(30, 31, timestamp=9)))
    raw = first + second + empty
    append = validate_follower(raw + first[:40], log_end_offset=10)
    assert bytes(append.data) == raw
    assert append.spans == (
        BatchSpan(0, len(first), 10, 15, 7),
        BatchSpan(len(first), len(second), 20, 20, 5),
        BatchSpan(len(first) + len(second), 61, 30, 31, 9),
    )
    assert (append.first_offset, append.last_offset, append.record_count) == (10, 31, 22)
    assert (append.max_timestamp, append.offset_of_max_timestamp) == (9, 31)
    assert [header.partition_leader_epoch for header in append.headers] == [4, 4, 4]


def test_there_may_be_a_gap_before_them() -> None:
    assert validate_follower(batch(10), log_end_offset=3).first_offset == 10


def test_below_the_log_end_offset() -> None:
    with pytest.raises(UnexpectedAppendOffsetError, match="below the log end offset 11"):
        validate_follower(batch(10, 11), log_end_offset=11)


@pytest.mark.parametrize("second", [9, 10, 11])
def test_offsets_must_grow(second: int) -> None:
    with pytest.raises(UnexpectedAppendOffsetError) as caught:
        validate_follower(batch(10, 11) + batch(second), log_end_offset=0)
    assert caught.value.code == -1


def test_damage() -> None:
    raw = bytearray(batch(10) + batch(11))
    raw[-1] ^= 1
    with pytest.raises(CorruptMessageError):
        validate_follower(raw, log_end_offset=0)
    negative = b"\xff" * 8 + batch(10)[8:]
    with pytest.raises(CorruptMessageError, match="offsets -1"):
        validate_follower(negative, log_end_offset=0)


def test_nothing() -> None:
    assert validate_follower(b"", log_end_offset=5) == EMPTY_APPEND
    assert validate_follower(batch(10)[:-1], log_end_offset=5) == EMPTY_APPEND


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats(magic: int) -> None:
    records = [Record(offset, 50 + offset, b"k", b"v") for offset in (10, 11, 12)]
    plain = encode_legacy(records, magic)
    packed = encode_legacy(
        [record._replace(offset=record.offset + 10) for record in records], magic, codec=Codec.GZIP
    )
    append = validate_follower(plain + packed, log_end_offset=10)
    assert [(span.base_offset, span.last_offset) for span in append.spans] == [
        (10, 10),
        (11, 11),
        (12, 12),
        (20, 22),
    ]
    assert append.max_timestamp == (62 if magic else -1)
    assert append.record_count == 13


def test_of_a_compressed_set_only_the_last_offset_is_known_in_time() -> None:
    records = [Record(offset, 5, b"k", b"v") for offset in (10, 11, 12)]
    raw = encode_legacy(records, 1, codec=Codec.GZIP)
    assert validate_follower(raw, log_end_offset=12).first_offset == 10
    with pytest.raises(UnexpectedAppendOffsetError):
        validate_follower(raw, log_end_offset=13)


def test_sizes_are_the_leaders_business() -> None:
    raw = encode_batch([Record(0, 5, b"k", bytes(2_000_000))])
    assert len(validate_follower(raw, log_end_offset=0).data) == len(raw)

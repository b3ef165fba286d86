"""Appends to validate, and what to expect of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import (
    AppendError,
)
from stratalog.format.batch import BatchHeader, TimestampType, is_crc_valid
from stratalog.format.control import ControlType, EndMarker, encode_end_marker
from stratalog.format.record import BatchFields, Record, encode_batch, seal_batch
from stratalog.format.record import decode_records as decode
from stratalog.log.offset_assignment import AppendOrigin, AppendRules, Assignment, ValidatedAppend

if TYPE_CHECKING:
    from stratalog.log.validation import LeaderValidator

NOW_MS = 1_700_000_000_000
RULES = AppendRules()
ASSIGN = Assignment(next_offset=500, leader_epoch=7, now_ms=NOW_MS)
COORDINATOR = ASSIGN._replace(origin=AppendOrigin.COORDINATOR)
LOG_APPEND_TIME = AppendRules(timestamp_type=TimestampType.LOG_APPEND_TIME)

# Test vector A of the fact sheet: two records, timestamps 1000 and 1005, one header, a tombstone.
VECTOR_A = bytes.fromhex(
    "00000000000000000000004600000000029894628100000000000100000000000003e800000000000003ed"
    "ffffffffffffffffffffffffffff0000000218000000026b027602026802780e000a02026b0100"
)


def records(*values: bytes | None, first: int = 0, timestamp: int = NOW_MS) -> list[Record]:
    return [
        Record(first + index, timestamp + index, b"k%d" % index, value)
        for index, value in enumerate(values)
    ]


def batch(*values: bytes | None, fields: BatchFields | None = None) -> bytes:
    return encode_batch(records(*(values or (b"a", b"b", b"c"))), fields or BatchFields())


def resealed(raw: bytes, **changes: int) -> bytes:
    """`raw` with other header fields and a CRC that is right for them."""
    header = BatchHeader.unpack(raw)._replace(**changes)
    return seal_batch(header, raw[61:])


def header_of(append: ValidatedAppend) -> BatchHeader:
    (header,) = append.headers
    assert isinstance(header, BatchHeader)
    assert bytes(append.data[:61]) == header.pack()
    assert is_crc_valid(append.data, 0, header)
    return header


def records_of(append: ValidatedAppend) -> list[Record]:
    return list(decode(append.data, 0, header_of(append)))


def refused(
    leader: LeaderValidator,
    data: bytes,
    rules: AppendRules = RULES,
    assign: Assignment = ASSIGN,
) -> AppendError:
    before = bytes(data)
    with pytest.raises(AppendError) as caught:
        leader.validate(data, rules, assign)
    assert bytes(data) == before
    return caught.value


def marker(offset: int = 0) -> bytes:
    return encode_end_marker(
        EndMarker(ControlType.COMMIT, 3),
        offset=offset,
        timestamp=NOW_MS,
        producer_id=1,
        producer_epoch=0,
        partition_leader_epoch=-1,
    )

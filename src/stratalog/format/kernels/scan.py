"""The walk over batch headers."""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format import batch as layout
from stratalog.format.kernels.crc import is_crc_valid
from stratalog.format.kernels.jit import inlined, kernel
from stratalog.format.kernels.memory import (
    BATCHES,
    PAYLOADS,
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_i8,
)
from stratalog.format.record import RECORD_BYTES_MIN

END, PARTIAL, BAD_LENGTH, BAD_MAGIC, FULL = range(5)


@inlined
def _size_min(magic: int) -> int:
    if magic == layout.MAGIC_2:
        return layout.HEADER_BYTES
    if magic == 1:
        return layout.PREFIX_BYTES + layout.MESSAGE_1_BYTES_MIN
    return layout.PREFIX_BYTES + layout.LEGACY_MESSAGE_BYTES_MIN


@inlined
def _header(at: int, row: Any) -> None:
    base_offset = load_be_i64(at)
    row.base_offset = base_offset
    row.partition_leader_epoch = load_be_i32(at + layout.LEADER_EPOCH_AT)
    row.crc = load_be_u32(at + layout.CRC_AT)
    row.attributes = load_be_i16(at + layout.ATTRIBUTES_AT)
    row.last_offset = base_offset + load_be_i32(at + layout.LAST_OFFSET_DELTA_AT)
    row.base_timestamp = load_be_i64(at + layout.BASE_TIMESTAMP_AT)
    row.max_timestamp = load_be_i64(at + layout.MAX_TIMESTAMP_AT)
    row.producer_id = load_be_i64(at + layout.PRODUCER_ID_AT)
    row.producer_epoch = load_be_i16(at + layout.PRODUCER_EPOCH_AT)
    row.base_sequence = load_be_i32(at + layout.BASE_SEQUENCE_AT)
    row.record_count = load_be_i32(at + layout.RECORD_COUNT_AT)


@inlined
def _legacy_header(at: int, row: Any) -> None:
    offset = load_be_i64(at)
    attributes = load_i8(at + 17)
    is_set = attributes & layout.CODEC_MASK != 0
    row.base_offset = -1 if is_set else offset
    row.partition_leader_epoch = -1
    row.crc = load_be_u32(at + 12)
    row.attributes = attributes
    row.last_offset = offset
    row.base_timestamp = -1
    row.max_timestamp = load_be_i64(at + 18) if row.magic == 1 else -1
    row.producer_id = -1
    row.producer_epoch = -1
    row.base_sequence = -1
    row.record_count = -1 if is_set else 1


@kernel(types.UniTuple(types.int64, 3)(types.int64, types.int64, types.int64, BATCHES))
def scan(buf: int, start: int, end: int, out: Any) -> tuple[int, int, int]:
    """Fill `out` with the headers of the batches in [start, end) of the bytes at address `buf`.

    Returns how many there are, the position after the last one, and why it stopped there. Bytes
    below `end` are all it reads.
    """
    at = start
    count = 0
    while True:
        left = end - at
        if left <= layout.CLASSIFY_BYTES:
            return count, at, PARTIAL if left > 0 else END
        length = load_be_i32(buf + at + layout.BATCH_LENGTH_AT)
        if length < layout.LEGACY_MESSAGE_BYTES_MIN:
            return count, at, BAD_LENGTH
        size = length + layout.PREFIX_BYTES
        if size > left:
            return count, at, PARTIAL
        magic = load_i8(buf + at + layout.MAGIC_AT)
        if magic < 0 or magic > layout.MAGIC_2:
            return count, at, BAD_MAGIC
        if size < _size_min(magic):
            return count, at, BAD_LENGTH
        if count == len(out):
            return count, at, FULL
        row = out[count]
        row.position = at
        row.size_bytes = size
        row.magic = magic
        if magic == layout.MAGIC_2:
            _header(buf + at, row)
        else:
            _legacy_header(buf + at, row)
        at += size
        count += 1


# A survey of a run of batches: whether they are valid, their kinds, and how much they hold.

# Slots of `found`.
RECORDS, PAYLOAD_BYTES, KINDS = range(3)
SLOTS = 3

# Bits of found[KINDS]: what there is at least one of.
COMPRESSED, CONTROL, LEGACY = 1, 2, 4

FOREIGN = -1


@inlined
def _is_good(buf: int, batch: Any, checks_crc: bool) -> bool:
    """What `read_header` and `check_crc` ask of a batch, and room for its records if plain."""
    if batch.record_count < 0 or batch.base_offset < 0 or batch.last_offset < batch.base_offset:
        return False
    if checks_crc and not is_crc_valid(buf, batch):
        return False
    is_plain = batch.attributes & layout.CODEC_MASK == 0
    return (
        not is_plain
        or batch.record_count * RECORD_BYTES_MIN <= batch.size_bytes - layout.HEADER_BYTES
    )


@inlined
def _kinds(batch: Any) -> int:
    attributes = batch.attributes
    kinds = COMPRESSED if attributes & layout.CODEC_MASK else 0
    return kinds | CONTROL if attributes & layout.CONTROL_BIT else kinds


@kernel(types.int64(types.int64, types.int64, BATCHES, PAYLOADS, types.int64[::1], types.boolean))
def survey(
    buf: int, buf_bytes: int, batches: Any, payloads: Any, found: Any, checks_crc: bool
) -> int:
    """How many batches are good before the first bad one. Notes what they are and, as if all were
    plain, where their records lie. Legacy entries count as good and are noted as such.

    Reads the `buf_bytes` bytes at address `buf`; returns FOREIGN if a batch does not lie there.
    """
    for i in range(len(batches)):
        batch = batches[i]
        if batch.position < 0 or batch.size_bytes < 0:
            return FOREIGN
        if batch.position + batch.size_bytes > buf_bytes:
            return FOREIGN
        if batch.magic != layout.MAGIC_2:
            found[KINDS] |= LEGACY
            continue
        if batch.size_bytes < layout.HEADER_BYTES or not _is_good(buf, batch, checks_crc):
            return i
        payloads[i].address = buf + batch.position + layout.HEADER_BYTES
        payloads[i].size_bytes = batch.size_bytes - layout.HEADER_BYTES
        found[RECORDS] += batch.record_count
        found[PAYLOAD_BYTES] += batch.size_bytes - layout.HEADER_BYTES
        found[KINDS] |= _kinds(batch)
    return len(batches)

"""Batches that were put together elsewhere get their place in a log: 12 bytes of each change.

Base offset and leader epoch lie outside a batch's CRC, so nothing is encoded or summed up anew. The
CRC is checked all the same: between the encoder and here there was a disk.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from stratalog.errors import CorruptBatchError
from stratalog.format.batch import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    LEADER_EPOCH_AT,
    MAGIC_2,
    NO_TIMESTAMP,
    BatchHeader,
)
from stratalog.format.batch_span import BatchSpan
from stratalog.format.checksum import crc32c
from stratalog.log.appends import GroupAppend

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer
    from stratalog.format.entry import EntryHeader

_OFFSET: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">i")


def place(data: Buffer, next_offset: int, leader_epoch: int) -> GroupAppend:
    """Give the batches of `data` offsets from `next_offset` on, in place.

    Raises CorruptBatchError for anything but whole, undamaged batches of records without a
    producer id.
    """
    spans: list[BatchSpan] = []
    headers: list[EntryHeader] = []
    view = memoryview(data)
    at = 0
    while at < len(data):
        header = checked_header(view, at)
        size_bytes = header.size_bytes
        _OFFSET.pack_into(view, at, next_offset)
        _EPOCH.pack_into(view, at + LEADER_EPOCH_AT, leader_epoch)
        header = header._replace(base_offset=next_offset, partition_leader_epoch=leader_epoch)
        last_offset = header.last_offset
        spans.append(BatchSpan(at, size_bytes, next_offset, last_offset, header.max_timestamp))
        headers.append(header)
        at += size_bytes
        next_offset = last_offset + 1
    return GroupAppend(data, spans, headers, next_offset, NO_TIMESTAMP)


def checked_header(data: Buffer, at: int) -> BatchHeader:
    """The header of the batch at `at`, of which every byte is there and as it was written."""
    if len(data) - at < HEADER_BYTES:
        raise CorruptBatchError("the file ends inside a batch", position=at)
    header = BatchHeader.unpack(data, at)
    size_bytes = header.size_bytes
    if not HEADER_BYTES <= size_bytes <= len(data) - at or header.magic != MAGIC_2:
        raise CorruptBatchError("no whole batch begins here", position=at)
    if header.crc != crc32c(memoryview(data)[at + ATTRIBUTES_AT : at + size_bytes]):
        raise CorruptBatchError("the CRC is wrong", position=at)
    if header.record_count != header.last_offset_delta + 1 or header.record_count <= 0:
        raise CorruptBatchError(f"{header.record_count} records, or holes between", position=at)
    if header.producer_id >= 0 or header.is_control:
        raise CorruptBatchError("the batch belongs to a producer or is a marker", position=at)
    return header

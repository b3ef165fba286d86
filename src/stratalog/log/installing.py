"""Batches that were put together elsewhere get their place in a log: 12 bytes of each change.

Base offset and leader epoch lie outside a batch's CRC, so nothing is encoded or summed up anew. The
CRC is checked all the same: between the encoder and here there was a disk.

`place` does so in memory, for batches that are appended. A file with many of them may become a
segment as it is (`SegmentPlan`): the 12 bytes are changed in the file, nothing is copied. The
segment is what single appends would have made, but for where it begins: the one before it may not
have been full.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptBatchError
from stratalog.format.batch import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    LEADER_EPOCH_AT,
    MAGIC_2,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    BatchHeader,
)
from stratalog.format.batch_span import BatchSpan
from stratalog.format.checksum import crc32c
from stratalog.format.index_rules import IndexBuilder
from stratalog.format.offset_index import RELATIVE_OFFSET_MAX
from stratalog.log.appends import GroupAppend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.config import LogConfig
    from stratalog.format.buffers import Buffer
    from stratalog.format.entry import EntryHeader

_OFFSET: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">i")
_PLACE: Final = struct.Struct(
    ">q"  # base offset
    "i"  # batch length, as it was
    "i"  # partition leader epoch
)
_OFFSET_ENTRY_BYTES: Final = 8
_TIME_ENTRY_BYTES: Final = 12
_SPARE_ENTRIES: Final = 2
"""An index counts as full before its last entry is used."""


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


class SegmentPlan(NamedTuple):
    """A file of batches as a segment at a certain offset."""

    batches: FileBatches
    indexes: IndexBuilder
    leader_epoch: int
    next_offset: int

    def patches(self) -> Iterator[tuple[int, bytes]]:
        """Where the file changes, and to what."""
        position, offset = 0, self.indexes.base_offset
        for size_bytes, records in zip(self.batches.sizes, self.batches.counts, strict=True):
            yield position, _PLACE.pack(offset, size_bytes - PREFIX_BYTES, self.leader_epoch)
            position += size_bytes
            offset += records


class FileBatches:
    """What a file of batches holds, as far as a segment's indexes need it. All were checked."""

    def __init__(self) -> None:
        self.sizes = array("q")
        self.counts = array("q")
        self.max_timestamps = array("q")
        self.size_bytes = 0

    def add(self, header: BatchHeader) -> None:
        self.sizes.append(header.size_bytes)
        self.counts.append(header.record_count)
        self.max_timestamps.append(header.max_timestamp)
        self.size_bytes += header.size_bytes

    def plan(self, base_offset: int, leader_epoch: int, config: LogConfig) -> SegmentPlan | None:
        """The segment that single appends to an empty one would have made of the batches; None if
        they would have rolled in between."""
        if not self.sizes or self._rolls(config):
            return None
        indexes = IndexBuilder(base_offset, config.index_interval_bytes)
        position, offset = 0, base_offset
        for size_bytes, records, max_timestamp in zip(
            self.sizes, self.counts, self.max_timestamps, strict=True
        ):
            offset += records
            if offset - 1 - base_offset > RELATIVE_OFFSET_MAX:
                return None
            indexes.add(position, size_bytes, offset - 1, max_timestamp)
            position += size_bytes
        indexes.finish()
        if not _fits(indexes, config.segment_index_bytes):
            return None
        return SegmentPlan(self, indexes, leader_epoch, offset)

    def _rolls(self, config: LogConfig) -> bool:
        """By size or by time, at the earliest."""
        first, newest = self.max_timestamps[0], max(self.max_timestamps)
        segment_ms = config.effective_segment_ms - config.effective_segment_jitter_ms
        is_by_time = first < 0 or newest - first > segment_ms
        return is_by_time or self.size_bytes > config.segment_bytes


def _fits(indexes: IndexBuilder, bytes_max: int) -> bool:
    offset_entries = len(indexes.offset_index) // _OFFSET_ENTRY_BYTES
    time_entries = len(indexes.time_index) // _TIME_ENTRY_BYTES
    return (
        offset_entries + _SPARE_ENTRIES <= bytes_max // _OFFSET_ENTRY_BYTES
        and time_entries + _SPARE_ENTRIES <= bytes_max // _TIME_ENTRY_BYTES
    )

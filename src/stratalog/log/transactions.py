"""Producers and transactions of a log, without a broker: from snapshots, indexes and a replay.

The last stable offset is where the oldest open transaction begins. It is not stored anywhere, so it
comes from the newest good producer snapshot and a walk over the batch headers after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import AccessDeniedError, CorruptError, StratalogError
from stratalog.format.control import read_end_marker
from stratalog.format.entry import records_of
from stratalog.format.names import FileKind
from stratalog.format.snapshot import decode_snapshot
from stratalog.format.txn_index import ENTRY_BYTES, check_entries, collect_aborted
from stratalog.log.producers import ProducerReplay
from stratalog.storage.log_file import read_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.format.batch import BatchHeader
    from stratalog.format.control import EndMarker
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.segments import SegmentList, SegmentPart
    from stratalog.storage.segment_view import SegmentView

Snapshots = tuple[tuple[int, "Path"], ...]


def replay_producers(
    segments: SegmentList, snapshots: Snapshots, end_offset: int
) -> ProducerReplay:
    """Producer state just below `end_offset`."""
    start_offset, replay = _from_snapshot(snapshots, end_offset)
    for header, marker in producer_batches(segments, start_offset, end_offset):
        if marker is None:
            replay.add_data(header)
        else:
            replay.add_marker(header, marker)
    return replay


def producer_batches(
    segments: SegmentList, start_offset: int, end_offset: int
) -> Iterator[tuple[BatchHeader, EndMarker | None]]:
    """What changes producer state in [start, end): their data, and the markers that end
    transactions. Control batches that are neither are left out. A log start may lie inside a batch;
    that batch belongs to it."""
    for part in segments.parts_from(max(start_offset, segments.bases[0])):
        if part.segment.base_offset >= end_offset:
            return
        yield from _producer_batches_of(part, start_offset, end_offset)


def aborted_transactions(
    segments: SegmentList, snapshots: Snapshots, start_offset: int, end_offset: int
) -> list[AbortedTxn]:
    """Every aborted transaction that the indexes know of and that touches [start, end)."""
    found: list[AbortedTxn] = []
    for part in segments.parts_from(start_offset):
        entries = _entries_of(part, segments, snapshots)
        within = collect_aborted(entries, start_offset, end_offset)
        found += within.txns
        if within.is_complete:
            break
    return found


def _entries_of(part: SegmentPart, segments: SegmentList, snapshots: Snapshots) -> bytes:
    """The segment's transaction index; rebuilt by replay when the file is damaged.

    Kafka makes the file with its first entry, so one without a whole entry is damaged too.
    """
    segment = part.segment
    try:
        data = read_file(segment.sibling(FileKind.TXN_INDEX.value))
    except FileNotFoundError:
        segment.check_in_place()
        return b""
    segment.check_in_place()
    whole = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
    if _is_sound(whole, segment.base_offset):
        return whole
    before = tuple(s for s in snapshots if s[0] <= segment.base_offset)
    replay = replay_producers(segments, before, part.end_offset)
    ours = (txn for txn in replay.aborted if txn.last_offset >= segment.base_offset)
    return b"".join(txn.pack() for txn in ours)


def _is_sound(entries: bytes, base_offset: int) -> bool:
    try:
        check_entries(entries, base_offset)
    except StratalogError:
        return False
    return bool(entries)


def _from_snapshot(snapshots: Snapshots, end_offset: int) -> tuple[int, ProducerReplay]:
    """The newest snapshot at or below `end_offset` that can be read, or nothing at all."""
    for offset, path in reversed(snapshots):
        if offset <= end_offset:
            try:
                return offset, ProducerReplay(decode_snapshot(read_file(path)))
            except AccessDeniedError:
                raise
            except (StratalogError, FileNotFoundError):
                continue  # as Kafka does: the next older one
    return 0, ProducerReplay()


def _producer_batches_of(
    part: SegmentPart, start_offset: int, end_offset: int
) -> Iterator[tuple[BatchHeader, EndMarker | None]]:
    segment = part.segment
    start = segment.seek(start_offset).position
    for position, header in segment.walk_headers(start):
        if header.base_offset >= end_offset or position >= part.end_position:
            return
        if not header.has_producer or header.last_offset < start_offset:
            continue
        if not header.is_control:
            yield header, None
        elif (marker := _marker_at(segment, position, header)) is not None:
            yield header, marker


def _marker_at(segment: SegmentView, position: int, header: BatchHeader) -> EndMarker | None:
    """None for another control type, a marker that compaction emptied, or a damaged one."""
    if not header.record_count:
        return None
    try:
        batch = segment.load_batch(position)
        record = next(records_of(batch.buf, batch.entry, check_crc=False), None)
        return None if record is None else read_end_marker(record, position=position)
    except CorruptError:
        return None

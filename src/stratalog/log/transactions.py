"""Producers and transactions of a log, without a broker: from snapshots, indexes and a replay.

The last stable offset is where the oldest open transaction begins. It is not stored anywhere, so it
comes from the newest good producer snapshot and a walk over the batch headers after it.
"""

from __future__ import annotations

import logging
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
    from stratalog.format.snapshot import ProducerEntry
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.segments import SegmentList, SegmentPart
    from stratalog.storage.segment_view import SegmentView

_log = logging.getLogger(__name__)

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
    """Every aborted transaction that touches [start, end), by the indexes. Without `snapshots` an
    index that is missing counts as empty."""
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
        return _entries_without_file(part, segments, snapshots)
    segment.check_in_place()
    whole = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
    if _is_sound(whole, segment.base_offset):
        return whole
    return b"".join(txn.pack() for txn in _replayed(part, segments, snapshots))


def _entries_without_file(part: SegmentPart, segments: SegmentList, snapshots: Snapshots) -> bytes:
    """Most segments have no abort and so no file. Where the producer snapshots around the segment
    show that a transaction may have ended in it, its headers are walked for ABORT markers."""
    if not snapshots or not _may_end_transactions(part, snapshots):
        return b""
    found = [
        txn
        for txn in _replayed(part, segments, snapshots)
        if has_data(segments, txn.producer_id, txn.first_offset, txn.last_offset)
    ]
    if found:
        _log.warning(
            "%s: missing, though %d transactions were aborted in the segment; their records are "
            "hidden by what the log says. Rebuild the file: stratalog reindex",
            part.segment.sibling(FileKind.TXN_INDEX.value),
            len(found),
        )
    return b"".join(txn.pack() for txn in found)


def _may_end_transactions(part: SegmentPart, snapshots: Snapshots) -> bool:
    """Whether a producer that has ever ended a transaction wrote in the segment, by the snapshots
    at its start and its end. What follows the newest snapshot is replayed in any case.

    Without a readable snapshot at one of them nothing is known, and the answer is yes.
    """
    base, end = part.segment.base_offset, part.end_offset
    within = [(offset, path) for offset, path in snapshots if base < offset <= end]
    if not within:
        return part.next_base is not None
    after = _producers_at(within[-1][1])
    starts = dict(snapshots)
    before = _producers_at(starts[base]) if base in starts else ({} if base == 0 else None)
    if after is None or before is None:
        return True
    return any(
        entry.coordinator_epoch >= 0 and before.get(producer_id) != entry
        for producer_id, entry in after.items()
    )


def _producers_at(snapshot: Path) -> dict[int, ProducerEntry] | None:
    try:
        return {entry.producer_id: entry for entry in decode_snapshot(read_file(snapshot))}
    except AccessDeniedError:
        raise
    except (StratalogError, FileNotFoundError):
        return None


def _replayed(part: SegmentPart, segments: SegmentList, snapshots: Snapshots) -> list[AbortedTxn]:
    """The transactions whose ABORT marker is in the segment."""
    base = part.segment.base_offset
    before = tuple(s for s in snapshots if s[0] <= base)
    replay = replay_producers(segments, before, part.end_offset)
    return [txn for txn in replay.aborted if txn.last_offset >= base]


def has_data(segments: SegmentList, producer_id: int, first_offset: int, marker: int) -> bool:
    """Whether a batch of the transaction is left in the log. The cleaner removes all of an aborted
    one before its marker, and its entry with them."""
    batches = producer_batches(segments, first_offset, marker)
    return any(header.producer_id == producer_id and not header.is_control for header, _ in batches)


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

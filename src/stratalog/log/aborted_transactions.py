"""Producers and transactions of a log, without a broker: from snapshots, indexes and a replay.

The last stable offset is where the oldest open transaction begins. It is not stored anywhere, so it
comes from the newest valid producer snapshot and a walk over the batch headers after it.
"""

from __future__ import annotations

import logging
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import AccessDeniedError, CorruptError, StratalogError, command_line
from stratalog.format.batch import HEADER_BYTES
from stratalog.format.control import read_end_marker
from stratalog.format.log_entry import records_of
from stratalog.format.names import FileKind
from stratalog.format.producer_snapshot import decode_snapshot
from stratalog.format.txn_index import ENTRY_BYTES, check_entries, collect_aborted, read_entries
from stratalog.log.producer_transitions import ProducerReplay
from stratalog.storage.log_file import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator
    from pathlib import Path

    from stratalog.format.batch import BatchHeader
    from stratalog.format.control import EndMarker
    from stratalog.format.producer_snapshot import ProducerEntry
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.segment_list import SegmentList, SegmentPart
    from stratalog.storage.segment_view import SegmentView

_log = logging.getLogger(__name__)

Snapshots = tuple[tuple[int, "Path"], ...]


def replay_producers(
    segments: SegmentList, snapshots: Snapshots, end_offset: int
) -> ProducerReplay:
    """Producer state just below `end_offset`."""
    replay = _from_snapshot(snapshots, end_offset)
    _replay_batches(replay, segments, replay.start_offset, end_offset)
    return replay


class ReplayedLog(NamedTuple):
    """Producer state at the end of a log, and what shows whether the log has only grown since."""

    replay: ProducerReplay
    snapshots: Snapshots
    end_offset: int
    last_header: bytes
    """The header of the last replayed batch, whose CRC identifies the batch."""

    def is_start_of(self, segments: SegmentList, snapshots: Snapshots) -> bool:
        """Whether the log still has all that was replayed: its last batch, unless it was truncated.
        With another snapshot, less has to be replayed from that one."""
        is_same = snapshots == self.snapshots and self.last_header != b""
        return is_same and _header_before(segments, self.end_offset) == self.last_header


def replay_log(
    segments: SegmentList, snapshots: Snapshots, end_offset: int, earlier: ReplayedLog | None
) -> ReplayedLog:
    """Producer state at the end of a log. If the log has only grown since `earlier`, that replay is
    continued in place: do not use it afterwards."""
    if earlier is not None and earlier.is_start_of(segments, snapshots):
        replay = earlier.replay
        _replay_batches(replay, segments, earlier.end_offset, end_offset)
    else:
        replay = replay_producers(segments, snapshots, end_offset)
    return ReplayedLog(replay, snapshots, end_offset, _header_before(segments, end_offset))


def _header_before(segments: SegmentList, end_offset: int) -> bytes:
    """The header of the batch that ends at an offset; empty if there is none."""
    if end_offset <= segments.bases[0]:
        return b""
    part = next(iter(segments.parts_from(end_offset - 1)))
    found = part.segment.seek(end_offset - 1)
    if found.batch is None:
        return b""
    return part.segment.file.read(found.position, min(HEADER_BYTES, found.batch.size_bytes))


def _replay_batches(
    replay: ProducerReplay, segments: SegmentList, start_offset: int, end_offset: int
) -> None:
    for header, marker in producer_batches(segments, start_offset, end_offset):
        if marker is None:
            replay.add_data(header)
        else:
            replay.add_marker(header, marker)


def producer_batches(
    segments: SegmentList, start_offset: int, end_offset: int
) -> Iterator[tuple[BatchHeader, EndMarker | None]]:
    """What changes producer state in [start, end): their data, and the markers that end
    transactions. Control batches that are neither are left out. A log start may be inside a batch;
    that batch belongs to it."""
    for part in segments.parts_from(max(start_offset, segments.bases[0])):
        if part.segment.base_offset >= end_offset:
            return
        yield from _producer_batches_of(part, start_offset, end_offset)


class MissingIndex(NamedTuple):
    """A transaction index that does not exist, although its segment needs one."""

    path: Path
    """Where the `.txnindex` file belongs."""
    aborted: tuple[AbortedTxn, ...]
    """Its entries, from the log."""

    def __str__(self) -> str:
        count = len(self.aborted)
        verb = "transaction was" if count == 1 else "transactions were"
        return (
            f"{self.path}: missing, although {count} {verb} aborted in this segment: a broker "
            "would return their records to read_committed consumers. Stratalog finds them in the "
            f"log and hides them. Rebuild the file: {command_line('reindex', self.path.parent)}"
        )


class AbortedLookup:
    """The aborted transactions of a log, segment by segment: by its transaction index or, where
    that is missing or corrupt, by the log. A truncated index, and that of the last segment, which
    may end before the log does, are supplemented from the log.

    The entries that an index lacks are searched once for each segment view and cached there. A
    missing file that should have entries is logged as a warning.
    """

    def __init__(
        self,
        segments: SegmentList,
        snapshots: Callable[[], Snapshots],
        *,
        replay: ProducerReplay | None = None,
        written_from: int | None = None,
    ) -> None:
        """`snapshots` are listed only if an index is missing. `replay` saves walking the end of the
        log again. Segments from base offset `written_from` on were written by this process: if one
        has no index, nothing was aborted in it."""
        self._segments = segments
        self._list_snapshots = snapshots
        self._tail = replay
        self._walked: tuple[ProducerReplay, int] | None = None
        """The last replay of segments before it, and the offset that it has reached."""
        self._written_from = written_from

    @cached_property
    def _snapshots(self) -> dict[int, Path]:
        return dict(self._list_snapshots())

    def find(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Every aborted transaction that touches [start, end)."""
        found: list[AbortedTxn] = []
        for part in self._segments.parts_from(start_offset):
            data = _index_file_of(part.segment)
            if data is None and self._all_ended_before(part, end_offset):
                break
            may_end_early = self._may_end_early(part, start_offset, end_offset)
            entries = self._entries_of(part, data, may_end_early=may_end_early)
            within = collect_aborted(entries, start_offset, end_offset)
            found += within.txns
            if within.is_complete:
                break
        return found

    def missing(self) -> list[MissingIndex]:
        """The index files that are missing.

        Cheap for logs without transactions. Where no producer snapshot shows whether a segment has
        any, the first and the last batches are checked before all headers are read.
        """
        found = []
        for part in self._segments.parts_from(self._segments.bases[0]):
            is_likely = self._may_end_transactions(part)
            if is_likely is None:
                is_likely = _looks_transactional(part.segment)
            if is_likely and _index_file_of(part.segment) is None:
                found += self._missing_at(part)
        return found

    def missing_at_end(self) -> MissingIndex | None:
        """The index file of the last segment, if it is missing or its last entry is incomplete.
        For the caller that rebuilds it: no warning."""
        (part,) = self._segments.parts_from(self._segments.bases[-1])
        data = _index_file_of(part.segment)
        if data is None:
            aborted = self._found_in_log(part)
        elif len(data) % ENTRY_BYTES:
            aborted = tuple(read_entries(self._entries_of(part, data, may_end_early=False)))
        else:
            return None
        return MissingIndex(_index_path(part.segment), aborted) if aborted else None

    def _missing_at(self, part: SegmentPart) -> list[MissingIndex]:
        aborted = self._lost_entries(part)
        return [MissingIndex(_index_path(part.segment), aborted)] if aborted else []

    def _entries_of(self, part: SegmentPart, data: bytes | None, *, may_end_early: bool) -> bytes:
        """Kafka creates the file with its first entry, so one without a complete entry is corrupt
        too."""
        if data is None:
            return _packed(self._lost_entries(part))
        rest = len(data) % ENTRY_BYTES
        complete = data[: len(data) - rest]
        if not _is_sound(complete, part.segment.base_offset, part.next_base):
            return _packed(self._aborted_in(part))
        if not rest and not may_end_early:
            return complete
        by_marker = {txn.last_offset: txn for txn in read_entries(complete)}
        added = {txn.last_offset: txn for txn in self._not_indexed(part, by_marker)}
        return _packed(txn for _, txn in sorted((added | by_marker).items()))

    def _may_end_early(self, part: SegmentPart, start_offset: int, end_offset: int) -> bool:
        """Whether the index of the last segment may lack entries for [start, end) that the replay
        of the end of the log does not supply: of markers below the snapshot that it began with."""
        base, tail = part.segment.base_offset, self._tail
        return (
            part.next_base is None
            and tail is not None
            and tail.start_offset > max(base, start_offset)
            and not self._all_ended_before(part, end_offset)
        )

    def _all_ended_before(self, part: SegmentPart, end_offset: int) -> bool:
        """Whether the snapshot at the segment's start shows that no transaction that began below
        `end_offset` is still open."""
        base = part.segment.base_offset
        producers = self._producers_at(base) if base >= end_offset else None
        return producers is not None and not any(
            0 <= entry.current_txn_first_offset < end_offset for entry in producers.values()
        )

    def _lost_entries(self, part: SegmentPart) -> tuple[AbortedTxn, ...]:
        """What the missing index of a segment should contain."""
        segment = part.segment
        if self._written_from is not None and segment.base_offset >= self._written_from:
            return ()
        is_known = segment.aborted_not_indexed is not None
        found = self._not_indexed(part)
        # A live broker creates the file right after the first marker, so check again.
        if found and not is_known and _index_file_of(segment) is None:
            _log.warning("%s", MissingIndex(_index_path(segment), found))
        return found

    def _not_indexed(
        self, part: SegmentPart, indexed: Container[int] = ()
    ) -> tuple[AbortedTxn, ...]:
        """What the index of a segment should contain besides the markers at offsets `indexed`."""
        segment = part.segment
        if segment.aborted_not_indexed is None:
            segment.aborted_not_indexed = self._found_in_log(part, indexed)
        return segment.aborted_not_indexed

    def _found_in_log(
        self, part: SegmentPart, indexed: Container[int] = ()
    ) -> tuple[AbortedTxn, ...]:
        if self._may_end_transactions(part) is False:
            return ()
        return tuple(
            txn
            for txn in self._aborted_in(part)
            if txn.last_offset not in indexed
            and has_data(self._segments, txn.producer_id, txn.first_offset, txn.last_offset)
        )

    def _may_end_transactions(self, part: SegmentPart) -> bool | None:
        """Whether a producer that has ever ended a transaction wrote in the segment, by the
        snapshots at its start and its end; None without a readable one at its end. An end that
        was not left by a clean shutdown has none."""
        after = self._producers_at(part.limit_offset)
        if after is None:
            return None
        ended = {pid: entry for pid, entry in after.items() if entry.coordinator_epoch >= 0}
        if not ended:
            return False
        before = self._producers_at(part.segment.base_offset) or {}
        return any(before.get(pid) != entry for pid, entry in ended.items())

    def _producers_at(self, offset: int) -> dict[int, ProducerEntry] | None:
        path = self._snapshots.get(offset)
        if path is None:
            return None
        try:
            return {entry.producer_id: entry for entry in _read_snapshot(path)}
        except AccessDeniedError:
            raise
        except (StratalogError, FileNotFoundError):
            return None

    def _aborted_in(self, part: SegmentPart) -> list[AbortedTxn]:
        """The transactions whose ABORT marker is in the segment."""
        base, end = part.segment.base_offset, part.limit_offset
        if self._tail is not None and self._tail.start_offset <= base:
            replay = self._tail
        elif self._walked is not None and self._walked[1] == base:
            replay = self._walked[0]  # segments in order are walked once, with snapshots or not
            _replay_batches(replay, self._segments, base, end)
            self._walked = (replay, end)
        else:
            before = tuple(each for each in self._snapshots.items() if each[0] <= base)
            replay = replay_producers(self._segments, before, end)
            self._walked = (replay, end)
        return [txn for txn in replay.aborted if base <= txn.last_offset < end]


def _index_path(segment: SegmentView) -> Path:
    return segment.sibling(FileKind.TXN_INDEX)


def _index_file_of(segment: SegmentView) -> bytes | None:
    """The content of a segment's transaction index; None if there is no such file."""
    return segment.read_txn_index()


def _looks_transactional(segment: SegmentView) -> bool:
    """Whether its first batch, or one after the last entry of its offset index, is
    transactional."""
    last = segment.offset_index.last()
    ends = (islice(segment.walk_headers(), 1), segment.walk_headers(0 if last is None else last[2]))
    return any(header.has_producer and header.is_transactional for _, header in chain(*ends))


def has_data(segments: SegmentList, producer_id: int, first_offset: int, end_offset: int) -> bool:
    """Whether the log has a batch of the producer's data in [first, end). The cleaner removes all
    data of an aborted transaction before its index entry and its marker."""
    batches = producer_batches(segments, first_offset, end_offset)
    return any(header.producer_id == producer_id and not header.is_control for header, _ in batches)


def _packed(txns: Iterable[AbortedTxn]) -> bytes:
    return b"".join(txn.pack() for txn in txns)


def _is_sound(entries: bytes, base_offset: int, next_base: int | None) -> bool:
    """Whether these may be the entries of a segment; of a live one the log may have less yet."""
    try:
        check_entries(entries, base_offset)
    except StratalogError:
        return False
    last = max((txn.last_offset for txn in read_entries(entries)), default=None)
    return last is not None and (next_base is None or last < next_base)


def _read_snapshot(path: Path) -> tuple[ProducerEntry, ...]:
    return decode_snapshot(read_file(path, has_checksum=True))


def _from_snapshot(snapshots: Snapshots, end_offset: int) -> ProducerReplay:
    """The newest snapshot at or below `end_offset` that can be read, or nothing at all."""
    for offset, path in reversed(snapshots):
        if offset <= end_offset:
            try:
                return ProducerReplay(_read_snapshot(path), start_offset=offset)
            except AccessDeniedError:
                raise
            except (StratalogError, FileNotFoundError):
                continue  # as Kafka does: the next older one
    return ProducerReplay()


def _producer_batches_of(
    part: SegmentPart, start_offset: int, end_offset: int
) -> Iterator[tuple[BatchHeader, EndMarker | None]]:
    segment = part.segment
    start = segment.seek(start_offset).position
    for position, header in segment.walk_headers(start):
        if header.base_offset >= end_offset or position >= part.end_position:
            break
        if not header.has_producer or header.last_offset < start_offset:
            continue
        if not header.is_control:
            yield header, None
        elif (marker := _marker_at(segment, position, header)) is not None:
            yield header, marker
    segment.check_unchanged()


def _marker_at(segment: SegmentView, position: int, header: BatchHeader) -> EndMarker | None:
    """None for another control type, a marker that compaction emptied, or a corrupt one."""
    if not header.record_count:
        return None
    try:
        batch = segment.load_batch(position)
        record = next(records_of(batch.buf, batch.entry, check_crc=False), None)
        return None if record is None else read_end_marker(record, position=position)
    except CorruptError:
        return None

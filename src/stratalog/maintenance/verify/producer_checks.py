"""Verifying producer snapshots and transactions against the batches of one segment.

The state at the start of the segment is that of the producer snapshot there, which the task of the
segment before verifies; so segments can be verified independently, in any order. From there the
batches determine every later snapshot and the transaction index. Of a run of batches by one
producer only the first and the last matter.

Compaction removes batches, so a snapshot may know newer ones than the log, but never only older
ones. It also removes the marker of a transaction without data; if that transaction was open at the
start of the segment, it looks as if it never ended. So does one whose marker was corrupt: what a
snapshot or a transaction index knows of offsets that the log has lost is believed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stratalog.errors import CorruptError, StratalogError
from stratalog.format.batch import CONTROL_BIT, MAGIC_2, TRANSACTIONAL_BIT, BatchHeader, Entry
from stratalog.format.control import read_control_key, read_end_marker
from stratalog.format.log_entry import records_of
from stratalog.format.producer_snapshot import NO_OFFSET, ProducerEntry, decode_snapshot
from stratalog.log.producer_transitions import NO_COORDINATOR_EPOCH, SEQUENCES, ProducerReplay
from stratalog.maintenance.verify.findings import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from stratalog.format.control import EndMarker
    from stratalog.maintenance.verify.findings import Findings
    from stratalog.maintenance.verify.segment import Chunk


_BATCH_FIELDS: Final = ProducerEntry._fields.index("timestamp")
"""The fields of a producer entry before it: the producer and its newest batch."""


class LogEvidence(NamedTuple):
    """What can be asked about the log. An end is exclusive."""

    has_data: Callable[[int, int, int], bool]
    """Whether a producer has data between two offsets."""
    lacks: Callable[[int, int], bool]
    """Whether an offset between two is missing in this segment: removed, corrupt or lost."""


class Marker(NamedTuple):
    """The end of a transaction in the log."""

    offset: int
    producer_id: int
    is_abort: bool
    first_offset: int
    """First offset of the transaction that it ends; -1 if the log does not show it."""
    last_stable_offset: int


class ProducerCheck:
    """Checks the chunks of a segment, in order."""

    def __init__(
        self,
        path: Path,
        before: Path | None,
        snapshots: tuple[tuple[int, Path], ...],
        findings: Findings,
        evidence: LogEvidence,
        *,
        is_first: bool,
    ) -> None:
        """`before` is the snapshot at the segment's base offset, `snapshots` those above it."""
        self._evidence = evidence
        self._path = path
        self._findings = findings
        self._snapshots = list(snapshots)
        self._sequences: dict[int, tuple[int, int]] = {}
        self.is_known = is_first
        """Whether every producer at the start of the segment is known."""
        entries: tuple[ProducerEntry, ...] = ()
        if before is not None:
            try:
                entries = decode_snapshot(before.read_bytes())
                self.is_known = True
            except FileNotFoundError:
                pass
            except StratalogError:
                self.is_known = False  # reported by the task of the segment before
        self._replay = ProducerReplay(entries)
        self.markers: dict[int, Marker] = {}
        """Markers of transactions, by offset."""

    def add(self, chunk: Chunk) -> None:
        """Check these batches, and the snapshots up to their end."""
        rows = chunk.rows
        has_producer = (rows["magic"] == MAGIC_2) & (
            (rows["producer_id"] >= 0) | (rows["attributes"] & CONTROL_BIT != 0)
        )
        batches = rows if has_producer.all() else rows[has_producer]
        while self._snapshots and self._snapshots[0][0] <= int(rows["last_offset"][-1]):
            offset, path = self._snapshots.pop(0)
            below = int(np.searchsorted(batches["base_offset"], offset))
            self._replay_rows(chunk, batches[:below])
            batches = batches[below:]
            self._compare(offset, path)
        self._replay_rows(chunk, batches)

    def finish(self, next_offset: int) -> None:
        """The segment has ended before `next_offset`."""
        for offset, path in self._snapshots:
            if offset <= next_offset:
                self._compare(offset, path)
            else:
                what = f"covers the log up to {offset}, but it ends at {next_offset}"
                self._findings.add(Fault.SNAPSHOT_PAST_END, path, what)

    # -- the batches

    def _replay_rows(self, chunk: Chunk, batches: NDArray[Any]) -> None:
        if not len(batches):
            return
        sorted_rows = _ByProducer.of(batches)
        self._check_sequences(batches, sorted_rows)
        for at in sorted_rows.boundary_rows():
            position = int(batches["position"][at])
            in_buf = position - chunk.position
            header = BatchHeader.unpack(chunk.buf, in_buf)
            if not header.is_control:
                self._replay.add_data(header)
            else:
                self._take_control(chunk, header, position)

    def _take_control(self, chunk: Chunk, header: BatchHeader, position: int) -> None:
        try:
            marker = _marker_of(chunk, header, position)
        except CorruptError as error:
            self._findings.add(
                Fault.BAD_CONTROL_RECORD, self._path, error.reason, position=position
            )
            return
        if marker is None or not header.has_producer:
            return
        replay, producer_id = self._replay, header.producer_id
        first_offset = replay.ongoing.get(producer_id, NO_OFFSET)
        replay.add_marker(header, marker)
        still_open = replay.first_open_offset
        stable = header.next_offset if still_open is None else still_open
        is_abort = marker.type == marker.type.ABORT
        offset = header.base_offset
        self.markers[offset] = Marker(offset, producer_id, is_abort, first_offset, stable)

    def _check_sequences(self, batches: NDArray[Any], rows: _ByProducer) -> None:
        """Within an epoch, each batch of a producer begins where the one before ended."""
        rows = rows.with_sequence()
        if not len(rows.order):
            return
        producer, epoch, first, following = rows.producer, rows.epoch, rows.first, rows.following
        is_same = (producer[1:] == producer[:-1]) & (epoch[1:] == epoch[:-1])
        is_bad = np.concatenate(([False], is_same & (first[1:] != following[:-1])))
        expected = np.concatenate((first[:1], following[:-1]))
        starts = np.concatenate(([0], np.flatnonzero(producer[1:] != producer[:-1]) + 1))
        for start in starts.tolist():
            known = self._sequences.get(int(producer[start]))
            if known is not None and known[0] == epoch[start]:
                expected[start] = known[1]
                is_bad[start] = known[1] != first[start]
        bad = np.flatnonzero(is_bad)
        for at in self._findings.take_listed(Fault.SEQUENCE_JUMP, self._path, bad):
            row = batches[rows.order[at]]
            what = (
                f"producer {producer[at]} continues with sequence {first[at]}, expected "
                f"{expected[at]} (offset {row['base_offset']})"
            )
            self._findings.add(Fault.SEQUENCE_JUMP, self._path, what, position=int(row["position"]))
        for end in [*(starts[1:] - 1).tolist(), len(producer) - 1]:
            self._sequences[int(producer[end])] = (int(epoch[end]), int(following[end]))

    # -- the snapshots

    def _compare(self, offset: int, path: Path) -> None:
        try:
            entries = decode_snapshot(path.read_bytes())
        except FileNotFoundError:
            self._findings.add(Fault.GONE, path, "removed since the directory was listed")
            return
        except CorruptError as error:
            self._findings.add(Fault.BAD_SNAPSHOT, path, error.reason, position=error.position)
            return
        except StratalogError as error:
            self._findings.add(Fault.BAD_SNAPSHOT, path, str(error))
            return
        comparison = _Comparison(offset, self._evidence, is_known=self.is_known)
        for fault, what in comparison.run(entries, self._replay.producers):
            self._findings.add(fault, path, what)


class _Comparison:
    """Compares a snapshot at `offset` with the batches below it.

    `is_known`: the batches show every producer. Otherwise an unknown producer may have written
    before them.
    """

    def __init__(self, offset: int, evidence: LogEvidence, *, is_known: bool) -> None:
        self._offset = offset
        self._evidence = evidence
        self._is_known = is_known

    def run(
        self, entries: tuple[ProducerEntry, ...], expected: dict[int, ProducerEntry]
    ) -> Iterator[tuple[Fault, str]]:
        seen: set[int] = set()
        for entry in entries:
            if entry.producer_id in seen:
                what = f"producer {entry.producer_id} is listed twice"
                yield Fault.SNAPSHOT_MISMATCH, what
            seen.add(entry.producer_id)
            yield from self._compare(entry, expected.get(entry.producer_id))
        for producer_id, entry in sorted(expected.items()):
            if producer_id not in seen:
                yield self._missing(entry)

    def _compare(
        self, entry: ProducerEntry, expected: ProducerEntry | None
    ) -> Iterator[tuple[Fault, str]]:
        name = f"producer {entry.producer_id}"
        if max(entry.last_offset, entry.current_txn_first_offset) >= self._offset:
            yield Fault.SNAPSHOT_MISMATCH, f"{name} has written at {self._offset} or above"
        elif expected is None:
            if self._is_known:
                yield Fault.SNAPSHOT_AHEAD, f"{name} has no batch in the log"
        elif entry != expected:
            yield self._difference(name, entry, expected)

    def _missing(self, expected: ProducerEntry) -> tuple[Fault, str]:
        name = f"producer {expected.producer_id}"
        if expected.open_txn_first_offset is None or self._may_have_ended(expected):
            return Fault.SNAPSHOT_EXPIRED, f"{name} is missing: it expired"
        return Fault.SNAPSHOT_MISMATCH, f"{name} is missing, with a transaction open"

    def _difference(
        self, name: str, entry: ProducerEntry, expected: ProducerEntry
    ) -> tuple[Fault, str]:
        differences = [
            f"{field} {is_!r}, expected {should!r}"
            for field, is_, should in zip(entry._fields, entry, expected, strict=True)
            if is_ != should
        ]
        what = f"{name}: {', '.join(differences)}"
        if entry == expected._replace(coordinator_epoch=NO_COORDINATOR_EPOCH):
            # It had expired when the snapshot before was loaded, and then wrote again.
            return Fault.SNAPSHOT_EXPIRED, what
        is_ahead = _has_newer_batch(entry, expected) or self._explained_by_removal(entry, expected)
        return (Fault.SNAPSHOT_AHEAD if is_ahead else Fault.SNAPSHOT_MISMATCH), what

    def _explained_by_removal(self, entry: ProducerEntry, expected: ProducerEntry) -> bool:
        """Whether both have the same last batch, and removed batches explain the rest.

        The cleaner removes the batch that began a transaction (the log shows a later start),
        markers (the log shows an older coordinator epoch or none, an older timestamp, and perhaps a
        transaction that does not end), and the newest record of the last batch (an older
        timestamp). It never makes the log newer than the snapshot, and never removes the marker of
        a transaction while one of its batches remains; but a marker may be lost.
        """
        if entry[:_BATCH_FIELDS] != expected[:_BATCH_FIELDS]:
            return False
        if (
            entry.coordinator_epoch < expected.coordinator_epoch
            or entry.timestamp < expected.timestamp
        ):
            return False
        start, expected_start = entry.open_txn_first_offset, expected.open_txn_first_offset
        if start is None or expected_start is None:
            return start == expected_start or (start is None and self._may_have_ended(expected))
        return start <= expected_start or self._evidence.lacks(expected_start, start)

    def _may_have_ended(self, expected: ProducerEntry) -> bool:
        """Whether the marker of the open transaction may be gone: no batch of it remains, so that
        the cleaner may have removed it, or offsets after its beginning are missing."""
        first = expected.open_txn_first_offset
        if first is None:
            return False
        return self._evidence.lacks(first, self._offset) or not self._evidence.has_data(
            expected.producer_id, first, self._offset
        )


def _has_newer_batch(entry: ProducerEntry, expected: ProducerEntry) -> bool:
    """Whether the cleaner may have removed the producer's last batch or marker since.

    A marker can raise the epoch; until data follows it, the producer has no batch in that epoch.
    """
    if not entry.has_batch and entry.open_txn_first_offset is None:
        return entry.producer_epoch > expected.producer_epoch
    return (
        entry.last_offset > expected.last_offset and entry.producer_epoch >= expected.producer_epoch
    )


class _ByProducer(NamedTuple):
    """Columns of batches, sorted by producer; those of one producer in their order."""

    order: NDArray[np.int64]
    """The row of each."""
    producer: NDArray[np.int64]
    epoch: NDArray[np.int16]
    attributes: NDArray[np.int16]
    first: NDArray[np.int64]
    """Sequence of the first record; negative for none."""
    following: NDArray[np.int64]
    """Sequence expected after the batch."""

    @classmethod
    def of(cls, batches: NDArray[Any]) -> _ByProducer:
        producer = batches["producer_id"].copy()
        order = np.argsort(producer, kind="stable")
        first = batches["base_sequence"][order].astype(np.int64)
        span = (batches["last_offset"] - batches["base_offset"])[order]
        following = (first + span + 1) % SEQUENCES
        epoch, attributes = batches["producer_epoch"][order], batches["attributes"][order]
        return cls(order, producer[order], epoch, attributes, first, following)

    def with_sequence(self) -> _ByProducer:
        """The same columns with only data batches that have a sequence."""
        is_data = (self.attributes & CONTROL_BIT == 0) & (self.first >= 0) & (self.producer >= 0)
        if is_data.all():
            return self
        return _ByProducer(*(column[is_data] for column in self))

    def boundary_rows(self) -> list[int]:
        """Each control batch, and the first and last batch of every run of one producer between
        these, in order. Other rows do not affect the result."""
        is_control = self.attributes & CONTROL_BIT != 0
        breaks = is_control[1:] | is_control[:-1]
        for column in (self.producer, self.epoch, self.attributes & TRANSACTIONAL_BIT):
            breaks |= column[1:] != column[:-1]
        is_point = np.concatenate(([True], breaks)) | np.concatenate((breaks, [True]))
        points: list[int] = np.sort(self.order[is_point]).tolist()
        return points


def _marker_of(chunk: Chunk, header: BatchHeader, position: int) -> EndMarker | None:
    """None for a control batch of another type, and for one that compaction has emptied."""
    entry = Entry(position - chunk.position, header.base_offset, header.size_bytes, header.magic)
    marker = None
    for record in records_of(chunk.buf, entry, check_crc=False):
        read_control_key(record, position=position)
        marker = read_end_marker(record, position=position)
    return marker

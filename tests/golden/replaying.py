"""The batches of a golden directory, segment by segment, as a log feeds them to its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import CorruptError
from stratalog.format.batch import BatchHeader, next_entry
from stratalog.format.log_entry import header_of, is_entry_crc_valid
from stratalog.format.producer_snapshot import ProducerEntry, decode_snapshot
from stratalog.log.producer_transitions import markers_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.format.control import EndMarker
    from stratalog.format.log_entry import EntryHeader
    from stratalog.log.producer_state_manager import ProducerStateManager


class Batch(NamedTuple):
    """A batch that is not damaged."""

    header: EntryHeader
    marker: EndMarker | None

    @property
    def magic_2(self) -> BatchHeader | None:
        return self.header if isinstance(self.header, BatchHeader) else None


class Segment(NamedTuple):
    """One `.log` file and what lies beside it."""

    path: Path
    base_offset: int
    batches: tuple[Batch, ...]

    @property
    def txn_index(self) -> bytes:
        path = self.path.with_suffix(".txnindex")
        return path.read_bytes() if path.exists() else b""


def segments_of(partition: Path) -> list[Segment]:
    """In offset order, each up to its first damaged batch."""
    return [
        Segment(path, int(path.stem), tuple(_batches(path.read_bytes())))
        for path in sorted(partition.glob("*.log"))
    ]


def snapshot_at(partition: Path, offset: int) -> frozenset[ProducerEntry] | None:
    """What Kafka wrote; None if it wrote none there."""
    path = partition / f"{offset:020d}.snapshot"
    return frozenset(decode_snapshot(path.read_bytes())) if path.exists() else None


def known(manager: ProducerStateManager) -> frozenset[ProducerEntry]:
    """The contents of the snapshot that would be written now."""
    return frozenset(decode_snapshot(manager.snapshot()))


def _batches(buf: bytes) -> Iterator[Batch]:
    position = 0
    while True:
        try:
            entry = next_entry(buf, position)
            if entry is None:
                return
            header = header_of(buf, entry)
        except CorruptError:
            return
        if not is_entry_crc_valid(buf, entry, header):
            return
        marker = None
        if isinstance(header, BatchHeader):
            marker = markers_in(buf, [(position, header)]).get(header.base_offset)
        yield Batch(header, marker)
        position = entry.end

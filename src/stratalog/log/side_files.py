"""The files of a partition beside its segments: producer snapshots and the leader epochs.

Both are derived from the log, so a crash may leave them old or partial; loading sorts that out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from stratalog.errors import CorruptError, InvalidNameError, UnsupportedError
from stratalog.format.checkpoint import decode_leader_epochs, encode_leader_epochs
from stratalog.format.names import (
    FileKind,
    FileState,
    parse_partition_file,
    segment_file_name,
)
from stratalog.log.epochs import LeaderEpochCache

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from stratalog.format.checkpoint import EpochEntry
    from stratalog.log.producer_state import ProducerStateManager
    from stratalog.storage.disk import Disk

_log = logging.getLogger(__name__)


class SnapshotFiles:
    """The `.snapshot` files of one partition, known by their offsets."""

    def __init__(self, disk: Disk, directory: Path, offsets: Iterable[int] = ()) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets = set(offsets)

    @classmethod
    def found_in(cls, disk: Disk, directory: Path, names: Iterable[str]) -> SnapshotFiles:
        """Those among the names of a directory."""
        found = (_snapshot_offset(name) for name in names)
        return cls(disk, directory, (offset for offset in found if offset is not None))

    @property
    def offsets(self) -> list[int]:
        """Oldest first."""
        return sorted(self._offsets)

    def listed(self) -> tuple[tuple[int, Path], ...]:
        """Offsets and paths, oldest first."""
        return tuple((offset, self.path_of(offset)) for offset in self.offsets)

    @property
    def latest(self) -> int | None:
        return max(self._offsets, default=None)

    def path_of(self, offset: int) -> Path:
        return self._directory / segment_file_name(offset, FileKind.PRODUCER_SNAPSHOT)

    def newest_first(self) -> Iterator[tuple[int, bytes]]:
        """Offset and content, read one at a time."""
        for offset in sorted(self._offsets, reverse=True):
            yield offset, self._disk.read_bytes(self.path_of(offset))

    def take(self, producers: ProducerStateManager, *, is_synced: bool = True) -> None:
        """Write what is known at the end of the map, unless the newest file says it already."""
        if not producers.needs_snapshot:
            return
        offset = producers.map_end_offset
        self._disk.write_file(self.path_of(offset), producers.snapshot(), is_synced=is_synced)
        self._offsets.add(offset)
        producers.on_snapshot_written()

    def sync(self, offset: int) -> None:
        """Make the snapshot at `offset` durable, if there is one."""
        if offset in self._offsets:
            self._disk.fsync(self.path_of(offset))

    def delete(self, offsets: Iterable[int]) -> None:
        for offset in list(offsets):
            self._disk.unlink(self.path_of(offset), missing_ok=True)
            self._offsets.discard(offset)

    def mark_deleted(self, offsets: Collection[int]) -> None:
        """Give them the suffix of files that wait for their deletion."""
        for offset in self._offsets.intersection(offsets):
            name = segment_file_name(offset, FileKind.PRODUCER_SNAPSHOT, FileState.DELETED)
            self._disk.rename(self.path_of(offset), self._directory / name)
            self._offsets.discard(offset)


def _snapshot_offset(name: str) -> int | None:
    try:
        file = parse_partition_file(name)
    except InvalidNameError:
        return None
    if file is None or file.kind is not FileKind.PRODUCER_SNAPSHOT:
        return None
    return file.base_offset if file.state is FileState.LIVE else None


def load_epochs(
    disk: Disk, directory: Path, rebuild: Callable[[], Iterable[EpochEntry]]
) -> LeaderEpochCache:
    """The leader epochs of a partition; empty if the file is missing, as for Kafka.

    A file that cannot be parsed stops a broker. Here it is replaced, durably, by what `rebuild`
    returns: going on with an empty cache would let the next append claim all earlier records for
    no epoch at all.
    """
    path = directory / FileKind.LEADER_EPOCHS.value
    persist = _persist_epochs(disk, path)
    try:
        entries = decode_leader_epochs(disk.read_bytes(path))
    except FileNotFoundError:
        return LeaderEpochCache(persist=persist)
    except (CorruptError, UnsupportedError) as error:
        reason = error.reason if isinstance(error, CorruptError) else str(error)
        return rebuild_epochs(disk, directory, rebuild(), reason)
    cache = LeaderEpochCache(entries, persist=persist)
    if cache.entries != tuple(entries):
        return rebuild_epochs(disk, directory, rebuild(), "epochs or start offsets do not increase")
    return cache


def rebuild_epochs(
    disk: Disk, directory: Path, entries: Iterable[EpochEntry], reason: str
) -> LeaderEpochCache:
    """Replace the file, durably and with a warning, by the epochs that the batches have."""
    path = directory / FileKind.LEADER_EPOCHS.value
    persist = _persist_epochs(disk, path)
    cache = LeaderEpochCache(entries, persist=persist)
    persist(cache.entries)
    _log.warning(
        "%s: corrupt (%s); rebuilt from the batches of the log: %s",
        path,
        reason,
        ", ".join(f"epoch {epoch} from offset {start}" for epoch, start in cache.entries)
        or "no batch has a leader epoch",
    )
    return cache


def _persist_epochs(disk: Disk, path: Path) -> Callable[[tuple[EpochEntry, ...]], None]:
    def persist(entries: tuple[EpochEntry, ...]) -> None:
        disk.write_atomically(path, encode_leader_epochs(entries))

    return persist

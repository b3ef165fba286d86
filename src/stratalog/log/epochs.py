"""Leader epochs: which leader wrote which offsets.

Each leader of a partition has an epoch, higher than the ones before. The log remembers where each
began. Two replicas that compare these find the offset up to which they agree, and a consumer finds
out whether the log was truncated below what it has read.

Invariants: epochs and start offsets both strictly increase. An epoch of which no record is left has
no entry, except the newest: a leader enters its epoch before it writes.

Readers may use it while a writer changes it: the tuple of entries is replaced, never altered.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.errors import CorruptError, InvalidLeaderEpochError, StratalogError, UnsupportedError
from stratalog.format.batch import NO_LEADER_EPOCH
from stratalog.format.checkpoint import EpochEntry, decode_leader_epochs, encode_leader_epochs
from stratalog.format.names import FileKind
from stratalog.storage.log_file import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from stratalog.storage.disk import Disk

Entries: TypeAlias = tuple[EpochEntry, ...]

UNDEFINED_OFFSET: Final = -1

_log = logging.getLogger(__name__)


class EpochEndOffset(NamedTuple):
    """Where an epoch ended; both are -1 if the cache does not know."""

    epoch: int
    """The requested epoch, or the nearest older one that is known."""
    end_offset: int
    """Exclusive."""


UNDEFINED: Final = EpochEndOffset(NO_LEADER_EPOCH, UNDEFINED_OFFSET)


class LeaderEpochCache:
    """The epochs of one log, oldest first.

    `persist` writes `leader-epoch-checkpoint`. It is called before a new epoch is taken over, so
    that the file never lacks one; if it raises, the cache is as it was. A truncation only makes
    the cache dirty: `flush` may come later, because a file that has too many entries is trimmed
    when the log is loaded.
    """

    def __init__(
        self,
        entries: Iterable[EpochEntry] = (),
        *,
        persist: Callable[[Entries], None] | None = None,
    ) -> None:
        self._entries: Entries = ()
        for entry in entries:
            self._entries = self._entries_with(*entry)
        self._persist = persist
        self.is_dirty = False
        """A truncation has not been flushed."""

    # -- what is known

    @property
    def entries(self) -> Entries:
        """Oldest first."""
        return self._entries

    @property
    def latest(self) -> EpochEntry | None:
        return self._entries[-1] if self._entries else None

    @property
    def latest_epoch(self) -> int | None:
        return self._entries[-1].epoch if self._entries else None

    def entry(self, epoch: int) -> EpochEntry | None:
        """Entry of exactly this epoch."""
        floor = self._floor(epoch)
        return floor if floor is not None and floor.epoch == epoch else None

    def next(self, epoch: int) -> EpochEntry | None:
        """The oldest one after `epoch`."""
        entries = self._entries
        slot = bisect_right(entries, epoch, key=_epoch_of)
        return entries[slot] if slot < len(entries) else None

    def epoch_for_offset(self, offset: int) -> int | None:
        """Epoch of the leader that wrote the record at `offset`; None if it is not known."""
        entries = self._entries
        slot = bisect_right(entries, offset, key=_start_of)
        return entries[slot - 1].epoch if slot else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """Where the records of `epoch` end: what a follower truncates to after a leader change.

        The latest epoch ends with the log. An older epoch ends where the next known one begins; the
        result names the nearest known epoch at or below it. For an epoch older than all known ones,
        whose records are deleted, the result names that epoch itself. For an epoch above the
        latest, the result is undefined.
        """
        if epoch == NO_LEADER_EPOCH:
            return UNDEFINED
        if epoch == self.latest_epoch:
            return EpochEndOffset(epoch, log_end_offset)
        higher = self.next(epoch)
        if higher is None:
            return UNDEFINED
        floor = self._floor(epoch)
        return EpochEndOffset(epoch if floor is None else floor.epoch, higher.start_offset)

    # -- what changes it

    def assign(self, epoch: int, start_offset: int) -> bool:
        """A leader of `epoch` writes from `start_offset` on. Returns whether that was new.

        Entries that contradict it (a higher epoch, or one that begins at or after it) are dropped:
        their records were never, or are no longer, in the log.
        """
        entries = self._entries
        if entries:
            latest_epoch, latest_start = entries[-1]
            if epoch == latest_epoch and start_offset >= latest_start:
                return False
        self._replace_durably(self._entries_with(epoch, start_offset))
        return True

    def truncate_from_end(self, end_offset: int) -> bool:
        """The log was truncated to `end_offset`: forget epochs that begin there or later."""
        _check_offset(end_offset)
        return self._replace(self._below(end_offset))

    def truncate_from_start(self, start_offset: int) -> bool:
        """The log starts at `start_offset` now: the epoch of that offset begins there."""
        _check_offset(start_offset)
        entries = self._entries
        slot = bisect_right(entries, start_offset, key=_start_of)
        if not slot:
            return False
        first = EpochEntry(entries[slot - 1].epoch, start_offset)
        return self._replace((first, *entries[slot:]))

    def clear(self) -> bool:
        """Forget everything, durably: data without epochs (magic 0 and 1) follows."""
        if not self._entries:
            return False
        self._replace_durably(())
        return True

    def flush(self) -> None:
        """Write what truncations have changed."""
        if self.is_dirty:
            self._replace_durably(self._entries)

    def _entries_with(self, epoch: int, start_offset: int) -> Entries:
        if epoch < 0 or start_offset < 0:
            raise InvalidLeaderEpochError(
                f"leader epoch {epoch} from offset {start_offset}: neither may be negative"
            )
        kept = self._below(start_offset)
        kept = kept[: bisect_left(kept, epoch, key=_epoch_of)]
        return (*kept, EpochEntry(epoch, start_offset))

    def _below(self, offset: int) -> Entries:
        return self._entries[: bisect_left(self._entries, offset, key=_start_of)]

    def _floor(self, epoch: int) -> EpochEntry | None:
        entries = self._entries
        slot = bisect_right(entries, epoch, key=_epoch_of)
        return entries[slot - 1] if slot else None

    def _replace(self, entries: Entries) -> bool:
        if entries == self._entries:
            return False
        self._entries = entries
        self.is_dirty = True
        return True

    def _replace_durably(self, entries: Entries) -> None:
        if self._persist is not None:
            self._persist(entries)
        self._entries = entries
        self.is_dirty = False


def _epoch_of(entry: EpochEntry) -> int:
    return entry.epoch


def _start_of(entry: EpochEntry) -> int:
    return entry.start_offset


def _check_offset(offset: int) -> None:
    if offset < 0:
        raise InvalidLeaderEpochError(f"no leader epoch begins or ends at offset {offset}")


def load_epochs(
    disk: Disk, directory: Path, rebuild: Callable[[], Iterable[EpochEntry]]
) -> LeaderEpochCache:
    """The leader epochs of a partition; empty if the file is missing, as for Kafka.

    A file that cannot be parsed stops a broker. Here it is replaced, durably, by what `rebuild`
    returns: with an empty cache, earlier records would belong to no epoch after the next append.
    """
    path = directory / FileKind.LEADER_EPOCHS.value
    persist = _persist_epochs(disk, path)
    try:
        entries = decode_leader_epochs(read_file(path))
    except FileNotFoundError:
        return LeaderEpochCache(persist=persist)
    except (CorruptError, UnsupportedError) as error:
        reason = error.reason if isinstance(error, CorruptError) else str(error)
        return rebuild_epochs(disk, directory, rebuild(), reason)
    cache = LeaderEpochCache(entries, persist=persist)
    if cache.entries != tuple(entries):
        return rebuild_epochs(disk, directory, rebuild(), "epochs or start offsets do not increase")
    return cache


def read_latest_epoch(directory: Path) -> int:
    """The newest leader epoch in the file of a partition; -1 if it has none that can be read."""
    try:
        entries = decode_leader_epochs(read_file(directory / FileKind.LEADER_EPOCHS.value))
    except (OSError, StratalogError):
        return NO_LEADER_EPOCH
    return entries[-1].epoch if entries else NO_LEADER_EPOCH


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

"""The last offset of every key in the dirty part of a log, in memory of a fixed size.

As in Kafka a slot takes 24 bytes and the map counts as full when nine tenths of its slots are
taken; then a round ends there, even inside a batch, and the next one goes on. Keys are kept as
128-bit hashes under a secret that is drawn anew for each map (see `kernels.key_hash`).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.format.kernels import offset_map as kernel

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

LOAD_FACTOR: Final = 0.9
SLOTS_MAX: Final = 1 << 31
MARKS_BYTES_MAX: Final = 32 << 20
"""Of a bit for each offset of the dirty part. A longer one, with large holes, goes without."""


class SavedMap(NamedTuple):
    """A map in a file."""

    path: Path
    slots: int
    entries_max: int
    state: tuple[int, ...]


class HashedKeys(NamedTuple):
    """The keys of a run of batches."""

    rows: NDArray[Any]
    words: NDArray[np.int64]
    """Hash (two words), offset and row of each."""


class OffsetMap:
    """One map for many rounds: `clear` makes it ready for the next."""

    def __init__(
        self,
        memory_bytes: int,
        *,
        load_factor: float = LOAD_FACTOR,
        secret: tuple[int, int] | None = None,
    ) -> None:
        self.slots = memory_bytes // kernel.SLOT_BYTES
        self.entries_max = int(self.slots * load_factor)
        if not 0 < self.entries_max < self.slots < SLOTS_MAX:
            raise ValueError(f"{memory_bytes} bytes are no room for an offset map")
        self._use(np.zeros(3 * self.slots, np.int64))
        self._secret = secret
        self.clear(0)

    def _use(self, table: NDArray[np.int64]) -> None:
        self._table = table
        self._ring = np.empty(kernel.RING_SLOTS * kernel.RING_WORDS, np.int64)
        self.state = np.zeros(kernel.STATE_WORDS, np.int64)
        """For kernels that look keys up."""
        self.state[kernel.TABLE] = self._table.ctypes.data
        self.state[kernel.RING] = self._ring.ctypes.data
        self.state[kernel.SLOT_COUNT] = self.slots
        self.state[kernel.ENTRIES_MAX] = self.entries_max

    def save(self, path: Path) -> SavedMap:
        """Write the table to a file, for `load`."""
        self._table.tofile(path)
        state = tuple(self.state.tolist())
        return SavedMap(path, self.slots, self.entries_max, state)

    @classmethod
    def load(cls, saved: SavedMap) -> OffsetMap:
        """A map that was saved, to look keys up in. Its table stays in the file."""
        loaded = cls.__new__(cls)
        loaded.slots, loaded.entries_max = saved.slots, saved.entries_max
        loaded._use(np.memmap(saved.path, np.int64, "r", shape=(3 * saved.slots,)))
        for word in (kernel.SECRET_0, kernel.SECRET_1, kernel.START_OFFSET, kernel.ENTRIES):
            loaded.state[word] = saved.state[word]
        loaded.state[kernel.LATEST_OFFSET] = saved.state[kernel.LATEST_OFFSET]
        return loaded

    def clear(self, start_offset: int) -> None:
        """Forget all keys. Records below `start_offset` are not going to be put in."""
        if self.state[kernel.ENTRIES]:
            self._table.fill(0)
        first, second = self._secret or random_secret()
        self.state[[kernel.SECRET_0, kernel.SECRET_1]] = first, second
        self.state[kernel.START_OFFSET] = start_offset
        self.state[[kernel.ENTRIES, kernel.IS_FULL]] = 0
        self.state[kernel.LATEST_OFFSET] = -1

    @property
    def entries(self) -> int:
        return int(self.state[kernel.ENTRIES])

    @property
    def is_full(self) -> bool:
        """A record was met for which there was no room any more."""
        return bool(self.state[kernel.IS_FULL])

    @property
    def latest_offset(self) -> int:
        """Up to here records are accounted for; -1 before any."""
        return int(self.state[kernel.LATEST_OFFSET])

    def skip_to(self, offset: int) -> None:
        """Up to here (exclusive) there are no more records to put in."""
        self.state[kernel.LATEST_OFFSET] = max(self.latest_offset, offset - 1)

    def hashed(
        self, rows: NDArray[Any], payloads: NDArray[Any], is_wanted: NDArray[np.bool_]
    ) -> HashedKeys | int:
        """The keys of these batches, for `put_hashed`; or the row of a batch not in order.

        Changes nothing: another thread may put in others meanwhile.
        """
        records = int(rows["record_count"][is_wanted].sum(dtype=np.int64))
        keys = np.empty((records, kernel.HASHED_WORDS), np.int64)
        count = kernel.hash_batches(rows, payloads, is_wanted, self.state, keys)
        if count == kernel.CORRUPT:
            return int(self.state[kernel.BATCH_INDEX])
        return HashedKeys(rows, keys[:count])

    def put_hashed(self, keys: HashedKeys) -> None:
        """Put in keys of this map's secret, until it is full."""
        kernel.put_hashed(keys.rows, keys.words, self.state)

    def put(self, key: bytes, offset: int) -> bool:
        """Put in one record, the slow way; False, and nothing done, if the map is full."""
        if self.entries >= self.entries_max:
            self.state[kernel.IS_FULL] = 1
            return False
        kernel.put_key(_address(key), len(key), offset, self.state)
        self.state[kernel.LATEST_OFFSET] = offset
        return True

    def get(self, key: bytes) -> int:
        """The last offset of a key; -1 when it is not in the map."""
        return int(kernel.find_key(_address(key), len(key), self.state))

    def marks(self, end_offset: int) -> NDArray[np.uint8] | None:
        """A bit for each offset from the start on, below `end_offset`: set where a key is last.

        With it the dirty part needs no second look-up of keys. None where it would be too large.
        """
        start_offset = int(self.state[kernel.START_OFFSET])
        count = max(0, end_offset - start_offset)
        if count > 8 * MARKS_BYTES_MAX:
            return None
        marks = np.zeros(count // 8 + 1, np.uint8)
        kernel.mark_offsets(self.state, marks.ctypes.data, start_offset, count)
        return marks

    def entries_in(self, part: int = 0, parts: int = 1) -> NDArray[np.int64]:
        """Hash (two words) and offset of the keys in one of `parts` equal ranges of hashes."""
        table = self._table.reshape(-1, 3)
        found = table[table[:, 2] != 0]
        if parts > 1:
            upper = (found[:, 0] >> 32) & 0xFFFF_FFFF
            found = found[upper * parts >> 32 == part]
        entries: NDArray[np.int64] = found - (0, 0, 1)
        return entries

    def put_entries(self, entries: NDArray[np.int64]) -> None:
        """Put in what `entries_in` of a map with the same secret gave. There must be room."""
        if self.entries + len(entries) >= self.slots:
            raise ValueError(f"{len(entries)} more keys do not fit")
        first, second, offsets = (entries[:, word].copy() for word in range(3))
        kernel.put_hashes(first, second, offsets, self.state)


def random_secret() -> tuple[int, int]:
    """Two words that nobody can guess."""
    first, second = secrets.token_bytes(8), secrets.token_bytes(8)
    return int.from_bytes(first, "little", signed=True), int.from_bytes(second, "big", signed=True)


def _address(data: bytes) -> int:
    address: int = pa.py_buffer(data).address
    return address

"""The last offset of every key in the dirty part of a log, in memory of a fixed size.

As in Kafka a slot takes 24 bytes and the map is full when nine tenths of its slots are taken; then
the pass ends there, even inside a batch, and the next pass continues. Keys are stored as 128-bit
hashes, keyed with a secret that is random for each map (see `kernels/hashing.py`).
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.format.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from stratalog.format.kernels import offset_map as kernel
from stratalog.format.log_entry import records_of
from stratalog.maintenance.cleaning.filtering import CleanedTransactions
from stratalog.maintenance.cleaning.sources import marker_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from stratalog.format.control import ControlType
    from stratalog.maintenance.cleaning.sources import BatchReader, BatchRun, SourceSegment

LOAD_FACTOR: Final = 0.9
SLOTS_MAX: Final = 1 << 31
MARKS_BYTES_MAX: Final = 32 << 20
"""One bit for each offset of the dirty part. Longer ranges, with large gaps, are not marked."""


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
    """One map for many passes: `clear` prepares it for the next one."""

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
            raise ValueError(f"{memory_bytes} bytes are too few (or too many) for an offset map")
        self._use(np.zeros(3 * self.slots, np.int64))
        self._secret = secret
        self.clear(0)

    def _use(self, table: NDArray[np.int64]) -> None:
        self._table = table
        self._ring = np.empty(kernel.RING_SLOTS * kernel.RING_WORDS, np.int64)
        self.state = np.zeros(kernel.STATE_WORDS, np.int64)
        """For the kernels that look up keys."""
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
        """A saved map, for lookups. Its table is mapped from the file."""
        loaded = cls.__new__(cls)
        loaded.slots, loaded.entries_max = saved.slots, saved.entries_max
        loaded._use(np.memmap(saved.path, np.int64, "r", shape=(3 * saved.slots,)))
        for word in (kernel.SECRET_0, kernel.SECRET_1, kernel.START_OFFSET, kernel.ENTRIES):
            loaded.state[word] = saved.state[word]
        loaded.state[kernel.LATEST_OFFSET] = saved.state[kernel.LATEST_OFFSET]
        return loaded

    def clear(self, start_offset: int) -> None:
        """Remove all keys. Records below `start_offset` will not be added."""
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
        """Whether there was no room for a record."""
        return bool(self.state[kernel.IS_FULL])

    @property
    def latest_offset(self) -> int:
        """All records up to this offset were added; -1 before the first."""
        return int(self.state[kernel.LATEST_OFFSET])

    def skip_to(self, offset: int) -> None:
        """Record that no more records below `offset` will be added."""
        self.state[kernel.LATEST_OFFSET] = max(self.latest_offset, offset - 1)

    def hashed(
        self, rows: NDArray[Any], payloads: NDArray[Any], is_wanted: NDArray[np.bool_]
    ) -> HashedKeys | int:
        """The keys of these batches, for `put_hashed`; or the row of a corrupt batch.

        Does not change the map: another thread may add keys meanwhile.
        """
        records = int(rows["record_count"][is_wanted].sum(dtype=np.int64))
        keys = np.empty((records, kernel.HASHED_WORDS), np.int64)
        count = kernel.hash_batches(rows, payloads, is_wanted, self.state, keys)
        if count == kernel.CORRUPT:
            return int(self.state[kernel.BATCH_INDEX])
        return HashedKeys(rows, keys[:count])

    def put_hashed(self, keys: HashedKeys) -> None:
        """Add keys that `hashed` returned, until the map is full."""
        kernel.put_hashed(keys.rows, keys.words, self.state)

    def put(self, key: bytes, offset: int) -> bool:
        """Add one record; returns False, and adds nothing, if the map is full."""
        if self.entries >= self.entries_max:
            self.state[kernel.IS_FULL] = 1
            return False
        kernel.put_key(_address(key), len(key), offset, self.state)
        self.state[kernel.LATEST_OFFSET] = offset
        return True

    def get(self, key: bytes) -> int:
        """The last offset of a key; -1 if it is not in the map."""
        return int(kernel.find_key(_address(key), len(key), self.state))

    def marks(self, end_offset: int) -> NDArray[np.uint8] | None:
        """One bit for each offset from the start up to `end_offset`: set for the last of a key.

        With it the dirty part needs no second lookup of keys. None if it would be too large.
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
        """Add what `entries_in` of a map with the same secret returned. There must be room."""
        if self.entries + len(entries) >= self.slots:
            raise ValueError(f"{len(entries)} more keys do not fit the offset map")
        first, second, offsets = (entries[:, word].copy() for word in range(3))
        kernel.put_hashes(first, second, offsets, self.state)


def random_secret() -> tuple[int, int]:
    """Two random words."""
    first, second = secrets.token_bytes(8), secrets.token_bytes(8)
    return int.from_bytes(first, "little", signed=True), int.from_bytes(second, "big", signed=True)


def _address(data: bytes) -> int:
    address: int = pa.py_buffer(data).address
    return address


# The first step of a cleaning pass: the last offset of each key in the dirty part of a log. Records
# without a key, markers and aborted records do not count.


def map_keys(
    offset_map: OffsetMap,
    sources: Sequence[SourceSegment],
    first_dirty_offset: int,
    reader: BatchReader,
    on_progress: Callable[[int], None],
) -> None:
    """Fill the map from the sources, from the segment with the first dirty offset on.

    Stops when the map is full; `latest_offset` is how far it came, else the end of the last source.
    """
    offset_map.clear(first_dirty_offset)
    transactions = CleanedTransactions()
    with _KeyWriter(offset_map) as writer:
        for source in sources:
            transactions.add_aborted(source.aborted)
            for run in source.runs(reader):
                writer.put(run, transactions, first_dirty_offset)
                on_progress(int(run.rows["size_bytes"].sum(dtype=np.int64)))
                if offset_map.is_full:
                    return
            writer.wait()
            if offset_map.is_full:
                return
            offset_map.skip_to(source.end_offset)


class _KeyWriter:
    """Adds runs to a map: the keys of one run in a thread, while those of the next are hashed."""

    def __init__(self, offset_map: OffsetMap) -> None:
        self._map = offset_map
        self._thread = ThreadPoolExecutor(1, "put-keys")
        self._pending: Future[None] | None = None

    def __enter__(self) -> _KeyWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def put(self, run: BatchRun, transactions: CleanedTransactions, first_dirty: int) -> None:
        """The keys are in the map when `wait`, or the next call, returns."""
        keys = hashed_run(self._map, run, transactions, first_dirty)
        self.wait()
        if self._map.is_full:
            return
        if keys is None:
            put_legacy(self._map, run, first_dirty)
        else:
            self._pending = self._thread.submit(self._map.put_hashed, keys)

    def wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def put_run(
    offset_map: OffsetMap, run: BatchRun, transactions: CleanedTransactions, first_dirty: int
) -> None:
    """Add the records of a run that count, until the map is full."""
    keys = hashed_run(offset_map, run, transactions, first_dirty)
    if keys is None:
        put_legacy(offset_map, run, first_dirty)
    else:
        offset_map.put_hashed(keys)


def hashed_run(
    offset_map: OffsetMap, run: BatchRun, transactions: CleanedTransactions, first_dirty: int
) -> HashedKeys | None:
    """The keys of the records of a run that count; None for a run of the old formats."""
    if run.payloads is None:
        return None
    rows = run.rows
    is_wanted = (rows["attributes"] & CONTROL_BIT == 0) & (rows["last_offset"] >= first_dirty)
    for event in events_of(run):
        if event.apply(transactions):
            is_wanted[event.row] = False
    keys = offset_map.hashed(rows, run.payloads, is_wanted)
    if isinstance(keys, int):
        run.raise_for(keys)
    return keys


class TxnEvent(NamedTuple):
    """A batch that is part of a transaction, or ends one."""

    row: int
    producer_id: int
    last_offset: int
    is_control: bool
    marker: ControlType | None

    def apply(self, transactions: CleanedTransactions) -> bool:
        """Apply the batch to the transactions; whether it is obsolete, see
        `CleanedTransactions`."""
        if self.is_control:
            return transactions.on_control(self.producer_id, self.last_offset, self.marker)
        return transactions.on_data(self.producer_id, self.last_offset, is_transactional=True)


def events_of(run: BatchRun) -> Iterator[TxnEvent]:
    """The transactional and control batches of a run, in order."""
    if run.payloads is None:  # the old formats have no transactions
        return
    rows = run.rows
    is_txn_batch: NDArray[np.bool_] = rows["attributes"] & (TRANSACTIONAL_BIT | CONTROL_BIT) != 0
    for row in np.flatnonzero(is_txn_batch).tolist():
        is_control = bool(rows["attributes"][row] & CONTROL_BIT)
        marker = marker_of(run, row) if is_control else None
        producer_id, last_offset = int(rows["producer_id"][row]), int(rows["last_offset"][row])
        yield TxnEvent(row, producer_id, last_offset, is_control, marker)


def put_legacy(offset_map: OffsetMap, run: BatchRun, first_dirty: int) -> None:
    """Add messages of the old formats, one by one."""
    for row in range(len(run.rows)):
        for record in records_of(run.buf, run.entry(row)):
            if record.key is None or record.offset < first_dirty:
                continue
            if not offset_map.put(record.key, record.offset):
                return
        last_offset = int(run.rows["last_offset"][row])
        if last_offset >= first_dirty:
            offset_map.skip_to(last_offset + 1)

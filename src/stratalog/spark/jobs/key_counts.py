"""Keys of a log, counted: how many there are, and how much of the log is superseded.

A task notes, for each key it meets, how often, how large, and what came last. Notes of one key meet
again where all notes of its share of hashes are merged. Keys are told by 64-bit hashes, so among a
hundred million keys one or so may be taken for another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

RECORD_OVERHEAD_BYTES: Final = 8
"""Lengths, deltas and attributes of a small record: a fair guess."""

NOTE: Final = np.dtype(
    [
        ("hash", np.int64),
        ("last_offset", np.int64),
        ("records", np.int64),
        ("size_bytes", np.int64),
        ("last_bytes", np.int64),
        ("is_tombstone", np.int64),
    ]
)
"""What is known of one key. Sizes are of keys and values; the last two, of its last record."""


class KeyCounts(NamedTuple):
    """What compaction would find in a log."""

    keys: int = 0
    """Different ones."""
    live_keys: int = 0
    """Those whose last record is no tombstone."""
    dead_records: int = 0
    """Records with a later one of the same key."""
    dead_bytes: int = 0
    """Of their keys and values."""

    def plus(self, other: KeyCounts) -> KeyCounts:
        return KeyCounts(*(a + b for a, b in zip(self, other, strict=True)))


def note_records(
    hashes: NDArray[np.int64],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    tombstones: NDArray[np.bool_],
) -> NDArray[Any]:
    """One note a key. No two records have the same offset."""
    once = np.ones(len(hashes), np.int64)
    return _merged(hashes, offsets, (once, sizes), (sizes, tombstones))


def merge_notes(notes: NDArray[Any]) -> NDArray[Any]:
    """One note a key, sorted by hash; the last record is that of the largest offset."""
    sums = (notes["records"], notes["size_bytes"])
    lasts = (notes["last_bytes"], notes["is_tombstone"])
    return _merged(notes["hash"], notes["last_offset"], sums, lasts)


def _merged(
    hashes: NDArray[np.int64],
    offsets: NDArray[np.int64],
    sums: tuple[NDArray[Any], NDArray[Any]],
    lasts: tuple[NDArray[Any], NDArray[Any]],
) -> NDArray[Any]:
    """Sort by hash; add up `sums` of each key, and take `lasts` from its largest offset."""
    if not len(hashes):
        return np.empty(0, NOTE)
    order = np.argsort(hashes)
    hashes, offsets = hashes[order], offsets[order]
    starts = np.flatnonzero(np.concatenate(([True], hashes[1:] != hashes[:-1])))
    counts = np.diff(np.concatenate((starts, [len(hashes)])))
    last_offsets = np.maximum.reduceat(offsets, starts)
    is_last = order[offsets == np.repeat(last_offsets, counts)]
    notes = np.empty(len(starts), NOTE)
    notes["hash"], notes["last_offset"] = hashes[starts], last_offsets
    for name, column in zip(("records", "size_bytes"), sums, strict=True):
        notes[name] = np.add.reduceat(column[order], starts)
    for name, column in zip(("last_bytes", "is_tombstone"), lasts, strict=True):
        notes[name] = column[is_last]
    return notes


def shares_of(notes: NDArray[Any], shares: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Cut sorted notes by their hashes: the same key falls into the same share everywhere."""
    bounds = np.linspace(-(2.0**63), 2.0**63, shares + 1)[1:-1].astype(np.int64)
    cuts = [0, *np.searchsorted(notes["hash"], bounds).tolist(), len(notes)]
    for share in range(shares):
        part = notes[cuts[share] : cuts[share + 1]]
        if len(part):
            yield share, part


def counts_of(notes: NDArray[Any]) -> KeyCounts:
    """Of merged notes."""
    return KeyCounts(
        len(notes),
        int((notes["is_tombstone"] == 0).sum()),
        int((notes["records"] - 1).sum()),
        int((notes["size_bytes"] - notes["last_bytes"]).sum()),
    )

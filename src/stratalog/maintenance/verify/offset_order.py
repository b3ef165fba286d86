"""Offsets of batches in file order: each begins above the one before ends.

No CRC covers a base offset, so order is all that gives a damaged one away. Of two batches that
contradict each other, the one that does not adjoin its predecessor is blamed, if the other fits
without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stratalog.format.index_table import first_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


GAPS_MAX: Final = 20
"""Told of one run of batches; more are counted."""


class Disorder(NamedTuple):
    """A batch whose offsets do not fit between its neighbours'."""

    position: int
    first_offset: int
    due_offset: int


class Gap(NamedTuple):
    """Offsets that no batch has."""

    position: int
    """Of the batch after it."""
    first_offset: int
    next_offset: int


class OffsetOrder:
    """Fed with the batches of a segment, in order."""

    def __init__(self, base_offset: int) -> None:
        self.last_offset = base_offset - 1
        """Of the last batch that was in order."""
        self._before = base_offset - 1
        """Of the batch before that one."""
        self._position = -1
        self._is_adjoining = True
        """It began right after that one, so it is not the one to be blamed."""
        self.untold_gaps = 0
        """Compaction leaves very many."""

    def add(self, rows: NDArray[Any]) -> Iterator[Disorder | Gap]:
        """What is wrong up to the end of these batches."""
        if not len(rows):
            return
        first, last = first_offsets(rows), rows["last_offset"]
        ends = np.concatenate(([self.last_offset], last[:-1]))
        if not (first <= ends).any():
            gaps = np.flatnonzero((first > ends + 1) & (rows["base_offset"] >= 0))
            self.untold_gaps += max(0, len(gaps) - GAPS_MAX)
            for at in gaps[:GAPS_MAX].tolist():
                yield Gap(int(rows["position"][at]), int(ends[at]) + 1, int(first[at]))
            self._before = int(ends[-1])
            self._is_adjoining = bool(first[-1] == ends[-1] + 1)
            self.last_offset = int(last[-1])
            self._position = int(rows["position"][-1])
            return
        columns = (rows["position"].tolist(), first.tolist(), last.tolist())
        for position, first_offset, last_offset in zip(*columns, strict=True):
            yield from self._add_one(position, first_offset, last_offset)

    def skip_to(self, next_offset: int) -> None:
        """Damage was passed: what follows may begin anywhere above."""
        self._before = self.last_offset
        self.last_offset = max(self.last_offset, next_offset - 1)
        self._is_adjoining = True

    def _add_one(self, position: int, first: int, last: int) -> Iterator[Disorder | Gap]:
        if first <= self.last_offset:
            if self._is_adjoining or first <= self._before or self._position < 0:
                yield Disorder(position, first, self.last_offset + 1)
                return
            yield Disorder(self._position, self.last_offset, first)
            self.last_offset = self._before
        self._is_adjoining = first == self.last_offset + 1
        if not self._is_adjoining:
            yield Gap(position, self.last_offset + 1, first)
        self._before, self.last_offset = self.last_offset, last
        self._position = position

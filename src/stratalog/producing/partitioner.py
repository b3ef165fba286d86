"""Kafka's partitioner: chooses the partition of a record if the producer does not.

The hash of the key (`format/murmur.py`) determines the partition: all records of a key are in one,
in order, whichever client wrote them. Records without a key stick to one partition for about a
batch of bytes, then switch to another: batches are full, and the partitions even in the long run.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StickyPartitioner:
    """Chooses partitions of one topic for records without a key. Not thread-safe."""

    def __init__(self, sticky_bytes: int, chooser: random.Random | None = None) -> None:
        """`sticky_bytes` is how much a partition gets before the next one is chosen."""
        self._sticky_bytes = sticky_bytes
        self._chooser = chooser or random.Random()
        self._current: int | None = None
        self._bytes = 0

    def choose(self, partitions: Sequence[int], size_bytes: int) -> int:
        """The partition for a record of about this size. `partitions` may grow between calls."""
        if self._current is None or self._bytes >= self._sticky_bytes:
            self._current = self._next(partitions)
            self._bytes = 0
        self._bytes += size_bytes
        return self._current

    def _next(self, partitions: Sequence[int]) -> int:
        """A random partition other than the last one, if there is another."""
        others = [partition for partition in partitions if partition != self._current]
        return self._chooser.choice(others or partitions)

"""The order in which Kafka's tool lists what it keeps in Scala's hash maps and hash sets.

Such a table has 16 slots at first and doubles when three quarters full. An element goes to the slot
that the low bits of its hash name (the high half folded in); those of one slot lie by hash.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_INT_MASK = 0xFFFF_FFFF
_INT_SIGN = 0x8000_0000
_SLOTS_MIN = 16
_LOAD = 0.75

T = TypeVar("T")


def string_hash(text: str) -> int:
    """Java's String.hashCode, unsigned: over UTF-16 units."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & _INT_MASK
    return value


def partition_hash(topic: str, partition: int) -> int:
    """TopicPartition.hashCode, unsigned."""
    return (31 * (31 + partition) + string_hash(topic)) & _INT_MASK


def slots_after(lots: Iterable[int], *, announced: bool = True) -> int:
    """Slots of a table that had so many distinct elements added, lot by lot.

    A lot whose size is `announced` makes room at once, before any of it is added.
    """
    slots, size = _SLOTS_MIN, 0
    for count in lots:
        if announced:
            slots = max(slots, _power_of_two(int((count + 1) / _LOAD)))
        for _ in range(count):
            size += 1
            if size >= int(slots * _LOAD):
                slots *= 2
    return slots


def in_table_order(items: Sequence[T], hashes: Sequence[int], slots: int) -> list[T]:
    """Distinct `items`, with their unsigned hashes, as a table of so many slots lists them."""
    folded = [value ^ (value >> 16) for value in hashes]
    order = sorted(range(len(items)), key=lambda i: (folded[i] & (slots - 1), _signed(folded[i])))
    return [items[i] for i in order]


def _power_of_two(capacity: int) -> int:
    """At least `capacity`, and never fewer than 8."""
    return 2 << (max(capacity - 1, 4).bit_length() - 1)


def _signed(value: int) -> int:
    return value - (1 << 32) if value & _INT_SIGN else value

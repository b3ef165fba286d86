"""What a dump finds wrong: printed at its end, in the words and the order of Kafka's tool.

Kafka's tool keeps these findings by absolute file name in Scala hash maps, and lists mismatches and
gaps newest first. Such a table begins with 16 slots and doubles when it is three quarters full. An
element is in the slot of the low bits of its hash (with the high half folded in); the elements of
one slot are ordered by hash."""

from __future__ import annotations

import struct
from array import array
from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
    """Slots of a table after this many distinct elements were added, one group after the other.

    If the size of a lot is `announced`, the table grows before any of it is added.
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
    """Distinct `items`, with their unsigned hashes, as a table of this many slots lists them."""
    folded = [value ^ (value >> 16) for value in hashes]
    order = sorted(range(len(items)), key=lambda i: (folded[i] & (slots - 1), _signed(folded[i])))
    return [items[i] for i in order]


def _power_of_two(capacity: int) -> int:
    """The smallest power of two that is at least `capacity`, and at least 8."""
    return 2 << (max(capacity - 1, 4).bit_length() - 1)


def _signed(value: int) -> int:
    return value - (1 << 32) if value & _INT_SIGN else value


class Pairs:
    """Pairs of longs as they were found, 16 bytes each: a log may have millions of gaps."""

    __slots__ = ("_flat",)

    def __init__(self) -> None:
        self._flat = array("q")

    def __len__(self) -> int:
        return len(self._flat) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._flat[::2], self._flat[1::2], strict=True)

    def __reversed__(self) -> Iterator[tuple[int, int]]:
        return zip(reversed(self._flat[::2]), reversed(self._flat[1::2]), strict=True)

    def add(self, first: int, second: int) -> None:
        self._flat.append(first)
        self._flat.append(second)

    def add_packed(self, longs: bytes) -> None:
        """Pairs as native longs, end to end."""
        self._flat.frombytes(longs)


PairsByFile: TypeAlias = "defaultdict[str, Pairs]"


def _ignore(_line: str) -> None:
    return


class DumpReport:
    """Findings over all files of a run, and how far it got.

    `on_problem` is called immediately with what prevents a file from being shown completely,
    `on_remark` with what Kafka's tool prints immediately. `absolute` returns the file name under
    which findings are listed. Offset gaps of files for which `hides_gaps` is true are not listed.
    """

    def __init__(
        self,
        *,
        on_problem: Callable[[str], None] = _ignore,
        on_remark: Callable[[str], None] = _ignore,
        absolute: Callable[[str], str] = str,
        hides_gaps: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.index_mismatches: PairsByFile = defaultdict(Pairs)
        """(indexed offset, offset in the log)"""
        self.time_mismatches: PairsByFile = defaultdict(Pairs)
        """(indexed timestamp, timestamp in the log)"""
        self.time_disorders: PairsByFile = defaultdict(Pairs)
        """(indexed timestamp, the one before it)"""
        self.offsets_not_found: PairsByFile = defaultdict(Pairs)
        """(indexed offset, offset in the log or -1)"""
        self.gaps: PairsByFile = defaultdict(Pairs)
        """(offset, the one that follows it)"""
        self.problems = 0
        self.bytes_done = 0
        self.shown = 0
        """Records, batches or entries so far: what a limit counts."""
        self.absolute = absolute
        self.remark = on_remark
        self._on_problem = on_problem
        self._hides_gaps = hides_gaps

    def problem(self, text: str) -> None:
        """Something for which Kafka's tool would throw."""
        self.problems += 1
        self._on_problem(text)

    def gaps_of(self, path: str) -> Pairs:
        """Where to put the gaps of a log."""
        return self.gaps[self.absolute(path)]

    def lines(self) -> Iterator[str]:
        """For standard error, once all files are done."""
        found = (
            (self.index_mismatches, "Mismatches in :{}", "  Index offset: {}, log offset: {}"),
            (
                self.time_mismatches,
                "Found timestamp mismatch in :{}",
                "  Index timestamp: {}, log timestamp: {}",
            ),
            (
                self.time_disorders,
                "Found out of order timestamp in :{}",
                "  Index timestamp: {}, Previously indexed timestamp: {}",
            ),
            (
                self.offsets_not_found,
                "The following indexed offsets are not found in the log.",
                "Indexed offset: {}, found log offset: {}",
            ),
            (self.gaps, "Non-consecutive offsets in {}", "  {} is followed by {}"),
        )
        for findings, title, line in found:
            is_newest_first = findings is self.index_mismatches or findings is self.gaps
            for name, pairs in _listed(findings):
                if findings is self.gaps and self._hides_gaps(name):
                    continue
                yield title.format(name)
                for pair in reversed(pairs) if is_newest_first else pairs:
                    yield line.format(*pair)


def _listed(findings: PairsByFile) -> Iterator[tuple[str, Pairs]]:
    names = [name for name, pairs in findings.items() if pairs]
    slots = slots_after([len(names)], announced=False)
    for name in in_table_order(names, list(map(string_hash, names)), slots):
        yield name, findings[name]

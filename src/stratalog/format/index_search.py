"""Search over fixed-size, sorted entries: what the offset index and the time index share.

A *column* is a `struct.Struct` as wide as an entry that reads one field and skips the rest, so its
size is the stride, and `column.unpack_from(buf, slot * column.size)[0]` is the field of a slot.

Every function accepts any bytes. On sorted entries results are exact. On garbage a search still
ends and returns some slot, so callers check an entry against the log before they use it."""

from __future__ import annotations

import struct
from itertools import chain, islice, pairwise
from operator import le, lt
from typing import TYPE_CHECKING, Final

from stratalog.errors import CorruptIndexError
from stratalog.format.buffers import unpack_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from stratalog.format.buffers import Buffer

WARM_BYTES: Final = 8192  # Kafka searches the last 8 KiB first: they are in the page cache
NO_SLOT: Final = -1
RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1
ENTRIES_FOR_NUMPY: Final = 100_000  # below this, importing numpy costs more than it saves

_GALLOP_STEP = 8
_GALLOP_SHIFT = 3  # each step is eight times the one before
_FIELDS = {  # format of a column -> where its field lies, and its numpy type
    ">i4x": (0, ">i4"),
    ">4xi": (4, ">i4"),
    ">q4x": (0, ">i8"),
    ">8xi": (8, ">i4"),
}


def columns_of(entry: struct.Struct) -> tuple[struct.Struct, struct.Struct]:
    """A column for each of the two fields of an entry."""
    order, first, second = tuple(entry.format)
    first_bytes, second_bytes = (struct.calcsize(order + code) for code in (first, second))
    return (
        struct.Struct(f"{order}{first}{second_bytes}x"),
        struct.Struct(f"{order}{first_bytes}x{second}"),
    )


def unpack_entry(entry: struct.Struct, buf: Buffer, at: int) -> tuple[int, int]:
    """The two fields of the entry at a position."""
    first, second = unpack_at(entry, buf, at, "index entry", CorruptIndexError)
    return first, second


def unpack_entries(entry: struct.Struct, buf: Buffer, entries: int) -> Iterator[tuple[int, int]]:
    """The fields of entries 0 to `entries` - 1, or of as many as `buf` has."""
    whole = min(entries, len(buf) // entry.size) * entry.size
    return entry.iter_unpack(memoryview(buf)[:whole])


def relative(offset: int, base_offset: int) -> int:
    """The offset as entries have it."""
    relative_offset = offset - base_offset
    if not 0 <= relative_offset <= RELATIVE_OFFSET_MAX:
        raise CorruptIndexError(f"offset {offset} does not fit base offset {base_offset}")
    return relative_offset


def greatest_at_most(
    column: struct.Struct, buf: Buffer, entries: int, target: int, trace: list[int] | None = None
) -> int:
    """The slot of the greatest value <= `target`, or -1 when there is none.

    With `trace`, the search is Kafka's and `trace` receives each slot it compares, in order.
    Without, it guesses the slot by proportion and gallops from there: the same result with fewer
    probes (and fewer pages) as long as values grow about evenly, as offsets and timestamps do.
    """
    if entries <= 0:
        return NO_SLOT
    try:
        if trace is not None:
            return _search_as_kafka(column, buf, entries, target, trace)
        return _search_from_guess(column, buf, entries, target)
    except struct.error:
        raise _too_short(buf, entries) from None


def _search_from_guess(column: struct.Struct, buf: Buffer, entries: int, target: int) -> int:
    unpack, stride = column.unpack_from, column.size
    low, high = 0, entries - 1
    first, last = unpack(buf, 0)[0], unpack(buf, high * stride)[0]
    if target < first:
        return NO_SLOT
    if target >= last:
        return high
    # From here on value[low] <= target < value[high], also in garbage.
    step = _GALLOP_STEP
    slot = (target - first) * high // (last - first)
    if unpack(buf, slot * stride)[0] <= target:
        low = slot
        while (slot := slot + step) < high:
            if unpack(buf, slot * stride)[0] > target:
                high = slot
                break
            low = slot
            step <<= _GALLOP_SHIFT
    else:
        high = slot
        while (slot := slot - step) > low:
            if unpack(buf, slot * stride)[0] <= target:
                low = slot
                break
            high = slot
            step <<= _GALLOP_SHIFT
    while high - low > 1:
        slot = (low + high) >> 1
        if unpack(buf, slot * stride)[0] <= target:
            low = slot
        else:
            high = slot
    return low


def _search_as_kafka(
    column: struct.Struct, buf: Buffer, entries: int, target: int, trace: list[int]
) -> int:
    """The warm section at the end first, then the rest, stopping on equality."""

    def value(slot: int) -> int:
        trace.append(slot)
        return int(column.unpack_from(buf, slot * column.size)[0])

    first_warm = max(0, entries - 1 - WARM_BYTES // column.size)
    if value(first_warm) < target:
        low, high = first_warm, entries - 1
    elif value(0) > target:
        return NO_SLOT
    else:
        low, high = 0, first_warm
    while low < high:
        middle = (low + high + 1) >> 1
        found = value(middle)
        if found == target:
            return middle
        if found < target:
            low = middle
        else:
            high = middle - 1
    return low


def count_used(relative_offset: struct.Struct, buf: Buffer) -> int:
    """How many entries there are before the zero tail of a preallocated file.

    The rule: slot 0 is used unless all its bytes are zero; a later slot is used unless its relative
    offset is zero, since offsets grow and only the first can be the base offset itself. A trimmed
    file has no tail; a partial entry at its end is not counted.

    Used slots come before unused ones, so a binary search finds the boundary without touching the
    tail's pages. In garbage, where zeros are scattered, it finds one of the boundaries, not
    necessarily the first.
    """
    unpack, stride = relative_offset.unpack_from, relative_offset.size
    slots = len(buf) // stride
    if slots == 0 or not any(buf[:stride]):
        return 0
    if slots == 1 or unpack(buf, (slots - 1) * stride)[0]:
        return slots
    used, unused = 0, slots - 1
    while unused - used > 1:
        middle = (used + unused) >> 1
        if unpack(buf, middle * stride)[0]:
            used = middle
        else:
            unused = middle
    return unused


def check_order(
    column: struct.Struct, buf: Buffer, entries: int, name: str, *, may_repeat: bool = False
) -> None:
    """Raise at the first slot whose value, of this name, is not greater than the one before (or
    equal, if it may be)."""
    slot = first_out_of_order(column, buf, entries, may_repeat=may_repeat)
    if slot is not None:
        wrong = "decreases" if may_repeat else "does not increase"
        raise CorruptIndexError(f"{name} of slot {slot} {wrong}", position=slot * column.size)


def first_out_of_order(
    column: struct.Struct, buf: Buffer, entries: int, *, may_repeat: bool = False
) -> int | None:
    """The first slot whose value is not greater than the one before (or equal, if it may be)."""
    if entries * column.size > len(buf):
        raise _too_short(buf, entries)
    if entries > ENTRIES_FOR_NUMPY:
        array = _array(column, buf, entries)
        steps = array[1:] < array[:-1] if may_repeat else array[1:] <= array[:-1]
        return int(steps.argmax()) + 1 if steps.any() else None
    whole = memoryview(buf)[: entries * column.size]
    values = list(chain.from_iterable(column.iter_unpack(whole)))
    is_back = lt if may_repeat else le
    if not any(map(is_back, islice(values, 1, None), values)):
        return None
    return next(slot for slot, pair in enumerate(pairwise(values), 1) if is_back(pair[1], pair[0]))


def _array(
    column: struct.Struct, buf: Buffer, entries: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    import numpy as np  # noqa: PLC0415  # heavy, and only worth it for long indexes

    at, dtype = _FIELDS[column.format]
    view = np.ndarray((entries,), dtype, buf, at, (column.size,))
    return view.astype(np.int64)


def _too_short(buf: Buffer, entries: int) -> CorruptIndexError:
    size = len(buf)
    return CorruptIndexError(f"{size} bytes are too few for {entries} entries", position=size)

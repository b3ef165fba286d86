"""Whether the indexes beside a log are right, told from the log alone.

Where entries lie hangs on when the log was opened, so they are not compared with a rebuilt index.
But each of them must be one that the log calls for, and none may be too far from the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.format.offset_index import OffsetEntry
from stratalog.format.time_index import TimeEntry
from tests.log.building import batches_of

if TYPE_CHECKING:
    from pathlib import Path


class Place(NamedTuple):
    position: int
    last_offset: int
    max_timestamp: int


def check_indexes(partition: Path, *, is_closed: bool = False) -> None:
    """Of every segment but the last, and of the last one too if the log is closed.

    An index that is mapped has zeros behind its entries; one of a sealed segment has not.
    """
    logs = sorted(partition.glob("*.log"))
    for path in logs:
        is_sealed = is_closed or path != logs[-1]
        check_segment_indexes(path, is_sealed=is_sealed)


def check_segment_indexes(path: Path, *, is_sealed: bool) -> None:
    places = _places(path, is_sealed=is_sealed)
    base_offset = int(path.stem)
    offsets = _offset_entries(path, base_offset, is_sealed=is_sealed)
    expected = {(place.last_offset, place.position) for place in places}
    assert set(offsets) <= expected, f"{path.name}: entries that lead nowhere"
    assert offsets == sorted(offsets)
    times = _time_entries(path, base_offset, is_sealed=is_sealed)
    newest = _running_maximum(places)
    assert set(times) <= set(newest), f"{path.name}: times that no batch has reached"
    assert times == sorted(times)
    if is_sealed and newest:
        assert times[-1:] == newest[-1:], f"{path.name}: does not end with its newest time"


def _places(path: Path, *, is_sealed: bool) -> list[Place]:
    raw = path.read_bytes()
    if not is_sealed:
        raw = _without_preallocated(raw)
    found = []
    for batch in batches_of(raw):
        max_timestamp = int.from_bytes(batch.raw[35:43], "big", signed=True)
        found.append(Place(batch.position, batch.next_offset - 1, max_timestamp))
    return found


def _without_preallocated(raw: bytes) -> bytes:
    """Up to the first batch of no length; only zeros may follow."""
    at = 0
    while length := int.from_bytes(raw[at + 8 : at + 12], "big"):
        at += 12 + length
    assert raw[at:].count(0) == len(raw) - at
    return raw[:at]


def _running_maximum(places: list[Place]) -> list[tuple[int, int]]:
    """Timestamp and last offset of each batch that is newer than all before it."""
    found: list[tuple[int, int]] = []
    for place in places:
        if place.max_timestamp > (found[-1][0] if found else -1):
            found.append((place.max_timestamp, place.last_offset))
    return found


def _offset_entries(path: Path, base_offset: int, *, is_sealed: bool) -> list[tuple[int, int]]:
    raw = path.with_suffix(".index").read_bytes()
    entries = [OffsetEntry.unpack(raw, at, base_offset=base_offset) for at in range(0, len(raw), 8)]
    return _used([(entry.offset, entry.position) for entry in entries], raw, 8, is_sealed=is_sealed)


def _time_entries(path: Path, base_offset: int, *, is_sealed: bool) -> list[tuple[int, int]]:
    raw = path.with_suffix(".timeindex").read_bytes()
    entries = [TimeEntry.unpack(raw, at, base_offset=base_offset) for at in range(0, len(raw), 12)]
    return _used(
        [(entry.timestamp, entry.offset) for entry in entries], raw, 12, is_sealed=is_sealed
    )


def _used(
    entries: list[tuple[int, int]], raw: bytes, entry_bytes: int, *, is_sealed: bool
) -> list[tuple[int, int]]:
    assert len(raw) % entry_bytes == 0
    blank = bytes(entry_bytes)
    is_blank = [raw[at : at + entry_bytes] == blank for at in range(0, len(raw), entry_bytes)]
    if is_sealed:
        assert not any(is_blank), "a sealed index has zeros in it"
        return entries
    used = is_blank.index(True) if True in is_blank else len(entries)
    assert all(is_blank[used:]), "something follows the zeros"
    return entries[:used]

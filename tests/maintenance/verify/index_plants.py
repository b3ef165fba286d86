"""Faults in the sparse indexes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from stratalog.maintenance.verify.findings import Fault, Severity
from tests.maintenance.verify.planting import (
    Plant,
    Spot,
    entry_at,
    put,
    segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _index(number: int, suffix: str) -> Callable[[Path], Path]:
    return lambda partition: segments(partition)[number].with_suffix(suffix)


def _entry(suffix: str, slot: int, field: int, step: int) -> Callable[[Path], Spot]:
    size = 8 if suffix == ".index" else 12

    def do(partition: Path) -> Spot:
        path = segments(partition)[1].with_suffix(suffix)
        entry = list(entry_at(path, slot, size))
        entry[field] += step
        put(path, slot * size, struct.pack(">ii" if size == 8 else ">qi", *entry))
        return Spot(path.name, slot * size)

    return do


def _repeat_entry(suffix: str) -> Callable[[Path], Spot]:
    size = 8 if suffix == ".index" else 12

    def do(partition: Path) -> Spot:
        path = segments(partition)[1].with_suffix(suffix)
        raw = path.read_bytes()
        path.write_bytes(raw[: 4 * size] + raw[3 * size :])
        return Spot(path.name, 4 * size)

    return do


def _remove(suffix: str, number: int = 1) -> Callable[[Path], Spot]:
    def do(partition: Path) -> Spot:
        path = segments(partition)[number].with_suffix(suffix)
        path.unlink()
        return Spot(path.name, -1)

    return do


def _cut_index(suffix: str, drop: int) -> Callable[[Path], Spot]:
    def do(partition: Path) -> Spot:
        path = segments(partition)[1].with_suffix(suffix)
        path.write_bytes(path.read_bytes()[:-drop])
        size = 8 if suffix == ".index" else 12
        return Spot(path.name, path.stat().st_size // size * size)

    return do


def _empty_index(partition: Path) -> Spot:
    path = segments(partition)[1].with_suffix(".index")
    path.write_bytes(b"")
    return Spot(path.name, -1)


def _past_end(partition: Path) -> Spot:
    log = segments(partition)[1]
    path = log.with_suffix(".index")
    raw = path.read_bytes()
    last = entry_at(path, len(raw) // 8 - 1, 8)
    path.write_bytes(raw + struct.pack(">ii", last[0] + 1, log.stat().st_size + 50))
    return Spot(path.name, len(raw))


def _time_past_end(partition: Path) -> Spot:
    path = segments(partition)[1].with_suffix(".timeindex")
    raw = path.read_bytes()
    last = entry_at(path, len(raw) // 12 - 1, 12)
    path.write_bytes(raw + struct.pack(">qi", last[0] + 1, 5000))
    return Spot(path.name, len(raw))


def _junk_behind_zeros(suffix: str) -> Callable[[Path], Spot]:
    def do(partition: Path) -> Spot:
        path = segments(partition)[-1].with_suffix(suffix)
        raw = path.read_bytes()
        path.write_bytes(raw + bytes(240) + b"\x01" + bytes(23))
        return Spot(path.name, len(raw) + 240)

    return do


def _orphan(partition: Path) -> Spot:
    path = partition / "00000000000000000777.index"
    path.write_bytes(b"")
    return Spot(path.name, -1)


INDEX_PLANTS = [
    Plant("index offset off by one", "multiseg", Fault.INDEX_MISMATCH, _entry(".index", 4, 0, -1)),
    Plant("index position off by one", "multiseg", Fault.INDEX_MISMATCH, _entry(".index", 5, 1, 1)),
    Plant(
        "index offset negative", "multiseg", Fault.INDEX_OUT_OF_ORDER, _entry(".index", 0, 0, -500)
    ),
    Plant(
        "index offset out of order",
        "multiseg",
        Fault.INDEX_OUT_OF_ORDER,
        _entry(".index", 5, 0, -30),
    ),
    Plant("index entry repeated", "multiseg", Fault.INDEX_OUT_OF_ORDER, _repeat_entry(".index")),
    Plant("index entry past the end", "multiseg", Fault.INDEX_PAST_END, _past_end),
    Plant(
        "index of odd length",
        "multiseg",
        Fault.INDEX_SIZE,
        _cut_index(".index", 3),
        Severity.WARNING,
    ),
    Plant("index emptied", "multiseg", Fault.INDEX_SPARSE, _empty_index, Severity.NOTE),
    Plant("junk behind index zeros", "multiseg", Fault.INDEX_GARBAGE, _junk_behind_zeros(".index")),
    Plant("index removed", "multiseg", Fault.MISSING_INDEX, _remove(".index"), Severity.WARNING),
    Plant("index without a log", "multiseg", Fault.ORPHAN_INDEX, _orphan, Severity.WARNING),
    Plant("time off by one", "multiseg", Fault.INDEX_MISMATCH, _entry(".timeindex", 5, 0, 1)),
    Plant(
        "time's offset off by one", "index1", Fault.INDEX_MISMATCH, _entry(".timeindex", 5, 1, -1)
    ),
    Plant(
        "time out of order",
        "multiseg",
        Fault.INDEX_OUT_OF_ORDER,
        _entry(".timeindex", 5, 0, -(10**9)),
    ),
    Plant("time entry repeated", "multiseg", Fault.INDEX_OUT_OF_ORDER, _repeat_entry(".timeindex")),
    Plant("time entry past the end", "multiseg", Fault.INDEX_PAST_END, _time_past_end),
    Plant("closing time entry gone", "multiseg", Fault.INDEX_SHORT, _cut_index(".timeindex", 12)),
    Plant(
        "time index of odd length",
        "multiseg",
        Fault.INDEX_SIZE,
        _cut_index(".timeindex", 5),
        Severity.WARNING,
    ),
    Plant(
        "junk behind time index zeros",
        "multiseg",
        Fault.INDEX_GARBAGE,
        _junk_behind_zeros(".timeindex"),
    ),
    Plant(
        "time index removed",
        "multiseg",
        Fault.MISSING_INDEX,
        _remove(".timeindex"),
        Severity.WARNING,
    ),
]

"""Faults to plant: what is done to a copy of a golden directory, and where it must be found.

`Spot` is the place a fault was put at, told by who put it there and not by reading it back.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from stratalog.format.buffers import crc32c
from stratalog.maintenance.verify.findings import Fault, Severity
from tests.log.building import batches_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.log.building import Batch


class Spot(NamedTuple):
    """Where a finding is due."""

    file: str
    position: int
    """-1: the file as a whole."""


class Plant(NamedTuple):
    """One kind of fault."""

    name: str
    case: str
    fault: Fault
    do: Callable[[Path], Spot]
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        return self.name


def flip(path: Path, position: int, mask: int = 0xFF) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def put(path: Path, position: int, raw: bytes) -> None:
    data = bytearray(path.read_bytes())
    assert position + len(raw) <= len(data)
    data[position : position + len(raw)] = raw
    path.write_bytes(data)


def be32(number: int) -> bytes:
    return struct.pack(">i", number)


def be64(number: int) -> bytes:
    return struct.pack(">q", number)


def segments(partition: Path) -> list[Path]:
    return sorted(partition.glob("*.log"))


def batches(log: Path) -> list[Batch]:
    return batches_of(log.read_bytes())


def change_batch(log: Path, number: int, change: Callable[[bytearray], None]) -> Spot:
    """Alter a magic-2 batch and give it the CRC of its new bytes: a writer's fault."""
    batch = batches(log)[number]
    raw = bytearray(batch.raw)
    change(raw)
    raw[17:21] = struct.pack(">I", crc32c(raw[21:]))
    put(log, batch.position, bytes(raw))
    return Spot(log.name, batch.position)


def entry_at(path: Path, slot: int, entry_bytes: int) -> tuple[int, ...]:
    raw = path.read_bytes()[slot * entry_bytes : (slot + 1) * entry_bytes]
    return struct.unpack(">ii" if entry_bytes == 8 else ">qi", raw)

"""The steps of one lookup, as values.

A lookup takes an optional `Trace` and adds what it does: which segments and index entries it
compared, where it began to scan and what it passed. `stratalog explain` prints the steps; all other
callers pass None, at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.batch import Peek

IndexKind: TypeAlias = Literal["offset", "time"]


@dataclass(frozen=True)
class FileStep:
    """A step of a lookup that reads one file."""

    path: Path


@dataclass(frozen=True)
class SegmentStep(FileStep):
    """Which segment was chosen, and why."""

    base_offset: int
    reason: str
    compared: tuple[int, ...]
    """Base offsets (by offset) or largest timestamps (by time) that were compared, in order."""


@dataclass(frozen=True)
class Probe:
    """One index entry that the binary search compared."""

    slot: int
    key: int
    """An offset (offset index) or a timestamp (time index)."""
    value: int
    """A position (offset index) or an offset (time index)."""


@dataclass(frozen=True)
class IndexStep(FileStep):
    """A binary search in one index."""

    kind: IndexKind
    origin: str
    """`file`, or why the file was not used."""
    entries: int
    target: int
    probes: tuple[Probe, ...]
    found: Probe | None
    """None: the target is before the first entry, so the scan starts at byte 0."""


@dataclass(frozen=True)
class ScanStep(FileStep):
    """A sequential scan over batch headers."""

    start_position: int
    batches: tuple[tuple[int, Peek], ...]
    bytes_scanned: int


@dataclass(frozen=True)
class RecordStep:
    """The scan inside the batch that was found."""

    position: int
    records_passed: int
    offset: int
    timestamp: int


Step: TypeAlias = SegmentStep | IndexStep | ScanStep | RecordStep


@dataclass
class Trace:
    """Collects the steps of one lookup in order."""

    steps: list[Step] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.steps.append(step)

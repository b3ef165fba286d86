"""Bits to flip, and what a reader makes of a damaged log."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import CorruptError
from stratalog.log.partition_view import PartitionView

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.record import Record
    from stratalog.log.reader import Skipped
    from tests.log.readers import Reader


class Outcome(NamedTuple):
    """What a reader gave before it ended, and how it ended."""

    records: list[Record]
    error: CorruptError | None
    skipped: list[Skipped]


def outcome_of(reader: Reader, path: Path, *, can_skip: bool = False) -> Outcome:
    records: list[Record] = []
    skipped: list[Skipped] = []
    with PartitionView(path) as view:
        try:
            for record in reader(view, on_skip=skipped.append if can_skip else None):
                records.append(record)
        except CorruptError as error:
            return Outcome(records, error, skipped)
    return Outcome(records, None, skipped)


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))

"""Partition directories for tests: copied from golden cases, or put together batch by batch.

What a reader must find is told by who builds the directory, never by reading it back.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from stratalog.format.batch import next_entry
from stratalog.format.log_entry import header_of, records_of
from stratalog.format.record import BatchFields, Record, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

BASE_TIMESTAMP = 1_700_000_000_000


class Batch(NamedTuple):
    """One batch of an undamaged log: its bytes, and the data records in it."""

    position: int
    """In its file."""
    raw: bytes
    first_offset: int
    next_offset: int
    records: tuple[Record, ...]
    """None for a control batch."""

    @property
    def end(self) -> int:
        return self.position + len(self.raw)


def batches_of(raw: bytes) -> list[Batch]:
    """The batches of an undamaged `.log` file."""
    found, at = [], 0
    while (entry := next_entry(raw, at)) is not None:
        header = header_of(raw, entry)
        records = () if header.is_control else tuple(records_of(raw, entry))
        first = records[0].offset if header.base_offset is None else header.base_offset
        span = raw[at : entry.end]
        found.append(Batch(at, span, first, header.next_offset, records))
        at = entry.end
    assert at == len(raw)
    return found


def records_in(batches: Iterable[Batch]) -> list[Record]:
    return [record for batch in batches for record in batch.records]


def log_name(base_offset: int, extension: str = ".log") -> str:
    return f"{base_offset:020d}{extension}"


def write_partition(path: Path, segments: Mapping[int, bytes]) -> Path:
    """A partition directory of bare `.log` files, by base offset."""
    path.mkdir(parents=True)
    for base_offset, raw in segments.items():
        (path / log_name(base_offset)).write_bytes(raw)
    return path


def copy_partition(source: Path, into: Path) -> Path:
    """A writable copy of a partition directory."""
    return shutil.copytree(source, into / source.name)


def plain_records(
    first_offset: int, count: int, *, value_bytes: int = 20, timestamp: int | None = None
) -> list[Record]:
    """Records that differ from each other, a millisecond apart unless told."""
    return [
        Record(
            offset=offset,
            timestamp=BASE_TIMESTAMP + offset if timestamp is None else timestamp,
            key=b"key-%d" % offset,
            value=(b"value-%d-" % offset).ljust(value_bytes, b"."),
        )
        for offset in range(first_offset, first_offset + count)
    ]


def plain_segment(first_offset: int, batches: int, *, records: int = 2) -> bytes:
    """A `.log` file of `batches` batches of plain records."""
    return b"".join(
        encode_batch(plain_records(first_offset + at * records, records), BatchFields())
        for at in range(batches)
    )


def segment_paths(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def drop_indexes(path: Path, suffixes: Sequence[str] = (".index", ".timeindex")) -> None:
    for file in path.iterdir():
        if file.suffix in suffixes:
            file.unlink()

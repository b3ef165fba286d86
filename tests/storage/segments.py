"""Batches to append, their spans, and what a segment has on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.config import LogConfig
from stratalog.format.batch import BatchHeader, BatchSpan, next_entry
from stratalog.format.log_entry import header_of
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.storage.disk import Disk
from stratalog.storage.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.format.batch import Entry
    from stratalog.format.log_entry import EntryHeader
    from stratalog.storage.segment_view import LoadedBatch

TIMESTAMP = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=1 << 20, segment_index_bytes=240, index_interval_bytes=200)
DERIVED = (".index", ".timeindex")
BATCH_BYTES = 91  # of one record, as `make_batch` makes it
EVERY_BATCH = LogConfig.parse({"index.interval.bytes": "0", "segment.index.bytes": "2400"})


def make_batch(
    offset: int,
    *,
    count: int = 1,
    timestamp: int | None = None,
    value_bytes: int = 20,
    fields: BatchFields = BatchFields(),  # noqa: B008 - a tuple
) -> bytes:
    """`count` records from `offset` on; by default a later batch has a later timestamp."""
    first = TIMESTAMP + offset if timestamp is None else timestamp
    records = [
        Record(offset + n, first + (n if timestamp is None else 0), b"key", bytes(value_bytes))
        for n in range(count)
    ]
    return encode_batch(records, fields)


def entries_of(data: bytes) -> Iterator[tuple[Entry, EntryHeader]]:
    at = 0
    while (entry := next_entry(data, at)) is not None:
        yield entry, header_of(data, entry)
        at = entry.end


def spans_of(data: bytes) -> list[BatchSpan]:
    """One for each batch in `data`."""
    return [span_of(entry, header) for entry, header in entries_of(data)]


def span_of(entry: Entry, header: EntryHeader) -> BatchSpan:
    first_offset = header.base_offset if isinstance(header, BatchHeader) else header.last_offset
    return BatchSpan(
        entry.position, entry.size_bytes, first_offset, header.last_offset, header.max_timestamp
    )


def append(segment: Segment, *batches: bytes) -> int:
    """In one append, without asking whether the segment should roll."""
    data = b"".join(batches)
    return segment.append(data, spans_of(data))


def new_segment(
    directory: Path, base_offset: int = 0, config: LogConfig = SMALL, disk: Disk | None = None
) -> Segment:
    return Segment.create(disk or Disk(), directory, base_offset, config, now_ms=TIMESTAMP)


def opened(
    directory: Path, base_offset: int = 0, config: LogConfig = SMALL, disk: Disk | None = None
) -> Segment:
    """The segment that is there, inactive."""
    path = directory / f"{base_offset:020d}.log"
    return Segment(disk or Disk(), path, base_offset, path.stat().st_size, config)


def files_of(directory: Path, *suffixes: str) -> dict[str, bytes]:
    """The files of all segments, by name, or those with these suffixes."""
    wanted = suffixes or (".log", ".index", ".timeindex", ".txnindex")
    return {
        path.name: path.read_bytes()
        for path in sorted(directory.iterdir())
        if path.name.endswith(wanted)
    }


def remove_derived(directory: Path) -> None:
    for path in directory.iterdir():
        if path.suffix in (*DERIVED, ".txnindex"):
            path.unlink()


def ignore(_: LoadedBatch) -> None:
    """For recovery, when nobody asks about producers."""


def filled(directory: Path, count: int, config: LogConfig = EVERY_BATCH) -> tuple[Segment, int]:
    """A segment of `count` batches of two records, and the size of each."""
    segment = new_segment(directory, 0, config)
    for number in range(count):
        append(segment, make_batch(2 * number, count=2))
    return segment, segment.size_bytes // count

"""A partition directory to measure on: one large segment with its indexes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from benchmarks.logs import TIMESTAMP_MS, build_log
from stratalog.format.batch import ATTRIBUTES_AT, CRC_AT
from stratalog.format.columns import scan_batches
from stratalog.format.index_entries import IndexBuilder

if TYPE_CHECKING:
    from pathlib import Path

_BASE_OFFSET_AT = 0
_TIMESTAMPS_AT = 27
_DISTINCT_BYTES = 1 << 20


class BenchPartition(NamedTuple):
    """One partition directory and its range."""

    path: Path
    size_bytes: int
    records: int
    first_timestamp: int
    last_timestamp: int


def write_partition(parent: Path, *, size_bytes: int, value_bytes: int = 100) -> BenchPartition:
    """Batches of 16 KiB with growing offsets and timestamps, up to `size_bytes`.

    The payloads are aiokafka's; offsets, timestamps and the CRC over them are set for each batch.
    """
    path = parent / "bench-0"
    path.mkdir()
    source = build_log(bytes_min=_DISTINCT_BYTES, value_bytes=value_bytes)
    rows = scan_batches(source.data).rows
    batches = [
        (bytearray(source.data[at : at + size]), count, last - first)
        for at, size, count, first, last in zip(
            *(
                rows[name].tolist()
                for name in (
                    "position",
                    "size_bytes",
                    "record_count",
                    "base_timestamp",
                    "max_timestamp",
                )
            ),
            strict=True,
        )
    ]
    index = IndexBuilder(0)
    position = offset = turn = 0
    timestamp = TIMESTAMP_MS
    with (path / f"{0:020d}.log").open("wb", buffering=1 << 22) as log:
        while True:
            batch, count, span = batches[turn % len(batches)]
            if position + len(batch) > size_bytes:
                break
            struct.pack_into(">q", batch, _BASE_OFFSET_AT, offset)
            struct.pack_into(">qq", batch, _TIMESTAMPS_AT, timestamp, timestamp + span)
            struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
            log.write(batch)
            index.add(position, len(batch), offset + count - 1, timestamp + span)
            position += len(batch)
            offset += count
            timestamp += span + 1
            turn += 1
    index.finish()
    (path / f"{0:020d}.index").write_bytes(index.offset_index)
    (path / f"{0:020d}.timeindex").write_bytes(index.time_index)
    return BenchPartition(path, position, offset, TIMESTAMP_MS, timestamp - 1)

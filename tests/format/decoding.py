"""Both decoders behind one interface, so that one test can ask both."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from stratalog.errors import CorruptRecordError, StratalogError
from stratalog.format import columns
from stratalog.format.batch import TimestampType, next_entry
from stratalog.format.compression import DECOMPRESSED_BYTES_MAX
from stratalog.format.log_entry import header_of, records_of
from stratalog.format.record import Header, Record

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer

_NO_ACCESS = 0


class Decoded(NamedTuple):
    """The records of all batches before the first bad one, and what is wrong with that."""

    records: list[Record]
    error: StratalogError | None

    @property
    def failure(self) -> tuple[type[StratalogError], int | None] | None:
        """Kind and place of the error."""
        if self.error is None:
            return None
        return type(self.error), getattr(self.error, "position", None)


def decode_readably(
    buf: Buffer,
    *,
    check_crc: bool = True,
    include_control: bool = True,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Decoded:
    records: list[Record] = []
    at = 0
    try:
        while (entry := next_entry(buf, at)) is not None:
            found = list(
                records_of(buf, entry, check_crc=check_crc, decompressed_bytes_max=bytes_max)
            )
            if include_control or not header_of(buf, entry).is_control:
                records += found
            at = entry.end
    except StratalogError as error:
        return Decoded(records, error)
    return Decoded(records, None)


def decode_columns(
    buf: Buffer,
    *,
    check_crc: bool = True,
    include_control: bool = True,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
    part_bytes: int = columns.PART_BYTES,
) -> Decoded:
    decoder = columns.Decoder(
        check_crc=check_crc,
        include_control=include_control,
        decompressed_bytes_max=bytes_max,
        part_bytes=part_bytes,
    )
    records: list[Record] = []
    try:
        table = columns.scan_batches(buf)
        for batch in decoder.decode(buf, table):
            batch.validate(full=True)
            records += records_in(batch)
        table.raise_if_corrupt()
    except StratalogError as error:
        return Decoded(records, error)
    return Decoded(records, None)


def records_in(batch: pa.RecordBatch) -> list[Record]:
    """The rows of a batch that has all record columns."""
    rows = batch.set_column(1, "timestamp", batch.column("timestamp").cast(pa.int64())).to_pylist()
    return [
        Record(
            offset=row["offset"],
            timestamp=row["timestamp"],
            key=row["key"],
            value=row["value"],
            headers=tuple(Header(header["key"], header["value"]) for header in row["headers"]),
            timestamp_type=TimestampType(row["timestampType"]),
        )
        for row in rows
    ]


def guarded(data: bytes) -> memoryview:
    """`data` in memory whose next byte cannot be read: reading too far ends the process."""
    pages = -(-len(data) // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    guard = ctypes.c_void_p(start + pages * mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), _NO_ACCESS) == 0
    end = pages * mmap.PAGESIZE
    view = memoryview(memory)[end - len(data) : end]
    view[:] = data
    return view


def assert_same(fast: Decoded, readable: Decoded) -> None:
    """Both give the same records and fail alike; where records are bad, in the same words."""
    assert fast.records == readable.records
    assert fast.failure == readable.failure
    if isinstance(fast.error, CorruptRecordError):
        assert str(fast.error) == str(readable.error)

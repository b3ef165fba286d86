"""One entry of a .log file, whatever its magic: its header, its CRC and its records.

Readers that do not care for the format's age use these functions and never ask for the magic. Both
kinds of header answer to the same names; where an old one cannot know (the first offset and the
count of a compressed set), it says None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from stratalog.errors import CorruptBatchError
from stratalog.format.batch import MAGIC_2, BatchHeader, Entry, check_crc, is_crc_right, read_header
from stratalog.format.compression import DECOMPRESSED_BYTES_MAX
from stratalog.format.legacy import (
    LegacyHeader,
    check_legacy_crc,
    decode_legacy_records,
    is_legacy_crc_right,
    read_legacy_header,
)
from stratalog.format.record import Record, decode_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.format.buffers import Buffer

EntryHeader: TypeAlias = BatchHeader | LegacyHeader


def header_of(buf: Buffer, entry: Entry) -> EntryHeader:
    """The header of `entry`, checked for what can be told without the CRC."""
    if entry.magic > MAGIC_2:
        raise CorruptBatchError(f"magic is {entry.magic}, not 0 to 2", position=entry.position)
    read = read_header if entry.magic == MAGIC_2 else read_legacy_header
    header = read(buf, entry.position, entry.end)
    if header.size_bytes != entry.size_bytes:
        raise CorruptBatchError(
            f"header declares {header.size_bytes} bytes, the entry has {entry.size_bytes}",
            position=entry.position,
        )
    return header


def is_entry_crc_right(buf: Buffer, entry: Entry, header: EntryHeader) -> bool:
    """Whether the stored CRC matches the entry's bytes."""
    if isinstance(header, BatchHeader):
        return is_crc_right(buf, entry.position, header)
    return is_legacy_crc_right(buf, entry.position, header)


def check_entry_crc(buf: Buffer, entry: Entry, header: EntryHeader) -> None:
    """Raise unless the stored CRC matches the entry's bytes."""
    if isinstance(header, BatchHeader):
        check_crc(buf, entry.position, header)
    else:
        check_legacy_crc(buf, entry.position, header)


def records_of(
    buf: Buffer,
    entry: Entry,
    *,
    check_crc: bool = True,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[Record]:
    """The records of `entry`, control records included; the header says whether they are such.

    `check_crc` covers the entry and, in a legacy set, every inner message. Without it damaged bytes
    may give wrong records, but never anything other than records or a typed error.
    """
    header = header_of(buf, entry)
    if check_crc:
        check_entry_crc(buf, entry, header)
    if isinstance(header, BatchHeader):
        yield from decode_records(
            buf, entry.position, header, decompressed_bytes_max=decompressed_bytes_max
        )
    else:
        yield from decode_legacy_records(
            buf,
            entry.position,
            header,
            check_crc=check_crc,
            decompressed_bytes_max=decompressed_bytes_max,
        )

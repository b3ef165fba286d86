"""Batches in a form that compares across compression libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.format.batch import HEADER_BYTES, BatchHeader, Codec, next_entry
from stratalog.format.compression import decompress
from stratalog.format.log_entry import header_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.format.log_entry import EntryHeader


def contents(data: bytes) -> Iterator[object]:
    """Each batch as its bytes; where it is compressed, as its header and what was compressed.

    Libraries compress the same bytes differently, so length and CRC differ too.
    """
    at = 0
    while (entry := next_entry(data, at)) is not None:
        header = header_of(data, entry)
        raw = data[entry.position : entry.end]
        yield raw if header.codec_id == Codec.NONE else _uncompressed(raw, header)
        at = entry.end
    assert at == len(data)


def _uncompressed(raw: bytes, header: EntryHeader) -> object:
    if isinstance(header, BatchHeader):
        plain = header._replace(batch_length=0, crc=0)
        return plain, decompress(header.codec_id, raw[HEADER_BYTES:])
    value_at = header.header_bytes + 8  # after the lengths of a null key and of the value
    inner = decompress(header.codec_id, raw[value_at:], legacy_lz4=header.magic == 0)
    return header._replace(message_length=0, crc=0), inner

"""The two checksums of Kafka's files, each behind one function.

CRC-32C (Castagnoli) guards magic-2 batches and producer snapshots; CRC-32 (IEEE) guards the older
message formats.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from crc32c import crc32c as _crc32c

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer


def crc32c(buf: Buffer, so_far: int = 0) -> int:
    """CRC-32C of `buf`, continuing from the checksum of the bytes before it."""
    return _crc32c(buf, so_far)


def crc32(buf: Buffer, so_far: int = 0) -> int:
    """CRC-32 (IEEE) of `buf`, continuing from the checksum of the bytes before it."""
    return zlib.crc32(buf, so_far)

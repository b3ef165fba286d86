"""The two checksums of Kafka's files, each behind one function.

CRC-32C (Castagnoli) guards magic-2 batches and producer snapshots; CRC-32 (IEEE) guards the older
message formats.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratalog.format.buffers import Buffer


def crc32c(buf: Buffer, so_far: int = 0) -> int:
    """CRC-32C of `buf`, continuing from the checksum of the bytes before it."""
    return _hardware_crc32c()(buf, so_far)


@cache
def _hardware_crc32c() -> Callable[[Buffer, int], int]:
    from crc32c import crc32c as hardware_crc32c  # noqa: PLC0415  # takes 35 ms to import

    return hardware_crc32c


def crc32(buf: Buffer, so_far: int = 0) -> int:
    """CRC-32 (IEEE) of `buf`, continuing from the checksum of the bytes before it."""
    return zlib.crc32(buf, so_far)

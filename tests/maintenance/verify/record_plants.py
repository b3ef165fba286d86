"""Faults in records, under a valid CRC."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from stratalog.maintenance.verify.findings import Fault
from tests.maintenance.verify.planting import (
    Plant,
    Spot,
    batches,
    be32,
    be64,
    change_batch,
    segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _set(at: int, raw: bytes) -> Callable[[bytearray], None]:
    def change(batch: bytearray) -> None:
        batch[at : at + len(raw)] = raw

    return change


def _change(change: Callable[[bytearray], None], number: int = 6) -> Callable[[Path], Spot]:
    return lambda partition: change_batch(segments(partition)[1], number, change)


def _count_up(batch: bytearray) -> None:
    batch[57:61] = be32(struct.unpack_from(">i", batch, 57)[0] + 1)


def _count_down(batch: bytearray) -> None:
    batch[57:61] = be32(struct.unpack_from(">i", batch, 57)[0] - 1)


def _record_length(batch: bytearray) -> None:
    batch[61] += 2


def _max_timestamp(batch: bytearray) -> None:
    batch[35:43] = be64(struct.unpack_from(">q", batch, 35)[0] + 1)


def _record_offset_delta(batch: bytearray) -> None:
    """The first record's: behind its length (one or two bytes), attributes and timestamp delta."""
    at = 61 + (2 if batch[61] & 0x80 else 1) + 1
    assert batch[at] == 0  # timestamp delta
    assert batch[at + 1] == 0  # offset delta
    batch[at + 1] = 0x7E  # 63


def _codec(batch: bytearray) -> None:
    batch[22] |= 0x04  # says zstd, is plain


def _control_key(partition: Path) -> Spot:
    log = partition / "00000000000000000011.log"
    found = batches(log)
    number = next(n for n, batch in enumerate(found) if batch.raw[22] & 0x20)

    def change(batch: bytearray) -> None:
        batch[66:68] = b"\xff\xff"  # the version in the key

    return change_batch(log, number, change)


RECORD_PLANTS = [
    Plant("one record too many declared", "multiseg", Fault.BAD_RECORDS, _change(_count_up)),
    Plant("one record too few declared", "multiseg", Fault.BAD_RECORDS, _change(_count_down)),
    Plant("negative record count", "multiseg", Fault.BAD_BATCH, _change(_set(57, be32(-1)))),
    Plant("huge record count", "multiseg", Fault.BAD_BATCH, _change(_set(57, be32(1 << 30)))),
    Plant("wrong record length", "multiseg", Fault.BAD_RECORDS, _change(_record_length)),
    Plant("wrong codec", "multiseg", Fault.BAD_RECORDS, _change(_codec)),
    Plant("unknown codec", "multiseg", Fault.BAD_RECORDS, _change(_set(22, b"\x07"))),
    Plant("wrong largest timestamp", "multiseg", Fault.BAD_MAX_TIMESTAMP, _change(_max_timestamp)),
    Plant(
        "record offset outside", "multiseg", Fault.BAD_RECORD_OFFSETS, _change(_record_offset_delta)
    ),
    Plant("negative offset span", "multiseg", Fault.BAD_BATCH, _change(_set(23, be32(-5)))),
    Plant("bad key of a marker", "txn", Fault.BAD_CONTROL_RECORD, _control_key),
]

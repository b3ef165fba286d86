"""Batches whose bytes are known, and ways to damage them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.format.batch import BatchHeader
from stratalog.format.record import (
    Header,
    Record,
    encode_batch,
    seal_batch,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

DATA = bytes.fromhex(
    "0000000000000000000000460000000002989462810000000000010000000000"
    "0003e800000000000003edffffffffffffffffffffffffffff00000002"
    "18000000026b027602026802780e000a02026b0100"
)
DATA_RECORDS = [
    Record(0, 1000, b"k", b"v", (Header("h", b"x"),)),
    Record(1, 1005, b"k", None),
]
MARKER = bytes.fromhex(
    "00000000000000070000004200000003021f3ca98a003000000000000000000000"
    "07d000000000000007d000000000000003e90000ffffffff00000001"
    "2000000008000000000c00000000000500"
)
ONE = BatchHeader.unpack(encode_batch([Record(50, 1000, None, None)]))


def one_record(body: str, **fields: int) -> bytes:
    """A batch at offset 50, time 1000, whose payload is these bytes."""
    return seal_batch(ONE._replace(**fields), bytes.fromhex(body))


def mutations(rng: random.Random, raw: bytes) -> Iterator[bytes]:
    """`raw` with bits flipped, bytes changed, spans dropped or doubled. Most get a valid CRC again,
    so that the damage is met by the record decoder."""
    while True:
        broken = bytearray(raw)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(61 if rng.random() < 0.7 else 0, len(broken))
            match rng.randrange(5):
                case 0:
                    broken[at] ^= 1 << rng.randrange(8)
                case 1:
                    broken[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
                case 2:
                    del broken[at : at + rng.randint(1, 4)]
                case 3:
                    broken[at:at] = rng.randbytes(rng.randint(1, 4))
                case 4:
                    broken[at:at] = broken[at : at + rng.randint(1, 20)]
        if len(broken) >= 61 and rng.random() < 0.7:
            header = BatchHeader.unpack(broken)
            if header.magic == 2:
                broken = bytearray(seal_batch(header, bytes(broken[61:])))
        yield bytes(broken)

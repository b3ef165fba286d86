"""The hash that stands for a key, against SipHash as its authors describe it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from stratalog.format.kernels import offset_map as kernel
from stratalog.maintenance.cleaning.offset_map import OffsetMap
from tests.format.decoding import guarded

MASK = (1 << 64) - 1
SECRET = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
KEY = bytes((7 * n + 1) & 0xFF for n in range(300))


def siphash_128(data: bytes, secret: tuple[int, int], c_rounds: int, d_rounds: int) -> bytes:
    """SipHash-c-d with 128 bits of output."""
    v = [
        secret[0] ^ 0x736F6D6570736575,
        secret[1] ^ 0x646F72616E646F6D ^ 0xEE,
        secret[0] ^ 0x6C7967656E657261,
        secret[1] ^ 0x7465646279746573,
    ]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        for _ in range(c_rounds):
            sip_round(v)
        v[0] ^= word
    halves = []
    for slot, constant in ((2, 0xEE), (1, 0xDD)):
        v[slot] ^= constant
        for _ in range(d_rounds):
            sip_round(v)
        halves.append(v[0] ^ v[1] ^ v[2] ^ v[3])
    return b"".join(half.to_bytes(8, "little") for half in halves)


def sip_round(v: list[int]) -> None:
    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> (64 - bits)) & MASK

    v[0] = (v[0] + v[1]) & MASK
    v[1] = rotated(v[1], 13) ^ v[0]
    v[0] = rotated(v[0], 32)
    v[2] = (v[2] + v[3]) & MASK
    v[3] = rotated(v[3], 16) ^ v[2]
    v[0] = (v[0] + v[3]) & MASK
    v[3] = rotated(v[3], 21) ^ v[0]
    v[2] = (v[2] + v[1]) & MASK
    v[1] = rotated(v[1], 17) ^ v[2]
    v[2] = rotated(v[2], 32)


def test_the_yardstick_gives_the_published_values() -> None:
    """Of SipHash-2-4, whose vectors were published; ours has fewer rounds."""
    assert siphash_128(b"", SECRET, 2, 4).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash_128(b"\0", SECRET, 2, 4).hex() == "da87c1d86b99af44347659119b22fc45"


def signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


@pytest.mark.parametrize("size_bytes", [*range(42), 63, 64, 65, 255, 256, 257, 300])
@pytest.mark.parametrize("secret", [SECRET, (0, 0), (MASK, 1 << 63)])
def test_keys_of_all_lengths(size_bytes: int, secret: tuple[int, int]) -> None:
    """At the end of readable memory: the next byte would end the process."""
    expected = siphash_128(KEY[:size_bytes], secret, 1, 3)
    halves = [int.from_bytes(expected[at : at + 8], "little", signed=True) for at in (0, 8)]
    found = OffsetMap(24 * 8, secret=(signed(secret[0]), signed(secret[1])))
    key = pa.py_buffer(guarded(KEY[:size_bytes])) if size_bytes else pa.py_buffer(b"")
    kernel.put_key(key.address, size_bytes, 41, found.state)
    assert found.entries_in().tolist() == [[*halves, 41]]
    assert kernel.find_key(key.address, size_bytes, found.state) == 41


def test_every_bit_counts() -> None:
    found = OffsetMap(24 * 4096)
    for at in range(40 * 8):
        key = bytearray(40)
        key[at // 8] = 1 << at % 8
        found.put(bytes(key), at)
    assert found.entries == 320
    assert (
        len(np.unique(found.entries_in()[:, 0])) == len(np.unique(found.entries_in()[:, 1])) == 320
    )

"""SipHash-1-3 with 128 bits of output: what stands for a key in an offset map.

Two keys that share a hash would lose records, so nobody may be able to make such keys up: the hash
is keyed with secret random words, and as wide as the MD5 that Kafka uses for this. It is made for
short inputs and takes a fraction of MD5's time.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from stratalog.format.kernels.jit import part
from stratalog.format.kernels.memory import load_le_i64, load_u8
from stratalog.format.kernels.wrapping import wrapping_add

_WORD_BYTES = 8
_FIRST_WORDS = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_V0, _V1, _V2, _V3 = _FIRST_WORDS


def _rotation(bits: int) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word, word, word])
        function = builder.module.declare_intrinsic("llvm.fshl", [word], fnty=kind)
        return builder.call(function, [args[0], args[0], ir.Constant(word, bits)])

    def rotate(_context: Any, _number: Any) -> Any:
        return types.int64(types.int64), codegen

    return intrinsic(rotate)


_rotate_13, _rotate_16, _rotate_17, _rotate_21, _rotate_32 = map(_rotation, (13, 16, 17, 21, 32))


@part
def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = wrapping_add(v0, v1)
    v2 = wrapping_add(v2, v3)
    v1 = _rotate_13(v1) ^ v0
    v3 = _rotate_16(v3) ^ v2
    v0 = _rotate_32(v0)
    v2 = wrapping_add(v2, v1)
    v0 = wrapping_add(v0, v3)
    v1 = _rotate_17(v1) ^ v2
    v3 = _rotate_21(v3) ^ v0
    v2 = _rotate_32(v2)
    return v0, v1, v2, v3


@part
def _last_word(at: int, left: int, size: int, readable_end: int) -> int:
    """The `left` (below 8) bytes at `at`, with the size of the whole key in the highest byte."""
    word = 0
    if at + _WORD_BYTES <= readable_end:
        word = load_le_i64(at) & ((1 << 8 * left) - 1)
    else:
        for i in range(left):
            word |= load_u8(at + i) << 8 * i
    return word | (size & 0xFF) << 56


@part
def hash_key(at: int, size: int, secret: tuple[int, int], readable_end: int) -> tuple[int, int]:
    """Two words for the `size` bytes at address `at`; reads below `readable_end` only."""
    v0, v1 = secret[0] ^ _V0, secret[1] ^ _V1 ^ 0xEE
    v2, v3 = secret[0] ^ _V2, secret[1] ^ _V3
    left = size
    while left >= _WORD_BYTES:
        word = load_le_i64(at)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        at += _WORD_BYTES
        left -= _WORD_BYTES
    word = _last_word(at, left, size, readable_end)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= 0xEE
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= 0xDD
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3

"""Hashes of keys and checksums of rows.

Offset maps store SipHash-1-3 with 128 bits of output for each key. Two keys with the same hash
would lose records, so it must not be possible to construct such keys: the hash is keyed with secret
random words, and as wide as the MD5 that Kafka uses for this, but much faster for short inputs."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from stratalog.format.kernels.crc import crc32c_at
from stratalog.format.kernels.jit import inlined, kernel
from stratalog.format.kernels.memory import is_null, load_le_i64, load_le_u32, load_u8
from stratalog.format.kernels.record_fields import wrapping_add

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


@inlined
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


@inlined
def _last_word(at: int, left: int, size: int, readable_end: int) -> int:
    """The `left` (below 8) bytes at `at`, with the size of the whole key in the highest byte."""
    word = 0
    if at + _WORD_BYTES <= readable_end:
        word = load_le_i64(at) & ((1 << 8 * left) - 1)
    else:
        for i in range(left):
            word |= load_u8(at + i) << 8 * i
    return word | (size & 0xFF) << 56


@inlined
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


# A hash for every key of a column.


@kernel(
    types.void(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64[::1])
)
def hash_column(offsets: int, data: int, size: int, first: int, second: int, out: Any) -> None:
    """The first word of the hash of each key of an Arrow binary column with 32-bit offsets.

    `offsets` and `data` are addresses, `first` and `second` the hash's secret. Reads
    `len(out) + 1` offsets and `size` bytes of data; the offsets must lie within these.
    """
    secret = (first, second)
    for i in range(len(out)):
        start, end = load_le_u32(offsets + 4 * i), load_le_u32(offsets + 4 * i + 4)
        out[i] = hash_key(data + start, end - start, secret, data + size)[0]


# Partitions of many keys: the compiled twin of `format.murmur.partition_for_key`.

UNASSIGNED = -1

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_UINT32 = 0xFFFF_FFFF
_INT32 = 0x7FFF_FFFF


@inlined
def _murmur2(at: int, size: int) -> int:
    hashed = (_SEED ^ size) & _UINT32
    end = at + (size & ~3)
    while at < end:
        word = load_le_u32(at) * _MIX & _UINT32
        word = (word ^ word >> 24) * _MIX & _UINT32
        hashed = hashed * _MIX & _UINT32 ^ word
        at += 4
    left = size & 3
    if left:
        if left == 3:
            hashed ^= load_u8(at + 2) << 16
        if left >= 2:
            hashed ^= load_u8(at + 1) << 8
        hashed = (hashed ^ load_u8(at)) * _MIX & _UINT32
    hashed = (hashed ^ hashed >> 13) * _MIX & _UINT32
    return hashed ^ hashed >> 15


@kernel(types.int64(*[types.int64] * 5, types.int32[::1]))
def partition_keys(
    offsets: int, data: int, valid: int, valid_bit: int, partition_count: int, out: Any
) -> int:
    """Give every row that is UNASSIGNED and has a key its partition; how many are left UNASSIGNED.

    `offsets` (int32) and `data` are those of the key column, `valid` its validity or 0, and
    `valid_bit` the bit of the first row.
    """
    left = 0
    for row in range(len(out)):
        if out[row] != UNASSIGNED:
            continue
        if is_null(valid, valid_bit + row):
            left += 1
            continue
        start = load_le_u32(offsets + 4 * row)
        size = load_le_u32(offsets + 4 * row + 4) - start
        out[row] = (_murmur2(data + start, size) & _INT32) % partition_count
    return left


@intrinsic
def _address(_context: Any, data: Any) -> Any:
    """Where the bytes of a `bytes` object begin."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(array.data, ir.IntType(64))

    return types.int64(data), codegen


_BYTES = types.Bytes(types.uint8, 1, "C", readonly=True)


@kernel(types.int64(_BYTES, types.int64), nogil=False)
def partition_key(key: Any, partition_count: int) -> int:
    """The partition of one key."""
    return (_murmur2(_address(key), len(key)) & _INT32) % partition_count


# A checksum of rows that does not depend on their order.

_NULL_CRC = 0x5A17_0001
_ROW_MIX = 0x2C1B_3C6D
_SUM_MASK = (1 << 62) - 1


@inlined
def _cell_crc(column: Any, row: int) -> int:
    """The CRC-32C of one value of an Arrow binary column; a constant for a null."""
    offsets, valid = column[0], column[2]
    if offsets == 0 or is_null(valid, column[3] + row):
        return _NULL_CRC
    start = load_le_u32(offsets + 4 * row)
    crc: int = crc32c_at(column[1] + start, load_le_u32(offsets + 4 * row + 4) - start)
    return crc


@kernel(types.int64(types.int64[::1], types.int64[::1], types.int64))
def sum_rows(keys: Any, values: Any, rows: int) -> int:
    """The sum over all rows of a number made of key and value, modulo 2^62.

    Each column is an Arrow binary column with 32-bit offsets, as four numbers: the addresses of
    the first offset, the data and the validity (0: none), and the bit of the first row in that. An
    address of 0 for the offsets: all values are null.
    """
    total = 0
    for row in range(rows):
        key, value = _cell_crc(keys, row), _cell_crc(values, row)
        key = (key ^ key >> 15) * _ROW_MIX & _UINT32
        total = total + ((key ^ key >> 13) ^ value) & _SUM_MASK
    return total

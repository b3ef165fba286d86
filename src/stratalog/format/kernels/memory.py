"""Loads, stores and copies at raw addresses: what numba's arrays do too slowly or not at all.

An address is an int64, and so is every value loaded. Nothing here checks anything; that is the
calling kernel's duty.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from stratalog.format.kernels.jit import inlined

COPY_SLACK_BYTES = 32
_WIDE_BYTES = 32
_INLINE_BYTES_MAX = 128

CACHE_LINE_BYTES = 64
_I64 = ir.IntType(64)


def _loader(bits: int, *, signed: bool, big_endian: bool = True) -> Any:
    kind = ir.IntType(bits)

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=1)
        if big_endian and bits > 8:
            value = builder.bswap(value)
        if bits == 64:
            return value
        return (builder.sext if signed else builder.zext)(value, _I64)

    def load(_context: Any, address: Any) -> Any:
        return types.int64(types.int64), codegen

    return intrinsic(load)


load_u8 = _loader(8, signed=False)
load_i8 = _loader(8, signed=True)
load_be_i16 = _loader(16, signed=True)
load_be_i32 = _loader(32, signed=True)
load_be_u32 = _loader(32, signed=False)
load_be_i64 = _loader(64, signed=True)
load_le_i64 = _loader(64, signed=True, big_endian=False)
load_le_u32 = _loader(32, signed=False, big_endian=False)
load_le_u16 = _loader(16, signed=False, big_endian=False)


def _storer(bits: int, *, big_endian: bool = False) -> Any:
    kind = ir.IntType(bits)

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = args[1] if bits == 64 else builder.trunc(args[1], kind)
        if big_endian:
            value = builder.bswap(value)
        builder.store(value, builder.inttoptr(args[0], kind.as_pointer()), align=1)
        return _context.get_dummy_value()

    def store(_context: Any, address: Any, value: Any) -> Any:
        return types.void(types.int64, types.int64), codegen

    return intrinsic(store)


store_u8 = _storer(8)
store_i32 = _storer(32)
store_i64 = _storer(64)
store_be_i16 = _storer(16, big_endian=True)
store_be_i32 = _storer(32, big_endian=True)
store_be_i64 = _storer(64, big_endian=True)


@inlined
def load_slot(slots: int, slot: int) -> int:
    """One of the int64 slots in which a kernel and its caller exchange numbers and addresses."""
    number: int = load_le_i64(slots + 8 * slot)
    return number


@inlined
def store_slot(slots: int, slot: int, number: int) -> None:
    store_i64(slots + 8 * slot, number)


@inlined
def is_null(valid: int, bit: int) -> bool:
    """Whether an Arrow validity bitmap (0: there is none) says that there is no value."""
    return valid != 0 and load_u8(valid + (bit >> 3)) >> (bit & 7) & 1 == 0


@intrinsic
def memcpy(_typing: Any, target: Any, source: Any, size: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        to, what = builder.inttoptr(args[0], byte), builder.inttoptr(args[1], byte)
        cgutils.raw_memcpy(builder, to, what, args[2], 1)
        return _context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _copier(size: int) -> Any:
    kind = ir.VectorType(ir.IntType(8), size).as_pointer()

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = builder.load(builder.inttoptr(args[1], kind), align=1)
        builder.store(value, builder.inttoptr(args[0], kind), align=1)
        return _context.get_dummy_value()

    def copy_fixed(_context: Any, target: Any, source: Any) -> Any:
        return types.void(types.int64, types.int64), codegen

    return intrinsic(copy_fixed)


copy_16 = _copier(16)
_copy_wide = _copier(_WIDE_BYTES)


@intrinsic
def prefetch(_typing: Any, address: Any) -> Any:
    """Ask for the cache line at `address`, which need not be readable."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        i32, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], fnty=kind)
        read, keep, data = (ir.Constant(i32, number) for number in (0, 3, 1))
        builder.call(function, [builder.inttoptr(args[0], byte), read, keep, data])
        return _context.get_dummy_value()

    return types.void(types.int64), codegen


@inlined
def copy(target: int, source: int, size: int, readable_end: int) -> None:
    """Copy `size` bytes. May write up to COPY_SLACK_BYTES more, for which the target must have
    room, and reads below `readable_end` only.

    Short runs are copied in wide strides: a call to memcpy costs more than the bytes do.
    """
    if source + _INLINE_BYTES_MAX > readable_end or size > _INLINE_BYTES_MAX:
        memcpy(target, source, size)
        return
    if size > 0:
        _copy_wide(target, source)
    if size > _WIDE_BYTES:
        _copy_wide(target + _WIDE_BYTES, source + _WIDE_BYTES)
    if size > 2 * _WIDE_BYTES:
        _copy_wide(target + 2 * _WIDE_BYTES, source + 2 * _WIDE_BYTES)
    if size > 3 * _WIDE_BYTES:
        _copy_wide(target + 3 * _WIDE_BYTES, source + 3 * _WIDE_BYTES)


@inlined
def copy_back(target: int, distance: int, size: int) -> None:
    """Copy `size` bytes from `distance` (not 0) bytes before the target, byte after byte, so that a
    distance below the size repeats what was just written. May write COPY_SLACK_BYTES more."""
    done = 0
    if distance >= _WIDE_BYTES:
        while done < size:
            _copy_wide(target + done, target + done - distance)
            done += _WIDE_BYTES
    elif distance >= 8:
        while done < size:
            store_i64(target + done, load_le_i64(target + done - distance))
            done += 8
    else:
        while done < size:
            store_u8(target + done, load_u8(target + done - distance))
            done += 1


# The tables that kernels and Python share: one row for each batch.

BATCH: Final = np.dtype(
    [
        ("position", np.int64),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("size_bytes", np.int32),
        ("partition_leader_epoch", np.int32),
        ("crc", np.uint32),
        ("base_sequence", np.int32),
        ("record_count", np.int32),
        ("attributes", np.int16),
        ("producer_epoch", np.int16),
        ("magic", np.int8),
    ],
    align=True,
)
"""One batch or legacy message. What a legacy header does not have is -1."""

PAYLOAD: Final = np.dtype([("address", np.int64), ("size_bytes", np.int64)], align=True)
"""Where the plain records of a batch lie in memory."""

BATCHES: Final = numba.from_dtype(BATCH)[::1]
PAYLOADS: Final = numba.from_dtype(PAYLOAD)[::1]

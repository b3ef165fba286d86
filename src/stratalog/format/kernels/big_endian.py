"""Stores of big-endian numbers at raw addresses: what writing Kafka's fixed fields takes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


def _storer(bits: int) -> Any:
    kind = ir.IntType(bits)

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = args[1] if bits == 64 else builder.trunc(args[1], kind)
        builder.store(builder.bswap(value), builder.inttoptr(args[0], kind.as_pointer()), align=1)
        return _context.get_dummy_value()

    def store(_context: Any, address: Any, value: Any) -> Any:
        return types.void(types.int64, types.int64), codegen

    return intrinsic(store)


store_be_i16 = _storer(16)
store_be_i32 = _storer(32)
store_be_i64 = _storer(64)

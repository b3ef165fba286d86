"""Sums and differences that wrap around like Java's longs.

numba tells LLVM that integers never overflow, and LLVM draws its conclusions: a comparison with a
plain sum may come out wrong for numbers near the ends. Timestamps of any size come from outside.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic


def _operation(name: str) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return getattr(builder, name)(args[0], args[1])  # without the flags numba would add

    def operate(_context: Any, a: Any, b: Any) -> Any:
        return types.int64(types.int64, types.int64), codegen

    return intrinsic(operate)


wrapping_add = _operation("add")
wrapping_sub = _operation("sub")

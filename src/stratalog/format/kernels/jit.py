"""How kernels are compiled and where the machine code is kept.

A kernel is compiled once per machine and kept on disk. numba notices when the file of a kernel
changes but not when a function it calls from another file does, so the cache directory carries a
digest of all files that define kernels or what kernels call. (Constants from other modules are
compiled in as well, but they are the format's, and that does not change.) A cache that cannot be
written costs time, never an error. A process that compiles for more than a second logs a message,
once; `stratalog compile-kernels` compiles all kernels ahead of time.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numba
from numba.core import config

if TYPE_CHECKING:
    from collections.abc import Callable

_F = TypeVar("_F", bound="Callable[..., object]")
_log = logging.getLogger("stratalog.format.kernels")
_HERE = Path(__file__).parent
_SOURCES = (_HERE, _HERE.parents[1] / "dump")
"""Packages that define compiled functions."""
_NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""For functions that only kernels call: compiling the wrapper for Python takes as long as the
function. Tests call `py_func` instead."""


@dataclass
class Compilation:
    """The number of kernels that this process has loaded or compiled, and the time that took."""

    loaded: int = 0
    """Taken from the cache."""
    compiled: int = 0
    seconds: float = 0.0
    """For those that were compiled."""
    is_reported: bool = False

    def add(self, dispatcher: Any, seconds: float) -> None:
        """Count a kernel."""
        if sum(dispatcher.stats.cache_hits.values()):
            self.loaded += 1
            return
        self.compiled += 1
        self.seconds += seconds
        if self.seconds > REPORTED_AFTER_S and not self.is_reported:
            self.is_reported = True
            _log.info("compiling kernels for this machine: %s", _cache_note())


REPORTED_AFTER_S: Final = 1.0
compilation: Final = Compilation()


def _cache_note() -> str:
    if _CACHE is None and not config.CACHE_DIR:
        return "they cannot be cached, because no directory for them is writable"
    return "this happens once, or ahead of time with 'stratalog compile-kernels'"


def kernel(signature: object, *, nogil: bool = True) -> Callable[[_F], _F]:
    """Compile now, for this signature only, to run without the interpreter lock. With `nogil=False`
    it keeps the lock, for what takes less time than to release it."""

    def compile_now(function: _F) -> _F:
        given = config.CACHE_DIR
        if not given and _CACHE is not None:
            config.CACHE_DIR = str(_CACHE)
        try:
            is_cached = bool(config.CACHE_DIR)
            start = time.perf_counter()
            compiled = _njit(signature, cache=is_cached, nogil=nogil)(function)
            compilation.add(compiled, time.perf_counter() - start)
            return compiled
        finally:
            config.CACHE_DIR = given

    return compile_now


def entry_point(compiled: _F) -> _F:
    """The machine code of a kernel. Calling it avoids numba's check of the arguments, which takes
    longer than a short kernel. Arguments of other types raise TypeError."""
    (overload,) = cast("Any", compiled).overloads.values()
    return cast("_F", overload.entry_point)


def inlined(function: _F) -> _F:
    """Compiled into the kernels that call it (`forceinline`): their speed depends on it."""
    return _njit(forceinline=True, **_NO_WRAPPERS)(function)


def ast_inlined(function: _F) -> _F:
    """Copied into its callers before they are compiled (`inline="always"`): every function that is
    compiled by itself adds a fifth of a second to a first start."""
    return _njit(inline="always")(function)


def not_inlined(function: _F) -> _F:
    """Called by kernels, for what happens rarely and would only make them larger."""
    return _njit(**_NO_WRAPPERS)(function)


def _njit(*signature: object, nogil: bool = True, **options: bool | str) -> Callable[[_F], _F]:
    decorator: Callable[[_F], _F] = numba.njit(
        *signature, nogil=nogil, error_model="numpy", boundscheck=False, **options
    )
    return decorator


def _cache_dir() -> Path | None:
    """Beside the package, or in the user's cache when that is read-only; None if neither works."""
    digest = hashlib.sha256()
    for package in _SOURCES:
        for source in sorted(package.glob("*.py")):
            digest.update(source.read_bytes())
    name = f"stratalog-{digest.hexdigest()[:16]}"
    for root in (_HERE / "__pycache__", Path("~/.cache/stratalog")):
        try:
            chosen = root.expanduser() / name
            if not chosen.is_dir():
                chosen.mkdir(parents=True)
                _remove_older(chosen)
            (chosen / "in-use").touch()  # fails where nothing can be kept
        except (OSError, RuntimeError):
            continue
        return chosen
    return None


def _remove_older(chosen: Path) -> None:
    """Remove the machine code of earlier versions of these files."""
    for other in chosen.parent.glob("stratalog-*"):
        if other != chosen:
            shutil.rmtree(other, ignore_errors=True)


_CACHE = _cache_dir()


def cache_dir() -> Path | None:
    """Where compiled kernels are kept; None if they cannot be."""
    given = config.CACHE_DIR
    return Path(given) if given else _CACHE

"""`stratalog compile-kernels`: compile all kernels now, so that no later command has to wait."""

from __future__ import annotations

import pkgutil
import time
from importlib import import_module

import typer

from stratalog.cli.arguments import JsonOption
from stratalog.cli.output import json_line, report_error

FAILS_WHEN = "compiled kernels cannot be stored"
_OTHER_MODULES = ("stratalog.dump.render", "stratalog.dump.words")
"""With kernels, outside `stratalog.format.kernels`."""


def run(as_json: JsonOption = False) -> None:
    """Compile the inner loops for this machine ahead of time, so that no command has to wait.

    Stratalog compiles its inner loops when it first needs them. This takes up to a minute in total.
    They are cached in the package directory or, if that is read-only, in ~/.cache/stratalog; set
    NUMBA_CACHE_DIR to use another directory. Run this command to compile them ahead of time, for
    example when you build a container image. If they are already compiled, it takes a second.

    \b
    Examples:
      stratalog compile-kernels
      stratalog compile-kernels --json

    With --json, the command prints one object: compiled (number of kernels), loaded (how many were
    cached), seconds, cacheDir.
    """
    from stratalog.format.kernels import jit  # noqa: PLC0415 - loads numba

    jit.compilation.is_reported = True  # the message would name this command
    start = time.perf_counter()
    for name in module_names():
        import_module(name)
    seconds, done = time.perf_counter() - start, jit.compilation
    cache_dir = jit.cache_dir()
    if as_json:
        row = {"compiled": done.compiled, "loaded": done.loaded, "seconds": round(seconds, 3)}
        print(json_line(row | {"cacheDir": None if cache_dir is None else str(cache_dir)}))
    elif cache_dir is not None:
        print(f"compiled {done.compiled} kernels in {seconds:.1f} s, {done.loaded} were cached")
        print(f"cache: {cache_dir}")
    if cache_dir is None:
        report_error(
            "compiled kernels cannot be stored: neither the directory of the package nor "
            "~/.cache/stratalog is writable; set NUMBA_CACHE_DIR"
        )
        raise typer.Exit(1)


def module_names() -> list[str]:
    """Every module that has kernels."""
    package = "stratalog.format.kernels"
    found = pkgutil.iter_modules(import_module(package).__path__)
    return [*(f"{package}.{module.name}" for module in found), *_OTHER_MODULES]

"""The public surface: what `stratalog` promises is there, documented, and loaded only when used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import stratalog
from stratalog import errors

SOURCE = Path(stratalog.__file__)


def test_all_is_sorted_and_importable() -> None:
    assert stratalog.__all__ == sorted(set(stratalog.__all__))
    for name in stratalog.__all__:
        value = getattr(stratalog, name)
        assert value.__doc__, name
        assert getattr(value, "__name__", name) == name
        assert value.__module__.startswith("stratalog."), name


def test_type_checkers_see_the_same_names() -> None:
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(SOURCE.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stratalog")
        for alias in node.names
    }
    assert imported == set(stratalog.__all__)


def test_dir_shows_them() -> None:
    assert set(stratalog.__all__) <= set(dir(stratalog))


def test_unknown_names_are_refused() -> None:
    assert not hasattr(stratalog, "no_such_name")
    assert not hasattr(stratalog, "BatchFields")  # internal: exists, but is not promised


def test_every_error_is_public() -> None:
    """Whoever can get one must be able to name it."""
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.StratalogError)
    }
    assert len(defined) > 30
    assert defined <= set(stratalog.__all__)


def test_import_is_light() -> None:
    """Arrow, numpy and the compiled kernels wait until columns are asked for."""
    heavy = ("numpy", "pyarrow", "numba", "pyspark", "stratalog.format.columns")
    program = (
        "import sys, stratalog\n"
        "stratalog.open_dirs, stratalog.PartitionView\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SOURCE.parents[1])},
    )
    assert done.stdout.strip() == "[]"

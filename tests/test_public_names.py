"""The public surface: what `stratalog` promises is there, documented, and loaded only when used."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import textwrap
import typing
from functools import cache
from pathlib import Path
from typing import Any

import stratalog
from stratalog import errors, types

SOURCE = Path(stratalog.__file__)
MODULES = {"errors", "types"}
INTERNAL = {
    # What a log and a producer are made of. Other packages of Stratalog use them, callers do not.
    "BatchFields",
    "LeaderEpochCache",
    "Listing",
    "SegmentChanges",
    "NewRecord",
    "ProducerStateManager",
    "ReadPlan",
    "RemoteTier",
    "SegmentList",
    "SegmentPart",
    "TransactionCoordinator",
    "SequenceNumbers",
}


def test_all_is_sorted_and_importable() -> None:
    assert stratalog.__all__ == sorted(set(stratalog.__all__))
    assert types.__all__ == sorted(set(types.__all__))
    for name in set(stratalog.__all__) - MODULES:
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


def test_dir_is_an_overview() -> None:
    """What people use first, and nothing that this package needs itself."""
    program = "import stratalog; print(*dir(stratalog))"
    shown = _run(program).split()
    assert set(shown) == {*stratalog.__all__, "__doc__", "__version__"}
    assert len(shown) < 40
    assert [name for name in shown if name.endswith("Error")] == ["StratalogError"]


def test_unknown_names_are_refused() -> None:
    assert not hasattr(stratalog, "no_such_name")
    assert not hasattr(stratalog, "BatchFields")  # internal: exists, but is not promised


def test_errors_are_in_a_module_of_their_own() -> None:
    """Whoever can get one must be able to name it, without a second import."""
    program = "import stratalog; print(stratalog.errors.CorruptError.__name__)"
    assert _run(program).strip() == "CorruptError"
    assert issubclass(errors.OffsetOutOfRangeError, stratalog.StratalogError)


def test_every_type_that_a_method_returns_is_public() -> None:
    """Public methods and attributes of public classes, and of the classes that these return."""
    public = {
        value
        for module in (stratalog, types)
        for value in (getattr(module, name) for name in module.__all__)
        if isinstance(value, type)
    }
    known = public | {value for value in vars(errors).values() if isinstance(value, type)}
    missing = {
        f"{found.__module__}.{found.__name__} ({kind.__name__}.{attribute})"
        for kind in public
        for attribute, found in _returned_by(kind)
        if found not in known and found.__name__ not in INTERNAL
    }
    assert not missing


def _returned_by(kind: type) -> set[tuple[str, type]]:
    """Classes of this package that public attributes of the class have as type or return."""
    found = set()
    for each in kind.__mro__:
        if not each.__module__.startswith("stratalog."):
            continue
        names = _names_in(each.__module__)
        hints = {**_assigned_in(each, names), **inspect.get_annotations(each)}
        for name, value in vars(each).items():
            function = getattr(value, "fget", None) or getattr(value, "func", value)
            function = getattr(function, "__func__", function)
            returned = getattr(function, "__annotations__", {}).get("return")
            if returned is not None:
                hints[name] = returned
        for name, hint in hints.items():
            if not name.startswith("_"):
                found |= {(name, kind) for kind in _classes_in(hint, names)}
    return found


def _assigned_in(kind: type, names: dict[str, Any]) -> dict[str, Any]:
    """What `__init__` assigns: `self.name = Kind(...)`."""
    found = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind)))):
        match node:
            case ast.Assign([ast.Attribute(ast.Name("self"), name)], ast.Call(ast.Name(called))):
                if isinstance(names.get(called), type):
                    found[name] = names[called]
    return found


def _classes_in(hint: Any, names: dict[str, Any]) -> set[type]:
    if isinstance(hint, typing.ForwardRef):
        hint = hint.__forward_arg__
    if isinstance(hint, str):
        hint = eval(hint, names)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return set()
    if arguments:
        return {kind for argument in arguments for kind in _classes_in(argument, names)}
    is_ours = isinstance(hint, type) and hint.__module__.startswith("stratalog.")
    return {hint} if is_ours else set()


@cache
def _names_in(module_name: str) -> dict[str, Any]:
    """What annotations of a module can name, also what it imports for type checkers only."""
    module = importlib.import_module(module_name)
    names = dict(vars(module))
    assert module.__file__ is not None
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            imports = [each for each in node.body if isinstance(each, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(list(imports), []), module_name, "exec"), names)
    return names


def _run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SOURCE.parents[1])},
    )
    return done.stdout


def test_import_is_light() -> None:
    """Arrow, numpy and the compiled kernels wait until columns are asked for."""
    heavy = ("numpy", "pyarrow", "numba", "pyspark", "stratalog.format.columns")
    program = (
        "import sys, stratalog\n"
        "stratalog.open_dirs, stratalog.PartitionView\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert _run(program).strip() == "[]"


def test_a_dump_of_a_small_file_starts_without_settings_and_kernels(tmp_path: Path) -> None:
    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(b"")
    heavy = ("numpy", "pyarrow", "numba", "pyspark", "stratalog.config")
    program = (
        "import sys\n"
        f"sys.argv = ['stratalog', 'dump', '--files', {str(log)!r}]\n"
        "from stratalog.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as exit:\n    assert exit.code == 0, exit.code\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert _run(program).splitlines()[-1] == "[]"

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest

from stratalog import errors

PATH = Path("logs/orders-0/00000000000000000000.log")

ERRORS: list[errors.StratalogError] = [
    errors.CorruptBatchError("bad crc", position=61, path=PATH, offsets=(5, 9)),
    errors.UnsupportedRecordsError("codec 7", position=3),
    errors.ConfigError("retention.ms", "is no number", value="x", suggestions=("a",), path=PATH),
    errors.OffsetOutOfRangeError(7, log_start_offset=8, log_end_offset=9),
    errors.SegmentGoneError(PATH),
    errors.CleaningAbortedError(PATH, "truncated"),
    errors.OffsetOverflowError(1 << 40, base_offset=3),
    errors.LogDirLockedError(PATH, "process 7 (java)"),
    errors.DiskFullError(PATH, "write", 28, "no space left"),
    errors.FsyncError(PATH, "fsync", 5, "Input/output error"),
    errors.LogOfflineError(PATH, "closed"),
    errors.InvalidRecordError("no key", record_errors=(errors.RecordError(2, "no key"),)),
    errors.InvalidTopicError("a/b"),
    errors.RequestError(25, "unknown member"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_cross_processes_with_all_they_know(error: errors.StratalogError) -> None:
    error.add_note("while cleaning")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))


def test_the_tree_names_every_error_once_below_its_base() -> None:
    drawn: list[tuple[str, str]] = []
    parents = {-1: "Exception"}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ((?:[│├└─ ]{4})*)([A-Z]\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            parents[depth] = found[2]
            drawn.append((found[2], parents[depth - 1]))
    defined = [
        (name, value.__bases__[0].__name__)
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.StratalogError)
    ]
    assert sorted(drawn) == sorted(defined)


def test_every_error_that_a_caller_may_catch_is_defined_here() -> None:
    src = Path(errors.__file__).parent
    names = "|".join(name for name in vars(errors) if name.endswith("Error"))
    strays = [
        f"{path.relative_to(src)}: {found}"
        for path in sorted(src.rglob("*.py"))
        if path.name != "errors.py"
        for found in re.findall(rf"^class \w+\((?:.*\b)?(?:{names})\b", path.read_text(), re.M)
    ]
    assert not strays


def test_no_error_is_raised_without_a_type_of_its_own() -> None:
    """Whoever catches an error wants to know which one; the base is for `except` only."""
    src = Path(errors.__file__).parent
    bare = []
    for path in sorted(src.rglob("*.py")):
        text = path.read_text()
        if not re.search(r"\b(StratalogError|Exception|BaseException)\(", text):
            continue  # parsing takes time
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                name = node.func.attr if isinstance(node.func, ast.Attribute) else name
                if name in {"StratalogError", "Exception", "BaseException"}:
                    bare.append(f"{path.relative_to(src)}:{node.lineno}")
    assert not bare

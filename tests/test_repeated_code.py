"""No code is written twice: no two functions of the package share six lines of the same shape.

Two runs of statements have the same shape if they differ only in names, strings and numbers.
Declarations (imports, fields, signatures) are not code in this sense.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "stratalog"
LINES_MAX = 5
COMMON = 60
"""A pair of statements that occurs more often is not where a longer run is looked for."""

_BLOCKS = ("body", "handlers", "orelse", "finalbody")


class Step(NamedTuple):
    """A statement without the statements in it."""

    depth: int
    shape: str
    lines: int


class Function(NamedTuple):
    """A function, with those that are defined in it."""

    name: str
    steps: list[Step]


def test_no_two_functions_share_more_than_a_few_lines_of_the_same_shape() -> None:
    functions = [
        function for path in sorted(PACKAGE.rglob("*.py")) for function in functions_of(path)
    ]
    assert repeated(functions) == set()


def test_a_repetition_is_found_under_other_names(tmp_path: Path) -> None:
    code = (
        "def {0}({1}):\n"
        + "    {1}.{2}({3})\n" * 3
        + "    return [\n        {1},\n        {3},\n    ]\n"
    )
    (tmp_path / "a.py").write_text(code.format("first", "x", "add", "1"))
    (tmp_path / "b.py").write_text(code.format("second", "log", "append", "'text'"))
    functions = [*functions_of(tmp_path / "a.py"), *functions_of(tmp_path / "b.py")]
    assert repeated(functions) == {("a.py:first", "b.py:second")}
    functions[1].steps[2] = Step(0, "another", 1)
    assert repeated(functions) == set()


def functions_of(path: Path) -> list[Function]:
    """The functions and methods of a module."""
    label = path.relative_to(PACKAGE) if path.is_relative_to(PACKAGE) else path.name
    found: list[Function] = []

    def look(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(Function(f"{label}:{child.name}", steps_of(child.body, 0)))
            else:
                look(child)

    look(ast.parse(path.read_text(encoding="utf-8")))
    return found


def steps_of(block: list[ast.stmt], depth: int) -> list[Step]:
    """The statements of a block, in the order of the text, with those in them."""
    steps = []
    for statement in block:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_text:
            steps.append(Step(depth, shape_of(statement), lines_of(statement)))
            for name in _BLOCKS:
                inner = getattr(statement, name, [])
                if inner and name in {"orelse", "finalbody"}:
                    steps.append(Step(depth, name, 1))
                steps += steps_of(inner, depth + 1)
    return steps


def lines_of(statement: ast.stmt) -> int:
    """Lines, without those of the statements in it."""
    block = getattr(statement, "body", None)
    return block[0].lineno - statement.lineno if block else _last_line(statement)


def _last_line(statement: ast.stmt) -> int:
    return (statement.end_lineno or statement.lineno) - statement.lineno + 1


def shape_of(node: object) -> str:
    """What is left of a statement without names, values and the statements in it."""
    if isinstance(node, ast.Constant):
        return "value" if isinstance(node.value, str | int | float) else type(node.value).__name__
    if isinstance(node, list):
        return f"[{','.join(map(shape_of, node))}]"
    if not isinstance(node, ast.AST):
        return ""
    fields = [
        value
        for name, value in ast.iter_fields(node)
        if name not in _BLOCKS or not isinstance(value, list)
    ]
    return f"{type(node).__name__}({','.join(map(shape_of, fields))})"


def repeated(functions: list[Function]) -> set[tuple[str, str]]:
    """Pairs of functions that share more than LINES_MAX lines."""
    places = defaultdict(list)
    for number, function in enumerate(functions):
        for at, (one, two) in enumerate(zip(function.steps, function.steps[1:], strict=False)):
            places[one.shape, two.shape, two.depth - one.depth].append((number, at))
    found = set()
    for same in places.values():
        for (a, at), (b, bt) in combinations(same if len(same) <= COMMON else [], 2):
            first, second = functions[a], functions[b]
            if a != b and shared_lines(first.steps[at:], second.steps[bt:]) > LINES_MAX:
                found.add((first.name, second.name))
    return found


def shared_lines(first: list[Step], second: list[Step]) -> int:
    """Lines of the longest run with which both begin."""
    lines = other_lines = 0
    for one, two in zip(first, second, strict=False):
        if one.shape != two.shape or one.depth - first[0].depth != two.depth - second[0].depth:
            break
        lines, other_lines = lines + one.lines, other_lines + two.lines
    return min(lines, other_lines)

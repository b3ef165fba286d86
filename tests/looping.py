"""One test for many small cases: hundreds of tests cost more than what they check.

`@for_each("case", all_cases())` is for cases that cost less than it costs to report a test; where a
case takes a second, `pytest.mark.parametrize` spreads the cases over processes.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def for_each(
    name: str, cases: Iterable[object]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test with each of the cases as its argument `name`.

    The first that fails is named by a note. Each has a `tmp_path`, `monkeypatch` and `caplog` as if
    it were alone.
    """
    listed = list(cases)
    assert listed, "no cases"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        left = [value for key, value in signature.parameters.items() if key != name]

        @functools.wraps(test)
        def every(**fixtures: Any) -> None:
            skipped = 0
            for number, case in enumerate(listed):
                try:
                    _call(test, fixtures, number, {name: case})
                except pytest.skip.Exception:
                    skipped += 1
                except BaseException as error:
                    error.add_note(f"{name}: {case}")
                    raise
            assert skipped < len(listed), "all cases were skipped"

        names = vars(every)
        del names["__wrapped__"]  # pytest would look at its signature
        names["__signature__"] = signature.replace(parameters=left)
        return every

    return decorate


def _call(
    test: Callable[..., None], fixtures: dict[str, Any], number: int, case: dict[str, object]
) -> None:
    own = dict(fixtures)
    if "tmp_path" in own:
        own["tmp_path"] = fixtures["tmp_path"] / f"{number}"
        own["tmp_path"].mkdir()
    if "caplog" in own:
        own["caplog"].clear()
    if "monkeypatch" not in own:
        test(**own, **case)
        return
    with fixtures["monkeypatch"].context() as own["monkeypatch"]:
        test(**own, **case)

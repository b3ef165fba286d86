"""The tool that runs the commands of a page: what it compares, and what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts.transcripts import Shell, Step, render, run_page

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("shown", "output"),
    [
        ([], []),
        (["a", "b"], ["a", "b"]),
        (["at …, 3 of …"], ["at 12:30, 3 of 4"]),
        (["A …   B"], ["A long text B"]),
    ],
)
def test_elided_output(shown: list[str], output: list[str]) -> None:
    assert Step("command", tuple(shown)).matches(output)


@pytest.mark.parametrize(
    ("shown", "output"),
    [
        ([], ["a"]),
        (["a"], []),
        (["a."], ["ab"]),
        (["at …, 3 of …"], ["at 12:30, 4 of 4"]),
    ],
)
def test_other_output_is_a_difference(shown: list[str], output: list[str]) -> None:
    assert not Step("command", tuple(shown)).matches(output)


def test_new_output_keeps_what_is_elided(tmp_path: Path) -> None:
    page = "```python\n# f.py\nprint('one\\nsize: 7 in 12 s')\n```\n\n"
    page += "```console\n$ python f.py\nolder\nsize: 7 in … s\n$ echo a \\\n  b\n```\n"
    results = run_page(page, Shell.of_this_process(tmp_path, tmp_path))
    expected = page.replace("older", "one").replace("  b\n", "  b\na b\n")
    assert render(page, results) == expected

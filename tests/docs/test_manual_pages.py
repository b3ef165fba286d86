"""The manual pages are what the commands say of themselves."""

from __future__ import annotations

import os
import subprocess

import pytest

from scripts.manual import PAGES, pages
from stratalog.cli.main import COMMANDS
from tests.cli.command import COMMAND


def test_pages_are_current() -> None:
    """If this fails, run `python scripts/manual.py`."""
    found = {path.name: path.read_text() for path in PAGES.glob("*.md")}
    assert found == pages()


def test_every_command_has_a_page_with_examples_options_and_exit_status() -> None:
    for name in COMMANDS:
        text = (PAGES / f"{name}.md").read_text()
        assert f"stratalog {name} " in text
        assert "Examples:" in text
        assert "| option | meaning |" in text
        assert "## Exit status" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [("stratalog rep", ["report", "repair"]), ("stratalog repair --f", ["--from", "--forget"])],
)
def test_shells_complete_commands_and_options(words: str, expected: list[str]) -> None:
    environment = {
        **os.environ,
        "_STRATALOG_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    # The name that the script of the shell calls.
    code = "import sys; sys.argv[0] = 'stratalog'; from stratalog.cli.main import main; main()"
    done = subprocess.run(
        [COMMAND[0], "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert sorted(done.stdout.split()) == sorted(expected)

#!/usr/bin/env python3
"""Run the commands that a page shows, and compare or replace the output it shows for them.

    scripts/transcripts.py PAGE...            # write the new output into the pages
    scripts/transcripts.py --check PAGE...    # only compare

A page has transcripts in fenced blocks of language `console`: lines that begin with `$ ` are
commands, the lines below each are its output, standard error included. A fenced `python` block that
begins with a comment `# NAME.py` is a file that later commands may run. All commands of a page run
in order in one directory, in which `tests` is that of the repository. In the output,
`…` stands for any text within a line: times, random ids.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE_NAME = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True)
class Step:
    """A command of a page with the output shown for it, or a file to write."""

    command: str
    shown: tuple[str, ...] = ()
    file_name: str = ""

    def matches(self, output: list[str]) -> bool:
        """Whether the output is what the page shows."""
        pairs = zip(self.shown, output, strict=False)
        return len(self.shown) == len(output) and all(_fits(*pair) for pair in pairs)

    def updated(self, output: list[str]) -> list[str]:
        """The output to show. A shown line with `…` stays as it is if it still fits."""
        return [next((old for old in self.shown if _fits(old, line)), line) for line in output]


def _fits(shown: str, line: str) -> bool:
    parts = re.split("… *", shown)  # spaces after it only keep the columns of a table aligned
    return re.fullmatch(".*".join(re.escape(part) for part in parts), line) is not None


def steps_of(page: str) -> list[Step]:
    """What a page runs, in order."""
    return [step for block in _BLOCK.finditer(page) for step in _steps_of_block(block)]


def _steps_of_block(block: re.Match[str]) -> list[Step]:
    language, body = block.groups()
    if language == "python":
        named = _FILE_NAME.match(body)
        return [Step(body, file_name=named[1])] if named else []
    first, *rest = re.split(r"^\$ ", body, flags=re.MULTILINE)
    if first:
        raise ValueError(f"a console block begins with {first!r}, not with a command")
    return [_command_step(part.rstrip("\n").split("\n")) for part in rest]


def _command_step(lines: list[str]) -> Step:
    length = next(at for at, line in enumerate(lines, 1) if not line.endswith("\\"))
    return Step("\n".join(lines[:length]), tuple(lines[length:]))


class Shell:
    """Runs the steps of a page in one directory, with `stratalog` and `python` of `programs`."""

    def __init__(self, directory: Path, programs: Path, paths: str = "") -> None:
        """`paths` are for PYTHONPATH."""
        self.directory = directory
        (directory / "tests").symlink_to(ROOT / "tests")
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": paths,
            "COLUMNS": "120",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }

    @classmethod
    def of_this_process(cls, directory: Path, programs: Path) -> Self:
        """With the two commands as this process would run them, written into `programs`."""
        for name, arguments in (("stratalog", "-m stratalog "), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
            program.chmod(0o755)
        paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return cls(directory, programs, ":".join(paths))

    def run(self, step: Step) -> list[str]:
        """The lines that the command prints; a file prints none."""
        if step.file_name:
            (self.directory / step.file_name).write_text(step.command)
            return []
        done = subprocess.run(
            ["bash", "-c", step.command],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return [line.rstrip() for line in done.stdout.decode().rstrip().splitlines()]


def run_page(page: str, shell: Shell) -> list[tuple[Step, list[str]]]:
    """Each step of a page, with the output it has."""
    return [(step, shell.run(step)) for step in steps_of(page)]


def render(page: str, results: list[tuple[Step, list[str]]]) -> str:
    """The page with the outputs of its steps."""
    remaining = iter(results)

    def replace(block: re.Match[str]) -> str:
        lines: list[str] = []
        for _ in _steps_of_block(block):
            step, output = next(remaining)
            lines += ["$ " + step.command, *step.updated(output)]
        return block[0] if block[1] == "python" else "\n".join(["```console", *lines, "```"])

    return _BLOCK.sub(replace, page)


def main() -> int:
    """Compare or rewrite pages; 1 if --check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    is_different = False
    for path in options.pages:
        page = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as programs:
            results = run_page(page, Shell.of_this_process(Path(directory), Path(programs)))
        for step, output in results:
            if not step.file_name and not step.matches(output):
                is_different = True
                print(f"{path}: $ {step.command}")
        if not options.check:
            path.write_text(render(page, results), encoding="utf-8")
    return int(options.check and is_different)


if __name__ == "__main__":
    sys.exit(main())

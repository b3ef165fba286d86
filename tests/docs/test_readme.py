"""What the README and the guides show has to run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from scripts.transcripts import ROOT, Shell, Step, run_page, steps_of
from tests.cli.command import compile_kernels, program, start

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PYTHON_PAGES = [
    README,
    *(DOCS / f"{name}.md" for name in ("python", "configuration", "spark-jobs", "backup")),
]
TRANSCRIPT_PAGES = [README, DOCS / "cli.md"]
SLOW_PAGES = [DOCS / "maintenance.md", DOCS / "tuning.md", DOCS / "how-kafkas-log-works.md"]
ALL_PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "examples" / "README.md"])


class WarmShell(Shell):
    """Forks commands of Stratalog from a process that has imported everything. How they start where
    they are installed, test_installed_wheel.py shows."""

    def run(self, step: Step) -> list[str]:
        command, _, rest = step.command.partition(" | ")
        if step.file_name or not command.startswith("stratalog "):
            return super().run(step)
        with TemporaryFile() as printed, TemporaryFile() as shown, Path(os.devnull).open() as given:
            streams = (given.fileno(), (printed if rest else shown).fileno(), shown.fileno())
            arguments = shlex.split(command)[1:]
            start(*arguments, streams=streams, cwd=self.directory, env=self.environment)()
            if rest:
                printed.seek(0)
                subprocess.run(["bash", "-c", rest], stdin=printed, stdout=shown, check=False)
            shown.seek(0)
            return [line.rstrip() for line in shown.read().decode().rstrip().splitlines()]


def python_blocks() -> dict[str, str]:
    found: dict[str, str] = {}
    for page in PYTHON_PAGES:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        found |= {f"{page.stem}-{number}": code for number, code in enumerate(blocks)}
    return found


def starts_spark(code: str) -> bool:
    """tests/spark/test_examples.py runs these."""
    return "pyspark" in code or " as spark" in code


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=name)
        for name, code in python_blocks().items()
        if not starts_spark(code)
    ],
)
def test_python_runs(code: str) -> None:
    done = program(code, cwd=ROOT)
    assert done.status == 0, done.stderr
    assert done.stdout or "print" not in code


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=pytest.mark.slow if page in SLOW_PAGES else ())
        for page in (*TRANSCRIPT_PAGES, *SLOW_PAGES)
    ],
)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    """If the output was changed on purpose: `make docs` writes it into the pages."""
    work, programs = tmp_path / "work", tmp_path / "programs"
    work.mkdir()
    programs.mkdir()
    compile_kernels()
    shell = WarmShell.of_this_process(work, programs)
    results = run_page(page.read_text(encoding="utf-8"), shell)
    assert len(results) >= 3
    wrong = [(step, output) for step, output in results if not step.matches(output)]
    assert "\n".join("\n".join([step.command, *output]) for step, output in wrong) == ""


def test_every_page_with_transcripts_is_tested() -> None:
    with_steps = {page for page in ALL_PAGES if steps_of(page.read_text(encoding="utf-8"))}
    assert with_steps == {*TRANSCRIPT_PAGES, *SLOW_PAGES}


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor:
            assert anchor in _anchors(file), f"{target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_map_names_what_is_there() -> None:
    text = README.read_text(encoding="utf-8")
    tree = text[text.index("src/stratalog/\n") :]
    package = ROOT / "src" / "stratalog"
    rows = re.findall(r"^  ((?:\w+(?:/|\.py) )+) ", tree, re.MULTILINE)
    names = [name for row in rows for name in row.split()]
    for name in names:
        assert (package / name).exists(), name
    there = {f"{path.name}/" for path in package.iterdir() if path.is_dir()} - {"__pycache__/"}
    assert there == {name for name in names if name.endswith("/")}

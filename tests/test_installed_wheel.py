"""The wheel in an empty environment: with the dependencies that it declares, and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PathDistribution, distribution
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from scripts.transcripts import ROOT, Shell, steps_of
from stratalog.cli.main import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import Distribution
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` builds, from a copy of the sources."""
    root = tmp_path_factory.mktemp("dist")
    (root / "copy").mkdir()
    for name in (
        "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "src", "accelerator", "scripts"
    ):  # fmt: skip
        source, target = ROOT / name, root / "copy" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg*"))
        else:
            shutil.copy(source, target)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", root / "out", root / "copy")
    return root / "out"


@pytest.fixture(scope="module")
def programs(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel. Dependencies are links to those of this one,
    but only to what the wheel says that it needs."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    (wheel,) = dist.glob("*.whl")
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel
    )
    (site,) = environment.glob("lib/*/site-packages")
    (installed,) = (PathDistribution(path) for path in site.glob("stratalog-*.dist-info"))
    for dependency in closure(installed):
        for name in {path.parts[0] for path in dependency.files or ()} - {"..", "__pycache__"}:
            (site / name).symlink_to(str(dependency.locate_file(name)))
    return environment / "bin"


def closure(package: Distribution) -> Iterator[Distribution]:
    """What it needs without any extra, and what that needs, each once."""
    seen: set[str] = set()
    waiting = [package]
    while waiting:
        for line in waiting.pop().requires or ():
            needed = Requirement(line)
            if needed.name not in seen and (
                not needed.marker or needed.marker.evaluate({"extra": ""})
            ):
                seen.add(needed.name)
                found = distribution(needed.name)
                assert needed.specifier.contains(found.version)
                yield found
                waiting.append(found)


def run(*command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": ""},
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def test_there_is_no_pyspark(programs: Path) -> None:
    for name in ("pyspark", "pandas", "pytest"):
        assert run(programs / "python", "-c", f"import {name}", check=False).returncode
    where = run(programs / "python", "-c", "import stratalog; print(stratalog.__file__)").stdout
    assert where.startswith(str(programs.parent))


def test_the_files_of_the_report_are_there(programs: Path) -> None:
    for name in ("page.css", "page.js"):
        code = f"from stratalog.report.page import _resource; print(len(_resource('{name}')))"
        assert int(run(programs / "python", "-c", code).stdout) > 1000


HELP = """
import sys
from contextlib import suppress
from stratalog.cli.main import main
_, *names = sys.argv
for name in names:
    sys.argv = ["stratalog", name, "--help"]
    with suppress(SystemExit):
        main()
"""


def test_every_command_has_help(programs: Path) -> None:
    listed = run(programs / "stratalog", "--help").stdout
    done = run(programs / "python", "-c", HELP, *COMMANDS)
    shown = re.findall(r"^Usage: stratalog (\S+) ", done.stdout, re.MULTILINE)
    assert shown == list(COMMANDS)
    assert done.stderr == ""
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", listed, re.MULTILINE)


def test_the_tour_of_the_readme(programs: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path, programs)
    steps = steps_of(README)
    assert len(steps) >= 3
    for step in steps:
        assert step.matches(shell.run(step)), step.command


def test_the_python_of_the_readme(programs: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    without_spark = [code for code in blocks if "pyspark" not in code]
    assert without_spark
    for code in without_spark:
        assert run(programs / "python", "-c", code).stdout


def test_the_first_use_of_kernels_says_so_once(programs: Path) -> None:
    """Nothing is compiled yet in this environment. JSON on standard output stays JSON."""
    golden = ROOT / "tests" / "golden" / "multiseg"
    done = run(programs / "stratalog", "stats", golden, "--json")
    assert [json.loads(line) for line in done.stdout.splitlines()]
    assert re.fullmatch(
        r"stratalog: compiling kernels .* 'stratalog compile-kernels'\n", done.stderr
    )
    assert run(programs / "stratalog", "stats", golden, "--json").stderr == ""


def test_the_wheel_has_the_accelerator(dist: Path) -> None:
    """The jars that are built; `make test` and `make dist` build one first."""
    (wheel,) = dist.glob("*.whl")
    built = {path.name for path in (ROOT / "src" / "stratalog" / "spark").glob("jars/*.jar")}
    with zipfile.ZipFile(wheel) as content:
        packed = {name for name in content.namelist() if name.endswith(".jar")}
    assert packed == {f"stratalog/spark/jars/{name}" for name in built}


def test_the_source_distribution_has_what_the_wheel_is_built_from(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py")}
    sources |= {str(path.relative_to(ROOT)) for path in (ROOT / "accelerator").rglob("*.scala")}
    sources |= {"scripts/build_accelerator.py"}
    assert sources | {"pyproject.toml", "README.md", "LICENSE", "src/stratalog/py.typed"} <= names
    assert not [name for name in names if "__pycache__" in name]

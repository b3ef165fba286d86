"""Read-only means read-only: no byte, name or time below a directory changes by being read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.golden.cases import GOLDEN_DIR, GoldenCase, log_dir_case
from tests.golden.expected import directory_to_read
from tests.log.ask_everything import ask_everything
from tests.log.building import drop_indexes, log_name, plain_segment

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CASES = ["txn", "u-torn", "u-badcrc", "u-noindex", "v1-lz4", "compact-txn", "deleterecords"]


@pytest.fixture
def log_dirs(tmp_path: Path) -> Iterator[list[Path]]:
    """A broker's directory and one of every kind of trouble, with nobody allowed to write."""
    healthy, troubled = tmp_path / "healthy", tmp_path / "troubled"
    shutil.copytree(log_dir_case().root, healthy)
    for name in CASES:
        source = directory_to_read(GoldenCase(name))
        shutil.copytree(source, troubled / source.name)
    drop_indexes(troubled / "txn-0")
    (troubled / "txn-0" / f"{log_name(0)}.swap").write_bytes(plain_segment(0, 1))
    (troubled / "v1-lz4-0" / log_name(0, ".index")).write_bytes(b"junk")
    (troubled / "log-start-offset-checkpoint").write_text("0\n1\ndeleterecords 0 137\n")
    _make_read_only(tmp_path)
    yield [healthy, troubled]
    _make_writable(tmp_path)


def _make_read_only(path: Path) -> None:
    for directory, _, files in os.walk(path, topdown=False):
        for file in files:
            (Path(directory) / file).chmod(0o444)
        Path(directory).chmod(0o555)


def _make_writable(path: Path) -> None:
    for directory, _, _ in os.walk(path):
        Path(directory).chmod(0o755)


def picture(paths: list[Path]) -> dict[Path, tuple[int, int, int, int, bytes]]:
    """Everything that a change would change."""
    found = {}
    for path in (p for root in paths for p in (root, *root.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[path] = (
            status.st_mode,
            status.st_ino,
            status.st_mtime_ns,
            status.st_ctime_ns,
            content,
        )
    return found


@pytest.mark.slow
def test_reading_changes_nothing(log_dirs: list[Path]) -> None:
    before = picture(log_dirs)
    assert ask_everything(log_dirs) > 5000
    assert picture(log_dirs) == before


@pytest.mark.slow
def test_reading_attempts_nothing(log_dirs: list[Path]) -> None:
    """A root user is stopped by no permission, so every call is watched instead."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.log.ask_everything", *map(str, log_dirs)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert int(done.stdout) > 5000


@pytest.mark.slow
def test_watching_sees_an_attempt(tmp_path: Path) -> None:
    """Or the test above would prove nothing."""
    program = (
        "import sys, pathlib\n"
        "from tests.log import ask_everything as asked\n"
        "def ask(paths):\n"
        "    for path in paths:\n"
        "        (path / 'x').write_bytes(b'')\n"
        "        (path / 'x').rename(path / 'y')\n"
        "    return 0\n"
        "asked.ask_everything = ask\n"
        "asked.main(sys.argv[1:])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"open {tmp_path}/x" in done.stderr
    assert f"os.rename {tmp_path}/x" in done.stderr


def test_golden_directories_are_left_alone() -> None:
    """Tests read them where they are."""
    cases = [GOLDEN_DIR / name for name in ("txn", "multiseg")]
    before = picture(cases)
    ask_everything(cases)
    assert picture(cases) == before

"""`stratalog ingest` where no SQL is needed: threads do it, and Spark need not be installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from stratalog import LogDir, open_dirs
from stratalog.errors import ConfigError, StratalogError
from tests.cli.command import COMMAND, Result, inside

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_spark(tmp_path: Path) -> Path:
    """A directory that hides the package."""
    (tmp_path / "hidden" / "pyspark").mkdir(parents=True)
    (tmp_path / "hidden" / "pyspark" / "__init__.py").write_text("raise ImportError('hidden')\n")
    return tmp_path / "hidden"


def ingest(no_spark: Path, *args: str | Path) -> Result:
    path = os.pathsep.join([str(no_spark), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [*COMMAND, "ingest", *map(str, args)],
        capture_output=True,
        env=env,
        timeout=240,
        check=False,
    )
    return Result(done.stdout, done.stderr.decode(), done.returncode)


@pytest.mark.slow
def test_lines_are_written_by_threads(no_spark: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}')
    (tmp_path / "b.jsonl").write_text('{"b": 1}\n')
    files, logs = (tmp_path / "a.jsonl", tmp_path / "b.jsonl"), tmp_path / "logs"
    done = ingest(no_spark, *files, "--to", logs, "-t", "t", "-p", "1", "--json")
    assert (done.status, done.stderr) == (0, "")
    assert done.rows[0]["records"] == 3
    (view,) = open_dirs(logs).partitions_of("t")
    assert [record.value for record in view.read()] == [b'{"a": 1}', b'{"a": 2}', b'{"b": 1}']


@pytest.mark.slow
def test_what_is_wrong_is_one_line(no_spark: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n")
    for name, told in [
        ("nowhere.txt", "nowhere.txt: No such file or directory"),
        ("a.txt", f"{tmp_path / 'logs'}: no such directory"),
    ]:
        done = ingest(no_spark, tmp_path / name, "--to", tmp_path / "logs", "-t", "t")
        assert done.status == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("stratalog: error: ")
        assert told in line


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("00000000000000000042.log", "stratalog read"),
        ("00000000000000000042.timeindex", "stratalog dump"),
        ("00000000000000000042.snapshot", "stratalog dump"),
    ],
)
@pytest.mark.parametrize("format_", [(), ("--format", "text")])
def test_files_of_a_log_are_refused(
    name: str, cure: str, format_: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "t-0").mkdir()
    path = tmp_path / "t-0" / name
    path.write_bytes(bytes(100))
    for given in (path, path.parent):
        with pytest.raises(ConfigError, match=rf"{name} is a file of a Kafka log; '{cure} "):
            inside("ingest", given, "--to", tmp_path / "logs", "-t", "t", "-p", "1", *format_)
    assert not (tmp_path / "logs").exists()


def test_a_foreign_directory_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n")
    (tmp_path / "home" / "letters").mkdir(parents=True)
    with pytest.raises(StratalogError, match="'letters'"):
        inside("ingest", tmp_path / "a.txt", "--to", tmp_path / "home", "-t", "t", "-p", "1")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letters"]


@pytest.mark.parametrize("name", ["42.log", "app.log", "2026-11-16.log"])
def test_other_logs_are_text(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a\nb\n")
    inside("ingest", tmp_path / name, "--to", tmp_path / "logs", "-t", "t", "-p", "1")
    (view,) = open_dirs(tmp_path / "logs").partitions_of("t")
    assert [record.value for record in view.read()] == [b"a", b"b"]


@pytest.mark.slow
def test_waiting_for_another_writer_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n")
    args = ["ingest", tmp_path / "a.txt", "--to", tmp_path / "logs", "-t", "t", "--json"]
    with (
        LogDir.open(tmp_path / "logs") as logs,
        subprocess.Popen(
            [*COMMAND, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        logs.create_topic("t")
        assert process.stderr is not None
        line = process.stderr.readline()
        logs.close()
        output, rest = process.communicate(timeout=60)
    assert line.startswith(f"stratalog: warning: {tmp_path / 'logs'}: waiting up to ")
    assert f" s until process {os.getpid()} (" in line
    assert process.returncode == 0, rest
    assert "waiting" not in rest
    assert json.loads(output)["seconds"] > 1  # the wait is part of it

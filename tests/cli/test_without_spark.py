"""Installed without the extra `spark`: every command runs on threads, and only what is asked to run
on Spark says that it is missing."""

from __future__ import annotations

import gzip
import shutil
from functools import cache
from typing import TYPE_CHECKING

import pytest

from stratalog import open_dirs
from tests.cli.command import Result, compile_kernels
from tests.cli.forking import Forks
from tests.golden.cases import GoldenCase

if TYPE_CHECKING:
    from pathlib import Path

# What the extra installs cannot be imported, as if it were not there.
HIDDEN = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        is_absent = name.split(".")[0] in {"pyspark", "py4j", "pandas"}
        return None if is_absent else super().find_spec(name, path, target)

sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""
CURE = "pip install 'stratalog[spark]'"


@cache
def forks() -> Forks:
    return Forks(prelude=HIDDEN)


def stratalog(*args: str | Path) -> Result:
    compile_kernels()
    done = forks().run(*args)
    return Result(done.stdout, done.stderr.decode(), done.status)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two partitions: of transactions, and of a compacted topic."""
    made = tmp_path / "logs"
    for case in ("txn", "compact-txn"):
        partition = GoldenCase(case).partition_dir
        shutil.copytree(partition, made / partition.name)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "ls {logs}",
        "ls {logs} --all --json",
        "read {partition}",
        "find {partition} --offset 5",
        "explain {partition} --offset 5",
        "dump {partition}",
        "verify {logs}",
        "reindex {logs}",
        "retain {logs} -c retention.ms=-1",
        "compact {logs} -c cleanup.policy=compact",
        "stats {logs} --histograms",
        "stats {logs} --what-if retention.bytes=1",
        "export {logs} --to {tmp}/parquet --headers",
        "export {logs} --to {tmp}/jsonl --format jsonl --read-committed",
        "export {logs} --to {tmp}/new --incremental",
        "topic describe -d {logs}",
        "topic create new -d {logs} -p 2",
    ],
)
def test_every_command_runs_on_threads(command: str, log_dir: Path, tmp_path: Path) -> None:
    partition = next(path for path in sorted(log_dir.iterdir()) if path.is_dir())
    filled = command.format(logs=log_dir, partition=partition, tmp=tmp_path)
    done = stratalog(*filled.split())
    assert done.status == 0, done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["parquet", "jsonl"])
def test_an_export_comes_back(format_name: str, log_dir: Path, tmp_path: Path) -> None:
    exported, back = tmp_path / "exported", tmp_path / "back"
    there = stratalog("export", log_dir, "--to", exported, "--format", format_name)
    assert there.status == 0, there.stderr
    done = stratalog("ingest", exported, "--to", back, "--partitions", "1")
    assert (done.status, done.stderr) == (0, "")
    again = stratalog("stats", back, "--json")
    assert again.rows[-1]["records"] == stratalog("stats", log_dir, "--json").rows[-1]["records"]


@pytest.mark.slow
def test_a_job_runs_a_schedule(log_dir: Path) -> None:
    done = stratalog("maintain", log_dir, "--once")
    assert done.status == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["verify", "reindex", "stats", "export", "compact", "ingest"])
def test_a_master_needs_spark(verb: str, log_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\n")
    more: dict[str, list[str | Path]] = {
        "export": ["--to", tmp_path / "out"],
        "ingest": ["--to", tmp_path / "new", "--topic", "lines", "-p", "1"],
        "compact": ["-c", "cleanup.policy=compact"],
    }
    what = tmp_path / "lines.txt" if verb == "ingest" else log_dir
    done = stratalog(verb, what, *more.get(verb, []), "--master", "local[1]")
    assert done.status == 1
    assert done.stderr.count("\n") == 1
    assert CURE in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.jsonl.gz"])
def test_files_of_every_format_are_ingested(name: str, tmp_path: Path) -> None:
    data = b"a,b\n1,2\n" if "csv" in name else b'{"a":1,"b":2}\n'
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    done = stratalog("ingest", tmp_path / name, "--to", tmp_path / "new", "-t", "rows", "-p", "1")
    assert (done.status, done.stderr) == (0, "")
    (view,) = open_dirs(tmp_path / "new").partitions_of("rows")
    assert [record.value for record in view.read()] == [b'{"a":1,"b":2}']

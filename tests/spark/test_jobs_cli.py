"""The bulk verbs with Spark, each in a process of its own: quiet, and one line when it fails."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cli.command import COMMAND, Result, inside
from tests.golden.cases import GOLDEN_DIR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.slow]
CONF = ("--conf", "spark.driver.memory=512m", "--conf", "spark.sql.shuffle.partitions=1")


def stratalog(*args: str | Path) -> Result:
    done = subprocess.run(
        [*COMMAND, *map(str, args)], capture_output=True, timeout=240, check=False
    )
    return Result(done.stdout, done.stderr.decode(), done.returncode)


def test_ingest_on_spark(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f'{{"id": {n}, "v": "{"x" * n}"}}\n' for n in range(200)))
    logs = tmp_path / "logs"
    args = ("--to", logs, "-t", "events", "-p", "2", "--key", "id", "--codec", "lz4", "--json")
    ingested = stratalog("ingest", file, *args, "--master", "local[1]", *CONF)
    assert ingested.stderr == ""
    assert ingested.rows[0]["records"] == 200
    verified = inside("verify", logs, "--json")
    assert (verified.status, verified.stderr) == (0, "")
    assert verified.rows[-1]["records"] == 200
    assert verified.rows[-1]["errors"] == 0


def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    partition = GOLDEN_DIR / "multiseg" / "multiseg-0"
    result = stratalog("verify", partition, "--master", "nonsense://x")
    assert result.status == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("stratalog: error: Spark does not start on nonsense://x: Master must ")
    (tmp_path / "events.jsonl").write_text("{}\n")
    missing = stratalog(
        "ingest",
        tmp_path / "events.jsonl",
        "--to",
        tmp_path / "nowhere",
        "-t",
        "t",
        "--master",
        "local[1]",
        *CONF,
    )
    assert missing.status == 1
    (line,) = missing.stderr.splitlines()
    assert line.startswith(
        f"stratalog: error: {tmp_path / 'nowhere'}: no such directory; set --partitions to "
    )

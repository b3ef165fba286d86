"""The bulk verbs with Spark, in processes of their own: quiet, and one line when they fail."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cli.command import COMMAND, Result, inside
from tests.golden.cases import GOLDEN_DIR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.slow]
CONF = ("--conf", "spark.driver.memory=512m", "--conf", "spark.sql.shuffle.partitions=1")


ONE_AFTER_THE_OTHER = """
import shlex, sys
from stratalog.cli.main import main
for line in sys.argv[1:]:
    sys.argv = ["stratalog", *shlex.split(line)]
    try:
        main()
    except SystemExit as end:
        print("status", end.code or 0, file=sys.stderr, flush=True)
"""
"""In one JVM, which takes long to start."""


def stratalog(*args: str | Path) -> Result:
    done = subprocess.run(
        [*COMMAND, *map(str, args)], capture_output=True, timeout=240, check=False
    )
    return Result(done.stdout, done.stderr.decode(), done.returncode)


def test_ingest_on_spark(tmp_path: Path) -> None:
    """And then to where nothing is."""
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f'{{"id": {n}, "v": "{"x" * n}"}}\n' for n in range(200)))
    logs, spark = tmp_path / "logs", shlex.join(("--master", "local[1]", *CONF))
    done = subprocess.run(
        [
            *COMMAND[:-2],
            "-c",
            ONE_AFTER_THE_OTHER,
            f"ingest {file} --to {logs} -t events -p 2 --key id --codec lz4 --json {spark}",
            f"ingest {file} --to {tmp_path}/nowhere -t t {spark}",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    (ingested,) = done.stdout.splitlines()
    assert json.loads(ingested)["records"] == 200
    first, line, second = done.stderr.splitlines()
    assert (first, second) == ("status 0", "status 1")
    assert line.startswith(
        f"stratalog: error: {tmp_path / 'nowhere'}: no such directory; set --partitions to "
    )
    verified = inside("verify", logs, "--json")
    assert (verified.status, verified.stderr) == (0, "")
    assert verified.rows[-1]["records"] == 200
    assert verified.rows[-1]["errors"] == 0


def test_a_wrong_setting_is_one_line() -> None:
    partition = GOLDEN_DIR / "multiseg" / "multiseg-0"
    result = stratalog("verify", partition, "--master", "nonsense://x")
    assert result.status == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("stratalog: error: Spark does not start on nonsense://x: Master must ")

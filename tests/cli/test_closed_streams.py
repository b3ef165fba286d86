"""Streams that the shell closed before the start, and a full disk under standard error."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cli.command import COMMAND
from tests.golden.cases import GoldenCase

if TYPE_CHECKING:
    from pathlib import Path

DAMAGED = GoldenCase("u-badcrc").root / "before" / "u-badcrc-0"


def shell(arguments: str, redirection: str) -> subprocess.CompletedProcess[bytes]:
    command = f"{shlex.join(map(str, COMMAND))} {arguments} {redirection}"
    return subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["ls", "read --from 0 -n 1", "dump", "find --offset 1"])
def test_a_closed_standard_output_is_no_error(verb: str) -> None:
    name, _, options = verb.partition(" ")
    done = shell(f"{name} {shlex.quote(str(DAMAGED))} {options}", ">&-")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_errors_never_end_up_among_the_data() -> None:
    done = shell(f"read {shlex.quote(str(DAMAGED))} --from 249", "2>&-")
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.slow
def test_a_warning_that_cannot_be_printed_does_not_stop_the_command(tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    shutil.copytree(GoldenCase("u-torn").root / "before", directory)
    done = shell(f"recover {shlex.quote(str(directory))} --json", "2>/dev/full")
    assert done.returncode == 0
    truncation, _ = map(json.loads, done.stdout.splitlines())
    assert truncation["droppedBytes"] == 92

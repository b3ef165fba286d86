"""Streams that the shell closed before the start."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from tests.cli.command import COMMAND
from tests.golden.cases import GoldenCase

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

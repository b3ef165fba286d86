"""All tests of reads once more, on two executors: processes of their own beside the driver.

`make test` runs those that look at the most, on the executors of test_cluster.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import IS_LONG
from tests.spark.conftest import READS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HERE = Path(__file__).parent
MASTER = "local-cluster[2,1,1024]"
MODULES = [*sorted(READS), "test_accelerator", "test_random_queries"]
CHOICE = "not another_version"
"""What starts a session of its own is left out."""
PATIENCE_S = 3600


@pytest.mark.skipif(not IS_LONG, reason="test_cluster.py runs some of them")
def test_reads_on_two_executors() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-m", "spark", "-k", CHOICE, *(str(HERE / f"{name}.py") for name in MODULES)]
    done = subprocess.run(
        command,
        cwd=HERE.parents[1],
        env={**os.environ, "STRATALOG_TEST_MASTER": MASTER},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 100

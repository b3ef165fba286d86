"""One Spark session for all tests of a run, on this machine.

A JVM takes seconds to start and most of a gigabyte, so tests share it: pytest-xdist runs all that
use it in one process (tests/conftest.py). A test that needs a session of its own (to kill the
driver, or another master) starts a subprocess.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING

import pytest

from stratalog.spark.session import quick_home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, with little memory and no web page."""
    scratch = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers take half a second less to start there; the tests with processes of their own start
    # Spark as it is.
    with warnings.catch_warnings(), quick_home("local[2]", {}):
        warnings.simplefilter("ignore")  # what Spark's own modules warn of is theirs to mend
        from pyspark.sql import SparkSession  # noqa: PLC0415

        session = (
            SparkSession.builder.master("local[2]")
            .appName("stratalog tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()

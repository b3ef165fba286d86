"""One Spark session for all tests of a run, on this machine.

`STRATALOG_TEST_MASTER` names another master: test_executors.py runs the tests of reads once more on
two executors.

A JVM takes seconds to start and most of a gigabyte, so tests share it: pytest-xdist runs all that
use it in one process (tests/conftest.py). A test that needs a session of its own (to kill the
driver, or another master) starts a subprocess.

The session has the accelerator. Tests of reads run twice, in rows and in columns; other tests read
in columns. After each of them no Arrow memory is left, neither in the driver nor in executors.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from scripts.build_accelerator import build
from stratalog.spark.accelerator import SETTING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

READS = {
    "test_read",
    "test_read_golden",
    "test_read_stream",
    "test_recreated_topics",
    "test_remote_source",
    "test_tables",
}
MASTER = os.environ.get("STRATALOG_TEST_MASTER", "local[2]")
_PATIENCE_S = 10.0
_ALLOCATOR = "java_method('org.apache.spark.sql.util.ArrowUtils', 'rootAllocator')"
_EXECUTORS = 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "spark" in metafunc.fixturenames and metafunc.module.__name__.split(".")[-1] in READS:
        metafunc.parametrize("is_columnar", [False, True], ids=["rows", "columns"], indirect=True)


@pytest.fixture(autouse=True)
def is_columnar(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether this test reads in columns, for tests that expect something else then."""
    is_on = getattr(request, "param", True)
    if "spark" not in request.fixturenames:
        yield is_on
        return
    spark: SparkSession = request.getfixturevalue("spark")
    spark.conf.set(SETTING, str(is_on).lower())
    before = _arrow_bytes(spark)
    yield is_on
    spark.conf.unset(SETTING)
    if "write" not in request.module.__name__:  # Spark itself leaks some if a sink fails
        assert arrow_bytes(spark, at_most=before) <= before


def arrow_bytes(spark: SparkSession, at_most: int = 0) -> int:
    """Arrow memory in use in the JVM, when tasks that were cancelled have had time to end."""
    end = time.monotonic() + _PATIENCE_S
    while (used := _arrow_bytes(spark)) > at_most and time.monotonic() < end:
        time.sleep(0.05)
    return used


def _arrow_bytes(spark: SparkSession) -> int:
    jvm: Any = spark._jvm
    used = int(jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator().getAllocatedMemory())
    return used if MASTER.startswith("local[") else used + arrow_bytes_of_executors(spark)


def arrow_bytes_of_executors(spark: SparkSession) -> int:
    """`Allocator(ROOT) reserved/used/most/limit` is what an allocator says of itself."""
    seen = spark.range(0, 2 * _EXECUTORS, numPartitions=2 * _EXECUTORS)
    texts = {row[0] for row in seen.selectExpr(_ALLOCATOR).collect()}
    return sum(int(text.split("/")[1]) for text in texts)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, with little memory and no web page."""
    scratch = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Spark's own modules warn of is theirs to mend
        from pyspark.sql import SparkSession  # noqa: PLC0415

        session = (
            SparkSession.builder.master(MASTER)
            .appName("stratalog tests")
            .config("spark.jars", str(build()))
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
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

"""Sessions of the command line: what their workers import, and when that is left as it is; how they
are reached; and that they read in columns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.build_accelerator import build
from stratalog.spark.session import SOCKETS_DIR_MAX, home_without_archive, unix_sockets
from tests.golden.cases import GoldenCase

PROGRAM = """
import os, sys
from stratalog.spark.session import open_session

def where(_):
    import py4j, pyspark
    return [pyspark.__file__, py4j.__file__]

with open_session("test", master="local[1]", conf={"spark.driver.memory": "512m"}) as spark:
    home = spark._jvm.System.getenv("SPARK_HOME")
    print(home, *spark.sparkContext.parallelize([0], 1).flatMap(where).collect())
    sockets = spark.conf.get("spark.python.unix.domain.socket.dir")
    print(sockets, *os.listdir(sockets))
    assert "SPARK_HOME" not in os.environ
    read = spark.read.format("stratalog").option("subscribe", "multiseg").load(sys.argv[1])
    print(read._jdf.queryExecution().executedPlan().toString())
"""


@pytest.mark.spark
@pytest.mark.slow
def test_workers_import_compiled_modules_and_read_in_columns() -> None:
    build()
    given = {"PYSPARK_PYTHON", "SPARK_HOME"}
    env = {name: text for name, text in os.environ.items() if name not in given}
    command = [sys.executable, "-c", PROGRAM, str(GoldenCase("multiseg").root)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    first, second, plan = done.stdout.split("\n", 2)
    home, *files = first.split()
    assert not [file for file in files if ".zip" in file]
    sockets, *names = second.split()
    assert names, "workers are reached over Unix domain sockets"
    assert not Path(home).exists()
    assert not Path(sockets).exists()
    assert "stratalog (columnar, " in plan


def test_sockets_have_names_that_are_short_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    assert unix_sockets() == {}
    assert not [*deep.iterdir()]
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    directory = Path(unix_sockets()["spark.python.unix.domain.socket.dir"])
    assert len(str(directory)) <= SOCKETS_DIR_MAX
    directory.rmdir()


@pytest.mark.parametrize(
    ("master", "conf", "env"),
    [
        ("spark://host:7077", {}, {}),
        ("local[2]", {"spark.pyspark.python": "python3"}, {}),
        ("local[2]", {}, {"PYSPARK_PYTHON": "/elsewhere/python"}),
        ("local[2]", {}, {"SPARK_HOME": "/opt/spark"}),
    ],
    ids=["cluster", "conf", "interpreter", "home"],
)
def test_what_somebody_chose_stays(
    master: str, conf: dict[str, str], env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("SPARK_HOME")
    for name, text in env.items():
        monkeypatch.setenv(name, text)
    with home_without_archive(master, conf) as home:
        assert home is None
        assert os.environ.get("SPARK_HOME") == env.get("SPARK_HOME")
    with home_without_archive("local", {}) as home:
        assert (home is None) == bool(env)

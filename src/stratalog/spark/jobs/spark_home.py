"""A home of Spark's in which its workers import PySpark from where it is installed.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` before all else that its Python workers import from:
some 1,500 modules without bytecode. Every worker process compiles those it needs, which takes half
a second, and a first query starts four of them, one after the other. In a home that lacks the
archive they find the package of their interpreter, which is the same, compiled.

Only for workers that are on this machine and have this interpreter; the directory holds links.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_VARIABLE: Final = "SPARK_HOME"
_OTHERS: Final = ("spark.pyspark.python", "spark.pyspark.driver.python")


@contextmanager
def quick_home(master: str, conf: Mapping[str, str]) -> Iterator[Path | None]:
    """A JVM that is started in here has such a home, if it can have one."""
    home = _made(master, conf)
    if home is None:
        yield None
        return
    os.environ[_VARIABLE] = str(home)
    try:
        yield home
    finally:
        del os.environ[_VARIABLE]


def _made(master: str, conf: Mapping[str, str]) -> Path | None:
    is_here = master == "local" or master.startswith("local[")
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    if not is_here or _VARIABLE in os.environ or python != sys.executable:
        return None
    if any(name in conf for name in _OTHERS):
        return None
    package = _package()
    if package is None:
        return None
    home = Path(tempfile.mkdtemp(prefix="stratalog-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)  # the JVM lives as long as we do
    try:
        for entry in package.iterdir():
            if entry.name not in {"python", "__pycache__"}:
                (home / entry.name).symlink_to(entry)
    except OSError:
        return None
    return home


def _package() -> Path | None:
    """Where PySpark is, if it was installed as a package that brings Spark along."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None or find_spec("py4j") is None:
        return None
    package = Path(spec.origin).parent
    is_whole = (package / "jars").is_dir() and (package / "bin" / "spark-submit").is_file()
    return package if is_whole else None

"""What a Python worker of Spark's does once, for all tasks it will run.

PySpark runs a full garbage collection behind every task before the worker takes the next one. With
compiled kernels, Arrow and pandas imported there are 160,000 objects to look at, which takes 65 ms:
longer than many a task. Modules are never garbage, so the collector is told to pass them over.
"""

from __future__ import annotations

import functools
import gc
import sys


def is_spark_worker() -> bool:
    """Whether this process was started by Spark to run Python for it."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


@functools.cache
def spare_imports_collection() -> None:
    """Call when everything that tasks need is imported. Does nothing outside of a worker."""
    if is_spark_worker():
        gc.freeze()

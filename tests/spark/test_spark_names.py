"""What `stratalog.spark` exports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from stratalog import spark as package

SOURCE = Path(package.__file__)


def test_all_is_sorted_documented_and_importable() -> None:
    assert package.__all__ == sorted(set(package.__all__))
    for name in package.__all__:
        value = getattr(package, name)
        assert value.__doc__, name
        assert value.__module__.startswith("stratalog."), name
    assert set(package.__all__) <= set(dir(package))
    assert not hasattr(package, "SparkWorkers")  # exists, but is not promised


def test_type_checkers_see_the_same_names() -> None:
    imported = {
        alias.name
        for node in ast.walk(ast.parse(SOURCE.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stratalog")
        for alias in node.names
    }
    assert imported == set(package.__all__)


def test_jobs_plans_errors_and_sources_are_there() -> None:
    named = {
        "ingest", "export", "verify", "reindex", "compact", "stats", "plan_read", "DataLossError",
        "StratalogDataSource", "FileSource",
    }  # fmt: skip
    assert named <= set(package.__all__)


def test_planning_needs_no_pyspark() -> None:
    program = (
        "import sys\n"
        "from stratalog.spark import DataLossError, ReadOptions, SplitPlan, plan_read\n"
        "print([name for name in ('pyspark', 'numba', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

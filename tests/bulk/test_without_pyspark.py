"""Every bulk job runs where PySpark cannot be imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.golden.cases import GoldenCase

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys
sys.modules["pyspark"] = sys.modules["py4j"] = None  # importing them raises ImportError
from pathlib import Path
from stratalog.bulk.compact import compact
from stratalog.bulk.export import FileSpec, export
from stratalog.bulk.ingest import ingest
from stratalog.bulk.input_files import FileSource
from stratalog.bulk.options import ReadOptions, WriteOptions
from stratalog.bulk.reindex import reindex
from stratalog.bulk.stats import stats
from stratalog.bulk.target import NewTopics, Target
from stratalog.bulk.verify import verify
from stratalog.spark.options import parse_read_options, plan_read

root = Path(sys.argv[1])
logs, back, out = root / "logs", root / "back", root / "out"
partitions = sorted(path for path in logs.iterdir() if path.is_dir())
records = stats(partitions).records
assert records > 0
assert plan_read({"path": str(logs), "subscribePattern": ".*"}).splits
for format_ in ("parquet", "jsonl"):
    shape = FileSpec(format_)
    assert export(ReadOptions((logs,)), out / format_, shape).records == records
    target = Target((back / format_,), NewTopics(1))
    assert ingest(FileSource([out / format_]), WriteOptions(target)).records == records
assert verify([back / "parquet"]).findings == ()
assert reindex(partitions).segments
done = compact(logs, assumed_config={"cleanup.policy": "compact"}, is_forced=True)
assert done.passes and not done.failed
assert not [name for name in sys.modules if name.startswith(("pyspark.", "py4j."))]
"""


@pytest.mark.slow
def test_every_job(tmp_path: Path) -> None:
    for case in ("multiseg", "compact"):
        partition = GoldenCase(case).partition_dir
        shutil.copytree(partition, tmp_path / "logs" / partition.name)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr

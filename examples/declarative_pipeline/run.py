"""A project of Spark Declarative Pipelines that reads from and writes to a log directory.

    python examples/declarative_pipeline/run.py [DIRECTORY]

The project is spark-pipeline.yml and transformations/. This script creates a topic for it to
read, and runs it with Spark's own command, `spark-pipelines run`. It needs the packages of Spark
Connect: pip install 'pyspark[pipelines]'.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pyspark

from stratalog import LogDir, open_dirs

PROJECT = Path(__file__).resolve().parent
ORDERS = 1_000
SPARK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def produce(data: Path) -> None:
    """Write the topic as a broker would: order n costs n cents."""
    with LogDir.open(data) as logs:
        logs.create_topic("orders", 2)
        with logs.producer() as producer:
            for number in range(ORDERS):
                order = {"country": ("NL", "PT")[number % 2], "cents": number}
                value = json.dumps(order).encode()
                producer.append("orders", value, key=b"order-%d" % number)


def run_pipeline(directory: Path) -> None:
    """Copy the project into the directory, and run it there."""
    shutil.copytree(PROJECT, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("run.py"))
    spec = directory / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("DIRECTORY", str(directory)))
    spark_home = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
    settings = [word for pair in SPARK.items() for word in ("--conf", "=".join(pair))]
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(spark_home)}
    command = [
        str(spark_home / "bin" / "spark-pipelines"),
        "run",
        "--remote",
        "local[2]",
        *settings,
    ]
    command += ["--spec", str(spec)]
    subprocess.run(command, cwd=directory, env=os.environ | environment, check=True)


def show_results(directory: Path) -> None:
    """Print what the pipeline has created: a view in Spark's warehouse, and a topic."""
    view = pq.read_table(directory / "spark-warehouse" / "revenue_by_country").to_pylist()
    for row in sorted(view, key=lambda row: str(row["country"])):
        print(f"{row['country']}: {row['cents']} cents")
    log = open_dirs(directory / "kafka").partition("large-orders", 0)
    keys = {record.key for record in log.read("earliest")}
    print(f"large orders: {log.log_end_offset}, each of them once: {len(keys) == 100}")


def main() -> None:
    """Run in the directory given, or in a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else temporary).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        produce(directory / "kafka")
        run_pipeline(directory)
        show_results(directory)


if __name__ == "__main__":
    main()

"""JVMs of tests that start quickly: a tenth of what `make test` computes is Spark loading classes.

    python -m tests.spark.quick_jvm   # prepares an archive of Spark's classes, once per environment

The archive (class data sharing) holds classes as the JVM has them in memory after a run of Spark,
loaded and verified. It fits one class path only, so all tests use one Spark home, of links to the
installed PySpark. The JVM takes it only if directories on the class path are empty: so is
`SPARK_CONF_DIR`, and settings are passed by variables. Without an archive tests run as well, but
longer.

The home lacks PySpark's archive of modules, for the reason that `stratalog.spark.session` has.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HOME = Path(sys.prefix) / "stratalog-tests" / "spark"
_CONF = HOME / "conf"
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""They live for seconds, which the optimizing compiler never earns back."""
_PROGRAM = """
import sys, tempfile
from pyspark.sql import SparkSession
from stratalog.spark.accelerator import accelerator_jar
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.jars", accelerator_jar())
    .getOrCreate()
)
events = spark.read.format("stratalog").option("subscribe", "multiseg").load(sys.argv[1])
events.where("offset > 10").groupBy("partition").count().collect()
with tempfile.TemporaryDirectory() as scratch:
    events.write.parquet(f"{scratch}/parquet")
    spark.read.parquet(f"{scratch}/parquet").createOrReplaceTempView("events")
    spark.sql("select max(offset), cast(timestamp as date) from events group by 2").collect()
    rows = events.selectExpr("key", "value", "'copy' as topic").write.format("stratalog")
    rows.option("topicPartitions", 2).mode("append").save(f"{scratch}/logs")
    stream = spark.readStream.format("stratalog").option("subscribe", "copy")
    counts = stream.load(f"{scratch}/logs").groupBy("partition").count()
    query = counts.writeStream.format("memory").queryName("counts")
    query = query.outputMode("complete").option("checkpointLocation", f"{scratch}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()
jvm.wait()  # it writes the archive when it exits
"""


def variables() -> dict[str, str]:
    """What the environment of tests has, so that every JVM they start is quick."""
    _prepare_home()
    options = _SHORT_LIVED
    if (archive := _archive()).exists():
        # A class path that the archive does not fit is no reason to say so on standard output.
        options += f" -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable"
    return _variables(options)


def _variables(options: str) -> dict[str, str]:
    return {
        "SPARK_HOME": str(HOME),
        "SPARK_CONF_DIR": str(_CONF),
        "SPARK_SUBMIT_OPTS": options,
        "SPARK_DAEMON_JAVA_OPTS": options,
        "SPARK_LAUNCHER_OPTS": _SHORT_LIVED,
        "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false "
        f"--conf spark.executor.defaultJavaOptions='{options}' pyspark-shell",
    }


def _archive() -> Path:
    """Named after all that it depends on."""
    home = os.environ.get("JAVA_HOME", "")
    facts = f"{version('pyspark')} {Path(home, 'bin/java') if home else 'java'} {_PROGRAM}"
    return HOME.parent / f"spark-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.jsa"


def _prepare_home() -> None:
    """The processes of a test run may do this at the same time."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    _CONF.mkdir(parents=True, exist_ok=True)
    for entry in Path(spec.origin).parent.iterdir():
        link = HOME / entry.name
        if entry.name in {"bin", "jars", "sbin"}:
            with suppress(FileExistsError):
                link.symlink_to(entry)


def prepare_archive(events: Path) -> None:
    """Run Spark once, and keep its classes. `events` is a log directory with topic multiseg."""
    archive = _archive()
    if archive.exists():
        return
    written = archive.with_suffix(".new")
    written.unlink(missing_ok=True)
    options = f"{_SHORT_LIVED} -Xlog:disable -XX:ArchiveClassesAtExit={written}"
    env = (
        os.environ
        | _variables(_SHORT_LIVED)
        | {
            "SPARK_SUBMIT_OPTS": options,
            "PYSPARK_PYTHON": sys.executable,
        }
    )
    sys.stderr.write("preparing an archive of Spark's classes, once per environment\n")
    command = [sys.executable, "-c", _PROGRAM, str(events)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode == 0 and written.exists():
        written.rename(archive)
    else:
        sys.stderr.write(f"{done.stderr[-2000:]}\nno archive: tests on Spark will take longer\n")


if __name__ == "__main__":
    _prepare_home()
    prepare_archive(Path(__file__).parents[1] / "golden" / "multiseg")

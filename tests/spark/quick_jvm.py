"""Fast-starting JVMs for tests: loading Spark's classes is a tenth of what `make test` computes.

    python -m tests.spark.quick_jvm   # prepares an archive of Spark's classes, once per environment

The archive (class data sharing) holds classes as the JVM has them in memory after a run of Spark,
loaded and verified. It fits one class path only, so all tests use one Spark home, of links to the
installed PySpark. The JVM takes it only if directories on the class path are empty: so is
`SPARK_CONF_DIR`, and settings are passed by variables. Without an archive tests run as well, but
longer.

The home lacks PySpark's archive of modules, for the reason that `stratalog.spark.session` gives.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

HOME = Path(sys.prefix) / "stratalog-tests" / "spark"
_CONF = HOME / "conf"
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""They live for seconds, too short for the optimizing compiler to pay off."""
_PATIENCE_S = 300
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
    """What the environment of tests has, so that every JVM they start is quick. Nothing without
    PySpark."""
    if find_spec("pyspark") is None:
        return {}
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
        "--conf spark.sql.shuffle.partitions=2 "
        f"--conf spark.executor.defaultJavaOptions='{options}' pyspark-shell",
    }


def _archive() -> Path:
    """Named after all that it depends on: Java, the jars and the program."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=None if home is None else f"{home}/bin") or ""
    jars = _package() / "jars"
    facts = (Path(java).resolve(), _mtime_ns(Path(java)), _mtime_ns(jars), str(HOME), _PROGRAM)
    return HOME.parent / f"spark-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.jsa"


def _mtime_ns(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _package() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _prepare_home() -> None:
    """The processes of a test run may do this at the same time."""
    _CONF.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        link, entry = HOME / name, _package() / name
        if not link.exists():  # or it leads to an environment that was replaced
            link.unlink(missing_ok=True)
            with suppress(FileExistsError):
                link.symlink_to(entry)


def prepare_archive(events: Path) -> None:
    """Run Spark once, and keep its classes. `events` is a log directory with topic multiseg."""
    _prepare_home()
    archive = _archive()
    if archive.exists():
        return
    sys.stderr.write("preparing an archive of Spark's classes, once per environment\n")
    written = archive.with_suffix(f".{os.getpid()}")
    env = os.environ | _variables(_SHORT_LIVED) | {"PYSPARK_PYTHON": sys.executable}
    env["SPARK_SUBMIT_OPTS"] += f" -Xlog:disable -XX:ArchiveClassesAtExit={written}"
    command = [sys.executable, "-c", _PROGRAM, str(events)]
    try:
        subprocess.run(command, env=env, capture_output=True, check=True, timeout=_PATIENCE_S)
    except subprocess.SubprocessError as error:
        sys.stderr.write(f"no archive, so tests on Spark take longer: {error}\n")
    else:
        for old in HOME.parent.glob("*.jsa"):
            old.unlink()
        written.rename(archive)


if __name__ == "__main__":
    prepare_archive(Path(__file__).parents[1] / "golden" / "multiseg")

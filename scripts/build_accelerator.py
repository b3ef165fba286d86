"""Build the accelerator's jar from accelerator/scala, for the Spark that PySpark contains.

PySpark's jars hold the Scala compiler, too, so nothing else is needed but Java. The jar goes into
the package, where the wheel takes it from. It has the hash of what it was built from: if that is
unchanged, nothing is done.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from stratalog.spark.accelerator import PROPERTIES, jar_path, series_of

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "accelerator" / "scala"
RESOURCES = ROOT / "accelerator" / "resources"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of all files in the jar, so that the same sources give the same bytes."""


def build() -> Path:
    """The jar, built if sources or Spark have changed."""
    spark = version("pyspark")
    jar = jar_path(series_of(spark))
    about = f"spark={series_of(spark)}\nbuiltWith={spark}\nsources={_hash()}\n"
    if not _is_built(jar, about):
        with tempfile.TemporaryDirectory(prefix="stratalog-scala-") as scratch:
            _compile(Path(scratch))
            _pack(Path(scratch), about, jar)
    return jar


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("*.scala"))


def _resources() -> list[Path]:
    return sorted(path for path in RESOURCES.rglob("*") if path.is_file())


def _hash() -> str:
    sha = hashlib.sha256()
    for path in (*_sources(), *_resources(), Path(__file__)):
        sha.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return sha.hexdigest()


def _is_built(jar: Path, about: str) -> bool:
    if not jar.exists():
        return False
    with zipfile.ZipFile(jar) as held:
        return held.read(PROPERTIES).decode() == about


def _compile(target: Path) -> None:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        sys.exit("build_accelerator: PySpark is not installed; make install")
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    jars = Path(spec.origin).parent / "jars" / "*"
    # One thread and the first compiler: a short program is not worth more.
    command = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss8m", "-cp", str(jars)]
    command += ["scala.tools.nsc.Main", "-usejavacp", "-deprecation", "-feature", "-unchecked"]
    command += ["-Xlint", "-Werror", "-d", str(target), *map(str, _sources())]
    if subprocess.run(command, check=False).returncode:
        sys.exit("build_accelerator: the Scala compiler failed; its messages are above")


def _pack(classes: Path, about: str, jar: Path) -> None:
    """Replaces the jar as a whole: a session may have the old one open."""
    files = {path.relative_to(classes): path.read_bytes() for path in classes.rglob("*.class")}
    files |= {path.relative_to(RESOURCES): path.read_bytes() for path in _resources()}
    files[Path(PROPERTIES)] = about.encode()
    jar.parent.mkdir(exist_ok=True)
    part = jar.with_suffix(f".{os.getpid()}.part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", EPOCH), "Manifest-Version: 1.0\n")
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name.as_posix(), EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, content)
    part.replace(jar)


if __name__ == "__main__":
    print(build())

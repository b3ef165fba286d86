"""The storage settings of the Spark session: `spark.hadoop.fs.s3a.*` and `spark.hadoop.fs.azure.*`.

Spark plans a query of a Python source in a process without access to the session, and passes the
options of the query only. What the session was started with is still to be seen from there: in the
arguments of the driver's JVM, which is an ancestor of that process, and in the properties files
that they name. Settings of a cluster's core-site.xml are read from `HADOOP_CONF_DIR`. In the
driver's own process the session is asked.

The values are passed on to the tasks with the paths of the query. They are never printed.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

_PREFIXES: Final = ("spark.hadoop.fs.s3a.", "spark.hadoop.fs.azure.")
_PROCESSES: Final = Path("/proc")
_ANCESTORS_MAX: Final = 8


def session_storage_options() -> dict[str, str]:
    """The settings of stores that the session has."""
    spark = sys.modules.get("pyspark")
    context = getattr(spark, "SparkContext", None)
    active = getattr(context, "_active_spark_context", None)
    if active is not None:
        return _storage_only(dict(active.getConf().getAll()))
    return dict(_from_driver())


@cache
def _from_driver() -> tuple[tuple[str, str], ...]:
    """From the process tree; it does not change."""
    found = _from_hadoop_files()
    for arguments in _commands_of_ancestors():
        if any(each.startswith("org.apache.spark.") for each in arguments):
            found |= _from_arguments(arguments)
            break
    return tuple(sorted(found.items()))


def _from_arguments(arguments: list[str]) -> dict[str, str]:
    """`--properties-file FILE`, replaced by `--conf NAME=VALUE`."""
    files: dict[str, str] = {}
    given: dict[str, str] = {}
    home = os.environ.get("SPARK_CONF_DIR") or os.path.join(  # noqa: PTH118 - may be unset
        os.environ.get("SPARK_HOME", ""), "conf"
    )
    default = Path(home) / "spark-defaults.conf"
    if default.is_file():
        files |= _from_properties(default)
    for flag, value in pairwise(arguments):
        if flag == "--properties-file":
            files |= _from_properties(Path(value))
        elif flag in {"--conf", "-c"}:
            name, _, text = value.partition("=")
            given[name] = text
    return _storage_only({**files, **given})


def _from_properties(path: Path) -> dict[str, str]:
    from stratalog.format.java_text import decode_properties  # noqa: PLC0415

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    lines = []
    for line in text.splitlines():
        name, *value = line.split(maxsplit=1) or [""]
        lines.append(f"{name}={value[0]}" if value and "=" not in name else line)
    return dict(decode_properties("\n".join(lines).encode()))


def _from_hadoop_files() -> dict[str, str]:
    directory = os.environ.get("HADOOP_CONF_DIR", "")
    path = Path(directory) / "core-site.xml"
    if not directory or not path.is_file():
        return {}
    from xml.etree import ElementTree as ET  # noqa: PLC0415 - rarely needed

    try:
        root = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        return {}
    found = {
        f"spark.hadoop.{each.findtext('name', '').strip()}": each.findtext("value", "").strip()
        for each in root.iter("property")
    }
    return _storage_only(found)


def _storage_only(settings: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name.startswith(_PREFIXES)}


def _commands_of_ancestors() -> list[list[str]]:
    commands = []
    process_id = os.getppid()
    for _ in range(_ANCESTORS_MAX):
        if process_id <= 1:
            break
        try:
            raw = (_PROCESSES / str(process_id) / "cmdline").read_bytes()
            status = (_PROCESSES / str(process_id) / "stat").read_text()
        except OSError:
            break
        commands.append([part.decode("utf-8", "replace") for part in raw.split(b"\0")])
        process_id = int(status.rpartition(")")[2].split()[1])
    return commands

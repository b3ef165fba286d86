"""The jar that lets Spark read logs in columns instead of rows.

It is built for one series of Spark, such as 4.3. With another one it is left out, with a warning,
and Spark reads rows: the results are the same.
"""

from __future__ import annotations

import logging
import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_log: Final = logging.getLogger(__name__)

SETTING: Final = "spark.stratalog.accelerator"
"""`false` switches it off for the tables that are loaded from then on."""
PROPERTIES: Final = "stratalog-accelerator.properties"
"""A file in the jar that says for which Spark, and from which sources, it was built."""
_SPARK_JARS: Final = "spark.jars"
_DEFAULT_JARS: Final = re.compile(r"^[ \t]*spark\.jars(?:[ \t]*[=:][ \t]*|[ \t]+)(.*\S)", re.M)
_JARS: Final = Path(__file__).parent / "jars"


def accelerator_jar() -> str:
    """The path of the jar for the setting `spark.jars`, if there is one for this Spark.

    Otherwise the result is empty, which Spark ignores, and a warning says why.
    """
    found = find_jar()
    if found is None:
        _log.warning(
            "there is no accelerator for Spark %s in this installation: records are read row by "
            "row",
            _spark_version() or "(not installed)",
        )
    return "" if found is None else str(found)


def with_accelerator(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of a session, with the jar beside other jars, if there is one for this Spark."""
    found = find_jar()
    if found is None:
        return dict(conf)
    others = conf[_SPARK_JARS] if _SPARK_JARS in conf else _default_jars()
    return {**conf, _SPARK_JARS: f"{others},{found}" if others else str(found)}


def _default_jars() -> str:
    """What `spark-defaults.conf` says: a setting of a session would replace it."""
    home = os.environ.get("SPARK_HOME")
    place = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    if place is None or not (file := Path(place) / "spark-defaults.conf").is_file():
        return ""
    found = _DEFAULT_JARS.findall(file.read_text(encoding="utf-8"))
    return str(found[-1]) if found else ""


def find_jar() -> Path | None:
    """The jar for the PySpark that is installed."""
    spark = _spark_version()
    path = None if spark is None else jar_path(series_of(spark))
    return path if path is not None and path.exists() else None


def jar_path(series: str) -> Path:
    """Where the jar for a series of Spark is kept."""
    return _JARS / f"stratalog-spark-{series}.jar"


def series_of(spark_version: str) -> str:
    """`4.3` of `4.3.0`."""
    return ".".join(spark_version.split(".")[:2])


def _spark_version() -> str | None:
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return None

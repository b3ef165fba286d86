"""The jar that lets Spark read logs in columns instead of rows.

It is built for one series of Spark, such as 4.3. With another one it is left out, with a warning,
and Spark reads rows: the results are the same.
"""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_log: Final = logging.getLogger(__name__)

SETTING: Final = "spark.stratalog.accelerator"
"""`false` switches it off for the tables that are loaded from then on."""
PROPERTIES: Final = "stratalog-accelerator.properties"
"""In the jar: what it was built for, and from."""
_SPARK_JARS: Final = "spark.jars"
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
    others = [conf[_SPARK_JARS]] if conf.get(_SPARK_JARS) else []
    return {**conf, _SPARK_JARS: ",".join([*others, str(found)])}


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

"""Options of reads and writes as a user of Spark gives them, for jobs without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from stratalog.bulk.options import ReadOptions
from stratalog.spark.options import parse_read_options, parse_write_options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stratalog.bulk.options import WriteOptions


def reading(log_dir: Path, options: Mapping[str, str] | None = None) -> ReadOptions:
    """All topics of a directory, unless the options name some."""
    return parse_read_options(options or {}, ReadOptions((log_dir.absolute(),)))


def writing(
    log_dir: Path, *, topic: str | None = None, options: Mapping[str, str] | None = None
) -> WriteOptions:
    given = {"topic": topic} if topic else {}
    return parse_write_options({**given, **(options or {}), "path": json.dumps([str(log_dir)])})

"""Backups, restores and exports to stores on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.bulk.backup import list_backups
from stratalog.spark.jobs import backup, export, restore
from tests.bulk.backups import fill, tree
from tests.bulk.options import reading
from tests.bulk.test_export_to_stores import offsets
from tests.golden.cases import GOLDEN_DIR

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.stores import CountingServer


def test_there_and_back(spark: SparkSession, tmp_path: Path, counting: CountingServer) -> None:
    logs, where = tmp_path / "logs", counting.path("backups")
    fill(logs, 60)
    first = backup(spark, [logs], where, verifies=True)
    assert first.sent_objects == first.verified_objects == len(list_backups(where)[0].objects())
    assert backup(spark, [logs], where).sent_objects == 0
    restore(spark, where, [tmp_path / "out"])
    assert tree(tmp_path / "out") == tree(logs)


def test_export_to_a_store(spark: SparkSession, counting: CountingServer) -> None:
    where = counting.path("export")
    assert export(spark, reading(GOLDEN_DIR / "multiseg"), where).records == 1500
    assert offsets(where) == [(0, offset) for offset in range(1500)]

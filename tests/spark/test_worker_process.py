"""Workers of Spark's keep their modules out of the collections that follow every task."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from stratalog.spark.failures import is_spark_worker
from stratalog.spark.workers import SparkWorkers, freeze_imported_modules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _frozen(_: int) -> tuple[bool, int]:
    return is_spark_worker(), gc.get_freeze_count()


def test_a_users_own_process_keeps_its_collector_as_it_is() -> None:
    before = gc.get_freeze_count()
    freeze_imported_modules()
    assert not is_spark_worker()
    assert gc.get_freeze_count() == before


@pytest.mark.spark
def test_a_worker_passes_over_what_is_imported(spark: SparkSession) -> None:
    workers = SparkWorkers(spark)
    workers.run(_frozen, [[1], [2]], title="first")
    answers = workers.run(_frozen, [[1], [2], [3], [4]], title="second")
    assert all(is_worker for is_worker, _ in answers)
    assert max(frozen for _, frozen in answers) > 10_000

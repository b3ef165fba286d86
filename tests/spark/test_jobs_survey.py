"""The survey of headers as a job of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.bulk.survey import survey
from stratalog.bulk.workers import ThreadWorkers
from stratalog.config import LogConfig
from stratalog.spark import jobs as spark_jobs
from tests.golden.cases import GOLDEN_DIR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_800_000_000_000


def test_the_same_on_spark(spark: SparkSession) -> None:
    paths = [GOLDEN_DIR / name / f"{name}-0" for name in ("multiseg", "compact", "txn")]
    small = {"segment.bytes": "16384", "cleanup.policy": "compact"}
    configs = {"multiseg": [LogConfig(), LogConfig.parse(small)], "compact": [LogConfig()]}
    result = spark_jobs.survey(spark, paths, configs=configs, now_ms=NOW_MS)
    expected = survey(paths, configs=configs, now_ms=NOW_MS, workers=ThreadWorkers(1))
    assert result.partitions == expected.partitions
    assert [len(each.simulated) for each in result.partitions] == [1, 2, 0]

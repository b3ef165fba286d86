"""The figures of a report, collected on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.bulk.report_data import collect
from stratalog.bulk.workers import ThreadWorkers
from stratalog.config import BrokerConfig
from stratalog.partitions.settings import SettingsFinder
from stratalog.spark.workers import SparkWorkers
from tests.golden.cases import GOLDEN_DIR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_795_000_000_000


def test_the_same_on_spark(spark: SparkSession) -> None:
    paths = [GOLDEN_DIR / name / f"{name}-0" for name in ("multiseg", "compact", "txn")]
    finder = SettingsFinder(BrokerConfig())
    found, expected = (
        collect(paths, finder, now_ms=NOW_MS, workers=workers)
        for workers in (SparkWorkers(spark), ThreadWorkers(2))
    )
    assert found.topics == expected.topics
    assert found.verified is not None
    assert expected.verified is not None
    assert sorted(found.verified.findings) == sorted(expected.verified.findings)

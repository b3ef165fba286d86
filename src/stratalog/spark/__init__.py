"""Kafka's log directories as a Spark data source, and bulk jobs on Spark.

`spark.read.format("stratalog")` finds the source by itself. The names below are for programs; each
is imported when it is first used, so that `plan_read` and the types need no PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratalog.bulk.compact import CompactResult
    from stratalog.bulk.export import ExportResult, FileSpec
    from stratalog.bulk.input_files import FileSource, IngestResult, RecordColumns
    from stratalog.bulk.options import ReadOptions, Subscription, WriteOptions
    from stratalog.bulk.reindex import ReindexResult
    from stratalog.bulk.splits import PlanSummary, SplitPlan
    from stratalog.bulk.stats import StatsResult
    from stratalog.bulk.survey import SurveyResult
    from stratalog.bulk.target import NewTopics, Target
    from stratalog.bulk.verify import VerifyResult
    from stratalog.errors import DataLossError
    from stratalog.spark.accelerator import accelerator_jar
    from stratalog.spark.jobs import (
        compact,
        export,
        findings_frame,
        ingest,
        ingest_files,
        reindex,
        stats,
        stats_frame,
        survey,
        verify,
    )
    from stratalog.spark.options import plan_read
    from stratalog.spark.session import open_session
    from stratalog.spark.source import StratalogDataSource

__all__ = [
    "CompactResult",
    "DataLossError",
    "ExportResult",
    "FileSource",
    "FileSpec",
    "IngestResult",
    "NewTopics",
    "PlanSummary",
    "ReadOptions",
    "RecordColumns",
    "ReindexResult",
    "SplitPlan",
    "StatsResult",
    "StratalogDataSource",
    "Subscription",
    "SurveyResult",
    "Target",
    "VerifyResult",
    "WriteOptions",
    "accelerator_jar",
    "compact",
    "export",
    "findings_frame",
    "ingest",
    "ingest_files",
    "open_session",
    "plan_read",
    "reindex",
    "stats",
    "stats_frame",
    "survey",
    "verify",
]

_HOMES = {
    "CompactResult": "stratalog.bulk.compact",
    "DataLossError": "stratalog.errors",
    "ExportResult": "stratalog.bulk.export",
    "FileSource": "stratalog.bulk.input_files",
    "FileSpec": "stratalog.bulk.export",
    "IngestResult": "stratalog.bulk.input_files",
    "NewTopics": "stratalog.bulk.target",
    "PlanSummary": "stratalog.bulk.splits",
    "ReadOptions": "stratalog.bulk.options",
    "RecordColumns": "stratalog.bulk.input_files",
    "ReindexResult": "stratalog.bulk.reindex",
    "SplitPlan": "stratalog.bulk.splits",
    "StatsResult": "stratalog.bulk.stats",
    "StratalogDataSource": "stratalog.spark.source",
    "Subscription": "stratalog.bulk.options",
    "SurveyResult": "stratalog.bulk.survey",
    "Target": "stratalog.bulk.target",
    "VerifyResult": "stratalog.bulk.verify",
    "WriteOptions": "stratalog.bulk.options",
    "accelerator_jar": "stratalog.spark.accelerator",
    "open_session": "stratalog.spark.session",
    "plan_read": "stratalog.spark.options",
}
"""Where the names are that are not jobs."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "stratalog.spark.jobs")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

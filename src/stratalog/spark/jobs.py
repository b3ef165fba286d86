"""Bulk jobs on a SparkSession: the functions of `stratalog.bulk`, on the executors of Spark.

Each takes the session, and then the arguments of the function in `bulk`. Records stay in the Python
workers: a task reads files, works on columns and returns a small value. `ingest` alone takes a
DataFrame, which the sink writes.
"""

from __future__ import annotations

import functools
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

from pyspark.sql import Observation
from pyspark.sql import functions as F

from stratalog.bulk import backup as backup_job
from stratalog.bulk import compact as compact_job
from stratalog.bulk import export as export_job
from stratalog.bulk import ingest as ingest_job
from stratalog.bulk import reindex as reindex_job
from stratalog.bulk import restore as restore_job
from stratalog.bulk import stats as stats_job
from stratalog.bulk import survey as survey_job
from stratalog.bulk import verify as verify_job
from stratalog.bulk.input_files import IngestResult
from stratalog.bulk.target import find_topics, roll_back_topics
from stratalog.bulk.workers import Clock, interrupts_ignored
from stratalog.errors import StratalogError
from stratalog.partitions.view import LogDirsView
from stratalog.spark.options import parse_write_options
from stratalog.spark.workers import SparkWorkers, job_description, job_error, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from stratalog.bulk.stats import StatsResult
    from stratalog.bulk.verify import VerifyResult
    from stratalog.bulk.workers import OnProgress

P = ParamSpec("P")
R = TypeVar("R")


def _on_spark(job: Callable[P, R]) -> Callable[Concatenate[SparkSession, P], R]:
    def run(spark: SparkSession, /, *args: P.args, **kwargs: P.kwargs) -> R:
        kwargs.setdefault("workers", SparkWorkers(spark))
        return job(*args, **kwargs)

    return functools.update_wrapper(run, job)


verify = _on_spark(verify_job.verify)
reindex = _on_spark(reindex_job.reindex)
export = _on_spark(export_job.export)
stats = _on_spark(stats_job.stats)
survey = _on_spark(survey_job.survey)
compact = _on_spark(compact_job.compact)
backup = _on_spark(backup_job.backup)
restore = _on_spark(restore_job.restore)
ingest_files = _on_spark(ingest_job.ingest)

_FINDINGS: Final = (
    "severity string, code string, path string, position long, what string, advice string"
)
_STATS: Final = (
    "topic string, partition int, records long, null_keys long, tombstones long, keys long, "
    "live_keys long, dead_records long, size_bytes long, payload_bytes long, "
    "first_timestamp long, last_timestamp long, compaction_saves_bytes long"
)


def findings_frame(spark: SparkSession, result: VerifyResult) -> DataFrame:
    """A row for each finding: severity, code, path, position, what, advice."""
    rows = [(*map(str, finding[:3]), *finding[3:]) for finding in result.findings]
    return spark.createDataFrame(rows, _FINDINGS)


def stats_frame(spark: SparkSession, result: StatsResult) -> DataFrame:
    """A row for each partition."""
    rows = [
        (
            each.topic,
            each.partition,
            *each.facts[:3],
            *each.keys[:3],
            each.size_bytes,
            each.facts.payload_bytes,
            each.facts.first_timestamp,
            each.facts.last_timestamp,
            each.compaction_saves_bytes,
        )
        for each in result.partitions
    ]
    return spark.createDataFrame(rows, _STATS)


def ingest(
    frame: DataFrame,
    log_dir: Path | str,
    *,
    topic: str | None = None,
    options: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> IngestResult:
    """Write a DataFrame with the sink's columns (`value`, and `key`, `topic`, ... if wanted).

    `options` are the sink's: `topicPartitions` to create what is missing, `kafka.compression.type`,
    and so on. Errors of Spark are raised as a StratalogError with one line.
    """
    clock = Clock()
    path = Path(log_dir).absolute()
    size_before = _size_of(path)
    settings = {**({"topic": topic} if topic else {}), **(options or {})}
    parsed = parse_write_options({**settings, "path": json.dumps([str(path)])})
    created = find_topics(parsed, [parsed.topic] if parsed.topic else [])
    rows = Observation("stratalog ingest")
    observed = frame.observe(rows, F.count(F.lit(1)).alias("records"))
    writer = observed.write.format("stratalog").mode("append").options(**settings)
    context = frame.sparkSession.sparkContext
    with job_description(context, f"stratalog ingest to {path}"), watched(context, on_progress):
        try:
            writer.save(str(path))
        except BaseException as error:
            with interrupts_ignored(), suppress(StratalogError):
                roll_back_topics(parsed.target, created)
            raise job_error(error) from None
    records = int(rows.get["records"])
    grown = _size_of(path) - size_before
    return IngestResult("ingest", records, grown, clock.seconds, 0)


def _size_of(path: Path) -> int:
    """Size of all logs in the directory; 0 if it does not exist yet."""
    if not path.is_dir() or not any(path.iterdir()):
        return 0
    logs = LogDirsView([path])
    return sum(
        file.stat().st_size
        for listed in logs.dirs[0].partitions
        for file in listed.path.glob("*.log")
    )

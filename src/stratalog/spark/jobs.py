"""Bulk jobs on a SparkSession: the functions of `stratalog.bulk`, on the executors of Spark.

Each takes the session and then the arguments of the function of the same name. Records stay in the
Python workers: a task reads files, works on columns and returns a small value. `ingest` alone takes
a DataFrame, which the sink writes.
"""

from __future__ import annotations

import functools
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

from pyspark.sql import Observation
from pyspark.sql import functions as F

from stratalog.bulk import compact as compact_job
from stratalog.bulk import export as export_job
from stratalog.bulk import reindex as reindex_job
from stratalog.bulk import stats as stats_job
from stratalog.bulk import verify as verify_job
from stratalog.bulk.ingest import plan_ingest, run_ingest
from stratalog.bulk.input_files import (
    FileSource,
    Format,
    IngestResult,
    Missing,
    RecordColumns,
    check_names,
    format_of,
)
from stratalog.bulk.target import find_topics, roll_back_topics
from stratalog.bulk.workers import Clock, interrupts_held
from stratalog.errors import ConfigError, NeedsSparkError, StratalogError
from stratalog.partitions.view import LogDirsView
from stratalog.spark.options import parse_write_options
from stratalog.spark.workers import SparkWorkers, described, job_error, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

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
compact = _on_spark(compact_job.compact)

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


def ingest_files(
    spark: SparkSession,
    source: FileSource,
    log_dir: Path | str,
    *,
    topic: str | None = None,
    options: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> IngestResult:
    """Write all rows of the files, once: by workers alone where they can read them, else as
    `ingest(read_files(...))` does.
    """
    try:
        _check_local(spark)
        plan = plan_ingest(source)
    except NeedsSparkError:
        return ingest_source(
            spark, source, log_dir, topic=topic, options=options, on_progress=on_progress
        )
    parsed = parse_write_options(_settings(log_dir, topic, options))
    return run_ingest(plan, parsed, SparkWorkers(spark, on_progress))


def _settings(
    log_dir: Path | str, topic: str | None, options: Mapping[str, str] | None
) -> dict[str, str]:
    given = {**({"topic": topic} if topic else {}), **(options or {})}
    return {**given, "path": json.dumps([str(Path(log_dir).absolute())])}


def _check_local(spark: SparkSession) -> None:
    """A path without a scheme is a local file, unless Spark is told otherwise."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    default = str(hadoop.get("fs.defaultFS", "file:///"))
    if not default.startswith("file:"):
        raise NeedsSparkError(f"paths are those of {default}")


_RECORD_COLUMNS: Final = ("topic", "headers")
_SHOWN_CHARACTERS: Final = 80


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
    and so on. Raises a StratalogError with the one line that says what is wrong.
    """

    clock = Clock()
    path = Path(log_dir).absolute()
    size_before = _size_of(path)
    settings = {**({"topic": topic} if topic else {}), **(options or {})}
    parsed = parse_write_options(_settings(log_dir, topic, options))
    made = find_topics(parsed, [parsed.topic] if parsed.topic else [])
    rows = Observation("stratalog ingest")
    observed = frame.observe(rows, F.count(F.lit(1)).alias("records"))
    writer = observed.write.format("stratalog").mode("append").options(**settings)
    context = frame.sparkSession.sparkContext
    with described(context, f"stratalog ingest to {path}"), watched(context, on_progress):
        try:
            writer.save(str(path))
        except BaseException as error:
            with interrupts_held(), suppress(StratalogError):
                roll_back_topics(parsed.target, made)
            raise job_error(error) from None
    records = int(rows.get["records"])
    grown = _size_of(path) - size_before
    return IngestResult("ingest", records, grown, clock.seconds, 0)


def ingest_source(
    spark: SparkSession,
    source: FileSource,
    log_dir: Path | str,
    *,
    topic: str | None = None,
    options: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> IngestResult:
    """`ingest` of files, and what their rows lack."""
    counted = Observation("stratalog missing") if source.allows_missing else None
    frame = _read(spark, source, counted)
    result = ingest(frame, log_dir, topic=topic, options=options, on_progress=on_progress)
    if counted is None or not source.mapping.given:
        return result
    found = {name: int(count) for name, count in counted.get.items()}
    return replace(result, missing=Missing(**found))


def read_files(
    spark: SparkSession,
    paths: Sequence[Path | str],
    *,
    format: Format | None = None,
    mapping: RecordColumns | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Files as rows that `ingest` takes. Without a format it is told from their names.

    `options` are those of Spark's reader for that format.
    """
    source = FileSource(paths, format, mapping or RecordColumns(), options or {})
    return _read(spark, source, None)


def _read(spark: SparkSession, source: FileSource, counted: Observation | None) -> DataFrame:
    """What rows lack is counted by `counted`; without it, it is an error."""
    names = [str(path) for path in source.paths]
    chosen = source.format or format_of(names)
    if chosen == "records":
        raise ConfigError(
            "format", "records are read from local files, without options of Spark's reader"
        )
    reader = spark.read.options(**_reader_options(source, chosen))
    try:
        if chosen in {"json", "text"}:
            frame = reader.text(names)
        else:
            frame = reader.csv(names, header=True) if chosen == "csv" else reader.parquet(*names)
    except Exception as error:
        raise job_error(error) from None
    check_names(name.removeprefix("file://") for name in frame.inputFiles())
    if chosen in {"json", "text"}:
        rows = _of_lines(frame, source.mapping, is_json=chosen == "json")
    else:
        rows = _of_columns(frame, source, has_nulls=chosen == "parquet")
    return rows.taken(counted)


def _reader_options(source: FileSource, chosen: Format) -> dict[str, str]:
    """Quotes inside quotes are doubled, as RFC 4180 has it and everybody writes; Spark's own
    default is a backslash before them."""
    given = dict(source.options)
    if chosen != "csv" or any(name.lower() == "escape" for name in given):
        return given
    return {**given, "escape": '"'}


class _Rows:
    """Columns of rows that are to be, each from an expression on the rows there are."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._columns: dict[str, Column] = {}
        self._missing: dict[str, tuple[Column, str]] = {}

    def add(self, name: str, column: Column, source: str | None = None) -> None:
        """With a `source`, that column or field was asked for, and null says that it is missing."""
        self._columns[name] = column
        if source is not None:
            has = "is not a time, in ms or as a date" if name == "timestamp" else "is missing"
            self._missing[name] = (column.isNull(), f"{source!r} {has}")

    def taken(self, counted: Observation | None) -> DataFrame:
        frame, columns = self._frame, dict(self._columns)
        if counted is None:
            for name, (is_missing, reason) in self._missing.items():
                columns[name] = F.when(~is_missing, columns[name]).otherwise(
                    F.raise_error(self._told(reason))
                )
        elif self._missing:
            counts = {"key": "keys", "value": "values", "timestamp": "times"}
            sums = [
                F.count_if(is_missing).alias(counts[name])
                for name, (is_missing, _) in self._missing.items()
            ]
            frame = frame.observe(counted, *sums)
        return frame.select(*(column.alias(name) for name, column in columns.items()))

    def _told(self, reason: str) -> Column:
        """File and row: Spark does not know the number of a line."""
        names = self._frame.columns
        is_text = names == ["value"]
        row = F.col("value") if is_text else F.to_json(F.struct(*map(_quoted, names)))
        shown = F.substring(row, 1, _SHOWN_CHARACTERS)
        file = F.regexp_replace(F.input_file_name(), "^file:/+", "/")
        return F.concat(file, F.lit(f": {reason} in: "), shown)


def _of_lines(lines: DataFrame, mapping: RecordColumns, *, is_json: bool) -> _Rows:
    """A record a line. Fields are taken out of the JSON, the line stays as it is."""

    if not is_json and mapping.given:
        raise ConfigError("key", "lines of text have no fields; give the format json")

    def field(name: str) -> Column:
        return F.get_json_object("value", f"$.{name}")

    rows = _Rows(lines)
    if mapping.value:
        rows.add("value", field(mapping.value), mapping.value)
    else:
        rows.add("value", F.col("value"))
    if mapping.key:
        rows.add("key", field(mapping.key), mapping.key)
    if mapping.timestamp:
        rows.add("timestamp", _time(field(mapping.timestamp)), mapping.timestamp)
    return rows


def _of_columns(frame: DataFrame, source: FileSource, *, has_nulls: bool) -> _Rows:
    """`has_nulls` if a null is one that somebody wrote: only a time must be there then."""

    mapping = source.mapping
    for name in mapping.given:
        if name not in frame.columns:
            known = ", ".join(frame.columns)
            raise ConfigError("column", f"there is no column {name!r}; there are {known}")
    own = set(frame.columns) if "value" in frame.columns else set()
    rows = _Rows(frame)
    if mapping.value or own:
        named = None if has_nulls else mapping.value
        rows.add("value", _bytes(frame, mapping.value or "value"), named)
    else:
        rows.add("value", F.to_json(F.struct(*map(_quoted, frame.columns))))
    if mapping.key or "key" in own:
        named = None if has_nulls else mapping.key
        rows.add("key", _bytes(frame, mapping.key or "key"), named)
    if mapping.timestamp or "timestamp" in own:
        column = _time_column(frame, mapping.timestamp or "timestamp")
        rows.add("timestamp", column, mapping.timestamp)
    taken = _RECORD_COLUMNS if not source.keeps_partitions else (*_RECORD_COLUMNS, "partition")
    for name in taken:
        if name in own:
            rows.add(name, F.col(name))
    return rows


def _quoted(name: str) -> Column:
    return F.col(f"`{name}`")


def _bytes(frame: DataFrame, name: str) -> Column:
    """As the sink takes it: text and bytes as they are, anything else as text."""

    column = _quoted(name)
    kind = frame.schema[name].dataType.typeName()
    return column if kind in {"string", "binary"} else column.cast("string")


def _time_column(frame: DataFrame, name: str) -> Column:

    column = _quoted(name)
    kind = frame.schema[name].dataType.typeName()
    return column if kind in {"timestamp", "timestamp_ntz"} else _time(column.cast("string"))


def _time(text: Column) -> Column:
    """Milliseconds since 1970, or a date and time; null for what is neither."""

    millis = text.try_cast("bigint")
    return F.when(millis.isNotNull(), F.timestamp_millis(millis)).otherwise(
        text.try_cast("timestamp")
    )


def _size_of(path: Path) -> int:
    """Of all logs in the directory; 0 where there is none yet."""
    if not path.is_dir() or not any(path.iterdir()):
        return 0
    logs = LogDirsView([path])
    return sum(
        file.stat().st_size
        for listed in logs.dirs[0].partitions
        for file in listed.path.glob("*.log")
    )

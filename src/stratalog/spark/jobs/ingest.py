"""Any DataFrame into topics, through the sink: every row once. And files as such a DataFrame, where
Spark has to read them; `ingest_files` tells where workers can.

A row needs a value. Lines of text and of JSON are values as they are, byte for byte; a row of CSV
or Parquet without a `value` column becomes a JSON object of its columns. Key and timestamp may be
taken from a column, or from a field of the JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from stratalog.errors import ConfigError
from stratalog.log_dir import LogDirsView
from stratalog.spark.jobs.ingest_inputs import Format, IngestResult, RecordColumns, format_of
from stratalog.spark.jobs.running import Clock, JobError, described, told, watched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from stratalog.spark.jobs.running import OnProgress

__all__ = ["IngestResult", "RecordColumns", "ingest", "read_files"]

_RECORD_COLUMNS: Final = ("topic", "partition", "headers")


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
    and so on. Raises JobError with the one line that says what is wrong.
    """

    clock = Clock()
    path = Path(log_dir).absolute()
    size_before = _size_of(path)
    settings = {**({"topic": topic} if topic else {}), **(options or {})}
    rows = Observation("stratalog ingest")
    observed = frame.observe(rows, F.count(F.lit(1)).alias("records"))
    writer = observed.write.format("stratalog").mode("append").options(**settings)
    context = frame.sparkSession.sparkContext
    with described(context, f"stratalog ingest to {path}"), watched(context, on_progress):
        try:
            writer.save(str(path))
        except Exception as error:
            raise JobError(told(error)) from None
    records = int(rows.get["records"])
    grown = _size_of(path) - size_before
    return IngestResult("ingest", records, grown, clock.seconds, 0)


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
    names = [str(path) for path in paths]
    chosen = format or format_of(names)
    wanted = mapping or RecordColumns()
    reader = spark.read.options(**(options or {}))
    try:
        if chosen in {"json", "text"}:
            frame = reader.text(names)
        else:
            frame = reader.csv(names, header=True) if chosen == "csv" else reader.parquet(*names)
    except Exception as error:
        raise JobError(told(error)) from None
    if chosen in {"json", "text"}:
        return _of_lines(frame, wanted, is_json=chosen == "json")
    return _of_columns(frame, wanted)


def _of_lines(lines: DataFrame, mapping: RecordColumns, *, is_json: bool) -> DataFrame:
    """A record a line. Fields are taken out of the JSON, the line stays as it is."""

    if not is_json and (mapping.key or mapping.timestamp or mapping.value):
        raise ConfigError("key", "lines of text have no fields; give the format json")

    def field(name: str) -> Column:
        return F.get_json_object("value", f"$.{name}")

    value = field(mapping.value) if mapping.value else F.col("value")
    columns = [value.alias("value")]
    if mapping.key:
        columns.append(field(mapping.key).alias("key"))
    if mapping.timestamp:
        columns.append(_time(field(mapping.timestamp)).alias("timestamp"))
    return lines.select(*columns)


def _of_columns(frame: DataFrame, mapping: RecordColumns) -> DataFrame:

    for name in (mapping.key, mapping.value, mapping.timestamp):
        if name is not None and name not in frame.columns:
            known = ", ".join(frame.columns)
            raise ConfigError("column", f"there is no column {name!r}; there are {known}")
    has_value = "value" in frame.columns
    if mapping.value or has_value:
        value = _bytes(frame, mapping.value or "value")
    else:
        value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in frame.columns)))
    columns = [value.alias("value")]
    key = mapping.key or ("key" if has_value and "key" in frame.columns else None)
    if key is not None:
        columns.append(_bytes(frame, key).alias("key"))
    time = mapping.timestamp or (
        "timestamp" if has_value and "timestamp" in frame.columns else None
    )
    if time is not None:
        columns.append(_time_column(frame, time).alias("timestamp"))
    if has_value:
        columns += [F.col(name) for name in _RECORD_COLUMNS if name in frame.columns]
    return frame.select(*columns)


def _bytes(frame: DataFrame, name: str) -> Column:
    """As the sink takes it: text and bytes as they are, anything else as text."""

    column = F.col(f"`{name}`")
    kind = frame.schema[name].dataType.typeName()
    return column if kind in {"string", "binary"} else column.cast("string")


def _time_column(frame: DataFrame, name: str) -> Column:

    column = F.col(f"`{name}`")
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

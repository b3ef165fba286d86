"""Ingest on Spark: files read by the executors, and DataFrames written by the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stratalog import open_dirs
from stratalog.bulk.ingest import ingest as ingest_on_threads
from stratalog.bulk.input_files import FileSource, MissingFields, RecordColumns
from stratalog.errors import JobError, StratalogError
from stratalog.spark.jobs import ingest, ingest_files
from tests.bulk.options import writing

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from stratalog.format.record import Record


def everything(log_dir: Path, topic: str) -> list[Record]:
    views = open_dirs(log_dir).partitions_of(topic)
    return [record for view in views for record in view.read()]


def test_files_are_read_by_executors_as_by_threads(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("id,n,at\na,1,5\n,2.50,6\n")
    (tmp_path / "in" / "2.csv").write_text("id,n,at\nb,,soon\n")
    source = FileSource([tmp_path / "in"], mapping=RecordColumns("id", None, "at"))
    options = {"topicPartitions": "2"}
    with pytest.raises(JobError, match=r"2\.csv: row 2: column 'at' is not a timestamp") as caught:
        ingest_files(spark, source, writing(tmp_path / "none", topic="t", options=options))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "none").glob("t-*"))
    source = FileSource(source.paths, mapping=source.mapping, allows_missing=True)
    for name in ("spark", "threads"):
        target = writing(tmp_path / name, topic="t", options=options)
        done = (
            ingest_files(spark, source, target)
            if name == "spark"
            else ingest_on_threads(source, target)
        )
        assert (done.records, done.missing) == (3, MissingFields(times=1))
    found = [
        [(record.key, record.value) for record in everything(tmp_path / name, "t")]
        for name in ("spark", "threads")
    ]
    assert sorted(map(str, found[0])) == sorted(map(str, found[1]))
    assert (b"a", b'{"id":"a","n":1,"at":"5"}') in found[0]


def test_any_frame(spark: SparkSession, tmp_path: Path) -> None:
    rows: list[Any] = [("a", "k", "1"), ("b", "k", "2"), ("a", None, "3")]
    frame = spark.createDataFrame(rows, "topic string, key string, value string")
    result = ingest(frame, tmp_path / "logs", options={"topicPartitions": "2"})
    assert result.records == 3
    assert {record.value for record in everything(tmp_path / "logs", "a")} == {b"1", b"3"}
    assert {record.value for record in everything(tmp_path / "logs", "b")} == {b"2"}


def test_what_is_wrong_with_a_frame_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("x",)], "value string")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"topic": "t"}, "no such directory"),
        ({"options": {"topicPartitions": "1"}}, "topic option required"),
        ({"topic": "t", "options": {"topicPartition": "1"}}, "did you mean 'topicPartitions'"),
    ]
    for given, message in cases:
        with pytest.raises(StratalogError, match=message) as caught:
            ingest(frame, tmp_path / "logs", **given)
        assert "\n" not in str(caught.value)
        assert "Error" not in str(caught.value).split(":", maxsplit=1)[0]

"""Ingest: rows of files into topics, and back out as they were."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from stratalog import open_dirs
from stratalog.bulk.input_files import FileSource, Missing, RecordColumns
from stratalog.errors import ConfigError, JobError, StratalogError
from stratalog.maintenance.verify.directory import verify_directory
from stratalog.maintenance.verify.findings import Severity
from stratalog.producing.partitioner import partition_for_key
from stratalog.spark.jobs import export, ingest, ingest_source, read_files
from tests.bulk.options import reading
from tests.golden.cases import GoldenCase

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from stratalog.format.record import Record

LINES = [
    '{"user": "ann",  "n": 1, "at": 1700000000123}',
    '{"user": "bob", "n": 2, "at": "2023-11-14T22:13:21Z"}',
    '{"user": "ann", "n": 3, "at": "never"}',
    '{"n": 4}',
]


def records_of(log_dir: Path, topic: str) -> dict[int, list[Record]]:
    dirs = open_dirs(log_dir)
    return {view.topic_partition.partition: list(view.read()) for view in dirs.partitions_of(topic)}


def everything(log_dir: Path, topic: str) -> list[Record]:
    return [record for part in records_of(log_dir, topic).values() for record in part]


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_lines_of_json_stay_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "events.jsonl", LINES)
    mapping = RecordColumns(key="user", timestamp="at")
    source = FileSource([file], mapping=mapping, allows_missing=True)
    options = {"topicPartitions": "3"}
    result = ingest_source(spark, source, tmp_path / "logs", topic="events", options=options)
    assert result.missing == Missing(keys=1, times=2)
    found = records_of(tmp_path / "logs", "events")
    by_value = {record.value: record for part in found.values() for record in part}
    assert set(by_value) == {line.encode() for line in LINES}
    first, second, _, last = (by_value[line.encode()] for line in LINES)
    assert (first.key, first.timestamp) == (b"ann", 1_700_000_000_123)
    assert (second.key, second.timestamp) == (b"bob", 1_700_000_001_000)
    assert last.key is None
    assert first in found[partition_for_key(b"ann", 3)]
    assert result.records == 4
    assert result.size_bytes == sum(
        log.stat().st_size for log in (tmp_path / "logs").rglob("*.log")
    )
    assert verify_directory(tmp_path / "logs").at_least(Severity.WARNING) == ()


def test_rows_of_csv_become_objects(spark: SparkSession, tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "orders.csv", ["id,amount,when", "7,1.50,2023-11-14 22:13:20", "8,,"]
    )
    source = FileSource([file], mapping=RecordColumns(key="id", timestamp="when"))
    given: dict[str, Any] = {"topic": "orders", "options": {"topicPartitions": "1"}}
    with pytest.raises(JobError) as told:
        ingest_source(spark, source, tmp_path / "logs", **given)
    assert str(told.value) == f"{file}: 'when' is not a time, in ms or as a date in: " + (
        '{"id":"8"}'
    )
    assert not list((tmp_path / "logs").glob("orders-*"))
    source = replace(source, allows_missing=True)
    assert ingest_source(spark, source, tmp_path / "logs", **given).missing == Missing(times=1)
    seven, eight = everything(tmp_path / "logs", "orders")
    assert json.loads(seven.value or b"") == {
        "id": "7",
        "amount": "1.50",
        "when": "2023-11-14 22:13:20",
    }
    assert (seven.key, seven.timestamp) == (b"7", 1_700_000_000_000)
    assert json.loads(eight.value or b"") == {"id": "8"}


def test_quotes_inside_quotes(spark: SparkSession, tmp_path: Path) -> None:
    rows = [["1", 'say "hi", he said'], ["2", 'ends with "'], ["3", "C:\\dir\\"], ["4", '"']]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *rows])
    frame = read_files(spark, [tmp_path / "a.csv"])
    found = [json.loads(row.value) for row in frame.collect()]
    assert [[row["id"], row["text"]] for row in found] == rows
    other = write_lines(tmp_path / "b.csv", ["text", '"say \\"hi\\", he said"'])
    frame = read_files(spark, [other], options={"ESCAPE": "\\"})
    assert [json.loads(row.value) for row in frame.collect()] == [{"text": rows[0][1]}]


def test_a_line_without_the_field(spark: SparkSession, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "events.jsonl", LINES)
    frame = read_files(spark, [file], mapping=RecordColumns(key="user"))
    with pytest.raises(JobError) as told:
        ingest(frame, tmp_path / "logs", topic="events", options={"topicPartitions": "1"})
    assert str(told.value) == f"{file}: 'user' is missing in: " + '{"n": 4}'


def test_text_and_a_column_as_the_value(spark: SparkSession, tmp_path: Path) -> None:
    options = {"topicPartitions": "1", "kafka.compression.type": "zstd"}
    file = write_lines(tmp_path / "notes.txt", ["ä line", "", "another"])
    ingest(read_files(spark, [file]), tmp_path / "logs", topic="notes", options=options)
    values = [record.value for record in everything(tmp_path / "logs", "notes")]
    assert values == ["ä line".encode(), b"", b"another"]
    file = write_lines(tmp_path / "e.jsonl", LINES)
    frame = read_files(spark, [file], mapping=RecordColumns(value="n"))
    ingest(frame, tmp_path / "logs", topic="numbers", options=options)
    assert [record.value for record in everything(tmp_path / "logs", "numbers")] == [
        b"1",
        b"2",
        b"3",
        b"4",
    ]


def test_what_export_wrote_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    case = GoldenCase("multiseg")
    export(spark, reading(case.root, {"includeHeaders": "true"}), tmp_path / "out")
    frame = read_files(spark, [tmp_path / "out"])
    ingest(frame, tmp_path / "logs", options={"topicPartitions": "1"})
    found = {record.key: record for record in everything(tmp_path / "logs", "multiseg")}
    source = everything(case.root, "multiseg")
    assert len(found) == len(source) == 1500
    for record in source:
        twin = found[record.key]
        assert (twin.value, twin.timestamp, twin.headers) == (
            record.value,
            record.timestamp,
            record.headers,
        )


def test_any_frame(spark: SparkSession, tmp_path: Path) -> None:
    rows: list[Any] = [("a", "k", "1"), ("b", "k", "2"), ("a", None, "3")]
    frame = spark.createDataFrame(rows, "topic string, key string, value string")
    result = ingest(frame, tmp_path / "logs", options={"topicPartitions": "2"})
    assert result.records == 3
    assert {record.value for record in everything(tmp_path / "logs", "a")} == {b"1", b"3"}
    assert {record.value for record in everything(tmp_path / "logs", "b")} == {b"2"}


def test_what_is_wrong_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "data.bin", ["x"])
    with pytest.raises(ConfigError, match="cannot be told from the names"):
        read_files(spark, [file])
    with pytest.raises(ConfigError, match="lines of text have no fields"):
        read_files(spark, [file], format="text", mapping=RecordColumns(key="k"))
    csv = write_lines(tmp_path / "a.csv", ["id", "1"])
    with pytest.raises(ConfigError, match="no column 'key'; there are id"):
        read_files(spark, [csv], mapping=RecordColumns(key="key"))
    with pytest.raises(JobError, match=r"nowhere\.csv") as missing:
        read_files(spark, [tmp_path / "nowhere.csv"])
    assert "\n" not in str(missing.value)
    frame = read_files(spark, [file], format="text")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"topic": "t"}, "no such directory"),
        ({"options": {"topicPartitions": "1"}}, "topic option required"),
        ({"topic": "t", "options": {"topicPartition": "1"}}, "did you mean 'topicPartitions'"),
    ]
    for given, message in cases:
        with pytest.raises(StratalogError, match=message) as told:
            ingest(frame, tmp_path / "logs", **given)
        assert "\n" not in str(told.value)
        assert "Error" not in str(told.value).split(":", maxsplit=1)[0]

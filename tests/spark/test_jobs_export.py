"""Export: every record once, in files that others read, on threads and on Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog import LogDir
from stratalog.bulk.export import FileSpec, plan_export, run_export
from stratalog.bulk.workers import ThreadWorkers
from stratalog.errors import ConfigError, InvalidArgumentError, JobError
from stratalog.format.record import BatchFields, Header, Record, encode_batch
from stratalog.log.reader import IsolationLevel
from stratalog.spark.jobs import export
from tests.bulk.options import reading
from tests.golden.cases import GoldenCase
from tests.golden.expected import consumed
from tests.log.building import log_name, write_partition

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from stratalog.bulk.export import ExportResult

DAY_MS = 86_400_000


def exported(
    log_dir: Path, target: Path, spec: FileSpec | None = None, **options: str
) -> ExportResult:
    plan = plan_export(reading(log_dir, options), spec)
    return run_export(plan, target, ThreadWorkers(2))


def rows_of(target: Path) -> list[dict[str, Any]]:
    """All rows of all Parquet files, by offset."""
    rows: list[dict[str, Any]] = []
    for file in target.rglob("*.parquet"):
        rows += pq.ParquetFile(file).read().to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def log_of(tmp_path: Path, *records: Record) -> Path:
    """A log directory with one topic `t`, a batch for each record."""
    raw = b"".join(encode_batch([record], BatchFields()) for record in records)
    write_partition(tmp_path / "logs" / "t-0", {0: raw})
    return tmp_path / "logs"


@pytest.mark.parametrize("isolation", IsolationLevel, ids=lambda level: level.value)
@pytest.mark.parametrize("name", ["txn", "multiseg", "java-lz4", "compact", "rdk-zstd"])
def test_a_golden_case_is_exported_as_its_consumer_read_it(
    name: str, isolation: IsolationLevel, tmp_path: Path
) -> None:
    case = GoldenCase(name)
    options = {"kafka.isolation.level": isolation.value, "splitBytes": "4k"}
    result = exported(case.root, tmp_path / "out", None, **options)
    expected = consumed(case, isolation)
    found = rows_of(tmp_path / "out")
    assert [(row["offset"], row["key"], row["value"]) for row in found] == [
        (record.offset, record.key, record.value) for record in expected
    ]
    millis = [round(row["timestamp"].timestamp() * 1000) for row in found]
    assert millis == [record.timestamp for record in expected]
    assert result.records == len(expected)
    assert sum(file.records for file in result.files) == len(expected)
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert not list((tmp_path / "out").glob("_stratalog-*"))


def test_days_have_their_own_directories_whatever_the_order(tmp_path: Path) -> None:
    times = [5 * DAY_MS, 0, 5 * DAY_MS + 1, DAY_MS - 1, -1]
    records = (Record(n, time, b"k", b"%d" % n) for n, time in enumerate(times))
    result = exported(log_of(tmp_path, *records), tmp_path / "out")
    assert {(file.topic, file.date): file.records for file in result.files} == {
        ("t", "1970-01-01"): 2,
        ("t", "1970-01-06"): 2,
        ("t", "__HIVE_DEFAULT_PARTITION__"): 1,
    }
    for file in result.files:
        assert file.path.startswith(f"topic=t/date={file.date}/part-00000")
        assert (tmp_path / "out" / file.path).stat().st_size == file.size_bytes


def test_many_days_do_not_need_as_many_open_files(tmp_path: Path) -> None:
    records = (Record(n, (n % 40) * DAY_MS, b"k", b"%d" % n) for n in range(200))
    result = exported(log_of(tmp_path, *records), tmp_path / "out", splitBytes="1g")
    assert len({file.date for file in result.files}) == 40
    assert [row["offset"] for row in rows_of(tmp_path / "out")] == list(range(200))


def test_no_worker_is_idle_in_the_last_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three splits on two workers would take as long as four."""
    log_dir = log_of(tmp_path, *(Record(n, 0, None, bytes(1000)) for n in range(300)))
    assert len(plan_export(reading(log_dir, {"splitBytes": "110k"})).splits) == 3
    assert (
        exported(log_dir, tmp_path / "small", splitBytes="110k").tasks == 3
    )  # not worth more files
    monkeypatch.setattr("stratalog.bulk.export.FILE_BYTES_MIN", 1000)
    result = exported(log_dir, tmp_path / "out", splitBytes="110k")
    assert result.tasks == len(result.files) == 4
    assert max(file.records for file in result.files) < 90
    assert [row["offset"] for row in rows_of(tmp_path / "out")] == list(range(300))
    asked_for = exported(log_dir, tmp_path / "three", minPartitions="3")
    assert asked_for.tasks == 3


@pytest.mark.parametrize(("distinct", "is_packed"), [(2, True), (900, False), (1, True)])
def test_keys_that_repeat_get_a_dictionary(tmp_path: Path, distinct: int, is_packed: bool) -> None:
    records = [Record(n, 0, b"%d" % (n % distinct), b"v") for n in range(1000)]
    (file,) = exported(log_of(tmp_path, *records), tmp_path / "out").files
    column = pq.read_metadata(tmp_path / "out" / file.path).row_group(0).column(0)
    assert column.path_in_schema == "key"
    assert column.has_dictionary_page is is_packed
    assert [row["key"] for row in rows_of(tmp_path / "out")] == [row.key for row in records]


def test_without_days(tmp_path: Path) -> None:
    log_dir = log_of(tmp_path, Record(0, 0, b"k", b"v"), Record(1, DAY_MS, None, None))
    result = exported(log_dir, tmp_path / "out", FileSpec(by_date=False))
    (file,) = result.files
    assert file.path.startswith("topic=t/part-00000-")


def test_text(tmp_path: Path) -> None:
    log_dir = log_of(tmp_path, Record(0, 0, "ключ".encode(), b"v"), Record(1, 0, None, None))
    exported(log_dir, tmp_path / "out", FileSpec(is_text=True))
    rows = rows_of(tmp_path / "out")
    assert [(row["key"], row["value"]) for row in rows] == [("ключ", "v"), (None, None)]
    (path,) = (tmp_path / "out").rglob("*.parquet")
    assert pq.read_schema(path).field("value").type == pa.string()


def test_bytes_that_are_no_text_are_told_by_their_offset(tmp_path: Path) -> None:
    log_dir = log_of(tmp_path, Record(0, 0, b"k", b"v"), Record(1, 0, b"k", b"\xff"))
    with pytest.raises(JobError, match="offset 1: the value is not UTF-8; export it as bytes"):
        exported(log_dir, tmp_path / "out", FileSpec(is_text=True))
    assert not list((tmp_path / "out").iterdir())


def test_lines_of_json(tmp_path: Path) -> None:
    headers = (Header("h", b"x"), Header("h", None))
    log_dir = log_of(
        tmp_path, Record(0, 7, b"k", b'{"a": "\xc3\xa4"}', headers), Record(1, 8, None, b"\xff")
    )
    spec = FileSpec("jsonl", has_headers=True)
    exported(log_dir, tmp_path / "out", spec, includeHeaders="true")
    (path,) = (tmp_path / "out").rglob("*.jsonl")
    first, second = map(json.loads, path.read_bytes().splitlines())
    assert first == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": 7,
        "timestampType": "CreateTime",
        "key": "k",
        "value": '{"a": "ä"}',
        "headers": [{"key": "h", "value": "x"}, {"key": "h", "value": None}],
    }
    assert (second["key"], second["value"]) == (None, {"base64": "/w=="})


def test_a_target_with_files_is_left_alone_unless_told(tmp_path: Path) -> None:
    log_dir = log_of(tmp_path, Record(0, 0, b"k", b"v"))
    exported(log_dir, tmp_path / "out")
    with pytest.raises(ConfigError, match="is not empty"):
        exported(log_dir, tmp_path / "out")
    exported(log_dir, tmp_path / "out", FileSpec(appends=True))
    assert len(rows_of(tmp_path / "out")) == 2


def test_what_cannot_be(tmp_path: Path) -> None:
    log_dir = log_of(tmp_path, Record(0, 0, b"k", b"v"))
    with pytest.raises(InvalidArgumentError, match="'best', not one of none, snappy"):
        FileSpec(codec="best")
    with pytest.raises(ConfigError, match="did you mean 'splitBytes'"):
        plan_export(reading(log_dir, {"splitByte": "1"}))


def test_damage_stops_it_and_nothing_is_left(tmp_path: Path) -> None:
    log_dir = log_of(tmp_path, *(Record(n, 0, b"k", b"v") for n in range(3)))
    path = log_dir / "t-0" / log_name(0)
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(JobError, match=r"at byte 70.*CRC"):
        exported(log_dir, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    assert exported(log_dir, tmp_path / "out", onCorruption="skip").records == 2


def test_all_workers_get_something_of_what_is_large(tmp_path: Path) -> None:
    records = [Record(n, 0, b"k%d" % n, bytes(1 << 20)) for n in range(20)]
    result = exported(log_of(tmp_path, *records), tmp_path / "out", FileSpec(codec="zstd"))
    assert result.tasks >= 2
    assert [row["offset"] for row in rows_of(tmp_path / "out")] == list(range(20))
    again = exported(tmp_path / "logs", tmp_path / "one", FileSpec(codec="zstd"), minPartitions="1")
    assert again.tasks == 1


def test_on_spark_and_read_back_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "out"
    result = export(spark, reading(GoldenCase("multiseg").root, {"splitBytes": "16k"}), target)
    assert result.records == 1500
    assert result.tasks > 1
    frame = spark.read.parquet(str(target))
    assert set(frame.columns) >= {"key", "value", "offset", "timestamp", "topic", "date"}
    counted = frame.groupBy("topic", "partition").count().collect()
    assert [tuple(row) for row in counted] == [("multiseg", 0, 1500)]
    assert frame.selectExpr("count(distinct offset)", "max(offset)").first()[:] == (1500, 1499)  # type: ignore[index]


def test_incremental_exports_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    logs, target = tmp_path / "logs", tmp_path / "out"
    with LogDir.open(logs) as opened:
        opened.create_topic("t", 2)
        for expected in (6, 6, 0):
            for number in range(expected):
                opened.append("t", b"%d" % number, partition=number % 2)
            assert export(spark, reading(logs), target, incremental=True).records == expected
    found = [(row["partition"], row["offset"]) for row in rows_of(target)]
    assert found == [(partition, offset) for partition in range(2) for offset in range(6)]

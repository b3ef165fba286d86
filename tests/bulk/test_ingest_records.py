"""What export writes comes back as it was; topics of failed jobs do not stay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog import open_dirs
from stratalog.errors import ConfigError, StratalogError
from stratalog.log_dir import LogDir
from tests.cli.command import inside, stratalog

if TYPE_CHECKING:
    from pathlib import Path


class Given(NamedTuple):
    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


RECORDS = [
    Given(0, 1_700_000_000_000, b"k", b"v"),
    Given(2, 1_700_000_000_001, b"k", None),
    Given(2, 1_700_100_000_002, None, b""),
    Given(0, 1_700_000_000_003, b"", b"\xff\x00"),
    Given(1, 0, b"\xc3", 'ä\n"\\\u2028'.encode(), (("h", b"1"), ("h", None), ("", b"\xfe"))),
    Given(2, 1_700_000_000_005, b"null", b'{"base64":"/w=="}'),
]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    with LogDir.open(tmp_path / "logs", create=True, background=False) as logs:
        logs.create_topic("t", 3)
        for given in RECORDS:
            logs.append(
                "t",
                given.value,
                key=given.key,
                partition=given.partition,
                timestamp=given.timestamp,
                headers=list(given.headers),
            )
    return tmp_path / "logs"


def records_in(root: Path, topic: str = "t") -> list[Given]:
    return [
        Given(
            view.topic_partition.partition,
            record.timestamp,
            record.key,
            record.value,
            tuple((header.key, header.value) for header in record.headers),
        )
        for view in open_dirs(root).partitions_of(topic)
        for record in view.read()
    ]


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_exported_files_come_back(format_: str, logs: Path, tmp_path: Path) -> None:
    inside("export", logs, "--to", tmp_path / "out", "--format", format_, "--headers")
    result = inside("ingest", tmp_path / "out", "--to", tmp_path / "new", "-p", "3", "--json")
    assert result.rows[0]["records"] == len(RECORDS)
    assert sorted(records_in(tmp_path / "new"), key=str) == sorted(records_in(logs), key=str)
    assert len(records_in(logs)) == len(RECORDS)


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_without_dates_the_order_is_kept(format_: str, tmp_path: Path) -> None:
    days_ms = (1_700_100_000_000, 1_700_000_000_000)  # the later one first, and so on by turns
    settings = {"log.segment.bytes": "2000"}
    with LogDir.open(tmp_path / "logs", config=settings, background=False) as logs:
        logs.create_topic("t", 2)
        for number in range(200):
            value, timestamp = f"{number:050}".encode(), days_ms[number % 2] + number
            logs.append("t", value, partition=number // 2 % 2, timestamp=timestamp)
    args = ("--to", tmp_path / "out", "--format", format_, "--no-by-date")
    inside("export", tmp_path / "logs", *args, "--option", "splitBytes=4000")
    assert len(list((tmp_path / "out").rglob("part-*"))) > 2
    inside("ingest", tmp_path / "out", "--to", tmp_path / "new", "-p", "2")
    assert records_in(tmp_path / "new") == records_in(tmp_path / "logs")


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_into_another_topic_by_key(format_: str, logs: Path, tmp_path: Path) -> None:
    inside("export", logs, "--to", tmp_path / "out", "--format", format_)
    args = ("--to", tmp_path / "new", "-t", "u", "-p", "1")
    with pytest.raises(StratalogError, match="Invalid partition given with record"):
        inside("ingest", tmp_path / "out", *args)
    inside("ingest", tmp_path / "out", *args, "--repartition")
    found = {given._replace(partition=0) for given in RECORDS}
    assert set(records_in(tmp_path / "new", "u")) == found


def test_exported_lines_as_values_when_asked(logs: Path, tmp_path: Path) -> None:
    inside("export", logs, "--to", tmp_path / "out", "--format", "jsonl", "--no-by-date")
    args = ("--to", tmp_path / "new", "-t", "u", "-p", "1", "--format", "json")
    inside("ingest", *(tmp_path / "out").rglob("*.jsonl"), *args)
    values = [json.loads(given.value or b"") for given in records_in(tmp_path / "new", "u")]
    assert {value["topic"] for value in values} == {"t"}
    assert len(values) == len(RECORDS)


def test_records_that_were_written_by_others(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{ "value": "v", "key": null, "timestamp": 7, "topic": "u" }\n')
    inside("ingest", file, "--to", tmp_path / "new", "-p", "1", "--format", "records")
    assert records_in(tmp_path / "new", "u") == [Given(0, 7, None, b"v")]


def test_files_of_both_kinds(logs: Path, tmp_path: Path) -> None:
    inside("export", logs, "--to", tmp_path / "out", "--format", "jsonl", "--no-by-date")
    (tmp_path / "mine.jsonl").write_text('{"a": 1}\n')
    files = [*(tmp_path / "out").rglob("*.jsonl"), tmp_path / "mine.jsonl"]
    with pytest.raises(ConfigError, match="use the format records or json"):
        inside("ingest", *files, "--to", tmp_path / "new", "-t", "u", "-p", "1")
    assert not (tmp_path / "new").exists()


LINES = '{"id": "a", "at": 5}\n{"at": 6}\n{"id": "c", "at": "soon"}\n'


@pytest.mark.slow
def test_a_missing_field_is_an_error_with_its_line(tmp_path: Path) -> None:
    file, new = tmp_path / "a.jsonl", tmp_path / "new"
    file.write_text(LINES)
    args = ("ingest", file, "--to", new, "-t", "t", "-p", "1")
    done = stratalog(*args, "--key", "id")
    assert done.status == 1
    assert done.stderr == f"stratalog: error: {file}: line 2: there is no field 'id'\n"
    done = stratalog(*args, "--timestamp", "at")
    assert done.stderr.startswith(
        f"stratalog: error: {file}: line 3: field 'at' is not a timestamp, "
    )
    done = stratalog(*args, "--key", "id", "--timestamp", "at", "--allow-missing", "--json")
    assert (done.status, done.stderr) == (0, "")
    (row,) = done.rows
    assert (row["missingKeys"], row["missingValues"], row["missingTimes"]) == (1, 0, 1)
    assert row["records"] == 3
    assert row["recordsPerSecond"] > 0 < row["bytesPerSecond"]
    assert [given.key for given in records_in(new)] == [b"a", None, b"c"]
    said = inside(*args, "--key", "id", "--allow-missing").lines
    assert said[0].endswith(f"written to {new}; 1 without key field")


@pytest.mark.slow
def test_the_line_is_told_in_large_files_too(tmp_path: Path) -> None:
    """Which are read in several tasks."""
    file, new = tmp_path / "a.jsonl", tmp_path / "new"
    good = '{"id": "%s"}\r\n' % ("x" * 1000)
    file.write_text(good * 9_999 + "{}\n" + good, newline="")
    args = ("--to", new, "-t", "t", "-p", "1", "--key", "id")
    with pytest.raises(StratalogError, match="line 10000: there is no field 'id'"):
        inside("ingest", file, *args)


def test_a_failed_job_leaves_no_topic(tmp_path: Path) -> None:
    file, new = tmp_path / "a.jsonl", tmp_path / "new"
    file.write_text("{}\n")
    with pytest.raises(StratalogError, match="line 1"):
        inside("ingest", file, "--to", new, "-t", "t", "-p", "1", "--key", "id")
    assert not list(new.glob("t-*"))
    inside("ingest", file, "--to", new, "-t", "t", "-p", "2")
    assert open_dirs(new).partition_numbers == {"t": [0, 1]}
    with pytest.raises(StratalogError, match="line 1"):
        inside("ingest", file, "--to", new, "-t", "t", "--key", "id")
    assert len(records_in(new)) == 1


@pytest.mark.slow
def test_other_partitions_than_the_topic_has(tmp_path: Path) -> None:
    file, new = tmp_path / "a.jsonl", tmp_path / "new"
    file.write_text("{}\n")
    args = ("ingest", file, "--to", new, "-t", "t")
    inside(*args, "-p", "2")
    done = stratalog(*args, "-p", "7")
    assert done.status == 2
    assert done.stderr == (
        "stratalog: error: --partitions: 7 partitions were requested, but topic 't' has 2; "
        "omit the option to write to the existing topic\n"
    )
    inside(*args, "-p", "2")
    assert len(records_in(new)) == 2

"""One meaning for all files: the same rows give the same records in every format, compressed or
not, and the same faults are refused."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog import open_dirs
from stratalog.bulk.ingest import ingest
from stratalog.bulk.input_files import FileSource, MissingFields, RecordColumns
from stratalog.bulk.workers import ThreadWorkers
from stratalog.errors import ConfigError, InputFileError, JobError, StratalogError
from tests.bulk.options import writing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stratalog.bulk.input_files import IngestResult
    from stratalog.format.record import Record


def compressed(codec: str, data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data[:10]) + gzip.compress(data[10:]),  # two members
    ".bz2": bz2.compress,
    ".zst": partial(compressed, "zstd"),
    ".lz4": partial(compressed, "lz4"),
}
ROWS: list[dict[str, Any]] = [
    {"id": "a", "n": 1, "text": 'quote " and\nline', "at": 1_700_000_000_123},
    {"id": None, "n": -2.5, "text": "", "at": 1_700_000_001_000},
    {"id": "ü", "n": None, "text": None, "at": 1_700_000_002_000},
]
MAPPING = RecordColumns(key="id", timestamp="at")


def as_json_lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    """Null is an empty cell, the empty string a quoted one."""
    text = io.StringIO()
    csv.writer(text).writerow(rows[0])
    for row in rows:
        cells = [_cell(value) for value in row.values()]
        text.write(",".join(cells) + "\r\n")
    return text.getvalue().encode()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else json.dumps(value)


def run(path: Path, log_dir: Path, *, partitions: int = 1, **given: Any) -> IngestResult:
    options = writing(log_dir, topic="t", options={"topicPartitions": str(partitions)})
    return ingest(FileSource([path], **given), options, workers=ThreadWorkers(2))


def records(log_dir: Path, topic: str = "t") -> list[Record]:
    return [record for view in open_dirs(log_dir).partitions_of(topic) for record in view.read()]


def write(path: Path, data: bytes, suffix: str = "") -> Path:
    path = path.with_name(path.name + suffix)
    path.write_bytes(COMPRESS[suffix](data))
    return path


def files(root: Path) -> list[Path]:
    """The same rows, in every format and compression."""
    found = []
    for suffix in COMPRESS:
        found.append(write(root / "rows.jsonl", as_json_lines(ROWS), suffix))
        found.append(write(root / "rows.csv", as_csv(ROWS), suffix))
    pq.write_table(pa.Table.from_pylist(ROWS), root / "rows.parquet")
    return [*found, root / "rows.parquet"]


@pytest.mark.slow
def test_the_same_rows_are_the_same_records_in_every_format(tmp_path: Path) -> None:
    for number, path in enumerate(files(tmp_path)):
        logs = tmp_path / f"logs-{number}"
        result = run(path, logs, mapping=MAPPING)
        assert (result.records, result.missing) == (3, MissingFields()), path
        found = [
            (each.key, json.loads(each.value or b""), each.timestamp) for each in records(logs)
        ]
        expected = [(row["id"] and row["id"].encode(), row, row["at"]) for row in ROWS]
        assert found == expected, path


def test_numbers_of_csv_are_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text("price,zip,flag,mixed,none\n1.50,01234,true,7,\n2,5,false,x,\n")
    run(path, tmp_path / "logs")
    assert [each.value for each in records(tmp_path / "logs")] == [
        b'{"price":1.50,"zip":"01234","flag":true,"mixed":"7","none":null}',
        b'{"price":2,"zip":"5","flag":false,"mixed":"x","none":null}',
    ]


def test_another_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text("a;b\n1;x,y\n")
    run(path, tmp_path / "logs", delimiter=";")
    assert [each.value for each in records(tmp_path / "logs")] == [b'{"a":1,"b":"x,y"}']


def test_parquet_of_any_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "d": pa.array([Decimal("1.50"), None]),
            "b": pa.array([b"\xff", b"ok"]),
            "f": pa.array([1.5, float("inf")]),
            "t": pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "UTC")),
            "day": pa.array([19675, None], pa.date32()),
            "l": pa.array([[1, 2], None]),
            "s": pa.array([{"x": b"y"}, None]),
            "c": pa.array(["p", "q"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "any.parquet")
    run(tmp_path / "any.parquet", tmp_path / "logs")
    first, second = (json.loads(each.value or b"") for each in records(tmp_path / "logs"))
    assert first == {
        "d": 1.5,
        "b": {"base64": "/w=="},
        "f": 1.5,
        "t": "2023-11-14T22:13:20.123456Z",
        "day": "2023-11-14",
        "l": [1, 2],
        "s": {"x": "y"},
        "c": "p",
    }
    assert second == {**dict.fromkeys(first), "b": "ok", "f": "inf", "c": "q"}
    given = RecordColumns(key="l", value="d", timestamp="day")
    run(tmp_path / "any.parquet", tmp_path / "others", mapping=given, allows_missing=True)
    (one, two) = records(tmp_path / "others")
    assert (one.key, one.value, one.timestamp) == (b"[1,2]", b"1.50", 19675 * 86_400_000)
    assert (two.key, two.value) == (None, None)


def test_files_with_other_columns_are_read_by_their_own(tmp_path: Path) -> None:
    (tmp_path / "in" / "day=2").mkdir(parents=True)
    (tmp_path / "in" / "day=1").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "in" / "day=1" / "x.parquet")
    pq.write_table(pa.table({"b": ["x"]}), tmp_path / "in" / "day=2" / "x.parquet")
    run(tmp_path / "in", tmp_path / "logs")
    values = [json.loads(each.value or b"") for each in records(tmp_path / "logs")]
    assert values == [{"a": 1, "day": "1"}, {"b": "x", "day": "2"}]


WITHOUT_TIME = [{"id": "a", "at": "2023-11-14T22:13:20Z"}, {"id": "b", "at": "soon"}]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet"])
def test_a_time_that_cannot_be_parsed(tmp_path: Path, name: str, suffix: str) -> None:
    if name == "x.parquet":
        path = tmp_path / name
        pq.write_table(pa.Table.from_pylist(WITHOUT_TIME), path)
    else:
        encode = as_csv if name == "x.csv" else as_json_lines
        path = write(tmp_path / name, encode(WITHOUT_TIME), suffix)
    where = {"x.jsonl": "line 2: field", "x.csv": "row 3: column", "x.parquet": "row 2: column"}
    with pytest.raises(JobError, match=rf"{path}: {where[name]} 'at' is not a timestamp.*soon"):
        run(path, tmp_path / "logs", mapping=MAPPING)
    assert not list((tmp_path / "logs").glob("t-*"))
    result = run(path, tmp_path / "logs", mapping=MAPPING, allows_missing=True)
    assert result.missing == MissingFields(times=1)
    first, second = records(tmp_path / "logs")
    assert first.timestamp == 1_700_000_000_000 < second.timestamp


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_broken_line_or_row(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / "x.jsonl", b'{"id": "a"}\n{"id": \n', suffix)
    for allows_missing in (False, True):
        with pytest.raises(JobError, match=rf"{path}: line 2: not JSON"):
            run(path, tmp_path / "logs", mapping=RecordColumns("id"), allows_missing=allows_missing)
    path = write(tmp_path / "x.csv", b"id,n\na,1\nb\n", suffix)
    for allows_missing in (False, True):
        with pytest.raises(InputFileError, match=rf"{path}: not CSV: .*Row #3: Expected 2 columns"):
            run(path, tmp_path / "logs", allows_missing=allows_missing)
    assert not (tmp_path / "logs").exists() or not list((tmp_path / "logs").glob("t-*"))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_missing_field(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / "x.jsonl", b'{"id": null}\n{"n": 1}\n', suffix)
    with pytest.raises(JobError, match=rf"{path}: line 2: there is no field 'id'"):
        run(path, tmp_path / "logs", mapping=RecordColumns("id"))
    done = run(path, tmp_path / "logs", mapping=RecordColumns("id"), allows_missing=True)
    assert done.missing == MissingFields(keys=1)
    path = write(tmp_path / "x.csv", b"n\n1\n", suffix)
    with pytest.raises(ConfigError, match=rf"{path}: no column 'id'; it has n"):
        run(path, tmp_path / "logs", mapping=RecordColumns("id"))


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_compressed_lines(tmp_path: Path, suffix: str) -> None:
    lines = [b"a", b"", b"c" * 100_000, b"\xff\xfe", b"last"]
    data = b"\xef\xbb\xbf" + b"\r\n".join(lines)
    run(write(tmp_path / "x.txt", data, suffix), tmp_path / "logs")
    assert [each.value for each in records(tmp_path / "logs")] == lines
    broken = tmp_path / f"broken.txt{suffix}"
    broken.write_bytes(COMPRESS[suffix](data * 50)[:-9])
    with pytest.raises(StratalogError, match=r"broken\.txt.*compressed data is corrupt"):
        run(broken, tmp_path / "logs")
    assert len(records(tmp_path / "logs")) == len(lines)


def test_patterns_and_addresses(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.csv"):
        (tmp_path / name).write_text(f"{name}\n")
    run(tmp_path / "*.txt", tmp_path / "logs")
    assert [each.value for each in records(tmp_path / "logs")] == [b"a.txt", b"b.txt"]
    source = FileSource([f"file://{tmp_path}/a.txt"])
    ingest(source, writing(tmp_path / "logs", topic="t"))
    assert len(records(tmp_path / "logs")) == 3
    for paths, message in [
        (["s3://bucket/x.txt"], "not a local path; mount it, or read it with Spark"),
        ([str(tmp_path / "no*.txt")], "no file matches"),
        ([str(tmp_path / "x.txt.xz")], r"\.xz files are not supported, only \.gz"),
        ([str(tmp_path / "no.txt")], "No such file"),
    ]:
        if "xz" in paths[0]:
            (tmp_path / "x.txt.xz").write_bytes(b"x")
        with pytest.raises(StratalogError, match=message):
            ingest(replace(source, paths=paths), writing(tmp_path / "logs", topic="t"))


def test_types_that_cannot_be_used(tmp_path: Path) -> None:
    for name, column in (("topic", [1]), ("partition", ["x"]), ("timestamp", [1.5])):
        path = tmp_path / "x.parquet"
        pq.write_table(pa.table({"value": ["v"], name: column}), path)
        with pytest.raises(ConfigError, match=f"column '{name}' is .*, not "):
            run(path, tmp_path / "logs")


def test_a_column_has_one_type_in_all_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "in" / "2.csv").write_text("a,b\nx,\n")
    run(tmp_path / "in", tmp_path / "logs")
    values = [each.value for each in records(tmp_path / "logs")]
    assert values == [b'{"a":"1","b":2}', b'{"a":"x","b":null}']

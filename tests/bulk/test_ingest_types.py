"""Parquet as pandas, polars, DuckDB and Spark write it: what its columns become in records."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.bulk.input_files import RecordColumns
from stratalog.bulk.json_lines import json_values
from stratalog.errors import InputFileError, JobError
from tests.bulk.test_ingest_formats import records, run

if TYPE_CHECKING:
    from pathlib import Path

AT_NS = 1_700_000_000_123_456_789
UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
AT = "2023-11-14T22:13:20.123456789"
BERLIN = pa.timestamp("ns", "Europe/Berlin")
NESTED = {"a": 1, "b": {"c": [b"\xff"]}}
STRUCT = pa.struct([("t", pa.timestamp("ns"))])
PAIRS = [("k", 1), ('"', None)]
LISTS = pa.map_(pa.int32(), pa.list_(pa.float64()))
EXTENSIONS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID.bytes, None], pa.binary(16)))
DECIMALS = [Decimal("12345678901234567890.12"), None]


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (pa.array([AT_NS, None], pa.timestamp("ns")), f'"{AT}"'),
        (pa.array([AT_NS, None], BERLIN), f'"{AT}Z"'),
        (pa.array([1_700_000_000, None], pa.timestamp("s")), '"2023-11-14T22:13:20"'),
        (pa.array([19675, None], pa.date32()), '"2023-11-14"'),
        (pa.array([3_723_000_004, None], pa.time64("us")), '"01:02:03.000004"'),
        (pa.array([1_500_000, None], pa.duration("us")), "1500000"),
        (pa.array(DECIMALS, pa.decimal128(22, 2)), "12345678901234567890.12"),
        (pa.array(DECIMALS, pa.decimal256(40, 2)), "12345678901234567890.12"),
        (pa.array([2**64 - 1, None], pa.uint64()), "18446744073709551615"),
        (pa.array([1.5, None], pa.float16()), "1.5"),
        (pa.array([0.1, None], pa.float32()), "0.1"),
        (pa.array([True, None]), "true"),
        (pa.array(["ü", None], pa.large_string()), '"ü"'),
        (pa.array(["ü", None], pa.string_view()), '"ü"'),
        (pa.array([b"x", None], pa.large_binary()), '"x"'),
        (pa.array([b"\xff", None], pa.binary_view()), '{"base64":"/w=="}'),
        (pa.array([b"\xff\xfe", None], pa.binary(2)), '{"base64":"//4="}'),
        (pa.array(["a", None]).dictionary_encode(), '"a"'),
        (pa.array([7, None]).dictionary_encode(), "7"),
        (EXTENSIONS, f'"{UUID}"'),
        (pa.array([[1, None], None]), "[1,null]"),
        (pa.array([[], None], pa.large_list(pa.string())), "[]"),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), "[1,2]"),
        (pa.array([[["a"], None, []], None]), '[["a"],null,[]]'),
        (pa.array([NESTED, None]), '{"a":1,"b":{"c":[{"base64":"/w=="}]}}'),
        (pa.array([{"t": AT_NS}, None], STRUCT), f'{{"t":"{AT}"}}'),
        (pa.array([PAIRS, None], pa.map_(pa.string(), pa.int64())), '{"k":1,"\\"":null}'),
        (pa.array([[(5, [1.5])], None], LISTS), '{"5":[1.5]}'),
        (pa.array([{}, None], pa.struct([])), "{}"),
    ],
    ids=lambda value: str(value.type)[:30] if isinstance(value, pa.Array) else "",
)
def test_values_of_every_type(column: pa.Array, texts: str) -> None:
    assert json_values(column).to_pylist() == [texts, "null"]
    assert json_values(column[1:]).to_pylist() == ["null"]
    twice = pa.concat_arrays([column, column])
    assert json_values(twice[1:3]).to_pylist() == ["null", texts]
    json.loads(texts)


def test_values_of_a_column_without_a_type() -> None:
    assert json_values(pa.nulls(2)).to_pylist() == ["null", "null"]
    assert json_values(pa.array([], pa.list_(pa.int64()))).to_pylist() == []


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "id": pd.Series(["a", None]),
            "at": pd.to_datetime([AT_NS, 1_700_000_001_000_000_000]),
            "price": [1.5, None],
            "count": pd.array([7, None], dtype="Int64"),
            "kind": pd.Categorical(["x", "y"]),
            "took": pd.to_timedelta([1, 2], unit="s"),
            "tags": [["p", "q"], None],
            "nothing": [None, None],
            "zone": pd.to_datetime(["2023-11-14", "2023-11-15"]).tz_localize("Europe/Berlin"),
        }
    )


def test_a_frame_of_pandas(tmp_path: Path) -> None:
    frame().to_parquet(tmp_path / "f.parquet")
    run(tmp_path / "f.parquet", tmp_path / "logs", mapping=RecordColumns("id", timestamp="at"))
    one, two = records(tmp_path / "logs")
    assert (one.key, one.timestamp) == (b"a", 1_700_000_000_123)
    assert (two.key, two.timestamp) == (None, 1_700_000_001_000)
    assert json.loads(one.value or b"") == {
        "id": "a",
        "at": "2023-11-14T22:13:20.123456789",
        "price": 1.5,
        "count": 7,
        "kind": "x",
        "took": 1_000_000_000,
        "tags": ["p", "q"],
        "nothing": None,
        "zone": "2023-11-13T23:00:00.000000000Z",
    }
    assert json.loads(two.value or b"")["price"] is None


def test_the_index_of_a_frame_without_a_name(tmp_path: Path) -> None:
    table = pd.DataFrame({"a": [1, 2, 3]})
    table[table.a > 2].to_parquet(tmp_path / "f.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "f.parquet").names
    table.set_index("a").assign(b="x").to_parquet(tmp_path / "g.parquet")
    run(tmp_path / "*.parquet", tmp_path / "logs")
    values = [each.value for each in records(tmp_path / "logs")]
    assert values == [b'{"a":3}', *(b'{"b":"x","a":%d}' % number for number in (1, 2, 3))]
    mapping = RecordColumns(key="__index_level_0__", value="a")
    run(tmp_path / "f.parquet", tmp_path / "others", mapping=mapping)
    run(tmp_path / "f.parquet", tmp_path / "others", mapping=RecordColumns("__index_level_0__"))
    assert [each.key for each in records(tmp_path / "others")] == [b"2", b"2"]


def test_the_columns_of_the_sink_in_a_frame(tmp_path: Path) -> None:
    table = frame()[["at", "price", "kind"]]
    table = table.rename(columns={"at": "timestamp", "price": "value", "kind": "key"})
    table.assign(partition=pd.array([0, 0], dtype="uint64")).to_parquet(tmp_path / "f.parquet")
    run(tmp_path / "f.parquet", tmp_path / "logs")
    found = [(each.key, each.value, each.timestamp) for each in records(tmp_path / "logs")]
    assert found == [(b"x", b"1.5", 1_700_000_000_123), (b"y", None, 1_700_000_001_000)]


def test_large_types_in_the_columns_of_the_sink(tmp_path: Path) -> None:
    header = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
    table = pa.table(
        {
            "key": pa.array(["k"], pa.string_view()),
            "value": pa.array([b"\xff"], pa.binary_view()),
            "timestamp": pa.array([AT_NS], pa.timestamp("ns", "UTC")),
            "topic": pa.array(["u"], pa.large_string()),
            "partition": pa.array([0], pa.int64()),
            "headers": pa.array([[{"key": "h", "value": b"\xfe"}]], pa.large_list(header)),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    run(tmp_path / "x.parquet", tmp_path / "logs")
    (record,) = records(tmp_path / "logs")
    assert (record.key, record.value, record.timestamp) == (b"k", b"\xff", 1_700_000_000_123)
    assert [tuple(header) for header in record.headers] == [("h", b"\xfe")]


@pytest.mark.parametrize("key", [UUID, b"\x00" * 16], ids=["uuid", "bytes"])
def test_keys_of_sixteen_bytes(key: uuid.UUID | bytes, tmp_path: Path) -> None:
    storage = pa.array([key if isinstance(key, bytes) else key.bytes], pa.binary(16))
    column = (
        storage if isinstance(key, bytes) else pa.ExtensionArray.from_storage(pa.uuid(), storage)
    )
    pq.write_table(pa.table({"id": column}), tmp_path / "x.parquet")
    run(tmp_path / "x.parquet", tmp_path / "logs", mapping=RecordColumns(key="id"))
    (record,) = records(tmp_path / "logs")
    assert record.key == (key if isinstance(key, bytes) else str(key).encode())


def test_a_column_of_times_without_any(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "at": pa.nulls(1)}), tmp_path / "x.parquet")
    given: dict[str, Any] = {"mapping": RecordColumns(timestamp="at")}
    with pytest.raises(JobError, match="row 1: column 'at' is not a timestamp"):
        run(tmp_path / "x.parquet", tmp_path / "logs", **given)
    done = run(tmp_path / "x.parquet", tmp_path / "logs", allows_missing=True, **given)
    assert done.missing.times == 1


def test_a_time_beyond_all_calendars_names_the_file(tmp_path: Path) -> None:
    far = pa.array([2**62], pa.timestamp("ms"))
    pq.write_table(pa.table({"at": far}), tmp_path / "x.parquet")
    with pytest.raises((JobError, InputFileError), match=r"x\.parquet: "):
        run(tmp_path / "x.parquet", tmp_path / "logs", mapping=RecordColumns(timestamp="at"))


def test_booleans_of_pandas_in_csv(tmp_path: Path) -> None:
    pd.DataFrame({"a": [True, False], "b": [1.5, None], "c": ["True", "x"]}).to_csv(
        tmp_path / "x.csv", index=False
    )
    run(tmp_path / "x.csv", tmp_path / "logs")
    assert [each.value for each in records(tmp_path / "logs")] == [
        b'{"a":true,"b":1.5,"c":"True"}',
        b'{"a":false,"b":null,"c":"x"}',
    ]


def test_numbers_of_csv_that_json_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1.5E3,Nan\nNaN,Bo\n-inf,x\n,\n")
    run(tmp_path / "x.csv", tmp_path / "logs")
    assert [each.value for each in records(tmp_path / "logs")] == [
        b'{"a":1.5E3,"b":"Nan"}',
        b'{"a":"NaN","b":"Bo"}',
        b'{"a":"-inf","b":"x"}',
        b'{"a":null,"b":null}',
    ]


def test_a_frame_of_polars(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "id": ["ü", None],
            "at": [datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)],
            "took": [timedelta(seconds=5), None],
            "tags": [["a"], []],
            "where": [{"x": 1, "y": [1.5]}, None],
            "kind": pl.Series(["x", "y"], dtype=pl.Categorical),
            "price": [Decimal("1.50"), None],
            "raw": [b"\xff", None],
            "nothing": pl.Series([None, None]),
            "big": pl.Series([2**64 - 1, 0], dtype=pl.UInt64),
        }
    )
    frame.write_parquet(tmp_path / "f.parquet")
    run(tmp_path / "f.parquet", tmp_path / "logs", mapping=RecordColumns("id", timestamp="at"))
    one, two = records(tmp_path / "logs")
    assert (one.key, one.timestamp) == ("ü".encode(), 1_704_110_400_000)
    assert two.key is None
    assert one.value is not None
    assert one.value.decode() == (
        '{"id":"ü","at":"2024-01-01T12:00:00.000000Z","took":5000000,"tags":["a"],'
        '"where":{"x":1,"y":[1.5]},"kind":"x","price":1.50,"raw":{"base64":"/w=="},'
        '"nothing":null,"big":18446744073709551615}'
    )


def test_a_table_of_duckdb(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    duckdb.sql(
        f"""COPY (SELECT uuid '{UUID}' id, timestamp_ns '2024-01-01 00:00:00.123456789' "at",
        1::hugeint h, time '01:02:03' t, map {{'a': 1}} m, {{'x': [1, 2]}} s, 1.5::decimal(9, 2) d,
        'v'::enum('v', 'w') e, 'x'::blob b, NULL n) TO '{path}'"""
    )
    run(path, tmp_path / "logs", mapping=RecordColumns("id", timestamp="at"))
    (record,) = records(tmp_path / "logs")
    assert (record.key, record.timestamp) == (str(UUID).encode(), 1_704_067_200_123)
    assert json.loads(record.value or b"") == {
        "id": str(UUID),
        "at": "2024-01-01T00:00:00.123456789",
        "h": 1,
        "t": "01:02:03.000000",
        "m": {"a": 1},
        "s": {"x": [1, 2]},
        "d": 1.5,
        "e": "v",
        "b": "x",
        "n": None,
    }

"""Rows in Arrow columns appended as records: equal to appending them one by one."""

from __future__ import annotations

import datetime
from itertools import count
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    InvalidTxnStateError,
    LogOfflineError,
    MessageTooLargeError,
    StorageError,
    StratalogError,
    UnknownTopicOrPartitionError,
    WriteSchemaError,
)
from stratalog.format.batch import BatchHeader, Codec, TimestampType
from stratalog.format.column_types import schema_of
from stratalog.format.murmur import partition_for_key
from stratalog.format.record import Header, Record
from stratalog.log.reader import IsolationLevel
from stratalog.producing import arrow_rows as module
from stratalog.producing.batches import AppendedRange
from stratalog.storage.disk import Disk
from tests import strategies
from tests.disks import FaultyDisk
from tests.log.building import batches_of
from tests.memory import output_of
from tests.opening import NOW_MS, UNSYNCED, open_logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log_dir import LogDir

HEADERS = schema_of(["headers"]).field("headers").type


def log_of(path: Path) -> bytes:
    return (path / "00000000000000000000.log").read_bytes()


def headers_in(path: Path) -> list[BatchHeader]:
    raw = log_of(path)
    return [BatchHeader.unpack(raw, batch.position) for batch in batches_of(raw)]


def values_in(logs: LogDir, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in logs.partition(topic, partition).read()]


def table(rows: int = 5, **columns: Any) -> pa.Table:
    numbers = range(rows)
    return pa.table(
        {
            "key": [b"key-%d" % (number % 7) for number in numbers],
            "value": [b"%d" % number for number in numbers],
            **columns,
        }
    )


# -- equal to records that are appended one by one


def columns_of(records: list[Record]) -> pa.Table:
    return pa.table(
        {
            "headers": pa.array(
                [[header._asdict() for header in record.headers] for record in records], HEADERS
            ),
            "value": pa.array([record.value for record in records], pa.binary()),
            "key": pa.array([record.key for record in records], pa.binary()),
            "timestamp": pa.array([record.timestamp for record in records], pa.int64()),
        }
    )


@pytest.mark.slow
@settings(max_examples=30)
@given(
    drawn=strategies.record_runs(count_max=20),
    batch_bytes=st.integers(62, 400),
    codec=st.sampled_from(Codec),
    idempotent=st.booleans(),
    cut=st.integers(0, 20),
)
def test_the_same_files_as_record_by_record(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[Record],
    batch_bytes: int,
    codec: Codec,
    cut: int,
    *,
    idempotent: bool,
) -> None:
    """Byte for byte: partitions, batches, offsets, timestamps, sequence numbers, indexes."""
    records = [
        record._replace(
            timestamp=NOW_MS - abs(record.timestamp) % 1000,
            key=b"%d" % number if record.key is None else record.key,
        )
        for number, record in enumerate(drawn)
    ]
    home = tmp_path_factory.mktemp("columns")
    options: dict[str, Any] = {"batch_bytes": batch_bytes, "idempotent": idempotent}
    with open_logs(home / "rows", disk=Disk(UNSYNCED)) as logs:
        logs.create_topic("orders", 3)
        with logs.producer(**options, linger_ms=1000) as producer:
            for record in records:
                producer.append(
                    "orders",
                    record.value,
                    key=record.key,
                    timestamp=record.timestamp,
                    headers=record.headers,
                )
    with open_logs(home / "columns", disk=Disk(UNSYNCED)) as logs:
        logs.create_topic("orders", 3)
        rows = columns_of(records)
        chunked = pa.concat_tables([rows.slice(0, cut), rows.slice(cut)])
        with logs.producer(**options) as producer:
            stored = producer.append_columns("orders", chunked)
        assert sum(part.record_count for part in stored) == len(records)
        logs.append_columns("compressed", chunked, compression=codec, batch_bytes=batch_bytes)
        assert {header.codec_id for header in headers_in(home / "columns" / "compressed-0")} <= {
            codec,
            Codec.NONE,
        }
        found = list(logs.partition("compressed", 0).read())
        assert found == [record._replace(offset=i) for i, record in enumerate(records)]
    for partition in range(3):
        name = f"orders-{partition}"
        assert log_of(home / "columns" / name) == log_of(home / "rows" / name)


def test_known_bytes(tmp_path: Path) -> None:
    """The batch of the fact sheet's test vector A, with times of today."""
    rows = pa.table(
        {
            "value": pa.array([b"v", None]),
            "key": pa.array([b"k", b"k"]),
            "timestamp": pa.array([1000, 1005]),
            "headers": pa.array([[("h", b"x")], []], HEADERS),
        }
    )
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", config={"message.timestamp.before.max.ms": 1 << 62})
        assert logs.append_columns("orders", rows) == [AppendedRange("orders", 0, 2, 0, 1)]
    assert log_of(tmp_path / "orders-0").hex() == (
        "00000000000000000000004600000000029894628100000000000100000000000003e800000000000003ed"
        "ffffffffffffffffffffffffffff0000000218000000026b027602026802780e000a02026b0100"
    )


def test_what_is_returned(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 3)
        logs.append("orders", b"first", partition=1)
        stored = logs.append_columns("orders", table(20))
        expected = [partition_for_key(b"key-%d" % (number % 7), 3) for number in range(20)]
        starts = {0: 0, 1: 1, 2: 0}
        assert stored == [
            AppendedRange("orders", number, expected.count(number), start, start - 1 + found)
            for number, start in starts.items()
            if (found := expected.count(number))
        ]
        again = logs.append_columns("orders", table(20))
        assert [part.first_offset for part in again] == [part.last_offset + 1 for part in stored]
        assert logs.append_columns("orders", table(0)) == []


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_keys_go_where_kafka_puts_them(tmp_path: Path, key: bytes, hashed: int) -> None:
    """Kafka's own test values of murmur2."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 11)
        (stored,) = logs.append_columns("orders", pa.table({"key": [key], "value": [b""]}))
        assert stored.partition == (hashed & 0x7FFF_FFFF) % 11


def test_rows_without_a_key_fill_one_batch_after_the_other(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 3)
        rows = pa.table({"value": pa.array([b"x" * 84] * 3000)})
        stored = logs.append_columns("orders", rows, batch_bytes=10_000)
        assert [part.partition for part in stored] == [0, 1, 2]
        assert sum(part.record_count for part in stored) == 3000
    for partition in range(3):
        counts = [header.record_count for header in headers_in(tmp_path / f"orders-{partition}")]
        assert min(counts[:-1]) > 90


@pytest.mark.parametrize("codec", list(Codec))
def test_all_codecs(tmp_path: Path, codec: Codec) -> None:
    rows = pa.table({"value": [b"again and again %d" % (n % 3) for n in range(5000)]})
    with open_logs(tmp_path) as logs:
        logs.append_columns("orders", rows, compression=codec.name.lower())
        found = headers_in(tmp_path / "orders-0")
        assert {header.codec_id for header in found} == {codec}
        assert len(found) > 1
        assert values_in(logs) == rows["value"].to_pylist()


def test_a_topic_with_a_codec_of_its_own(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", config={"compression.type": "zstd"})
        logs.append_columns("orders", table(100), compression="lz4")
        assert {header.codec_id for header in headers_in(tmp_path / "orders-0")} == {Codec.ZSTD}


def test_log_append_time(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", config={"message.timestamp.type": "LogAppendTime"})
        stored = logs.append_columns(
            "orders", table(50, timestamp=pa.array([5] * 50)), batch_bytes=300
        )
        assert stored == [AppendedRange("orders", 0, 50, 0, 49)]
        found = list(logs.partition("orders", 0).read())
        assert {record.timestamp for record in found} == {NOW_MS}
        assert {record.timestamp_type for record in found} == {TimestampType.LOG_APPEND_TIME}


def test_segments_roll(tmp_path: Path) -> None:
    with open_logs(tmp_path, log_segment_bytes=20_000) as logs:
        rows = pa.table({"value": [b"%05d" % number * 20 for number in range(2000)]})
        logs.append_columns("orders", rows, batch_bytes=1000)
        assert len(logs.partition("orders", 0).segments.bases) > 5
        assert values_in(logs) == rows["value"].to_pylist()
    with open_logs(tmp_path) as logs:
        assert logs.partition("orders", 0).log_end_offset == 2000


# -- what data may be


def sources() -> dict[str, Any]:
    rows = table(40)
    batches = rows.to_batches(max_chunksize=7)
    return {
        "table": rows,
        "record batch": rows.to_batches()[0],
        "chunks": pa.Table.from_batches(batches),
        "reader": lambda: pa.RecordBatchReader.from_batches(rows.schema, iter(batches)),
        "slice": table(60).slice(0, 40),
        "slice from the middle": pa.concat_tables([table(13), rows, table(5)])
        .combine_chunks()
        .slice(13, 40),
        "pandas": pd.DataFrame(rows.to_pydict()),
        "other columns": rows.append_column("offset", pa.array(range(40))).append_column(
            "note", pa.array(["x"] * 40)
        ),
    }


@pytest.mark.parametrize("name", list(sources()))
def test_sources(tmp_path: Path, name: str) -> None:
    data = sources()[name]
    with open_logs(tmp_path) as logs:
        logs.append_columns("orders", data() if callable(data) else data)
        found = [(record.key, record.value) for record in logs.partition("orders", 0).read()]
        assert found == [(b"key-%d" % (number % 7), b"%d" % number) for number in range(40)]


def test_polars(tmp_path: Path) -> None:
    frame = polars.DataFrame(
        {
            "key": ["a", None, "c"],
            "value": [b"1", b"2", None],
            "timestamp": [datetime.datetime(2027, 1, 15, 8, tzinfo=datetime.UTC)] * 3,
            "headers": [[{"key": "h", "value": b"x"}], [], None],
        }
    )
    with open_logs(tmp_path) as logs:
        logs.append_columns("orders", frame)
        found = list(logs.partition("orders", 0).read())
    assert [record.key for record in found] == [b"a", None, b"c"]
    assert [record.value for record in found] == [b"1", b"2", None]
    assert {record.timestamp for record in found} == {NOW_MS}
    assert [record.headers for record in found] == [(Header("h", b"x"),), (), ()]


def test_duckdb(tmp_path: Path) -> None:
    relation = duckdb.sql(
        "select range::varchar as key, 'value ' || range as value, "
        "(range % 2)::integer as partition, 'orders' as topic from range(5000)"
    )
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2)
        stored = logs.append_columns(None, relation)
        assert [part.record_count for part in stored] == [2500, 2500]
        assert values_in(logs, partition=1)[:2] == [b"value 1", b"value 3"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(2),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_binary()),
    ],
    ids=str,
)
def test_types_of_keys_and_values(tmp_path: Path, kind: pa.DataType) -> None:
    plain = pa.array(["ab", None, "cd", "ab"])
    if pa.types.is_dictionary(kind):
        column = plain.cast(kind.value_type).dictionary_encode().cast(kind)
    else:
        column = plain.cast(pa.binary()).cast(kind)
    for rows in (column, pa.concat_arrays([column, column]).slice(4, 4)):
        with open_logs(tmp_path / str(len(rows.buffers()) + rows.offset)) as logs:
            logs.append_columns("orders", pa.table({"key": rows, "value": rows}))
            found = [(record.key, record.value) for record in logs.partition("orders", 0).read()]
        assert found == [(text, text) for text in (b"ab", None, b"cd", b"ab")]


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("s"),
        pa.timestamp("ms", "UTC"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.timestamp("ns"),
        pa.int64(),
    ],
    ids=str,
)
def test_types_of_times(tmp_path: Path, kind: pa.DataType) -> None:
    times = pa.array([NOW_MS, None], pa.timestamp("ms")).cast(
        pa.int64() if kind == pa.int64() else pa.timestamp(getattr(kind, "unit", "ms"))
    )
    rows = pa.table({"value": ["a", "b"], "timestamp": times.cast(kind)})
    with open_logs(tmp_path) as logs:
        logs.append_columns("orders", rows)
        assert [r.timestamp for r in logs.partition("orders", 0).read()] == [NOW_MS, NOW_MS]


def test_what_a_reader_returns_can_be_written(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.append("orders", b"x", key=b"k", headers={"h": b"1"}, timestamp=NOW_MS - 7)
        logs.append("orders", None, key=b"k", timestamp=NOW_MS - 6)
        batches = list(logs.partition("orders", 0).read_columns())
        logs.append_columns("copy", pa.Table.from_batches(batches))
        assert list(logs.partition("copy", 0).read()) == list(logs.partition("orders", 0).read())


def test_topics_of_rows(tmp_path: Path) -> None:
    topics = pa.array(["a", "b", "a", "c", "b"]).dictionary_encode()
    rows = table(5, topic=topics)
    with open_logs(tmp_path) as logs:
        stored = logs.append_columns(None, rows)
        assert [(part.topic, part.record_count) for part in stored] == [
            ("a", 2),
            ("b", 2),
            ("c", 1),
        ]
        assert values_in(logs, "a") == [b"0", b"2"]
        assert [part.topic for part in logs.append_columns("all", rows)] == ["all"]


def test_partitions_of_rows(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 3)
        logs.append_columns("orders", table(3, partition=pa.array([2, 0, None], pa.int64())))
        assert values_in(logs, partition=0)[:1] == [b"1"]
        assert values_in(logs, partition=2)[:1] == [b"0"]
        assert b"2" in values_in(logs, partition=partition_for_key(b"key-2", 3))


APPEND_400_MB = """
import sys
from pathlib import Path
import pyarrow as pa
from tests.memory import peak_bytes
from tests.opening import open_logs

part = pa.record_batch({"value": pa.array([bytes(1000)] * 4000), "key": pa.array(["k"] * 4000)})
with open_logs(Path(sys.argv[1]), log_retention_bytes=1, log_segment_bytes=50 << 20) as logs:
    logs.append_columns("warm-up", part)
    before = peak_bytes()
    batches = (part.take(pa.array(range(4000))) for _ in range(100))
    reader = pa.RecordBatchReader.from_batches(part.schema, batches)
    (stored,) = logs.append_columns("orders", reader)
    print(stored.record_count, peak_bytes() - before)
"""


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """A reader of 400 MB that are never all there."""
    record_count, grown_bytes = map(int, output_of(APPEND_400_MB, tmp_path))
    assert record_count == 400_000
    assert grown_bytes < 60 << 20


def test_one_large_table_is_written_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PORTION_BYTES", 10_000)
    rows = table(5000, note=pa.array(["a" * 50] * 5000))
    with open_logs(tmp_path) as logs:
        logs.append_columns("orders", rows.combine_chunks())
        assert values_in(logs) == rows["value"].to_pylist()
        logs.append_columns("small", pa.Table.from_batches(rows.to_batches(max_chunksize=3)))
        assert values_in(logs, "small") == rows["value"].to_pylist()
        counts = [header.record_count for header in headers_in(tmp_path / "small-0")]
        assert min(counts[:-1]) > 100


# -- what is refused

REFUSED: dict[str, tuple[dict[str, Any], type[StratalogError], str]] = {
    "no value": ({"value": None}, WriteSchemaError, "there is no column value, only key"),
    "value type": (
        {"value": pa.array([1.5] * 5)},
        WriteSchemaError,
        "column value has type double; it must be string or binary",
    ),
    "key type": ({"key": pa.array(range(5))}, WriteSchemaError, "column key has type int64"),
    "time type": (
        {"timestamp": pa.array(["now"] * 5)},
        WriteSchemaError,
        "column timestamp has type string; it must be a timestamp, or int64",
    ),
    "header type": (
        {"headers": pa.array([["a"]] * 5)},
        WriteSchemaError,
        "column headers has type list",
    ),
    "partition type": (
        {"partition": pa.array(["0"] * 5)},
        WriteSchemaError,
        "column partition has type string; it must be an integer",
    ),
    "partition": (
        {"partition": pa.array([0, None, 2, 3, 9])},
        InvalidRecordError,
        r"3 is not in the range \[0...3\) of topic 'orders' \(row 3\)",
    ),
    "negative partition": (
        {"partition": pa.array([0, -1, 2, 2, 1])},
        InvalidRecordError,
        r"-1 is not in the range .* \(row 1\)",
    ),
    "negative time": (
        {"timestamp": pa.array([None, 5, NOW_MS, -7, NOW_MS])},
        InvalidTimestampError,
        r"Invalid timestamp: -7.*row 3",
    ),
    "future": (
        {"timestamp": pa.array([NOW_MS, NOW_MS, NOW_MS + 3_600_001, NOW_MS, NOW_MS])},
        InvalidTimestampError,
        r"is outside of what topic 'orders' allows .*row 2",
    ),
    "header without key": (
        {"headers": pa.array([[], [("a", b"")], None, [("a", b""), (None, b"")], []], HEADERS)},
        InvalidRecordError,
        r"no key \(row 3\)",
    ),
    "too large": (
        {"value": pa.array([b"", b"", b"x" * 2_000_000, b"", b""])},
        MessageTooLargeError,
        "row 2 needs a batch of 20000.. bytes",
    ),
}


@pytest.mark.parametrize(("columns", "kind", "match"), REFUSED.values(), ids=list(REFUSED))
def test_refused_rows_leave_nothing(
    tmp_path: Path, columns: dict[str, Any], kind: type[StratalogError], match: str
) -> None:
    rows = table(5)
    for name, column in columns.items():
        if name in rows.column_names:
            rows = rows.drop_columns([name])
        if column is not None:
            rows = rows.append_column(name, column)
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 3)
        producer = logs.producer(idempotent=True)
        for append_columns in (logs.append_columns, producer.append_columns):
            with pytest.raises(kind, match=match):
                append_columns("orders", rows)
        assert [log.log_end_offset for log in logs.partitions_of("orders")] == [0, 0, 0]
        assert sum(part.record_count for part in producer.append_columns("orders", table(5))) == 5


def test_row_numbers_count_through_all_chunks_and_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PORTION_BYTES", 100)
    times = [NOW_MS] * 50
    times[41] = -5
    topics = ["a", "b"] * 25
    rows = table(50, timestamp=pa.array(times), topic=pa.array(topics))
    with open_logs(tmp_path) as logs:
        with pytest.raises(InvalidTimestampError, match="row 41"):
            logs.append_columns(None, pa.Table.from_batches(rows.to_batches(max_chunksize=4)))
        with pytest.raises(InvalidRecordError, match="row 17"):
            logs.append_columns(None, table(30, topic=pa.array(["a"] * 17 + [None] + ["b"] * 12)))
        monkeypatch.undo()
        with pytest.raises(InvalidTimestampError, match="row 41"):
            logs.append_columns(None, rows)


def test_a_compacted_topic_wants_keys(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", config={"cleanup.policy": "compact"})
        rows = pa.table({"key": ["a", "b", None], "value": ["1", None, "3"]})
        with pytest.raises(InvalidRecordError, match=r"without key .*row 2"):
            logs.append_columns("orders", rows)
        with pytest.raises(InvalidRecordError, match="without key"):
            logs.append_columns("orders", rows.drop_columns(["key"]))
        logs.append_columns("orders", rows.slice(0, 2))
        assert values_in(logs) == [b"1", None]


def test_data_that_is_not_arrow(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        for data in ([{"value": b"x"}], {"value": [b"x"]}, None):
            with pytest.raises(TypeError, match="is not Arrow data: pass a pyarrow Table"):
                logs.append_columns("orders", data)
        with pytest.raises(WriteSchemaError, match="no column topic"):
            logs.append_columns(None, table(1))
        with pytest.raises(WriteSchemaError, match="2 columns named value"):
            logs.append_columns("orders", pa.table([["a"], ["b"]], ["value", "value"]))
        with pytest.raises(WriteSchemaError, match="ChunkedArray has no columns"):
            logs.append_columns("orders", pa.chunked_array([["a"]]))
        assert not logs.topics


def test_topics_that_cannot_be_written(tmp_path: Path) -> None:
    with open_logs(tmp_path, auto_create_topics_enable=False) as logs:
        with pytest.raises(UnknownTopicOrPartitionError):
            logs.append_columns("orders", table(1))
        with logs.transaction("t") as txn:
            logs.create_topic("orders")
            txn.append("orders", b"x")
        with pytest.raises(InvalidTopicError, match="internal topic"):
            logs.append_columns("__transaction_state", table(1))


# -- producers


def test_waiting_records_come_first(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs, logs.producer(idempotent=True, linger_ms=60_000) as producer:
        logs.create_topic("orders", 2)
        waiting = producer.append("orders", b"before", partition=0)
        elsewhere = producer.append("orders", b"elsewhere", partition=1)
        zeros = pa.array([0, 0], pa.int32())
        (stored,) = producer.append_columns("orders", table(2, partition=zeros))
        after = producer.append("orders", b"after", partition=0)
        assert (waiting.is_done, elsewhere.is_done, after.is_done) == (True, False, False)
        assert stored == AppendedRange("orders", 0, 2, 1, 2)
        producer.flush()
        assert values_in(logs) == [b"before", b"0", b"1", b"after"]
    numbered = [
        (header.producer_id, header.producer_epoch, header.base_sequence)
        for header in headers_in(tmp_path / "orders-0")
    ]
    assert numbered == [(producer.producer_id, 0, sequence) for sequence in (0, 1, 3)]


def test_sequences_run_on_through_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PORTION_BYTES", 2000)
    with open_logs(tmp_path) as logs, logs.producer(idempotent=True, batch_bytes=500) as producer:
        producer.append_columns("orders", table(1000))
        producer.append_columns("orders", table(10))
    headers = headers_in(tmp_path / "orders-0")
    assert len(headers) > 20
    assert [header.base_sequence for header in headers] == [
        header.base_offset for header in headers
    ]


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_full_disk(tmp_path: Path, *, idempotent: bool) -> None:
    faulty = FaultyDisk()
    with open_logs(tmp_path, disk=faulty.disk) as logs:
        logs.create_topic("orders")
        producer = logs.producer(idempotent=idempotent)
        producer.append_columns("orders", table(3))
        before = producer.producer_id
        faulty.fail_next(28)  # ENOSPC
        with pytest.raises(StorageError, match="No space left"):
            producer.append_columns("orders", table(3))
        (stored,) = producer.append_columns("orders", table(3))
        assert stored.first_offset == 3
        assert (producer.producer_id != before) is idempotent


def test_a_closed_producer_and_a_closed_directory(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        producer = logs.producer()
        producer.close()
        with pytest.raises(ValueError, match="closed"):
            producer.append_columns("orders", table(1))
        logs.create_topic("orders")
    with pytest.raises(LogOfflineError):
        logs.append_columns("orders", table(1))


# -- transactions


@pytest.mark.parametrize("commit", [True, False])
def test_all_rows_belong_to_the_transaction(tmp_path: Path, *, commit: bool) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2)
        txn = logs.transaction("t", compression="lz4")
        txn.append("orders", b"before", partition=0)
        stored = txn.append_columns("orders", table(50))
        txn.append("orders", b"after", partition=0)
        assert sum(part.record_count for part in stored) == 50
        for log in logs.partitions_of("orders"):
            assert not list(log.read(isolation=IsolationLevel.READ_COMMITTED))
        if commit:
            txn.commit()
        else:
            txn.abort()
        with pytest.raises(InvalidTxnStateError):
            txn.append_columns("orders", table(1))
        committed = [
            record.value
            for log in logs.partitions_of("orders")
            for record in log.read(isolation=IsolationLevel.READ_COMMITTED)
        ]
        assert len(committed) == (52 if commit else 0)
    for partition in range(2):
        headers = headers_in(tmp_path / f"orders-{partition}")
        assert all(header.is_transactional for header in headers)
        assert headers[-1].is_control


def test_a_failed_portion_lets_the_transaction_only_abort(tmp_path: Path) -> None:
    faulty = FaultyDisk()
    with open_logs(tmp_path, disk=faulty.disk) as logs:
        logs.create_topic("orders")
        logs.transaction("t").abort()
        txn = logs.transaction("t")
        txn.append_columns("orders", table(3))
        faulty.fail_next(28)
        with pytest.raises(StorageError):
            txn.append_columns("orders", table(3))
        with pytest.raises(InvalidTxnStateError, match="only be aborted"):
            txn.append_columns("orders", table(3))
        txn.abort()
        assert not list(logs.partition("orders", 0).read(isolation=IsolationLevel.READ_COMMITTED))


def test_a_fenced_producer(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        txn = logs.transaction("t")
        txn.append_columns("orders", table(3))
        logs.transaction("t")
        with pytest.raises(InvalidProducerEpochError):
            txn.append_columns("orders", table(3))


def test_readers_see_portions_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source may look at the log, or append to it, while it is read."""
    monkeypatch.setattr(module, "PORTION_BYTES", 1)
    with open_logs(tmp_path) as logs, logs.producer(linger_ms=0) as producer:
        logs.create_topic("orders")
        seen: list[int] = []

        def batches() -> Iterator[pa.RecordBatch]:
            for number in count():
                if number == 3:
                    return
                seen.append(logs.partition("orders", 0).log_end_offset)
                producer.append("orders", b"between")
                yield table(2).to_batches()[0]

        reader = pa.RecordBatchReader.from_batches(table(2).schema, batches())
        (stored,) = producer.append_columns("orders", reader)
        assert seen == [0, 3, 6]
        assert stored == AppendedRange("orders", 0, 6, 1, 8)

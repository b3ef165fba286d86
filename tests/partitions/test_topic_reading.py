"""Topics as columns, from a reader and from a writer: records, columns, errors."""

from __future__ import annotations

import gc
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from stratalog.errors import (
    CorruptError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    TextError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.record import Record, encode_batch
from stratalog.partitions.view import open_dirs
from tests.log.building import BASE_TIMESTAMP, log_name, plain_segment, write_partition
from tests.open_files import open_files
from tests.opening import open_logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.partitions.topic_reading import TopicReader

COLUMNS = ["topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers"]
EVENTS = [{"id": number, "name": f"n{number}", "tags": ["a"]} for number in range(6)]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """`orders` with two partitions, `stock` with one, an internal topic, and an aborted record."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2)
        logs.create_topic("none", 1)
        for number, event in enumerate(EVENTS):
            logs.append(
                "orders",
                json.dumps(event).encode(),
                key=b"k%d" % number,
                partition=number % 2,
                timestamp=BASE_TIMESTAMP + number,
                headers={"h": b"x"},
            )
        logs.append("stock", None, key=b"gone", timestamp=BASE_TIMESTAMP)
        with suppress(ZeroDivisionError), logs.transaction("x") as txn:
            txn.append("stock", b"aborted", timestamp=BASE_TIMESTAMP).result()
            raise ZeroDivisionError
    return tmp_path


@pytest.fixture(params=["reader", "writer"])
def logs(request: pytest.FixtureRequest, written: Path) -> Iterator[TopicReader]:
    with open_dirs(written) if request.param == "reader" else open_logs(written) as opened:
        yield opened


def places(reader: pa.RecordBatchReader) -> list[tuple[str, int, int]]:
    return [
        (row["topic"], row["partition"], row["offset"]) for row in reader.read_all().to_pylist()
    ]


ORDERS = [("orders", number, offset) for number in (0, 1) for offset in (0, 1, 2)]


def test_a_topic(logs: TopicReader) -> None:
    reader = logs.read_columns("orders")
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema.names == COLUMNS
    table = reader.read_all()
    assert table.schema == reader.schema
    rows = table.to_pylist()
    assert [row["value"] for row in rows] == [
        json.dumps(EVENTS[number]).encode() for number in (0, 2, 4, 1, 3, 5)
    ]
    assert rows[1] == {
        "topic": "orders",
        "partition": 0,
        "offset": 1,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 2000, tzinfo=UTC),
        "timestampType": 0,
        "key": b"k2",
        "value": json.dumps(EVENTS[2]).encode(),
        "headers": [{"key": "h", "value": b"x"}],
    }


def test_which_topics(logs: TopicReader) -> None:
    assert places(logs.read_columns("orders")) == ORDERS
    assert places(logs.read_columns(["stock", "orders", "stock"])) == [
        ("stock", 0, 0),
        ("stock", 0, 1),
        *ORDERS,
    ]
    assert len(places(logs.read_columns())) == 8  # no internal topics
    assert len(logs.read_columns("__transaction_state").read_all()) > 0
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'order'; topics here: "):
        logs.read_columns(["orders", "order"])
    with pytest.raises(InvalidArgumentError, match="topics is 7"):
        logs.read_columns(7)  # type: ignore[arg-type]


def test_offsets(logs: TopicReader) -> None:
    assert places(logs.read_columns("orders", start=1, end=2)) == [
        ("orders", 0, 1),
        ("orders", 1, 1),
    ]
    assert places(logs.read_columns("orders", start="latest")) == []
    by_number = logs.read_columns("orders", start={0: 2}, end={1: 1})
    assert places(by_number) == [("orders", 0, 2), ("orders", 1, 0)]
    both = logs.read_columns(["orders", "stock"], start={("orders", 0): 3, ("orders", 1): 3})
    assert [place[0] for place in places(both)] == ["stock", "stock"]
    with pytest.raises(OffsetOutOfRangeError):
        logs.read_columns("orders", start=99)
    with pytest.raises(UnknownTopicOrPartitionError, match="start has an offset for orders-7"):
        logs.read_columns("orders", start={7: 0})
    wrong: Any = {"orders-0": 1}
    with pytest.raises(InvalidArgumentError, match="start has an offset for 'orders-0'"):
        logs.read_columns("orders", start=wrong)
    with pytest.raises(InvalidArgumentError, match="end has an offset for 0"):
        logs.read_columns(["orders", "stock"], end={0: 1})


def test_times(logs: TopicReader) -> None:
    since = datetime(2023, 11, 14, 22, 13, 20, 2000, tzinfo=UTC)
    found = logs.read_columns(since=since, until=BASE_TIMESTAMP + 5)
    assert places(found) == [("orders", 0, 1), ("orders", 0, 2), ("orders", 1, 1)]


def test_isolation(logs: TopicReader) -> None:
    assert len(places(logs.read_columns("stock", isolation="read_committed"))) == 1
    with pytest.raises(InvalidArgumentError, match="isolation is 'rubbish'"):
        logs.read_columns("stock", isolation="rubbish")  # type: ignore[arg-type]


def test_columns(logs: TopicReader) -> None:
    reader = logs.read_columns("orders", columns=["value", "partition", "producerId", "topic"])
    table = reader.read_all()
    assert table.schema.names == ["value", "partition", "producerId", "topic"]
    assert table["partition"].to_pylist() == [0, 0, 0, 1, 1, 1]
    assert set(table["topic"].to_pylist()) == {"orders"}
    assert logs.read_columns("orders", columns=["topic"]).read_all()["topic"].to_pylist() == [
        "orders"
    ] * len(ORDERS)
    for wrong in (["values"], "value", [], ["value", "value"]):
        with pytest.raises(InvalidArgumentError, match="column"):
            logs.read_columns("orders", columns=wrong)


def test_an_empty_result_has_the_schema(logs: TopicReader) -> None:
    full = logs.read_columns("orders").schema
    empty = logs.read_columns("none")
    assert empty.schema == full
    table = empty.read_all()
    assert (table.num_rows, table.schema) == (0, full)
    typed = logs.read_columns("none", values=pa.struct([("id", pa.int64())]), keys="text")
    assert typed.schema.field("value").type == pa.struct([("id", pa.int64())])
    assert typed.schema.field("key").type == pa.string()
    assert logs.read_columns("none", values="json").read_all().num_rows == 0


# -- text and JSON


def test_text(logs: TopicReader) -> None:
    table = logs.read_columns(["orders", "stock"], keys="text", values="text", end=1).read_all()
    assert table["key"].to_pylist() == ["k0", "k1", "gone"]
    assert table["value"].to_pylist() == [json.dumps(EVENTS[0]), json.dumps(EVENTS[1]), None]


def test_json(logs: TopicReader) -> None:
    table = logs.read_columns("orders", values="json").read_all()
    assert table["value"].to_pylist() == [EVENTS[number] for number in (0, 2, 4, 1, 3, 5)]
    wanted = pa.schema([("name", pa.string()), ("more", pa.float64())])
    table = logs.read_columns(["orders", "stock"], values=wanted, end=1).read_all()
    assert table["value"].to_pylist() == [
        {"name": "n0", "more": None},
        {"name": "n1", "more": None},
        None,
    ]


def values_in(root: Path, *batches: list[bytes | None]) -> TopicReader:
    """A topic with these values, a list for each record batch."""
    raw, offset = b"", 0
    for values in batches:
        numbered = enumerate(values, offset)
        raw += encode_batch([Record(at, at, None, value) for at, value in numbered])
        offset += len(values)
    write_partition(root / "t-0", {0: raw})
    return open_dirs(root)


def test_json_of_any_shape(tmp_path: Path) -> None:
    values: list[bytes | None] = [b"1", b" 2\n", None, b"null"]
    logs = values_in(tmp_path, values)
    assert logs.read_columns("t", values="json").read_all()["value"].to_pylist() == [
        1,
        2,
        None,
        None,
    ]


def test_times_in_json_stay_text(tmp_path: Path) -> None:
    values: list[bytes | None] = [b'{"at": "2024-05-01", "in": [{"at": "2024-05-01 10:00:00"}]}']
    found = values_in(tmp_path, values).read_columns("t", values="json").read_all()
    assert found["value"].to_pylist() == [json.loads(values[0] or b"")]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            b"{",
            r"offset 1: the value cannot be parsed as JSON: [^.]*[^. ]; pass the Arrow type of ",
        ),
        (b"", "cannot be parsed as JSON"),
        (b'{"a": 1} {"a": 2}', "cannot be parsed as JSON"),
        (b'{"a": 1}}{"":{"a": 2}', "more than one JSON document"),
        (b'{"a": "text"}', "pass the Arrow type"),
        (b"\xff", "cannot be parsed as JSON"),
    ],
    ids=repr,
)
def test_bad_json(tmp_path: Path, bad: bytes, words: str) -> None:
    logs = values_in(tmp_path, [b'{"a": 1}', bad, b'{"a": 3}'])
    with pytest.raises(TextError, match=f"t-0, .*{words}"):
        logs.read_columns("t", values="json").read_all()


def test_json_that_changes_is_not_dropped(tmp_path: Path) -> None:
    """The type is inferred from the first batch; fields that it does not have are an error."""
    filler: list[bytes | None] = [b'{"a": 1, "text": "%s"}' % (b"x" * 100_000)] * 10
    for number, last in enumerate((b'{"a": 1, "b": 2}', b'{"a": "b"}')):
        logs = values_in(tmp_path / str(number), *[filler] * 12, [last])
        reader = logs.read_columns("t", values="json")
        with pytest.raises(TextError, match="pass the Arrow type") as caught:
            reader.read_all()
        assert "t-0, " in str(caught.value)
        typed = pa.struct([("text", pa.string())])
        rows = logs.read_columns("t", values=typed).read_all()
        assert rows["value"].to_pylist()[-1] == {"text": None}


def test_bad_text(tmp_path: Path) -> None:
    logs = values_in(tmp_path, [b"good", None, b"\xff\xfe"])
    with pytest.raises(TextError, match="t-0, offset 2: the value is not UTF-8 text"):
        logs.read_columns("t", values="text").read_all()
    with pytest.raises(InvalidArgumentError, match="values is 'xml', not one of bytes, text, json"):
        logs.read_columns("t", values="xml")


# -- laziness


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Two partitions of 20 segments, about 700 KB each."""
    for number in (0, 1):
        segments = {at * 2000: plain_segment(at * 2000, 1, records=2000) for at in range(20)}
        write_partition(tmp_path / f"t-{number}", segments)
    return tmp_path


def test_files_are_open_only_while_they_are_read(large: Path) -> None:
    logs = open_dirs(large)
    reader = logs.read_columns("t")
    assert open_files(large) == []
    reader.read_next_batch()
    assert {path.parent.name for path in open_files(large)} == {"t-0"}
    assert reader.read_all().num_rows > 0
    assert open_files(large) == []


def test_an_abandoned_reader_closes_its_files(large: Path) -> None:
    logs = open_dirs(large)
    reader = logs.read_columns("t")
    reader.read_next_batch()
    assert open_files(large)
    del reader
    gc.collect()
    assert open_files(large) == []


def test_closing_the_directories_closes_the_files_of_readers(large: Path) -> None:
    with open_dirs(large) as logs:
        reader = logs.read_columns("t")
        reader.read_next_batch()
        assert open_files(large)
    assert open_files(large) == []
    partition = logs.partition("t", 0)
    columns = partition.read_columns()
    columns.read_next_batch()
    assert open_files(large)
    logs.close()
    assert open_files(large) == []


def test_errors_keep_their_type_and_place(large: Path) -> None:
    """What was valid before comes first."""
    damaged = large / "t-1" / log_name(4000)
    raw = bytearray(damaged.read_bytes())
    raw[100] ^= 1
    damaged.write_bytes(raw)
    reader = open_dirs(large).read_columns("t", columns=["partition", "offset"])
    batches: list[pa.RecordBatch] = []
    with pytest.raises(CorruptError) as caught:
        batches.extend(reader)
    assert (caught.value.path, caught.value.position) == (damaged, 0)
    assert sum(batch.num_rows for batch in batches) == 44_000
    skipped: list[object] = []
    assert open_dirs(large).read_columns("t", on_skip=skipped.append).read_all().num_rows == 78_000
    assert len(skipped) == 1


def test_a_partition_without_a_segment_is_empty(large: Path) -> None:
    (large / "t-2").mkdir()
    assert open_dirs(large).read_columns("t").read_all().num_rows == 80_000


def test_dataset_writers_take_it(large: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    reader = open_dirs(large).read_columns("t", end=1000, columns=["partition", "offset", "value"])
    ds.write_dataset(reader, target, format="parquet", partitioning=["partition"])
    assert ds.dataset(target, partitioning=["partition"]).count_rows() == 2000

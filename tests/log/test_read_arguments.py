"""Arguments of reading: Kafka's names for enums, times of all kinds, and nothing is ignored."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stratalog.bulk.export import FileSpec
from stratalog.bulk.input_files import FileSource
from stratalog.bulk.options import ReadOptions, WriteOptions
from stratalog.errors import CorruptBatchError, InvalidArgumentError
from stratalog.format.batch import Codec
from stratalog.format.record import Record, encode_batch
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import IsolationLevel
from tests.golden.cases import GOLDEN_DIR
from tests.log.building import BASE_TIMESTAMP, plain_segment, write_partition
from tests.log.readers import over_readers
from tests.opening import open_logs

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.log.reader import Skipped
    from tests.log.readers import Reader

START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)  # BASE_TIMESTAMP


@pytest.fixture(scope="module")
def aborted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition with an aborted transaction."""
    root = tmp_path_factory.mktemp("aborted")
    with open_logs(root) as logs:
        logs.append("t", b"seen")
        with suppress(ZeroDivisionError), logs.transaction("x") as txn:
            txn.append("t", b"aborted").result()
            raise ZeroDivisionError
    return root / "t-0"


@over_readers
def test_isolation_by_kafkas_names(aborted: Path, reader: Reader) -> None:
    for isolation in ("read_committed", "READ_COMMITTED", IsolationLevel.READ_COMMITTED):
        found = reader(PartitionView(aborted), isolation=isolation)  # type: ignore[arg-type]
        assert [record.value for record in found] == [b"seen"]
    found = reader(PartitionView(aborted), isolation="read_uncommitted")
    assert [record.value for record in found] == [b"seen", b"aborted"]


@over_readers
@pytest.mark.parametrize("wrong", ["rubbish", "committed", None, True, 1])
def test_other_isolation_is_refused(aborted: Path, reader: Reader, wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"isolation is .*, not one of read_uncommitted"):
        reader(PartitionView(aborted), isolation=wrong)


def test_enums_of_other_parameters_are_refused(aborted: Path, tmp_path: Path) -> None:
    wrong: Any = "rubbish"
    with pytest.raises(InvalidArgumentError, match="missing_dirs is 'rubbish', not one of refuse"):
        open_logs(tmp_path, missing_dirs=wrong)
    with open_logs(tmp_path) as logs:
        logs.append("t", b"x")
        log = logs.partition("t", 0)
        batch = encode_batch([Record(0, 5, None, b"v")])
        with pytest.raises(InvalidArgumentError, match="origin is 'rubbish', not one of client"):
            log.append(batch, origin=wrong)
        assert log.append(batch, origin="client").first_offset == 1
        compression: Any
        for compression in (wrong, 3, None):
            with pytest.raises(InvalidArgumentError, match=r"compression is .*, not one of none"):
                logs.producer(compression=compression)
            with pytest.raises(InvalidArgumentError, match="compression is"):
                logs.transaction("x", compression=compression)
            with pytest.raises(InvalidArgumentError, match="compression is"):
                logs.append_columns("t", pa.table({"value": ["x"]}), compression=compression)
    with pytest.raises(InvalidArgumentError, match="isolation is"):
        ReadOptions((aborted,), isolation=wrong)
    committed: Any = "read_committed"
    assert ReadOptions((), isolation=committed).isolation is IsolationLevel.READ_COMMITTED
    with pytest.raises(InvalidArgumentError, match="codec is"):
        WriteOptions(wrong, codec=wrong)
    assert WriteOptions(wrong, codec=Codec.LZ4).codec is Codec.LZ4
    with pytest.raises(InvalidArgumentError, match="format is 'rubbish', not one of parquet"):
        FileSpec(format=wrong)
    with pytest.raises(InvalidArgumentError, match="codec is 'rubbish', not one of none, snappy"):
        FileSpec(codec=wrong)
    with pytest.raises(InvalidArgumentError, match="format is 'rubbish', not one of json, csv"):
        FileSource(["x"], format=wrong)


@pytest.fixture
def view(tmp_path: Path) -> PartitionView:
    """Offsets 0 to 39, a millisecond apart, in two segments."""
    segments = {0: plain_segment(0, 10), 20: plain_segment(20, 10)}
    return PartitionView(write_partition(tmp_path / "t-0", segments))


@over_readers
@pytest.mark.parametrize(
    ("since", "until"),
    [
        (BASE_TIMESTAMP + 15, BASE_TIMESTAMP + 23),
        (START + timedelta(milliseconds=15), START + timedelta(milliseconds=23)),
        (START + timedelta(microseconds=14_001), START + timedelta(microseconds=22_001)),
        (pd.Timestamp(START) + pd.Timedelta(15, "ms"), pd.Timestamp(START) + pd.Timedelta("23ms")),
        (np.datetime64("2023-11-14T22:13:20.015"), np.datetime64("2023-11-14T22:13:20.023")),
    ],
    ids=["int", "datetime", "rounded up", "pandas", "numpy"],
)
def test_times(view: PartitionView, reader: Reader, since: Any, until: Any) -> None:
    found = reader(view, since=since, until=until)
    assert [record.offset for record in found] == list(range(15, 23))
    hit = view.find_time(since)
    assert hit is not None
    assert hit.offset == 15


@over_readers
def test_times_and_offsets(view: PartitionView, reader: Reader) -> None:
    def offsets(**arguments: Any) -> list[int]:
        return [record.offset for record in reader(view, **arguments)]

    late = BASE_TIMESTAMP + 15
    assert offsets(since=late, start=17, end=19) == [17, 18]
    assert offsets(since=late, start=5, max_records=2) == [15, 16]
    assert offsets(until=late, start=13) == [13, 14]
    assert offsets(since=BASE_TIMESTAMP + 1000) == []
    assert offsets(until=BASE_TIMESTAMP) == []
    assert offsets(since=late, until=late) == []
    assert offsets(since=0, until=(1 << 63) - 1) == list(range(40))


@over_readers
def test_late_records_are_found(tmp_path: Path, reader: Reader) -> None:
    """Timestamps out of order: all records of the range, and none that is not in it."""
    times = [10, 20, 30, 12, 40, 5, 25]
    records = [Record(at, time, None, b"v") for at, time in enumerate(times)]
    raw = b"".join(encode_batch([record]) for record in records)
    view = PartitionView(write_partition(tmp_path / "t-0", {0: raw}))
    assert [record.timestamp for record in reader(view, since=12, until=30)] == [20, 12, 25]
    assert [record.timestamp for record in reader(view, until=26)] == [10, 20, 12, 5, 25]
    # If nothing is more than 14 ms late, nothing that is wanted comes after the record at 40.
    found = reader(view, until=26, timestamp_disorder_ms=14)
    assert [record.timestamp for record in found] == [10, 20, 12]
    found = reader(view, until=26, timestamp_disorder_ms=4)
    assert [record.timestamp for record in found] == [10, 20]


@over_readers
def test_corruption_where_a_time_begins(tmp_path: Path, reader: Reader) -> None:
    """The lookup by time ends in a corrupt batch: an error, or skipped like any other."""
    batches = [encode_batch([Record(at, at, None, b"v")]) for at in range(10)]
    batches[5] = batches[5][:-1] + b"?"
    path = write_partition(tmp_path / "t-0", {0: b"".join(batches)})
    with pytest.raises(CorruptBatchError):
        list(reader(PartitionView(path), since=5))
    skipped: list[Skipped] = []
    found = reader(PartitionView(path), since=5, until=8, on_skip=skipped.append)
    assert [record.offset for record in found] == [6, 7]
    found = reader(PartitionView(path), until=5, timestamp_disorder_ms=0, on_skip=skipped.append)
    assert [record.offset for record in found] == [0, 1, 2, 3, 4]
    assert {report.first_offset for report in skipped} == {5}


@over_readers
@pytest.mark.parametrize("name", ["since", "until"])
@pytest.mark.parametrize("wrong", [1.5, "2024-05-01", datetime(2024, 5, 1), "-2h"], ids=repr)
def test_other_times_are_refused(
    view: PartitionView, reader: Reader, name: str, wrong: Any
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} is .* (a float|a str|no time zone)"):
        reader(view, **{name: wrong})
    with pytest.raises(InvalidArgumentError, match="timestamp is"):
        view.find_time(wrong)


@over_readers
def test_other_offsets_are_refused(view: PartitionView, reader: Reader) -> None:
    wrong: Any
    for wrong in ("first", "", "-1"):
        with pytest.raises(InvalidArgumentError, match=r"start is .*, not one of earliest, latest"):
            reader(view, wrong)
    for wrong in (1.0, None, START, b"earliest"):
        with pytest.raises(InvalidArgumentError, match=r"start is .*use an offset"):
            reader(view, wrong)
    for wrong in (1.0, "latest", START):
        with pytest.raises(InvalidArgumentError, match=r"end is .*use an offset"):
            reader(view, 0, wrong)
    assert [record.offset for record in reader(view, np.int64(3), np.int64(5))] == [3, 4]  # type: ignore[arg-type]


@over_readers
def test_other_limits_are_refused(view: PartitionView, reader: Reader) -> None:
    wrong: Any
    for wrong in ("5", 1.5, None, -1):
        for name in ("max_records", "max_bytes"):
            with pytest.raises(InvalidArgumentError, match=f"{name} is"):
                reader(view, **{name: wrong})
    for wrong in ("5", 1.5, -1, timedelta(1)):
        with pytest.raises(InvalidArgumentError, match="timestamp_disorder_ms is"):
            reader(view, until=BASE_TIMESTAMP, timestamp_disorder_ms=wrong)
    found = reader(view, until=(1 << 63) - 1, timestamp_disorder_ms=5)
    assert len(list(found)) == 40


def test_golden_times() -> None:
    """As Kafka wrote them."""
    with PartitionView(GOLDEN_DIR / "txn" / "txn-0") as view:
        hit = view.find_time(datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC))
        assert hit == view.find_time(1_700_000_000_500)
        assert hit is not None

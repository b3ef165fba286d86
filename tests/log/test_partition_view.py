"""Ranges, bounds and odd shapes of a log, for every way to read it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import (
    CorruptCheckpointError,
    NotALogDirError,
    OffsetOutOfRangeError,
    StratalogError,
)
from stratalog.format.batch import BatchHeader
from stratalog.format.names import DirState, TopicPartition
from stratalog.format.record import encode_batch, encode_empty_batch
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import NO_LIMIT, IsolationLevel
from stratalog.log.segment_list import OPEN_SEGMENTS_MAX
from stratalog.storage.segment_view import CHUNK_BYTES
from tests.golden.cases import GoldenCase
from tests.golden.expected import directory_to_read, visible
from tests.log.building import (
    batches_of,
    copy_partition,
    log_name,
    plain_records,
    plain_segment,
    records_in,
    write_partition,
)
from tests.log.readers import over_readers
from tests.open_files import open_files

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.log.reader import StartOffset
    from tests.log.readers import Reader


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Offsets 0 to 29, two to a batch, in three segments of five batches."""
    segments = {base: plain_segment(base, 5) for base in (0, 10, 20)}
    return write_partition(tmp_path / "orders-7", segments)


def offsets(
    reader: Reader,
    view: PartitionView,
    start: int | None = None,
    end: int | None = None,
    *,
    max_bytes: int = NO_LIMIT,
    max_records: int = NO_LIMIT,
) -> list[int]:
    first: StartOffset = "earliest" if start is None else start
    records = reader(view, first, end, max_bytes=max_bytes, max_records=max_records)
    return [record.offset for record in records]


# -- ranges


@over_readers
def test_every_range(reader: Reader, path: Path) -> None:
    with PartitionView(path) as view:
        for start in range(31):
            for end in {*range(start, 31, 4), start, start + 1, 30, 99}:
                assert offsets(reader, view, start, end) == list(range(start, min(end, 30)))


@over_readers
def test_range_that_ends_before_it_begins(reader: Reader, path: Path) -> None:
    with PartitionView(path) as view:
        assert offsets(reader, view, 20, 5) == []
        assert offsets(reader, view, 0, -1) == []


@over_readers
def test_latest_is_the_end(reader: Reader, path: Path) -> None:
    with PartitionView(path) as view:
        assert list(reader(view, "latest")) == []
        assert view.resolve("latest") == 30
        assert view.resolve("earliest") == 0
        assert view.resolve(12) == 12


@over_readers
@pytest.mark.parametrize("offset", [-1, 31, 1 << 62])
def test_out_of_range(reader: Reader, offset: int, path: Path) -> None:
    with PartitionView(path) as view:
        with pytest.raises(OffsetOutOfRangeError) as caught:
            reader(view, offset)  # at once, not at the first record
        told = caught.value
        assert (told.offset, told.log_start_offset, told.log_end_offset) == (offset, 0, 30)
        with pytest.raises(OffsetOutOfRangeError):
            view.locate(offset)


@over_readers
def test_below_the_log_start(reader: Reader, path: Path) -> None:
    with PartitionView(path, log_start_offset=13) as view:
        assert offsets(reader, view) == list(range(13, 30))
        with pytest.raises(OffsetOutOfRangeError):
            reader(view, 12)


@over_readers
def test_log_start_at_every_offset(reader: Reader, path: Path) -> None:
    """Inside a batch, inside a segment, at the end: nothing below is seen."""
    for start in range(31):
        with PartitionView(path, log_start_offset=start) as view:
            assert (view.log_start_offset, view.log_end_offset) == (start, 30)
            assert offsets(reader, view) == list(range(start, 30))


@over_readers
def test_log_start_beyond_the_end(reader: Reader, path: Path) -> None:
    """All records were deleted; the last segment is not gone yet."""
    with PartitionView(path, log_start_offset=44) as view:
        assert (view.log_start_offset, view.log_end_offset) == (44, 44)
        assert view.last_stable_offset == 44
        assert offsets(reader, view) == []
        assert view.locate(44) is None
        assert view.find_time(0) is None
        assert view.find_max_timestamp() is None


def test_log_start_below_the_first_segment(path: Path) -> None:
    (path / log_name(0)).unlink()
    with PartitionView(path, log_start_offset=3) as view:
        assert view.log_start_offset == 10


# -- limits


@over_readers
@pytest.mark.parametrize("count", [0, 1, 2, 3, 9, 10, 11, 29, 30, 31])
def test_limit_on_records(reader: Reader, count: int, path: Path) -> None:
    with PartitionView(path) as view:
        assert offsets(reader, view, max_records=count) == list(range(min(count, 30)))
        expected = list(range(7, min(7 + count, 30)))
        assert offsets(reader, view, 7, max_records=count) == expected


@over_readers
def test_limit_on_bytes(reader: Reader, path: Path) -> None:
    """Whole batches up to the limit, and the first one whatever its size."""
    batches = [batch for at in (0, 10, 20) for batch in batches_of(plain_segment(at, 5))]
    sizes = [len(batch.raw) for batch in batches]
    with PartitionView(path) as view:
        for count in range(1, 15):
            for limit in (sum(sizes[:count]), sum(sizes[:count]) + 1, sum(sizes[: count + 1]) - 1):
                found = list(reader(view, max_bytes=limit))
                assert found == records_in(batches[:count]), (count, limit)
        for limit in (0, 1, sizes[0] - 1):
            assert offsets(reader, view, max_bytes=limit) == [0, 1]
            assert offsets(reader, view, 13, max_bytes=limit) == [13]


@over_readers
def test_limits_are_met_before_the_damage_behind_them(reader: Reader, tmp_path: Path) -> None:
    batches = batches_of(plain_segment(0, 6))
    raw = b"".join(b.raw for b in batches[:3]) + bytes(100) + b"".join(b.raw for b in batches[3:])
    path = write_partition(tmp_path / "t-0", {0: raw})
    with PartitionView(path) as view:
        assert offsets(reader, view, max_records=6) == list(range(6))
        assert offsets(reader, view, max_bytes=batches[2].end) == list(range(6))
        assert offsets(reader, view, 0, 6) == list(range(6))


@over_readers
def test_limits_count_on_after_damage(reader: Reader, tmp_path: Path) -> None:
    batches = batches_of(plain_segment(0, 8))
    raw = b"".join(b.raw for b in batches[:3]) + bytes(100) + b"".join(b.raw for b in batches[3:])
    path = write_partition(tmp_path / "t-0", {0: raw})
    with PartitionView(path) as view:
        for count in range(1, 17):
            found = reader(view, max_records=count, on_skip=lambda _: None)
            assert [record.offset for record in found] == list(range(count))
        for count in range(1, 9):
            limit = sum(len(b.raw) for b in batches[:count])
            found = reader(view, max_bytes=limit, on_skip=lambda _: None)
            assert list(found) == records_in(batches[:count])
        for end in range(17):
            found = reader(view, 0, end, on_skip=lambda _: None)
            assert [record.offset for record in found] == list(range(end))


# -- shapes


@over_readers
def test_batch_larger_than_what_is_read_at_once(reader: Reader, tmp_path: Path) -> None:
    sizes = [1 << 21, 10, CHUNK_BYTES - 200, CHUNK_BYTES, 3 << 20, 10]
    records = [plain_records(offset, 1, value_bytes=size)[0] for offset, size in enumerate(sizes)]
    raw = b"".join(encode_batch([record]) for record in records)
    path = write_partition(tmp_path / "t-0", {0: raw})
    for start in range(7):
        with PartitionView(path) as view:
            assert list(reader(view, start)) == records[start:]


@over_readers
def test_empty_segments(reader: Reader, tmp_path: Path) -> None:
    segments = {0: b"", 3: plain_segment(3, 1), 5: b"", 9: b"", 12: plain_segment(12, 1), 14: b""}
    path = write_partition(tmp_path / "t-0", segments)
    with PartitionView(path) as view:
        assert (view.log_start_offset, view.log_end_offset) == (0, 14)
        for start in range(15):
            expected = [offset for offset in (3, 4, 12, 13) if offset >= start]
            assert offsets(reader, view, start) == expected
            found = view.locate(start)
            assert (None if found is None else found.record.offset) == min(expected, default=None)


@over_readers
def test_log_of_one_empty_segment(reader: Reader, tmp_path: Path) -> None:
    path = write_partition(tmp_path / "t-0", {42: b""})
    with PartitionView(path) as view:
        assert (view.log_start_offset, view.log_end_offset) == (42, 42)
        assert offsets(reader, view) == []
        assert offsets(reader, view, 42) == []
        assert view.find_time(0) is None
        assert view.find_max_timestamp() is None
        assert view.producers == ()


@over_readers
def test_holes(reader: Reader, tmp_path: Path) -> None:
    """Between records of a batch, between batches, at the end of a batch, between segments."""
    holed = [plain_records(offset, 1)[0] for offset in (0, 3, 4, 9)]
    empty = encode_empty_batch(BatchHeader.unpack(encode_batch(plain_records(20, 3))))
    raw = encode_batch(holed) + encode_batch(plain_records(15, 1)) + empty
    path = write_partition(tmp_path / "t-0", {0: raw, 40: encode_batch(plain_records(44, 2))})
    present = [0, 3, 4, 9, 15, 44, 45]
    with PartitionView(path) as view:
        assert view.log_end_offset == 46
        for start in range(47):
            expected = [offset for offset in present if offset >= start]
            assert offsets(reader, view, start) == expected
            found = view.locate(start)
            assert (None if found is None else found.record.offset) == min(expected, default=None)
        for end in range(47):
            expected = [offset for offset in present if offset < end]
            assert offsets(reader, view, 0, end) == expected


def test_log_that_ends_with_an_empty_batch(tmp_path: Path) -> None:
    """Compaction keeps its offsets: the log does not become shorter."""
    empty = encode_empty_batch(BatchHeader.unpack(encode_batch(plain_records(4, 3))))
    path = write_partition(tmp_path / "t-0", {0: plain_segment(0, 2) + empty})
    with PartitionView(path) as view:
        assert view.log_end_offset == 7
        assert [record.offset for record in view.read()] == [0, 1, 2, 3]


@over_readers
def test_offsets_near_the_largest(reader: Reader, tmp_path: Path) -> None:
    base = (1 << 63) - 10
    path = write_partition(tmp_path / "t-0", {base: plain_segment_at(base, 3)})
    with PartitionView(path) as view:
        assert view.log_end_offset == base + 6
        assert offsets(reader, view) == list(range(base, base + 6))
        assert offsets(reader, view, base + 3) == list(range(base + 3, base + 6))


def plain_segment_at(base: int, batches: int) -> bytes:
    """Timestamps that do not follow the offsets out of range."""
    return b"".join(
        encode_batch(plain_records(base + 2 * at, 2, timestamp=at)) for at in range(batches)
    )


@pytest.mark.slow
@over_readers
def test_more_segments_than_stay_open(reader: Reader, tmp_path: Path) -> None:
    count = 3 * OPEN_SEGMENTS_MAX
    segments = {2 * at: plain_segment(2 * at, 1) for at in range(count)}
    path = write_partition(tmp_path / "t-0", segments)
    assert open_files(path) == []
    with PartitionView(path) as view:
        for start in (0, 1, 77, 2 * count - 1):
            assert offsets(reader, view, start) == list(range(start, 2 * count))
        assert view.find_time(plain_records(2 * count - 1, 1)[0].timestamp) is not None
        for start in range(0, 2 * count, 5):
            found = view.locate(start)
            assert found is not None
            assert found.record.offset == start
        assert 0 < len(open_files(path)) <= OPEN_SEGMENTS_MAX
        one, other = reader(view), reader(view)  # each needs what the other's turn may close
        assert [next(one).offset for _ in range(3)] == [0, 1, 2]
        assert [record.offset for record in other] == list(range(2 * count))
        assert [record.offset for record in one] == list(range(3, 2 * count))
    assert open_files(path) == []


@over_readers
def test_closed_view_opens_its_files_anew(reader: Reader, path: Path) -> None:
    with PartitionView(path) as view:
        records = reader(view)
        assert next(records).offset == 0
        view.close()
        assert [record.offset for record in records] == list(range(1, 30))
    assert offsets(reader, view, 28) == [28, 29]
    view.close()


@over_readers
def test_only_one_segment(reader: Reader, path: Path) -> None:
    with PartitionView(path, base_offset=10) as view:
        assert (view.log_start_offset, view.log_end_offset) == (10, 20)
        assert offsets(reader, view) == list(range(10, 20))
    with pytest.raises(NotALogDirError):
        PartitionView(path, base_offset=11)


# -- what else is in the directory


@over_readers
def test_strange_files_are_left_out(reader: Reader, path: Path) -> None:
    (path / "notes.txt").write_text("hello")
    (path / "00000000000000000005.log.bak").write_bytes(plain_segment(5, 1))
    (path / "5.log").write_bytes(plain_segment(5, 1))
    (path / "00000000000000000006.log").mkdir()
    (path / "00000000000000000007.index").write_bytes(b"no log beside it")
    with PartitionView(path) as view:
        assert offsets(reader, view) == list(range(30))


def test_names(path: Path, tmp_path: Path) -> None:
    with PartitionView(path) as view:
        assert view.topic_partition == TopicPartition("orders", 7)
        assert view.state is DirState.LIVE
        assert str(path) in repr(view)
    renamed = path.rename(tmp_path / f"orders-7.{'a' * 32}-delete")
    with PartitionView(renamed) as view:
        assert view.topic_partition == TopicPartition("orders", 7)
        assert view.state is DirState.DELETE


def test_not_a_partition(tmp_path: Path) -> None:
    for missing in (tmp_path / "nowhere-0", tmp_path / "file-0"):
        (tmp_path / "file-0").touch()
        with pytest.raises(NotALogDirError):
            PartitionView(missing)
    (tmp_path / "empty-0").mkdir()
    with pytest.raises(NotALogDirError, match="no segment"):
        PartitionView(tmp_path / "empty-0")


@over_readers
def test_garbage_in_small_files_is_told_to_who_asks(reader: Reader, path: Path) -> None:
    """Reading does not need them."""
    (path / "leader-epoch-checkpoint").write_bytes(b"\xff\x00 not a checkpoint")
    (path / "partition.metadata").write_bytes(b"version: 7\nnonsense")
    (path.parent / "log-start-offset-checkpoint").write_bytes(b"\xff" * 30)
    with PartitionView(path) as view:
        assert offsets(reader, view) == list(range(30))
        assert list(reader(view, isolation=IsolationLevel.READ_COMMITTED)) == list(reader(view))
        with pytest.raises(CorruptCheckpointError) as caught:
            _ = view.leader_epochs
        assert caught.value.path == path / "leader-epoch-checkpoint"
        with pytest.raises(StratalogError):
            _ = view.topic_id


def test_missing_small_files(path: Path) -> None:
    with PartitionView(path) as view:
        assert view.leader_epochs == ()
        assert view.topic_id is None


def test_topic_id(path: Path) -> None:
    (path / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    with PartitionView(path) as view:
        assert view.topic_id == uuid.UUID(int=1)


# -- the checkpoint of log start offsets


def test_log_start_comes_from_the_log_directory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = path.parent / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n2\norders 7 13\nother 0 5\n")
    with PartitionView(path) as view:
        assert view.log_start_offset == 13
        checkpoint.write_text("0\n1\norders 7 17\n")
        assert view.log_start_offset == 13
        view.refresh()
        assert view.log_start_offset == 17
    monkeypatch.chdir(path)
    for relative in (".", f"../{path.name}"):
        with PartitionView(type(path)(relative)) as view:
            assert view.log_start_offset == 17
    monkeypatch.chdir(path.parent)
    with PartitionView(type(path)(path.name)) as view:
        assert view.log_start_offset == 17


@over_readers
def test_deleted_records(reader: Reader, tmp_path: Path) -> None:
    """As Kafka left it, with its checkpoint beside it: log start inside a segment and a batch."""
    case = GoldenCase("deleterecords")
    path = copy_partition(directory_to_read(case), tmp_path)
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\ndeleterecords 0 137\n")
    with PartitionView(path) as view:
        assert list(reader(view)) == [r for r in visible(case) if r.offset >= 137]

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.errors import CorruptBatchError, OffsetOverflowError
from stratalog.format import offset_index
from stratalog.format.batch import BatchSpan
from stratalog.format.names import FileState
from stratalog.format.txn_index import AbortedTxn
from stratalog.storage.disk import Disk, SystemCalls
from tests.open_files import open_files
from tests.storage.segments import (
    BATCH_BYTES,
    EVERY_BATCH,
    TIMESTAMP,
    append,
    files_of,
    filled,
    ignore,
    make_batch,
    new_segment,
    opened,
)

if TYPE_CHECKING:
    from pathlib import Path


# -- a new segment


def test_a_new_segment_has_empty_preallocated_files(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 42)
    assert files_of(tmp_path) == {
        "00000000000000000042.log": b"",
        "00000000000000000042.index": bytes(240),
        "00000000000000000042.timeindex": bytes(240),
    }
    assert (segment.size_bytes, segment.next_offset) == (0, 42)
    assert segment.largest_timestamp == (-1, 42)
    assert segment.first_timestamp == -1
    segment.close()
    assert set(files_of(tmp_path).values()) == {b""}


def test_files_of_the_same_names_are_removed_first(tmp_path: Path) -> None:
    for suffix in ("log", "index", "timeindex", "txnindex"):
        (tmp_path / f"00000000000000000042.{suffix}").write_bytes(b"left over" * 100)
    segment = new_segment(tmp_path, 42)
    append(segment, make_batch(42))
    segment.close()
    assert [len(raw) for raw in files_of(tmp_path, ".index", ".txnindex").values()] == [0]


def test_preallocation_is_trimmed_when_the_segment_is_sealed(tmp_path: Path) -> None:
    config = LogConfig.parse({"preallocate": "true", "segment.bytes": "5000"})
    segment = new_segment(tmp_path, 0, config)
    path = tmp_path / "00000000000000000000.log"
    assert path.read_bytes() == bytes(5000)
    batch = make_batch(0)
    append(segment, batch)
    assert path.read_bytes() == batch.ljust(5000, b"\0")
    assert segment.size_bytes == len(batch)
    assert segment.view().end == (len(batch), 1)
    segment.become_inactive()
    assert path.read_bytes() == batch
    segment.become_active(now_ms=0)
    assert path.read_bytes() == batch  # only new files are preallocated


def test_a_preallocated_log_that_was_not_closed_is_recovered(tmp_path: Path) -> None:
    config = LogConfig.parse({"preallocate": "true", "segment.bytes": "5000"})
    segment = new_segment(tmp_path, 0, config)
    batch = make_batch(0)
    append(segment, batch)
    reopened = opened(tmp_path, 0, config)
    valid_part = reopened.recover(ignore)
    assert (valid_part.valid_bytes, valid_part.next_offset) == (len(batch), 1)
    assert valid_part.corruption is not None
    assert (tmp_path / "00000000000000000000.log").read_bytes() == batch


# -- what is refused


def test_the_last_offset_that_fits_and_the_first_that_does_not(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 1000, EVERY_BATCH)
    last = 1000 + (1 << 31) - 1
    with pytest.raises(OffsetOverflowError) as caught:
        append(segment, make_batch(1000), make_batch(last), make_batch(last + 1))
    assert (caught.value.offset, caught.value.base_offset) == (last + 1, 1000)
    assert segment.size_bytes == 0
    append(segment, make_batch(last))
    with pytest.raises(OffsetOverflowError):
        append(segment, make_batch(last + 1))
    assert segment.next_offset == last + 1


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([BatchSpan(0, 91, 4, 4, 0)], id="offset is taken"),
        pytest.param([BatchSpan(0, 90, 5, 5, 0)], id="bytes are left over"),
        pytest.param([BatchSpan(0, 92, 5, 5, 0)], id="bytes are missing"),
        pytest.param([BatchSpan(1, 90, 5, 5, 0)], id="does not begin at the start"),
        pytest.param([BatchSpan(0, 91, 6, 5, 0)], id="ends before it begins"),
        pytest.param([BatchSpan(0, 50, 5, 7, 0), BatchSpan(50, 41, 7, 8, 0)], id="overlap"),
        pytest.param([BatchSpan(0, 50, 5, 6, 0), BatchSpan(60, 31, 7, 8, 0)], id="gap"),
        pytest.param([], id="no batch"),
    ],
)
def test_spans_must_fit_the_data_and_the_segment(tmp_path: Path, spans: list[BatchSpan]) -> None:
    segment = new_segment(tmp_path, 0, EVERY_BATCH)
    append(segment, *(make_batch(number) for number in range(5)))
    before = files_of(tmp_path)
    with pytest.raises(ValueError, match="do not continue"):
        segment.append(make_batch(5), spans)
    assert files_of(tmp_path) == before
    append(segment, make_batch(5))
    assert segment.next_offset == 6


def test_an_inactive_segment_takes_nothing(tmp_path: Path) -> None:
    segment, _ = filled(tmp_path, 1)
    segment.become_inactive()
    with pytest.raises(ValueError, match="not active"):
        append(segment, make_batch(9))
    with pytest.raises(ValueError, match="not active"):
        segment.roll_reason(1, 1, 1, 1)


def test_an_active_segment_is_not_recovered(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is active"):
        new_segment(tmp_path).recover(ignore)


def test_an_append_that_was_interrupted_is_taken_back_by_the_next(tmp_path: Path) -> None:
    """Ctrl-C may strike after the write and before the state says so."""
    segment, size = filled(tmp_path, 3)
    writer, state = segment.writer, segment.writer._state
    append(segment, make_batch(6, count=20))
    writer._state = state
    assert segment.size_bytes == 3 * size
    append(segment, make_batch(6, count=2))
    segment.close()
    written = files_of(tmp_path)
    (tmp_path / "again").mkdir()
    filled(tmp_path / "again", 4)[0].close()
    assert written == files_of(tmp_path / "again")


# -- sealing and opening


def test_nothing_is_touched_until_somebody_asks(tmp_path: Path) -> None:
    filled(tmp_path, 3)[0].close()
    segment = opened(tmp_path, 0, EVERY_BATCH)
    calls: list[object] = []
    really_open = os.open

    def note(path: Path, *args: int) -> int:
        calls.append(path)
        return really_open(path, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", note)
        segment = type(segment)(Disk(), segment.path, 0, segment.size_bytes, EVERY_BATCH)
        assert segment.size_bytes > 0
        assert not segment.is_active
        assert calls == []
        assert segment.largest_timestamp == (TIMESTAMP + 5, 5)
        assert segment.next_offset == 6
    assert {str(path)[-9:] for path in calls} <= {"00000.log", "000.index", "timeindex"}


def test_reopening_forgets_the_bytes_since_the_last_entry(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)  # interval 200
    append(segment, make_batch(0), make_batch(1))
    segment.close()
    reopened = opened(tmp_path)
    reopened.become_active(now_ms=0)
    assert reopened.largest_timestamp == (TIMESTAMP + 1, 1)
    assert reopened.first_timestamp == TIMESTAMP
    assert reopened.next_offset == 2
    for number in range(2, 6):
        append(reopened, make_batch(number))
    reopened.close()
    raw = files_of(tmp_path, ".index")["00000000000000000000.index"]
    assert list(offset_index.read_entries(raw, 9, 0)) == [
        (5, 5 * BATCH_BYTES)
    ]  # 3 batches after reopening


@pytest.mark.parametrize("spoilt", ["missing", "junk", "stale", "past the end"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_spoilt_indexes_are_built_again_when_the_segment_becomes_active(
    tmp_path: Path, suffix: str, spoilt: str
) -> None:
    filled(tmp_path, 20)[0].close()
    before = files_of(tmp_path)
    path = tmp_path / f"00000000000000000000{suffix}"
    if spoilt == "missing":
        path.unlink()
    elif spoilt == "junk":
        path.write_bytes(b"\x7f\x03\x02\x01" * 60)
    elif spoilt == "stale":
        path.write_bytes(path.read_bytes()[::-1])
    else:
        last = bytes.fromhex(
            "7fffffff7fffffff" if suffix == ".index" else "7f" + "ff" * 7 + "7fffffff"
        )
        path.write_bytes(path.read_bytes() + last)
    segment = opened(tmp_path, 0, EVERY_BATCH)
    segment.become_active(now_ms=0)
    assert segment.largest_timestamp == (TIMESTAMP + 39, 39)
    segment.close()
    assert files_of(tmp_path) == before


def test_a_torn_tail_is_not_appended_to(tmp_path: Path) -> None:
    segment, size = filled(tmp_path, 3)
    segment.close()
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(path.read_bytes() + make_batch(6)[:50])
    torn = opened(tmp_path, 0, EVERY_BATCH)
    with pytest.raises(CorruptBatchError) as caught:
        torn.become_active(now_ms=0)
    assert (caught.value.position, caught.value.path) == (3 * size, path)
    valid_part = torn.recover(ignore)
    assert (valid_part.valid_bytes, valid_part.next_offset) == (3 * size, 6)
    torn.become_active(now_ms=0)
    append(torn, make_batch(6))
    assert torn.next_offset == 7


# -- flushing, renaming, deleting


def test_flushing_goes_in_kafkas_order(tmp_path: Path) -> None:
    synced: list[str] = []
    opened_paths: dict[int, str] = {}

    def note_open(path: Path, flags: int, mode: int) -> int:
        fd = os.open(path, flags, mode)
        opened_paths[fd] = path.name
        return fd

    calls = SystemCalls(open=note_open, fsync=lambda fd: synced.append(opened_paths[fd][20:]))
    segment = new_segment(tmp_path, disk=Disk(calls))
    append(segment, make_batch(0))
    segment.append_aborted(AbortedTxn(0, 7, 0, 0, 1))
    segment.flush()
    segment.become_inactive()
    segment.flush()
    assert synced == [".log", ".index", ".timeindex", ".txnindex"] * 2


@pytest.mark.parametrize("is_active", [True, False])
def test_renaming_takes_all_files_along(tmp_path: Path, is_active: bool) -> None:
    segment, _ = filled(tmp_path, 3)
    segment.append_aborted(AbortedTxn(0, 7, 0, 0, 1))
    if not is_active:
        segment.become_inactive()
    before = segment.view()
    assert before.seek(5).batch is not None
    segment.rename(FileState.DELETED)
    names = [path.name for path in sorted(tmp_path.iterdir())]
    assert names == [
        f"00000000000000000000.{kind}.deleted" for kind in ("index", "log", "timeindex", "txnindex")
    ]
    assert before.seek(5).batch is not None  # readers may finish
    if is_active:
        append(segment, make_batch(6))
    segment.close()
    assert segment.next_offset == (7 if is_active else 6)
    segment.rename(FileState.LIVE)
    assert opened(tmp_path, 0, EVERY_BATCH).next_offset == segment.next_offset


def test_deleting_removes_all_files_and_readers_may_finish(tmp_path: Path) -> None:
    segment, size = filled(tmp_path, 3)
    view = segment.view()
    segment.delete()
    assert list(tmp_path.iterdir()) == []
    assert view.file.read(0, size) == make_batch(0, count=2)
    segment.delete()


def test_files_are_closed_when_a_segment_is(tmp_path: Path) -> None:
    segment, _ = filled(tmp_path, 30)
    segment.view().seek(20)
    segment.view().times.find(TIMESTAMP + 20, 0)
    assert open_files(tmp_path)
    segment.close()
    assert open_files(tmp_path) == []


def test_asking_many_segments_leaves_no_file_open(tmp_path: Path) -> None:
    filled(tmp_path, 30)[0].close()
    segments = [opened(tmp_path, 0, EVERY_BATCH) for _ in range(20)]
    for segment in segments:
        assert segment.largest_timestamp == (TIMESTAMP + 59, 59)
        assert (segment.next_offset, segment.first_timestamp) == (60, TIMESTAMP + 1)
    assert open_files(tmp_path) == []

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.config import LogConfig
from stratalog.errors import CorruptBatchError, OffsetOverflowError
from stratalog.format import offset_index, time_index
from stratalog.format.index_rules import IndexBuilder
from stratalog.format.names import FileState
from stratalog.format.record import BatchFields
from stratalog.format.txn_index import AbortedTxn
from stratalog.storage.disk import Disk, SystemCalls
from stratalog.storage.roll import RollReason
from stratalog.storage.segment import BatchSpan
from tests.disks import FaultyDisk
from tests.open_files import open_files
from tests.storage.segments import (
    SMALL,
    TIMESTAMP,
    append,
    files_of,
    ignore,
    make_batch,
    new_segment,
    opened,
    remove_derived,
    spans_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.storage.segment import Segment

BATCH_BYTES = 91
EVERY_BATCH = LogConfig.parse({"index.interval.bytes": "0", "segment.index.bytes": "2400"})


def filled(directory: Path, count: int, config: LogConfig = EVERY_BATCH) -> tuple[Segment, int]:
    """A segment of `count` batches of two records, and the size of each."""
    segment = new_segment(directory, 0, config)
    for number in range(count):
        append(segment, make_batch(2 * number, count=2))
    return segment, segment.size_bytes // count


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
    survivors = reopened.recover(ignore)
    assert (survivors.valid_bytes, survivors.next_offset) == (len(batch), 1)
    assert survivors.damage is not None
    assert (tmp_path / "00000000000000000000.log").read_bytes() == batch


# -- index entries


def test_entries_by_the_interval(tmp_path: Path) -> None:
    """More than 200 bytes must precede: of batches of 91 bytes, every third has an entry."""
    batches = [make_batch(number) for number in range(8)]
    assert {len(batch) for batch in batches} == {91}
    segment = new_segment(tmp_path)
    for batch in batches:
        append(segment, batch)
    entries = segment.writer.offset_index.entries
    raw = files_of(tmp_path, ".index")["00000000000000000000.index"]
    assert list(offset_index.read_entries(raw, entries, 0)) == [(3, 273), (6, 546)]
    assert segment.writer.time_index.entries == 2
    segment.become_inactive()
    raw = files_of(tmp_path, ".timeindex")["00000000000000000000.timeindex"]
    expected = [(TIMESTAMP + number, number) for number in (3, 6, 7)]
    assert list(time_index.read_entries(raw, 3, 0)) == expected
    assert len(raw) == 36


@settings(max_examples=60)
@given(data=st.data())
def test_entries_are_those_of_the_rule_however_batches_come(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Appended one by one or many at once, here and there reopened without more to write."""
    directory = tmp_path_factory.mktemp("rule")
    interval = data.draw(st.sampled_from([0, 100, 200, 1000]), label="interval")
    config = LogConfig(index_interval_bytes=interval, segment_index_bytes=1 << 16)
    base = data.draw(st.sampled_from([0, 1, 1 << 40]), label="base")
    segment, builder = new_segment(directory, base, config), IndexBuilder(base, interval)
    offset, position = base, 0
    for _ in range(data.draw(st.integers(0, 8), label="appends")):
        batches = []
        for _ in range(data.draw(st.integers(1, 5), label="batches")):
            timestamp = data.draw(st.integers(-2, 6), label="timestamp")
            batch = make_batch(
                offset,
                count=data.draw(st.integers(1, 3)),
                timestamp=timestamp,
                value_bytes=data.draw(st.integers(0, 300), label="value"),
            )
            (span,) = spans_of(batch)
            builder.add(position, len(batch), span.last_offset, timestamp)
            position += len(batch)
            offset = span.last_offset + 1 + data.draw(st.integers(0, 3), label="gap")
            batches.append(batch)
        append(segment, *batches)
    segment.close()
    builder.finish()
    found = [bytes(raw) for raw in files_of(directory, ".index", ".timeindex").values()]
    assert found == [bytes(builder.offset_index), bytes(builder.time_index)]
    assert opened(directory, base, config).next_offset == (segment.next_offset)


def test_eight_slots_hold_seven_batches_and_the_last_word(tmp_path: Path) -> None:
    """96 bytes: the time index is full with seven entries, one slot is for closing."""
    config = LogConfig.parse({"segment.index.bytes": "96", "index.interval.bytes": "0"})
    segment, number = new_segment(tmp_path, 0, config), 0
    while (batch := make_batch(number)) and not segment.roll_reason(
        len(batch), number, TIMESTAMP + number, TIMESTAMP
    ):
        append(segment, batch)
        number += 1
    assert number == 8  # the first has no entry
    assert segment.roll_reason(1, number, TIMESTAMP, 0) is RollReason.TIME_INDEX_FULL
    segment.become_inactive()
    sizes = [len(raw) for raw in files_of(tmp_path, ".index", ".timeindex").values()]
    assert sizes == [7 * 8, 7 * 12]


def test_an_append_that_fills_an_index_goes_on_without_entries(tmp_path: Path) -> None:
    config = LogConfig.parse({"segment.index.bytes": "96", "index.interval.bytes": "0"})
    segment = new_segment(tmp_path, 0, config)
    append(segment, *(make_batch(number) for number in range(40)))
    assert segment.roll_reason(1, 40, TIMESTAMP, 0) is RollReason.OFFSET_INDEX_FULL
    assert segment.view().seek(33).position == 33 * BATCH_BYTES
    segment.become_inactive()
    sizes = [len(raw) for raw in files_of(tmp_path, ".index", ".timeindex").values()]
    assert sizes == [12 * 8, 8 * 12]
    assert segment.largest_timestamp == (TIMESTAMP + 39, 39)
    assert segment.seek(39).position == 39 * BATCH_BYTES


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
    survivors = torn.recover(ignore)
    assert (survivors.valid_bytes, survivors.next_offset) == (3 * size, 6)
    torn.become_active(now_ms=0)
    append(torn, make_batch(6))
    assert torn.next_offset == 7


# -- truncating


@pytest.mark.parametrize("offset", [0, 1, 2, 7, 8, 39, 40, 100])
def test_truncation_drops_every_batch_that_reaches_the_offset(tmp_path: Path, offset: int) -> None:
    """Batches hold two offsets each; one that begins below the cut goes as a whole."""
    segment, size = filled(tmp_path, 20)
    kept = min(offset // 2, 20)
    assert segment.truncate_to(offset, now_ms=5) == (20 - kept) * size
    assert segment.size_bytes == kept * size
    assert segment.next_offset == min(offset, 40)
    newest = (TIMESTAMP + 2 * kept - 1, 2 * kept - 1) if kept else (-1, 0)
    assert segment.largest_timestamp == newest
    assert segment.first_timestamp == (TIMESTAMP + 1 if kept else -1)
    assert segment.writer.created_ms == (TIMESTAMP if kept else 5)
    assert (tmp_path / "00000000000000000000.index").stat().st_size == 2400
    for number in range(kept, 20):
        append(segment, make_batch(2 * number + offset % 2, count=2))
    segment.close()
    assert segment.next_offset == 40 + (offset % 2 if kept < 20 else 0)
    recovered = files_of(tmp_path)
    remove_derived(tmp_path)
    again = opened(tmp_path, 0, EVERY_BATCH)
    assert again.recover(ignore).damage is None
    if kept < 19:  # the first batch after the cut has no entry, as after a restart
        assert len(recovered["00000000000000000000.index"]) == 8 * (19 - (kept > 0))
    assert files_of(tmp_path, ".log") == {
        name: raw for name, raw in recovered.items() if name.endswith(".log")
    }


def test_a_sealed_segment_becomes_active_again_when_it_is_cut(tmp_path: Path) -> None:
    segment, size = filled(tmp_path, 5)
    segment.become_inactive()
    assert segment.truncate_to(4, now_ms=0) == 3 * size
    assert segment.is_active
    append(segment, make_batch(4))
    assert segment.next_offset == 5


def test_the_largest_timestamp_is_found_again_behind_the_last_entry(tmp_path: Path) -> None:
    config = LogConfig.parse({"index.interval.bytes": "1000000"})
    segment = new_segment(tmp_path, 0, config)
    for offset, timestamp in enumerate([5, 9, 9, 3, 20]):
        append(segment, make_batch(offset, timestamp=timestamp))
    segment.truncate_to(4, now_ms=0)
    assert segment.largest_timestamp == (9, 1)


def test_truncation_cuts_aborted_transactions(tmp_path: Path) -> None:
    segment, _ = filled(tmp_path, 5)
    txns = [AbortedTxn(0, 7, first, first + 2, first + 3) for first in (0, 3, 6)]
    for txn in txns:
        segment.append_aborted(txn)
    assert segment.txn_index.collect(0, 100).txns == tuple(txns)
    with pytest.raises(ValueError, match="not above"):
        segment.append_aborted(txns[0])
    segment.truncate_to(8, now_ms=0)
    assert segment.txn_index.read() == txns[0].pack() + txns[1].pack()
    segment.truncate_to(2, now_ms=0)
    assert segment.txn_index.read() == b""
    assert not (tmp_path / "00000000000000000000.txnindex").exists()
    segment.append_aborted(txns[0])
    assert len(files_of(tmp_path, ".txnindex")["00000000000000000000.txnindex"]) == 34


def test_a_torn_entry_of_the_transaction_index_is_overwritten(tmp_path: Path) -> None:
    segment, _ = filled(tmp_path, 5)
    first, second = AbortedTxn(0, 7, 0, 2, 3), AbortedTxn(0, 7, 3, 5, 6)
    (tmp_path / "00000000000000000000.txnindex").write_bytes(first.pack() + b"torn")
    segment.append_aborted(second)
    raw = files_of(tmp_path, ".txnindex")["00000000000000000000.txnindex"]
    assert raw == first.pack() + second.pack()


# -- recovery


def test_recovery_tells_of_producers_and_new_leader_epochs(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 0, EVERY_BATCH)
    facts = [(-1, 0), (-1, 0), (7, 0), (-1, 0), (-1, 3), (-1, 3), (8, 4), (-1, 4)]
    for offset, (producer_id, epoch) in enumerate(facts):
        fields = BatchFields(
            partition_leader_epoch=epoch, producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        append(segment, make_batch(offset, fields=fields))
    segment.close()
    told = []
    txn = AbortedTxn(0, 7, 2, 2, 3)
    reopened = opened(tmp_path, 0, EVERY_BATCH)
    reopened.append_aborted(AbortedTxn(0, 99, 0, 1, 2))  # of before: recovery starts empty

    def on_batch(loaded: object) -> None:
        told.append(loaded.header.base_offset)  # type: ignore[attr-defined] # a LoadedBatch
        if told[-1] == 2:
            reopened.append_aborted(txn)

    reopened.recover(on_batch)
    assert told == [0, 2, 4, 6]
    assert reopened.txn_index.read() == txn.pack()


@pytest.mark.parametrize("flipped", ["payload", "crc", "length", "base offset", "magic"])
def test_recovery_cuts_at_the_first_batch_that_is_not_good(tmp_path: Path, flipped: str) -> None:
    segment, size = filled(tmp_path, 20)
    segment.close()
    path = tmp_path / "00000000000000000000.log"
    raw = bytearray(path.read_bytes())
    raw[
        11 * size + {"payload": 80, "crc": 18, "length": 10, "base offset": 7, "magic": 16}[flipped]
    ] ^= 8
    path.write_bytes(raw)
    reopened = opened(tmp_path, 0, EVERY_BATCH)
    survivors = reopened.recover(ignore)
    # A base offset that is too high but in reach cannot be told from a gap: it is outside the CRC.
    kept = 12 if flipped == "base offset" else 11
    assert survivors.valid_bytes == kept * size
    assert survivors.damage is not None
    assert survivors.damage.position == kept * size
    assert path.read_bytes() == raw[: kept * size]
    assert reopened.view().offset_index.entries == kept - 1


def test_an_offset_out_of_reach_is_not_cut_but_told(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000005.log").write_bytes(make_batch(5) + make_batch(5 + (1 << 31)))
    segment = opened(tmp_path, 5)
    with pytest.raises(OffsetOverflowError):
        segment.recover(ignore)
    assert segment.size_bytes == 2 * BATCH_BYTES


def test_an_empty_log_recovers_to_an_empty_segment(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000005.log").write_bytes(b"")
    segment = opened(tmp_path, 5)
    survivors = segment.recover(ignore)
    assert (survivors.valid_bytes, survivors.next_offset, survivors.damage) == (0, 5, None)
    assert set(files_of(tmp_path).values()) == {b""}


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


# -- reading while writing


def test_a_view_ends_where_the_log_ended_when_it_was_taken(tmp_path: Path) -> None:
    segment, size = filled(tmp_path, 10)
    view = segment.view()
    assert segment.view() is view
    for number in range(10, 20):
        append(segment, make_batch(2 * number, count=2))
    assert view.end == (10 * size, 20)
    assert view.seek(19).position == 9 * size
    assert view.seek(20) == (10 * size, None)
    assert view.times.largest == (TIMESTAMP + 19, 19)
    assert segment.view().times.largest == (TIMESTAMP + 39, 39)
    assert segment.view().end == (20 * size, 40)
    assert [batch.last_offset for _, batch in view.walk(8 * size)] == [17, 19]


@pytest.mark.parametrize("is_active", [True, False])
def test_seeking_finds_the_first_batch_that_reaches_the_offset(
    tmp_path: Path, is_active: bool
) -> None:
    segment, size = filled(tmp_path, 20, SMALL)
    if not is_active:
        segment.become_inactive()
    for target in range(40):
        found = segment.seek(target)
        assert (found.position, found.batch is not None) == (target // 2 * size, True)
    assert segment.seek(40) == (20 * size, None)


def test_views_of_a_long_active_segment_find_old_offsets_too(tmp_path: Path) -> None:
    """More entries than a view copies: the older ones come from the file."""
    config = LogConfig.parse({"index.interval.bytes": "0", "segment.index.bytes": "65536"})
    segment = new_segment(tmp_path, 0, config)
    append(segment, *(make_batch(number) for number in range(3000)))
    view = segment.view()
    assert view.offset_index.entries == 2999
    for target in (2999, 2500, 1500, 3, 0):
        assert view.seek(target).position == target * BATCH_BYTES
        hit = view.times.find(TIMESTAMP + target, 0)
        assert hit is not None
        assert hit.offset == target
    assert view.offset_index.origin == "file"


def test_readers_see_whole_batches_below_a_growing_end(tmp_path: Path) -> None:
    """Several threads look while one appends, cuts, seals and opens again."""
    segment, size = filled(tmp_path, 1)
    failures: list[str] = []
    is_over = threading.Event()

    def look() -> None:
        last = 0
        while not is_over.is_set():
            view = segment.view()
            end = view.end
            try:
                count = sum(1 for _ in view.batches(0, end.position))
                newest = view.seek(end.next_offset - 1)
            except CorruptBatchError as error:
                failures.append(str(error))
                return
            if (count * size, count * 2) != end or newest.position != end.position - size:
                failures.append(f"{count} batches in {end}, newest {newest}")
            if end.position < last:
                failures.append(f"{end} after {last}")
            last = end.position

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 300):
        append(segment, make_batch(2 * number, count=2))
        if number % 100 == 0:
            segment.become_inactive()
            segment.become_active(now_ms=0)
    is_over.set()
    for thread in threads:
        thread.join(30)
    assert failures == []


def test_space_for_the_closing_entry_is_taken_when_the_segment_is_made(tmp_path: Path) -> None:
    faulty = FaultyDisk()
    segment = new_segment(tmp_path, disk=faulty.disk)
    append(segment, make_batch(0))
    reserved = faulty.history.count("posix_fallocate")
    segment.close()
    assert faulty.history.count("posix_fallocate") == reserved == 1

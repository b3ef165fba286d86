from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.errors import OffsetOverflowError
from stratalog.format.record import BatchFields
from stratalog.format.txn_index import AbortedTxn
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
    remove_derived,
)

if TYPE_CHECKING:
    from pathlib import Path


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
    assert again.recover(ignore).corruption is None
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
    valid_part = reopened.recover(ignore)
    # A base offset that is too high but in reach cannot be told from a gap: it is outside the CRC.
    kept = 12 if flipped == "base offset" else 11
    assert valid_part.valid_bytes == kept * size
    assert valid_part.corruption is not None
    assert valid_part.corruption.position == kept * size
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
    valid_part = segment.recover(ignore)
    assert (valid_part.valid_bytes, valid_part.next_offset, valid_part.corruption) == (0, 5, None)
    assert set(files_of(tmp_path).values()) == {b""}

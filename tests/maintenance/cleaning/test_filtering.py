"""What stays of each batch: whole rounds against Kafka's cleaner, then rule by rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import UnsupportedError
from stratalog.format.batch import BatchHeader, Codec, TimestampType, next_entry
from stratalog.format.compression import compress
from stratalog.format.control import ControlType, EndMarker, encode_end_marker
from stratalog.format.legacy import LegacyHeader, encode_legacy, encode_message, inner_magics
from stratalog.format.log_entry import header_of, records_of
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.format.txn_index import AbortedTxn, read_entries
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.cleaning.filtering import (
    BatchAction,
    BatchReason,
    CleanedTransactions,
    CleaningRules,
    FilteredBatch,
    LastRecord,
    RecordReason,
    filter_batch,
)
from tests.golden.cases import compaction_cases
from tests.maintenance.cleaning.batch_contents import contents
from tests.maintenance.cleaning.cleaning_cases import GoldenRound, over_cases, rounds_of
from tests.maintenance.cleaning.reference_pass import ReferenceRound, clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.golden.cases import CompactionCase


# -- Kafka's rounds


@over_cases
def test_kafkas_rounds(case: CompactionCase, compaction_dir: Callable[[str], Path]) -> None:
    for golden in rounds_of(case, compaction_dir(case.name)):
        if not golden.was_cleaned:
            continue
        done = run(golden)
        assert golden.after is not None
        assert done.end_dirty_offset == golden.told["end_dirty_offset"]
        assert len(done.key_map.offsets) == golden.told["offset_map_entries"]
        assert [list(group.bases) for group in done.groups] == golden.told["groups"]
        for group in done.groups:
            log = golden.after / f"{group.bases[0]:020d}.log"
            kept = log.read_bytes()
            assert list(contents(group.data)) == list(contents(kept))
            assert all(e.data in kept for e in group.entries if e.action is BatchAction.COPIED)
            index = log.with_suffix(".txnindex")
            told = index.read_bytes() if index.exists() else b""
            assert list(group.aborted) == list(read_entries(told))


def run(golden: GoldenRound) -> ReferenceRound:
    producers = {
        told["producer_id"]: LastRecord(told["last_data_offset"], told["epoch"])
        for told in golden.told["active_producers"]
    }
    start = golden.told["log_start_offset"]
    with PartitionView(golden.before, log_start_offset=start) as view:
        keys_max = golden.told.get("offset_map_max_desired", 1 << 62)
        return clean(view, golden.plan(), golden.config, producers, keys_max=keys_max)


@over_cases
def test_kafkas_counts(case: CompactionCase, compaction_dir: Callable[[str], Path]) -> None:
    for golden in rounds_of(case, compaction_dir(case.name)):
        if not golden.was_cleaned:
            continue
        entries = [entry for group in run(golden).groups for entry in group.entries]
        told = golden.told["stats"]
        assert sum(entry.header.size_bytes for entry in entries) == told["bytes_read"]
        assert sum(len(entry.decisions) for entry in entries) == told["messages_read"]
        assert sum(len(entry.kept) for entry in entries) == told["messages_written"]
        lost = [v for entry in entries for v in entry.decisions if v.reason is RecordReason.NO_KEY]
        assert len(lost) == told["invalid_messages_read"]
        rebuilt = [entry for entry in entries if entry.action is BatchAction.REBUILT]
        if all(entry.header.codec_id == Codec.NONE for entry in rebuilt):
            assert sum(len(entry.data) for entry in entries) == told["bytes_written"]


def test_legacy_batch_that_must_stay_empty(compaction_dir: Callable[[str], Path]) -> None:
    """Kafka throws there, too."""
    case = next(c for c in compaction_cases() if c.name == "legacy-v1-emptied-last")
    (golden,) = rounds_of(case, compaction_dir(case.name))
    assert "Empty batches are only supported" in golden.told["exception"]
    with pytest.raises(UnsupportedError, match="offset 2, of format 1"):
        run(golden)


# -- rule by rule

NOW_MS = 10_000
RETENTION_MS = 500
BOUND = 100


def record(offset: int, key: str | None, value: str | None = "v", at_ms: int = 1000) -> Record:
    return Record(
        offset,
        at_ms + offset,
        None if key is None else key.encode(),
        None if value is None else value.encode(),
    )


def rules(
    newest: dict[str, int] | None = None,
    *,
    latest: int = BOUND - 1,
    producers: Mapping[int, LastRecord] | None = None,
    now_ms: int = NOW_MS,
    bound: int = BOUND,
) -> CleaningRules:
    offsets = newest or {}
    return CleaningRules(
        newest_offset_of=lambda key: offsets.get(key.decode(), -1),
        map_latest_offset=latest,
        bound=bound,
        now_ms=now_ms,
        delete_retention_ms=RETENTION_MS,
        legacy_horizon_ms=5000,
        producers=producers or {},
    )


def filtered(
    data: bytes,
    by: CleaningRules,
    transactions: CleanedTransactions | None = None,
    *,
    mtime_ms: int = 0,
) -> FilteredBatch:
    entry = next_entry(data, 0)
    assert entry is not None
    return filter_batch(data, entry, by, transactions or CleanedTransactions(), mtime_ms)


def reasons(entry: FilteredBatch) -> list[RecordReason]:
    return [verdict.reason for verdict in entry.decisions]


def test_untouched_batch_is_copied() -> None:
    data = encode_batch([record(3, "a"), record(4, "b")], BatchFields(codec=Codec.GZIP, level=1))
    found = filtered(data, rules({"a": 3}))
    assert (found.action, found.reason) == (BatchAction.COPIED, BatchReason.ALL_KEPT)
    assert found.data == data
    assert reasons(found) == [RecordReason.NEWEST, RecordReason.NOT_MAPPED]
    assert (found.max_offset, found.max_timestamp) == (4, 1004)


def test_superseded_records_go() -> None:
    data = encode_batch([record(3, "a"), record(4, "b"), record(5, "c")])
    found = filtered(data, rules({"a": 9, "b": 4, "c": 7}))
    assert (found.action, found.reason) == (BatchAction.REBUILT, BatchReason.RECORDS_DROPPED)
    assert found.decisions[0] == (3, False, RecordReason.SUPERSEDED, 9)
    assert found.kept == (record(4, "b"),)
    header = BatchHeader.unpack(found.data)
    assert (header.base_offset, header.last_offset, header.record_count) == (3, 5, 1)
    assert (header.base_timestamp, header.max_timestamp) == (1004, 1004)
    assert found.max_offset == 4  # not the batch's last offset: an index entry must hit a record


def test_record_beyond_the_map_stays() -> None:
    """Even without a key, even if the map has a later offset: nobody looked at it."""
    data = encode_batch([record(4, None), record(5, None), record(6, "a", None)])
    found = filtered(data, rules({"a": 99}, latest=4))
    assert [verdict.is_kept for verdict in found.decisions] == [False, True, True]
    assert reasons(found)[1:] == [RecordReason.BEYOND_MAP] * 2
    assert found.delete_horizon_ms == NOW_MS + RETENTION_MS


def test_empty_key_is_a_key_and_an_empty_value_a_value() -> None:
    data = encode_batch([record(4, ""), record(5, "k", "")])
    assert filtered(data, rules()).action is BatchAction.COPIED


def test_tombstone_lives_until_its_horizon() -> None:
    data = encode_batch([record(4, "a", None)])
    first = filtered(data, rules({"a": 4}))
    assert (first.action, first.reason) == (BatchAction.REBUILT, BatchReason.HORIZON_SET)
    assert reasons(first) == [RecordReason.TOMBSTONE_PROTECTED]
    horizon = NOW_MS + RETENTION_MS
    header = BatchHeader.unpack(first.data)
    assert header.delete_horizon_ms == first.delete_horizon_ms == horizon
    assert header.max_timestamp == 1004
    before = filtered(first.data, rules({"a": 4}, now_ms=horizon - 1))
    assert before.data == first.data
    at = filtered(first.data, rules({"a": 4}, now_ms=horizon))
    assert (at.action, at.reason) == (BatchAction.DROPPED, BatchReason.NOTHING_LEFT)
    assert reasons(at) == [RecordReason.TOMBSTONE_EXPIRED]


def test_horizon_survives_its_tombstones() -> None:
    fields = BatchFields(delete_horizon_ms=NOW_MS - 1)
    data = encode_batch([record(4, "a", None), record(5, "b")], fields)
    found = filtered(data, rules())
    header = BatchHeader.unpack(found.data)
    assert (header.delete_horizon_ms, header.record_count) == (NOW_MS - 1, 1)
    entry = next_entry(found.data, 0)
    assert entry is not None
    assert list(records_of(found.data, entry)) == [record(5, "b")]


def test_log_append_time_stays() -> None:
    fields = BatchFields(timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=7777)
    data = encode_batch([record(4, "a"), record(5, "b")], fields)
    header = BatchHeader.unpack(filtered(data, rules({"a": 9})).data)
    assert (header.base_timestamp, header.max_timestamp) == (7777, 7777)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME


PRODUCER = BatchFields(producer_id=7, producer_epoch=2, base_sequence=40)


def test_last_batch_of_a_producer_stays_empty() -> None:
    data = encode_batch([record(4, "a"), record(5, "b")], PRODUCER)
    gone = {"a": 9, "b": 9}
    found = filtered(data, rules(gone, producers={7: LastRecord(5, 2)}))
    assert (found.action, found.reason) == (BatchAction.EMPTIED, BatchReason.LAST_OF_PRODUCER)
    header = BatchHeader.unpack(found.data)
    assert len(found.data) == 61
    assert (header.record_count, header.last_sequence, header.last_offset) == (0, 41, 5)
    assert header.base_timestamp == -1
    assert (
        filtered(data, rules(gone, producers={7: LastRecord(9, 2)})).action is BatchAction.DROPPED
    )
    assert (
        filtered(data, rules(gone, producers={8: LastRecord(5, 2)})).action is BatchAction.DROPPED
    )
    assert (
        filtered(data, rules(gone, producers={7: LastRecord(-1, 2)})).action is BatchAction.DROPPED
    )


def test_empty_batch_stays_empty_and_then_goes() -> None:
    data = encode_batch([record(4, "a")], PRODUCER)
    emptied = filtered(data, rules({"a": 9}, producers={7: LastRecord(4, 2)})).data
    again = filtered(emptied, rules(producers={7: LastRecord(4, 2)}))
    assert again.data == emptied
    assert filtered(emptied, rules()).action is BatchAction.DROPPED


def test_batch_at_the_bound_stays_empty() -> None:
    data = encode_batch([record(99, None)])
    found = filtered(data, rules())
    assert (found.action, found.reason) == (BatchAction.EMPTIED, BatchReason.ENDS_AT_BOUND)
    assert filtered(data, rules(bound=101)).action is BatchAction.DROPPED


# -- transactions

TXN = BatchFields(is_transactional=True, producer_id=7, producer_epoch=2, base_sequence=0)


def marker(kind: ControlType, offset: int) -> bytes:
    return encode_end_marker(
        EndMarker(kind, 3),
        offset=offset,
        timestamp=1000 + offset,
        producer_id=7,
        producer_epoch=2,
        partition_leader_epoch=0,
    )


def aborted(first_offset: int, last_offset: int) -> AbortedTxn:
    return AbortedTxn(0, 7, first_offset, last_offset, last_offset + 1)


def test_aborted_data_goes_and_its_marker_stays() -> None:
    transactions = CleanedTransactions()
    transactions.add_aborted([aborted(4, 6)])
    data = filtered(encode_batch([record(4, "a")], TXN), rules(), transactions)
    assert (data.action, data.reason, data.decisions) == (
        BatchAction.DROPPED,
        BatchReason.ABORTED,
        (),
    )
    plain = filtered(encode_batch([record(5, "b")]), rules(), transactions)
    assert plain.action is BatchAction.COPIED
    end = marker(ControlType.ABORT, 6)
    assert filtered(end, rules(), transactions).data == end
    assert transactions.take_kept() == [aborted(4, 6)]
    assert transactions.take_kept() == []


def test_aborted_batch_of_a_live_producer_loses_its_records_only() -> None:
    transactions = CleanedTransactions()
    transactions.add_aborted([aborted(4, 6)])
    by = rules(producers={7: LastRecord(4, 2)})
    found = filtered(encode_batch([record(4, "a")], TXN), by, transactions)
    assert (found.action, found.reason) == (BatchAction.EMPTIED, BatchReason.LAST_OF_PRODUCER)
    assert reasons(found) == [RecordReason.ABORTED]


def test_data_before_and_after_an_aborted_transaction_is_committed() -> None:
    transactions = CleanedTransactions()
    transactions.add_aborted([aborted(4, 6), aborted(4, 6)])  # once per segment that it touches
    fates = [
        filtered(data, rules(), transactions).action
        for data in (
            encode_batch([record(1, "a")], TXN),
            marker(ControlType.COMMIT, 2),
            encode_batch([record(4, "a")], TXN),
            marker(ControlType.ABORT, 6),
            encode_batch([record(8, "a")], TXN),
        )
    ]
    assert fates == [
        BatchAction.COPIED,
        BatchAction.COPIED,
        BatchAction.DROPPED,
        BatchAction.COPIED,
        BatchAction.COPIED,
    ]


@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
def test_marker_without_data_gets_a_horizon_and_goes(kind: ControlType) -> None:
    first = filtered(marker(kind, 6), rules())
    assert (first.action, first.reason) == (BatchAction.REBUILT, BatchReason.HORIZON_SET)
    horizon = NOW_MS + RETENTION_MS
    assert BatchHeader.unpack(first.data).delete_horizon_ms == horizon
    assert filtered(first.data, rules(now_ms=horizon - 1)).data == first.data
    gone = filtered(first.data, rules(now_ms=horizon))
    assert (gone.action, gone.reason) == (BatchAction.DROPPED, BatchReason.MARKER_EXPIRED)


def test_marker_past_its_horizon_stays_while_there_is_data() -> None:
    first = filtered(marker(ControlType.COMMIT, 6), rules())
    transactions = CleanedTransactions()
    filtered(encode_batch([record(4, "a")], TXN), rules({"a": 9}), transactions)
    late = rules(now_ms=NOW_MS + RETENTION_MS)
    assert filtered(first.data, late, transactions).data == first.data
    assert (
        filtered(first.data, late, transactions).action is BatchAction.DROPPED
    )  # the next one has none


def test_marker_of_a_producer_without_data_stays_as_a_header() -> None:
    first = filtered(marker(ControlType.COMMIT, 6), rules())
    late = NOW_MS + RETENTION_MS
    live = {7: LastRecord(-1, 2)}
    emptied = filtered(first.data, rules(now_ms=late, producers=live))
    assert (emptied.action, emptied.reason) == (BatchAction.EMPTIED, BatchReason.LAST_OF_PRODUCER)
    assert reasons(emptied) == [RecordReason.MARKER_EXPIRED]
    assert BatchHeader.unpack(emptied.data).is_control
    assert filtered(emptied.data, rules()).action is BatchAction.DROPPED
    fenced = {7: LastRecord(-1, 3)}
    assert filtered(first.data, rules(now_ms=late, producers=fenced)).action is BatchAction.DROPPED


# -- old formats


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_legacy_tombstones_go_by_the_age_of_their_segment(magic: int, codec: Codec) -> None:
    data = encode_legacy([record(4, "a", None)], magic, codec=codec)
    young = filtered(data, rules(), mtime_ms=5001)
    assert young.data == data
    assert young.delete_horizon_ms is None
    assert filtered(data, rules(), mtime_ms=5000).action is BatchAction.DROPPED


@pytest.mark.parametrize("magic", [0, 1])
def test_legacy_set_is_rebuilt(magic: int) -> None:
    records = [record(4, "a"), record(5, "b"), record(6, "c"), record(7, "d")]
    data = encode_legacy(records, magic, codec=Codec.GZIP)
    found = filtered(data, rules({"a": 9, "d": 9}))
    assert found.data == encode_legacy(records[1:3], magic, codec=Codec.GZIP)
    assert found.max_offset == 6


def test_set_of_two_formats_is_mended() -> None:
    inner = encode_legacy([record(4, "a"), record(5, "b")], 0)
    wrapper = Record(5, 1005, None, compress(Codec.GZIP, inner))
    found = filtered(encode_message(wrapper, 1, codec=Codec.GZIP), rules())
    assert (found.action, found.reason) == (BatchAction.REBUILT, BatchReason.MAGIC_MIXED)
    entry = next_entry(found.data, 0)
    assert entry is not None
    header = header_of(found.data, entry)
    assert isinstance(header, LegacyHeader)
    assert inner_magics(found.data, 0, header) == {1}
    assert [(r.offset, r.key) for r in records_of(found.data, entry)] == [(4, b"a"), (5, b"b")]

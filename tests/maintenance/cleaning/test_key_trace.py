"""One key through a log: what is foretold of its records is what Kafka's cleaner then did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.format.control import ControlType, EndMarker, encode_end_marker
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.cleaning.filtering import RecordReason
from stratalog.maintenance.cleaning.key_trace import KeyTrace, NextEvent, trace_key
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import open_log
from stratalog.storage.disk import Disk
from tests.maintenance.cleaning.cleaning_cases import over_cases, rounds_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.golden.cases import CompactionCase

NOW_MS = 1_000_000
RETENTION_MS = 5000
KEYS_MAX = 8


@pytest.mark.slow
@over_cases
def test_what_is_foretold_comes_true(
    case: CompactionCase, compaction_dir: Callable[[str], Path]
) -> None:
    for golden in rounds_of(case, compaction_dir(case.name)):
        told = golden.told
        if not golden.was_cleaned or told["end_dirty_offset"] < told["first_uncleanable_offset"]:
            continue  # not done, or not all keys did fit
        assert golden.after is not None
        with PartitionView(golden.after, log_start_offset=told["log_start_offset"]) as view:
            left = {record.offset for record in view.read()}
        with PartitionView(golden.before, log_start_offset=told["log_start_offset"]) as view:
            keys = sorted({record.key for record in view.read() if record.key is not None})
            for key in keys[:: max(1, len(keys) // KEYS_MAX)]:
                offsets = {record.offset for record in view.read() if record.key == key}
                trace = trace_key(view, key, golden.plan(), golden.config)
                assert trace.record_count == len(offsets)
                assert {record.offset for record in trace.records} == offsets
                kept = {r.offset for r in trace.records if r.decision is None or r.decision.is_kept}
                assert kept == offsets & left


# -- by hand

Part = bytes | None
"""A batch; None rolls."""


def batch(offset: int, value: str | None, fields: BatchFields | None = None) -> bytes:
    raw = None if value is None else value.encode()
    return encode_batch([Record(offset, 1000 + offset, b"k", raw)], fields or BatchFields())


def traced(
    tmp_path: Path, *parts: Part, checkpoint: int | None = None, **settings: int
) -> KeyTrace:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    config = LogConfig.parse(
        {"cleanup.policy": "compact", "delete.retention.ms": RETENTION_MS, **names}
    )
    tmp_path.mkdir(exist_ok=True)
    with open_log(tmp_path / "orders-0", config, disk=Disk(), now_ms=lambda: NOW_MS) as log:
        for part in parts:
            if part is None:
                log.roll()
            else:
                log.append_as_follower(part)
        plan = plan_cleaning(cleaner_log(log, checkpoint), config, NOW_MS)
        return trace_key(log, b"k", plan, config)


def events(trace: KeyTrace) -> list[tuple[int, RecordReason | None, NextEvent]]:
    return [
        (r.offset, None if r.decision is None else r.decision.reason, r.next_event)
        for r in trace.records
    ]


def test_values(tmp_path: Path) -> None:
    trace = traced(tmp_path, batch(0, "a"), batch(1, "bb"), None, batch(2, "c"), None, batch(3, ""))
    assert events(trace) == [
        (0, RecordReason.SUPERSEDED, NextEvent.NEXT_PASS),
        (1, RecordReason.SUPERSEDED, NextEvent.NEXT_PASS),
        (2, RecordReason.NEWEST, NextEvent.NEWER_REACHED),
        (3, None, NextEvent.SEGMENT_REACHED),
    ]
    assert trace.records[0].decision is not None
    assert trace.records[0].decision.newer_offset == 2
    assert [record.value_bytes for record in trace.records] == [1, 2, 1, 0]
    assert [record.path.name[15:20] for record in trace.records] == ["00000"] * 2 + [
        "00002",
        "00003",
    ]
    assert trace.records[1].position > 0


def test_tombstones(tmp_path: Path) -> None:
    trace = traced(tmp_path, batch(0, None), None, batch(1, "x"))
    assert events(trace)[0] == (0, RecordReason.TOMBSTONE_PROTECTED, NextEvent.HORIZON_SET)
    assert trace.records[0].value_bytes is None
    young = BatchFields(delete_horizon_ms=NOW_MS + 1)
    trace = traced(tmp_path / "young", batch(0, None, young), None, batch(1, "x"))
    assert events(trace)[0] == (0, RecordReason.TOMBSTONE_PROTECTED, NextEvent.HORIZON_PASSES)
    assert trace.records[0].next_event_ms == NOW_MS + 1
    old = BatchFields(delete_horizon_ms=NOW_MS)
    trace = traced(tmp_path / "old", batch(0, None, old), None, batch(1, "x"))
    assert events(trace)[0] == (0, RecordReason.TOMBSTONE_EXPIRED, NextEvent.NEXT_PASS)


def test_clean_records_are_judged_by_the_dirty_ones(tmp_path: Path) -> None:
    """Two records in the clean part stay, as the map does not know of them."""
    parts = (batch(0, "a"), batch(1, "b"), None, batch(2, "c"))
    trace = traced(tmp_path, *parts, checkpoint=2)
    assert events(trace)[:2] == [
        (0, RecordReason.NOT_MAPPED, NextEvent.NEWER_REACHED),
        (1, RecordReason.NOT_MAPPED, NextEvent.NEWER_REACHED),
    ]


def test_young_segment_is_reached_later(tmp_path: Path) -> None:
    lag_ms = NOW_MS
    trace = traced(tmp_path, batch(0, "a"), None, batch(1, "b"), min_compaction_lag_ms=lag_ms)
    assert trace.records[0].next_event is NextEvent.SEGMENT_REACHED
    assert trace.records[0].next_event_ms == 1000 + lag_ms
    assert trace.records[1].next_event_ms == 1000 + lag_ms


def test_aborted_records_go_and_supersede_nothing(tmp_path: Path) -> None:
    txn = BatchFields(is_transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)
    end = encode_end_marker(
        EndMarker(ControlType.ABORT, 0),
        offset=2,
        timestamp=1002,
        producer_id=7,
        producer_epoch=0,
        partition_leader_epoch=0,
    )
    trace = traced(tmp_path, batch(0, "a"), batch(1, "b", txn), end, None, batch(3, "c"))
    assert events(trace)[:2] == [
        (0, RecordReason.NEWEST, NextEvent.NEWER_REACHED),
        (1, RecordReason.ABORTED, NextEvent.NEXT_PASS),
    ]


def test_of_many_records_the_newest_are_shown(tmp_path: Path) -> None:
    config = LogConfig.parse({"cleanup.policy": "compact"})
    with open_log(tmp_path / "orders-0", config, disk=Disk(), now_ms=lambda: NOW_MS) as log:
        for offset in range(10):
            log.append_as_follower(batch(offset, "v"))
        plan = plan_cleaning(cleaner_log(log, None), config, NOW_MS)
        passed: list[int] = []
        trace = trace_key(log, b"k", plan, config, records_max=3, on_progress=passed.append)
        assert trace.record_count == 10
        assert [record.offset for record in trace.records] == [7, 8, 9]
        assert passed[-1] == 10
        missing = trace_key(log, b"", plan, config)
        assert (missing.record_count, missing.records) == (0, ())


def test_only_what_counts_supersedes(tmp_path: Path) -> None:
    """The newest record stays, also if a later one, not reached yet, was aborted."""
    txn = BatchFields(is_transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)
    end = encode_end_marker(
        EndMarker(ControlType.ABORT, 0),
        offset=2,
        timestamp=1002,
        producer_id=7,
        producer_epoch=0,
        partition_leader_epoch=0,
    )
    trace = traced(tmp_path, batch(0, "a"), None, batch(1, "b", txn), end)
    assert events(trace)[0] == (0, RecordReason.NEWEST, NextEvent.STAYS)

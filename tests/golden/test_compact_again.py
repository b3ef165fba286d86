"""The compacted topics of a real broker, from what was produced and from what the broker left.

* What its producers sent is written to a fresh log, at the same offsets, and cleaned up to where
  the broker's active segment begins: what a real consumer then read is what must be left.
* What the broker left is cleaned once more: all of it must stay.
"""

from __future__ import annotations

import base64
from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.format.batch import Codec
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.reader import IsolationLevel
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk, SystemCalls
from tests.golden.cases import GoldenCase
from tests.golden.expected import consumed, consumed_offsets
from tests.looping import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from tests.golden.cases import Json

CASES = [
    "compact",
    "compact-delete",
    "compact-droptomb",
    "compact-gzip",
    "compact-logappend",
    "compact-lz4",
    "compact-snappy",
    "compact-txn",
]
CODECS = {
    "compact-gzip": Codec.GZIP,
    "compact-lz4": Codec.LZ4,
    "compact-snappy": Codec.SNAPPY,
}
PRODUCER_ID = 3
BATCH_RECORDS = 8
CLEANED_MS = 1_800_000_000_000  # after all of them were produced
UNSYNCED = Disk(SystemCalls(fsync=lambda _fd: None))

over_cases = for_each("case", [GoldenCase(name) for name in CASES])


class Clock:
    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def config_of(case: GoldenCase) -> LogConfig:
    """As the topic's, but that segments are rolled by hand."""
    settings = {**case.manifest["topic_config"], "segment.bytes": "1000000"}
    return LogConfig.parse(settings)


def active_base(case: GoldenCase) -> int:
    return max(int(path.stem) for path in case.partition_dir.glob("*.log"))


def clean(log: PartitionLog, now_ms: int) -> None:
    plan = plan_cleaning(cleaner_log(log, None), log.config, now_ms)
    assert plan.cleanable_bytes
    Cleaner(24 * 10_000).clean(log, plan)


def produced(case: GoldenCase) -> Iterator[list[Json]]:
    """In batches, none of which crosses the start of the broker's active segment."""
    base = active_base(case)
    size = 1 if "logappend" in case.name else BATCH_RECORDS

    def batch_of(told: Json) -> tuple[int, int, bool]:
        return told.get("tag", 0), told["offset"] // size, told["offset"] >= base

    for _, run in groupby(case.manifest["produced"], batch_of):
        yield list(run)


def write(log: PartitionLog, case: GoldenCase, clock: Clock) -> None:
    codec = CODECS.get(case.name, Codec.NONE)
    is_transactional = case.name == "compact-txn"
    base, tag = active_base(case), 0
    aborted = case.manifest.get("aborted_tags", ())
    sequence = 0
    for run in produced(case):
        clock.now_ms = run[0]["timestamp"]
        roll_at(log, base)
        if is_transactional and run[0]["tag"] != tag:
            log.end_transaction(PRODUCER_ID, 0, commit=tag not in aborted)
            tag = run[0]["tag"]
            roll_at(log, base)
        fields = BatchFields(codec=codec)
        if is_transactional:
            fields = BatchFields(
                producer_id=PRODUCER_ID,
                producer_epoch=0,
                base_sequence=sequence,
                is_transactional=True,
            )
            sequence += len(run)
        records = [record_of(told, n) for n, told in enumerate(run)]
        assert log.append(encode_batch(records, fields)).first_offset == run[0]["offset"]
    if is_transactional:
        log.end_transaction(PRODUCER_ID, 0, commit=tag not in aborted)


def roll_at(log: PartitionLog, offset: int) -> None:
    if log.log_end_offset == offset:
        log.roll()


def record_of(told: Json, offset: int) -> Record:
    key, value = told["key"], told["value"]
    return Record(
        offset,
        told["ts"],
        base64.b64decode(key),
        None if value is None else base64.b64decode(value),
    )


@pytest.mark.slow
@over_cases
def test_what_producers_sent_comes_to_what_a_consumer_read(
    case: GoldenCase, tmp_path: Path
) -> None:
    clock = Clock()
    path = tmp_path / case.partition_dir.name
    with open_log(path, config_of(case), disk=UNSYNCED, now_ms=clock) as log:
        write(log, case, clock)
        assert log.maintenance.segments[-1].base_offset == active_base(case)
        clean(log, CLEANED_MS)
        if case.name == "compact-droptomb":  # the broker came back once tombstones could go
            clean(log, CLEANED_MS + 1_000)
        for isolation in IsolationLevel:
            start = consumed_offsets(case, isolation).beginning  # some were deleted by size
            found = [record for record in log.read(isolation=isolation) if record.offset >= start]
            assert found == list(consumed(case, isolation))


@pytest.mark.slow
@over_cases
def test_what_a_broker_left_stays(case: GoldenCase, tmp_path: Path) -> None:
    """Its tombstones are kept: by this clock none of them is past its delete horizon."""
    clock = Clock()
    clock.now_ms = 1_700_000_000_000
    start = consumed_offsets(case, IsolationLevel.READ_UNCOMMITTED).beginning
    path = case.copy_to(tmp_path) / case.partition_dir.name
    point = LoadPoint(log_start_offset=start)
    with open_log(path, config_of(case), disk=UNSYNCED, now_ms=clock, point=point) as log:
        for _ in range(2):
            clean(log, clock.now_ms)
            log.maintenance.remove_discarded(0, at_once=True)
            for isolation in IsolationLevel:
                assert list(log.read(isolation=isolation)) == list(consumed(case, isolation))
        sizes = [segment.size_bytes for segment in log.maintenance.segments[1:-1]]
        assert 0 not in sizes, "empty segments are merged into a neighbour"

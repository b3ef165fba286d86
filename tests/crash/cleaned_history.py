"""A log with something of everything that compaction has to take care of, and what must survive.

Segments are rolled by hand. In each, plain keys get new values, one key a tombstone; an idempotent
producer writes; a transaction that began in the segment before ends, by turns aborted and
committed, and another begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.config import LogConfig
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.reader import IsolationLevel
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk, SystemCalls

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.plan import CleaningResult

START_MS = 1_700_000_000_000
RETENTION_MS = 60_000
CONFIG = LogConfig.parse(
    {
        "cleanup.policy": "compact",
        "segment.bytes": 2_500,
        "segment.index.bytes": 480,
        "index.interval.bytes": 200,
        "delete.retention.ms": RETENTION_MS,
        "min.cleanable.dirty.ratio": 0,
    }
)
SEGMENTS = 6
IDEMPOTENT, TRANSACTIONAL = 5, 7
UNSYNCED = Disk(SystemCalls(fsync=lambda _fd: None))
MAP_BYTES = 24 * 64


class Expected(NamedTuple):
    """What a reader may find, and what it must."""

    end: int
    records: frozenset[Record]
    committed: frozenset[Record]
    live: dict[bytes, Record]
    """Of each key that is not deleted the last record."""
    producers: frozenset[tuple[int, int, int, int]]


def open_at(
    path: Path, disk: Disk, now_ms: int = START_MS, point: LoadPoint | None = None
) -> PartitionLog:
    return open_log(path, CONFIG, disk=disk, now_ms=lambda: now_ms, point=point or LoadPoint())


def clean(log: PartitionLog, checkpoint: int | None, now_ms: int) -> CleaningResult:
    plan = plan_cleaning(cleaner_log(log, checkpoint), log.config, now_ms)
    assert plan.is_selected
    return Cleaner(MAP_BYTES).clean(log, plan)


def write_history(log: PartitionLog, *, first: int = 0, segments: int = SEGMENTS) -> None:
    """Appends `segments` sealed segments, and one record behind them."""
    for number in range(first, first + segments):
        if number:
            log.end_transaction(TRANSACTIONAL, 0, commit=number % 2 == 0)
        _append(log, [(b"a", b"a%d" % number), (b"b", b"b%d" % number)])
        _append(log, [(b"only-%d" % number, b"x" * 200), (b"a", b"A%d" % number)])
        _append(log, [(b"gone-%d" % (number // 2), b"g" if number % 2 == 0 else None)])
        _append(log, [(b"idem-%d" % (number % 2), b"%d" % number)], IDEMPOTENT)
        _append(log, [(b"txn", b"t%d" % number), (b"b", b"T%d" % number)], TRANSACTIONAL)
        log.roll()
    log.end_transaction(TRANSACTIONAL, 0, commit=True)
    _append(log, [(b"last", b"%d" % first)])


def _append(
    log: PartitionLog, pairs: list[tuple[bytes, bytes | None]], producer_id: int = -1
) -> None:
    fields = BatchFields()
    if producer_id >= 0:
        known = log.producers.producers.get(producer_id)
        fields = BatchFields(
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0 if known is None else known.next_sequence,
            is_transactional=producer_id == TRANSACTIONAL,
        )
    time = START_MS + log.log_end_offset
    records = [Record(n, time, key, value) for n, (key, value) in enumerate(pairs)]
    log.append(encode_batch(records, fields))


def expected_of(log: PartitionLog) -> Expected:
    committed = list(log.read(isolation=IsolationLevel.READ_COMMITTED))
    return Expected(
        log.log_end_offset,
        frozenset(log.read()),
        frozenset(committed),
        live_in(committed),
        producers_of(log),
    )


def live_in(records: list[Record]) -> dict[bytes, Record]:
    last = {record.key: record for record in records if record.key is not None}
    return {key: record for key, record in last.items() if record.value is not None}


def producers_of(log: PartitionLog) -> frozenset[tuple[int, int, int, int]]:
    """What decides on their next batch."""
    return frozenset(
        (state.producer_id, state.producer_epoch, state.next_sequence, state.open_txn_first_offset)
        for state in log.producers.producers.values()
    )


def check_content(log: PartitionLog, expected: Expected) -> None:
    """Nothing live is lost, nothing aborted is shown, nothing is new, and order is kept."""
    found = list(log.read())
    committed = list(log.read(isolation=IsolationLevel.READ_COMMITTED))
    assert set(found) <= expected.records
    assert set(committed) <= expected.committed
    assert live_in(committed) == expected.live
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    assert log.log_end_offset == expected.end
    assert producers_of(log) == expected.producers

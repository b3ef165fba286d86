"""One writer and several readers on the same log, without a lock between them."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.config.topic import CleanupPolicy
from stratalog.errors import OffsetOutOfRangeError, SegmentGoneError
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.reader import IsolationLevel
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import open_log
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog

START_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=8_000, segment_index_bytes=1_200, index_interval_bytes=300)
READERS = 3
RUN_S = 2.0
TRANSACTIONAL = 9


class Crowd:
    """Readers that run until the writer is done, and what went wrong with them."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []
        self.reads = 0
        self.gone = 0
        self.sees_all = False  # whether every offset has a record for readers
        self.starts_over = False  # whether the log start may go back

    def run(self, write: Callable[[random.Random], None], seed: int = 0) -> None:
        threads = [threading.Thread(target=self._read, args=(n,)) for n in range(READERS)]
        for thread in threads:
            thread.start()
        try:
            rng = random.Random(seed)
            end = time.monotonic() + RUN_S
            while time.monotonic() < end and not self.errors:
                write(rng)
        finally:
            self.is_over.set()
            for thread in threads:
                thread.join()
        if self.errors:
            raise self.errors[0]
        assert self.reads > 10

    def _read(self, seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not self.is_over.is_set():
                try:
                    self.look(rng)
                    self.reads += 1
                except (OffsetOutOfRangeError, SegmentGoneError):
                    self.gone += 1  # it was cut off meanwhile
        except BaseException as error:  # told by the main thread
            self.errors.append(error)

    def look(self, rng: random.Random) -> None:
        log = self.log
        start, end = log.log_start_offset, log.log_end_offset
        isolation = rng.choice(list(IsolationLevel))
        offset = rng.randint(start, max(start, end))
        before = offset - 1
        for record in log.read(offset, isolation=isolation, max_records=rng.choice([1, 50])):
            assert record.offset == before + 1 if self.sees_all else record.offset > before
            check(record)
            before = record.offset
        asked = START_MS + rng.randint(0, max(1, end))
        hit = log.find_time(asked)
        assert hit is None or hit.timestamp >= asked
        assert hit is None or self.starts_over or hit.offset >= start
        found = log.locate(rng.randint(start, max(start, end)))
        if found is not None and not found.header.is_control:
            check(found.record)
        for txn in log.aborted_transactions(start):
            assert txn.first_offset <= txn.last_offset
        log.find_max_timestamp()


def batch(offset: int, rng: random.Random, fields: BatchFields = BatchFields()) -> bytes:  # noqa: B008
    """Records that tell which offset they expect to get."""
    count = rng.randint(1, 4)
    records = [
        Record(n, START_MS + offset + n, b"%d" % (offset + n), rng.randbytes(rng.choice([5, 300])))
        for n in range(count)
    ]
    return encode_batch(records, fields)


def check(record: Record) -> None:
    assert record.key == b"%d" % record.offset
    assert record.timestamp == START_MS + record.offset


def append(log: PartitionLog, rng: random.Random) -> None:
    log.append(batch(log.log_end_offset, rng))


def transact(log: PartitionLog, rng: random.Random) -> None:
    known = log.producers.producers.get(TRANSACTIONAL)
    fields = BatchFields(
        producer_id=TRANSACTIONAL,
        producer_epoch=0,
        base_sequence=0 if known is None else known.next_sequence,
        is_transactional=True,
    )
    log.append(batch(log.log_end_offset, rng, fields))
    log.end_transaction(TRANSACTIONAL, 0, commit=rng.random() < 0.5)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    holder: list[PartitionLog] = []

    def now_ms() -> int:
        return START_MS + (holder[0].log_end_offset if holder else 0)

    opened = open_log(tmp_path / "t-0", CONFIG, disk=Disk(), now_ms=now_ms)
    holder.append(opened)
    yield opened
    opened.close()


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_reading_while_a_log_grows(log: PartitionLog) -> None:
    """Nothing is ever gone: it is only appended, rolled and flushed."""
    crowd = Crowd(log)

    def write(rng: random.Random) -> None:
        do = rng.choices([append, transact], [8, 2])[0]
        do(log, rng)
        if rng.random() < 0.02:
            log.roll()
        if rng.random() < 0.01:
            log.flush()

    crowd.run(write)
    assert crowd.gone == 0
    assert len(log.segments) > 2
    assert [record.offset for record in log.read()] == sorted(
        {record.offset for record in log.read()}
    )


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_reading_while_a_log_is_cut(log: PartitionLog) -> None:
    """Truncated, started over, its start moved up: readers get good records or are told that these
    are gone, but never see damage."""
    crowd = Crowd(log)
    crowd.starts_over = True

    def write(rng: random.Random) -> None:
        for _ in range(rng.randint(1, 60)):
            append(log, rng)
        choice = rng.random()
        start, end = log.log_start_offset, log.log_end_offset
        if choice < 0.6:
            log.truncate_to(rng.randint(max(start, end - 100), end))
        elif choice < 0.7:
            log.truncate_fully_and_start_at(rng.randint(0, 50))
        elif choice < 0.9:
            log.delete_records(rng.randint(start, end))
        else:
            transact(log, rng)

    crowd.run(write)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_reading_while_old_segments_are_deleted(log: PartitionLog) -> None:
    """Retention takes segments, and later their files, from under readers: these go on, or are told
    what is gone. They see no gap."""
    crowd = Crowd(log)
    crowd.sees_all = True

    def write(rng: random.Random) -> None:
        for _ in range(rng.randint(1, 60)):
            append(log, rng)
        count = len(log.maintenance.segments)
        if rng.random() < 0.3:
            log.maintenance.delete_oldest(count if rng.random() < 0.2 else rng.randrange(count))
        if rng.random() < 0.3:
            log.maintenance.remove_discarded(0, at_once=True)

    crowd.run(write)
    assert log.log_start_offset > 0


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_reading_while_a_log_is_compacted(log: PartitionLog) -> None:
    """No key comes twice, so all records stay: but in other files under the same names."""
    crowd = Crowd(log)
    crowd.sees_all = True
    cleaner = Cleaner(1 << 22)
    log.update_config(replace(CONFIG, cleanup_policy=frozenset({CleanupPolicy.COMPACT})))
    sizes = [3_000, 8_000, 20_000]

    def write(rng: random.Random) -> None:
        for _ in range(rng.randint(1, 60)):
            append(log, rng)
        if rng.random() < 0.3:
            log.update_config(replace(log.config, segment_bytes=rng.choice(sizes)))
            plan = plan_cleaning(cleaner_log(log, 0), log.config, log._now_ms())
            cleaner.clean(log, plan)
        if rng.random() < 0.3:
            log.maintenance.remove_discarded(0, at_once=True)

    crowd.run(write)
    assert crowd.gone == 0
    assert [record.offset for record in log.read()] == list(range(log.log_end_offset))

"""Cleaning a log that is read, appended to, cut and configured at the same time."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import CleaningAbortedError, LogOfflineError
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.reader import IsolationLevel
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import PassControl, cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import open_log
from stratalog.storage.disk import Disk, SystemCalls
from tests.crash.cleaned_history import CONFIG, RETENTION_MS, UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.plan import CleaningResult

START_MS = 1_700_000_000_000
RUN_S = 3.0
PATIENCE_S = 100.0
ROUNDS_MIN = 3
READS_MIN = 10
READERS = 3
KEYS = 40
TRANSACTIONAL = 9
MAP_BYTES = 24 * 200


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    holder: list[PartitionLog] = []

    def now_ms() -> int:
        return START_MS + (holder[0].log_end_offset if holder else 0)

    opened = open_log(tmp_path / "t-0", CONFIG, disk=UNSYNCED, now_ms=now_ms)
    holder.append(opened)
    yield opened
    opened.close()


def key_at(offset: int) -> bytes:
    return b"%d" % (offset * 7919 % KEYS)


def batch(offset: int, count: int, fields: BatchFields = BatchFields()) -> bytes:  # noqa: B008
    """Records that tell which offset they expect to get; in a transaction, aborted ones too."""
    records = [
        Record(n, START_MS + offset + n, key_at(offset + n), b"%d" % (offset + n))
        for n in range(count)
    ]
    return encode_batch(records, fields)


def append(log: PartitionLog, rng: random.Random) -> None:
    log.append(batch(log.log_end_offset, rng.randint(1, 5)))


def transact(log: PartitionLog, rng: random.Random) -> None:
    """Those that are to be aborted are of one record at an offset that is told by its key."""
    known = log.producers.producers.get(TRANSACTIONAL)
    fields = BatchFields(
        producer_id=TRANSACTIONAL,
        producer_epoch=0,
        base_sequence=0 if known is None else known.next_sequence,
        is_transactional=True,
    )
    offset = log.log_end_offset
    if rng.random() < 0.5:
        log.append(batch(offset, 2, fields))
        log.end_transaction(TRANSACTIONAL, 0, commit=True)
    else:
        record = Record(0, START_MS + offset, key_at(offset), b"aborted")
        log.append(encode_batch([record], fields))
        log.end_transaction(TRANSACTIONAL, 0, commit=False)


def check(record: Record, isolation: IsolationLevel) -> None:
    assert record.key == key_at(record.offset)
    assert record.timestamp == START_MS + record.offset
    if record.value == b"aborted":
        assert isolation is IsolationLevel.READ_UNCOMMITTED
    else:
        assert record.value == b"%d" % record.offset


def clean_all(log: PartitionLog, checkpoint: int | None = None) -> CleaningResult | None:
    plan = plan_cleaning(cleaner_log(log, checkpoint), log.config, START_MS + log.log_end_offset)
    if not plan.cleanable_bytes:
        return None
    return Cleaner(MAP_BYTES).clean(log, plan)


class Crowd:
    """Readers that run until told to end, and what went wrong with them."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []
        self.reads = 0

    def run(
        self, work: Sequence[Callable[[random.Random], None]], is_enough: Callable[[], bool]
    ) -> None:
        threads = [
            threading.Thread(target=self._repeat, args=(self._look, n)) for n in range(READERS)
        ]
        threads += [
            threading.Thread(target=self._repeat, args=(do, n)) for n, do in enumerate(work)
        ]
        for thread in threads:
            thread.start()
        start = time.monotonic()
        while time.monotonic() < start + PATIENCE_S and not self.errors:
            if time.monotonic() > start + RUN_S and self.reads > READS_MIN and is_enough():
                break
            time.sleep(0.01)
        self.is_over.set()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _repeat(self, do: Callable[[random.Random], None], seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not self.is_over.is_set():
                do(rng)
        except BaseException as error:  # told by the main thread
            self.errors.append(error)

    def _look(self, rng: random.Random) -> None:
        log = self.log
        start, end = log.log_start_offset, log.log_end_offset
        isolation = rng.choice(list(IsolationLevel))
        offset = rng.randint(start, max(start, end))
        before = offset - 1
        for record in log.read(offset, isolation=isolation, max_records=rng.choice([1, 50, 1000])):
            assert record.offset > before
            check(record, isolation)
            before = record.offset
        before = offset - 1
        for rows in log.read_columns(offset, isolation=isolation, columns=["offset", "key"]):
            for row in rows.to_pylist():
                assert row["offset"] > before
                assert row["key"] == key_at(row["offset"])
                before = row["offset"]
        wanted = START_MS + rng.randint(0, max(1, end))
        hit = log.find_time(wanted)
        assert hit is None or hit.timestamp >= wanted
        target = rng.randint(start, max(start, end))
        found = log.locate(target)
        if found is not None and not found.header.is_control:
            assert found.record.offset >= target
            check(found.record, IsolationLevel.READ_UNCOMMITTED)
        self.reads += 1


def check_live(log: PartitionLog, newest: dict[bytes, int]) -> None:
    """Every key has its last committed record."""
    committed = log.read(isolation=IsolationLevel.READ_COMMITTED)
    assert {record.key: record.offset for record in committed} == newest


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_reading_and_appending_while_segments_are_replaced(log: PartitionLog) -> None:
    """Readers never fail and go forward only."""
    newest: dict[bytes, int] = {}
    rounds = [0]

    def write(rng: random.Random) -> None:
        offset = log.log_end_offset
        before = log.last_stable_offset
        assert before == offset
        rng.choices([append, transact], [8, 2])[0](log, rng)
        for record in log.read(offset, isolation=IsolationLevel.READ_COMMITTED):
            assert record.key is not None
            newest[record.key] = record.offset
        if rng.random() < 0.05:
            log.roll()
        if rng.random() < 0.02:
            log.maintenance.remove_discarded(0, at_once=True)
        time.sleep(0.0005)

    def compact(_rng: random.Random) -> None:
        rounds[0] += clean_all(log) is not None

    Crowd(log).run([write, compact], lambda: rounds[0] > ROUNDS_MIN)
    assert rounds[0] > ROUNDS_MIN
    check_live(log, newest)
    clean_all(log)
    check_live(log, newest)
    path = log.path
    log.close()
    with open_log(path, CONFIG, disk=UNSYNCED, now_ms=lambda: START_MS) as again:
        check_live(again, newest)


def filled(log: PartitionLog, segments: int = 6) -> None:
    for _ in range(segments):
        for _ in range(8):
            log.append(batch(log.log_end_offset, 3))
        log.roll()
    log.append(batch(log.log_end_offset, 1))


def newest_below(end: int) -> dict[bytes, int]:
    return {key_at(offset): offset for offset in range(end)}


class Interruption:
    """Does something to the log the n-th time that cleaning tells of its progress."""

    def __init__(self, log: PartitionLog, at: int, do: Callable[[], None]) -> None:
        self.log, self.at, self.do = log, at, do
        self.calls = 0

    def __call__(self, _bytes_done: int) -> None:
        self.calls += 1
        if self.calls == self.at:
            self.do()

    def clean(self) -> CleaningResult | None:
        log = self.log
        plan = plan_cleaning(cleaner_log(log, None), log.config, START_MS + RETENTION_MS)
        try:
            return Cleaner(MAP_BYTES).clean(log, plan, PassControl(self))
        except CleaningAbortedError:
            return None


STEPS = range(1, 14)


@pytest.mark.slow
@pytest.mark.parametrize("at", STEPS)
@pytest.mark.parametrize("cut", ["at a segment", "inside a segment", "grown again"])
def test_a_log_that_is_cut_meanwhile(log: PartitionLog, at: int, cut: str) -> None:
    """Records that were superseded only by what is cut off are all that is left of their keys."""
    filled(log)
    bases = [segment.base_offset for segment in log.maintenance.segments]
    end = bases[3] if cut == "at a segment" else bases[3] + 6

    def truncate() -> None:
        log.truncate_to(end)
        if cut == "grown again":
            while log.log_end_offset < bases[-1]:  # as it was, but for one key
                offset = log.log_end_offset
                record = Record(0, START_MS + offset, b"x", b"%d" % offset)
                log.append(encode_batch([record], BatchFields()))
                if log.log_end_offset in bases:
                    log.roll()

    interruption = Interruption(log, at, truncate)
    result = interruption.clean()
    if interruption.calls < at:
        assert result is not None
        return
    committed = {record.key or b"": record.offset for record in log.read()}
    expected = newest_below(end)
    if at > 6:  # groups that were replaced before the cut have lost what it superseded
        assert set(committed) >= {b"x"} if cut == "grown again" else True
        assert all(expected[key] <= offset for key, offset in committed.items() if key != b"x")
    elif cut == "grown again":
        assert committed == {**expected, b"x": bases[-1] - 1}
    else:
        assert committed == expected
    if result is not None:
        assert interruption.calls == at, "only at its very end may a cut go unnoticed"
    assert not [*log.path.glob("*.cleaned")]
    assert not [*log.path.glob("*.swap")]
    assert log.is_usable


@pytest.mark.slow
@pytest.mark.parametrize("at", STEPS)
@pytest.mark.parametrize("count", [1, 3, 6])
def test_a_log_that_loses_segments_meanwhile(log: PartitionLog, at: int, count: int) -> None:
    filled(log)
    end = log.log_end_offset
    gone = log.maintenance.segments[count].base_offset

    def delete() -> None:
        log.maintenance.delete_oldest(min(count, len(log.maintenance.segments) - 1))

    interruption = Interruption(log, at, delete)
    interruption.clean()
    start = log.log_start_offset
    assert start in {0, *range(gone, end + 1)}
    found = {record.key: record.offset for record in log.read()}
    assert found == {key: offset for key, offset in newest_below(end).items() if offset >= start}
    assert not [*log.path.glob("*.cleaned")]
    clean_all(log)
    assert {record.key: record.offset for record in log.read()} == found


@pytest.mark.parametrize("at", STEPS)
def test_a_log_that_is_closed_meanwhile(log: PartitionLog, at: int) -> None:
    filled(log)
    end = log.log_end_offset
    interruption = Interruption(log, at, log.close)
    with suppress(LogOfflineError):
        interruption.clean()
    assert not [*log.path.glob("*.cleaned")]
    with open_log(log.path, CONFIG, disk=UNSYNCED, now_ms=lambda: START_MS) as again:
        assert {record.key: record.offset for record in again.read()} == newest_below(end)


@pytest.mark.parametrize("at", STEPS)
def test_settings_that_change_meanwhile(log: PartitionLog, at: int) -> None:
    filled(log)
    end = log.log_end_offset
    smaller = CONFIG.parse({"segment.bytes": 1000, "index.interval.bytes": 100}, CONFIG)
    result = Interruption(log, at, lambda: log.update_config(smaller)).clean()
    assert result is not None
    assert {record.key: record.offset for record in log.read()} == newest_below(end)
    assert result.end_offset == log.maintenance.segments[-1].base_offset


def test_a_list_that_was_seen_during_a_replacement_is_not_kept(tmp_path: Path) -> None:
    """It has names that end in `.swap`; the next pass would look for those files."""
    opened: list[PartitionLog] = []
    seen: set[str] = set()

    def fsync(_fd: int) -> None:
        for log in opened:
            seen.update(segment.path.suffix for segment in log.segments)

    disk = Disk(SystemCalls(fsync=fsync))
    with open_log(tmp_path / "t-0", CONFIG, disk=disk, now_ms=lambda: START_MS) as log:
        filled(log)
        opened.append(log)
        assert clean_all(log) is not None
        assert seen == {".log", ".swap"}
        assert {segment.path.suffix for segment in log.segments} == {".log"}
        log.append(batch(log.log_end_offset, 1))
        assert {segment.path.suffix for segment in log.segments} == {".log"}
        opened.clear()

"""A lost or truncated `.txnindex`: writers hide what was aborted, and rebuild the last one."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest

from stratalog.config import CleanupPolicy, LogConfig
from stratalog.errors import LogOfflineError, StorageError
from stratalog.format.txn_index import ENTRY_BYTES, read_entries
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import IsolationLevel
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.maintenance.verify.directory import VerifyPlan, run_plan, verify_partition
from stratalog.maintenance.verify.findings import Fault as Verified
from stratalog.maintenance.verify.findings import Severity
from stratalog.maintenance.verify.partition import plan_partition
from stratalog.spark.options import plan_read
from stratalog.storage.disk import Disk
from tests.disks import Fault
from tests.golden.cases import GoldenCase
from tests.golden.expected import consumed, directory_to_read
from tests.log.building import copy_partition
from tests.log.readers import over_readers
from tests.log.written_log import CONFIG, NOW_MS, PRODUCER, Setup, batch, sent
from tests.looping import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.partition_log import PartitionLog
    from tests.log.readers import Reader

COMMITTED = IsolationLevel.READ_COMMITTED
TXN_CASES = [GoldenCase(name) for name in ("txn", "txn-now", "txn-simple", "compact-txn")]


def drop_txn_indexes(path: Path) -> dict[str, bytes]:
    """What they contained, by name."""
    dropped = {file.name: file.read_bytes() for file in path.glob("*.txnindex")}
    for name in dropped:
        (path / name).unlink()
    return dropped


def opened_clean(path: Path, case: GoldenCase) -> PartitionLog:
    start, end = case.loaddir["logStartOffset"], case.loaddir["logEndOffset"]
    point = LoadPoint(start, end, was_clean=True)
    return open_log(path, LogConfig(), disk=Disk(), now_ms=lambda: NOW_MS, point=point)


@for_each("case", TXN_CASES)
def test_a_writer_hides_what_was_aborted(case: GoldenCase, tmp_path: Path) -> None:
    path = copy_partition(directory_to_read(case), tmp_path)
    with PartitionView(path) as view:
        before = view.aborted_transactions()
    assert drop_txn_indexes(path)
    with opened_clean(path, case) as log:
        assert tuple(log.read(isolation=COMMITTED)) == consumed(case, COMMITTED)
        if case.name != "compact-txn":  # there the data of the entries is gone
            assert log.aborted_transactions() == before
            some = before[len(before) // 2]
            start, end = some.first_offset, some.last_offset
            expected = [t for t in before if t.first_offset < end and t.last_offset >= start]
            assert log.aborted_transactions(start, end) == expected


def aborted_in_each(setup: Setup, segments: int) -> PartitionLog:
    """In each segment an aborted transaction of two batches, and a record without one."""
    log = setup.log
    for number in range(segments):
        if number:
            log.roll()
        log.append(batch())
        log.append(sent(2 * number, in_txn=True))
        log.append(sent(2 * number + 1, in_txn=True))
        log.end_transaction(PRODUCER, 0, commit=False)
    return log


def test_opening_rebuilds_the_index_that_is_appended_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup(tmp_path)
    log = aborted_in_each(setup, 3)
    log.close()
    dropped = drop_txn_indexes(setup.path)
    last = max(dropped)
    assert len(dropped) == 3
    log = setup.reopen()
    assert (setup.path / last).read_bytes() == dropped[last]
    assert [name for name in dropped if name in caplog.text] == [last]
    assert "rebuilt" in caplog.text
    log.append(sent(6, in_txn=True))
    log.end_transaction(PRODUCER, 0, commit=False)
    log.roll()
    log.append(batch())
    assert [txn.first_offset for txn in log.aborted_transactions()] == [1, 5, 9, 12]
    assert [record.offset for record in log.read(isolation=COMMITTED)] == [0, 4, 8, 14]
    assert all(name in caplog.text for name in dropped)


def test_each_missing_index_is_looked_up_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup(tmp_path)
    aborted_in_each(setup, 3).close()
    names = sorted(drop_txn_indexes(setup.path))
    log = setup.reopen()
    for _ in range(3):
        log.append(batch())
        assert len(log.aborted_transactions()) == 3
    assert [caplog.text.count(f"{name}: missing") for name in names] == [1, 1, 1]


def test_without_transactions_nothing_is_walked(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    for number in range(4):
        setup.log.append(sent(number))
        setup.log.roll()
    log = setup.reopen()
    assert log.aborted_transactions() == []
    with PartitionView(setup.path) as view:
        assert view.missing_txn_indexes() == []
        *closed, _ = view.segments
        assert not any("file" in vars(segment) for segment in closed)


@pytest.mark.parametrize("has_end_snapshot", [True, False])
def test_the_index_of_the_last_segment_is_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, has_end_snapshot: bool
) -> None:
    """Also without the snapshot of a clean shutdown, where the end of the log is replayed."""
    setup = Setup(tmp_path)
    log = aborted_in_each(setup, 2)
    end = log.log_end_offset
    log.close()
    last = max(drop_txn_indexes(setup.path))
    if not has_end_snapshot:
        (setup.path / f"{end:020d}.snapshot").unlink()
    with PartitionView(setup.path) as view:
        assert [txn.first_offset for txn in view.aborted_transactions()] == [1, 5]
    assert f"{last}: missing" in caplog.text
    caplog.clear()
    with PartitionView(setup.path) as view:
        assert [missing.path.name for missing in view.missing_txn_indexes()][-1] == last
        view.aborted_transactions()
    assert caplog.text.count(f"{last}: missing") == 1


LOST_BYTES = {"last entry": 34, "last two entries": 68, "part of the last entry": 10}


def truncate_txn_index(path: Path, lost_bytes: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-lost_bytes])


def txn_up_to(end: int, into: Path, *, has_end_snapshot: bool) -> Path:
    """A copy of the golden partition as it was at `end`, where a segment begins."""
    path = copy_partition(GoldenCase("txn").partition_dir, into)
    for file in path.glob("0*"):
        is_end_snapshot = file.name == f"{end:020d}.snapshot"
        if int(file.stem) >= end and not (is_end_snapshot and has_end_snapshot):
            file.unlink()
    return path


@over_readers
@pytest.mark.parametrize("has_end_snapshot", [True, False])
@pytest.mark.parametrize("lost", LOST_BYTES)
def test_the_last_index_ends_before_its_log(
    tmp_path: Path, lost: str, reader: Reader, *, has_end_snapshot: bool
) -> None:
    """As a kill between marker and entry leaves it, or a copy that was not atomic."""
    path = txn_up_to(117, tmp_path, has_end_snapshot=has_end_snapshot)
    with PartitionView(path) as view:
        records, aborted = list(reader(view, isolation=COMMITTED)), view.aborted_transactions()
    truncate_txn_index(path / f"{89:020d}.txnindex", LOST_BYTES[lost])
    with PartitionView(path) as view:
        assert list(reader(view, isolation=COMMITTED)) == records
        assert view.aborted_transactions() == aborted
        for txn in aborted:
            assert txn in view.aborted_transactions(txn.first_offset, txn.last_offset)


@over_readers
def test_an_incomplete_entry_in_any_segment(tmp_path: Path, reader: Reader) -> None:
    case = GoldenCase("txn")
    path = copy_partition(case.partition_dir, tmp_path)
    for file in path.glob("*.txnindex"):
        truncate_txn_index(file, 10)
    with PartitionView(path) as view, PartitionView(case.partition_dir) as intact:
        assert tuple(reader(view, isolation=COMMITTED)) == consumed(case, COMMITTED)
        assert view.aborted_transactions() == intact.aborted_transactions()


@pytest.mark.parametrize("lost", LOST_BYTES)
def test_the_spark_plan_knows_what_the_last_index_lacks(tmp_path: Path, lost: str) -> None:
    path = txn_up_to(117, tmp_path, has_end_snapshot=True)
    options = {"subscribe": "txn", "kafka.isolation.level": "read_committed"}

    def aborted() -> list[list[AbortedTxn]]:
        plan = plan_read({**options, "path": str(path.parent)})
        return [sorted(piece.aborted) for split in plan.splits for piece in split.ranges]

    before = aborted()
    truncate_txn_index(path / f"{89:020d}.txnindex", LOST_BYTES[lost])
    assert aborted() == before
    assert any(before)


def test_reading_from_the_newest_snapshot_on_walks_nothing_below_it(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    log = aborted_in_each(setup, 1)
    end = log.log_end_offset
    log.close()
    with PartitionView(setup.path) as view:
        assert view.aborted_transactions(end) == []
        assert view.segments[-1].aborted_not_indexed is None
        assert len(view.aborted_transactions()) == 1
        assert view.segments[-1].aborted_not_indexed == ()


def test_opening_rebuilds_a_truncated_last_index(tmp_path: Path) -> None:
    """Without it, the next entry would replace the incomplete one for good."""
    setup = Setup(tmp_path)
    aborted_in_each(setup, 2).close()
    last = max(setup.path.glob("*.txnindex"))
    complete = last.read_bytes()
    truncate_txn_index(last, 10)
    log = setup.reopen()
    assert last.read_bytes() == complete
    log.append(sent(4, in_txn=True))
    log.end_transaction(PRODUCER, 0, commit=False)
    assert [txn.first_offset for txn in log.aborted_transactions()] == [1, 5, 8]


def torn_entry(root: Path) -> tuple[Setup, Path]:
    """The disk fails while the entry of the second aborted transaction is written, and does not let
    the half that was written be removed."""
    for call in count(1):
        path = root / str(call)
        path.mkdir()
        setup = Setup(path)
        log = aborted_in_each(setup, 1)
        log.append(sent(2, in_txn=True))
        at = len(setup.disk.history) + call
        setup.disk.fault = Fault(at, errno.ENOSPC, written=0.5, is_lasting=True)
        with pytest.raises(StorageError):
            log.end_transaction(PRODUCER, 0, commit=False)
        index = setup.path / f"{0:020d}.txnindex"
        if index.stat().st_size % ENTRY_BYTES:
            setup.disk.fault = None
            return setup, index
    raise AssertionError


@over_readers
def test_a_failing_disk_tears_an_entry(tmp_path: Path, reader: Reader) -> None:
    """No reader is misled by it, nothing is appended after it, and opening rebuilds it."""
    setup, index = torn_entry(tmp_path)
    torn, log = index.read_bytes(), setup.log
    with pytest.raises(LogOfflineError):
        log.end_transaction(PRODUCER, 0, commit=False)
    with pytest.raises(LogOfflineError):
        log.append(batch())
    log.close()
    assert index.read_bytes() == torn
    with PartitionView(setup.path) as view:
        assert [record.offset for record in reader(view, isolation=COMMITTED)] == [0]
        assert [txn.last_offset for txn in view.aborted_transactions()] == [3, 5]
    plan = VerifyPlan((plan_partition(setup.path, recovery_point=0),))
    findings = run_plan(plan, threads=1).at_least(Severity.WARNING)
    assert {finding.severity for finding in findings} == {Severity.WARNING}
    assert Verified.TXN_INDEX_TORN.code in {finding.code for finding in findings}
    with setup.open() as log:
        log.append(sent(3, in_txn=True))
        log.end_transaction(PRODUCER, 0, commit=False)
        assert [txn.last_offset for txn in read_entries(index.read_bytes())] == [3, 5, 7]
        assert not index.stat().st_size % ENTRY_BYTES
        assert [record.offset for record in log.read(isolation=COMMITTED)] == [0]


def test_a_torn_entry_is_an_error_where_no_recovery_comes(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    aborted_in_each(setup, 1).close()
    truncate_txn_index(setup.path / f"{0:020d}.txnindex", 10)
    found = {each.code: each.severity for each in verify_partition(setup.path, threads=1).findings}
    assert found[Verified.TXN_INDEX_TORN.code] is Severity.ERROR


def test_no_snapshot_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only the logs were copied."""
    setup = Setup(tmp_path)
    aborted_in_each(setup, 3).close()
    names = sorted(drop_txn_indexes(setup.path))
    for file in setup.path.glob("*.snapshot"):
        file.unlink()
    with PartitionView(setup.path) as view:
        assert [missing.path.name for missing in view.missing_txn_indexes()] == names
    with PartitionView(setup.path) as view:
        assert [txn.first_offset for txn in view.aborted_transactions()] == [1, 5, 9]
    assert all(caplog.text.count(f"{name}: missing") == 2 for name in names)


def test_the_cleaner_drops_what_was_aborted_and_nothing_else(tmp_path: Path) -> None:
    """An aborted record must neither survive nor supersede the committed one of its key."""
    config = replace(CONFIG, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
    setup = Setup(tmp_path)
    log = setup.reopen(config)
    log.append(batch(2))
    log.append(sent(0, in_txn=True, count=3))  # the same keys, and another one
    log.end_transaction(PRODUCER, 0, commit=False)
    log.roll()
    log.append(batch())
    log.close()
    assert drop_txn_indexes(setup.path)
    log = setup.reopen(config)
    plan = plan_cleaning(cleaner_log(log, None), config, NOW_MS + 10**9)
    Cleaner(24 * 1000).clean(log, plan)
    assert [record.offset for record in log.read()] == [0, 1, 6]

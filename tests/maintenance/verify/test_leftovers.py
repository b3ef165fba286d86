"""Oddities that Kafka itself leaves are no errors."""

from __future__ import annotations

from shutil import copytree
from typing import TYPE_CHECKING

import pytest

from stratalog.config import CleanupPolicy, LogConfig
from stratalog.format.producer_snapshot import ProducerEntry, encode_snapshot
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.format.txn_index import AbortedTxn
from stratalog.log_dir import LogDir
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.verify.directory import VerifyPlan, run_plan, verify_partition
from stratalog.maintenance.verify.findings import Fault, Severity
from stratalog.maintenance.verify.partition import plan_partition
from tests.handmade import Head, Rec, batch, plain, write_segment
from tests.log.written_log import NOW_MS, PRODUCER, Setup, sent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.golden.cases import GoldenCase

ABORT = bytes(4)
END_OF_TRANSACTION = bytes(6)


def test_truncation_behind_the_only_abort_leaves_an_empty_transaction_index(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cut-0"
    log = write_segment(path, 0, plain(0))
    log.with_suffix(".txnindex").touch()
    report = verify_partition(path, threads=1)
    assert report.at_least(Severity.ERROR) == ()


def test_an_empty_transaction_index_in_spite_of_an_abort(tmp_path: Path) -> None:
    path = tmp_path / "cut-0"
    opened = batch(0, [Rec(0, 0, b"k", b"v")], Head(1000, 0x10, 7, 0, 0))
    aborted = batch(1, [Rec(0, 0, ABORT, END_OF_TRANSACTION)], Head(1000, 0x30, 7, 0))
    log = write_segment(path, 0, opened, aborted)
    log.with_suffix(".txnindex").touch()
    codes = {finding.code for finding in verify_partition(path, threads=1).findings}
    assert Fault.TXN_INDEX_MISSING_ENTRY.code in codes


# -- what Kafka's cleaner leaves of transactions. It removes the batch that began one, all data of
# an aborted one, and later the markers; snapshots keep what the log has lost.

AT_5 = ProducerEntry(
    producer_id=7,
    producer_epoch=0,
    last_sequence=3,
    last_offset=3,
    offset_delta=0,
    timestamp=1000,
    coordinator_epoch=-1,
    current_txn_first_offset=3,
)
"""Producer 7 as the batches of `cleaned_log` show it at offset 5."""

EXPLAINED = {
    "the first batch of the transaction is removed": {"current_txn_first_offset": 1},
    "an earlier marker is removed": {"coordinator_epoch": 2},
    "a later marker is removed": {"coordinator_epoch": 2, "timestamp": 2000},
    "all of these": {"current_txn_first_offset": 1, "coordinator_epoch": 2, "timestamp": 2000},
    "a marker that raised the epoch is removed": {
        "producer_epoch": 1,
        "last_sequence": -1,
        "last_offset": -1,
        "coordinator_epoch": 2,
        "current_txn_first_offset": -1,
    },
}
NOT_EXPLAINED = {
    "a later start": {"current_txn_first_offset": 4},
    "an open transaction is missing": {"current_txn_first_offset": -1},
    "an older timestamp": {"timestamp": 999},
    "another sequence": {"last_sequence": 4, "current_txn_first_offset": 1},
    "an older batch": {"last_offset": 2, "current_txn_first_offset": 1},
    "another first offset of the batch": {"offset_delta": 1, "current_txn_first_offset": 1},
    "an older epoch": {"producer_epoch": -1, "last_offset": -1, "current_txn_first_offset": -1},
}


def cleaned_log(path: Path) -> Path:
    """Offsets 1 and 2 are gone from the first segment, with the batches that were there."""
    write_segment(path, 0, plain(0, 1), transactional(3, sequence=3), plain(4, 1))
    write_segment(path, 5, plain(5, 1))
    return path


def transactional(offset: int, *, sequence: int) -> bytes:
    return batch(offset, [Rec(0, 0, b"k", b"v")], Head(1000, 0x10, 7, 0, sequence))


def abort_marker(offset: int) -> bytes:
    return batch(offset, [Rec(0, 0, ABORT, END_OF_TRANSACTION)], Head(1000, 0x30, 7, 0))


def severities(path: Path, *faults: Fault) -> set[Severity]:
    codes = {fault.code for fault in faults}
    findings = run_plan(VerifyPlan((plan_partition(path, is_compacted=True),)), threads=1).findings
    return {finding.severity for finding in findings if finding.code in codes}


@pytest.mark.parametrize("changes", EXPLAINED.values(), ids=EXPLAINED)
def test_a_snapshot_may_know_what_the_cleaner_removed(
    changes: dict[str, int], tmp_path: Path
) -> None:
    path = cleaned_log(tmp_path / "cleaned-0")
    (path / f"{5:020d}.snapshot").write_bytes(encode_snapshot([AT_5._replace(**changes)]))
    assert severities(path, Fault.SNAPSHOT_MISMATCH, Fault.SNAPSHOT_AHEAD) == {Severity.NOTE}


@pytest.mark.parametrize("changes", NOT_EXPLAINED.values(), ids=NOT_EXPLAINED)
def test_a_snapshot_that_no_cleaning_explains_is_an_error(
    changes: dict[str, int], tmp_path: Path
) -> None:
    path = cleaned_log(tmp_path / "cleaned-0")
    (path / f"{5:020d}.snapshot").write_bytes(encode_snapshot([AT_5._replace(**changes)]))
    assert severities(path, Fault.SNAPSHOT_MISMATCH) == {Severity.ERROR}


def test_a_producer_that_expired_before_recovery_and_wrote_again(
    golden: Callable[[str], GoldenCase], tmp_path: Path
) -> None:
    """Recovery loads a snapshot without producers that have expired, so a batch after it comes from
    a new producer, whose coordinator is unknown. The log alone still shows the marker before."""
    path = tmp_path / "compact-txn-0"
    copytree(golden("compact-txn").partition_dir, path)
    LogDir.open(tmp_path).close()
    codes = Fault.SNAPSHOT_MISMATCH, Fault.SNAPSHOT_AHEAD, Fault.SNAPSHOT_EXPIRED
    assert severities(path, *codes) == {Severity.NOTE}


@pytest.mark.parametrize("has_empty_index", [False, True])
def test_an_abort_marker_whose_data_the_cleaner_removed_needs_no_entry(
    tmp_path: Path, has_empty_index: bool
) -> None:
    path = tmp_path / "cleaned-0"
    write_segment(path, 0, plain(0, 1), plain(4, 1))  # the data was at 1 to 3
    log = write_segment(path, 5, abort_marker(5), plain(6, 1))
    (path / f"{5:020d}.snapshot").write_bytes(
        encode_snapshot([AT_5._replace(current_txn_first_offset=1)])
    )
    if has_empty_index:
        log.with_suffix(".txnindex").touch()
    assert severities(path, Fault.TXN_INDEX_MISSING_ENTRY, Fault.TXN_INDEX_BAD) == set()


@pytest.mark.parametrize("first_offset", [1, 3])
def test_an_abort_marker_with_data_in_an_earlier_segment_needs_an_entry(
    tmp_path: Path, first_offset: int
) -> None:
    """Even one batch of it: the entry is what hides it."""
    path = tmp_path / "cleaned-0"
    write_segment(path, 0, plain(0, 1), transactional(3, sequence=3), plain(4, 1))
    write_segment(path, 5, abort_marker(5), plain(6, 1))
    (path / f"{5:020d}.snapshot").write_bytes(
        encode_snapshot([AT_5._replace(current_txn_first_offset=first_offset)])
    )
    assert severities(path, Fault.TXN_INDEX_MISSING_ENTRY) == {Severity.ERROR}


# -- the end of a transaction that was open at a producer snapshot: once all its data is gone, the
# cleaner removes the marker too, and the snapshot still has it as open.

COMPACTED = LogConfig(
    segment_bytes=4000,
    cleanup_policy=frozenset({CleanupPolicy.COMPACT}),
    delete_retention_ms=1000,
    min_cleanable_dirty_ratio=0.0,
)


def keyed(key: bytes, *, value_bytes: int = 10) -> bytes:
    return encode_batch([Record(0, NOW_MS, key, b"v" * value_bytes)], BatchFields())


def clean(setup: Setup) -> None:
    """One pass over everything that is written so far, later than all delete horizons."""
    setup.now_ms += 10_000
    setup.log.append(keyed(b"last"))
    setup.log.roll()
    Cleaner(24 * 1000).clean(
        setup.log, plan_cleaning(cleaner_log(setup.log, None), COMPACTED, setup.now_ms)
    )


def log_with_removed_marker(setup: Setup, *, has_second: bool) -> Path:
    """A transaction from 1 to its marker at 3, across the segment boundary at 2, of which nothing
    is left. `has_second`: the same producer aborted another one, from 4 to 5, in that segment."""
    log = setup.reopen(COMPACTED)
    log.append(keyed(b"fills segment 0", value_bytes=3000))
    log.append(sent(0, in_txn=True))
    log.roll()
    log.append(keyed(b"fills segment 2", value_bytes=3000))
    log.end_transaction(PRODUCER, 0, commit=False)
    if not has_second:
        log.roll()
    log.append(sent(1, in_txn=True))
    log.end_transaction(PRODUCER, 0, commit=False)
    log.append(keyed(b"fills segment 4", value_bytes=3000))
    log.roll()
    for _ in range(3):
        clean(setup)
    with log:
        offsets = {
            header.base_offset
            for segment in log.maintenance.segments
            for _, header in segment.view().walk_headers()
        }
        assert not {1, 3} & offsets
        assert {2, 4, 5} <= offsets
    return setup.path


def test_an_index_entry_may_begin_after_a_transaction_whose_marker_was_removed(
    tmp_path: Path,
) -> None:
    path = log_with_removed_marker(Setup(tmp_path), has_second=True)
    entry = AbortedTxn.unpack((path / f"{2:020d}.txnindex").read_bytes())
    assert (entry.first_offset, entry.last_offset) == (4, 5)
    assert severities(path, *Fault) <= {Severity.NOTE}


def test_a_snapshot_may_know_that_a_transaction_has_ended_whose_marker_was_removed(
    tmp_path: Path,
) -> None:
    path = log_with_removed_marker(Setup(tmp_path), has_second=False)
    assert (path / f"{4:020d}.snapshot").exists()
    assert severities(path, *Fault) <= {Severity.NOTE}


@pytest.mark.parametrize("is_in_earlier_segment", [False, True])
def test_an_index_entry_that_begins_after_data_of_its_transaction_is_an_error(
    tmp_path: Path, is_in_earlier_segment: bool
) -> None:
    """It would show that data to read_committed."""
    path = tmp_path / "cleaned-0"
    data = transactional(3, sequence=3), transactional(6, sequence=4)
    if is_in_earlier_segment:
        write_segment(path, 0, plain(0, 1), data[0], plain(4, 1))
        log = write_segment(path, 5, plain(5, 1), data[1], abort_marker(8))
        (path / f"{5:020d}.snapshot").write_bytes(encode_snapshot([AT_5]))
    else:
        between = plain(4, 1), plain(5, 1)
        log = write_segment(path, 0, plain(0, 1), data[0], *between, data[1], abort_marker(8))
    log.with_suffix(".txnindex").write_bytes(AbortedTxn(0, 7, 6, 8, 9).pack())
    assert severities(path, Fault.TXN_INDEX_MISMATCH) == {Severity.ERROR}


def test_an_index_entry_may_begin_after_a_transaction_whose_marker_is_lost(tmp_path: Path) -> None:
    """Offsets 4 and 5 are missing: the earlier data may be of a transaction that ended there."""
    path = tmp_path / "quarantined-0"
    data = transactional(3, sequence=3), transactional(6, sequence=4)
    log = write_segment(path, 0, plain(0, 1), *data, abort_marker(8))
    log.with_suffix(".txnindex").write_bytes(AbortedTxn(0, 7, 6, 8, 9).pack())
    assert severities(path, Fault.TXN_INDEX_MISMATCH) == set()


def test_an_index_entry_whose_marker_is_lost_is_right(tmp_path: Path) -> None:
    path = tmp_path / "quarantined-0"
    log = write_segment(path, 0, plain(0, 1), transactional(3, sequence=3), plain(6, 1))
    log.with_suffix(".txnindex").write_bytes(AbortedTxn(0, 7, 3, 4, 5).pack())
    assert severities(path, Fault.TXN_INDEX_MISMATCH) == set()
    log.with_suffix(".txnindex").write_bytes(AbortedTxn(0, 7, 3, 6, 7).pack())
    assert severities(path, Fault.TXN_INDEX_MISMATCH) == {Severity.ERROR}


@pytest.mark.parametrize("side_file", [".index", ".timeindex", ".txnindex"])
def test_a_swap_that_was_interrupted_after_the_log_was_renamed(
    tmp_path: Path, golden: Callable[[str], GoldenCase], side_file: str
) -> None:
    """The next writer drops the suffix of the side files; until then they count as they are."""
    path = golden("txn").copy_to(tmp_path) / "txn-0"
    before = verify_partition(path, threads=1)
    file = next(each for each in sorted(path.iterdir()) if each.suffix == side_file)
    file.rename(file.with_name(file.name + ".swap"))
    after = verify_partition(path, threads=1)
    assert after.at_least(Severity.WARNING) == before.at_least(Severity.WARNING)
    assert after.counts.index_entries == before.counts.index_entries


def test_side_files_next_to_unfinished_ones_do_not_count(
    tmp_path: Path, golden: Callable[[str], GoldenCase]
) -> None:
    """They belong to a replacement that the next writer undoes."""
    path = golden("txn").copy_to(tmp_path) / "txn-0"
    file = next(each for each in sorted(path.iterdir()) if each.suffix == ".txnindex")
    file.rename(file.with_name(file.name + ".swap"))
    (path / f"{file.stem}.log.cleaned").touch()
    codes = {finding.code for finding in verify_partition(path, threads=1).findings}
    assert Fault.TXN_INDEX_MISSING_ENTRY.code in codes

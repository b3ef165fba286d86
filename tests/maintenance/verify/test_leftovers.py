"""Oddities that Kafka itself leaves are no errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.maintenance.verify.findings import Fault, Severity
from stratalog.maintenance.verify.running import verify_partition
from tests.handmade import Head, Rec, batch, plain, write_segment

if TYPE_CHECKING:
    from pathlib import Path

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
    assert {Fault.TXN_INDEX_BAD.code, Fault.TXN_INDEX_MISSING_ENTRY.code} <= codes

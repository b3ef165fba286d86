"""A bulk commit ends transactions that a dead producer left open, as `LogDir.open` does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import stratalog
from stratalog.bulk.ingest import ingest
from stratalog.bulk.input_files import FileSource
from stratalog.bulk.options import WriteOptions
from stratalog.bulk.target import Target
from tests.opening import Clock, kill, open_logs

if TYPE_CHECKING:
    from pathlib import Path

HOUR_MS = 3_600_000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def killed_in_a_transaction(path: Path, *, since_ms: int = 0) -> None:
    """A transaction that began so long ago, with a timeout of a minute."""
    logs = open_logs(path, clock=Clock(_now_ms() - since_ms))
    logs.create_topic("orders", 1)
    logs.transaction("shop").append("orders", b"open").result()
    kill(logs)


def commit_rows(path: Path, rows: bytes) -> None:
    file = path.parent / "rows.txt"
    file.write_bytes(rows)
    ingest(FileSource([file]), WriteOptions(Target((path,)), topic="orders"))


def offsets(path: Path) -> tuple[int, int]:
    with stratalog.open_dirs(path) as logs:
        log = logs.partition("orders", 0)
        return log.last_stable_offset, log.log_end_offset


def test_a_commit_aborts_what_has_timed_out(tmp_path: Path) -> None:
    path = tmp_path / "logs"
    killed_in_a_transaction(path, since_ms=HOUR_MS)
    assert offsets(path) == (0, 1)
    commit_rows(path, b"a\nb\n")
    assert offsets(path) == (4, 4)  # the marker, and two rows
    assert (path / ".kafka_cleanshutdown").exists()
    with stratalog.open_dirs(path) as logs:
        read = logs.partition("orders", 0).read("earliest", isolation="read_committed")
        assert [record.value for record in read] == [b"a", b"b"]


def test_a_transaction_within_its_timeout_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "logs"
    killed_in_a_transaction(path)
    commit_rows(path, b"a\n")
    assert offsets(path) == (0, 2)
    assert (path / ".kafka_cleanshutdown").exists()
    with open_logs(path, clock=Clock(_now_ms())) as logs:
        logs.transaction("shop").abort()  # its next producer ends it
        assert logs.partition("orders", 0).last_stable_offset == 3

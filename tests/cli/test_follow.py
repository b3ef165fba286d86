"""`read --follow` on directories that change as a broker would change them."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from typing import IO, TYPE_CHECKING, Self

import pytest

from stratalog.cli.read import Tail
from stratalog.format.control import ControlType, EndMarker, encode_end_marker
from stratalog.format.record import BatchFields, encode_batch
from stratalog.log.reader import IsolationLevel
from stratalog.partitions.view import open_partition
from tests.cli.command import COMMAND
from tests.log.building import (
    BASE_TIMESTAMP,
    log_name,
    plain_records,
    plain_segment,
    write_partition,
)

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_SECONDS = 120.0


class Following:
    """The command, running. Read its lines as they come."""

    def __init__(self, *args: str | Path) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "read", *map(str, args), "--follow", "--print", "partition,offset"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdout: IO[bytes] = self._process.stdout
        self._stderr: IO[bytes] = self._process.stderr

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def offsets(self, count: int, partition: int = 0) -> list[int]:
        """The next offsets, all of one partition; waits for them."""
        lines = [self._line() for _ in range(count)]
        assert {int(line.split()[0]) for line in lines} <= {partition}
        return [int(line.split()[1]) for line in lines]

    def _line(self) -> bytes:
        deadline = time.monotonic() + PATIENCE_SECONDS
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._stdout], [], [], deadline - time.monotonic())
            assert ready, "no more lines"
            byte = os.read(self._stdout.fileno(), 1)
            assert byte, self._stderr.read()
            line += byte
        return line

    def expect_silence(self, seconds: float = 1.0) -> None:
        ready, _, _ = select.select([self._stdout], [], [], seconds)
        assert not ready

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C; the status and what was said on standard error."""
        self._process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        stdout, stderr = self._process.communicate(timeout=PATIENCE_SECONDS)
        assert stdout == b""
        return self._process.returncode, stderr.decode()


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Offsets 0 to 3, in two batches."""
    return write_partition(tmp_path / "orders-0", {0: plain_segment(0, 2)})


def _append(partition: Path, base_offset: int, raw: bytes) -> None:
    with (partition / log_name(base_offset)).open("ab") as log:
        log.write(raw)


@pytest.mark.slow
def test_new_records_appear_and_ctrl_c_ends_it_well(partition: Path) -> None:
    with Following(partition) as following:
        assert following.offsets(4) == [0, 1, 2, 3]
        _append(partition, 0, plain_segment(4, 1))
        assert following.offsets(2) == [4, 5]
        _append(partition, 0, plain_segment(6, 2))
        assert following.offsets(4) == [6, 7, 8, 9]
        assert following.interrupt() == (0, "")


@pytest.mark.slow
def test_only_what_is_new(partition: Path) -> None:
    with Following(partition, "--from", "-1") as following:
        assert following.offsets(1) == [3]
        _append(partition, 0, plain_segment(4, 1))
        assert following.offsets(2) == [4, 5]


@pytest.mark.slow
def test_half_a_batch_is_waited_for(partition: Path) -> None:
    raw = plain_segment(4, 1)
    with Following(partition) as following:
        assert following.offsets(4) == [0, 1, 2, 3]
        for half in (raw[:70], raw[70:]):
            _append(partition, 0, half)
            time.sleep(0.5)
        assert following.offsets(2) == [4, 5]
        assert following.interrupt() == (0, "")


@pytest.mark.slow
def test_segments_roll_and_old_ones_go(partition: Path) -> None:
    with Following(partition) as following:
        assert following.offsets(4) == [0, 1, 2, 3]
        _append(partition, 0, plain_segment(4, 1))
        (partition / log_name(6)).write_bytes(plain_segment(6, 1))
        assert following.offsets(4) == [4, 5, 6, 7]
        (partition / log_name(0)).rename(partition / log_name(0, ".log.deleted"))
        (partition / log_name(8)).write_bytes(plain_segment(8, 1))
        assert following.offsets(2) == [8, 9]
        assert following.interrupt() == (0, "")


@pytest.mark.slow
def test_what_was_deleted_before_it_was_read_is_reported(partition: Path) -> None:
    with Following(partition) as following:
        assert following.offsets(4) == [0, 1, 2, 3]
        (partition / log_name(100)).write_bytes(plain_segment(100, 1))
        (partition / log_name(0)).unlink()
        assert following.offsets(2) == [100, 101]
        status, stderr = following.interrupt()
    assert status == 0
    assert stderr == f"stratalog: {partition}: offsets 4 to 99 were deleted before being read\n"


@pytest.mark.slow
def test_reading_continues_after_a_truncation(partition: Path) -> None:
    with Following(partition) as following:
        assert following.offsets(4) == [0, 1, 2, 3]
        os.truncate(partition / log_name(0), len(plain_segment(0, 1)))
        time.sleep(0.5)
        _append(partition, 0, plain_segment(2, 1))
        assert following.offsets(2) == [2, 3]
        status, stderr = following.interrupt()
    assert status == 0
    assert "the log was truncated to offset 2" in stderr


@pytest.mark.slow
def test_a_deleted_partition_ends_it(partition: Path) -> None:
    with Following(partition) as following:
        assert following.offsets(4) == [0, 1, 2, 3]
        shutil.rmtree(partition)
        status, stderr = following.wait()
    assert (status, stderr) == (1, f"stratalog: error: {partition}: the partition was deleted\n")


@pytest.mark.slow
def test_enough_is_enough(partition: Path) -> None:
    with Following(partition, "-n", "5") as following:
        assert following.offsets(4) == [0, 1, 2, 3]
        _append(partition, 0, plain_segment(4, 1))
        assert following.offsets(1) == [4]
        assert following.wait() == (0, "")


@pytest.mark.slow
def test_an_end_is_reached(partition: Path) -> None:
    with Following(partition, "--to", "5") as following:
        assert following.offsets(4) == [0, 1, 2, 3]
        _append(partition, 0, plain_segment(4, 1))
        assert following.offsets(1) == [4]
        assert following.wait() == (0, "")


@pytest.mark.slow
def test_several_partitions_in_turns(partition: Path, tmp_path: Path) -> None:
    other = write_partition(tmp_path / "orders-1", {0: plain_segment(0, 1)})
    with Following("orders", "-d", tmp_path) as following:
        assert following.offsets(4) == [0, 1, 2, 3]
        assert following.offsets(2, partition=1) == [0, 1]
        _append(other, 0, plain_segment(2, 1))
        assert following.offsets(2, partition=1) == [2, 3]
        _append(partition, 0, plain_segment(4, 1))
        assert following.offsets(2) == [4, 5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "expected"), [(ControlType.COMMIT, [4, 5, 6, 7]), (ControlType.ABORT, [6, 7])]
)
def test_open_transactions_are_waited_for(
    partition: Path, end: ControlType, expected: list[int]
) -> None:
    producer = BatchFields(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    marker = encode_end_marker(
        EndMarker(end, coordinator_epoch=0),
        offset=8,
        timestamp=BASE_TIMESTAMP,
        producer_id=7,
        producer_epoch=0,
        partition_leader_epoch=0,
    )
    with Following(partition, "--isolation-level", "read_committed") as following:
        assert following.offsets(4) == [0, 1, 2, 3]
        _append(partition, 0, encode_batch(plain_records(4, 2), producer) + plain_segment(6, 1))
        following.expect_silence()
        _append(partition, 0, marker)
        assert following.offsets(len(expected)) == expected
        _append(partition, 0, plain_segment(9, 1))
        assert following.offsets(2) == [9, 10]


def test_a_file_that_grows_within_its_preallocated_size(partition: Path) -> None:
    """Neither the directory nor the size changes then: only what is written."""
    log = partition / log_name(0)
    os.truncate(log, 4096)
    with open_partition(partition) as view:
        notices: list[str] = []
        tail = Tail(view, 0, None, IsolationLevel.READ_UNCOMMITTED, None, notices.append)
        tail.poll()
        assert [record.offset for record in tail.take()] == [0, 1, 2, 3]
        with log.open("r+b") as file:
            file.seek(len(plain_segment(0, 2)))
            file.write(plain_segment(4, 1))
        assert tail.poll()
        assert [record.offset for record in tail.take()] == [4, 5]
        assert notices == []


def test_a_segment_that_is_deleted_between_listing_and_opening(partition: Path) -> None:
    (partition / log_name(4)).write_bytes(plain_segment(4, 1))
    (partition / log_name(6)).write_bytes(plain_segment(6, 1))
    with open_partition(partition) as view:
        notices: list[str] = []
        tail = Tail(view, 0, None, IsolationLevel.READ_UNCOMMITTED, None, notices.append)
        records = tail.take()
        assert [next(records).offset for _ in range(4)] == [0, 1, 2, 3]
        (partition / log_name(0)).unlink()
        (partition / log_name(4)).unlink()
        assert [record.offset for record in records] == [6, 7]
    assert notices == [f"{partition}: offsets 4 to 5 were deleted before being read"]

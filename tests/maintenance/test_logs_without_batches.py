"""Logs that have bytes but no batch: `read` reports them unless a broker may leave them so."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import CorruptBatchError
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.logs_without_batches import NotALog, OnlyZeros, no_batches_reason
from tests.cli.command import inside, stratalog
from tests.cli.test_follow import Following
from tests.golden.cases import GoldenCase
from tests.log.building import log_name, plain_segment, write_partition

if TYPE_CHECKING:
    from pathlib import Path

RANDOM = random.Random(7).randbytes(5000)
TEXT = b"What users of this log notice is that it is none.\n" * 40
FLIPPED = bytearray(plain_segment(0, 1))
FLIPPED[70] ^= 1
JUNK = [
    pytest.param(RANDOM, id="random"),
    pytest.param(TEXT, id="text"),
    pytest.param(b"hello\n", id="short text"),
    pytest.param(bytes(FLIPPED), id="one batch, one bit"),
    pytest.param(bytes(200) + TEXT, id="zeros, then text"),
]


def _found(path: Path) -> OnlyZeros | NotALog | None:
    with PartitionView(path) as view:
        return no_batches_reason(view)


@pytest.mark.slow
@pytest.mark.parametrize("raw", JUNK)
def test_other_bytes_are_reported_with_path_position_and_advice(tmp_path: Path, raw: bytes) -> None:
    path = write_partition(tmp_path / "orders-0", {0: raw})
    result = stratalog("read", path)
    assert (result.status, result.stdout) == (1, b"")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"stratalog: error: {path / log_name(0)} at byte 0: no batch in ")
    assert f"no batch in {len(raw)} bytes" in line
    assert line.endswith(f"; for details run stratalog verify {path}")


def test_other_bytes_in_a_single_segment(tmp_path: Path) -> None:
    path = write_partition(tmp_path / "orders-0", {0: plain_segment(0, 1), 2: TEXT})
    with pytest.raises(CorruptBatchError, match=f"{log_name(2)} at byte 0: no batch"):
        inside("read", path / log_name(2))


def test_a_single_corrupt_batch_is_reported_with_the_reason(tmp_path: Path) -> None:
    found = _found(write_partition(tmp_path / "orders-0", {0: bytes(FLIPPED)}))
    assert isinstance(found, NotALog)
    assert ", the first batch is corrupt: CRC " in found.reason


@pytest.mark.parametrize("raw", JUNK)
def test_other_bytes_that_are_skipped_are_reported_too(tmp_path: Path, raw: bytes) -> None:
    path = write_partition(tmp_path / "orders-0", {0: raw})
    result = inside("read", path, "--skip-corrupt", "--json")
    assert (result.status, result.stdout) == (1, b"")
    (line,) = result.stderr.splitlines()
    assert f"{log_name(0)} at byte 0: skipped {len(raw)} bytes, offsets 0 up to the end" in line


@pytest.mark.slow
def test_other_bytes_come_after_the_records_of_earlier_partitions(tmp_path: Path) -> None:
    write_partition(tmp_path / "orders-0", {0: plain_segment(0, 1)})
    write_partition(tmp_path / "orders-1", {0: TEXT})
    result = stratalog("read", tmp_path / "orders", "--print", "partition,offset")
    assert result.lines == ["0\t0", "0\t1"]
    assert result.status == 1
    assert "orders-1" in result.stderr
    assert inside("read", tmp_path / "orders", "-n", "2").status == 0  # it was not asked for


def test_following_other_bytes_is_an_error_as_well(tmp_path: Path) -> None:
    path = write_partition(tmp_path / "orders-0", {0: RANDOM})
    with pytest.raises(CorruptBatchError, match="no batch in 5000 bytes"):
        inside("read", path, "--follow")


@pytest.mark.slow
def test_zeros_may_be_preallocated_so_they_are_no_error(tmp_path: Path) -> None:
    path = write_partition(tmp_path / "orders-0", {0: bytes(3 << 20)})
    result = stratalog("read", path)
    assert (result.status, result.stdout) == (0, b"")
    (line,) = result.stderr.splitlines()
    assert f"{path / log_name(0)}: no records, all {3 << 20} bytes are zero" in line
    assert "error" not in line


@pytest.mark.slow
def test_following_a_preallocated_log_is_silent(tmp_path: Path) -> None:
    path = write_partition(tmp_path / "orders-0", {0: bytes(1 << 20)})
    with Following(path) as following:
        following.expect_silence()
        with (path / log_name(0)).open("r+b") as log:
            log.write(plain_segment(0, 1))
        assert following.offsets(2) == [0, 1]
        assert following.interrupt() == (0, "")


FIRST_BATCHES = [
    pytest.param(0, plain_segment(0, 1), id="v2"),
    pytest.param(5_000_000_123, plain_segment(5_000_000_123, 1), id="v2 at a large offset"),
    *(
        pytest.param(0, (GoldenCase(name).partition_dir / log_name(0)).read_bytes()[:60], id=name)
        for name in ("v0-none", "v1-lz4")
    ),
]


@pytest.mark.parametrize(("base_offset", "raw"), FIRST_BATCHES)
def test_every_beginning_of_a_first_batch_is_normal(
    tmp_path: Path, base_offset: int, raw: bytes
) -> None:
    path = write_partition(tmp_path / "orders-0", {base_offset: b""})
    for cut in range(len(raw)):
        (path / log_name(base_offset)).write_bytes(raw[:cut])
        is_zero = cut > 0 and not any(raw[:cut])
        assert isinstance(_found(path), OnlyZeros if is_zero else type(None)), cut


@pytest.mark.parametrize("tail", [RANDOM, bytes(5000), TEXT], ids=["random", "zeros", "text"])
def test_tails_after_batches_are_not_reported(tmp_path: Path, tail: bytes) -> None:
    one = write_partition(tmp_path / "one-0", {0: plain_segment(0, 2) + tail})
    rolled = write_partition(tmp_path / "rolled-0", {0: plain_segment(0, 2), 4: tail})
    for path in (one, rolled):
        result = inside("read", path, "--print", "offset")
        assert (result.lines, result.stderr, result.status) == (["0", "1", "2", "3"], "", 0)


def test_a_batch_that_is_being_written_is_checked_twice(tmp_path: Path) -> None:
    """In a preallocated file its first half looks like a whole batch with a wrong CRC."""
    raw = plain_segment(0, 1)
    path = write_partition(tmp_path / "orders-0", {0: raw[:80] + bytes(5000)})
    assert isinstance(_found(path), NotALog)

    def finish() -> None:
        time.sleep(0.05)
        with (path / log_name(0)).open("r+b") as log:
            log.write(raw)

    writer = threading.Thread(target=finish)
    writer.start()
    try:
        result = inside("read", path, "--print", "offset")
    finally:
        writer.join()
    assert (result.lines, result.stderr, result.status) == (["0", "1"], "", 0)


@pytest.mark.slow
def test_empty_logs_are_empty(tmp_path: Path) -> None:
    path = write_partition(tmp_path / "orders-0", {0: b"", 7: b""})
    result = stratalog("read", path)
    assert result == (b"", "", 0)

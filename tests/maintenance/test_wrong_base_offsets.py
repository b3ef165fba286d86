"""No CRC covers a base offset: a flipped bit in one is found by the offsets around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import FlushedCorruptionError
from tests.opening import kill, open_logs

if TYPE_CHECKING:
    from pathlib import Path

BATCHES = 10


def written(path: Path, *, is_clean: bool) -> Path:
    """Ten batches of the same size. Returns their file."""
    logs = open_logs(path)
    logs.create_topic("orders", 1)
    for number in range(BATCHES):
        logs.append("orders", b"%d" % number)
    if is_clean:
        logs.close()
    else:
        kill(logs)
    (file,) = (path / "orders-0").glob("*.log")
    return file


def flip(file: Path, batch: int, byte: int, bit: int) -> bytes:
    """One bit of a base offset. Returns what the file has then."""
    data = bytearray(file.read_bytes())
    data[batch * (len(data) // BATCHES) + byte] ^= 1 << bit
    file.write_bytes(data)
    return bytes(data)


@pytest.mark.parametrize("batch", [0, 4, BATCHES - 1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("byte", [0, 1, 3])
def test_a_cleanly_closed_log_is_not_opened(tmp_path: Path, batch: int, byte: int) -> None:
    """Too far above the base offset for an index. Such segments are split if that is all that is
    wrong with them; here the next batch, or the end of the log, shows that the offset is wrong."""
    file = written(tmp_path, is_clean=True)
    data = flip(file, batch, byte, 0)
    with open_logs(tmp_path) as logs, pytest.raises(FlushedCorruptionError, match="nothing was"):
        logs.append("orders", b"more")
    assert file.read_bytes() == data


@pytest.mark.parametrize("byte", [0, 3])
def test_recovery_truncates_before_an_offset_out_of_reach(tmp_path: Path, byte: int) -> None:
    flip(written(tmp_path, is_clean=False), 4, byte, 0)
    with open_logs(tmp_path) as logs:
        (dropped,) = logs.recovery
        assert (dropped.first_offset, dropped.end_offset) == (4, 10)
        assert dropped.readable_records == 5
        assert logs.append("orders", b"more").offset == 4


def test_recovery_counts_what_is_readable_below_a_wrong_offset(tmp_path: Path) -> None:
    """The wrong one may be right as far as recovery can see; those after it go, as in Kafka."""
    flip(written(tmp_path, is_clean=False), 4, byte=7, bit=6)
    with open_logs(tmp_path) as logs:
        (dropped,) = logs.recovery
        assert dropped.first_offset == 69
        assert dropped.readable_records == 5
        assert "5 readable records in 5 batches, up to offset 9" in dropped.text()

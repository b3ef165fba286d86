"""A bit flips in the last batch of a log that was closed in good order: nobody may pass it over."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import FlushedCorruptionError
from stratalog.log.partition_view import PartitionView
from stratalog.spark.options import plan_read
from tests.cli.command import inside
from tests.opening import open_logs

if TYPE_CHECKING:
    from pathlib import Path

TOLD = r"t-0/0{20}\.log at byte (?P<position>\d+): corrupt: the log was "
FLUSHED = TOLD + r"flushed up to offset 30, but its last complete batch ends at 20$"
CLOSED = (
    r"t-0/0{20}\.log at byte \d+.*: corrupt \(.+\), although the log was closed cleanly at "
    r"offset 30; nothing was changed\. Restore .* truncated to offset 20$"
)
CLEAN = ".kafka_cleanshutdown"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Three batches of ten records each, closed in good order."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1)
        for first in range(0, 30, 10):
            with logs.producer() as producer:
                for number in range(first, first + 10):
                    producer.append("t", b"value %d" % number, partition=0)
    return tmp_path


def log_of(logs: Path) -> Path:
    return logs / "t-0" / f"{0:020d}.log"


def third_batch_at(logs: Path) -> int:
    with PartitionView(logs / "t-0") as view:
        return [position for position, _ in view.segments[0].walk_headers(0)][2]


def flip(logs: Path, byte: int = 100) -> bytes:
    """A bit of the third batch; what the file is then."""
    data = bytearray(log_of(logs).read_bytes())
    data[third_batch_at(logs) + byte] ^= 1
    log_of(logs).write_bytes(data)
    return bytes(data)


def test_a_view_tells(logs: Path) -> None:
    with PartitionView(logs / "t-0") as view:
        view.check_end()
    flip(logs)
    with (
        PartitionView(logs / "t-0") as view,
        pytest.raises(FlushedCorruptionError, match=FLUSHED) as error,
    ):
        view.check_end()
    assert error.value.position == view.segments.end.position > 0


def test_nothing_flushed_is_missing_at_a_torn_tail(logs: Path) -> None:
    data = log_of(logs).read_bytes()
    log_of(logs).write_bytes(data + data[:50])
    with PartitionView(logs / "t-0") as view:
        view.check_end()


def test_a_copy_without_checkpoints_cannot_be_told(logs: Path, tmp_path: Path) -> None:
    flip(logs)
    shutil.copytree(logs / "t-0", tmp_path / "copy" / "t-0")
    with PartitionView(tmp_path / "copy" / "t-0") as view:
        view.check_end()


def test_a_log_that_merely_ends_early_is_no_damage(logs: Path) -> None:
    log_of(logs).write_bytes(log_of(logs).read_bytes()[: third_batch_at(logs)])
    with PartitionView(logs / "t-0") as view:
        assert view.log_end_offset == 20
        view.check_end()


def test_plans_of_spark(logs: Path) -> None:
    options = {"path": str(logs), "subscribe": "t"}
    before = plan_read(options).summary.bytes_read
    flip(logs)
    with pytest.raises(FlushedCorruptionError, match=FLUSHED):
        plan_read(options)
    assert 0 < plan_read({**options, "onCorruption": "skip"}).summary.bytes_read < before
    assert plan_read({**options, "endingOffsets": '{"t":{"0":15}}'}).splits


@pytest.mark.parametrize("verb", ["read", "stats", "export --to out"])
def test_commands(verb: str, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flip(logs)
    name, *args = verb.split()
    with pytest.raises(FlushedCorruptionError, match=FLUSHED):
        inside(name, logs / "t-0", *args)


def test_read_skips_it_when_told_to(logs: Path) -> None:
    flip(logs)
    result = inside("read", logs / "t-0", "--skip-corrupt")
    assert result.stdout.count(b"\n") == 20
    assert "flushed up to offset 30" in result.stderr
    assert result.status == 1
    assert inside("read", logs / "t-0", "-n", "20").status == 0


@pytest.mark.parametrize("byte", [100, 9, 16], ids=["a record", "the length", "the magic"])
def test_a_writer_refuses_it_again_and_again(logs: Path, byte: int) -> None:
    damaged = flip(logs, byte)
    for number in range(2):
        with open_logs(logs) as opened:
            with pytest.raises(FlushedCorruptionError, match=CLOSED):
                opened.partition("t", 0)
            opened.create_topic(f"other-{number}", 1)  # the rest of the directory is fine
        assert log_of(logs).read_bytes() == damaged
    assert (logs / CLEAN).exists()


def test_it_is_cut_once_the_stop_counts_as_unclean(logs: Path) -> None:
    flip(logs)
    (logs / CLEAN).unlink()
    with open_logs(logs) as opened:
        assert opened.partition("t", 0).log_end_offset == 20

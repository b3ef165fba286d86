"""Segments on disks that fail and on disks that forget."""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.errors import DiskFullError, FsyncError, StorageError
from stratalog.format.index_entries import IndexBuilder
from stratalog.format.txn_index import AbortedTxn
from stratalog.storage.segment import Segment
from tests.disks import Fault, FaultyDisk, SimulatedDisk
from tests.effort import scaled
from tests.storage.segments import (
    append,
    files_of,
    ignore,
    make_batch,
    new_segment,
    opened,
    spans_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.storage.disk import Disk

CONFIG = LogConfig.parse({"index.interval.bytes": "150", "segment.index.bytes": "9000"})
PREALLOCATED = LogConfig.parse({"preallocate": "true", "segment.bytes": "40000"}, CONFIG)
CRASH_SEEDS = range(scaled(20))


class FsyncFailed(Exception):
    """Final for the segment, which has to be opened again: see the tests of crashes."""


class Story:
    """A life of two segments: each step is retried until it works."""

    def __init__(self, disk: Disk, directory: Path, config: LogConfig) -> None:
        self.disk, self.directory, self.config = disk, directory, config
        self.errors: list[StorageError] = []

    def step(self, do: Callable[[], object], segment: Segment | None = None) -> None:
        before = None if segment is None else _state(segment)
        try:
            do()
        except StorageError as error:
            self.errors.append(error)
            if error.operation == "fsync":
                raise FsyncFailed from error
            if segment is not None:
                assert _state(segment) == before
            do()

    def create(self, base_offset: int) -> Segment:
        made: list[Segment] = []
        self.step(
            lambda: made.append(
                Segment.create(self.disk, self.directory, base_offset, self.config, now_ms=0)
            )
        )
        (segment,) = made
        return segment

    def append(self, segment: Segment, *batches: bytes) -> None:
        self.step(lambda: append(segment, *batches), segment)

    def tell(self) -> None:
        first = self.create(0)
        for number in range(0, 12, 2):
            self.append(first, make_batch(number), make_batch(number + 1))
        self.step(lambda: first.append_aborted(AbortedTxn(0, 7, 2, 5, 6)))
        self.step(first.flush)
        self.step(first.become_inactive)
        second = self.create(12)
        self.append(second, *(make_batch(number) for number in range(12, 40)))
        self.step(lambda: second.truncate_to(20, now_ms=0))
        self.append(second, *(make_batch(number) for number in range(20, 30)))
        self.step(lambda: self.disk.fsync_dir(self.directory))
        self.step(second.close)


def _state(segment: Segment) -> tuple[object, ...]:
    """All that an append may change, and the bytes on disk that count."""
    writer = segment.writer
    files = [
        (segment.path, segment.size_bytes),
        (writer.offset_index.path, None),
        (writer.time_index.path, None),
    ]
    return (
        writer._state,
        writer.offset_index.entries,
        writer.offset_index.last_offset,
        writer.time_index.entries,
        writer.time_index.last_timestamp,
        writer.time_index.last,
        [path.read_bytes()[:end] for path, end in files],
    )


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, PREALLOCATED], ids=["plain", "preallocated"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(0, errno.EIO),
        Fault(0, errno.ENOSPC, written=0.5),
        Fault(0, errno.ENOSPC, written=0.5, is_short=True),
    ],
    ids=["EIO", "ENOSPC", "short"],
)
def test_whatever_fails_once_is_told_and_can_be_done_again(
    tmp_path: Path, config: LogConfig, fault: Fault
) -> None:
    healthy, calm = FaultyDisk(), tmp_path / "healthy"
    calm.mkdir()
    Story(healthy.disk, calm, config).tell()
    expected = files_of(calm)
    assert len(healthy.history) > 40
    for at in range(1, len(healthy.history) + 1):
        directory = tmp_path / str(at)
        directory.mkdir()
        faulty = FaultyDisk(
            fault=Fault(at, fault.errno, written=fault.written, is_short=fault.is_short)
        )
        story = Story(faulty.disk, directory, config)
        with suppress(FsyncFailed):
            story.tell()
            assert files_of(directory) == expected, f"fault at {at}: {healthy.history[at - 1]}"
        kinds = {type(error) for error in story.errors}
        refusal = DiskFullError if fault.errno == errno.ENOSPC else StorageError
        assert kinds <= {refusal, FsyncError}
        assert kinds or fault.is_short or healthy.history[at - 1] == "posix_fallocate"


def test_a_full_disk_refuses_appends_until_there_is_space(tmp_path: Path) -> None:
    faulty = FaultyDisk()
    segment = new_segment(tmp_path, 0, CONFIG, faulty.disk)
    append(segment, make_batch(0))
    faulty.fault = Fault(len(faulty.history) + 1, errno.ENOSPC, is_lasting=True, written=0.7)
    before = _state(segment)
    for _ in range(3):
        with pytest.raises(DiskFullError):
            append(segment, make_batch(1), make_batch(2), make_batch(3))
        assert _state(segment) == before
        assert segment.view().end == (91, 1)
    faulty.fault = None
    append(segment, make_batch(1))
    segment.close()
    assert files_of(tmp_path, ".log") == {"00000000000000000000.log": make_batch(0) + make_batch(1)}


def test_closing_on_a_full_disk_needs_no_space(tmp_path: Path) -> None:
    """Cutting files frees space, and the closing entry has its place already."""

    def is_growing(history: list[str]) -> bool:
        return any(call in {"pwrite", "posix_fallocate", "open"} for call in history)

    faulty = FaultyDisk()
    segment = new_segment(tmp_path, 0, CONFIG, faulty.disk)
    append(segment, make_batch(0))
    faulty.history.clear()
    segment.close()
    assert not is_growing(faulty.history)
    assert len(files_of(tmp_path, ".timeindex")["00000000000000000000.timeindex"]) == 12


def test_a_full_disk_does_not_keep_a_segment_from_opening(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 0, CONFIG)
    append(segment, make_batch(0))
    segment.close()
    faulty = FaultyDisk()
    reopened = opened(tmp_path, 0, CONFIG, faulty.disk)

    def no_space(fd: int, start: int, size_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    object.__setattr__(faulty.calls, "posix_fallocate", no_space)
    reopened.become_active(now_ms=0)
    assert reopened.next_offset == 1
    append(reopened, make_batch(1))  # needs no index entry yet
    with pytest.raises(DiskFullError, match="reserve space"):
        reopened.close()  # the time entry would not fit
    assert reopened.size_bytes == 182


class Crashing:
    """A segment on a disk that forgets, beside the list of batches that it was given."""

    def __init__(self, root: Path, seed: int, config: LogConfig) -> None:
        self.rng = random.Random(seed)
        self.config = config
        self.root = root
        self.simulated = SimulatedDisk(root)
        self.disk = self.simulated.disk
        self.batches: list[bytes] = []
        self.attempted: list[bytes] = []
        """By an append that failed: nobody was told that they are there, but they may be."""
        self.flushed = 0
        self.segment = new_segment(root, 0, config, self.disk)
        self.disk.fsync_dir(root)

    @property
    def next_offset(self) -> int:
        return spans_of(self.batches[-1])[0].last_offset + 1 if self.batches else 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice([self.append, self.append, self.append, self.flush, self.cut])()

    def append(self) -> None:
        batches, offset = [], self.next_offset
        for _ in range(self.rng.randint(1, 6)):
            size = self.rng.choice([0, 50, 700])
            batches.append(make_batch(offset, count=self.rng.randint(1, 3), value_bytes=size))
            offset = spans_of(batches[-1])[0].last_offset + 1
        self.attempted = batches
        append(self.segment, *batches)
        self.batches += batches
        self.attempted = []

    def flush(self) -> None:
        self.segment.flush()
        self.disk.fsync_dir(self.root)
        self.flushed = len(self.batches)

    def cut(self) -> None:
        """Truncation makes durable what is left; what was cut may come back if it is not synced."""
        if self.rng.random() < 0.3:
            self.flush()
            keep = self.rng.randint(0, len(self.batches))
            offset = (
                spans_of(self.batches[keep])[0].base_offset if keep < len(self.batches) else 1 << 30
            )
            self.segment.truncate_to(offset, now_ms=0)
            del self.batches[keep:]
            self.flush()

    def crash_and_check(self) -> None:
        self.simulated.crash(self.rng)
        segment = opened(self.root, 0, self.config, self.disk)
        valid_part = segment.recover(ignore)
        raw = files_of(self.root)["00000000000000000000.log"]
        kept = len(spans_of(raw))
        self.batches += self.attempted
        self.attempted = []
        assert raw == b"".join(self.batches[:kept])
        assert kept >= self.flushed
        assert valid_part.valid_bytes == len(raw)
        del self.batches[kept:]
        assert segment.next_offset == self.next_offset
        builder = IndexBuilder(0, self.config.index_interval_bytes)
        for span in spans_of(raw):
            builder.add(span.position, span.size_bytes, span.last_offset, span.max_timestamp)
        builder.finish()
        indexes = files_of(self.root, ".index", ".timeindex").values()
        assert list(indexes) == [bytes(builder.offset_index), bytes(builder.time_index)]
        segment.become_active(now_ms=0)
        self.segment = segment
        self.flush()


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, PREALLOCATED], ids=["plain", "preallocated"])
@pytest.mark.parametrize("seed", CRASH_SEEDS)
def test_flushed_batches_survive_power_losses(tmp_path: Path, seed: int, config: LogConfig) -> None:
    crashing = Crashing(tmp_path, seed, config)
    for _ in range(4):
        crashing.run(crashing.rng.randint(0, 12))
        crashing.crash_and_check()


@pytest.mark.parametrize("seed", range(40))
def test_flushed_batches_survive_errors_that_end_in_a_power_loss(tmp_path: Path, seed: int) -> None:
    """From some call on nothing works any more, then the power goes."""
    crashing = Crashing(tmp_path, seed, CONFIG)
    faulty = FaultyDisk(crashing.simulated.calls)
    crashing.disk = faulty.disk
    crashing.segment.close()
    crashing.segment = opened(tmp_path, 0, CONFIG, faulty.disk)
    crashing.segment.become_active(now_ms=0)
    at = len(faulty.history) + crashing.rng.randint(1, 40)
    faulty.fault = Fault(at, errno.EIO, is_lasting=True, written=0.5)
    with suppress(StorageError):
        while True:
            crashing.append()
            if crashing.rng.random() < 0.3:
                crashing.flush()
    crashing.disk = crashing.simulated.disk
    crashing.crash_and_check()

"""Reading while a broker writes: appends, rolls, retention, index trimming, renames, deletion.

The broker takes its steps inside the reader's own system calls, as often as a seeded die says, so
that every interleaving is possible and each can be repeated. One test does without the trick: a
real process writes as fast as it can.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from stratalog.errors import NotALogDirError, OffsetOutOfRangeError, SegmentGoneError
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import IsolationLevel
from tests.golden.cases import CompactionCase, GoldenCase
from tests.golden.expected import consumed, directory_to_read, loaded, visible
from tests.log.broker_steps import delete_segment, purge, replace_group
from tests.log.building import (
    batches_of,
    copy_partition,
    log_name,
    plain_segment,
    records_in,
    segment_paths,
    write_partition,
)
from tests.log.live_broker import LiveBroker
from tests.log.readers import columns, over_readers, scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stratalog.format.record import Record
    from tests.log.readers import Reader

STEPS_PER_CALL = [0] * 14 + [1, 1, 2, 5, 30]
ROOT = Path(__file__).resolve().parents[2]


class Entry:
    """One name of a directory; what it belongs to may change before it is asked for."""

    def __init__(self, real: os.DirEntry[str], before: Callable[[], None]) -> None:
        self.name, self.path = real.name, real.path
        self._before = before

    def is_file(self) -> bool:
        return True

    def stat(self) -> os.stat_result:
        self._before()
        return Path(self.path).stat()


class Interleaved:
    """Lets a broker take steps whenever the reader enters the kernel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
        self._rng = rng
        self._step: Callable[[], bool] | None = None
        self._path, self._now = Path(), 0
        for name in ("open", "pread", "fstat", "stat"):
            self._wrap(monkeypatch, name)
        real_scandir = os.scandir

        def scandir(path: Any) -> Any:
            is_reader = self._step is not None
            return self._scandir(real_scandir, path) if is_reader else real_scandir(path)

        monkeypatch.setattr(os, "scandir", scandir)

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(os, name)

        def with_steps(*args: Any, **kwargs: Any) -> Any:
            self._go_on()
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, with_steps)

    @contextmanager
    def _scandir(self, real: Any, path: Path) -> Iterator[list[Entry]]:
        """In two halves, as a large directory is read, and in no order: a name that moves from the
        second half to the first in between is missed, one that moves the other way met twice."""
        salt = self._rng.randrange(1 << 32)
        halves = []
        for half in (0, 1):
            self._go_on()
            with real(path) as entries:
                halves += [e for e in entries if crc32(e.name.encode(), salt) % 2 == half]
        yield [Entry(entry, self._go_on) for entry in halves]

    def _go_on(self) -> None:
        step, self._step = self._step, None  # the broker's own calls do not count
        if step is None:
            return
        for _ in range(self._rng.choice(STEPS_PER_CALL)):
            step()
            self._now += 1  # real steps are further apart than these, which share a clock tick
            os.utime(self._path, ns=(self._now, self._now))
        self._step = step

    def __call__(self, path: Path, step: Callable[[], bool]) -> Interleaved:
        self._path, self._step = path, step
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._step = None


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.node.name)


@pytest.fixture
def interleaved(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> Interleaved:
    return Interleaved(monkeypatch, rng)


@pytest.mark.parametrize("name", ["multiseg", "v1-lz4", "ooo-createtime", "txn", "rdk-zstd"])
@pytest.mark.parametrize("seed", [1, 2])
def test_appends_and_rolls(name: str, seed: int, interleaved: Interleaved, tmp_path: Path) -> None:
    """Every read is a correct prefix, and holds all that was whole when it began."""
    case = GoldenCase(name)
    broker = LiveBroker(directory_to_read(case), tmp_path / f"{name}-0", seed)
    with PartitionView(broker.path) as view:
        for turn in range(10_000):
            whole = broker.published_offset
            with interleaved(broker.path, broker.step):
                view.refresh()
                records = list((scalar, columns)[turn % 2](view))
                end = view.log_end_offset
            assert whole <= end <= broker.begun_offset
            assert records == [r for r in visible(case) if r.offset < end]
            if not broker.step():
                break
        view.refresh()
        assert view.log_end_offset == case.loaddir["logEndOffset"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_transactions(seed: int, interleaved: Interleaved, tmp_path: Path) -> None:
    """Never an aborted record, never one of an open transaction, none of the others missing."""
    case = GoldenCase("txn")
    broker = LiveBroker(directory_to_read(case), tmp_path / "txn-0", seed)
    level = IsolationLevel.READ_COMMITTED
    committed = consumed(case, level)
    with PartitionView(broker.path) as view:
        for turn in range(10_000):
            with interleaved(broker.path, broker.step):
                view.refresh()
                records = list((scalar, columns)[turn % 2](view, isolation=level))
                stable = view.last_stable_offset
            assert records == [record for record in committed if record.offset < stable]
            if not broker.step():
                break
        view.refresh()
        assert tuple(view.read(isolation=level)) == committed


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lookups(seed: int, interleaved: Interleaved, tmp_path: Path) -> None:
    case = GoldenCase("ooo-createtime")
    broker = LiveBroker(directory_to_read(case), tmp_path / f"{case}-0", seed)
    records = [facts.record for facts in loaded(case)]
    rng = random.Random(seed)
    with PartitionView(broker.path) as view:
        for _ in range(10_000):
            asked = rng.choice(records)
            whole = broker.published_offset
            with interleaved(broker.path, broker.step):
                view.refresh()
                found = view.find_time(asked.timestamp)
                location = view.locate(asked.offset) if asked.offset < whole else None
            assert location is None or location.record == asked
            first = next(r for r in records if r.timestamp >= asked.timestamp)
            if first.offset < whole:
                assert found == (first.offset, first.timestamp)
            if not broker.step():
                break


@pytest.mark.parametrize("seed", range(6))
def test_retention(seed: int, interleaved: Interleaved, tmp_path: Path) -> None:
    """Old segments go while they are read: a correct run, then the end or a clear word."""
    case = GoldenCase("multiseg")
    broker = LiveBroker(directory_to_read(case), tmp_path / f"{case}-0", seed, segments_max=2)
    out_of_range = 0
    with PartitionView(broker.path) as view:
        for turn in range(10_000):
            with interleaved(broker.path, broker.step):
                view.refresh()
                records, start, error = _read_all(view, (scalar, columns)[turn % 2])
            offsets = [record.offset for record in records]
            if error is None:
                assert offsets == list(range(start, start + len(offsets)))
            else:
                out_of_range += 1
                assert offsets == list(range(start, error.offset))
                assert error.offset < broker.deleted_offset
            assert records == list(visible(case)[start : start + len(records)])
            if not broker.step():
                break
        view.refresh()
        assert view.log_start_offset == int(segment_paths(broker.path)[0].stem)


def _read_all(
    view: PartitionView, reader: Reader
) -> tuple[list[Record], int, OffsetOutOfRangeError | None]:
    records: list[Record] = []
    start = view.log_start_offset
    try:
        records.extend(reader(view, start))
    except OffsetOutOfRangeError as error:
        return records, start, error
    return records, start, None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("isolation", IsolationLevel, ids=lambda level: level.value)
@pytest.mark.parametrize("name", ["plain", "plain-onegroup", "group-segment-bytes", "txn-rounds"])
def test_compaction(
    name: str,
    isolation: IsolationLevel,
    seed: int,
    interleaved: Interleaved,
    compaction_dir: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """What compaction keeps is always read; what it removes may be read still, and nothing else."""
    case = CompactionCase(name).case
    step, partition = case["rounds"][0], f"{case['topic']}-{case['partition']}"
    old, cleaned = (compaction_dir(name) / step[at] / partition for at in ("before", "after"))
    before, after = (_read_quietly(directory, isolation) for directory in (old, cleaned))
    path = copy_partition(old, tmp_path)
    steps = _clean(path, cleaned, step["groups"])
    rng = random.Random(seed)
    for turn in range(10_000):
        with (
            interleaved(path, lambda: next(steps, "end") != "end"),
            PartitionView(path) as view,
        ):
            start = rng.choice([0, 0, before[len(before) // 2].offset])
            records = list((scalar, columns)[turn % 2](view, start, isolation=isolation))
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        assert {r for r in after if r.offset >= start} <= set(records) <= set(before)
        if next(steps, "end") == "end":
            break
    assert _read_quietly(path, isolation) == after


def _read_quietly(path: Path, isolation: IsolationLevel) -> list[Record]:
    with PartitionView(path, log_start_offset=0) as view:
        return list(view.read(isolation=isolation))


def _clean(path: Path, cleaned: Path, groups: list[list[int]]) -> Iterator[None]:
    for group in groups:
        yield from replace_group(path, cleaned, group)
        yield from purge(path)


@pytest.mark.slow
def test_beside_a_process_that_writes(tmp_path: Path) -> None:
    case = GoldenCase("multiseg")
    path = tmp_path / "multiseg-0"
    arguments = [str(directory_to_read(case)), str(path), "5"]
    command = [sys.executable, "-m", "tests.log.live_broker", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    reads, last_end = 0, 0
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        while process.poll() is None:
            try:
                with PartitionView(path) as view:
                    records, start, _ = _read_all(view, (scalar, columns)[reads % 2])
                    assert view.log_end_offset >= last_end
                    last_end = view.log_end_offset
            except NotALogDirError:
                continue  # not begun yet
            assert records == list(visible(case)[start : start + len(records)])
            reads += 1
    assert process.returncode == 0
    with PartitionView(path) as view:
        assert view.log_end_offset == case.loaddir["logEndOffset"]
    assert reads > 3


# -- single moments


@over_readers
def test_view_is_a_moment(reader: Reader, tmp_path: Path) -> None:
    path = write_partition(tmp_path / "t-0", {0: plain_segment(0, 2)})
    with PartitionView(path) as view:
        assert view.log_end_offset == 4
        with (path / log_name(0)).open("ab") as log:
            log.write(plain_segment(4, 2))
        assert [record.offset for record in reader(view)] == [0, 1, 2, 3]
        (path / log_name(8)).write_bytes(plain_segment(8, 1))
        assert [record.offset for record in reader(view)] == [0, 1, 2, 3]
        view.refresh()
        assert [record.offset for record in reader(view)] == list(range(10))


@over_readers
def test_open_segment_outlives_its_deletion(reader: Reader, tmp_path: Path) -> None:
    path = write_partition(tmp_path / "t-0", {0: plain_segment(0, 5000), 10_000: b""})
    with PartitionView(path) as view:
        records = reader(view)
        assert next(records).offset == 0
        (path / log_name(0)).unlink()
        assert sum(1 for _ in records) == 9_999


@over_readers
def test_deletion_of_what_comes_next_is_said(reader: Reader, tmp_path: Path) -> None:
    segments = {0: plain_segment(0, 2), 4: plain_segment(4, 2), 8: plain_segment(8, 2)}
    path = write_partition(tmp_path / "t-0", segments)
    with PartitionView(path) as view:
        records = reader(view)
        assert [next(records).offset for _ in range(4)] == [0, 1, 2, 3]
        for base_offset in (0, 4):
            for _ in (*delete_segment(path, base_offset), *purge(path)):
                pass
        with pytest.raises(OffsetOutOfRangeError) as caught:
            next(records)
        assert (caught.value.offset, caught.value.log_start_offset) == (4, 8)
        assert view.log_start_offset == 8


@over_readers
def test_renamed_segments_are_read_to_the_end(reader: Reader, tmp_path: Path) -> None:
    """For a minute Kafka keeps what it deletes."""
    segments = {0: plain_segment(0, 2), 4: plain_segment(4, 2), 8: plain_segment(8, 2)}
    path = write_partition(tmp_path / "t-0", segments)
    with PartitionView(path) as view:
        records = reader(view)
        assert next(records).offset == 0
        for base_offset in (0, 4):
            for _ in delete_segment(path, base_offset):
                pass
        assert [record.offset for record in records] == list(range(1, 12))


def test_truncated_and_rewritten_log(tmp_path: Path) -> None:
    """A follower truncates, then goes on differently: a fresh look sees the new records only."""
    path = write_partition(tmp_path / "t-0", {0: plain_segment(0, 5)})
    with PartitionView(path) as view:
        assert view.log_end_offset == 10
        log = path / log_name(0)
        kept = batches_of(log.read_bytes())[:2]
        with log.open("r+b") as file:
            file.truncate(kept[-1].end)
        view.refresh()
        assert list(view.read()) == records_in(kept)
        with log.open("ab") as file:
            file.write(plain_segment(4, 1, records=3))
        view.refresh()
        assert [record.offset for record in view.read()] == list(range(7))


def test_deleted_topic(tmp_path: Path) -> None:
    path = write_partition(tmp_path / "t-0", {0: plain_segment(0, 2)})
    view = PartitionView(path)
    path.rename(tmp_path / f"t-0.{'0' * 32}-delete")
    with pytest.raises(NotALogDirError):
        view.refresh()
    with pytest.raises(NotALogDirError):
        list(view.read())


def test_directory_that_loses_every_segment(tmp_path: Path) -> None:
    path = write_partition(tmp_path / "t-0", {0: plain_segment(0, 2)})
    view = PartitionView(path)
    (path / log_name(0)).unlink()
    with pytest.raises(SegmentGoneError) as caught:
        list(view.read())
    assert caught.value.path == path / log_name(0)

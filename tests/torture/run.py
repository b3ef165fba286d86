"""Rounds of work, each ended by a kill, a fault or a clean close, and a check after each of them.

What a round does is decided by the seed and its number. Within a round the clock and the scheduler
have a say, too: the same seed does the same things, but does not meet the same moment.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from stratalog.errors import LogDirLockedError, MissingLogDirsError
from tests.memory import peak_bytes
from tests.torture.checker import Checker, is_closed, snapshot
from tests.torture.faults import (
    BAD_FSYNC,
    FULL,
    FULL_FOR_GOOD,
    KILL,
    Ballast,
    choose_trap,
    small_disk,
)
from tests.torture.model import Model
from tests.torture.reader import read
from tests.torture.setup import Place, events_of
from tests.torture.staging import DriverPlan, drive
from tests.torture.writer import WriterPlan, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerProcess
    from multiprocessing.sharedctypes import Synchronized
    from pathlib import Path

PATIENCE_S: Final = 120.0
READERS: Final = 2
HISTORY: Final = 12


@dataclass
class Round:
    """What is to happen, and to whom."""

    writer: WriterPlan | None
    drivers: list[DriverPlan]
    kill_after_s: float | None = None
    stop_after_s: float | None = None
    fill_after_s: float | None = None

    def __str__(self) -> str:
        parts = [str(plan) for plan in (self.writer, *self.drivers) if plan is not None]
        for name in ("kill_after_s", "stop_after_s", "fill_after_s"):
            at = getattr(self, name)
            if at is not None:
                parts.append(f"{name}={at:.2f}")
        return "; ".join(parts)


def plan_round(
    seed: int,
    number: int,
    *,
    is_disk_small: bool,
    pace: float = 1.0,
    without: tuple[str, ...] = (),
) -> Round:
    """Decided by the seed and the number alone."""
    rng = random.Random(f"{seed}/{number}")
    planned = Round(None, [])
    end = rng.choice(["close", "kill", "trap", "trap", "fault", "stop", "fill"])
    if number == 0:
        end = "close"  # it creates the topics
    elif end == "fill" and not is_disk_small:
        end = "fault"
    may_fail = end in {"fault", "fill"}
    trap = None
    if end == "trap":
        trap = choose_trap(rng, (KILL,), 100)
    elif end == "fault":
        trap = choose_trap(rng, (FULL, FULL_FOR_GOOD, BAD_FSYNC), 100)
    seconds = rng.uniform(0.3, 2.5) / pace
    if end == "kill":
        planned.kill_after_s = rng.uniform(0, seconds)
    elif end == "stop":
        planned.stop_after_s = rng.uniform(0, seconds)
    elif end == "fill":
        planned.fill_after_s = rng.uniform(0, seconds / 2)
    if number < 2 or rng.random() < 0.75:
        planned.writer = WriterPlan(
            f"w{number}",
            f"{seed}/{number}",
            seconds,
            trap,
            threads=rng.choice([1, 1, 3]) if number else 1,
            has_maintenance=rng.random() < 0.7,
            may_fail=may_fail,
            without=without,
        )
    if number >= 2 and (planned.writer is None or rng.random() < 0.2):
        planned.drivers = _plan_drivers(rng, number, seconds, may_fail=may_fail)
    return planned


def _plan_drivers(
    rng: random.Random, number: int, seconds: float, *, may_fail: bool
) -> list[DriverPlan]:
    count = rng.choice([1, 2, 2])
    is_shared = count == 2 and rng.random() < 0.5
    plans = []
    for n in range(count):
        kinds = (FULL, FULL_FOR_GOOD, BAD_FSYNC) if may_fail else (KILL,)
        trap = choose_trap(rng, kinds, 12) if may_fail or rng.random() < 0.6 else None
        query = "shared" if is_shared else f"query-{n}"
        name = f"d{number}-{n}"
        plans.append(DriverPlan(name, f"{name}/{rng.random()}", seconds, query, trap, may_fail))
    return plans


def intrude(place: Place, connection: Any) -> None:
    """A second writer, or one that knows only some of the directories: it must not get in."""
    try:
        place.open(background=False).close()
    except (LogDirLockedError, MissingLogDirsError):
        connection.send("refused")
    except BaseException:
        connection.send(traceback.format_exc())
    else:
        connection.send("it opened the directory")


@dataclass
class Run:
    """One directory, or two, from nothing to the end."""

    place: Place
    disk: Path | None
    """Mounted, and small enough to be filled."""
    say: Callable[[str], None]
    pace: float = 1.0
    """How many times as short the rounds are."""
    without: tuple[str, ...] = ()
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.torture.preload"])
        self._model = Model()
        self._checker = Checker(self.place, self._model)
        self._readers: list[ForkServerProcess] = []
        self._read: Synchronized[int] = self._context.Value("q", 0)
        self._kills = 0
        self._began = self._said = 0.0
        self.number = 0

    def go(self, seconds: float) -> None:
        """Raises AssertionError at the first thing that is wrong."""
        self._start(int).join()  # so that everything is imported when the time begins
        self._began = time.monotonic()
        deadline = self._began + seconds
        try:
            while time.monotonic() < deadline:
                planned = plan_round(
                    self.place.seed,
                    self.number,
                    is_disk_small=self.disk is not None,
                    pace=self.pace,
                    without=self.without,
                )
                self._do(planned)
                self.number += 1
                if self.number == 1:
                    self._start_readers()
                self._tell()
            self._finish()
        finally:
            for reader in self._readers:
                reader.kill()
                reader.join()
        self._tell(is_last=True)

    # -- a round

    def _do(self, planned: Round) -> None:
        self.history.append(f"round {self.number}: {planned}")
        del self.history[:-HISTORY]
        self._model.begin_round()
        ours, theirs = self._context.Pipe()
        processes: list[ForkServerProcess] = []
        if planned.writer is not None:
            processes.append(self._start(write, self.place, planned.writer, theirs))
        processes += [self._start(drive, self.place, plan) for plan in planned.drivers]
        self._watch(planned, processes, ours)
        ours.close()
        theirs.close()
        self._take_journals(planned, processes)
        self._check()

    def _start(self, target: Callable[..., object], *args: Any) -> ForkServerProcess:
        process = self._context.Process(target=target, args=args)
        process.start()
        return process

    def _watch(self, planned: Round, processes: list[ForkServerProcess], ours: Any) -> None:
        began, todo = time.monotonic(), self._interventions(planned)
        while any(process.is_alive() for process in processes):
            passed = time.monotonic() - began
            while todo and todo[0][0] <= passed:
                todo.pop(0)[1](processes[0])
            if ours.poll(0.005) and processes[0].is_alive():
                self._answer(ours, processes[0])
            if passed > PATIENCE_S:
                for process in processes:
                    process.kill()
                raise AssertionError(f"a process hangs: {planned}")
        for _, intervene in todo:
            intervene(processes[0])
        for process in processes:
            process.join()

    def _interventions(
        self, planned: Round
    ) -> list[tuple[float, Callable[[ForkServerProcess], None]]]:
        todo: list[tuple[float, Callable[[ForkServerProcess], None]]] = []
        if planned.kill_after_s is not None:
            todo.append((planned.kill_after_s, lambda process: process.kill()))
        if planned.stop_after_s is not None:
            at = planned.stop_after_s
            todo.append((at, lambda process: self._pause(process, signal.SIGSTOP)))
            todo.append((at + 0.3, lambda process: self._pause(process, signal.SIGCONT)))
        if planned.fill_after_s is not None and self.disk is not None:
            ballast = Ballast(self.disk / "ballast")
            todo.append((planned.fill_after_s, lambda _: ballast.fill(60_000)))
            todo.append((planned.fill_after_s + 0.7, lambda _: ballast.drop()))
        return todo

    def _pause(self, process: ForkServerProcess, number: signal.Signals) -> None:
        """The one that writes, and one that reads."""
        for paused in (process, *self._readers[:1]):
            if paused.is_alive() and paused.pid is not None:
                os.kill(paused.pid, number)

    def _answer(self, ours: Any, writer: ForkServerProcess) -> None:
        """The writer waits, with the lock in its hand."""
        try:
            ours.recv()
        except EOFError:
            return
        answer = self._intrude(self.place)
        assert answer == "refused" or not writer.is_alive(), f"a second writer: {answer}"
        if writer.is_alive():
            ours.send("go on")

    def _intrude(self, place: Place) -> str:
        ours, theirs = self._context.Pipe()
        self._start(intrude, place, theirs).join()
        answer: str = ours.recv()
        ours.close()
        theirs.close()
        return answer

    def _take_journals(self, planned: Round, processes: list[ForkServerProcess]) -> None:
        plans = [plan for plan in (planned.writer, *planned.drivers) if plan is not None]
        for plan, process in zip(plans, processes, strict=True):
            is_killed = process.exitcode == -signal.SIGKILL
            assert is_killed or process.exitcode == 0, f"{plan.name}: exit {process.exitcode}"
            self._kills += is_killed
            path, event = self.place.journals / f"{plan.name}.jsonl", None
            for facts in events_of(path) if path.exists() else ():
                event = facts["event"]
                assert event != "failure", f"{plan.name}: {facts['what']}"
                self._model.take(facts)
            path.unlink(missing_ok=True)
            if len(plans) == 1 and event == "closed" and not plan.may_fail:
                assert all(map(is_closed, self.place.dirs)), f"{plan.name} was closed uncleanly"

    def _check(self) -> None:
        for path in self.place.work.glob("*.failure"):
            raise AssertionError(path.read_text())
        before = snapshot(self.place)
        if len(self.place.dirs) > 1 and self.number % 5 == 4:
            answer = self._intrude(replace(self.place, dirs=self.place.dirs[:1]))
            assert answer == "refused", f"a writer of half of the directories: {answer}"
        self._checker.check()
        if self.number % 4 == 0 and "verify" not in self.without:
            self._checker.verify()
        after = snapshot(self.place)
        changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        assert not changed, f"changed while nobody wrote: {sorted(changed)}"

    def _start_readers(self) -> None:
        for number in range(READERS):
            self._readers.append(self._start(read, self.place, f"reader-{number}", self._read))

    def _finish(self) -> None:
        """Whatever was left open is ended now, and nothing is left over."""
        last = WriterPlan("last", f"{self.place.seed}/last", 0, is_last=True)
        self._do(Round(last, []))
        if "verify" not in self.without:
            self._checker.verify()
        self._checker.check_end()

    # -- telling

    def _tell(self, *, is_last: bool = False) -> None:
        passed = time.monotonic() - self._began
        if not is_last and passed - self._said < 5:
            return
        self._said = passed
        peak_mb = peak_bytes() >> 20
        rate = self._model.acknowledged / passed
        self.say(
            f"{passed:6.0f} s  {self.number} rounds  {self._kills} kills  "
            f"{self._model.acknowledged} acknowledged ({rate:.0f}/s)  "
            f"{self._model.commits} commits  {self._checker.records} checked  "
            f"{self._read.value} read  {_size_mb(self.place):.1f} MB  {peak_mb} MB of memory"
        )


def _size_mb(place: Place) -> float:
    return sum(size for _, size, _ in snapshot(place).values()) / 1e6


def torture(
    work: Path,
    seed: int,
    seconds: float,
    say: Callable[[str], None],
    *,
    mount: bool = False,
    pace: float = 1.0,
    without: tuple[str, ...] = (),
) -> None:
    """Run in `work`, which is removed if all is well. At a failure it stays, and is told."""
    rng = random.Random(seed)
    work.mkdir(parents=True)
    with ExitStack() as stack:
        disk = work / "disk"
        is_mounted = False
        if mount and rng.random() < 0.5:
            is_mounted = stack.enter_context(small_disk(disk))
        else:
            disk.mkdir()
        dirs = tuple(disk / f"data-{n}" for n in range(rng.choice([1, 1, 2])))
        place = Place(work, dirs, seed)
        place.journals.mkdir()
        place.queries.mkdir()
        run = Run(place, disk if is_mounted else None, say, pace, without)
        size = "small" if is_mounted else "large"
        say(f"seed {seed}: {len(dirs)} log directories on a {size} disk")
        try:
            run.go(seconds)
        except BaseException as error:
            if is_mounted:  # what is on it goes with it
                shutil.copytree(disk, work / "kept", symlinks=True)
            error.add_note("\n".join(run.history))
            error.add_note(f"seed {seed}, round {run.number}; the directory is kept: {work}")
            error.add_note(f"again: make torture SEED={seed} TORTURE_SECONDS={seconds:.0f}")
            raise
    shutil.rmtree(work)

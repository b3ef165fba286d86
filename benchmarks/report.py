"""What a benchmark measures and promises, collected for printing.

A benchmark is a module of this package with a function `run(report)`. It times work with
`report.race` or `report.time`, which also check the answer, and states what it promises with
`report.require`.
"""

from __future__ import annotations

import platform
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Timing:
    """The median of several rounds of one piece of work."""

    benchmark: str
    """The module that measured it."""
    case: str
    who: str
    seconds: float
    rounds: int
    records: int = 0
    size_bytes: int = 0

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        return self.size_bytes / self.seconds / 1e6


@dataclass(frozen=True)
class Requirement:
    """A number that must lie on one side of a bound, and should lie on that side of an aim."""

    benchmark: str
    what: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"
    aim: float | None = None
    """Where it is stricter than the bound."""

    @property
    def is_met(self) -> bool:
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    @property
    def misses_aim(self) -> bool:
        if self.aim is None:
            return False
        return self.value < self.aim if self.at_least is not None else self.value > self.aim


@dataclass(frozen=True)
class Work:
    """A function to time, the answer it must give, and how much it works through."""

    function: Callable[[], object]
    answer: object
    records: int = 0
    size_bytes: int = 0
    prepare: Callable[[], object] | None = None
    """Called before each round, and not timed."""


@dataclass
class Report:
    """Timings and requirements of one run."""

    is_quick: bool = False
    rounds: int = 5
    benchmark: str = ""
    """The module that runs now."""
    timings: list[Timing] = field(default_factory=list)
    requirements: list[Requirement] = field(default_factory=list)

    def race(
        self,
        case: str,
        sides: Mapping[str, Work],
        clock: Callable[[], float] = time.perf_counter,
    ) -> dict[str, Timing]:
        """Time several ways to do the same, round by round in turn, so that a slow moment of the
        machine hits all of them.

        Work that waits for nothing is timed better by `time.process_time`, which leaves out what
        other processes of a busy machine take.
        """
        seconds: dict[str, list[float]] = {who: [] for who in sides}
        for round_ in range(self.rounds + 1):
            for who, work in sides.items():
                if work.prepare is not None:
                    work.prepare()
                start = clock()
                answer = work.function()
                elapsed = clock() - start
                if answer != work.answer:
                    raise AssertionError(f"{case}, {who}: got {answer}, not {work.answer}")
                if round_:  # the first round warms caches up
                    seconds[who].append(elapsed)
        found = {
            who: Timing(
                self.benchmark,
                case,
                who,
                statistics.median(seconds[who]),
                self.rounds,
                work.records,
                work.size_bytes,
            )
            for who, work in sides.items()
        }
        self.timings += found.values()
        return found

    def time(
        self,
        case: str,
        who: str,
        work: Work,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Timing:
        """Time one piece of work."""
        return self.race(case, {who: work}, clock)[who]

    def require(
        self,
        what: str,
        value: float,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        unit: str = "x",
        aim: float | None = None,
    ) -> None:
        """Promise that `value` is on the right side of a bound."""
        requirement = Requirement(self.benchmark, what, value, at_least, at_most, unit, aim)
        self.requirements.append(requirement)

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": f"{platform.machine()} {_cpu_name()}",
            "python": platform.python_version(),
            "timings": [asdict(timing) for timing in self.timings],
            "requirements": [
                asdict(requirement) | {"is_met": requirement.is_met}
                for requirement in self.requirements
            ],
        }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - not a real file
            names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        return platform.processor()
    return names[0] if names else platform.processor()

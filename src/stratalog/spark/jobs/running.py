"""How a job's tasks get to the workers and their answers back, and what a job reports.

A task is a small value, its function one that workers can import. Tasks are packed into groups of
about equal work, a group is one task of Spark's. Spark may run a group twice; what a function
changes must bear that.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from stratalog.errors import StratalogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

GROUP_BYTES: Final = 128 << 20
TASK_COST_BYTES: Final = 1 << 20
"""What a small task costs, in bytes it could read instead."""
_POLL_S: Final = 0.2
_ERROR_LINE: Final = re.compile(r"[A-Za-z_.]*(Error|Exception): (?!An error occurred)[^{]+$")


class JobError(StratalogError):
    """A task failed on its worker; the message is its own."""


@dataclass(frozen=True)
class JobResult:
    """What every job says at its end."""

    job: str
    records: int
    size_bytes: int
    """Of log read or written."""
    seconds: float
    tasks: int

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.size_bytes / self.seconds if self.seconds else 0.0


def pack(
    tasks: Iterable[T], size_of: Callable[[T], int], *, slots: int, group_bytes: int = GROUP_BYTES
) -> list[list[T]]:
    """Groups of tasks, large tasks first; at least one group a slot if there are so many tasks."""
    ordered = sorted(tasks, key=size_of, reverse=True)
    total = sum(size_of(task) + TASK_COST_BYTES for task in ordered)
    limit = max(1, min(group_bytes, -(-total // max(1, slots))))
    groups: list[list[T]] = []
    held = limit
    for task in ordered:
        cost = size_of(task) + TASK_COST_BYTES
        if held + cost > limit:
            groups.append([])
            held = 0
        groups[-1].append(task)
        held += cost
    return groups


def run_groups(
    spark: SparkSession,
    function: Callable[[T], R],
    groups: Sequence[Sequence[T]],
    *,
    title: str,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[R]:
    """`function` of every task, in the order of the groups.

    Raises JobError with what the first failing task said.
    """
    if not groups:
        return []
    context = spark.sparkContext
    with _described(context, title), _watched(context, len(groups), on_progress):
        rdd = context.parallelize(groups, len(groups))
        try:
            answers = rdd.flatMap(_Runner(function)).collect()
        except Exception as error:
            raise JobError(told(error)) from None
    for answer in answers:
        if isinstance(answer, _Refusal):
            raise JobError(answer.reason)
    return answers


class _Refusal(NamedTuple):
    """Why a task cannot be done, however often Spark tries."""

    reason: str


class _Runner:
    """All tasks of a group, one after the other, up to the first that cannot be done."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, group: Sequence[Any]) -> list[Any]:
        answers = []
        for task in group:
            try:
                answers.append(self._function(task))
            except StratalogError as error:
                return [_Refusal(str(error))]
        return answers


def told(error: BaseException) -> str:
    """The one line of a Spark error that says what happened."""
    lines = [line.strip() for line in str(error).splitlines()]
    for line in lines:
        if _ERROR_LINE.match(line):
            return line.removeprefix("stratalog.errors.")
    meaningful = [line for line in lines if line and not line.startswith("at ")]
    return meaningful[0] if meaningful else type(error).__name__


@contextmanager
def _described(context: SparkContext, title: str) -> Iterator[None]:
    """So that Spark's own pages say what is running."""
    context.setJobDescription(title)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


@contextmanager
def _watched(
    context: SparkContext, total: int, on_progress: Callable[[int, int], None] | None
) -> Iterator[None]:
    """Tell `on_progress` now and then how many groups are done."""
    if on_progress is None:
        yield
        return
    is_over = threading.Event()

    def watch() -> None:
        tracker = context.statusTracker()
        while not is_over.wait(_POLL_S):
            done = 0
            for stage_id in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(stage_id)
                done += stage.numCompletedTasks if stage is not None else 0
            on_progress(min(done, total), total)

    watcher = threading.Thread(target=watch, name="stratalog-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start


def slots_of(spark: SparkSession) -> int:
    """How many tasks the cluster is expected to run at a time."""
    return max(1, spark.sparkContext.defaultParallelism)

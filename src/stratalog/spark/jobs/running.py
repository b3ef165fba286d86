"""How a job's tasks get to the workers and their answers back, and what a job reports.

A task is a small value, its function one that workers can import. Tasks are packed into groups of
about equal work, a group is one task of Spark's. Spark may run a group twice; what a function
changes must bear that.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from stratalog.errors import JobError, StratalogError
from stratalog.spark.failures import told
from stratalog.spark.worker_process import spare_imports_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from types import FrameType

    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K", bound="Hashable")
V = TypeVar("V")
OnProgress: TypeAlias = "Callable[[int, int], None]"
"""Told how many groups are done, of how many."""

GROUP_BYTES: Final = 128 << 20
TASK_COST_BYTES: Final = 1 << 20
"""What a small task costs, in bytes it could read instead."""
_POLL_S: Final = 0.2
_REFUSED: Final = "\0refused"


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


class Workers(Protocol):
    """Where tasks are done."""

    @property
    def slots(self) -> int:
        """How many groups are expected to run at a time."""
        ...

    def run(
        self, function: Callable[[T], R], groups: Sequence[Sequence[T]], *, title: str
    ) -> list[R]:
        """`function` of every task, in the order of the groups.

        Raises JobError with what the first failing task said.
        """
        ...

    def run_by_key(
        self,
        function: Callable[[T], Iterable[tuple[K, V]]],
        groups: Sequence[Sequence[T]],
        merge: Callable[[K, list[V]], R],
        *,
        title: str,
    ) -> list[R]:
        """`merge` of all values that tasks gave for one key, for every key, in any order."""
        ...


class SparkWorkers:
    """The executors of a Spark session."""

    def __init__(self, spark: SparkSession, on_progress: OnProgress | None = None) -> None:
        self._context = spark.sparkContext
        self._on_progress = on_progress

    @property
    def slots(self) -> int:
        return max(1, self._context.defaultParallelism)

    def run(
        self, function: Callable[[T], R], groups: Sequence[Sequence[T]], *, title: str
    ) -> list[R]:
        return self._collect(groups, lambda rdd: rdd.flatMap(_Runner(function)), title)

    def run_by_key(
        self,
        function: Callable[[T], Iterable[tuple[K, V]]],
        groups: Sequence[Sequence[T]],
        merge: Callable[[K, list[V]], R],
        *,
        title: str,
    ) -> list[R]:
        def merged(rdd: RDD[Sequence[T]]) -> RDD[R]:
            pairs = rdd.flatMap(_Runner(function, _keyed))
            return pairs.groupByKey(min(len(groups), self.slots)).map(_Merger(merge))

        return self._collect(groups, merged, title)

    def _collect(
        self,
        groups: Sequence[Sequence[T]],
        work: Callable[[RDD[Sequence[T]]], RDD[R]],
        title: str,
    ) -> list[R]:
        """The answers to `work` on all groups, each a task."""
        if not groups:
            return []
        context = self._context
        with described(context, title), watched(context, self._on_progress, len(groups)):
            try:
                answers = work(context.parallelize(groups, len(groups))).collect()
            except Exception as error:
                raise job_error(error) from None
        return _accepted(answers)


class ThreadWorkers:
    """Threads of this process. Kernels, codecs and reads run without the interpreter lock."""

    def __init__(self, threads: int | None = None, on_progress: OnProgress | None = None) -> None:
        self._threads = threads or os.cpu_count() or 1
        self._on_progress = on_progress

    @property
    def slots(self) -> int:
        return self._threads

    def run(
        self, function: Callable[[T], R], groups: Sequence[Sequence[T]], *, title: str
    ) -> list[R]:
        del title  # there is nobody to read it
        answers: list[R] = []
        with ThreadPoolExecutor(self._threads, thread_name_prefix="stratalog-job") as pool:
            for done, answer in enumerate(pool.map(_Runner(function), groups), 1):
                answers += answer
                if self._on_progress is not None:
                    self._on_progress(done, len(groups))
        return _accepted(answers)

    def run_by_key(
        self,
        function: Callable[[T], Iterable[tuple[K, V]]],
        groups: Sequence[Sequence[T]],
        merge: Callable[[K, list[V]], R],
        *,
        title: str,
    ) -> list[R]:
        def listed(task: T) -> list[tuple[K, V]]:
            return list(function(task))

        found: dict[K, list[V]] = {}
        for pairs in self.run(listed, groups, title=title):
            for key, value in pairs:
                found.setdefault(key, []).append(value)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="stratalog-job") as pool:
            return list(pool.map(lambda key: merge(key, found.pop(key)), list(found)))


def _accepted(answers: list[R]) -> list[R]:
    for answer in answers:
        if isinstance(answer, _Refusal):
            raise JobError(str(answer.error), answer.error)
    return answers


class _Refusal(NamedTuple):
    """Why a task cannot be done, however often Spark tries."""

    error: StratalogError


def _single(answer: Any) -> list[Any]:
    return [answer]


def _keyed(answer: Any) -> list[Any]:
    """Pairs as they are; a refusal under a key of its own."""
    return [(_REFUSED, answer)] if isinstance(answer, _Refusal) else list(answer)


class _Runner:
    """All tasks of a group, one after the other, up to the first that cannot be done."""

    def __init__(
        self, function: Callable[[Any], Any], spread: Callable[[Any], list[Any]] = _single
    ) -> None:
        self._function = function
        self._spread = spread

    def __call__(self, group: Sequence[Any]) -> list[Any]:
        answers: list[Any] = []
        for task in group:
            try:
                answers += self._spread(self._function(task))
            except StratalogError as error:
                return self._spread(_Refusal(error))
        spare_imports_collection()  # here at the end: functions import what they need
        return answers


class _Merger:
    """The values of one key into one answer."""

    def __init__(self, merge: Callable[[Any, list[Any]], Any]) -> None:
        self._merge = merge

    def __call__(self, pair: tuple[Any, Iterable[Any]]) -> Any:
        key, values = pair
        found = list(values)
        return found[0] if key == _REFUSED else self._merge(key, found)


def job_error(error: BaseException) -> BaseException:
    """What to raise for an error of Spark's. An interrupt stays one, whatever PySpark stumbles over
    while it cleans up behind it."""
    cause: BaseException | None = error
    while cause is not None:
        if not isinstance(cause, Exception):
            return cause
        cause = cause.__context__
    return JobError(told(error))


@contextmanager
def described(context: SparkContext, title: str) -> Iterator[None]:
    """So that Spark's own pages say what is running."""
    context.setJobDescription(title)
    try:
        yield
    finally:
        with suppress(Exception):  # the JVM is gone
            context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


@contextmanager
def watched(
    context: SparkContext, on_progress: OnProgress | None, total: int | None = None
) -> Iterator[None]:
    """Tell `on_progress` now and then how many tasks are done, of `total` or of those in sight."""
    if on_progress is None:
        yield
        return
    is_over = threading.Event()

    def look() -> None:
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        due = total or sum(stage.numTasks for stage in stages if stage is not None)
        if due:
            on_progress(min(done, due), due)

    def watch() -> None:
        with suppress(Exception):  # the JVM is gone, which whoever waits for the job will be told
            while not is_over.wait(_POLL_S):
                look()

    watcher = threading.Thread(target=watch, name="stratalog-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C does nothing in here: a commit is short, and whoever stops it cannot tell if it was.

    Elsewhere than in the main thread there are no interrupts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupted_once() -> Iterator[None]:
    """The first Ctrl-C ends what is in here; later ones do nothing, so that it can clean up.

    Whoever handles interrupts otherwise meanwhile has the last word.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def ignore(*_: object) -> None:
        pass

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, ignore)
        before(number, frame)

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) in {first, ignore}:
            signal.signal(signal.SIGINT, before)


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

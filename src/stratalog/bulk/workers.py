"""Runs the tasks of a job on workers: the threads of this process, or the executors of Spark.

A task is a small picklable value; its function can be imported by the workers. Tasks are packed
into groups of about equal work, and a group is what a thread, or a task of Spark, runs at a time.
Spark may run a group twice, so a function must tolerate that.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from stratalog.errors import JobError, StratalogError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from types import FrameType

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K", bound="Hashable")
V = TypeVar("V")
OnProgress: TypeAlias = "Callable[[int, int], None]"
"""Called with the number of finished groups, and of all."""

GROUP_BYTES: Final = 128 << 20
TASK_COST_BYTES: Final = 1 << 20
"""What starting a task costs, in bytes that it could read instead."""


@dataclass(frozen=True)
class JobResult:
    """What every job reports."""

    job: str
    records: int
    size_bytes: int
    """Size of log read or written."""
    seconds: float
    tasks: int

    @property
    def records_per_second(self) -> float:
        return self._per_second(self.records)

    @property
    def bytes_per_second(self) -> float:
        return self._per_second(self.size_bytes)

    def _per_second(self, amount: int) -> float:
        return amount / self.seconds if self.seconds else 0.0


def pack(
    tasks: Iterable[T], size_of: Callable[[T], int], *, slots: int, group_bytes: int = GROUP_BYTES
) -> list[list[T]]:
    """Groups of tasks, large tasks first; at least one group per slot if there are enough tasks."""
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


class KeyedJob(NamedTuple, Generic[T, K, V, R]):
    """Tasks that yield values by key, and what becomes of all values of one key."""

    function: Callable[[T], Iterable[tuple[K, V]]]
    merge: Callable[[K, list[V]], R]


class Workers(Protocol):
    """Where the tasks of a job run."""

    @property
    def slots(self) -> int:
        """How many groups are expected to run at a time."""
        ...

    def run(
        self, function: Callable[[T], R], groups: Sequence[Sequence[T]], *, title: str
    ) -> list[R]:
        """The results of all tasks, in the order of the groups.

        Raises JobError with the message of the first task that failed.
        """
        ...

    def run_by_key(
        self, job: KeyedJob[T, K, V, R], groups: Sequence[Sequence[T]], *, title: str
    ) -> list[R]:
        """For every key that tasks yielded, the job's `merge` of its values; in any order."""
        ...


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
        del title  # only Spark shows it
        results: list[R] = []
        with ThreadPoolExecutor(self._threads, thread_name_prefix="stratalog-job") as pool:
            for done, part in enumerate(pool.map(GroupRunner(function), groups), 1):
                results += part
                if self._on_progress is not None:
                    self._on_progress(done, len(groups))
        return raise_failed(results)

    def run_by_key(
        self, job: KeyedJob[T, K, V, R], groups: Sequence[Sequence[T]], *, title: str
    ) -> list[R]:
        def listed(task: T) -> list[tuple[K, V]]:
            return list(job.function(task))

        found: dict[K, list[V]] = {}
        for pairs in self.run(listed, groups, title=title):
            for key, value in pairs:
                found.setdefault(key, []).append(value)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="stratalog-job") as pool:
            return list(pool.map(lambda key: job.merge(key, found.pop(key)), list(found)))


class FailedTask(NamedTuple):
    """The result of a task that fails however often it is run."""

    error: StratalogError


class GroupRunner:
    """Runs the tasks of a group one after the other, up to the first that fails."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, group: Sequence[Any]) -> list[Any]:
        results: list[Any] = []
        for task in group:
            try:
                results.append(self._function(task))
            except StratalogError as error:
                return [FailedTask(error)]
        return results


def raise_failed(results: list[R]) -> list[R]:
    """The results; raises JobError for the first that is a failed task."""
    for result in results:
        if isinstance(result, FailedTask):
            raise JobError(str(result.error), result.error)
    return results


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C in this block: a commit is short, and after an interrupt its result would be
    unknown.

    Only the main thread receives interrupts.
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
def interrupts_deferred() -> Iterator[None]:
    """Ctrl-C in this block takes effect at its end, for what must not be left half done."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    deferred: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *interrupt: deferred.append(interrupt))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if deferred:
            before(*deferred[0])


@contextmanager
def interrupted_once() -> Iterator[None]:
    """The first Ctrl-C ends the block; later ones are ignored, so that it can clean up.

    A handler that is installed meanwhile stays.
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
    """Seconds since it was created."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

"""Runs the tasks of bulk jobs on the executors of a Spark session."""

from __future__ import annotations

import functools
import gc
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stratalog.bulk.workers import FailedTask, GroupRunner, raise_failed
from stratalog.errors import JobError
from stratalog.spark.failures import is_spark_worker, message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

    from stratalog.bulk.workers import KeyedJob, OnProgress

    K = TypeVar("K", bound=Hashable)

T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")
_POLL_S: Final = 0.2
_FAILED: Final = "\0failed"
"""The key under which a failed task is passed on."""


@functools.cache
def freeze_imported_modules() -> None:
    """Call when everything that tasks need is imported. Does nothing outside a worker of Spark.

    PySpark runs a full garbage collection after every task, before the worker takes the next one.
    With compiled kernels, Arrow and pandas imported there are 160,000 objects to visit, which takes
    65 ms: longer than many tasks. Modules are never garbage, so the collector skips them.
    """
    if is_spark_worker():
        gc.freeze()


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
        return self._collect(groups, lambda rdd: rdd.flatMap(_SparkTask(function)), title)

    def run_by_key(
        self, job: KeyedJob[T, K, V, R], groups: Sequence[Sequence[T]], *, title: str
    ) -> list[R]:
        def merged(rdd: RDD[Sequence[T]]) -> RDD[R]:
            pairs = rdd.flatMap(_KeyedSparkTask(job.function))
            return pairs.groupByKey(min(len(groups), self.slots)).map(_Merger(job.merge))

        return self._collect(groups, merged, title)

    def _collect(
        self, groups: Sequence[Sequence[T]], work: Callable[[RDD[Sequence[T]]], RDD[R]], title: str
    ) -> list[R]:
        """The results of `work` on all groups, each a task of Spark."""
        if not groups:
            return []
        context = self._context
        with job_description(context, title), watched(context, self._on_progress, len(groups)):
            try:
                results = work(context.parallelize(groups, len(groups))).collect()
            except Exception as error:
                raise job_error(error) from None
        return raise_failed(results)


class _SparkTask(GroupRunner):
    """A group, in a worker of Spark."""

    def __call__(self, group: Sequence[Any]) -> list[Any]:
        results = super().__call__(group)
        freeze_imported_modules()  # only now: functions import what they need
        return results


class _KeyedSparkTask:
    """A group whose tasks yield pairs of key and value."""

    def __init__(self, function: Callable[[Any], Iterable[Any]]) -> None:
        self._run = _SparkTask(_CollectValues(function))

    def __call__(self, group: Sequence[Any]) -> list[Any]:
        pairs: list[Any] = []
        for result in self._run(group):
            pairs += [(_FAILED, result)] if isinstance(result, FailedTask) else result
        return pairs


class _CollectValues:
    """Calls a function, and collects what it yields."""

    def __init__(self, function: Callable[[Any], Iterable[Any]]) -> None:
        self._function = function

    def __call__(self, task: Any) -> list[Any]:
        return list(self._function(task))


class _Merger:
    """Merges the values of one key."""

    def __init__(self, merge: Callable[[Any, list[Any]], Any]) -> None:
        self._merge = merge

    def __call__(self, pair: tuple[Any, Iterable[Any]]) -> Any:
        key, values = pair
        found = list(values)
        return found[0] if key == _FAILED else self._merge(key, found)


def job_error(error: BaseException) -> BaseException:
    """What to raise for an error of Spark. An interrupt stays one, whatever PySpark raises while it
    cleans up."""
    cause: BaseException | None = error
    while cause is not None:
        if not isinstance(cause, Exception):
            return cause
        cause = cause.__context__
    return JobError(message_of(error))


@contextmanager
def job_description(context: SparkContext, title: str) -> Iterator[None]:
    """Spark's own pages show the title while this runs."""
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
    """Report now and then how many tasks are done, of `total` or of those in the active stages."""
    if on_progress is None:
        yield
        return
    is_over = threading.Event()

    def report() -> None:
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        tasks = total or sum(stage.numTasks for stage in stages if stage is not None)
        if tasks:
            on_progress(min(done, tasks), tasks)

    def watch() -> None:
        with suppress(Exception):  # the JVM is gone, and the job that is waited for fails
            while not is_over.wait(_POLL_S):
                report()

    watcher = threading.Thread(target=watch, name="stratalog-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()

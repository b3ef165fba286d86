"""A process that reads, whatever happens to the directory, and believes nothing."""

from __future__ import annotations

import os
import random
import time
import traceback
from typing import TYPE_CHECKING, Final

from stratalog.errors import (
    NotALogDirError,
    OffsetOutOfRangeError,
    SegmentGoneError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.record import Header, Record
from stratalog.log.reader import IsolationLevel
from stratalog.partitions.view import open_dirs
from tests.torture.content import ABORTED, OrderCheck

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.sharedctypes import Synchronized

    from stratalog.log.partition_view import PartitionView
    from tests.torture.setup import Place

_MOVED: Final = (
    NotALogDirError,
    OffsetOutOfRangeError,
    SegmentGoneError,
    UnknownTopicOrPartitionError,
)
"""What a reader has to reckon with: retention and deleted topics."""
_KEPT_VIEWS: Final = 4


class Reader:
    """Reads here and there, and some partitions for longer."""

    def __init__(self, place: Place, seed: str, counter: Synchronized[int]) -> None:
        self._place = place
        self._rng = random.Random(seed)
        self._counter = counter
        self._kept: dict[tuple[str, int], PartitionView] = {}

    def run(self) -> None:
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(self._rng.random() * 0.03)  # leave time for those who write
            try:
                self._step()
            except _MOVED:
                continue

    def _step(self) -> None:
        views = open_dirs(*self._place.dirs)
        names = [tp for tp in views.topic_partitions if not tp.topic.startswith("__")]
        if not names:
            return
        name = self._rng.choice(names)
        view = self._kept.get(name)
        try:
            if view is None:
                view = views.partition(*name)
            else:
                view.refresh()
            self._rng.choice([self._by_offset, self._by_offset, self._by_time])(view)
        except _MOVED:
            self._kept.pop(name, None)
            raise
        finally:
            if view is not None and name not in self._kept:
                view.close()
        if len(self._kept) < _KEPT_VIEWS:
            self._kept[name] = view

    def _by_offset(self, view: PartitionView) -> None:
        isolation = self._rng.choice(list(IsolationLevel))
        start, stable, end = view.log_start_offset, view.last_stable_offset, view.log_end_offset
        assert start <= stable <= end, f"{view}: {start}, {stable}, {end}"
        first = self._rng.choice([start, self._rng.randint(start, end)])
        order, count = OrderCheck(), 0
        for record in self._records(view, first, isolation):
            assert record.offset >= first, f"{view}: offset {record.offset}, asked for {first}"
            found = order.take(record)
            is_hidden = isolation is IsolationLevel.READ_COMMITTED and found.fate == ABORTED
            assert not is_hidden, f"{view}: read_committed sees {found} at {record.offset}"
            count += 1
        with self._counter.get_lock():
            self._counter.value += count

    def _records(
        self, view: PartitionView, first: int, isolation: IsolationLevel
    ) -> Iterator[Record]:
        most = self._rng.choice([10, 1000, 100_000])
        if self._rng.random() < 0.5:
            yield from view.read(first, isolation=isolation, max_records=most)
            return
        for batch in view.read_columns(first, isolation=isolation, max_records=most):
            for row in batch.to_pylist():
                headers = tuple(Header(item["key"], item["value"]) for item in row["headers"])
                at_ms = round(row["timestamp"].timestamp() * 1000)
                yield Record(row["offset"], at_ms, row["key"], row["value"], headers)

    def _by_time(self, view: PartitionView) -> None:
        newest = view.find_max_timestamp()
        if newest is None:
            return
        wanted = newest.timestamp - self._rng.choice([0, 10, 1000, 10_000])
        found = view.find_time(wanted)
        if found is None:
            return  # retention was faster
        assert found.timestamp >= wanted, f"{view}: {found} for {wanted}"
        for record in view.read(view.log_start_offset, found.offset + 1, max_records=5000):
            is_found = record.offset == found.offset
            assert (record.timestamp >= wanted) == is_found, (
                f"{view}: {found} for {wanted}, and {record.timestamp} at {record.offset}"
            )


def read(place: Place, name: str, counter: Synchronized[int]) -> None:
    """What the process does."""
    try:
        Reader(place, f"{place.seed}/{name}", counter).run()
    except BaseException:
        (place.work / f"{name}.failure").write_text(traceback.format_exc())
    os._exit(0)

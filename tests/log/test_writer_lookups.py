"""Lookups in a log that is being written: as cheap after an append as before it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stratalog.maintenance.retention import plan_retention, retention_log
from stratalog.partitions.view import open_partition
from stratalog.storage.disk import Disk
from tests.opening import UNSYNCED, open_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.reader import OffsetAndTimestamp
    from stratalog.log_dir import LogDir

SEGMENTS = 150
FIRST_MS, STEP_MS = 1_000, 10
LAST_MS = FIRST_MS + SEGMENTS * STEP_MS
FILES_OF_A_SEGMENT = 3

_opened: list[str] = []
sys.addaudithook(lambda event, args: _opened.append(str(args[0])) if event == "open" else None)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogDir]:
    """A segment for each record: more than a list of segments keeps open."""
    with open_logs(tmp_path, disk=Disk(UNSYNCED)) as logs:
        logs.create_topic("orders", 1)
        for number in range(SEGMENTS):
            logs.append("orders", b"x", timestamp=FIRST_MS + number * STEP_MS)
            logs.partition("orders", 0).roll()
        logs.append("orders", b"x", timestamp=LAST_MS)
        yield logs


def files_opened(action: Callable[[], object]) -> int:
    before = len(_opened)
    action()
    return len(_opened) - before


LOOKUPS = [
    pytest.param(lambda log: log.find_time(FIRST_MS + 5 * STEP_MS), id="an old time"),
    pytest.param(lambda log: log.find_time(LAST_MS), id="a time in the active segment"),
    pytest.param(lambda log: log.find_time(LAST_MS + 999_999), id="a time after all"),
    pytest.param(lambda log: log.find_max_timestamp(), id="largest timestamp"),
    pytest.param(lambda log: log.locate(5), id="an old offset"),
    pytest.param(lambda log: log.locate(SEGMENTS), id="an offset in the active segment"),
]


@pytest.mark.slow
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_an_append_costs_the_next_lookup_no_file(
    logs: LogDir, lookup: Callable[[PartitionLog], object]
) -> None:
    log = logs.partition("orders", 0)
    lookup(log)
    lookup(log)
    for number in range(5):
        logs.append("orders", b"x", timestamp=LAST_MS + number)
        assert files_opened(lambda: lookup(log)) == 0


def test_the_first_lookup_by_time_opens_only_the_segment_that_has_it(logs: LogDir) -> None:
    """The writer knows the largest timestamp of each segment that it has written."""
    log = logs.partition("orders", 0)
    assert (
        files_opened(lambda: log.find_time(FIRST_MS + 100 * STEP_MS)) <= 4
    )  # its three, and the active log
    assert files_opened(lambda: log.find_time(LAST_MS + 999_999)) == 0


def test_a_lookup_by_time_after_retention_reads_no_timestamp_again(tmp_path: Path) -> None:
    """What retention had to read of segments that were found on opening is known to readers."""
    with open_logs(tmp_path, disk=Disk(UNSYNCED)) as logs:
        logs.create_topic("orders", 1)
        for number in range(SEGMENTS):
            logs.append("orders", b"x", timestamp=FIRST_MS + number * STEP_MS)
            logs.partition("orders", 0).roll()
    with open_logs(tmp_path, disk=Disk(UNSYNCED)) as logs:
        log = logs.partition("orders", 0)
        log.update_config(replace(log.config, retention_ms=-1))
        plan_retention(retention_log(log, LAST_MS), log.config, LAST_MS)
        assert (
            files_opened(lambda: log.find_time(FIRST_MS + 100 * STEP_MS)) <= 4
        )  # its three, and the active log


@pytest.mark.slow
def test_what_is_found_after_appends_rolls_and_retention(logs: LogDir) -> None:
    """The same as a reader that lists the directory again, with few files opened."""
    log = logs.partition("orders", 0)
    log.find_time(LAST_MS)
    changes: list[Callable[[], object]] = [
        lambda: logs.append("orders", b"x", timestamp=LAST_MS + 5),
        log.roll,
        lambda: logs.append("orders", b"x", timestamp=LAST_MS - 500),
        lambda: log.delete_records(50),
        lambda: log.truncate_to(SEGMENTS),
        lambda: logs.append("orders", b"x", timestamp=LAST_MS + 50),
        lambda: log.truncate_to(SEGMENTS - 10),
        lambda: logs.append("orders", b"x", timestamp=FIRST_MS),
    ]
    for change in changes:
        change()
        times = [FIRST_MS, FIRST_MS + 600, FIRST_MS + 601, LAST_MS - 500, LAST_MS, LAST_MS + 6]
        found: list[OffsetAndTimestamp | None] = []
        assert files_opened(lambda: found.extend(map(log.find_time, times))) < 20  # noqa: B023
        logs.checkpoint()  # tells readers where the log starts
        fresh = open_partition(log.path)
        assert found == [fresh.find_time(time) for time in times]
        assert log.find_max_timestamp() == fresh.find_max_timestamp()

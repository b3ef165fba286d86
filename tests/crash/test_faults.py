"""A scripted life of a log, with an error injected into each of its calls to the system in turn.

Whatever fails, the error is typed, nothing that was acknowledged is lost, and the log can be used
again: at once where nothing was written, after reopening where the files were left half done.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import DiskFullError
from tests.disks import Fault
from tests.model.driven_log import PREALLOCATED, SMALL, Draft
from tests.model.log_driver import LogDriver, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from stratalog.config import LogConfig

Step = tuple[str, "Callable[[LogDriver], None]"]

IDEMPOTENT, TRANSACTIONAL = 101, 102
CONFIG = replace(SMALL, segment_bytes=700)
WITH_ZEROS = replace(PREALLOCATED, segment_bytes=700)
CALLS_MAX = 1000
ANY_CALL = frozenset(
    {
        "fsync",
        "ftruncate",
        "map",
        "open",
        "posix_fallocate",
        "pwrite",
        "rename",
        "truncate",
        "unlink",
    }
)
PLAIN = Draft(value_bytes=120)
IN_TXN = Draft(TRANSACTIONAL, value_bytes=120, is_transactional=True)

SCRIPT: list[Step] = [
    ("lead", lambda d: d.become_leader()),
    ("append", lambda d: d.append(PLAIN)),
    ("idempotent", lambda d: d.append(Draft(IDEMPOTENT, value_bytes=120))),
    ("transaction", lambda d: d.append(IN_TXN)),
    ("flush", lambda d: d.flush()),
    ("many", lambda d: d.append_many([PLAIN, PLAIN])),
    ("abort", lambda d: d.end_transaction(TRANSACTIONAL, commit=False)),
    ("append and roll", lambda d: d.append(Draft(record_count=4, value_bytes=120))),
    ("transaction", lambda d: d.append(IN_TXN)),
    ("roll", lambda d: d.roll()),
    ("commit", lambda d: d.end_transaction(TRANSACTIONAL, commit=True)),
    ("follow", lambda d: d.append_as_follower([PLAIN, PLAIN])),
    ("delete", lambda d: d.delete_records(2)),
    ("truncate in the last segment", lambda d: d.truncate_to(d.model.end - 1)),
    ("append", lambda d: d.append(PLAIN)),
    ("truncate", lambda d: d.truncate_to(4)),
    ("append", lambda d: d.append(PLAIN)),
    ("configure", lambda d: d.configure(replace(CONFIG, segment_bytes=900))),
    ("append", lambda d: d.append(PLAIN)),
    ("retain", lambda d: d.delete_oldest(0.5)),
    ("append", lambda d: d.append(PLAIN)),
    ("retain all", lambda d: d.delete_oldest(1)),
    ("remove", lambda d: d.remove_discarded()),
    ("append", lambda d: d.append(PLAIN)),
    ("start over", lambda d: d.start_over_at(20)),
    ("append", lambda d: d.append(PLAIN)),
    ("close", lambda d: d.reopen_cleanly()),
]

FAULTS = {
    "EIO": Fault(0),
    "ENOSPC, half of a write done": Fault(0, errno.ENOSPC, written=0.5),
    "short write, then ENOSPC": Fault(0, errno.ENOSPC, written=0.5, is_short=True),
}
MAY_MEET: dict[str, Collection[str]] = {
    "EIO": ANY_CALL,
    "ENOSPC, half of a write done": {"open", "pwrite", "posix_fallocate", "ftruncate", "map"},
    "short write, then ENOSPC": {"pwrite"},
}

ON_LOGS = {"ftruncate", "pwrite", "truncate"}
"""The others do not care whether a log is preallocated."""


def run(driver: LogDriver) -> set[tuple[str, Outcome]]:
    """Each step until it works, which is the second time at the latest."""
    seen = set()
    for name, step in SCRIPT:
        for _ in range(3):
            outcome = driver.survive(lambda step=step: step(driver))  # type: ignore[misc]
            seen.add((name, outcome))
            if outcome is Outcome.DONE:
                break
            driver.check()
        else:
            raise AssertionError(f"{name} fails for ever")
    driver.check()
    driver.check_files()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, WITH_ZEROS], ids=["plain", "preallocated"])
@pytest.mark.parametrize("kind", FAULTS)
def test_every_call_fails_once(kind: str, config: LogConfig, tmp_path: Path) -> None:
    """The calls are those that the script makes when nothing fails."""
    seen: set[tuple[str, Outcome]] = set()
    untroubled = LogDriver(tmp_path, config)
    first = len(untroubled.faulty.history) + 1
    run(untroubled)
    calls = list(enumerate(untroubled.faulty.history, 1))[first - 1 :]
    for at, call in calls:
        if call not in MAY_MEET[kind] or (config is WITH_ZEROS and call not in ON_LOGS):
            continue
        root = tmp_path / str(at)
        root.mkdir()
        driver = LogDriver(root, config)
        driver.faulty.fault = replace(FAULTS[kind], at=at)
        try:
            seen |= run(driver)
        except BaseException as error:
            error.add_note(f"fault at call {at} of {calls[-1][0]}: {call}")
            raise
        assert driver.faulty.has_failed
    assert {name for name, outcome in seen if outcome is Outcome.DONE} == {n for n, _ in SCRIPT}
    assert ("append", Outcome.UNCHANGED) in seen
    if kind == "EIO":
        assert ("truncate", Outcome.REOPENED) in seen


def test_a_full_disk_is_told_as_such_and_appends_go_on_once_there_is_space(tmp_path: Path) -> None:
    driver = LogDriver(tmp_path, CONFIG)
    driver.append(PLAIN)
    driver.faulty.fault = Fault(1, errno.ENOSPC, is_lasting=True, written=0.3)
    for _ in range(3):
        with pytest.raises(DiskFullError):
            driver.log.append(driver.raw(PLAIN))
        driver.check()
    driver.faulty.fault = None
    for _ in range(10):
        driver.append(PLAIN)
    driver.check()
    driver.check_files()


def test_a_full_disk_at_a_roll_leaves_the_log_usable(tmp_path: Path) -> None:
    """There is no space for the new segment's files: until there is, appends fail."""
    driver = LogDriver(tmp_path, CONFIG)
    for _ in range(3):
        driver.append(PLAIN)
    assert len(driver.log.maintenance.segments) == 1
    calls = len(driver.faulty.history)
    driver.roll()
    history = driver.faulty.history[calls:]
    assert history.count("map") == 2
    failing = [at for at, name in enumerate(history, calls + 1) if name in {"open", "map"}]
    for at in failing[1:]:
        root = tmp_path / str(at)
        root.mkdir()
        again = LogDriver(root, CONFIG)
        for _ in range(3):
            again.append(PLAIN)
        again.faulty.fault = Fault(at, errno.ENOSPC)
        with pytest.raises(DiskFullError):
            again.log.roll()
        assert again.log.is_usable
        again.check()
        again.faulty.fail_next(errno.ENOSPC)
        with pytest.raises(DiskFullError):
            again.log.append(again.raw(PLAIN))
        again.check()
        again.append(PLAIN)
        assert [s.base_offset for s in again.log.maintenance.segments] == [0, 3]
        again.flush()
        again.check()
        again.check_files()


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_every_call_of_loading_fails_once(kind: str, tmp_path: Path) -> None:
    """Opening after a kill, with work to do: it raises, and works the next time."""
    for at in range(1, CALLS_MAX):
        root = tmp_path / str(at)
        root.mkdir()
        driver = LogDriver(root, CONFIG)
        for _, step in SCRIPT[:-3]:
            step(driver)
        segments = driver.log.maintenance.segments
        segments[0].path.with_suffix(".index").unlink()
        last = segments[-1].path
        last.write_bytes(last.read_bytes() + b"torn")
        fault = replace(FAULTS[kind], at=len(driver.faulty.history) + at)
        has_failed = driver.fail_loading(fault)
        driver.append(PLAIN)
        driver.check()
        driver.check_files()
        if not has_failed:
            return
    raise AssertionError("loading never comes to its end")

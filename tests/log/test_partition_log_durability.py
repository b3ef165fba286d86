"""A partition that is written: when it is flushed, and what failures and closing leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.errors import (
    LogOfflineError,
    StorageError,
)
from stratalog.log.log_state import LogOffsets
from stratalog.log.producer_state_manager import ProducerStateManager
from stratalog.log.validation import LeaderValidator
from stratalog.maintenance.recovery import LoadPoint
from stratalog.storage.segment import SegmentWriter
from tests.log.building import log_name
from tests.log.written_log import CONFIG, NOW_MS, Setup, bases, batch, offsets, sent


def test_flush_after_so_many_messages(setup: Setup) -> None:
    log = setup.reopen(replace(CONFIG, flush_messages=4))
    for expected in (0, 0, 0, 4, 4):
        log.append(batch())
        assert log.recovery_point == expected
    log.append(batch(3))
    assert log.recovery_point == 8


def test_flush_after_so_much_time(setup: Setup) -> None:
    log = setup.reopen(replace(CONFIG, flush_ms=1000))
    log.append(batch())
    assert not log.flush_if_due(NOW_MS + 999)
    assert log.recovery_point == 0
    setup.now_ms = NOW_MS + 1000
    assert log.flush_if_due(setup.now_ms)
    assert log.recovery_point == 1
    assert not log.flush_if_due(NOW_MS + 1999)


def test_flush_in_order_and_only_what_is_new(setup: Setup) -> None:
    log = setup.log
    for _ in range(20):
        log.append(batch())
    log.flush()
    calls = len(setup.disk.history)
    log.flush()
    assert setup.disk.history[calls:] == []
    log.append(batch())
    calls = len(setup.disk.history)
    log.flush()
    assert setup.disk.history[calls:] == ["fsync"] * 4  # log, two indexes, snapshot


def test_a_failed_fsync_is_final(setup: Setup) -> None:
    """Nobody knows what the disk holds then; only opening the log again can tell."""
    log = setup.log
    log.append(batch())
    setup.disk.fail_next()
    with pytest.raises(StorageError):
        log.flush()
    assert not log.is_usable
    for change in (log.flush, log.roll, lambda: log.append(batch()), lambda: log.truncate_to(0)):
        with pytest.raises(LogOfflineError, match="an earlier write failed"):
            change()
    assert offsets(log) == [0], "reading goes on"
    log.close()
    assert setup.open().append(batch()).first_offset == 1


@pytest.mark.parametrize("compiled", [False, True], ids=["general", "fast"])
@pytest.mark.parametrize(
    ("owner", "name", "data"),
    [
        (ProducerStateManager, "update", sent(0)),
        (ProducerStateManager, "update", sent(0, in_txn=True)),
        (LogOffsets, "publish", batch()),
    ],
    ids=["update", "transaction", "publish"],
)
def test_an_interrupt_in_the_middle_of_an_append(
    setup: Setup,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    data: bytes,
    compiled: bool,
) -> None:
    """Ctrl-C after the write and before all know of it: the log must not be written on."""
    log = setup.log
    log._appender._validator = LeaderValidator(compiled=compiled)
    log.append(batch())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.append(data)
    assert not log.is_usable
    assert offsets(log) == [0]
    log.close()
    assert offsets(setup.open()) == [0, 1]


@pytest.mark.parametrize("compiled", [False, True], ids=["general", "fast"])
def test_an_interrupt_before_an_append(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    log = setup.log
    log._appender._validator = LeaderValidator(compiled=compiled)
    log.append(batch())

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "append_batch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.append(batch())
    assert log.is_usable
    assert log.append(batch()).first_offset == 1


def test_closing(setup: Setup) -> None:
    log = setup.log
    with log:
        log.append(sent(0))
    log.close()
    assert log.recovery_point == 1
    assert (setup.path / log_name(1, ".snapshot")).stat().st_size == 56
    assert (setup.path / log_name(0, ".index")).stat().st_size == 0
    assert (setup.path / log_name(0, ".timeindex")).stat().st_size == 12
    with pytest.raises(LogOfflineError, match="closed"):
        log.append(batch())
    assert not log.is_usable
    assert setup.open(point=LoadPoint(0, 1, was_clean=True)).append(sent(0)).is_duplicate


def test_preallocated_segments_are_trimmed(setup: Setup) -> None:
    log = setup.reopen(replace(CONFIG, preallocate=True))
    log.roll()
    for _ in range(12):
        log.append(batch())
    sizes = [(setup.path / log_name(base)).stat().st_size for base in bases(log)]
    assert sizes[-1] == 1000
    assert all(size % len(batch()) == 0 for size in sizes[:-1])
    assert offsets(log) == list(range(12))
    log.close()
    assert (setup.path / log_name(bases(log)[-1])).stat().st_size % len(batch()) == 0

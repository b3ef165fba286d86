"""Which log is cleaned next, and what becomes of it when cleaning fails, is paused or stopped."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.errors import CorruptBatchError
from stratalog.format.checkpoint import decode_offsets, encode_offsets
from stratalog.format.names import RootFile, TopicPartition
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import UNCONTROLLED
from stratalog.service.cleaners import CleaningStatus
from tests.opening import Clock, open_logs

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.log_dir import LogDir
    from stratalog.maintenance.cleaning.plan import CleaningPlan, CleaningResult, PassControl

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": 500, "file.delete.delay.ms": 0}
ORDERS = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def cleaner() -> Cleaner:
    return Cleaner(1 << 20)


def fill(logs: LogDir, topic: str, records: int, keys: int = 3) -> PartitionLog:
    for number in range(records):
        logs.append(topic, b"value %d" % number, key=b"key %d" % (number % keys))
    return logs.partition(topic, 0)


def topic(logs: LogDir, name: str = "orders", records: int = 40, **settings: Any) -> PartitionLog:
    overrides = {key.replace("_", "."): value for key, value in settings.items()}
    logs.create_topic(name, 1, config={**COMPACTED, **overrides})
    return fill(logs, name, records)


def checkpoint(root: Path) -> dict[TopicPartition, int]:
    path = root / RootFile.CLEANER_OFFSETS.value
    return decode_offsets(path.read_bytes()) if path.exists() else {}


def values(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in log.read()}


def test_a_round_cleans_and_is_checkpointed(tmp_path: Path, cleaner: Cleaner) -> None:
    with open_logs(tmp_path) as logs:
        log = topic(logs)
        before, active = values(log), log.segments.bases[-1]
        report = logs.cleaning.clean_dirtiest(cleaner)
        assert report is not None
        assert report.topic_partition == ORDERS
        assert report.result is not None
        assert report.result.end_offset == active
        assert checkpoint(tmp_path) == {ORDERS: active}
        assert values(log) == before
        assert len(list(log.read(0, active))) == 3
        assert logs.cleaning.clean_dirtiest(cleaner) is None
        (state,) = logs.cleaning.states()
        assert (state.status, state.passes, state.error) == (CleaningStatus.IDLE, 1, None)
        assert state.last_pass_ms is not None
    with open_logs(tmp_path) as logs:
        assert logs.cleaning.plan(logs.partition("orders", 0)).first_dirty_offset == active


def test_the_dirtiest_log_comes_first(tmp_path: Path, cleaner: Cleaner) -> None:
    with open_logs(tmp_path) as logs:
        topic(logs, "half")
        assert logs.cleaning.clean_dirtiest(cleaner) is not None
        fill(logs, "half", 60)
        topic(logs, "whole")
        reports = [logs.cleaning.clean_dirtiest(cleaner) for _ in range(3)]
        assert [report and report.topic_partition.topic for report in reports] == [
            "whole",
            "half",
            None,
        ]


def test_other_policies_are_none_of_its_business(tmp_path: Path, cleaner: Cleaner) -> None:
    with open_logs(tmp_path) as logs:
        topic(logs, cleanup_policy="delete")
        assert logs.cleaning.clean_dirtiest(cleaner) is None
        assert logs.cleaning.states() == []
        logs.alter_config("orders", {"cleanup.policy": "compact"})
        assert logs.cleaning.clean_dirtiest(cleaner) is not None


def test_one_partition_on_demand(tmp_path: Path, cleaner: Cleaner) -> None:
    with open_logs(tmp_path) as logs:
        topic(logs, min_cleanable_dirty_ratio=1)
        assert logs.cleaning.clean(ORDERS, cleaner) is None
        done: list[int] = []
        report = logs.cleaning.clean(ORDERS, cleaner, is_forced=True, on_progress=done.append)
        assert report is not None
        assert report.error is None
        assert sum(done) == 2 * report.plan.total_bytes  # to map the keys, to rewrite
        assert logs.cleaning.clean(ORDERS, cleaner, is_forced=True) is None


@pytest.mark.parametrize("offset", [9999, 2])
def test_checkpoint_outside_the_log_is_written_anew(
    tmp_path: Path, cleaner: Cleaner, offset: int
) -> None:
    with open_logs(tmp_path) as logs:
        log = topic(logs, min_cleanable_dirty_ratio=1)
        log.delete_records(5)
        path = tmp_path / RootFile.CLEANER_OFFSETS.value
        path.write_bytes(encode_offsets({ORDERS: offset, TopicPartition("gone", 0): 7}))
        assert logs.cleaning.clean_dirtiest(cleaner) is None
        assert checkpoint(tmp_path) == {ORDERS: 5}


def test_truncation_makes_dirty_again(tmp_path: Path, cleaner: Cleaner) -> None:
    """Else a tombstone in what is appended next would go before the value that it deletes."""
    clock = Clock()
    with open_logs(tmp_path, clock=clock) as logs:
        log = topic(logs, delete_retention_ms=1000)
        logs.cleaning.clean_dirtiest(cleaner)
        cleaned = checkpoint(tmp_path)[ORDERS]
        log.truncate_to(cleaned + 1)
        assert checkpoint(tmp_path) == {ORDERS: cleaned}
        log.truncate_to(cleaned - 1)
        assert checkpoint(tmp_path)[ORDERS] < cleaned - 1
        for _ in range(3):
            fill(logs, "orders", 3)
            logs.append("orders", None, key=b"key 0")
            log.roll()
            logs.cleaning.clean(ORDERS, cleaner, is_forced=True)
            clock.advance(2000)
        alive = {key for key, value in values(log).items() if value is not None}
        assert alive == {b"key 1", b"key 2"}
        log.truncate_fully_and_start_at(3)
        assert checkpoint(tmp_path)[ORDERS] <= 3


def damage(log: PartitionLog) -> None:
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)


def test_a_failure_is_kept_and_stops_nobody_else(
    tmp_path: Path, cleaner: Cleaner, caplog: pytest.LogCaptureFixture
) -> None:
    with open_logs(tmp_path) as logs:
        broken = topic(logs, "broken")
        damage(broken)
        topic(logs, "sound", min_cleanable_dirty_ratio="0.2")
        first, second, third = (logs.cleaning.clean_dirtiest(cleaner) for _ in range(3))
        assert first is not None
        assert isinstance(first.error, CorruptBatchError)
        assert second is not None
        assert second.error is None
        assert third is None
        states = {state.topic_partition.topic: state for state in logs.cleaning.states()}
        assert states["broken"].status is CleaningStatus.FAILED
        assert states["broken"].error is first.error
        assert states["sound"].status is CleaningStatus.IDLE
        assert logs.cleaning.clean(TopicPartition("broken", 0), cleaner, is_forced=True) is None
        assert "not cleaned again" in caplog.text
        assert not list(broken.path.glob("*.cleaned"))
    with open_logs(tmp_path) as logs:
        again = logs.cleaning.clean_dirtiest(cleaner)
        assert again is not None
        assert again.error is not None


def test_a_topic_made_again_starts_afresh(tmp_path: Path, cleaner: Cleaner) -> None:
    with open_logs(tmp_path) as logs:
        damage(topic(logs))
        logs.cleaning.clean_dirtiest(cleaner)
        logs.delete_topic("orders")
        assert logs.cleaning.clean_dirtiest(cleaner) is None
        assert logs.cleaning.states() == []
        topic(logs)
        report = logs.cleaning.clean_dirtiest(cleaner)
        assert report is not None
        assert report.error is None


class SlowCleaner(Cleaner):
    """Holds its first round until it is let go."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def clean(
        self, log: PartitionLog, plan: CleaningPlan, control: PassControl = UNCONTROLLED
    ) -> CleaningResult:
        def on_progress(_bytes: int) -> None:
            self.has_begun.set()
            self.may_end.wait(30)

        return super().clean(log, plan, control._replace(on_progress=on_progress))


def in_background(logs: LogDir, slow: SlowCleaner) -> tuple[threading.Thread, list[Any]]:
    reports: list[Any] = []
    thread = threading.Thread(target=lambda: reports.append(logs.cleaning.clean_dirtiest(slow)))
    thread.start()
    assert slow.has_begun.wait(30)
    return thread, reports


def test_two_threads_never_share_a_partition(tmp_path: Path, cleaner: Cleaner) -> None:
    with open_logs(tmp_path) as logs:
        topic(logs)
        slow = SlowCleaner()
        thread, reports = in_background(logs, slow)
        assert logs.cleaning.states()[0].status is CleaningStatus.BUSY
        assert logs.cleaning.clean_dirtiest(cleaner) is None
        assert logs.cleaning.clean(ORDERS, cleaner, is_forced=True) is None
        topic(logs, "others")
        report = logs.cleaning.clean_dirtiest(cleaner)
        assert report is not None
        assert report.topic_partition.topic == "others"
        slow.may_end.set()
        thread.join()
        assert reports[0].error is None


def test_pause_stops_a_round_and_holds_off_others(tmp_path: Path, cleaner: Cleaner) -> None:
    with open_logs(tmp_path) as logs:
        log = topic(logs)
        before = list(log.read())
        slow = SlowCleaner()
        thread, reports = in_background(logs, slow)
        threading.Timer(0.05, slow.may_end.set).start()
        with logs.cleaning.paused([ORDERS, TopicPartition("unknown", 0)]):
            thread.join()
            assert reports == [None]
            assert logs.cleaning.clean_dirtiest(cleaner) is None
            assert logs.cleaning.states()[0].status is CleaningStatus.PAUSED
            assert list(log.read()) == before
        assert checkpoint(tmp_path) == {}
        assert logs.cleaning.clean_dirtiest(cleaner) is not None


def test_a_log_that_is_cut_while_it_is_cleaned(tmp_path: Path, cleaner: Cleaner) -> None:
    with open_logs(tmp_path) as logs:
        log = topic(logs)
        slow = SlowCleaner()
        thread, reports = in_background(logs, slow)
        log.truncate_to(5)
        slow.may_end.set()
        thread.join()
        assert reports == [None]
        assert checkpoint(tmp_path) == {}
        assert logs.cleaning.states()[0].error is None
        fill(logs, "orders", 40)
        assert logs.cleaning.clean_dirtiest(cleaner) is not None


def test_an_interrupted_round_is_done_again(tmp_path: Path, cleaner: Cleaner) -> None:
    with open_logs(tmp_path) as logs:
        topic(logs)
        slow = SlowCleaner()
        thread, reports = in_background(logs, slow)
        threading.Timer(0.05, slow.may_end.set).start()
        logs.cleaning.interrupt()
        thread.join()
        assert reports == [None]
        assert logs.cleaning.clean_dirtiest(cleaner) is not None


def test_a_topic_can_be_deleted_while_it_is_cleaned(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        topic(logs)
        slow = SlowCleaner()
        thread, reports = in_background(logs, slow)
        threading.Timer(0.05, slow.may_end.set).start()
        logs.delete_topic("orders")
        thread.join()
        assert reports == [None]
        assert "orders" not in logs.topics
    assert checkpoint(tmp_path) == {}


def test_closing_ends_a_round(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    log = topic(logs)
    before = list(log.read())
    slow = SlowCleaner()
    thread, reports = in_background(logs, slow)
    threading.Timer(0.05, slow.may_end.set).start()
    logs.close()
    thread.join()
    assert reports == [None]
    with open_logs(tmp_path) as logs:
        assert list(logs.partition("orders", 0).read()) == before


def test_retention_of_compacted_logs(tmp_path: Path, cleaner: Cleaner) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock) as logs:
        both = topic(logs, "both", cleanup_policy="compact,delete", retention_ms=1000)
        only = topic(logs, "only", retention_ms=1000)
        other = topic(logs, "other", cleanup_policy="delete", retention_ms=1000)
        only.delete_records(only.segments.bases[2])
        clock.advance(2000)
        assert logs.cleaning.delete_old() == 2
        assert both.log_start_offset == both.log_end_offset
        assert len(only.segments) > 1
        assert only.segments.bases[0] == only.log_start_offset > 0
        assert other.log_start_offset == 0

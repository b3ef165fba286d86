"""The batches of each golden log, appended once more: the same files come out, byte for byte.

Not compared: logs that Kafka's cleaner has rewritten (their batches were never appended like that),
except that a follower must be able to take them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import AppendError
from stratalog.format.batch import TimestampType
from stratalog.format.control import ControlType
from stratalog.log.offset_assignment import AppendOrigin
from stratalog.log_dir import LogDir
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk
from tests.golden.cases import GoldenCase, all_cases
from tests.golden.writing import (
    SteppingClock,
    Stored,
    config_of,
    differences,
    first_base,
    is_cleaned,
    new_format_cases,
    partition_of,
    stored_batches,
)
from tests.looping import for_each
from tests.opening import kill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog

RESTARTS = {"epochs": {20: "clean", 40: "clean", 60: "killed"}}
"""Where the broker was stopped and started. The bytes since the last index entry count from zero
again, what is before them is indexed again after a kill, and of the snapshots that stops have left
only the newest survives a start."""

LAST_EPOCHS = {"deleterecords": 6}
"""Epochs of a leader that wrote nothing: the broker was started again before it was copied."""

OLD_WITH_ONE_BATCH_AN_APPEND = ("v0-gzip", "v0-lz4", "v0-snappy", "v1-gzip", "v1-lz4")
OLD_WITH_SEVERAL = ("v0-none", "v1-none", "v1-logappend")
"""Their appends held several messages. The Kafka that wrote them made one index entry at most per
append; later ones, and this log, one per message."""


class Rewrite:
    """A log that is written after a golden one."""

    def __init__(self, case: GoldenCase, directory: Path) -> None:
        self.case = case
        self.kafka = partition_of(case)
        self.path = directory / self.kafka.name
        self.clock = SteppingClock()
        self.log = self._open(LoadPoint(log_start_offset=first_base(self.kafka)))

    def _open(self, point: LoadPoint) -> PartitionLog:
        config = config_of(self.case)
        return open_log(self.path, config, disk=Disk(), now_ms=self.clock, point=point)

    def run(self, append: Callable[[Rewrite, Stored], None]) -> dict[str, str]:
        """Append everything, then tell the differences."""
        for batch in stored_batches(self.kafka):
            self._restart(RESTARTS.get(self.case.name, {}).get(batch.first_offset))
            append(self, batch)
        start = self.case.manifest.get("delete_records_to")
        if start is not None:
            self.log.delete_records(start)
        last_epoch = LAST_EPOCHS.get(self.case.name)
        if last_epoch is not None:
            self.log.become_leader(last_epoch)
        self.log.close()
        return differences(self.path, self.kafka)

    def _restart(self, stop: str | None) -> None:
        if stop == "clean":
            self.log.close()
        if stop is not None:
            self.log = self._open(LoadPoint(was_clean=stop == "clean"))


def as_leader(to: Rewrite, batch: Stored) -> None:
    log, header, marker = to.log, batch.header, batch.marker
    if header.partition_leader_epoch != log.leader_epoch:
        log.become_leader(header.partition_leader_epoch)
    if header.is_control or header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        to.clock.now_ms = header.max_timestamp
    if marker is not None:
        info = log.end_transaction(
            header.producer_id,
            header.producer_epoch,
            commit=marker.type is ControlType.COMMIT,
            coordinator_epoch=marker.coordinator_epoch,
        )
    else:
        info = log.append(batch.sent())
    assert (info.first_offset, info.last_offset) == (header.base_offset, header.last_offset)


def as_follower(to: Rewrite, batch: Stored) -> None:
    to.log.append_as_follower(batch.raw)
    assert to.log.log_end_offset == batch.next_offset


@pytest.mark.slow
@for_each("case", new_format_cases())
def test_a_leader_writes_the_same_files(case: GoldenCase, tmp_path: Path) -> None:
    """A broker notes its first epoch when it becomes the leader, before anything is written: even
    of the log that stayed empty."""
    rewrite = Rewrite(case, tmp_path)
    rewrite.log.become_leader(0)
    assert rewrite.run(as_leader) == {}


@pytest.mark.slow
@for_each("case", new_format_cases())
def test_a_follower_writes_the_same_files(case: GoldenCase, tmp_path: Path) -> None:
    """A follower learns epochs from batches, so of an empty log it knows none."""
    expected = {}
    if case.name == "empty":
        expected = {"leader-epoch-checkpoint": "0 bytes, Kafka's 8"}
    assert Rewrite(case, tmp_path).run(as_follower) == expected


@pytest.mark.parametrize("name", OLD_WITH_ONE_BATCH_AN_APPEND)
def test_a_follower_writes_old_formats(name: str, tmp_path: Path) -> None:
    """Leaders convert them to the new one; that is tested with the validation."""
    assert Rewrite(GoldenCase(name), tmp_path).run(as_follower) == {}


@pytest.mark.parametrize("name", OLD_WITH_SEVERAL)
def test_appends_of_several_messages(name: str, tmp_path: Path) -> None:
    """Grouped as the compressed cases are, which hold the same records."""
    ends = {batch.next_offset for batch in stored_batches(partition_of(GoldenCase("v1-gzip")))}
    rewrite = Rewrite(GoldenCase(name), tmp_path)
    group = b""
    for batch in stored_batches(rewrite.kafka):
        group += batch.raw
        if batch.next_offset in ends:
            rewrite.log.append_as_follower(group)
            group = b""
    assert not group
    rewrite.log.close()
    found = differences(rewrite.path, rewrite.kafka)
    assert {name for name in found if not name.endswith((".index", ".timeindex"))} == set()


@for_each("case", [case for case in all_cases() if is_cleaned(case)])
def test_a_follower_takes_what_the_cleaner_left(case: GoldenCase, tmp_path: Path) -> None:
    """Segments begin elsewhere, for the cleaner joins them by other rules; so what is compared is
    the content."""
    rewrite = Rewrite(case, tmp_path)
    batches = stored_batches(rewrite.kafka)
    rewrite.run(as_follower)
    assert stored_batches(rewrite.path) == batches


@pytest.mark.slow
@for_each("case", new_format_cases())
def test_several_at_once_give_the_same_files(case: GoldenCase, tmp_path: Path) -> None:
    """`append_many` writes requests together where it can, and nothing may tell."""
    if case.name in {*RESTARTS, "logappend-none"}:
        pytest.skip("needs a restart in between, or the time of each append")
    rewrite = Rewrite(case, tmp_path)
    rewrite.log.become_leader(0)
    waiting: list[Stored] = []

    def send(to: Rewrite) -> None:
        infos = to.log.append_many([batch.sent() for batch in waiting])
        assert not any(isinstance(info, AppendError) for info in infos)
        assert to.log.log_end_offset == waiting[-1].next_offset
        waiting.clear()

    def append(to: Rewrite, batch: Stored) -> None:
        if batch.marker is None:
            waiting.append(batch)
        if len(waiting) == 5 or (waiting and (batch.marker or batch.next_offset == end)):
            send(to)
        if batch.marker is not None:
            as_leader(to, batch)

    end = case.loaddir["logEndOffset"]
    assert rewrite.run(append) == {}


def test_control_batches_of_a_coordinator_are_appended_as_they_are(tmp_path: Path) -> None:
    """`end_transaction` builds the marker; a coordinator elsewhere may send one ready."""
    rewrite = Rewrite(GoldenCase("txn"), tmp_path)
    rewrite.log.become_leader(0)

    def append(to: Rewrite, batch: Stored) -> None:
        if batch.marker is None:
            as_leader(to, batch)
        else:
            to.clock.now_ms = batch.header.max_timestamp
            to.log.append(batch.sent(), origin=AppendOrigin.COORDINATOR)

    assert rewrite.run(append) == {}


class RewriteInLogDir(Rewrite):
    """The same by the LogDir that creates the topic: its first segment has the topic's settings,
    too."""

    def __init__(self, case: GoldenCase, directory: Path) -> None:
        self.case = case
        self.kafka = partition_of(case)
        self.path = directory / self.kafka.name
        self.clock = SteppingClock()
        self.topic = self.kafka.name.rpartition("-")[0]
        self.logs = self._open_dir()
        self.logs.create_topic(self.topic, 1, config=case.manifest["topic_config"])
        self.log = self.logs.partition(self.topic, 0)

    def _open_dir(self) -> LogDir:
        return LogDir.open(self.path.parent, background=False, now_ms=self.clock)

    def run(self, append: Callable[[Rewrite, Stored], None]) -> dict[str, str]:
        """As in the base class, but the log is the LogDir's to close."""
        super().run(append)
        self.logs.close()
        return differences(self.path, self.kafka)

    def _restart(self, stop: str | None) -> None:
        if stop == "clean":
            self.logs.close()
        elif stop == "killed":
            kill(self.logs)
        if stop is not None:
            self.logs = self._open_dir()
            self.log = self.logs.partition(self.topic, 0)


@pytest.mark.slow
@for_each("case", [case for case in new_format_cases() if not first_base(partition_of(case))])
def test_the_log_dir_that_creates_a_topic_writes_the_same_files(
    case: GoldenCase, tmp_path: Path
) -> None:
    assert RewriteInLogDir(case, tmp_path).run(as_leader) == {}


def test_the_files_of_a_new_topic_are_preallocated_by_its_settings(tmp_path: Path) -> None:
    """Before the first batch: a broker that finds them after a kill opens them at this size."""
    settings = {"segment.index.bytes": 1000, "segment.bytes": 5000, "preallocate": True}
    logs = LogDir.open(tmp_path, background=False)
    logs.create_topic("orders", 2, config=settings)
    kill(logs)
    for number in range(2):
        sizes = {p.suffix: p.stat().st_size for p in (tmp_path / f"orders-{number}").glob("0*")}
        assert sizes == {".log": 5000, ".index": 1000, ".timeindex": 996}

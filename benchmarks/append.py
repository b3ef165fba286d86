"""Appending ready batches as a leader: everything checked, offsets given, written; beside the bare
writing of the same bytes.

Each batch is a request of its own, as producers send them. Requests are validated and written one
by one, or in groups as a broker finds them waiting: each has its own result, the group one write.
`leader` is validation and a bare write; `PartitionLog` is all of it, with indexes, roll decision,
producers, epochs and publishing. Files grow from round to round, in the page
cache, and nothing is flushed; the clock is CPU time.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.logs import TIMESTAMP_MS, build_log
from benchmarks.report import Work
from stratalog.config import LogConfig
from stratalog.errors import AppendError
from stratalog.format.batch import BatchHeader, Codec, next_entry
from stratalog.log.offset_assignment import AppendRules, Assignment
from stratalog.log.validation import LeaderValidator, validate_follower
from stratalog.maintenance.recovery import open_log
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.report import Report, Timing
    from stratalog.log.partition_log import PartitionLog

GROUP = 16
BARE = "os.write alone"
PARTITION_SINGLE = "PartitionLog, one by one"
PARTITION_GROUPS = f"PartitionLog, groups of {GROUP}"
ASSIGN = Assignment(next_offset=0, leader_epoch=0, now_ms=TIMESTAMP_MS + 600_000)
FOLLOWER_BYTES = 1 << 20  # a fetch

# (values in bytes, codec of the batches, codec of the topic)
CASES = (
    (100, "none", None),
    (1024, "none", None),
    (100, "lz4", None),
    (100, "snappy", None),
    (100, "zstd", None),
    (100, "none", Codec.LZ4),
)
GROUPS_OF_BARE_MIN = 0.6
SINGLE_OF_BARE_MIN = 0.55
LZ4_MIN = 250  # MB/s of compressed bytes


def run(report: Report) -> None:
    size = (4 if report.is_quick else 16) << 20
    for value_bytes, codec, target in CASES:
        with tempfile.TemporaryFile(buffering=0) as file, tempfile.TemporaryDirectory() as home:
            log = build_log(bytes_min=size, value_bytes=value_bytes, codec=codec)
            name = f"append, {value_bytes} B values, {codec}"
            name += f" to {target.name.lower()}" if target is not None else ""
            sides = _sides(file.fileno(), log.data, log.records, AppendRules(codec=target))
            with _open(Path(home) / "bench-0", target) as partition:
                sides |= _partition_sides(partition, log.data, log.records)
                found = report.race(name, sides, time.process_time)
            if target is None:
                _require(report, name, codec, found)


def _require(report: Report, name: str, codec: str, found: dict[str, Timing]) -> None:
    bare, single, groups = found[BARE], found[PARTITION_SINGLE], found[PARTITION_GROUPS]
    if codec == "none":
        share = bare.seconds / groups.seconds
        report.require(f"{name}: of bare writing", share, at_least=GROUPS_OF_BARE_MIN)
        share = bare.seconds / single.seconds
        report.require(f"{name}, one by one: of bare", share, at_least=SINGLE_OF_BARE_MIN)
    if codec == "lz4":
        for who, timing in (("one by one", single), (f"groups of {GROUP}", groups)):
            rate = timing.megabytes_per_second
            report.require(f"{name}, {who}", rate, at_least=LZ4_MIN, unit=" MB/s")


def _open(path: Path, codec: Codec | None) -> PartitionLog:
    compression = {"compression.type": codec.name.lower()} if codec is not None else {}
    config = LogConfig.parse(compression)
    return open_log(path, config, disk=Disk(), now_ms=lambda: ASSIGN.now_ms)


def _partition_sides(partition: PartitionLog, data: bytes, records: int) -> dict[str, Work]:
    requests = _requests(data)
    works = {
        PARTITION_SINGLE: partial(_append_to, partition, requests, 1),
        PARTITION_GROUPS: partial(_append_to, partition, requests, GROUP),
    }
    return {who: Work(work, records, records, len(data)) for who, work in works.items()}


def _append_to(partition: PartitionLog, requests: list[bytes], group: int) -> int:
    before = partition.log_end_offset
    if group == 1:
        for data in requests:
            partition.append(data)
    else:
        for first in range(0, len(requests), group):
            results = partition.append_many(requests[first : first + group])
            assert not any(isinstance(result, AppendError) for result in results)
    return partition.log_end_offset - before


def _sides(file: int, data: bytes, records: int, rules: AppendRules) -> dict[str, Work]:
    requests = _requests(data)
    leader = LeaderValidator(compiled=True)
    works: dict[str, Callable[[], int]] = {
        BARE: partial(_write, file, requests, records),
        "leader, one by one": partial(_append, file, requests, rules, leader),
        f"leader, groups of {GROUP}": partial(_append_groups, file, requests, rules, leader),
    }
    if rules.codec is None:
        works["follower"] = partial(_follow, file, data)
    return {who: Work(work, records, records, len(data)) for who, work in works.items()}


def _requests(data: bytes) -> list[bytes]:
    """The batches of a log as they were sent, with offsets from 0."""
    found = []
    at = 0
    while (entry := next_entry(data, at)) is not None:
        header = BatchHeader.unpack(data, at)._replace(base_offset=0)
        found.append(header.pack() + data[at + 61 : entry.end])
        at = entry.end
    return found


def _write(file: int, requests: list[bytes], records: int) -> int:
    for data in requests:
        os.write(file, data)
    return records


def _append(file: int, requests: list[bytes], rules: AppendRules, leader: LeaderValidator) -> int:
    next_offset, (_, epoch, now_ms, origin) = 0, ASSIGN
    for data in requests:
        append = leader.validate(data, rules, Assignment(next_offset, epoch, now_ms, origin))
        os.write(file, append.data)
        next_offset = append.last_offset + 1
    return next_offset


def _append_groups(
    file: int, requests: list[bytes], rules: AppendRules, leader: LeaderValidator
) -> int:
    assign = ASSIGN
    for first in range(0, len(requests), GROUP):
        group = leader.validate_group(requests[first : first + GROUP], rules, assign)
        assert not any(isinstance(place, AppendError) for place in group.offsets)
        os.write(file, group.data)
        assign = assign._replace(next_offset=group.next_offset)
    return assign.next_offset


def _follow(file: int, data: bytes) -> int:
    """Chunks as a fetch brings them, the last batch cut."""
    view = memoryview(data)
    at = next_offset = 0
    while at < len(data):
        append = validate_follower(view[at : at + FOLLOWER_BYTES], log_end_offset=next_offset)
        os.write(file, append.data)
        next_offset = append.next_offset
        at += len(append.data)
    return next_offset

"""What topics hold: keys and dead records, sizes, times, and what another config would save.

One pass over the records, in columns. Notes about keys are merged by shares of hashes, everything
else by sums. What retention would delete comes from the plan that retention itself makes; what
another codec would save, from a sample of the records.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stratalog.config import LogConfig
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.retention import plan_retention, retention_log_of_view
from stratalog.spark.jobs.key_counts import (
    RECORD_OVERHEAD_BYTES,
    KeyCounts,
    counts_of,
    merge_notes,
    note_records,
    shares_of,
)
from stratalog.spark.jobs.record_sums import Facts, sum_of
from stratalog.spark.jobs.running import Clock, JobResult, SparkWorkers, pack
from stratalog.spark.options import ReadOptions
from stratalog.spark.planning import plan_read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from stratalog.format.names import TopicPartition
    from stratalog.spark.jobs.running import OnProgress, Workers
    from stratalog.spark.splits import Split

_NO_LIMITS: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
RECORDS_A_SHARE: Final = 4_000_000
SCHEMA = (
    "topic string, partition int, records long, null_keys long, tombstones long, keys long, "
    "live_keys long, dead_records long, size_bytes long, payload_bytes long, "
    "first_timestamp long, last_timestamp long, compaction_saves_bytes long"
)


@dataclass(frozen=True)
class PartitionStats:
    """One partition."""

    topic: str
    partition: int
    size_bytes: int
    """Of its `.log` files."""
    facts: Facts = field(default_factory=Facts)
    keys: KeyCounts = field(default_factory=KeyCounts)
    freed_by: Mapping[str, int] = field(default_factory=dict)
    """Bytes that retention would delete at once under another config."""

    @property
    def dead_ratio(self) -> float:
        """Share of records that a later one of the same key has superseded."""
        return self.keys.dead_records / self.facts.records if self.facts.records else 0.0

    @property
    def compaction_saves_bytes(self) -> int:
        """About what compacting everything would take off the log, tombstones still kept."""
        facts, keys = self.facts, self.keys
        weight = facts.payload_bytes + RECORD_OVERHEAD_BYTES * facts.records
        dead = keys.dead_bytes + RECORD_OVERHEAD_BYTES * keys.dead_records
        return round(self.size_bytes * dead / weight) if weight else 0

    def size_with(self, codec: str) -> int:
        """About what the log would take under another `compression.type`."""
        ratio = dict(self.facts.codecs).get(codec, 1.0)
        weight = self.facts.payload_bytes + RECORD_OVERHEAD_BYTES * self.facts.records
        return round(weight * ratio)


@dataclass(frozen=True)
class StatsResult(JobResult):
    """All partitions, in order."""

    partitions: tuple[PartitionStats, ...] = ()

    def to_df(self, spark: SparkSession) -> DataFrame:
        """A row for each partition."""
        return spark.createDataFrame([row_of(each) for each in self.partitions], SCHEMA)


def row_of(stats: PartitionStats) -> tuple[Any, ...]:
    facts, keys = stats.facts, stats.keys
    return (
        stats.topic,
        stats.partition,
        facts.records,
        facts.null_keys,
        facts.tombstones,
        keys.keys,
        keys.live_keys,
        keys.dead_records,
        stats.size_bytes,
        facts.payload_bytes,
        facts.first_timestamp,
        facts.last_timestamp,
        stats.compaction_saves_bytes,
    )


def stats(
    spark: SparkSession,
    partitions: Iterable[Path | str],
    *,
    what_if: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> StatsResult:
    """Look at every record of these partition directories.

    `what_if` are topic settings (`retention.ms`, `retention.bytes`): how much would each free?
    """
    paths = [Path(path) for path in partitions]
    return run_stats(SparkWorkers(spark, on_progress), paths, what_if=what_if)


def run_stats(
    workers: Workers,
    partitions: Iterable[Path],
    *,
    what_if: Mapping[str, str] | None = None,
    policies: Mapping[Path, str] | None = None,
) -> StatsResult:
    """The same on any workers. `policies` has the `cleanup.policy` of partitions where it is known,
    by their absolute paths; for the others, `what_if` assumes `delete`."""
    clock = Clock()
    known = policies or {}
    logs = []
    for path in partitions:
        policy = known.get(path.absolute(), "delete")
        logs.append(_Log.look(path.absolute(), what_if or {}, policy))
    splits = _splits(logs)
    records_max = sum(piece.offsets for split in splits for piece in split.pieces)
    shares = max(1, min(256, records_max // RECORDS_A_SHARE))
    groups = pack(splits, lambda split: split.size_bytes, slots=workers.slots, group_bytes=1)
    merged = workers.run_by_key(
        partial(_look, shares=shares),
        groups,
        _merge,
        title=f"stratalog stats: {len(splits)} splits",
    )
    facts = {place: found for (place, _), found in merged if isinstance(found, Facts)}
    keys: dict[TopicPartition, KeyCounts] = {}
    for (place, _), found in merged:
        if isinstance(found, KeyCounts):
            keys[place] = keys.get(place, KeyCounts()).plus(found)
    found_all = tuple(
        PartitionStats(
            *log.place,
            log.size_bytes,
            facts.get(log.place, Facts()),
            keys.get(log.place, KeyCounts()),
            dict(log.freed_by),
        )
        for log in sorted(logs)
    )
    records = sum(each.facts.records for each in found_all)
    size_bytes = sum(log.size_bytes for log in logs)
    return StatsResult("stats", records, size_bytes, clock.seconds, len(groups), found_all)


class _Log(NamedTuple):
    """A partition before its records are read."""

    place: TopicPartition
    path: Path
    size_bytes: int
    freed_by: tuple[tuple[str, int], ...]

    @classmethod
    def look(cls, path: Path, what_if: Mapping[str, str], policy: str) -> _Log:
        now_ms = time.time_ns() // 1_000_000
        freed = []
        with PartitionView(path) as view:
            for name, value in what_if.items():
                config = LogConfig.parse({**_NO_LIMITS, "cleanup.policy": policy, name: value})
                plan = plan_retention(retention_log_of_view(view, now_ms), config, now_ms)
                freed.append((f"{name}={value}", plan.deleted_bytes))
            return cls(view.topic_partition, path, view.size_bytes, tuple(freed))


def _splits(logs: list[_Log]) -> list[Split]:
    """Of all partitions; directories of one name in different places are planned apart."""
    splits: list[Split] = []
    for root in sorted({log.path.parent for log in logs}):
        wanted: dict[str, list[int]] = {}
        for log in logs:
            if log.path.parent == root:
                wanted.setdefault(log.place.topic, []).append(log.place.partition)
        options = {"path": json.dumps([str(root)]), "assign": json.dumps(wanted)}
        splits += plan_read(ReadOptions.parse(options)).splits
    return splits


_Key = tuple["TopicPartition", int]
_FACTS: Final = -1


def _look(split: Split, *, shares: int) -> Iterator[tuple[_Key, Any]]:
    """Runs in a worker: what a split's pieces tell, by partition and share of keys."""
    from stratalog.spark.jobs.record_facts import look_at_piece  # noqa: PLC0415 - loads kernels

    for piece in split.pieces:
        facts, columns = look_at_piece(split, piece)
        place = piece.topic_partition
        yield (place, _FACTS), facts
        notes = note_records(*columns)
        for share, part in shares_of(notes, shares):
            yield (place, share), part


def _merge(key: _Key, found: list[Any]) -> tuple[_Key, Facts | KeyCounts]:
    """Runs in a worker."""
    if key[1] == _FACTS:
        return key, sum_of(found)
    return key, counts_of(merge_notes(np.concatenate(found)))

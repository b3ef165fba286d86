"""Statistics of topics: keys, superseded records, sizes, times, and what other settings would save.

One pass over the records, in columns. A task collects, for each key it meets, how often it occurs,
how large its records are and which is the last one (`KEY_ROW`); the rows of one key are merged
where all rows of its share of hashes are. Everything else is added up. Keys are compared by 64-bit
hashes, so among a hundred million keys one or two may be counted as another.

What retention would delete comes from the plan that retention itself makes; what another codec
would save, from a sample of the records.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.bulk.options import ReadOptions, Subscription
from stratalog.bulk.read_planning import plan_read
from stratalog.bulk.read_task import ReadTask
from stratalog.bulk.splits import Split
from stratalog.bulk.workers import Clock, JobResult, KeyedJob, ThreadWorkers, pack
from stratalog.config import LogConfig
from stratalog.config.values import HOUR_MS
from stratalog.format.hashing import hash_keys
from stratalog.format.times import current_time_ms
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.retention import plan_retention, retention_log_of_view
from stratalog.storage.remote_path import location
from stratalog.tuning.headers import by_power

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from stratalog.bulk.splits import SegmentRange
    from stratalog.bulk.workers import Workers
    from stratalog.format.names import TopicPartition


class RecordFacts(NamedTuple):
    """Sums over records."""

    records: int = 0
    null_keys: int = 0
    tombstones: int = 0
    payload_bytes: int = 0
    """Bytes of keys and values."""
    first_timestamp: int = -1
    last_timestamp: int = -1
    sizes: tuple[tuple[int, int], ...] = ()
    """(bytes, records): how many have keys and values of up to this many bytes; powers of two."""
    hours: tuple[tuple[int, int, int], ...] = ()
    """(start in ms, records, bytes) of every hour that has any."""
    codecs: tuple[tuple[str, float], ...] = ()
    """Compression ratio by codec: compressed bytes per byte of keys and values."""


def _sum_of(found: Iterable[RecordFacts]) -> RecordFacts:
    """The sum of facts about several runs of records."""
    each = [facts for facts in found if facts.records]
    if not each:
        return RecordFacts()
    sizes: Counter[int] = Counter()
    hour_records: Counter[int] = Counter()
    hour_bytes: Counter[int] = Counter()
    for facts in each:
        sizes.update(dict(facts.sizes))
        hour_records.update({start: records for start, records, _ in facts.hours})
        hour_bytes.update({start: size for start, _, size in facts.hours})
    timed = [facts for facts in each if facts.first_timestamp >= 0]
    largest = max(each, key=lambda facts: (bool(facts.codecs), facts.payload_bytes))
    return RecordFacts(
        sum(facts.records for facts in each),
        sum(facts.null_keys for facts in each),
        sum(facts.tombstones for facts in each),
        sum(facts.payload_bytes for facts in each),
        min((facts.first_timestamp for facts in timed), default=-1),
        max((facts.last_timestamp for facts in timed), default=-1),
        tuple(sorted(sizes.items())),
        tuple((start, hour_records[start], hour_bytes[start]) for start in sorted(hour_records)),
        largest.codecs,
    )


# -- keys

RECORD_OVERHEAD_BYTES: Final = 8
"""Lengths, deltas and attributes of a small record: a fair guess."""

_KEY_FIELDS: Final = "hash last_offset records size_bytes last_bytes is_tombstone"
KEY_ROW: Final = np.dtype([(name, np.int64) for name in _KEY_FIELDS.split()])
"""What is known of one key. Sizes are of keys and values; the last two, of its last record."""


class KeyCounts(NamedTuple):
    """What compaction would find in a log."""

    keys: int
    """Different ones."""
    live_keys: int
    """Those whose last record is no tombstone."""
    dead_records: int
    """Records with a later one of the same key."""
    dead_bytes: int
    """Bytes of their keys and values."""
    top_records: int
    """Records of the most frequent key."""
    by_records: tuple[tuple[int, int], ...]
    """(records, keys): how many keys have up to this many records; powers of two."""

    def plus(self, other: KeyCounts) -> KeyCounts:
        """Together with different keys."""
        counts = Counter(dict(self.by_records))
        counts.update(dict(other.by_records))
        return KeyCounts(
            self.keys + other.keys,
            self.live_keys + other.live_keys,
            self.dead_records + other.dead_records,
            self.dead_bytes + other.dead_bytes,
            max(self.top_records, other.top_records),
            tuple(sorted(counts.items())),
        )


NO_KEYS: Final = KeyCounts(0, 0, 0, 0, 0, ())


def _key_rows(
    hashes: NDArray[np.int64],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    tombstones: NDArray[np.bool_],
) -> NDArray[Any]:
    """One row a key. No two records have the same offset."""
    once = np.ones(len(hashes), np.int64)
    return _merged(hashes, offsets, (once, sizes), (sizes, tombstones))


def _merge_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """One row a key, sorted by hash; the last record is that of the largest offset."""
    sums = (rows["records"], rows["size_bytes"])
    lasts = (rows["last_bytes"], rows["is_tombstone"])
    return _merged(rows["hash"], rows["last_offset"], sums, lasts)


def _merged(
    hashes: NDArray[np.int64],
    offsets: NDArray[np.int64],
    sums: tuple[NDArray[Any], NDArray[Any]],
    lasts: tuple[NDArray[Any], NDArray[Any]],
) -> NDArray[Any]:
    """Sort by hash; add up `sums` of each key, and take `lasts` from its largest offset."""
    if not len(hashes):
        return np.empty(0, KEY_ROW)
    order = np.argsort(hashes)
    hashes, offsets = hashes[order], offsets[order]
    starts = np.flatnonzero(np.concatenate(([True], hashes[1:] != hashes[:-1])))
    counts = np.diff(np.concatenate((starts, [len(hashes)])))
    last_offsets = np.maximum.reduceat(offsets, starts)
    is_last = order[offsets == np.repeat(last_offsets, counts)]
    rows = np.empty(len(starts), KEY_ROW)
    rows["hash"], rows["last_offset"] = hashes[starts], last_offsets
    for name, column in zip(("records", "size_bytes"), sums, strict=True):
        rows[name] = np.add.reduceat(column[order], starts)
    for name, column in zip(("last_bytes", "is_tombstone"), lasts, strict=True):
        rows[name] = column[is_last]
    return rows


def _shares_of(rows: NDArray[Any], shares: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Divide sorted rows by their hashes: the same key falls into the same share everywhere."""
    bounds = np.linspace(-(2.0**63), 2.0**63, shares + 1)[1:-1].astype(np.int64)
    cuts = [0, *np.searchsorted(rows["hash"], bounds).tolist(), len(rows)]
    for share in range(shares):
        part = rows[cuts[share] : cuts[share + 1]]
        if len(part):
            yield share, part


def _counts_of(rows: NDArray[Any]) -> KeyCounts:
    """From merged rows."""
    return KeyCounts(
        len(rows),
        int((rows["is_tombstone"] == 0).sum()),
        int((rows["records"] - 1).sum()),
        int((rows["size_bytes"] - rows["last_bytes"]).sum()),
        int(rows["records"].max(initial=0)),
        tuple(by_power(rows["records"]).items()),
    )


# -- the records of a segment range

CODECS: Final = ("snappy", "lz4", "zstd", "gzip")
SAMPLE_BYTES: Final = 1 << 17
HOURS_MAX: Final = 100_000
JOINED_BYTES: Final = 4 << 20
BLOCK_BYTES: Final = 16 << 10
"""A batch of the size that producers send by default."""

_READ_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


class KeyColumns(NamedTuple):
    """Keys of the records that have a key."""

    hashes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tombstones: NDArray[np.bool_]


def _count_ranges(parts: tuple[SegmentRange, ...]) -> tuple[RecordFacts, KeyColumns]:
    """Sums over the records of a partition, and the columns that keys are counted by."""
    found: list[RecordFacts] = []
    columns: list[KeyColumns] = []
    for batch in _joined(ReadTask(_READ_SCHEMA).read(Split(parts))):
        facts, keyed = _count_batch(batch, samples=not found)
        found.append(facts)
        columns.append(keyed)
    if not columns:
        nothing = np.empty(0, np.int64)
        return RecordFacts(), KeyColumns(nothing, nothing, nothing, nothing.astype(np.bool_))
    joined = KeyColumns(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    return _sum_of(found)._replace(codecs=found[0].codecs), joined


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches as larger ones: of small segments, each costs more than its records."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= JOINED_BYTES:
            yield _concatenated(held)
            held, held_bytes = [], 0
    if held:
        yield _concatenated(held)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _count_batch(batch: pa.RecordBatch, *, samples: bool) -> tuple[RecordFacts, KeyColumns]:
    key, value = batch.column("key"), batch.column("value")
    has_key = np.asarray(key.is_valid())
    tombstones = np.asarray(value.is_null())
    sizes = _lengths(key) + _lengths(value)
    times = batch.column("timestamp").view(pa.int64()).to_numpy() // 1000
    offsets = batch.column("offset").to_numpy()
    timed = times[times >= 0]
    facts = RecordFacts(
        len(sizes),
        int((~has_key).sum()),
        int((tombstones & has_key).sum()),
        int(sizes.sum()),
        int(timed.min(initial=np.iinfo(np.int64).max)) if len(timed) else -1,
        int(timed.max(initial=-1)),
        tuple(by_power(sizes).items()),
        _hour_histogram(times, sizes),
        _codec_ratios(batch) if samples else (),
    )
    keyed = KeyColumns(
        hash_keys(key)[has_key], offsets[has_key], sizes[has_key], tombstones[has_key]
    )
    return facts, keyed


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    """The length of each value in bytes; 0 for a null."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
    return np.diff(offsets).astype(np.int64)


def _hour_histogram(
    times: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[tuple[int, int, int], ...]:
    hours = times[times >= 0] // HOUR_MS
    if not len(hours):
        return ()
    sizes, first = sizes[times >= 0], int(hours.min())
    if int(hours.max()) - first > HOURS_MAX:  # times from anywhere: sort them
        found, at = np.unique(hours, return_inverse=True)
    else:
        at = hours - first
        found = np.arange(first, int(hours.max()) + 1)
    records = np.bincount(at)
    amounts = np.bincount(at, weights=sizes).astype(np.int64)
    is_there = records > 0
    columns = (found[is_there] * HOUR_MS, records[is_there], amounts[is_there])
    return tuple(zip(*(column.tolist() for column in columns), strict=True))


def sample_codecs(partition: Path) -> dict[str, float]:
    """What codecs make of a byte of keys and values, by the first records of a partition."""
    with PartitionView(partition) as view:
        assigned = (view.topic_partition,)
    options = ReadOptions((partition.absolute().parent,), Subscription(assigned=assigned))
    for split in plan_read(options).splits[:1]:
        for batch in ReadTask(_READ_SCHEMA).read(split):
            return dict(_codec_ratios(batch))
    return {}


def _codec_ratios(batch: pa.RecordBatch) -> tuple[tuple[str, float], ...]:
    """Compressed size of a sample, in blocks of the size of batches, as a share of its size."""
    sample = bytearray()
    batch = batch.slice(0, SAMPLE_BYTES // 16)
    pairs = (batch.column(name).to_pylist() for name in ("key", "value"))
    for key, value in zip(*pairs, strict=True):
        sample += (key or b"") + (value or b"")
        if len(sample) >= SAMPLE_BYTES:
            break
    blocks = [bytes(sample[at : at + BLOCK_BYTES]) for at in range(0, len(sample), BLOCK_BYTES)]
    if not blocks:
        return ()
    return tuple((codec, round(_compressed(blocks, codec) / len(sample), 4)) for codec in CODECS)


def _compressed(blocks: list[bytes], codec: str) -> int:
    compressor = pa.Codec(codec)
    return sum(min(len(block), len(compressor.compress(block))) for block in blocks)


# -- the job

_NO_LIMITS: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
RECORDS_PER_SHARE: Final = 4_000_000


@dataclass(frozen=True)
class PartitionStats:
    """One partition."""

    topic: str
    partition: int
    size_bytes: int
    """Size of its `.log` files."""
    facts: RecordFacts = field(default_factory=RecordFacts)
    keys: KeyCounts = NO_KEYS
    freed_by: Mapping[str, int] = field(default_factory=dict)
    """Bytes that retention would delete at once under another config."""

    @property
    def dead_ratio(self) -> float:
        """Share of records that a later one of the same key has superseded."""
        return self.keys.dead_records / self.facts.records if self.facts.records else 0.0

    @property
    def compaction_saves_bytes(self) -> int:
        """Estimate of the bytes that compacting the whole log would free. Tombstones are kept."""
        facts, keys = self.facts, self.keys
        weight = facts.payload_bytes + RECORD_OVERHEAD_BYTES * facts.records
        dead = keys.dead_bytes + RECORD_OVERHEAD_BYTES * keys.dead_records
        return round(self.size_bytes * dead / weight) if weight else 0

    def size_with(self, codec: str) -> int:
        """Estimate of the size of the log under another `compression.type`."""
        ratio = dict(self.facts.codecs).get(codec, 1.0)
        weight = self.facts.payload_bytes + RECORD_OVERHEAD_BYTES * self.facts.records
        return round(weight * ratio)


def measured_keys(partitions: Sequence[PartitionStats]) -> dict[str, object]:
    """The keys of a topic, by the names of fields of a `Workload`: those of the partition that has
    the most, because a cleaner's memory is for one at a time."""
    records = sum(each.facts.records for each in partitions)
    dead = sum(each.keys.dead_records for each in partitions)
    keys = max((each.keys.keys for each in partitions), default=0)
    return {"keys": keys, "superseded": dead / records if records else None}


@dataclass(frozen=True)
class StatsResult(JobResult):
    """All partitions, in order."""

    partitions: tuple[PartitionStats, ...] = ()


def stats(
    partitions: Iterable[Path | str],
    *,
    what_if: Mapping[str, str] | None = None,
    workers: Workers | None = None,
) -> StatsResult:
    """Look at every record of these partition directories.

    `what_if` has topic settings (`retention.ms`, `retention.bytes`): how much would each free?
    The `cleanup.policy` is taken to be `delete`.
    """
    clock = Clock()
    workers = workers or ThreadWorkers()
    logs = [_OpenedPartition.of(location(path).absolute(), what_if or {}) for path in partitions]
    splits = _splits(logs)
    records_max = sum(part.offsets for split in splits for part in split.ranges)
    shares = max(1, min(256, records_max // RECORDS_PER_SHARE))
    groups = pack(splits, lambda split: split.size_bytes, slots=workers.slots, group_bytes=1)
    merged = workers.run_by_key(
        KeyedJob(partial(_count_split, shares=shares), _merge),
        groups,
        title=f"stratalog stats: {len(splits)} splits",
    )
    facts = {place: found for (place, _), found in merged if isinstance(found, RecordFacts)}
    keys: dict[TopicPartition, KeyCounts] = {}
    for (place, _), found in merged:
        if isinstance(found, KeyCounts):
            keys[place] = keys.get(place, NO_KEYS).plus(found)
    found_all = tuple(
        PartitionStats(
            *log.place,
            log.size_bytes,
            facts.get(log.place, RecordFacts()),
            keys.get(log.place, NO_KEYS),
            dict(log.freed_by),
        )
        for log in sorted(logs)
    )
    records = sum(each.facts.records for each in found_all)
    size_bytes = sum(log.size_bytes for log in logs)
    return StatsResult("stats", records, size_bytes, clock.seconds, len(groups), found_all)


class _OpenedPartition(NamedTuple):
    """An opened partition whose records are not read yet."""

    place: TopicPartition
    path: Path
    size_bytes: int
    freed_by: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, path: Path, what_if: Mapping[str, str]) -> _OpenedPartition:
        now_ms = current_time_ms()
        freed = []
        with PartitionView(path) as view:
            for name, value in what_if.items():
                config = LogConfig.parse({**_NO_LIMITS, name: value})
                plan = plan_retention(retention_log_of_view(view, now_ms), config, now_ms)
                freed.append((f"{name}={value}", plan.deleted_bytes))
            return cls(view.topic_partition, path, view.size_bytes, tuple(freed))


def _splits(logs: list[_OpenedPartition]) -> list[Split]:
    """Splits of all partitions. Directories of the same name are planned apart."""
    splits: list[Split] = []
    for root in sorted({log.path.parent for log in logs}):
        assigned = sorted({log.place for log in logs if log.path.parent == root})
        options = ReadOptions((root,), Subscription(assigned=tuple(assigned)))
        splits += plan_read(options).splits
    return splits


_Key = tuple["TopicPartition", int]
_FACTS: Final = -1


def _count_split(split: Split, *, shares: int) -> Iterator[tuple[_Key, Any]]:
    """Runs in a worker: sums and key rows of a split, by partition and share of keys."""
    for place, parts in groupby(split.ranges, key=lambda part: part.topic_partition):
        facts, columns = _count_ranges(tuple(parts))
        yield (place, _FACTS), facts
        for share, rows in _shares_of(_key_rows(*columns), shares):
            yield (place, share), rows


def _merge(key: _Key, found: list[Any]) -> tuple[_Key, RecordFacts | KeyCounts]:
    """Runs in a worker."""
    if key[1] == _FACTS:
        return key, _sum_of(found)
    return key, _counts_of(_merge_rows(np.concatenate(found)))

"""Rows in Arrow columns into staged batches: topic and partition chosen, encoded, written.

The partition is the one that the row names, else that of Kafka's partitioner. No Python object is
created per row. Arrow batches are gathered until they are worth encoding, so that small ones do not
become small record batches; memory stays within a few times `GATHER_BYTES`. Whatever the log would
reject is rejected here, with Kafka's errors, so that a commit cannot fail because of a row.

Importing this module loads compiled kernels; import it where many records are written.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.bulk.target import TopicFinder
from stratalog.commits.staged import RunStager
from stratalog.errors import InvalidRecordError, InvalidTimestampError, UnknownTopicOrPartitionError
from stratalog.format.batch import NO_TIMESTAMP, Codec
from stratalog.format.column_types import numpy_column
from stratalog.format.encode_columns import BatchLimits, encode_columns
from stratalog.format.hashing import UNASSIGNED, checksum_rows, partition_keys
from stratalog.format.record import BatchFields
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from stratalog.bulk.options import WriteOptions
    from stratalog.bulk.target import Target
    from stratalog.commits.staged import StagedRun, StagedTopic
    from stratalog.log.appends import AppendRules

_RECORD_OVERHEAD_BYTES: Final = 16
_RADIX_MAX: Final = 1 << 16


def rows_by_topic(
    batch: pa.RecordBatch, default: str | None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in order; all of them if a `default` is given."""
    if default is not None:
        yield default, batch
        return
    codes = batch.column("topic").dictionary_encode()
    if codes.null_count:
        raise InvalidRecordError(
            "null topic present in the data. Use the topic option for setting a topic."
        )
    names = codes.dictionary.to_pylist()
    for code, name in enumerate(names):
        if len(names) == 1:
            yield name, batch
        else:
            yield name, batch.filter(pc.equal(codes.indices, code))


class RowPartitioner:
    """Chooses partitions of one topic for the rows of one task."""

    def __init__(self, topic: StagedTopic, sticky_bytes: int, task: int) -> None:
        """Rows without a key stick to a partition for about `sticky_bytes`."""
        self._topic = topic
        self._count = topic.partition_count
        self._here = np.array([number for number, _ in topic.dirs], np.int32)
        self._sticky_bytes = sticky_bytes
        self._chooser = random.Random(task)  # tasks begin with different partitions
        self._current = self._next(None)
        self._bytes = 0

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each partition, in order."""
        if self._count == 1 and "partition" not in batch.schema.names:
            yield int(self._here[0]), batch
            return
        partitions = self.partitions_of(batch)
        first = partitions[0]
        if (partitions == first).all():
            yield int(first), batch
            return
        numbers = partitions.astype(np.uint16) if self._count <= _RADIX_MAX else partitions
        order = np.argsort(numbers, kind="stable")
        ordered = batch.take(numpy_column(order, pa.int64()))
        counts = np.bincount(partitions, minlength=self._count)
        start = 0
        for partition in np.flatnonzero(counts):
            count = int(counts[partition])
            yield int(partition), ordered.slice(start, count)
            start += count

    def partitions_of(self, batch: pa.RecordBatch) -> NDArray[np.int32]:
        """The partition of each row. Raises for one that the topic does not have here."""
        names = batch.schema.names
        partitions = np.full(batch.num_rows, UNASSIGNED, np.int32)
        if "partition" in names:
            self._take_given(batch.column("partition"), partitions)
        left = batch.num_rows
        if "key" in names and not pa.types.is_null(batch.column("key").type):
            left = partition_keys(batch.column("key"), self._count, partitions)
        if left:
            self._stick(batch, partitions)
        if len(self._here) < self._count:
            self._check_here(partitions)
        return partitions

    def _take_given(self, column: pa.Array, partitions: NDArray[np.int32]) -> None:
        given = column.fill_null(UNASSIGNED).to_numpy(zero_copy_only=False)
        is_given = column.is_valid().to_numpy(zero_copy_only=False)
        bad = is_given & ((given < 0) | (given >= self._count))
        if bad.any():
            raise InvalidRecordError(
                f"Invalid partition given with record: {given[bad.argmax()]} is not in the range "
                f"[0...{self._count}) of topic {self._topic.name!r}."
            )
        partitions[:] = given

    def _stick(self, batch: pa.RecordBatch, partitions: NDArray[np.int32]) -> None:
        """Rows without a key fill one partition up to the size of a batch, then another."""
        rows = np.flatnonzero(partitions == UNASSIGNED)
        if not len(rows):
            return
        sizes = _value_bytes(batch.column("value"))[rows] + _RECORD_OVERHEAD_BYTES
        # The row that fills a turn up still belongs to it.
        turns = (np.cumsum(sizes) - sizes + self._bytes) // self._sticky_bytes
        chosen = np.empty(int(turns[-1]) + 1, np.int32)
        for turn in range(len(chosen)):
            chosen[turn] = self._current if turn == 0 else self._next(int(chosen[turn - 1]))
        partitions[rows] = chosen[turns]
        self._current = int(chosen[-1])
        self._bytes = int(self._bytes + sizes.sum()) - int(turns[-1]) * self._sticky_bytes

    def _next(self, current: int | None) -> int:
        """Any but the last one, if there is another."""
        others = [int(number) for number in self._here if number != current]
        return self._chooser.choice(others or [int(self._here[0])])

    def _check_here(self, partitions: NDArray[np.int32]) -> None:
        missing = ~np.isin(partitions, self._here)
        if missing.any():
            raise UnknownTopicOrPartitionError(
                f"a row belongs to partition {partitions[missing.argmax()]} of topic "
                f"{self._topic.name!r}, which is not in the log directory"
            )


def _value_bytes(column: pa.Array) -> NDArray[Any]:
    lengths = pc.binary_length(column).fill_null(0)
    numbers: NDArray[Any] = lengths.to_numpy(zero_copy_only=False)
    return numbers


BATCH_BYTES: Final = 64 << 10
GATHER_BYTES: Final = 8 << 20
_TIMESTAMP_MAX: Final = (1 << 63) - 1
_PER_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_COLUMNS: Final = ("value", "key", "headers", "timestamp", "topic", "partition")


@dataclass(frozen=True)
class StagingOptions:
    """How rows become batches."""

    topic: str | None = None
    """Topic of all rows; None: from their column."""
    codec: Codec = Codec.NONE
    """For topics that leave compression to the producer."""
    level: int | None = None
    batch_bytes: int = BATCH_BYTES
    """Maximum size of a batch before compression, unless a single record is larger."""
    has_checksums: bool = False
    """Compute checksums of the rows, for a commit that may be repeated."""


class RowStager:
    """The rows of one attempt of one task."""

    def __init__(
        self,
        stager: RunStager,
        target: Target,
        terms: StagingOptions,
        *,
        task: int,
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms` is the clock for rows without a timestamp."""
        self._stager = stager
        self._finder = TopicFinder(target)
        self._terms = terms
        self._task = task
        self._now_ms = now_ms
        self._topics: dict[str, tuple[StagedTopic, RowPartitioner]] = {}
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows with `value` and optionally `key`, `headers`, `timestamp`, `topic` and
        `partition`."""
        if not batch.num_rows:
            return
        self._gathered.append(
            batch.select([name for name in _COLUMNS if name in batch.schema.names])
        )
        self._gathered_bytes += batch.nbytes
        if self._gathered_bytes >= GATHER_BYTES:
            self._stage_gathered()

    def finish(self) -> tuple[StagedRun, ...]:
        """Write what is left, sync all files and return them."""
        self._stage_gathered()
        return self._stager.finish()

    def _stage_gathered(self) -> None:
        batches, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if not batches:
            return
        merged = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        for name, rows in rows_by_topic(_with_null_times(merged), self._terms.topic):
            topic, partitioner = self._topic(name)
            now_ms = self._now_ms()
            _check(rows, topic, now_ms)
            for partition, part in partitioner.split(rows):
                self._encode(topic, partition, part, now_ms)

    def _topic(self, name: str) -> tuple[StagedTopic, RowPartitioner]:
        found = self._topics.get(name)
        if found is None:
            topic = self._finder.find(name)
            partitioner = RowPartitioner(topic, self._terms.batch_bytes, self._task)
            found = self._topics[name] = (topic, partitioner)
        return found

    def _encode(
        self, topic: StagedTopic, partition: int, rows: pa.RecordBatch, now_ms: int
    ) -> None:
        rules, terms = topic.rules, self._terms
        is_append_time = rules.is_log_append_time
        fields = BatchFields(
            codec=terms.codec if rules.codec is None else rules.codec,
            level=terms.level if rules.codec is None else rules.level,
            timestamp_type=rules.timestamp_type,
            max_timestamp=now_ms if is_append_time else None,
            base_offset=self._stager.next_offset(topic.name, partition),
        )
        checksum = checksum_rows(rows) if terms.has_checksums else None
        for encoded in encode_columns(rows, fields, _limits(rules, terms), timestamp_ms=now_ms):
            self._stager.write(topic, partition, encoded.data, encoded.record_count, checksum)
            checksum = None if checksum is None else 0  # that was of all of them


def _limits(rules: AppendRules, terms: StagingOptions) -> BatchLimits:
    bytes_max = min(rules.max_message_bytes, rules.segment_bytes)
    return BatchLimits(min(terms.batch_bytes, bytes_max), bytes_max)


def _with_null_times(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Null for -1, with which Kafka marks a record without a timestamp."""
    index = rows.schema.get_field_index("timestamp")
    kind = rows.schema.field(index).type if index >= 0 else None
    if kind is None or not pa.types.is_timestamp(kind) or kind.unit == "s":
        return rows
    column = rows.column(index)
    absent = pc.equal(column, pa.scalar(NO_TIMESTAMP, pa.timestamp("ms", kind.tz)).cast(kind))
    if not pc.any(absent).as_py():
        return rows
    return rows.set_column(index, "timestamp", pc.if_else(absent, pa.scalar(None, kind), column))


def _check(rows: pa.RecordBatch, topic: StagedTopic, now_ms: int) -> None:
    """What a leader checks of each record."""
    names, rules = rows.schema.names, topic.rules
    if rules.is_compacted and ("key" not in names or rows.column("key").null_count):
        raise InvalidRecordError(
            f"Compacted topic cannot accept message without key in topic {topic.name!r}."
        )
    if "headers" in names and not pa.types.is_null(rows.column("headers").type):
        entries = rows.column("headers").flatten()
        if entries.null_count or entries.field("key").null_count:
            raise InvalidRecordError("a header is null or has no key")
    if "timestamp" in names and not rules.is_log_append_time:
        _check_timestamps(rows.column("timestamp"), topic, now_ms)


def _check_timestamps(column: pa.Array, topic: StagedTopic, now_ms: int) -> None:
    if not pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", "UTC"))
    found, rules = pc.min_max(column), topic.rules
    if not found["min"].is_valid:
        return
    oldest, newest = _milliseconds(found["min"]), _milliseconds(found["max"])
    if oldest < 0:
        raise InvalidTimestampError(
            f"Invalid timestamp: {oldest}. Timestamp should always be non-negative or null."
        )
    if now_ms - oldest > rules.timestamp_before_max_ms:
        raise _outside(oldest, topic.name)
    if newest - now_ms > rules.timestamp_after_max_ms or newest > _TIMESTAMP_MAX:
        raise _outside(newest, topic.name)


def _milliseconds(time: pa.TimestampScalar) -> int:
    """Rounded down, as it is encoded."""
    value, unit = int(time.value), time.type.unit
    return value * 1000 if unit == "s" else value // _PER_MS[unit]


def _outside(timestamp: int, topic: str) -> InvalidTimestampError:
    return InvalidTimestampError(
        f"timestamp {timestamp} is outside of what topic {topic!r} allows "
        "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
    )


def stage_rows(
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions,
    job: str,
    number: int,
    task: int,
    *,
    is_stream: bool = False,
) -> tuple[StagedRun, ...]:
    """Stage the rows of one task. `job`, `number` and `task` are those of `StagedName`."""
    may_repeat = is_stream or options.identity is not None
    terms = StagingOptions(
        options.topic,
        options.codec,
        options.level,
        options.batch_bytes,
        has_checksums=may_repeat and options.compares_content,
    )
    with RunStager(Disk(), job, number, task) as stager:
        rows = RowStager(stager, options.target, terms, task=task, now_ms=_now_ms)
        for batch in batches:
            rows.add(batch)
        return rows.finish()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

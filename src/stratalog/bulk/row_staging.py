"""Stages rows: choose topic and partition, encode Arrow columns as batches, write staged files.

Which rows may be written, and to which partitions, is in `producing.arrow_rows`. Whatever the log
would reject is rejected here, with Kafka's errors, so that a commit cannot fail because of a row.
Rows are encoded in portions of `GATHER_BYTES`, and memory stays within a few times that.

Importing this module loads compiled kernels; import it where many records are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.bulk.target import TopicFinder
from stratalog.format.batch import Codec
from stratalog.format.encode_columns import InputColumns, encode_rows
from stratalog.format.hashing import checksum_rows
from stratalog.format.record import BatchFields
from stratalog.format.times import current_time_ms
from stratalog.producing import arrow_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from stratalog.bulk.options import WriteOptions
    from stratalog.bulk.target import Target
    from stratalog.commits.staged import RunStager, StagedRun, StagedTopic

BATCH_BYTES: Final = 64 << 10
GATHER_BYTES: Final = 8 << 20


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
    """Stages the rows of one attempt of one task."""

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
        self._topics: dict[str, tuple[StagedTopic, arrow_rows.RowPartitioner]] = {}
        self._portions = arrow_rows.RowPortions(GATHER_BYTES)
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows with `value` and optionally `key`, `headers`, `timestamp`, `topic` and
        `partition`."""
        for portion in self._portions.add(batch):
            self._stage(portion)

    def finish(self) -> tuple[StagedRun, ...]:
        """Write what is left, sync all files and return them."""
        for portion in self._portions.remaining():
            self._stage(portion)
        return self._stager.finish()

    def _stage(self, portion: pa.RecordBatch) -> None:
        rows = arrow_rows.with_null_times(portion)
        for name, of_topic, number_of in arrow_rows.rows_by_topic(
            rows, self._terms.topic, self._rows
        ):
            topic, partitioner = self._topic(name)
            now_ms = self._now_ms()
            arrow_rows.check_rows(of_topic, name, topic.rules, now_ms, number_of)
            self._encode(topic, partitioner, of_topic, now_ms, number_of)
        self._rows += portion.num_rows

    def _topic(self, name: str) -> tuple[StagedTopic, arrow_rows.RowPartitioner]:
        found = self._topics.get(name)
        if found is None:
            topic = self._finder.find(name)
            here = [number for number, _ in topic.dirs]
            # Tasks begin with different partitions.
            partitioner = arrow_rows.RowPartitioner(
                name, topic.partition_count, here, self._terms.batch_bytes, self._task
            )
            found = self._topics[name] = (topic, partitioner)
        return found

    def _encode(
        self,
        topic: StagedTopic,
        partitioner: arrow_rows.RowPartitioner,
        rows: pa.RecordBatch,
        now_ms: int,
        number_of: arrow_rows.RowNumber,
    ) -> None:
        limits = arrow_rows.limits_of(topic.rules, self._terms.batch_bytes)
        checksum = checksum_rows(rows) if self._terms.has_checksums else None
        given = InputColumns(rows, now_ms)
        for partition, numbers in partitioner.row_numbers(rows, number_of):
            fields = self._fields(topic, partition, now_ms)
            for encoded in encode_rows(given, numbers, fields, limits, number_of):
                self._stager.write(topic, partition, encoded.data, encoded.record_count, checksum)
                checksum = None if checksum is None else 0  # that was of all rows

    def _fields(self, topic: StagedTopic, partition: int, now_ms: int) -> BatchFields:
        rules, terms = topic.rules, self._terms
        return BatchFields(
            codec=terms.codec if rules.codec is None else rules.codec,
            level=terms.level if rules.codec is None else rules.level,
            timestamp_type=rules.timestamp_type,
            max_timestamp=now_ms if rules.is_log_append_time else None,
            base_offset=self._stager.next_offset(topic.name, partition),
        )


def stage_rows(
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions,
    stager: RunStager,
    *,
    is_stream: bool = False,
) -> tuple[StagedRun, ...]:
    """Stage the rows of one task."""
    may_repeat = is_stream or options.identity is not None
    terms = StagingOptions(
        options.topic,
        options.codec,
        options.level,
        options.batch_bytes,
        has_checksums=may_repeat and options.compares_content,
    )
    with stager:
        rows = RowStager(stager, options.target, terms, task=stager.task, now_ms=current_time_ms)
        for batch in batches:
            rows.add(batch)
        return rows.finish()

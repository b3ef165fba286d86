"""What an append is asked with and what it is answered with: rules, assignment, result.

All values; `validation.py` turns the first two and bytes into the third.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.config import LogConfig
from stratalog.errors import AppendError
from stratalog.format.batch import NO_TIMESTAMP, BatchHeader, Codec, TimestampType
from stratalog.format.batch_span import BatchSpan
from stratalog.log.origin import AppendOrigin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.format.buffers import Buffer
    from stratalog.format.entry import EntryHeader

NO_OFFSET: Final = -1
_DEFAULTS: Final = LogConfig()


@dataclass(frozen=True)
class AppendRules:
    """The settings of a topic that decide whether and how a batch is stored."""

    codec: Codec | None = None
    """What every batch is stored with; None: as it came."""
    level: int | None = None
    """Of `codec`, where it is the topic's; None is Kafka's default."""
    is_compacted: bool = False
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = _DEFAULTS.message_timestamp_before_max_ms
    timestamp_after_max_ms: int = _DEFAULTS.message_timestamp_after_max_ms
    max_message_bytes: int = _DEFAULTS.max_message_bytes
    segment_bytes: int = _DEFAULTS.segment_bytes

    @classmethod
    def of(cls, config: LogConfig) -> AppendRules:
        codec = config.codec
        return cls(
            codec=codec,
            level=None if codec is None else config.level_of(codec),
            is_compacted=config.is_compacted,
            timestamp_type=config.message_timestamp_type,
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            max_message_bytes=config.max_message_bytes,
            segment_bytes=config.segment_bytes,
        )

    @property
    def is_log_append_time(self) -> bool:
        return self.timestamp_type is TimestampType.LOG_APPEND_TIME


class Assignment(NamedTuple):
    """What the leader gives to the batches it appends."""

    next_offset: int
    """The log end offset: what the first record gets."""
    leader_epoch: int
    now_ms: int
    origin: AppendOrigin = AppendOrigin.CLIENT


class ValidatedAppend(NamedTuple):
    """Batches that may be written as they are."""

    data: Buffer
    """Whole batches end to end, with their offsets, epoch and timestamps."""
    spans: tuple[BatchSpan, ...]
    """Where they lie in `data`, in order."""
    headers: tuple[EntryHeader, ...]
    """Of the same batches."""
    first_offset: int
    last_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int
    """Last offset of the first batch that reaches `max_timestamp`: what a time index stores."""
    log_append_time_ms: int = NO_TIMESTAMP
    """The broker's time where the topic asks for it: what a producer is told, else -1."""
    was_rewritten: bool = False
    """The records were put into new batches: another codec, format or offsets inside."""

    @property
    def record_count(self) -> int:
        """Counted by offsets, as Kafka does: a follower's data may have holes."""
        return self.last_offset - self.first_offset + 1 if self.spans else 0

    @property
    def next_offset(self) -> int:
        """The log end offset once this is appended. Means nothing for an empty append."""
        return self.last_offset + 1


EMPTY_APPEND: Final = ValidatedAppend(
    data=b"",
    spans=(),
    headers=(),
    first_offset=NO_OFFSET,
    last_offset=NO_OFFSET,
    max_timestamp=NO_TIMESTAMP,
    offset_of_max_timestamp=NO_OFFSET,
)
"""Data without one whole batch. Kafka's log takes it without a word and writes nothing."""

AppendResult: TypeAlias = ValidatedAppend | AppendError


class GroupAppend:
    """Several requests that are written together. Each stands or falls on its own.

    The usual group, in which every request is one batch that is stored as it came, is kept as its
    batches; results of single requests are made of them when somebody asks.
    """

    __slots__ = ("_results", "data", "headers", "log_append_time_ms", "next_offset", "spans")

    def __init__(
        self,
        data: Buffer,
        spans: list[BatchSpan],
        headers: list[EntryHeader],
        next_offset: int,
        log_append_time_ms: int,
    ) -> None:
        """Of requests that are one batch each."""
        self.data = data
        """What is to be written: the accepted requests end to end."""
        self.spans = spans
        """Where their batches lie in `data`."""
        self.headers = headers
        """Of the same batches."""
        self.next_offset = next_offset
        """The log end offset once this is written."""
        self.log_append_time_ms = log_append_time_ms
        """The broker's time where the topic asks for it, else -1."""
        self._results: tuple[AppendResult, ...] | None = None

    @classmethod
    def of(
        cls, results: Sequence[AppendResult], next_offset: int, log_append_time_ms: int
    ) -> GroupAppend:
        """Of requests with any results."""
        spans: list[BatchSpan] = []
        headers: list[EntryHeader] = []
        pieces: list[Buffer] = []
        start = 0
        for result in results:
            if not isinstance(result, AppendError):
                for position, size_bytes, *facts in result.spans:
                    spans.append(BatchSpan(start + position, size_bytes, *facts))
                headers += result.headers
                pieces.append(result.data)
                start += len(result.data)
        group = cls(b"".join(pieces), spans, headers, next_offset, log_append_time_ms)
        group._results = tuple(results)
        return group

    @property
    def results(self) -> tuple[AppendResult, ...]:
        """One for each request, in order. A `ValidatedAppend` counts positions in its own data."""
        if self._results is None:
            view = memoryview(self.data)
            self._results = tuple(
                one_batch(view[span[0] : span[0] + span[1]], header, self.log_append_time_ms)
                for span, header in zip(self.spans, self.headers, strict=True)
                if isinstance(header, BatchHeader)
            )
        return self._results

    @property
    def accepted(self) -> list[ValidatedAppend]:
        return [result for result in self.results if not isinstance(result, AppendError)]

    @property
    def offsets(self) -> list[tuple[int, int] | AppendError]:
        """First and last offset of each request, -1 and -1 of an empty one, or its error."""
        if self._results is None:
            return [(span[2], span[3]) for span in self.spans]
        return [
            result if isinstance(result, AppendError) else (result.first_offset, result.last_offset)
            for result in self._results
        ]


def one_batch(
    data: Buffer, header: BatchHeader, log_append_time_ms: int = NO_TIMESTAMP
) -> ValidatedAppend:
    """The result for one batch, which has its place in the log by now."""
    base_offset, last_offset = header.base_offset, header.last_offset
    max_timestamp = header.max_timestamp
    return ValidatedAppend(
        data,
        (BatchSpan(0, len(data), base_offset, last_offset, max_timestamp),),
        (header,),
        base_offset,
        last_offset,
        max_timestamp,
        last_offset,
        log_append_time_ms,
    )


def next_assignment(assign: Assignment, result: AppendResult) -> Assignment:
    """What comes after a request with this result."""
    if isinstance(result, AppendError) or not result.spans:
        return assign
    return assign._replace(next_offset=result.next_offset)

"""Reading whole topics as columns: what `LogDirsView` and `LogDir` have in common.

What to read is decided for all partitions at once, when the reader is created: which offsets they
have then, where times are, which transactions were aborted. The partitions are read one after the
other, and only while a partition is read are its files open.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from stratalog.errors import InvalidArgumentError, NoSegmentError, UnknownTopicOrPartitionError
from stratalog.format.names import TopicPartition
from stratalog.log.reader import IsolationLevel, ReadArguments
from stratalog.storage.closeable import Closeable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from stratalog.format.arguments import TimeLike
    from stratalog.log.column_stream import ColumnSource, ValueFormat
    from stratalog.log.reader import Isolation, LogReader, Skipped, StartOffset

ByPartition: TypeAlias = "Mapping[int, int] | Mapping[tuple[str, int], int]"
"""An offset for each of some partitions, by number if one topic is read, or by topic and number."""

_T = TypeVar("_T")

TOPIC_COLUMNS: tuple[str, ...] = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "value",
    "headers",
)
"""What `read_columns` of topics returns by default."""


class TopicReader(Closeable):
    """Partitions by topic, to be read."""

    @property
    @abstractmethod
    def partition_numbers(self) -> Mapping[str, Collection[int]]:
        """The numbers of each topic's partitions."""

    @abstractmethod
    def _opened(self, tp: TopicPartition) -> tuple[LogReader, AbstractContextManager[object]]:
        """A partition, and what to leave once it has been read."""

    def read_columns(  # noqa: PLR0913  # independent choices, all but one by keyword
        self,
        topics: str | Collection[str] | None = None,
        *,
        start: StartOffset | ByPartition = "earliest",
        end: int | ByPartition | None = None,
        since: TimeLike | None = None,
        until: TimeLike | None = None,
        timestamp_disorder_ms: int | None = None,
        columns: Collection[str] | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
        keys: ValueFormat = "bytes",
        values: ValueFormat = "bytes",
        on_skip: Callable[[Skipped], None] | None = None,
    ) -> pa.RecordBatchReader:
        """The records of a topic, of several, or of all but internal ones, as Arrow record batches.

        The result is lazy and its memory bounded: it decodes the next batch when it is asked for
        one. pandas, polars, DuckDB and the writers of `pyarrow.dataset` take it as it is. If there
        is no record, it has no batch, but the right schema.

        `start` and `end` (exclusive) are offsets: for all partitions, or by partition, as
        `{0: 100, 1: 70}` for one topic or `{("orders", 0): 100}` for several; partitions that are
        not named are read from the beginning or to the end. `since` and `until` (exclusive) leave
        out records with other timestamps. All other arguments are those of `PartitionView.read` and
        `PartitionView.read_columns`. The default columns are those, and `topic` and `partition`.
        """
        from stratalog.log.column_stream import ColumnStream  # noqa: PLC0415  # loads kernels

        chosen = TOPIC_COLUMNS if columns is None else columns
        stream = ColumnStream(chosen, keys=keys, values=values)
        wanted = self._wanted(topics)
        starts: dict[TopicPartition, StartOffset] = _by_partition(
            start, "start", wanted, "earliest"
        )
        ends: dict[TopicPartition, int | None] = _by_partition(end, "end", wanted, None)
        arguments = ReadArguments(
            since=since,
            until=until,
            timestamp_disorder_ms=timestamp_disorder_ms,
            isolation=isolation,
        )
        sources = []
        for tp in wanted:
            with suppress(NoSegmentError):  # a broker is creating the partition
                arguments_here = arguments._replace(start=starts[tp], end=ends[tp])
                sources.append(self._planned(tp, arguments_here, on_skip))
        return stream.open(sources)

    def _planned(
        self,
        tp: TopicPartition,
        arguments: ReadArguments,
        on_skip: Callable[[Skipped], None] | None,
    ) -> ColumnSource:
        from stratalog.log.column_stream import ColumnSource  # noqa: PLC0415  # loads kernels

        log, closing = self._opened(tp)
        with closing:  # it opens its files again when it is read
            plan = log.plan_of(arguments, on_skip)
        return ColumnSource(log, plan, closing)

    def _wanted(self, topics: str | Collection[str] | None) -> list[TopicPartition]:
        known = self.partition_numbers
        if topics is None:
            names = [name for name in known if not name.startswith("__")]
        elif isinstance(topics, Collection):
            names = [topics] if isinstance(topics, str) else list(dict.fromkeys(topics))
        else:
            raise InvalidArgumentError(f"topics is {topics!r}; use a name or a list of names")
        for name in names:
            if name not in known:
                shown = ", ".join(list(known)[:10]) or "none"
                raise UnknownTopicOrPartitionError(f"no topic {name!r}; topics here: {shown}")
        return [TopicPartition(name, number) for name in names for number in sorted(known[name])]


def _by_partition(
    given: _T | ByPartition, name: str, wanted: Sequence[TopicPartition], default: _T
) -> dict[TopicPartition, _T]:
    """The offset of each partition; `name` is the parameter."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(wanted, given)
    offsets = dict.fromkeys(wanted, default)
    for key, offset in given.items():
        tp = _named(key, name, wanted)
        if tp not in offsets:
            read = ", ".join(map(str, wanted[:10])) or "none"
            raise UnknownTopicOrPartitionError(
                f"{name} has an offset for {tp}, which is not among the partitions to read: {read}"
            )
        offsets[tp] = cast("_T", offset)
    return offsets


def _named(key: object, name: str, wanted: Sequence[TopicPartition]) -> TopicPartition:
    match key:
        case (str(topic), int(number)):
            return TopicPartition(topic, number)
        case int(number) if len({tp.topic for tp in wanted}) == 1:
            return TopicPartition(wanted[0].topic, number)
    raise InvalidArgumentError(
        f"{name} has an offset for {key!r}; name a partition as (topic, number), or by its number "
        "if one topic is read"
    )

"""The ways to read records, behind one signature: tests of reading run over all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pytest

from stratalog.format import record_spans
from stratalog.format.batch import TimestampType
from stratalog.format.log_entry import RecordDecoder
from stratalog.format.record import Header, Record
from stratalog.log import reader as reading
from stratalog.log.reader import NO_LIMIT, IsolationLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stratalog.format.arguments import TimeLike
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.reader import Isolation, Skipped, StartOffset


class Reader(Protocol):
    """Like `PartitionView.read`, with the view as first argument."""

    def __call__(
        self,
        view: PartitionView,
        /,
        start: StartOffset = "earliest",
        end: int | None = None,
        *,
        since: TimeLike | None = None,
        until: TimeLike | None = None,
        timestamp_disorder_ms: int | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
        max_bytes: int = NO_LIMIT,
        max_records: int = NO_LIMIT,
        on_skip: Callable[[Skipped], None] | None = None,
    ) -> Iterator[Record]: ...


class _Readable(RecordDecoder):
    """Never loads the kernel."""

    def _loaded(self) -> Any:
        return None


class _Compiled(RecordDecoder):
    """Uses the kernel from the first record on."""

    def _loaded(self) -> Any:
        return record_spans


def _decoding_with(decoder: RecordDecoder) -> Reader:
    def read(view: PartitionView, /, *args: Any, **options: Any) -> Iterator[Record]:
        records = view.read(*args, **options)

        def each() -> Iterator[Record]:
            usual = vars(reading)["_DECODER"]
            while True:
                vars(reading)["_DECODER"] = decoder
                try:
                    record = next(records)
                except StopIteration:
                    return
                finally:
                    vars(reading)["_DECODER"] = usual
                yield record

        return each()

    return read


scalar: Reader = _decoding_with(_Readable())
lists: Reader = _decoding_with(_Compiled())


def columns(view: PartitionView, /, *args: Any, **options: Any) -> Iterator[Record]:
    """`PartitionView.read_columns`, its rows as records."""
    batches = view.read_columns(*args, **options)
    return (record for batch in batches for record in records_in(batch))


def records_in(batch: pa.RecordBatch) -> Iterator[Record]:
    """The rows of an Arrow batch as records. Strict: any other column or type would not fit."""
    names = ["offset", "timestamp", "timestampType", "key", "value", "headers"]
    assert batch.schema.names == names
    plain = batch.set_column(1, "timestamp", batch.column("timestamp").cast(pa.int64()))
    rows: list[dict[str, Any]] = plain.to_pylist()
    for row in rows:
        yield Record(
            offset=row["offset"],
            timestamp=row["timestamp"],
            key=row["key"],
            value=row["value"],
            headers=tuple(Header(**header) for header in row["headers"]),
            timestamp_type=TimestampType(row["timestampType"]),
        )


READERS = [
    pytest.param(scalar, id="scalar"),
    pytest.param(lists, id="lists"),
    pytest.param(columns, id="columns"),
]
over_readers = pytest.mark.parametrize("reader", READERS)

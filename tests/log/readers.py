"""The ways to read records, behind one signature: tests of reading run over all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pytest

from stratalog.format.batch import TimestampType
from stratalog.format.record import Header, Record
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import NO_LIMIT, IsolationLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stratalog.log.reader import Skipped, StartOffset


class Reader(Protocol):
    """Like `PartitionView.read`, with the view as first argument."""

    def __call__(
        self,
        view: PartitionView,
        /,
        start: StartOffset = "earliest",
        end: int | None = None,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        max_bytes: int = NO_LIMIT,
        max_records: int = NO_LIMIT,
        on_skip: Callable[[Skipped], None] | None = None,
    ) -> Iterator[Record]: ...


scalar: Reader = PartitionView.read


def columns(
    view: PartitionView,
    start: StartOffset = "earliest",
    end: int | None = None,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    max_bytes: int = NO_LIMIT,
    max_records: int = NO_LIMIT,
    on_skip: Callable[[Skipped], None] | None = None,
) -> Iterator[Record]:
    """`PartitionView.read_columns`, its rows as records."""
    batches = view.read_columns(
        start,
        end,
        isolation=isolation,
        max_bytes=max_bytes,
        max_records=max_records,
        on_skip=on_skip,
    )
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


READERS = [pytest.param(scalar, id="scalar"), pytest.param(columns, id="columns")]
over_readers = pytest.mark.parametrize("reader", READERS)

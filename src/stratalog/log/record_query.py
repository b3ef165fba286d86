"""Records of a log with a key, or with a text in key, value or headers, found column by column.

Only the records that match become Python objects. Importing this module loads the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.format.batch import TimestampType
from stratalog.format.column_types import RECORD_COLUMNS, int64_numbers
from stratalog.format.record import Header, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

_TYPES: Final = {int(each): each for each in TimestampType}


@dataclass(frozen=True)
class RecordQuery:
    """What a record must have. Without conditions every record matches."""

    key: bytes | None = None
    """Exactly this key."""
    text: bytes | None = None
    """These bytes anywhere in the key, the value, or the name or value of a header."""
    ignores_case: bool = False
    """Whether to ignore the case of `text`, which must be UTF-8 then."""

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records that match."""
        if self.key is not None:
            batch = batch.filter(pc.equal(batch.column("key"), pa.scalar(self.key, pa.binary())))
        if self.text is not None and batch.num_rows:
            batch = batch.filter(self._has_text(batch))
        return batch

    def _has_text(self, batch: pa.RecordBatch) -> pa.Array:
        found = pc.or_(self._matches(batch.column("key")), self._matches(batch.column("value")))
        headers = batch.column("headers")
        pairs = headers.flatten()
        if not len(pairs):
            return found
        names, values = pairs.flatten()
        hits = pc.or_(self._matches(names.cast(pa.binary())), self._matches(values))
        rows = pc.unique(pc.list_parent_indices(headers).filter(hits))
        numbers = pa.array(range(batch.num_rows), rows.type)
        return pc.or_(found, pc.is_in(numbers, value_set=rows))

    def _matches(self, column: pa.Array) -> pa.Array:
        matches = pc.match_substring(column, self.text, ignore_case=self.ignores_case)
        return matches.fill_null(False)


def matching_records(
    batches: pa.RecordBatchReader | Iterator[pa.RecordBatch], query: RecordQuery
) -> Iterator[tuple[int, list[Record]]]:
    """The records that match, batch by batch, each with the offset after the batch."""
    for batch in batches:
        if batch.num_rows:
            next_offset = int(int64_numbers(batch.column("offset"))[-1]) + 1
            yield next_offset, _records(query.filter(batch))


def _records(batch: pa.RecordBatch) -> list[Record]:
    columns: dict[str, list[Any]] = {
        name: batch.column(name).to_pylist() for name in ("key", "value", "headers")
    }
    for name in ("offset", "timestamp", "timestampType"):
        column = batch.column(name)
        columns[name] = (column if name == "timestampType" else column.cast(pa.int64())).to_pylist()
    return [
        Record(
            offset,
            timestamp,
            key,
            value,
            tuple(Header(each["key"], each["value"]) for each in headers or ()),
            _TYPES[kind],
        )
        for offset, timestamp, kind, key, value, headers in zip(
            *(columns[name] for name in RECORD_COLUMNS), strict=True
        )
    ]

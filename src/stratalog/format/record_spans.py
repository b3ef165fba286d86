"""Builds the records of a batch from fields that a kernel has located: the fast twin of
`decode_records`.

Per record there is one slice for the key, one for the value and one tuple. Importing this module
loads a compiled kernel; `RecordDecoder` in `log_entry.py` does so once that pays off.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from stratalog.errors import StratalogError
from stratalog.format.batch import HEADER_BYTES, Codec, TimestampType
from stratalog.format.compression import decompress
from stratalog.format.kernels.spans import (
    HAS_HEADERS,
    HAS_NULL_KEY,
    HAS_NULL_VALUE,
    HEADERS_AT,
    NOT_ORDINARY,
    ROWS,
    spans,
)
from stratalog.format.record import RECORD_BYTES_MIN, Header, Record, read_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stratalog.format.batch import BatchHeader

_record_of = cast("Callable[[Iterable[Any]], Record]", partial(tuple.__new__, Record))
"""`Record._make` without a Python function around it, which would cost more than the record."""


def list_records(buf: bytes, at: int, header: BatchHeader) -> list[Record] | None:
    """The records of the batch whose header was read at `at`, and whose CRC was checked. None if
    the readable decoder has to decode it: it may be corrupt, or just unusual."""
    start, end = at + HEADER_BYTES, at + header.size_bytes
    if header.codec_id != Codec.NONE:
        try:
            buf = decompress(header.codec_id, buf[start:end])
        except StratalogError:
            return None
        start, end = 0, len(buf)
    count = header.record_count
    if not 0 < count <= (end - start) // RECORD_BYTES_MIN:
        return None
    fields = np.empty((ROWS, count), np.int64)
    origin = pa.py_buffer(buf).address
    found = spans(
        (origin, origin + start, origin + end), (header.base_offset, header.base_timestamp), fields
    )
    return None if found == NOT_ORDINARY else _build(buf, fields, found, header)


def _build(buf: bytes, fields: Any, found: int, header: BatchHeader) -> list[Record]:
    offsets, times, key_at, key_end, value_at, value_end = fields[:HEADERS_AT].tolist()
    timestamp_type = header.timestamp_type
    is_create_time = timestamp_type is TimestampType.CREATE_TIME
    columns = zip(
        offsets,
        times if is_create_time else repeat(header.max_timestamp),
        _slices(buf, key_at, key_end, has_null=bool(found & HAS_NULL_KEY)),
        _slices(buf, value_at, value_end, has_null=bool(found & HAS_NULL_VALUE)),
        _headers(buf, fields[HEADERS_AT].tolist()) if found & HAS_HEADERS else repeat(()),
        repeat(timestamp_type),
        strict=False,  # three of them may be endless
    )
    return list(map(_record_of, columns))


def _slices(
    buf: bytes, starts: Sequence[int], ends: Sequence[int], *, has_null: bool
) -> list[bytes | None]:
    pairs = zip(starts, ends, strict=True)
    if has_null:
        return [None if end < 0 else buf[start:end] for start, end in pairs]
    return [buf[start:end] for start, end in pairs]


def _headers(buf: bytes, starts: Sequence[int]) -> list[tuple[Header, ...]]:
    return [() if at < 0 else read_headers(buf, at, len(buf))[0] for at in starts]

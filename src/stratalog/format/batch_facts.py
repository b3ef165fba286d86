"""Columns that are facts of the batch, repeated for each of its records."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from stratalog.format.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    MAGIC_2,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Codec,
)
from stratalog.format.numpy_columns import numpy_column

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from numpy.typing import NDArray

    from stratalog.format.record import Record

_SEQUENCE_MASK = (1 << 31) - 1


def _timestamp_types(rows: NDArray[Any]) -> NDArray[Any]:
    kinds = (rows["attributes"] >> 3 & 1).astype(np.int32)
    return np.where(rows["magic"] == 0, np.int32(-1), kinds)


def _flag(bit: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda rows: (rows["attributes"] & bit != 0) & (rows["magic"] == MAGIC_2)


def _field(name: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda rows: rows[name]


_FACTS: Final[Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "timestampType": _timestamp_types,
    "producerId": _field("producer_id"),
    "producerEpoch": _field("producer_epoch"),
    "partitionLeaderEpoch": _field("partition_leader_epoch"),
    "codec": lambda rows: rows["attributes"] & CODEC_MASK,
    "isTransactional": _flag(TRANSACTIONAL_BIT),
    "isControl": _flag(CONTROL_BIT),
    "baseOffset": _field("base_offset"),
    "lastOffset": _field("last_offset"),
    "batchPosition": _field("position"),
    "batchSize": _field("size_bytes"),
    "magic": _field("magic"),
}


@lru_cache(maxsize=8)
def _constant(fact: object, kind: pa.DataType, count: int) -> pa.Array:
    """Columns of one value are parts of the same memory, however many there are."""
    return numpy_column(np.full(count, fact), kind)


@cache
def _codec_names() -> pa.Array:
    return pa.array([Codec(number).name.lower() for number in sorted(Codec)])


class Repeated:
    """Facts of `rows`, each repeated as often as its batch has records."""

    def __init__(self, rows: NDArray[Any], counts: NDArray[Any], total: int) -> None:
        self._rows = rows
        self._counts = counts
        self._total = total

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        facts = _FACTS[name](self._rows)
        if name == "codec":
            return _codec_names().take(numpy_column(np.repeat(facts, self._counts), pa.int8()))
        if (facts == facts[0]).all():  # as a rule a run of batches is by one writer
            return _constant(facts[0].item(), kind, 1 << self._total.bit_length())[: self._total]
        return numpy_column(np.repeat(facts, self._counts), kind)

    def sequences(self, offsets: NDArray[np.int64]) -> pa.Array:
        """Counted from the batch's base sequence; after 2147483647 comes 0."""
        base = np.repeat(self._rows["base_sequence"].astype(np.int64), self._counts)
        first = np.repeat(self._rows["base_offset"], self._counts)
        numbers = np.where(base < 0, NO_SEQUENCE, base + (offsets - first) & _SEQUENCE_MASK)
        return numpy_column(numbers, pa.int32())


_LEGACY: Final[Mapping[str, Callable[[Record], object]]] = {
    "offset": lambda record: record.offset,
    "timestamp": lambda record: record.timestamp,
    "timestampType": lambda record: int(record.timestamp_type),
    "key": lambda record: record.key,
    "value": lambda record: record.value,
    "headers": lambda _record: [],
    "sequence": lambda _record: NO_SEQUENCE,
}


def legacy_column(
    name: str, kind: pa.DataType, records: Collection[Record], facts: Repeated
) -> pa.Array:
    """A column of legacy records that the readable decoder made."""
    fact = _LEGACY.get(name)
    if fact is None:
        return facts.column(name, kind)
    plain = pa.int64() if pa.types.is_timestamp(kind) else kind
    return pa.array([fact(record) for record in records], plain).cast(kind)

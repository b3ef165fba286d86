"""One pass over the records of a piece: sums, histograms, a sample for codecs, and their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.format.hashing import hash_keys
from stratalog.spark.executor import ReadTask
from stratalog.spark.jobs.record_sums import Facts, sum_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stratalog.spark.splits import Piece, Split

HOUR_MS: Final = 3_600_000
CODECS: Final = ("snappy", "lz4", "zstd", "gzip")
SAMPLE_BYTES: Final = 1 << 20
HOURS_MAX: Final = 100_000
BLOCK_BYTES: Final = 16 << 10
"""A batch of the size that producers send by default."""

_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


class KeyColumns(NamedTuple):
    """Of the records that have a key."""

    hashes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tombstones: NDArray[np.bool_]


def look_at_piece(split: Split, piece: Piece) -> tuple[Facts, KeyColumns]:
    """Sums over the records of `piece`, and the columns that keys are counted by."""
    found: list[Facts] = []
    columns: list[KeyColumns] = []
    for batch in ReadTask(_SCHEMA).read(type(split)((piece,))):
        facts, keyed = _look_at_batch(batch, samples=not found)
        found.append(facts)
        columns.append(keyed)
    if not columns:
        nothing = np.empty(0, np.int64)
        return Facts(), KeyColumns(nothing, nothing, nothing, nothing.astype(np.bool_))
    joined = KeyColumns(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    return sum_of(found)._replace(codecs=found[0].codecs), joined


def _look_at_batch(batch: pa.RecordBatch, *, samples: bool) -> tuple[Facts, KeyColumns]:
    key, value = batch.column("key"), batch.column("value")
    has_key = np.asarray(key.is_valid())
    tombstones = np.asarray(value.is_null())
    sizes = _lengths(key) + _lengths(value)
    times = batch.column("timestamp").view(pa.int64()).to_numpy() // 1000
    offsets = batch.column("offset").to_numpy()
    timed = times[times >= 0]
    facts = Facts(
        len(sizes),
        int((~has_key).sum()),
        int((tombstones & has_key).sum()),
        int(sizes.sum()),
        int(timed.min(initial=np.iinfo(np.int64).max)) if len(timed) else -1,
        int(timed.max(initial=-1)),
        _size_histogram(sizes),
        _hour_histogram(times, sizes),
        _codec_ratios(batch) if samples else (),
    )
    keyed = KeyColumns(
        hash_keys(key)[has_key], offsets[has_key], sizes[has_key], tombstones[has_key]
    )
    return facts, keyed


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    """In bytes; a null has none."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
    return np.diff(offsets).astype(np.int64)


def _size_histogram(sizes: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Records by the next power of two."""
    bits = np.frexp(np.maximum(sizes - 1, 0).astype(np.float64))[1]  # how many bits it takes
    counts = np.bincount(bits)
    return tuple((1 << bit, int(counts[bit])) for bit in np.flatnonzero(counts).tolist())


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


def _codec_ratios(batch: pa.RecordBatch) -> tuple[tuple[str, float], ...]:
    """Compressed size of a sample, in blocks as large as batches are, as a share of the plain."""
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

"""Generated records, batches, legacy sets and logs, each with what a reader must give back.

`batches()` covers every codec, flag and timestamp type, headers that repeat or are null, null keys,
tombstones, negative timestamp deltas, holes in offsets, sequences that wrap around, delete horizons
and the empty batches compaction leaves. The expected records come from what was put in, never from
decoding what came out.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from stratalog.format.batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    TimestampType,
)
from stratalog.format.legacy import encode_legacy
from stratalog.format.record import (
    BatchFields,
    Header,
    Record,
    encode_batch,
    encode_empty_batch,
)

INT_MAX = (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
LEGACY_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


class GeneratedBatch(NamedTuple):
    """The bytes of one batch (or of legacy messages) and the records a reader must find in it."""

    raw: bytes
    records: tuple[Record, ...]
    last_offset: int

    @property
    def header(self) -> BatchHeader:
        """Of a magic-2 batch."""
        return BatchHeader.unpack(self.raw)


class GeneratedLog(NamedTuple):
    """Batches end to end, offsets growing."""

    batches: tuple[GeneratedBatch, ...]

    @property
    def raw(self) -> bytes:
        return b"".join(batch.raw for batch in self.batches)

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(record for batch in self.batches for record in batch.records)


_TEXT = b"0123456789abcdef" * 513
payloads = st.one_of(
    st.none(),
    st.binary(max_size=24),
    st.integers(60, 70).map(lambda size: _TEXT[:size]),  # the length begins to take two bytes
    st.integers(8_188, 8_196).map(lambda size: _TEXT[:size]),  # or three
)
headers = st.lists(
    st.builds(
        Header,
        key=st.one_of(st.sampled_from(["", "h", "trace-id", "ключ", "🙂"]), st.text(max_size=6)),
        value=st.none() | st.binary(max_size=12),
    ),
    max_size=4,
).map(tuple)
timestamps = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_100_000),
    st.integers(-10, 10),
    st.just(NO_TIMESTAMP),
    st.integers(LONG_MIN, LONG_MAX),
)
offset_gaps = st.one_of(st.just(1), st.just(1), st.integers(2, 300), st.integers(1, 1 << 20))


@st.composite
def record_runs(
    draw: st.DrawFn, *, first_offset: int = 0, with_headers: bool = True, count_max: int = 8
) -> list[Record]:
    """At least one record, offsets growing from `first_offset`, with holes."""
    offset = first_offset
    run = []
    for _ in range(draw(st.integers(1, count_max))):
        run.append(
            Record(
                offset=offset,
                timestamp=draw(timestamps),
                key=draw(payloads),
                value=draw(payloads),
                headers=draw(headers) if with_headers else (),
            )
        )
        offset += draw(offset_gaps)
    return run


@st.composite
def producers(draw: st.DrawFn) -> tuple[int, int, int]:
    """Producer id, epoch and base sequence: none, or one that may be about to wrap around."""
    if draw(st.booleans()):
        return NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
    sequence = draw(st.integers(0, 1000) | st.integers(INT_MAX - 3, INT_MAX))
    return draw(st.integers(0, LONG_MAX)), draw(st.integers(0, 32_767)), sequence


@st.composite
def batch_fields(
    draw: st.DrawFn,
    records: list[Record],
    base_offset: int,
    codecs: tuple[Codec, ...] = tuple(Codec),
) -> BatchFields:
    """Everything a batch of these records may carry beside them."""
    producer_id, producer_epoch, base_sequence = draw(producers())
    is_append_time = draw(st.booleans())
    return BatchFields(
        codec=draw(st.sampled_from(codecs)),
        timestamp_type=TimestampType(is_append_time),
        is_transactional=draw(st.booleans()),
        is_control=draw(st.booleans()),
        delete_horizon_ms=draw(st.none() | timestamps),
        partition_leader_epoch=draw(st.integers(-1, INT_MAX)),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        base_offset=base_offset,
        last_offset=records[-1].offset + draw(st.integers(0, 5)),
        max_timestamp=draw(timestamps) if is_append_time else None,
    )


@st.composite
def batches(
    draw: st.DrawFn,
    *,
    base_offset: int | None = None,
    codecs: tuple[Codec, ...] = tuple(Codec),
    count_max: int = 8,
) -> GeneratedBatch:
    """One magic-2 batch. Every tenth or so is empty, as compaction leaves them."""
    if base_offset is None:
        base_offset = draw(st.integers(0, 1000) | st.integers(0, LONG_MAX - (1 << 32)))
    first_offset = base_offset + draw(st.just(0) | st.integers(0, 5))
    records = draw(record_runs(first_offset=first_offset, count_max=count_max))
    fields = draw(batch_fields(records, base_offset, codecs))
    raw = encode_batch(records, fields)
    header = BatchHeader.unpack(raw)
    if draw(st.sampled_from(range(10))) == 7:
        return GeneratedBatch(encode_empty_batch(header), (), header.last_offset)
    if fields.timestamp_type is TimestampType.LOG_APPEND_TIME:
        records = [
            record._replace(
                timestamp=header.max_timestamp, timestamp_type=TimestampType.LOG_APPEND_TIME
            )
            for record in records
        ]
    return GeneratedBatch(raw, tuple(records), header.last_offset)


@st.composite
def legacy_sets(
    draw: st.DrawFn,
    *,
    first_offset: int | None = None,
    magic: int | None = None,
    codecs: tuple[Codec, ...] = LEGACY_CODECS,
) -> GeneratedBatch:
    """Messages of magic 0 or 1: plain ones end to end, or one compressed set."""
    if first_offset is None:
        first_offset = draw(st.integers(0, 1000) | st.integers(0, LONG_MAX - (1 << 32)))
    if magic is None:
        magic = draw(st.integers(0, 1))
    codec = draw(st.sampled_from(codecs))
    records = draw(record_runs(first_offset=first_offset, with_headers=False))
    timestamp_type = TimestampType.NO_TIMESTAMP
    if magic == 1:
        timestamp_type = draw(
            st.sampled_from([TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME])
        )
    append_time = draw(timestamps)
    stored = [
        record._replace(
            timestamp=_legacy_timestamp(record.timestamp, timestamp_type, append_time),
            timestamp_type=timestamp_type,
        )
        for record in records
    ]
    return GeneratedBatch(
        encode_legacy(stored, magic, codec=codec), tuple(stored), stored[-1].offset
    )


def _legacy_timestamp(own: int, timestamp_type: TimestampType, append_time: int) -> int:
    if timestamp_type is TimestampType.NO_TIMESTAMP:
        return NO_TIMESTAMP
    return append_time if timestamp_type is TimestampType.LOG_APPEND_TIME else own


@st.composite
def logs(
    draw: st.DrawFn,
    *,
    count_max: int = 5,
    legacy: bool = False,
    codecs: tuple[Codec, ...] | None = None,
) -> GeneratedLog:
    """A log of a few batches; with `legacy`, old messages before and between them."""
    made: list[GeneratedBatch] = []
    offset = draw(st.integers(0, 100))
    for _ in range(draw(st.integers(1, count_max))):
        if legacy and draw(st.booleans()):
            made.append(draw(legacy_sets(first_offset=offset, codecs=codecs or LEGACY_CODECS)))
        else:
            made.append(draw(batches(base_offset=offset, codecs=codecs or tuple(Codec))))
        offset = made[-1].last_offset + 1 + draw(st.integers(0, 3))
    return GeneratedLog(tuple(made))

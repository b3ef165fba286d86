"""Columns into batches: the bytes that the readable encoder and Kafka's own producers write."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import MessageTooLargeError
from stratalog.format import encode_columns as module
from stratalog.format.batch import BatchHeader, Codec, TimestampType, is_crc_valid, next_entry
from stratalog.format.column_types import schema_of
from stratalog.format.encode_columns import BatchLimits, EncodedBatches, encode_columns
from stratalog.format.record import BatchFields, Header, Record, decode_records, encode_batch
from stratalog.log.reader import IsolationLevel
from tests import strategies
from tests.golden.cases import GoldenCase, all_cases
from tests.golden.expected import consumed

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = schema_of(["timestamp", "key", "value", "headers"])
UNLIMITED = BatchLimits((1 << 31) - 1, (1 << 31) - 1)

# Test vector A of the fact sheet.
VECTOR_A = (
    "00000000000000000000004600000000029894628100000000000100000000000003e800000000000003ed"
    "ffffffffffffffffffffffffffff0000000218000000026b027602026802780e000a02026b0100"
)


def columns_of(records: Sequence[Record]) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([record.timestamp for record in records], pa.int64()).cast(SCHEMA.types[0]),
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array(
                [[header._asdict() for header in r.headers] for r in records], SCHEMA.types[3]
            ),
        ],
        schema=SCHEMA,
    )


def encoded(
    columns: pa.RecordBatch | pa.Table,
    fields: BatchFields | None = None,
    limits: BatchLimits | None = None,
    timestamp_ms: int | None = None,
) -> list[bytes]:
    """Each batch, by itself."""
    parts = encode_columns(
        columns, fields or BatchFields(), limits or BatchLimits(), timestamp_ms=timestamp_ms
    )
    return [bytes(batch) for part in parts for batch in _checked(part)]


def _checked(part: EncodedBatches) -> list[memoryview]:
    assert sum(part.sizes) == len(part.data)
    batches = part.batches
    counts = 0
    for batch in batches:
        header = BatchHeader.unpack(batch)
        entry = next_entry(batch, 0)
        assert entry is not None
        assert entry.size_bytes == header.size_bytes == len(batch)
        assert is_crc_valid(batch, 0, header)
        counts += header.record_count
    assert counts == part.record_count
    return batches


def decoded(batches: Sequence[bytes]) -> list[Record]:
    return [r for raw in batches for r in decode_records(raw, 0, BatchHeader.unpack(raw))]


def test_known_bytes() -> None:
    records = [
        Record(0, 1000, b"k", b"v", (Header("h", b"x"),)),
        Record(1, 1005, b"k", None),
    ]
    (raw,) = encoded(columns_of(records), BatchFields(partition_leader_epoch=0))
    assert raw.hex() == VECTOR_A


def numbered(records: Sequence[Record], first: int = 0) -> list[Record]:
    return [record._replace(offset=offset) for offset, record in enumerate(records, first)]


@given(strategies.record_runs(count_max=20), st.data())
def test_one_batch_is_what_the_readable_encoder_makes(
    drawn: list[Record], data: st.DataObject
) -> None:
    base_offset = data.draw(st.none() | st.integers(0, 1 << 40))
    records = numbered(drawn, base_offset or 0)
    producer_id, producer_epoch, base_sequence = data.draw(strategies.producers())
    is_append_time = data.draw(st.booleans())
    fields = BatchFields(
        timestamp_type=TimestampType(is_append_time),
        is_transactional=data.draw(st.booleans()),
        is_control=data.draw(st.booleans()),
        partition_leader_epoch=data.draw(st.integers(-1, strategies.INT_MAX)),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        base_offset=base_offset,
        max_timestamp=data.draw(strategies.timestamps) if is_append_time else None,
    )
    (raw,) = encoded(columns_of(records), fields, UNLIMITED)
    assert raw == encode_batch(records, fields)


@pytest.mark.slow
@given(
    strategies.record_runs(count_max=20),
    st.integers(62, 400) | st.integers(8_000, 20_000),
    st.sampled_from(Codec),
    st.integers(0, 1000) | st.integers(strategies.INT_MAX - 5, strategies.INT_MAX),
)
def test_cuts(drawn: list[Record], batch_bytes: int, codec: Codec, sequence: int) -> None:
    """Decoding gives the records back; each batch is as full as the limit allows and no fuller."""
    records = numbered(drawn, 77)
    fields = BatchFields(
        codec=codec, producer_id=1, producer_epoch=0, base_sequence=sequence, base_offset=77
    )
    batches = encoded(columns_of(records), fields, BatchLimits(batch_bytes))
    assert decoded(batches) == records
    expected = _cut(records, fields, batch_bytes)
    assert [_header(raw) for raw in batches] == [_header(raw) for raw in expected]
    if codec is Codec.NONE:
        assert batches == expected


def _cut(records: list[Record], fields: BatchFields, batch_bytes: int) -> list[bytes]:
    """The rule, said with the readable encoder."""
    cuts: list[list[Record]] = [[]]
    plain = BatchFields()
    for record in records:
        if cuts[-1] and len(encode_batch([*cuts[-1], record], plain)) > batch_bytes:
            cuts.append([])
        cuts[-1].append(record)
    made = []
    sequence = fields.base_sequence
    for cut in cuts:
        sequence %= 1 << 31
        made.append(
            encode_batch(cut, fields._replace(base_sequence=sequence, base_offset=cut[0].offset))
        )
        sequence += len(cut)
    return made


def _header(raw: bytes) -> BatchHeader:
    """All but what compressed bytes may differ in."""
    return BatchHeader.unpack(raw)._replace(batch_length=0, crc=0)


def test_offsets_restart_in_each_batch_unless_a_base_is_given() -> None:
    columns = columns_of(numbered([Record(0, 5, b"k", b"v" * 30)] * 6))
    restarted = encoded(columns, limits=BatchLimits(150))
    assert [BatchHeader.unpack(raw).base_offset for raw in restarted] == [0, 0, 0]
    running = encoded(columns, BatchFields(base_offset=0), BatchLimits(150))
    assert [BatchHeader.unpack(raw).base_offset for raw in running] == [0, 2, 4]
    assert [BatchHeader.unpack(raw).base_sequence for raw in running] == [-1, -1, -1]


def test_a_record_larger_than_a_batch_has_one_of_its_own() -> None:
    records = numbered([Record(0, 5, None, bytes(size)) for size in (10, 5000, 10, 10)])
    batches = encoded(columns_of(records), BatchFields(base_offset=0), BatchLimits(1000))
    assert [BatchHeader.unpack(raw).record_count for raw in batches] == [1, 1, 2]
    assert decoded(batches) == records


def test_a_record_larger_than_a_message_may_be() -> None:
    records = numbered([Record(0, 5, None, bytes(size)) for size in (10, 900, 10)])
    whole = len(encode_batch([records[1]._replace(offset=0)]))
    limits = BatchLimits(batch_bytes=500, max_message_bytes=whole)
    assert len(encoded(columns_of(records), limits=limits)) == 3
    with pytest.raises(MessageTooLargeError, match=f"row 1 needs a batch of {whole} bytes"):
        encoded(columns_of(records), limits=limits._replace(max_message_bytes=whole - 1))
    table = pa.Table.from_batches([columns_of(records[:1]), columns_of(records)])
    with pytest.raises(MessageTooLargeError, match="row 2"):
        encoded(table, limits=limits._replace(max_message_bytes=whole - 1))


def test_what_compression_would_make_too_large_stays_plain() -> None:
    value = bytes(range(256)) * 4
    plain = len(encode_batch([Record(0, 5, None, value)]))
    (raw,) = encoded(
        columns_of([Record(0, 5, None, value)]),
        BatchFields(codec=Codec.SNAPPY, is_transactional=True, producer_id=1, producer_epoch=0),
        BatchLimits(plain, plain),
    )
    header = BatchHeader.unpack(raw)
    if header.codec_id == Codec.NONE:
        assert len(raw) == plain
    assert header.is_transactional
    assert decoded([raw])[0].value == value


def test_output_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 1000)
    records = numbered([Record(0, i, b"k%d" % i, bytes([i]) * (i % 300)) for i in range(200)])
    fields = BatchFields(base_offset=0, producer_id=9, producer_epoch=0, base_sequence=0)
    parts = list(encode_columns(columns_of(records), fields, BatchLimits(700)))
    assert len(parts) > 20
    assert all(len(part.data) <= 1000 for part in parts)
    monkeypatch.undo()
    whole = encoded(columns_of(records), fields, BatchLimits(700))
    assert [bytes(batch) for part in parts for batch in _checked(part)] == whole
    assert decoded(whole) == records


def test_a_record_larger_than_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 64)
    records = numbered([Record(0, 1, b"k", bytes(size)) for size in (3, 100_000, 3)])
    assert decoded(encoded(columns_of(records), BatchFields(base_offset=0))) == records


@given(strategies.record_runs(count_max=12), st.integers(0, 6), st.integers(0, 12))
def test_slices(drawn: list[Record], start: int, length: int) -> None:
    """Arrow's slices share memory: every column then begins somewhere in its buffers."""
    columns = columns_of(drawn).slice(start, length)
    expected = numbered(drawn[start : start + length])
    assert decoded(encoded(columns, limits=UNLIMITED)) == expected


def test_tables_with_several_chunks() -> None:
    records = numbered([Record(0, i, b"k", b"v%d" % i) for i in range(10)])
    table = pa.Table.from_batches([columns_of(records[:4]), columns_of(records[4:])])
    batches = encoded(table, BatchFields(base_offset=0))
    assert [BatchHeader.unpack(raw).record_count for raw in batches] == [4, 6]
    assert decoded(batches) == records
    assert encoded(table.slice(0, 0)) == []
    assert encoded(columns_of([])) == []


class TestColumnTypes:
    def rows(self, columns: dict[str, pa.Array], timestamp_ms: int | None = None) -> list[Record]:
        return decoded(encoded(pa.record_batch(columns), timestamp_ms=timestamp_ms))

    @pytest.mark.parametrize(
        "kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary_view(), pa.binary(2)]
    )
    def test_binary_like(self, kind: pa.DataType) -> None:
        array = pa.array(["ab", None, "cd"], pa.string()).cast(pa.binary()).cast(kind)
        found = self.rows({"value": array, "key": array}, timestamp_ms=1)
        assert [record.value for record in found] == [b"ab", None, b"cd"]
        assert [record.key for record in found] == [b"ab", None, b"cd"]

    def test_nulls_only(self) -> None:
        found = self.rows({"value": pa.nulls(2), "key": pa.nulls(2), "headers": pa.nulls(2)}, 7)
        assert found == [Record(0, 7, None, None), Record(1, 7, None, None)]

    def test_key_and_headers_may_be_missing(self) -> None:
        (found,) = self.rows({"value": pa.array([b"v"])}, timestamp_ms=7)
        assert found == Record(0, 7, None, b"v")

    @pytest.mark.parametrize(
        ("unit", "number"),
        [("s", 1_700_000_000), ("ms", 1_700_000_000_123), ("us", 1_700_000_000_123_999)],
    )
    def test_units_of_time(self, unit: str, number: int) -> None:
        times = pa.array([number, -number], pa.int64()).cast(pa.timestamp(unit, "UTC"))
        found = self.rows({"value": pa.array([b"", b""]), "timestamp": times})
        expected = 1_700_000_000_000 if unit == "s" else 1_700_000_000_123
        below = -expected - (1 if unit == "us" else 0)  # the millisecond it lies in
        assert [record.timestamp for record in found] == [expected, below]

    def test_absent_timestamps(self) -> None:
        times = pa.array([5, None], pa.timestamp("us"))
        columns = {"value": pa.array([b"", b""]), "timestamp": times}
        assert [r.timestamp for r in self.rows(columns, timestamp_ms=99)] == [0, 99]
        with pytest.raises(ValueError, match="timestamp is null"):
            self.rows(columns)
        with pytest.raises(ValueError, match="no column named timestamp"):
            self.rows({"value": pa.array([b""])})

    def test_a_value_column_is_needed(self) -> None:
        with pytest.raises(ValueError, match="no column named value"):
            self.rows({"key": pa.array([b"k"])}, timestamp_ms=1)

    def test_headers_of_other_types(self) -> None:
        kind = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
        headers = pa.array([[{"key": "a", "value": b"1"}], None, []], kind)
        found = self.rows({"value": pa.array([b"x"] * 3), "headers": headers}, timestamp_ms=1)
        assert [record.headers for record in found] == [(Header("a", b"1"),), (), ()]

    def test_null_lists_may_hide_headers(self) -> None:
        """Arrow allows entries below a null list. They are not there."""
        entries = pa.array([{"key": "a", "value": b"1"}] * 3, SCHEMA.types[3].value_type)
        lists = pa.ListArray.from_arrays(
            pa.array([0, 1, 2, 3], pa.int32()), entries, mask=pa.array([False, True, False])
        )
        found = self.rows({"value": pa.array([b"x"] * 3), "headers": lists}, timestamp_ms=1)
        assert [len(record.headers) for record in found] == [1, 0, 1]

    @pytest.mark.parametrize("header", [None, {"key": None, "value": b"1"}])
    def test_headers_without_key(self, header: dict[str, bytes | None] | None) -> None:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns = {"value": pa.array([b"x"]), "headers": pa.array([[header]], kind)}
        with pytest.raises(ValueError, match="header"):
            self.rows(columns, timestamp_ms=1)

    def test_fields_of_single_batches(self) -> None:
        columns = columns_of([Record(0, 1, b"", b"")])
        for fields in (BatchFields(last_offset=3), BatchFields(delete_horizon_ms=3)):
            with pytest.raises(ValueError, match="single batches"):
                encoded(columns, fields)


PLAIN = {
    "java-none",
    "rdk-none",
    "idempotent",
    "multiseg",
    "ooo-createtime",
    "broker-uncompressed",
    "index1",
    "txn",
}
PLAIN_CASES = [case for case in all_cases() if case.name in PLAIN]


@pytest.mark.parametrize("case", PLAIN_CASES, ids=str)
def test_golden_batches_from_the_records_that_were_consumed(case: GoldenCase) -> None:
    """Kafka's own bytes, from what a real consumer read out of them."""
    by_offset = {r.offset: r for r in consumed(case, IsolationLevel.READ_UNCOMMITTED)}
    compared = 0
    for path in sorted(case.partition_dir.glob("*.log")):
        data = path.read_bytes()
        at = 0
        while (entry := next_entry(data, at)) is not None:
            header, at = BatchHeader.unpack(data, at), entry.end
            records = [
                by_offset[offset]
                for offset in range(header.base_offset, header.last_offset + 1)
                if offset in by_offset
            ]
            if header.is_control or len(records) < header.record_count:
                continue
            fields = BatchFields(
                is_transactional=header.is_transactional,
                partition_leader_epoch=header.partition_leader_epoch,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                base_offset=header.base_offset,
            )
            (raw,) = encoded(columns_of(records), fields, UNLIMITED)
            assert raw == data[entry.position : entry.end]
            compared += 1
    assert compared > 0


def test_sizes_are_those_of_the_batches() -> None:
    part = EncodedBatches(struct.pack(">4s3s", b"abcd", b"xyz"), [4, 3], 2)
    assert [bytes(batch) for batch in part.batches] == [b"abcd", b"xyz"]

"""Columns of good batches: the same records as the readable decoder gives."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.format import columns
from stratalog.format.batch import BatchHeader, Codec, TimestampType, attributes_of
from stratalog.format.legacy import encode_legacy
from stratalog.format.record import (
    BatchFields,
    Header,
    Record,
    encode_batch,
    encode_empty_batch,
)
from tests.effort import scaled
from tests.format.decoding import (
    Decoded,
    assert_same,
    decode_columns,
    decode_readably,
    guarded,
    records_in,
)
from tests.format.known_batches import DATA, DATA_RECORDS, MARKER, one_record
from tests.golden.cases import GoldenCase, all_cases, log_dir_case
from tests.strategies import GeneratedLog, logs


def test_known_bytes() -> None:
    assert records_in(columns.decode(DATA)) == DATA_RECORDS
    assert columns.decode(DATA).schema.names == list(columns.RECORD_COLUMNS)


def test_control_batches_only_when_asked_for() -> None:
    assert records_in(columns.decode(DATA + MARKER)) == DATA_RECORDS
    marker = Record(7, 2000, bytes(4), bytes.fromhex("000000000005"))
    both = columns.decode(DATA + MARKER, include_control=True)
    assert records_in(both) == [*DATA_RECORDS, marker]


def test_schema() -> None:
    schema = columns.schema_of(columns.ALL_COLUMNS)
    assert {field.name: str(field.type) for field in schema} == {
        "offset": "int64",
        "timestamp": "timestamp[ms, tz=UTC]",
        "timestampType": "int32",
        "key": "binary",
        "value": "binary",
        "headers": "list<element: struct<key: string not null, value: binary> not null>",
        "producerId": "int64",
        "producerEpoch": "int16",
        "sequence": "int32",
        "partitionLeaderEpoch": "int32",
        "codec": "string",
        "isTransactional": "bool",
        "isControl": "bool",
        "baseOffset": "int64",
        "lastOffset": "int64",
        "batchPosition": "int64",
        "batchSize": "int32",
        "magic": "int8",
    }
    assert columns.decode(b"").schema == columns.schema_of()
    with pytest.raises(ValueError, match="no column named keys"):
        columns.schema_of(["keys"])


@pytest.mark.parametrize("case", [*all_cases(), log_dir_case()], ids=str)
def test_golden_logs(case: GoldenCase) -> None:
    for directory in case.partition_dirs():
        for path in sorted(directory.glob("*.log")):
            raw = path.read_bytes()
            assert_same(decode_columns(raw), decode_readably(raw))


@pytest.mark.slow
@given(log=logs(legacy=True), part_bytes=st.sampled_from([1, 200, 1 << 20]))
@settings(max_examples=scaled(50), deadline=None)
def test_gives_what_was_put_in(log: GeneratedLog, part_bytes: int) -> None:
    decoded = decode_columns(guarded(log.raw), part_bytes=part_bytes)
    assert decoded.error is None
    assert decoded.records == list(log.records)


@pytest.mark.parametrize("codec", list(Codec))
def test_plain_batch_larger_than_a_part_after_a_small_one(codec: Codec) -> None:
    small, large = Record(0, 1000, b"k", b"v"), Record(1, 1000, b"k", bytes(1000))
    raw = encode_batch([small], BatchFields(codec=codec)) + encode_batch([large])
    assert decode_columns(guarded(raw), part_bytes=500) == Decoded([small, large], None)


@pytest.mark.slow
@given(log=logs(legacy=True), data=st.data())
@settings(max_examples=scaled(40), deadline=None)
def test_fewer_columns_are_the_same_columns(log: GeneratedLog, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(columns.ALL_COLUMNS), unique=True, min_size=1))
    full = columns.decode(log.raw, columns=columns.ALL_COLUMNS, include_control=True)
    pruned = columns.decode(log.raw, columns=names, include_control=True)
    assert pruned.equals(full.select(names))


@pytest.mark.slow
@given(log=logs())
@settings(max_examples=scaled(40), deadline=None)
def test_batch_facts(log: GeneratedLog) -> None:
    decoded = columns.decode(log.raw, columns=columns.ALL_COLUMNS, include_control=True)
    expected = []
    position = 0
    for batch in log.batches:
        header = batch.header
        expected += [
            {
                "producerId": header.producer_id,
                "producerEpoch": header.producer_epoch,
                "sequence": header.sequence_of(record.offset),
                "partitionLeaderEpoch": header.partition_leader_epoch,
                "codec": Codec(header.codec_id).name.lower(),
                "isTransactional": header.is_transactional,
                "isControl": header.is_control,
                "baseOffset": header.base_offset,
                "lastOffset": header.last_offset,
                "batchPosition": position,
                "batchSize": len(batch.raw),
                "magic": 2,
            }
            for record in batch.records
        ]
        position += len(batch.raw)
    assert decoded.select(columns.ALL_COLUMNS[6:]).to_pylist() == expected


@pytest.mark.slow
@given(log=logs(codecs=(Codec.NONE, Codec.LZ4), count_max=3), data=st.data())
@settings(max_examples=scaled(40), deadline=None)
def test_a_cut_log_gives_its_whole_batches(log: GeneratedLog, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log.raw)))
    raw = log.raw[:cut]
    assert_same(decode_columns(guarded(raw)), decode_readably(raw))


def test_legacy_and_new_batches_keep_their_order() -> None:
    old = [Record(0, 5, b"a", None), Record(1, 6, None, b"b")]
    raw = encode_legacy(old, 1) + encode_batch([Record(2, 7, b"c", b"d")])
    raw += encode_legacy([Record(3, 8, b"e", b"f"), Record(4, 9, b"g", b"h")], 1, codec=Codec.GZIP)
    decoded = columns.decode(raw, columns=["offset", "magic", "codec", "baseOffset", "key"])
    assert decoded.to_pydict() == {
        "offset": [0, 1, 2, 3, 4],
        "magic": [1, 1, 2, 1, 1],
        "codec": ["none", "none", "none", "gzip", "gzip"],
        "baseOffset": [0, 1, 2, -1, -1],
        "key": [b"a", None, b"c", b"e", b"g"],
    }


def test_timestamps_of_the_log() -> None:
    records = [Record(0, 10, None, b"a"), Record(1, 20, None, b"b")]
    append_time = BatchFields(
        timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=1_700_000_000_000
    )
    horizon = BatchFields(delete_horizon_ms=1_800_000_000_000)
    raw = encode_batch(records, append_time) + encode_batch(records, horizon)
    decoded = columns.decode(raw, columns=["timestamp", "timestampType"])
    assert decoded.column("timestamp").cast(pa.int64()).to_pylist() == [
        1_700_000_000_000,
        1_700_000_000_000,
        10,
        20,
    ]
    assert decoded.column("timestampType").to_pylist() == [1, 1, 0, 0]


def test_empty_batches_and_holes() -> None:
    raw = encode_batch([Record(4, 1, None, b"x"), Record(900, 2, None, b"y")])
    empty = encode_empty_batch(BatchHeader.unpack(raw))
    assert records_in(columns.decode(empty)) == []
    assert columns.decode(empty + raw + empty).column("offset").to_pylist() == [4, 900]


def test_what_follows_the_header_of_a_batch_without_records_is_ignored() -> None:
    raw = one_record("ffffff", record_count=0)
    assert_same(decode_columns(raw + DATA), decode_readably(raw + DATA))
    assert records_in(columns.decode(raw + DATA)) == DATA_RECORDS
    broken = one_record("ffffff", record_count=0, attributes=int(Codec.ZSTD))
    assert records_in(columns.decode(broken + DATA)) == DATA_RECORDS


def test_selected_batches() -> None:
    raw = b"".join(encode_batch([Record(offset, 0, None, b"")]) for offset in range(10))
    table = columns.scan_batches(raw)
    chosen = table.select(np.isin(table["base_offset"], [2, 3, 7]))
    assert columns.decode(raw, chosen).column("offset").to_pylist() == [2, 3, 7]
    with pytest.raises(ValueError, match="does not belong to this buffer"):
        columns.decode(raw[:100], table)


@pytest.mark.parametrize("codec", list(Codec))
def test_parts_are_bounded_and_complete(codec: Codec) -> None:
    fields = BatchFields(codec=codec)
    raw = b"".join(
        encode_batch([Record(offset, 0, b"k", bytes(1000))], fields) for offset in range(50)
    )
    decoder = columns.Decoder(["offset", "value"], part_bytes=4000)
    parts = list(decoder.decode(raw, columns.scan_batches(raw)))
    assert max(part.column("value").nbytes for part in parts) < 6000
    assert pa.concat_batches(parts).column("offset").to_pylist() == list(range(50))


def test_a_decoder_is_reusable_and_headers_fit_again() -> None:
    decoder = columns.Decoder()
    rng = random.Random(5)
    for count in (0, 1, 7, 0, 300, 2):
        records = [
            Record(
                offset,
                offset,
                None,
                b"v",
                tuple(
                    Header(f"key {rng.random()}", rng.choice([None, b"", rng.randbytes(90)]))
                    for _ in range(count)
                ),
            )
            for offset in range(rng.randint(1, 20))
        ]
        raw = encode_batch(records)
        (batch,) = decoder.decode(raw, columns.scan_batches(raw))
        assert records_in(batch) == records


def test_header_keys_that_are_not_utf8() -> None:
    # key "\xff\xfe", value null; then key "ключ".
    raw = one_record("280000000101" + "04" + "04fffe" + "01" + "10d0bad0bbd18ed187" + "00")
    decoded = decode_columns(raw)
    assert decoded.records[0].headers == (Header("\ufffd\ufffd", None), Header("ключ", b""))
    assert_same(decoded, decode_readably(raw))


def test_long_and_short_fields_at_the_end_of_memory() -> None:
    for size in [*range(140), 200, 255, 256, 257, 5000]:
        value = bytes(index % 251 for index in range(size))
        records = [Record(0, 0, value, None), Record(1, 0, None, value)]
        decoded = decode_columns(guarded(encode_batch(records)))
        assert decoded.records == records


def test_all_flags_reach_their_columns() -> None:
    attributes = attributes_of(is_transactional=True, timestamp_type=TimestampType.LOG_APPEND_TIME)
    raw = one_record("0c000000010100", attributes=attributes, producer_id=77, producer_epoch=3)
    names = ["isTransactional", "isControl", "producerId", "producerEpoch", "timestampType"]
    expected: dict[str, list[Any]] = dict(
        zip(names, ([True], [False], [77], [3], [1]), strict=True)
    )
    assert columns.decode(raw, columns=names).to_pydict() == expected

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings

from stratalog.errors import CorruptBatchError, CorruptRecordError
from stratalog.format import log_entry, record_spans
from stratalog.format.batch import BatchHeader, Codec, Entry, TimestampType, next_entry
from stratalog.format.legacy import LegacyHeader, encode_legacy
from stratalog.format.log_entry import (
    EntryHeader,
    RecordDecoder,
    check_entry_crc,
    header_of,
    is_entry_crc_valid,
    records_of,
)
from stratalog.format.record import BatchFields, Record, encode_batch, encode_empty_batch
from tests.strategies import GeneratedLog, logs

OLD = [
    Record(0, -1, b"k", b"v", timestamp_type=TimestampType.NO_TIMESTAMP),
    Record(1, 70, b"k", None),
    Record(5, 80, None, b"w"),
]
LOG = (
    encode_legacy(OLD[:1], 0)
    + encode_legacy(OLD[1:2], 1)
    + encode_legacy(OLD[2:], 1)
    + encode_batch([Record(6, 90, b"k", b"x")], BatchFields(producer_id=4, base_sequence=2))
)


def entries_of(raw: bytes) -> list[Entry]:
    entries = []
    at = 0
    while (entry := next_entry(raw, at)) is not None:
        entries.append(entry)
        at = entry.end
    return entries


def test_one_walk_over_every_magic() -> None:
    entries = entries_of(LOG)
    assert [entry.magic for entry in entries] == [0, 1, 1, 2]
    records = [record for entry in entries for record in records_of(LOG, entry)]
    assert records == [*OLD, Record(6, 90, b"k", b"x")]


def test_headers_answer_to_the_same_names() -> None:
    headers: list[EntryHeader] = [header_of(LOG, entry) for entry in entries_of(LOG)]
    assert [type(header) for header in headers] == [LegacyHeader] * 3 + [BatchHeader]
    names = {name for name in dir(BatchHeader) if not name.startswith("_")}
    assert names - set(dir(LegacyHeader)) == {"batch_length", "last_offset_delta", "base_timestamp"}
    assert [header.base_offset for header in headers] == [0, 1, 5, 6]
    assert [header.max_timestamp for header in headers] == [-1, 70, 80, 90]
    assert [header.producer_id for header in headers] == [-1, -1, -1, 4]
    assert [header.sequence_of(header.last_offset) for header in headers] == [-1, -1, -1, 2]


def test_empty_batch_has_no_records() -> None:
    raw = encode_empty_batch(BatchHeader.unpack(LOG, entries_of(LOG)[3].position))
    assert list(records_of(raw, entries_of(raw)[0])) == []


@pytest.mark.parametrize("index", range(4))
def test_crc_of_every_magic(index: int) -> None:
    entry = entries_of(LOG)[index]
    damaged = bytearray(LOG)
    damaged[entry.end - 1] ^= 1
    header = header_of(LOG, entry)
    assert is_entry_crc_valid(LOG, entry, header)
    assert not is_entry_crc_valid(damaged, entry, header)
    check_entry_crc(LOG, entry, header)
    with pytest.raises(CorruptBatchError, match="CRC mismatch") as caught:
        check_entry_crc(damaged, entry, header)
    assert caught.value.position == entry.position
    with pytest.raises(CorruptBatchError, match="CRC mismatch"):
        list(records_of(damaged, entry))


def test_without_the_crc_damage_is_read_as_it_stands() -> None:
    entry = entries_of(LOG)[1]
    damaged = bytearray(LOG)
    damaged[entry.position + 30] ^= 1  # the key
    assert [r.key for r in records_of(damaged, entry, check_crc=False)] == [b"j"]


@pytest.mark.parametrize("magic", [3, 127, 128, 255])
def test_a_magic_that_does_not_exist(magic: int) -> None:
    raw = bytearray(LOG)
    raw[16] = magic
    entry = entries_of(bytes(raw))[0]
    with pytest.raises(CorruptBatchError, match=f"magic is {magic}"):
        header_of(raw, entry)


def test_an_entry_that_is_not_the_headers() -> None:
    entry = entries_of(LOG)[3]
    with pytest.raises(CorruptBatchError, match="the entry has"):
        header_of(LOG + b"?", entry._replace(size_bytes=entry.size_bytes + 1))


@pytest.mark.slow
@settings(max_examples=60)
@given(logs(legacy=True))
def test_every_log_comes_back(log: GeneratedLog) -> None:
    raw = log.raw
    read = [record for entry in entries_of(raw) for record in records_of(raw, entry)]
    assert read == list(log.records)


@settings(deadline=None)
@given(logs(count_max=4, legacy=True))
def test_records_from_spans(log: GeneratedLog) -> None:
    """Built from what the kernel finds, or left to the readable decoder."""
    for entry in entries_of(log.raw):
        header = header_of(log.raw, entry)
        expected = list(records_of(log.raw, entry))
        if isinstance(header, BatchHeader) and header.record_count:
            found = record_spans.list_records(log.raw, entry.position, header)
            assert found == expected
            assert {type(record) for record in found} == {Record}
            assert [type(each) for record in found for each in record.headers] == [
                type(each) for record in expected for each in record.headers
            ]


def test_unusual_batches_are_left_to_the_readable_decoder() -> None:
    raw = bytearray(encode_batch([Record(3, 5, b"k", b"v"), Record(4, 6, None, None)]))
    header = BatchHeader.unpack(raw)
    good = record_spans.list_records(bytes(raw), 0, header)
    assert good == [Record(3, 5, b"k", b"v"), Record(4, 6, None, None)]
    for count in (-1, 0, 1, 3, 1 << 30):
        other = header._replace(record_count=count)
        assert record_spans.list_records(bytes(raw), 0, other) is None
    for at in range(61, len(raw)):
        for value in (0, 1, 2, 0x7F, 0x80, 0xFF):
            changed = bytes(raw[:at]) + bytes([value]) + bytes(raw[at + 1 :])
            entry = entries_of(changed)[0]
            try:
                expected = list(records_of(changed, entry, check_crc=False))
            except CorruptRecordError:
                expected = None
            found = record_spans.list_records(changed, 0, header)
            assert found is None or found == expected, (at, value)
            assert found is not None or expected is None or _is_unordered(expected)
    compressed = encode_batch([Record(3, 5, b"k", b"v")], BatchFields(codec=Codec.LZ4))
    torn = compressed[:70] + b"\xff" + compressed[71:]
    assert record_spans.list_records(torn, 0, BatchHeader.unpack(torn)) is None


def _is_unordered(records: list[Record]) -> bool:
    return any(a.offset >= b.offset for a, b in pairwise(records))


def test_the_kernel_is_loaded_when_it_pays_off(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = encode_batch([Record(at, 5, b"k", b"v") for at in range(6)])
    entry = entries_of(raw)[0]
    header = header_of(raw, entry)
    monkeypatch.setattr(log_entry, "LOAD_SPANS_AFTER_RECORDS", 10)
    monkeypatch.delitem(sys.modules, record_spans.__name__)
    decoder = RecordDecoder()
    expected = list(records_of(raw, entry))
    is_loaded = []
    for _ in range(4):
        assert decoder.records_of(raw, entry, header) == expected
        is_loaded.append(record_spans.__name__ in sys.modules)
    assert is_loaded == [False, False, True, True]

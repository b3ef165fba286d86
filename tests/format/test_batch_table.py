from __future__ import annotations

import random
import zlib
from contextlib import suppress
from typing import Any

import crc32c
import numpy as np
import pytest
from hypothesis import given, settings

from stratalog.errors import CorruptBatchError
from stratalog.format.batch import NO_SEQUENCE, BatchHeader, next_entry
from stratalog.format.batch_table import BatchTable, Stop, check_crcs, scan_batches
from stratalog.format.kernels import crc
from stratalog.format.kernels.memory import BATCH
from stratalog.format.legacy import encode_legacy
from stratalog.format.log_entry import header_of, is_entry_crc_valid
from stratalog.format.record import BatchFields, Record, encode_batch
from tests.format.decoding import guarded
from tests.golden.cases import GoldenCase, all_cases
from tests.strategies import GeneratedLog, logs

# Batch and marker of the format pages, byte for byte.
DATA = bytes.fromhex(
    "0000000000000000000000460000000002989462810000000000010000000000"
    "0003e800000000000003edffffffffffffffffffffffffffff00000002"
    "18000000026b027602026802780e000a02026b0100"
)
MARKER = bytes.fromhex(
    "00000000000000070000004200000003021f3ca98a003000000000000000000000"
    "07d000000000000007d000000000000003e90000ffffffff00000001"
    "2000000008000000000c00000000000500"
)


def test_columns_of_known_bytes() -> None:
    table = scan_batches(DATA + MARKER)
    assert table.stop is Stop.END
    assert table.end == 160
    assert {name: table[name].tolist() for name in BATCH.names or ()} == {
        "position": [0, 82],
        "base_offset": [0, 7],
        "last_offset": [1, 7],
        "base_timestamp": [1000, 2000],
        "max_timestamp": [1005, 2000],
        "producer_id": [-1, 1001],
        "size_bytes": [82, 78],
        "partition_leader_epoch": [0, 3],
        "crc": [0x98946281, 0x1F3CA98A],
        "base_sequence": [-1, -1],
        "record_count": [2, 1],
        "attributes": [0, 0x30],
        "producer_epoch": [-1, 0],
        "magic": [2, 2],
    }
    assert check_crcs(DATA + MARKER, table).tolist() == [True, True]


def test_legacy_headers_tell_less() -> None:
    records = [Record(5, 70, b"k", b"v"), Record(6, 80, b"k", b"v")]
    raw = encode_legacy(records[:1], 0) + encode_legacy(records, 1, codec=BatchFields().codec)
    raw += encode_legacy(records, 1, codec=type(BatchFields().codec).GZIP)
    table = scan_batches(raw)
    assert table["magic"].tolist() == [0, 1, 1, 1]
    assert table["base_offset"].tolist() == [5, 5, 6, -1]
    assert table["last_offset"].tolist() == [5, 5, 6, 6]
    assert table["max_timestamp"].tolist() == [-1, 70, 80, 80]
    assert table["record_count"].tolist() == [1, 1, 1, -1]
    for name in ("producer_id", "producer_epoch", "base_sequence", "partition_leader_epoch"):
        assert set(table[name].tolist()) == {-1}
    assert check_crcs(raw, table).all()


@pytest.mark.slow
@given(log=logs(legacy=True))
@settings(max_examples=60, deadline=None)
def test_agrees_with_the_readable_walk(log: GeneratedLog) -> None:
    raw = log.raw
    table = scan_batches(raw)
    at = 0
    for row in table.rows:
        entry = next_entry(raw, at)
        assert entry is not None
        header = header_of(raw, entry)
        assert (row["position"], row["size_bytes"]) == (entry.position, entry.size_bytes)
        assert row["magic"] == entry.magic
        assert row["last_offset"] == header.last_offset
        assert row["base_offset"] == (-1 if header.base_offset is None else header.base_offset)
        assert row["max_timestamp"] == header.max_timestamp
        assert row["attributes"] == header.attributes
        assert row["crc"] == header.crc
        assert row["producer_id"] == header.producer_id
        assert row["producer_epoch"] == header.producer_epoch
        assert row["base_sequence"] == header.base_sequence
        assert row["partition_leader_epoch"] == header.partition_leader_epoch
        at = entry.end
    assert at == table.end == len(raw)
    assert check_crcs(raw, table).all()


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_golden_logs(case: GoldenCase) -> None:
    for directory in case.partition_dirs():
        for path in sorted(directory.glob("*.log")):
            raw = path.read_bytes()
            table = scan_batches(raw)
            positions, is_right = [], []
            at = 0
            with suppress(CorruptBatchError):
                while (entry := next_entry(raw, at)) is not None:
                    is_right.append(is_entry_crc_valid(raw, entry, header_of(raw, entry)))
                    positions.append(at)
                    at = entry.end
            assert table["position"].tolist() == positions
            assert table.end == at
            assert check_crcs(raw, table).tolist() == is_right


def test_every_cut_is_a_partial_tail() -> None:
    raw = DATA + MARKER
    for end in range(len(raw)):
        table = scan_batches(guarded(raw[:end]))
        assert len(table) == (end >= len(DATA))
        assert table.end == len(DATA) * len(table)
        assert table.stop is (Stop.END if end in (0, len(DATA)) else Stop.PARTIAL)
        table.raise_if_corrupt()


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        pytest.param(
            8, b"\x00\x00\x00\x0d", "invalid batch length 13", id="length below any message"
        ),
        pytest.param(8, b"\xff\xff\xff\xff", "invalid batch length -1", id="negative length"),
        pytest.param(
            8, b"\x00\x00\x00\x30", "invalid batch length 48", id="shorter than its header"
        ),
        pytest.param(16, b"\x03", "magic is 3", id="magic of the future"),
        pytest.param(16, b"\xff", "magic is 255", id="negative magic"),
    ],
)
def test_damage_ends_the_walk(at: int, value: bytes, reason: str) -> None:
    raw = bytearray(DATA + DATA)
    raw[82 + at : 82 + at + len(value)] = value
    table = scan_batches(raw)
    assert len(table) == 1
    assert (table.stop, table.end) == (Stop.CORRUPT, 82)
    with pytest.raises(CorruptBatchError, match=reason) as caught:
        table.raise_if_corrupt()
    assert caught.value.position == 82


def test_zero_padding_is_damage() -> None:
    table = scan_batches(DATA + bytes(4096))
    assert (len(table), table.stop, table.end) == (1, Stop.CORRUPT, 82)


def test_range_and_limit() -> None:
    raw = DATA * 5000
    table = scan_batches(raw)
    assert len(table) == 5000
    assert table["position"].tolist() == list(range(0, len(raw), 82))
    part = scan_batches(raw, 82, 400, batches_max=2)
    assert (part["position"].tolist(), part.end, part.stop) == ([82, 164], 246, Stop.FULL)
    rest = scan_batches(raw, part.end, 400)
    assert (rest["position"].tolist(), rest.stop) == ([246], Stop.PARTIAL)
    assert len(scan_batches(raw, batches_max=0)) == 0
    assert len(table.select(table["position"] > 1000)) == 5000 - 13
    assert table.select(slice(0, 10, 3))["position"].tolist() == [0, 246, 492, 738]


def test_wrong_crc_is_found_among_right_ones() -> None:
    raw = bytearray(DATA * 100)
    raw[82 * 40 + 70] ^= 1
    is_right = check_crcs(raw, scan_batches(raw))
    assert np.flatnonzero(~is_right).tolist() == [40]


def test_a_table_of_another_buffer_is_refused() -> None:
    table = scan_batches(DATA + DATA)
    with pytest.raises(ValueError, match="does not belong to this buffer"):
        check_crcs(DATA, table)


def test_compiled_crc_agrees_with_the_package() -> None:
    data = random.Random(1).randbytes(40_000)
    sizes = [*range(21, 1300), 3070, 3072, 3093, 3094, 3095, 16_384, 40_000]
    rows = np.zeros(len(sizes), BATCH)
    rows["size_bytes"], rows["magic"] = sizes, 2
    rows["position"] = [len(data) - size for size in sizes]
    rows["crc"] = [crc32c.crc32c(data[len(data) - size + 21 :]) for size in sizes]
    table = BatchTable(rows, len(data), Stop.END)
    assert check_crcs(guarded(data), table).all()
    rows["crc"] ^= 1
    assert not check_crcs(data, table).any()


def test_steps_without_the_instruction_agree_too() -> None:
    data = random.Random(2).randbytes(64)
    step_8: Any = crc._table_step_8
    step_1: Any = crc._table_step_1
    so_far = 0xFFFF_FFFF
    for at in range(0, 56, 8):
        word = int.from_bytes(data[at : at + 8], "little", signed=True)
        so_far = step_8.py_func(so_far, word)
    for byte in data[56:]:
        so_far = step_1.py_func(so_far, byte)
    assert so_far ^ 0xFFFF_FFFF == crc32c.crc32c(data)


def test_legacy_crc_is_the_other_polynomial() -> None:
    raw = encode_legacy([Record(0, -1, b"k", b"v")], 0)
    table = scan_batches(raw)
    assert table["crc"].tolist() == [zlib.crc32(raw[16:])]


def test_headers_the_walk_does_not_judge() -> None:
    header = BatchHeader.unpack(encode_batch([Record(9, 9, None, b"")]))
    odd = header._replace(base_offset=-5, record_count=-1, base_sequence=NO_SEQUENCE).pack()
    table = scan_batches(odd + encode_batch([Record(9, 9, None, b"")])[61:])
    assert (table["base_offset"].tolist(), table["record_count"].tolist()) == ([-5], [-1])

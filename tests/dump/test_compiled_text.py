"""The compiled path prints what the readable one prints, whatever the log and the filters."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.dump import compiled_text
from stratalog.dump import log_contents as log_values
from stratalog.dump import text as lines
from stratalog.dump.log_contents import DumpOptions, Filters
from stratalog.format.batch import Codec
from stratalog.format.record import BatchFields, Header, Record, encode_batch
from tests.dump.dumping import Dump, dump
from tests.strategies import GeneratedLog, logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = DumpOptions(print_data=True)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("t-0") / "00000000000000000000.log"


def _agreed(log: Path, raw: bytes, options: DumpOptions) -> Dump:
    log.write_bytes(raw)
    readable = dump([log], replace(options, is_bulk=False))
    compiled = dump([log], replace(options, is_bulk=True))
    assert compiled == readable
    return readable


@st.composite
def _options(draw: st.DrawFn) -> DumpOptions:
    bound = st.none() | st.integers(-1, 400)
    time = st.none() | st.integers(1_700_000_000_000, 1_700_000_100_000) | st.integers(-5, 5)
    filters = Filters(
        offset_min=draw(bound),
        offset_end=draw(bound),
        timestamp_min=draw(time),
        timestamp_end=draw(time),
        key=draw(st.none() | st.none() | st.binary(max_size=1)),
        producer_id=draw(st.none() | st.none() | st.just(-1)),
    )
    return DumpOptions(
        print_data=draw(st.booleans()),
        deep_iteration=draw(st.booleans()),
        skip_record_metadata=draw(st.booleans()),
        max_bytes=draw(st.just(DATA.max_bytes) | st.integers(0, 2000)),
        filters=draw(st.just(Filters()) | st.just(filters)),
        limit=draw(st.none() | st.integers(0, 6)),
    )


@pytest.mark.slow
@given(made=logs(legacy=True), options=_options())
def test_any_log(log: Path, made: GeneratedLog, options: DumpOptions) -> None:
    _agreed(log, made.raw, options)


@pytest.mark.slow
@given(made=logs(), options=_options(), data=st.data())
def test_any_damaged_log(
    log: Path, made: GeneratedLog, options: DumpOptions, data: st.DataObject
) -> None:
    raw = bytearray(made.raw)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)) | st.just(len(raw)))
    _agreed(log, bytes(raw[:cut]), options)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_every_kind_of_malformed_text(log: Path, codec: Codec) -> None:
    leads = (0x41, 0x80, 0xBF, 0xC1, 0xC2, 0xE0, 0xE1, 0xED, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF)
    rest = (0x00, 0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC2, 0xF0)
    values = [bytes(quad) for quad in product(leads, rest, rest, rest)]
    values += [value[:size] for value in values[::7] for size in (1, 2, 3)]
    values += [b"plain text " * 9 + value + b" more" for value in values[::11]]
    records = [Record(offset, 5, value, value) for offset, value in enumerate(values)]
    raw = encode_batch(records, BatchFields(codec=codec))
    assert len(_agreed(log, raw, DATA).lines) == len(values) + 2


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 31, 32, 33, 127, 128, 129, 3_000_000])
def test_fields_of_any_size(log: Path, size: int) -> None:
    """The largest is more than one block of output."""
    records = [
        Record(0, 1, b"k" * size, b"v" * size, (Header("h" * min(size, 9_000), b"x" * size),)),
        Record(1, 2, None, b"v" * size),
        Record(2, 3, b"k" * size, None),
        Record(3, 4, "é".encode() * size, b"\xff" * size),
    ]
    shown = _agreed(log, encode_batch(records) * 2, DATA)
    assert len(shown.stdout) > 10 * size


def test_more_lines_than_a_block_and_more_gaps_than_are_kept(log: Path) -> None:
    raw = b"".join(
        encode_batch([Record(offset + 3 * i, i, b"key", b"v" * 90) for i in range(700)])
        for offset in range(0, 30_000, 3_000)
    )
    shown = _agreed(log, raw * 2, DATA)
    assert shown.findings.count("is followed by") == 2 * 7_000 - 1
    assert len(shown.stdout) > compiled_text.BLOCK_BYTES


def test_extreme_numbers(log: Path) -> None:
    extremes = (0, 9, 10, 99, 100, 999, 9_999, 10_000, 99_999_999, 1 << 40, (1 << 63) - 1, -1, -10)
    raw = b"".join(
        encode_batch(
            [Record(7, timestamp, None, None)],
            BatchFields(producer_id=number, delete_horizon_ms=number),
        )
        for number in (*extremes, -(1 << 63))
        for timestamp in (number, -(1 << 63), (1 << 63) - 1)
    )
    _agreed(log, raw, DATA)


@pytest.mark.parametrize(
    "filters",
    [
        Filters(offset_min=0),
        Filters(timestamp_min=(1 << 63) - 1),
        Filters(timestamp_end=1 << 63),
        Filters(offset_end=(1 << 63) - 1),
        Filters(offset_end=1 << 63),
    ],
)
def test_filters_at_the_largest_numbers(log: Path, filters: Filters) -> None:
    largest = (1 << 63) - 1
    raw = encode_batch([Record(largest - 1, largest, b"k", b"v")])
    shown = _agreed(log, raw, replace(DATA, filters=filters))
    assert f"| offset: {largest - 1} CreateTime: {largest} " in shown.stdout


def test_windows_smaller_than_a_batch(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_text, "WINDOW_BYTES", 300)
    raw = b"".join(
        encode_batch([Record(offset, 1, b"k", b"v" * size)])
        for offset, size in enumerate([5, 100, 200, 290, 1_000, 3, 3, 3])
    )
    assert len(_agreed(log, raw + b"torn", DATA).lines) == 2 + 16


def test_many_small_compressed_batches_are_unpacked_in_turns(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_text, "_SCRATCH_BYTES", 500)
    codecs = [*Codec] * 6
    raw = b"".join(
        encode_batch([Record(offset, 1, b"k", b"v" * 300)], BatchFields(codec=codec))
        for offset, codec in enumerate(codecs)
    )
    assert len(_agreed(log, raw, DATA).lines) == 1 + 2 * len(codecs)


def test_a_large_log_takes_the_compiled_path_by_itself(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = encode_batch([Record(offset, 1, b"k", b"v") for offset in range(1_000)])
    log.write_bytes(batch * 60)
    taken: list[bool] = []

    def blocks(_: compiled_text.BulkDump) -> Iterator[bytes]:
        taken.append(True)
        yield b"bulk\n"

    monkeypatch.setattr(compiled_text.BulkDump, "blocks", blocks)
    assert dump([log], DATA).lines[1] == "bulk"
    assert taken == [True]
    dump([log], DumpOptions())  # 60 lines are not worth it
    dump([log], replace(DATA, max_bytes=len(batch)))
    assert taken == [True]
    assert lines.BULK_LINES_MIN < 60 * 1_000
    large = encode_batch([Record(offset, 1, b"k", b"v" * 20) for offset in range(60_000)])
    assert len(large) > log_values.WINDOW_BYTES
    log.write_bytes(large)
    dump([log], DATA)
    assert taken == [True, True]

"""The checksum of rows: the same for the same rows, whatever their order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stratalog.format.buffers import crc32c
from stratalog.format.hashing import checksum_rows

KEYS = [b"a", None, b"", b"a", b"k" * 500]
VALUES = [b"1", b"2", None, b"", b"v" * 5000]


def of(keys: list[bytes | None], values: list[bytes | None]) -> int:
    return checksum_rows(
        pa.record_batch(
            {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        )
    )


def readable(keys: list[bytes | None], values: list[bytes | None]) -> int:
    total = 0
    for key, value in zip(keys, values, strict=True):
        first, second = (0x5A17_0001 if cell is None else crc32c(cell) for cell in (key, value))
        first = (first ^ first >> 15) * 0x2C1B_3C6D & 0xFFFF_FFFF
        total += first ^ first >> 13 ^ second
    return total % (1 << 62)


def test_as_documented() -> None:
    assert of(KEYS, VALUES) == readable(KEYS, VALUES) > 0


def test_order_and_division_do_not_count() -> None:
    whole = of(KEYS, VALUES)
    assert of(KEYS[::-1], VALUES[::-1]) == whole
    assert of(KEYS[:2], VALUES[:2]) + of(KEYS[2:], VALUES[2:]) == whole
    batch = pa.record_batch({"key": KEYS, "value": VALUES})
    assert checksum_rows(batch.slice(1, 3)) == of(KEYS[1:4], VALUES[1:4])


@pytest.mark.parametrize("change", [0, 1, 2, 3, 4])
def test_every_row_counts(change: int) -> None:
    whole = of(KEYS, VALUES)
    values = [b"other" if row == change else value for row, value in enumerate(VALUES)]
    keys = [b"other" if row == change else key for row, key in enumerate(KEYS)]
    assert len({whole, of(KEYS, values), of(keys, VALUES), of(keys, values)}) == 4


def test_keys_belong_to_their_values() -> None:
    assert of([b"a", b"b"], [b"1", b"2"]) != of([b"a", b"b"], [b"2", b"1"])


def test_columns_of_any_kind() -> None:
    expected = of([None, None], [b"x", b"y"])
    assert checksum_rows(pa.record_batch({"value": pa.array(["x", "y"])})) == expected
    large = pa.record_batch(
        {"value": pa.array([b"x", b"y"], pa.large_binary()), "key": pa.nulls(2)}
    )
    assert checksum_rows(large) == expected
    assert checksum_rows(pa.record_batch({"value": pa.array([], pa.binary())})) == 0

"""Sizes as users write them."""

from __future__ import annotations

import pytest

from stratalog.format.quantities import (
    InvalidQuantityError,
    duration_text,
    human_size,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096", 4096),
        ("64KiB", 65_536),
        ("64k", 65_536),
        ("1 GB", 1 << 30),
        ("1.5GiB", 3 << 29),
        ("0", 0),
        ("7b", 7),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "x", "-1", "1MiBs", "1..5k", "9" * 20])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InvalidQuantityError):
        parse_size(text)


def test_what_is_printed_can_be_read() -> None:
    assert parse_size(human_size(5 << 20)) == 5 << 20
    assert duration_text(5_400_000) == "1 h 30 min"

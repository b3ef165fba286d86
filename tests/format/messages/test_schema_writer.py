"""Writing messages: bytes by hand for both encodings, and a real broker's records once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import stratalog
from stratalog.errors import LimitExceededError, UnsupportedError
from stratalog.format.messages.schema import Array, Field, Message, read_message, write_message
from stratalog.format.messages.transaction_records import (
    encode_transaction_state,
    encode_transactional_id,
    read_transaction_state,
    read_transactional_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.golden.cases import GoldenCase

MESSAGE = Message(
    "Sample",
    (
        Field("id", "uuid"),
        Field("flag", "bool"),
        Field("count", "int16", since=1),
        Field("name", "string", nullable_since=1),
        Field("raw", "bytes", nullable_since=0),
        Field("parts", Array((Field("part", "int32"),))),
        Field("inner", (Field("x", "int8"),), nullable_since=1),
        Field("extra", "int64", since=2, tag=0, default=-1),
        Field("label", "string", since=2, tag=1, default=""),
    ),
    version_max=2,
    flexible_since=2,
)
VALUES: dict[str, Any] = {
    "id": "AAAAAAAAAAAAAAAAAAAABQ",
    "flag": True,
    "count": 7,
    "name": "ab",
    "raw": b"\xff",
    "parts": [{"part": 1}, {"part": -1}],
    "inner": {"x": 3},
    "extra": 5,
    "label": "z",
}
ID = "00" * 15 + "05"

CASES = [
    pytest.param(
        0,
        {},
        f"{ID} 01 0002 6162 00000001 ff 00000002 00000001 ffffffff 03",
        id="the oldest version has fewer fields",
    ),
    pytest.param(
        1,
        {"name": None, "raw": None, "inner": None},
        f"{ID} 01 0007 ffff ffffffff 00000002 00000001 ffffffff ff",
        id="nulls",
    ),
    pytest.param(
        2,
        {},
        f"{ID} 01 0007 03 6162 02 ff 03 00000001 00 ffffffff 00 01 03 00"
        "02 00 08 0000000000000005 01 02 02 7a",
        id="flexible, with tagged fields",
    ),
    pytest.param(
        2,
        {"extra": -1, "label": ""},
        f"{ID} 01 0007 03 6162 02 ff 03 00000001 00 ffffffff 00 01 03 00 00",
        id="flexible, tagged fields at their defaults",
    ),
]


@pytest.mark.parametrize(("version", "changes", "raw"), CASES)
def test_bytes_of_a_message(version: int, changes: dict[str, Any], raw: str) -> None:
    values = VALUES | changes
    data = write_message(MESSAGE, values, version)
    assert data.hex() == raw.replace(" ", "")
    read, end = read_message(MESSAGE, data, 0, version)
    assert end == len(data)
    assert read.items() <= values.items()


def test_what_cannot_be_written() -> None:
    with pytest.raises(UnsupportedError, match="version 3"):
        write_message(MESSAGE, VALUES, 3)
    with pytest.raises(UnsupportedError, match="name cannot be null in version 0"):
        write_message(MESSAGE, VALUES | {"name": None}, 0)
    with pytest.raises(LimitExceededError):
        write_message(MESSAGE, VALUES | {"name": "x" * 32768}, 2)


def test_records_of_a_real_coordinator(golden: Callable[[str], GoldenCase]) -> None:
    view = stratalog.open_dirs(golden("_logdir-run1").root).partition("__transaction_state", 0)
    records = list(view.read())
    assert len(records) == 103
    for record in records:
        assert record.key is not None
        assert record.value is not None
        assert encode_transactional_id(read_transactional_id(record.key)) == record.key
        assert encode_transaction_state(read_transaction_state(record.value)) == record.value

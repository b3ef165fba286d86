"""Searching by columns finds the records that a search record by record finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.log.partition_view import PartitionView
from stratalog.log.record_query import RecordQuery, matching_records
from tests.golden.cases import GoldenCase
from tests.golden.expected import directory_to_read, undamaged_cases
from tests.looping import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.record import Record

HEADERS = GoldenCase("rdk-none").partition_dir
"""Keys, tombstones, duplicate header names, null header values."""


def _found(path: Path, query: RecordQuery) -> list[Record]:
    with PartitionView(path) as view:
        return [
            record
            for _, records in matching_records(view.read_columns(), query)
            for record in records
        ]


def _expected(path: Path, query: RecordQuery) -> list[Record]:
    def folded(data: bytes) -> bytes:
        return data.lower() if query.ignores_case else data

    def has_text(record: Record) -> bool:
        headers = [part for name, value in record.headers for part in (name.encode(), value)]
        parts = [part for part in (record.key, record.value, *headers) if part is not None]
        return query.text is None or any(folded(query.text) in folded(part) for part in parts)

    with PartitionView(path) as view:
        return [
            record
            for record in view.read()
            if (query.key is None or record.key == query.key) and has_text(record)
        ]


@pytest.mark.parametrize(
    "query",
    [
        RecordQuery(),
        RecordQuery(key=b"k0007"),
        RecordQuery(key=b""),
        RecordQuery(text=b"h1"),
        RecordQuery(text=b"y"),
        RecordQuery(text=b"H1", ignores_case=True),
        RecordQuery(text=b"V00", ignores_case=True),
        RecordQuery(text=b"0007-"),
        RecordQuery(key=b"k0007", text=b"k0008"),
        RecordQuery(text=b""),
        RecordQuery(text=b"\xff\xfe"),
    ],
    ids=str,
)
def test_what_matches(query: RecordQuery) -> None:
    assert _found(HEADERS, query) == _expected(HEADERS, query)


def test_the_queries_tell_records_apart() -> None:
    counts = [len(_found(HEADERS, RecordQuery(text=text))) for text in (b"h1", b"y", b"0007-")]
    assert counts[2] == 1
    assert 0 < counts[0] < 120


@pytest.mark.slow
@for_each("case", undamaged_cases())
def test_records_of_all_formats_are_those_of_read(case: GoldenCase) -> None:
    path = directory_to_read(case)
    with PartitionView(path) as view:
        assert _found(path, RecordQuery()) == list(view.read())

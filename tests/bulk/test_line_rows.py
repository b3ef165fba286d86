"""Lines of text files, in ranges and chunks cut anywhere: each once, as they are."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from stratalog.bulk import line_rows
from stratalog.bulk.line_rows import TextRange, read_lines
from stratalog.errors import InputFileError, MessageTooLargeError

if TYPE_CHECKING:
    from pathlib import Path

CASES = [
    (b"", []),
    (b"a", [b"a"]),
    (b"a\n", [b"a"]),
    (b"\n", [b""]),
    (b"\r", [b""]),
    (b"\r\n", [b""]),
    (b"\n\n", [b"", b""]),
    (b"\r\r", [b"", b""]),
    (b"\n\r", [b"", b""]),
    (b"a\rb\r\nc\nd", [b"a", b"b", b"c", b"d"]),
    (b"a\r\r\n\nb\r", [b"a", b"", b"", b"b"]),
    (b"a\n\r\nb\n\n", [b"a", b"", b"b", b""]),
    (b"\xff\x00\xfe\n\xc3\n", [b"\xff\x00\xfe", b"\xc3"]),
    (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", [b"a", b"\xef\xbb\xbfb"]),
    (b"\xef\xbb\xbf", []),
    (b"\xef\xbb", [b"\xef\xbb"]),
    (b"\xef\xbb\xbf\n", [b""]),
    ("ä\u2028b\x0bc\x85d\n".encode(), ["ä\u2028b\x0bc\x85d".encode()]),
]


def lines_of(path: Path, *cuts: int, chunk_bytes: int = 1 << 20) -> list[bytes]:
    """Of all ranges, one after the other."""
    found: list[bytes] = []
    for start, end in pairwise((0, *cuts, path.stat().st_size)):
        for array in read_lines(TextRange(str(path), start, end), chunk_bytes):
            array.validate(full=True)
            found += array.to_pylist()
    return found


@pytest.mark.parametrize(("data", "lines"), CASES)
def test_lines_wherever_ranges_and_chunks_are_cut(
    tmp_path: Path, data: bytes, lines: list[bytes]
) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(data)
    for chunk_bytes in (1, 2, 3, 1 << 20):
        assert lines_of(path, chunk_bytes=chunk_bytes) == lines
        for cut in range(3, len(data)):
            assert lines_of(path, cut, chunk_bytes=chunk_bytes) == lines, (cut, chunk_bytes)


def test_lines_at_random(tmp_path: Path) -> None:
    chooser = random.Random(8)
    path = tmp_path / "lines.txt"
    for _ in range(150):
        weights = [chooser.randrange(1, 30), 1, 1]
        parts = chooser.choices([b"x", b"\r", b"\n"], weights, k=chooser.randrange(1, 80))
        data = b"".join(parts)
        path.write_bytes(data)
        expected = re.split(rb"\r\n|\r|\n", data)
        if not expected[-1]:
            expected.pop()
        cuts = sorted(chooser.choices(range(len(data) + 1), k=chooser.randrange(4)))
        chunk_bytes = chooser.randrange(1, 12)
        assert lines_of(path, *cuts, chunk_bytes=chunk_bytes) == expected, (data, cuts, chunk_bytes)


def test_a_line_much_longer_than_a_chunk(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    long = b"0123456789" * 40_000
    path.write_bytes(b"a\n" + long + b"\r\nb\n")
    assert lines_of(path, 100, 399_000, chunk_bytes=1000) == [b"a", long, b"b"]


def test_a_line_that_no_record_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_rows, "_LINE_BYTES_MAX", 1000)
    path = tmp_path / "lines.txt"
    path.write_bytes(b"a\n" + b"x" * 5000)
    with pytest.raises(MessageTooLargeError, match=r"lines\.txt: the line at position 2 "):
        lines_of(path, chunk_bytes=100)


def test_a_file_that_has_become_shorter(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"a\nb\n")
    with pytest.raises(InputFileError, match="ends at 4, but had 9 bytes"):
        list(read_lines(TextRange(str(path), 0, 9)))

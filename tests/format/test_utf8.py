"""Against Java 17: digests of what `new String(bytes, UTF_8)` gave, each as UTF-8 ended by FF."""

from __future__ import annotations

import hashlib
from itertools import product

import pytest

from stratalog.format.java_text import decode_utf8

# One or more bytes of every class that a decoder can tell apart.
CLASSES = (
    0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xC3, 0xDF, 0xE0,
    0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF7, 0xF8, 0xFC, 0xFF,
)  # fmt: skip

JAVA = [
    pytest.param(
        range(256),
        1,
        "9b39b028c45fb26e76963b9f5583239722abb7a140a4b701598a40f0fb25da75",
        id="all 1",
    ),
    pytest.param(
        range(256),
        2,
        "051ed22849e48c5ab206c40fb27df0d12cb9b0bf2d9884a67b87f5d54c440e47",
        id="all 2",
    ),
    pytest.param(
        CLASSES,
        3,
        "d204fcec12a51ffeaa158fb1d3da030551326f988e91b4575fa0aae7b495f2d5",
        id="classes 3",
    ),
    pytest.param(
        CLASSES,
        4,
        "a054c14dba69a41453a76dc2b9c800f89b526166c6d0541e220a3a9f6fbbdaf0",
        id="classes 4",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("values", "size", "digest"), JAVA)
def test_malformed_text_is_what_java_makes_of_it(
    values: range | tuple[int, ...], size: int, digest: str
) -> None:
    given = map(bytes, product(values, repeat=size))
    shown = b"".join(decode_utf8(data).encode() + b"\xff" for data in given)
    assert hashlib.sha256(shown).hexdigest() == digest


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param(b"", "", id="nothing"),
        pytest.param("ключ-é 🙂".encode(), "ключ-é 🙂", id="well-formed"),
        pytest.param(b"a\xed\xa0\x80b", "a\ufffdb", id="a surrogate is one"),
        pytest.param(b"\xe2\x82", "\ufffd", id="cut off by the end is one"),
        pytest.param(b"\xf0\x9f\x99", "\ufffd", id="cut off after three is one"),
        pytest.param(b"\xe2\x82a", "\ufffda", id="cut off by a letter is one"),
        pytest.param(b"\xc0\x80", "\ufffd\ufffd", id="overlong is one each"),
        pytest.param(b"\xf5\x80\x80\x80", "\ufffd" * 4, id="above U+10FFFF is one each"),
    ],
)
def test_one_replacement_stands_for(data: bytes, text: str) -> None:
    assert decode_utf8(data) == text

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptCheckpointError
from stratalog.format.java_text import decode_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SPECIAL = re.compile(r"[\\\t\n\r\f=:#!]")
_TO_ESCAPE = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"} | {
    character: "\\" + character for character in "\\=:#!"
}
_NOT_PRINTABLE = re.compile(r"[^ -~]")


def encode_properties(properties: Mapping[str, str], *, comments: Iterable[str] = ()) -> bytes:
    """A file as Java writes it: a `#` line per comment, then the `key=value` lines as given."""
    lines = ["#" + _ascii(comment.replace("\n", " ").replace("\r", " ")) for comment in comments]
    for key, value in properties.items():
        escaped = _escape(value)
        indent = "\\" if escaped.startswith(" ") else ""
        lines.append(_escape(key).replace(" ", "\\ ") + "=" + indent + escaped)
    return "".join(line + "\n" for line in lines).encode("ascii")


def _escape(text: str) -> str:
    return _ascii(_SPECIAL.sub(lambda match: _TO_ESCAPE[match[0]], text))


def _ascii(text: str) -> str:
    return _NOT_PRINTABLE.sub(_unicode_escape, text)


def _unicode_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


# What java.util.Properties (Java 17) made of these bytes; None where it threw.
READ_BY_JAVA: list[tuple[bytes, dict[str, str] | None]] = [
    (b"", {}),
    (b"a=b", {"a": "b"}),
    (b"a:b", {"a": "b"}),
    (b"a b", {"a": "b"}),
    (b"a\tb", {"a": "b"}),
    (b"a\x0cb", {"a": "b"}),
    (b"a", {"a": ""}),
    (b"a=", {"a": ""}),
    (b"=b", {"": "b"}),
    (b"a = b ", {"a": "b "}),
    (b"a : = b", {"a": "= b"}),
    (b"a == b", {"a": "= b"}),
    (b"  a=b", {"a": "b"}),
    (b"\t\x0ca=b", {"a": "b"}),
    (b"#a=b", {}),
    (b"!a=b", {}),
    (b"  # a=b", {}),
    (b"a=b#c", {"a": "b#c"}),
    (b"a=b\nc=d", {"a": "b", "c": "d"}),
    (b"a=b\rc=d", {"a": "b", "c": "d"}),
    (b"a=b\r\nc=d", {"a": "b", "c": "d"}),
    (b"\n\n\r\na=b\n\n", {"a": "b"}),
    (b"a=b\\\nc", {"a": "bc"}),
    (b"a=b\\\r\n   c", {"a": "bc"}),
    (b"a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    (b"a=b\\\\\\\nc", {"a": "b\\c"}),
    (b"a=b\\\n\nc=d", {"a": "b", "c": "d"}),
    (b"a=b\\\n#c", {"a": "b#c"}),
    (b"\\\n#c\na=b", {"a": "b"}),
    (b"#c\\\na=b", {"a": "b"}),
    (b"a\\\nb=c", {"ab": "c"}),
    (b"a\\=b=c", {"a=b": "c"}),
    (b"a\\:b=c", {"a:b": "c"}),
    (b"a\\ b=c", {"a b": "c"}),
    (b"a\\\\=c", {"a\\": "c"}),
    (b"\\#a=b", {"#a": "b"}),
    (b"\\!a=b", {"!a": "b"}),
    (b"a=\\t\\n\\r\\f\\\\\\x", {"a": "\t\n\r\x0c\\x"}),
    (b"a=\\ b", {"a": " b"}),
    (b"a=\\u0041\\u00e9\\u20AC", {"a": "Aé€"}),
    (b"\\u0061=b", {"a": "b"}),
    (b"a=\\ud83d\\ude00", {"a": "😀"}),
    (b"a=\xe9", {"a": "é"}),
    (b"a=b\nA=c\na=d", {"A": "c", "a": "d"}),
    (b"a=b\\", {"a": "b"}),
    (b"a=b\\\n", {"a": "b"}),
    (
        b"fruits = apple, banana, \\\n   pear,  \\\n   kiwi",
        {"fruits": "apple, banana, pear,  kiwi"},
    ),
    (b"Truth = Beauty\n Truth:Beauty2\nTruth\t\t\t:Beauty3", {"Truth": "Beauty3"}),
    (b"cheeses", {"cheeses": ""}),
    (b"a=\\u00", None),
    (b"a=\\u00zz", None),
    (b"a=\\uu0041", None),
    (b"a\\u0=b", None),
    (
        b"log.dirs=/var/lib/kafka/a,/var/lib/kafka/b\nlisteners=PLAINTEXT://:9092",
        {"listeners": "PLAINTEXT://:9092", "log.dirs": "/var/lib/kafka/a,/var/lib/kafka/b"},
    ),
    (b"path=C:\\\\kafka\\\\logs", {"path": "C:\\kafka\\logs"}),
    (b"a=\x00\x0b", {"a": "\x00\x0b"}),
]

# What java.util.Properties (Java 17) wrote for this one property, its two comment lines left out.
AWKWARD_KEY = " a b:c=d#e!f\\g\t\n\r\fé€😀"
AWKWARD_VALUE = " a b:c=d#e!f\\g\t\n\r\fé€😀 "
WRITTEN_BY_JAVA = (
    rb"\ a\ b\:c\=d\#e\!f\\g\t\n\r\f\u00E9\u20AC\uD83D\uDE00"
    rb"=\ a b\:c\=d\#e\!f\\g\t\n\r\f\u00E9\u20AC\uD83D\uDE00 "
    b"\n"
)


@pytest.mark.parametrize(("raw", "expected"), READ_BY_JAVA)
def test_reads_as_java_does(raw: bytes, expected: dict[str, str] | None) -> None:
    if expected is None:
        with pytest.raises(CorruptCheckpointError, match="malformed"):
            decode_properties(raw)
    else:
        assert decode_properties(raw) == expected
        assert decode_properties(memoryview(raw)) == expected


def test_writes_as_java_does() -> None:
    assert encode_properties({AWKWARD_KEY: AWKWARD_VALUE}) == WRITTEN_BY_JAVA
    assert decode_properties(WRITTEN_BY_JAVA) == {AWKWARD_KEY: AWKWARD_VALUE}


def test_comments_come_first_and_stay_comments() -> None:
    written = encode_properties({"a": "b"}, comments=("", "Sun Nov 15", "x\ny=z", "é"))
    assert written == b"#\n#Sun Nov 15\n#x y=z\n#\\u00E9\na=b\n"


def test_order_is_kept() -> None:
    assert list(decode_properties(b"z=1\na=2\nm=3")) == ["z", "a", "m"]
    assert encode_properties({"z": "1", "a": "2"}) == b"z=1\na=2\n"


def test_an_error_names_the_line_it_is_in() -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        decode_properties(b"a=b\n# comment\nc=\\\n \\u12")
    assert caught.value.position == 14


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    assert decode_properties(rb"a=\ud83dx\ude00") == {"a": "\ufffdx\ufffd"}


def test_a_lone_backslash_is_no_property() -> None:
    assert decode_properties(b"a=b\n\\") == {"a": "b"}


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_what_is_written_is_read_back(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties, comments=["note"])) == properties


@given(st.binary() | st.text(r"\u=:# !ab0" + "\r\n\t\f").map(str.encode))
def test_any_bytes_give_a_value_or_a_typed_error(raw: bytes) -> None:
    with contextlib.suppress(CorruptCheckpointError):
        properties = decode_properties(raw)
        assert decode_properties(encode_properties(properties)) == properties

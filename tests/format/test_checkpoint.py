from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import (
    CorruptCheckpointError,
    InvalidNameError,
    StratalogError,
    UnsupportedError,
)
from stratalog.format.checkpoint import (
    EpochEntry,
    decode_leader_epochs,
    decode_offsets,
    encode_leader_epochs,
    encode_offsets,
)
from stratalog.format.names import TopicPartition

ORDERS_3 = TopicPartition("orders", 3)

OFFSET_FILES = [
    pytest.param(b"0\n1\norders 3 1024\n", {ORDERS_3: 1024}, id="one entry"),
    pytest.param(b"0\n0\n", {}, id="no entries, as in golden log-start-offset-checkpoint"),
    pytest.param(
        b"0\n3\nrdk-zstd 0 120\nts-extremes 0 9\n__consumer_offsets 0 0\n",
        {
            TopicPartition("rdk-zstd", 0): 120,
            TopicPartition("ts-extremes", 0): 9,
            TopicPartition("__consumer_offsets", 0): 0,
        },
        id="hash order",
    ),
    pytest.param(
        b"0\n1\nx 2147483647 9223372036854775807\n",
        {TopicPartition("x", 2147483647): 9223372036854775807},
        id="largest numbers",
    ),
]


@pytest.mark.parametrize(("raw", "offsets"), OFFSET_FILES)
def test_offset_files(raw: bytes, offsets: dict[TopicPartition, int]) -> None:
    assert decode_offsets(raw) == offsets
    assert decode_offsets(memoryview(raw)) == offsets
    assert encode_offsets(offsets) == raw


@pytest.mark.parametrize(
    ("raw", "entries"),
    [
        (b"0\n0\n", ()),
        (b"0\n1\n0 0\n", (EpochEntry(0, 0),)),
        (b"0\n2\n0 2256\n6 2500\n", (EpochEntry(0, 2256), EpochEntry(6, 2500))),
    ],
)
def test_leader_epochs(raw: bytes, entries: tuple[EpochEntry, ...]) -> None:
    assert decode_leader_epochs(raw) == entries
    assert encode_leader_epochs(entries) == raw


@pytest.mark.parametrize("raw", [b"", b"0", b"0\n", b"0\r\n"])
def test_a_fresh_file_has_no_entries(raw: bytes) -> None:
    assert decode_offsets(raw) == {}
    assert decode_leader_epochs(raw) == ()


@pytest.mark.parametrize(
    "raw",
    [
        b"0\n1\norders 3 1024",
        b"0\r\n1\r\norders 3 1024\r\n",
        b"0\n1\norders\t3   1024  \n",
        b"00\n+1\norders 03 +1024\n",
        b"0\n2\norders 3 7\norders 3 1024\n",
    ],
)
def test_variants_that_kafka_reads_too(raw: bytes) -> None:
    assert decode_offsets(raw) == {ORDERS_3: 1024}


@pytest.mark.parametrize(
    ("raw", "position"),
    [
        pytest.param(b"x\n", 0, id="version is no number"),
        pytest.param(b" 0\n", 0, id="space before the version"),
        pytest.param(b"\n", 0, id="empty version"),
        pytest.param(b"0\nx\n", 2, id="count is no number"),
        pytest.param(b"0\n2\norders 3 1024\n", 2, id="too few entries"),
        pytest.param(b"0\n0\norders 3 1024\n", 2, id="too many entries"),
        pytest.param(b"0\n-1\n", 2, id="negative count"),
        pytest.param(b"0\n2147483647\n", 2, id="huge count"),
        pytest.param(b"0\n1\norders 3\n", 4, id="two fields"),
        pytest.param(b"0\n1\norders 3 1024 5\n", 4, id="four fields"),
        pytest.param(b"0\n1\n orders 3 1024\n", 4, id="space before the entry"),
        pytest.param(b"0\n1\n\n", 4, id="empty entry"),
        pytest.param(b"0\n2\norders 3 1024\n\n", 18, id="empty line at the end"),
        pytest.param(b"0\n1\norders x 1024\n", 4, id="partition is no number"),
        pytest.param(b"0\n1\norders 2147483648 1\n", 4, id="partition too large"),
        pytest.param(b"0\n1\norders 3 9223372036854775808\n", 4, id="offset too large"),
        pytest.param(b"0\n1\n\xff 3 1\n", 4, id="not UTF-8"),
        pytest.param(b"0\n1\norders 3 1024\0\n", 4, id="zero bytes after a crash"),
    ],
)
def test_damaged_offset_files(raw: bytes, position: int) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        decode_offsets(raw)
    assert caught.value.position == position


def test_the_error_names_the_line() -> None:
    reason = r"at byte 18: line 4: 'bad' does not have 3 fields"
    with pytest.raises(CorruptCheckpointError, match=reason):
        decode_offsets(b"0\n2\norders 3 1024\nbad\n")


@pytest.mark.parametrize("raw", [b"0\n1\n-1 0\n", b"0\n1\n0 -1\n", b"0\n1\n0\n", b"0\n1\n0 0 0\n"])
def test_damaged_leader_epochs(raw: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_leader_epochs(raw)


@pytest.mark.parametrize("raw", [b"1\n0\n", b"-1\n0\n", b"7"])
def test_other_versions(raw: bytes) -> None:
    with pytest.raises(UnsupportedError, match="version"):
        decode_offsets(raw)


def test_a_topic_that_would_break_the_file_is_refused() -> None:
    with pytest.raises(InvalidNameError):
        encode_offsets({TopicPartition("a b", 0): 1})
    with pytest.raises(InvalidNameError):
        encode_offsets({TopicPartition("a\n", 0): 1})


def test_cut_at_every_byte() -> None:
    raw = b"0\n2\norders 3 1024\norders 4 77\n"
    whole = {ORDERS_3: 1024, TopicPartition("orders", 4): 77}
    for cut in range(len(raw) + 1):
        try:
            offsets = decode_offsets(raw[:cut])
        except CorruptCheckpointError:
            assert 2 < cut < len(raw) - 2
            continue
        # A cut inside the last number is the one loss that no reader can see.
        shortened = {**whole, TopicPartition("orders", 4): 7}
        assert offsets == ({} if cut <= 2 else shortened if cut == len(raw) - 2 else whole)


LINES = st.text("0123456789 -+\nax\t\r").map(str.encode)


@given(st.binary() | LINES | LINES.map(lambda tail: b"0\n1\n" + tail))
def test_any_bytes_give_a_value_or_a_typed_error(raw: bytes) -> None:
    for decode in (decode_offsets, decode_leader_epochs):
        with contextlib.suppress(StratalogError):
            decode(raw)

"""Batches whose CRC is valid and whose records cannot be read all the same."""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import CorruptRecordError, UnsupportedError
from stratalog.format.batch import BatchHeader, Codec
from stratalog.format.legacy import encode_legacy, encode_message
from stratalog.format.record import Record, encode_batch, seal_batch
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import Skipped
from tests.log.building import log_name, plain_records, write_partition
from tests.log.readers import Reader, over_readers

if TYPE_CHECKING:
    from pathlib import Path

BEFORE, MIDDLE, AFTER = plain_records(0, 2), plain_records(2, 3), plain_records(5, 1)
AT = len(encode_batch(BEFORE))
SIZE_BYTES = len(encode_batch(MIDDLE))


@pytest.fixture
def view(tmp_path: Path) -> PartitionView:
    """The batch in the middle says that its records are in codec 7, which names none."""
    template = BatchHeader.unpack(encode_batch(MIDDLE))._replace(attributes=7)
    unreadable = seal_batch(template, encode_batch(MIDDLE)[-(SIZE_BYTES - 61) :])
    raw = encode_batch(BEFORE) + unreadable + encode_batch(AFTER)
    return PartitionView(write_partition(tmp_path / "t-0", {0: raw}))


@over_readers
def test_unknown_codec(reader: Reader, view: PartitionView) -> None:
    with pytest.raises(UnsupportedError) as caught:
        list(reader(view))
    error = caught.value
    assert isinstance(error, CorruptRecordError)
    assert (error.path, error.position) == (view.path / log_name(0), AT)
    assert error.offsets == (2, 4)


@over_readers
def test_unknown_codec_is_skipped(reader: Reader, view: PartitionView) -> None:
    skipped: list[Skipped] = []
    assert list(reader(view, on_skip=skipped.append)) == [*BEFORE, *AFTER]
    path = view.path / log_name(0)
    assert skipped == [Skipped(path, AT, SIZE_BYTES, 2, 5, "unknown codec id 7")]


def test_lookup_in_an_unknown_codec(view: PartitionView) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        view.locate(3)
    assert (caught.value.path, caught.value.position) == (view.path / log_name(0), AT)


@over_readers
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("bits", [0x10, 0x20, 0x40, 0x80, 0xF0])
def test_unused_attributes_of_old_messages(
    reader: Reader, tmp_path: Path, magic: int, bits: int
) -> None:
    """In magic 2 these bits say that a batch is transactional, or a marker that nobody sees."""
    raw = bytearray(encode_legacy(BEFORE[:1], magic))
    raw[17] |= bits
    raw[12:16] = struct.pack(">I", zlib.crc32(raw[16:]))
    view = PartitionView(write_partition(tmp_path / "t-0", {0: bytes(raw)}))
    assert [record.value for record in reader(view)] == [BEFORE[0].value]


@over_readers
@pytest.mark.parametrize("magic", [0, 1])
def test_corrupt_message_in_an_old_set(reader: Reader, tmp_path: Path, magic: int) -> None:
    """The CRC of the set is valid; that of the message inside is not. Kafka's consumer fails."""
    before = encode_legacy(BEFORE, magic)
    inner = bytearray(encode_legacy(MIDDLE, magic))
    inner[-1] ^= 1
    wrapper = Record(MIDDLE[-1].offset, MIDDLE[-1].timestamp, None, gzip.compress(inner, mtime=0))
    raw = before + encode_message(wrapper, magic, codec=Codec.GZIP) + encode_legacy(AFTER, magic)
    view = PartitionView(write_partition(tmp_path / "t-0", {0: raw}))
    with pytest.raises(CorruptRecordError, match="CRC mismatch") as caught:
        list(reader(view))
    assert caught.value.position == len(before)
    skipped: list[Skipped] = []
    read = [record.offset for record in reader(view, on_skip=skipped.append)]
    assert read == [record.offset for record in (*BEFORE, *AFTER)]
    assert [report.position for report in skipped] == [len(before)]

"""Records about remote storage, made by hand, in the words of Kafka's tool."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

import pytest

from stratalog.dump.decoders import RemoteLogMetadataDecoder
from stratalog.format.record import Record
from tests.cli.command import inside
from tests.handmade import Rec, batch, write_segment

if TYPE_CHECKING:
    from pathlib import Path

TOPIC_ID, SEGMENT_ID = bytes(range(16)), bytes(range(16, 32))
TOPIC, SEGMENT = (urlsafe_b64encode(each).decode().rstrip("=") for each in (TOPIC_ID, SEGMENT_ID))
NO_TAGS = b"\0"
PARTITION = b"\7orders" + TOPIC_ID + struct.pack(">i", 3) + NO_TAGS
SEGMENT_KEY = PARTITION + SEGMENT_ID + NO_TAGS
EPOCHS = b"\3" + struct.pack(">iq", 4, 120) + NO_TAGS + struct.pack(">iq", 2, 100) + NO_TAGS
COPIED = (
    b"\1\0\0"
    + SEGMENT_KEY
    + struct.pack(">qqiqq", 100, 199, 1, 1700, 1800)
    + EPOCHS
    + struct.pack(">i", 4096)
    + b"\0"  # no custom metadata
    + b"\0"
)
UPDATED = b"\1\1\0" + SEGMENT_KEY + struct.pack(">iq", 1, 1900) + b"\6hello" + b"\1" + NO_TAGS
DELETED = b"\1\2\0" + PARTITION + struct.pack(">iqb", 1, 2000, 2) + NO_TAGS
ID = f"RemoteLogSegmentId{{topicIdPartition={TOPIC}:orders-3, id={SEGMENT}}}"
COPIED_TEXT = (
    f"RemoteLogSegmentMetadata{{remoteLogSegmentId={ID}, startOffset=100, endOffset=199, "
    "brokerId=1, maxTimestampMs=1700, eventTimestampMs=1800, "
    "segmentLeaderEpochs={2=100, 4=120}, segmentSizeInBytes=4096, "
    "customMetadata=Optional.empty, state=COPY_SEGMENT_STARTED, txnIdxEmpty="
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (COPIED + NO_TAGS, COPIED_TEXT + "false}"),
        (COPIED + b"\1\0\1\1", COPIED_TEXT + "true}"),
        (
            UPDATED,
            f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={ID}, "
            "customMetadata=Optional[CustomMetadata{5 bytes}], state=COPY_SEGMENT_FINISHED, "
            "eventTimestampMs=1900, brokerId=1}",
        ),
        (
            b"\1\2\1" + DELETED[3:-1] + b"\1\1\x08" + bytes(8),  # of a newer broker: a field more
            f"RemotePartitionDeleteMetadata{{topicPartition={TOPIC}:orders-3, "
            "state=DELETE_PARTITION_FINISHED, eventTimestampMs=2000, brokerId=1}",
        ),
    ],
    ids=["copied", "copied without aborts", "updated", "deleted"],
)
def test_in_kafkas_words(value: bytes, expected: str) -> None:
    assert RemoteLogMetadataDecoder().show(Record(7, 0, None, value)) == (None, expected)


@pytest.mark.parametrize(
    "value", [None, b"", b"\1\5\0", b"\1\0\7", b"\2\0\0", DELETED[:-9], UPDATED[:-2] + b"\x09\0"]
)
def test_what_cannot_be_read_is_told_in_its_place(value: bytes | None) -> None:
    decoder, record = RemoteLogMetadataDecoder(), Record(7, 0, None, value)
    for shown in (decoder.show(record)[1], decoder.show_json(record)[1]):
        assert str(shown).startswith("Error at offset 7, skipping. ")


def test_the_flag_of_kafkas_tool(tmp_path: Path) -> None:
    path = tmp_path / "__remote_log_metadata-0"
    log = write_segment(path, 0, batch(0, [Rec(0, 0, None, DELETED)]))
    shown = inside("dump", "--files", log, "--remote-log-metadata-decoder").lines[-1]
    assert " payload: RemotePartitionDeleteMetadata{topicPartition=" in shown
    rows = inside("dump", log, "--remote-log-metadata-decoder", "--json").rows
    assert rows[-1]["value"]["data"]["topicIdPartition"]["name"] == "orders"


def test_custom_metadata_as_json(tmp_path: Path) -> None:
    path = tmp_path / "__remote_log_metadata-0"
    log = write_segment(path, 0, batch(0, [Rec(0, 0, None, UPDATED)]))
    rows = inside("dump", log, "--remote-log-metadata-decoder", "--json").rows
    assert rows[-1]["value"]["data"]["customMetadata"] == "aGVsbG8="

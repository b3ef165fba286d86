"""Batches that this process encoded itself: not decoded again, and subject to the same rules."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.config import CleanupPolicy, TopicCompression
from stratalog.errors import AppendError, LimitExceededError
from stratalog.format.batch import OFFSET_MAX, Codec, TimestampType
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.offset_assignment import BatchFacts
from tests.log.written_log import CONFIG, NOW_MS, Setup
from tests.opening import open_logs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import FrameType

    from stratalog.log.log_state import AppendInfo
    from stratalog.log.partition_log import PartitionLog

DECODERS = {"decode_records", "records_of", "is_entry_crc_valid", "check_entry_crc", "validate"}
HOUR_MS = 3_600_000

TOPICS = {
    "defaults": CONFIG,
    "log append time": replace(CONFIG, message_timestamp_type=TimestampType.LOG_APPEND_TIME),
    "not too old": replace(CONFIG, message_timestamp_before_max_ms=HOUR_MS),
    "not in the future": replace(CONFIG, message_timestamp_after_max_ms=HOUR_MS),
    "compacted": replace(CONFIG, cleanup_policy=frozenset({CleanupPolicy.COMPACT})),
    "another codec": replace(CONFIG, compression_type=TopicCompression.ZSTD),
    "uncompressed": replace(CONFIG, compression_type=TopicCompression.UNCOMPRESSED),
    "small batches": replace(CONFIG, max_message_bytes=120),
    "small segments": replace(CONFIG, segment_bytes=150),
}
BATCHES: dict[str, tuple[list[Record], BatchFields]] = {
    "one": ([Record(0, NOW_MS, b"k", b"v")], BatchFields()),
    "several": ([Record(n, NOW_MS + n * 7 % 5, b"k%d" % n, b"v") for n in range(4)], BatchFields()),
    "large": ([Record(0, NOW_MS, b"k", b"v" * 100)], BatchFields()),
    "without a key": (
        [Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS, None, b"v")],
        BatchFields(),
    ),
    "old and new": (
        [Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS - HOUR_MS - 1, b"k", b"v")],
        BatchFields(),
    ),
    "as old as allowed": ([Record(0, NOW_MS - HOUR_MS, b"k", b"v")], BatchFields()),
    "future": ([Record(0, NOW_MS + HOUR_MS + 1, b"k", b"v")], BatchFields()),
    "as new as allowed": ([Record(0, NOW_MS + HOUR_MS, b"k", b"v")], BatchFields()),
    "compressed": ([Record(0, NOW_MS, b"k", b"v" * 90)], BatchFields(codec=Codec.GZIP)),
    "of a producer": (
        [Record(0, NOW_MS, b"k", b"v")],
        BatchFields(producer_id=7, producer_epoch=0, base_sequence=0),
    ),
}


def facts_of(records: Sequence[Record]) -> BatchFacts:
    return BatchFacts(
        min(record.timestamp for record in records),
        has_all_keys=all(record.key is not None for record in records),
    )


def result_of(log: PartitionLog, data: bytes, facts: BatchFacts | None) -> AppendInfo | str:
    try:
        return log.append(data, facts=facts)
    except AppendError as error:
        return f"{type(error).__name__} {error} {error.record_errors}"


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("topic", TOPICS)
def test_it_is_stored_or_refused_as_if_it_came_from_a_client(
    topic: str, name: str, tmp_path: Path
) -> None:
    records, fields = BATCHES[name]
    data = encode_batch(records, fields)
    found: list[Any] = []
    for directory, facts in (("sent", None), ("own", facts_of(records))):
        (tmp_path / directory).mkdir()
        setup = Setup(tmp_path / directory)
        with setup.reopen(TOPICS[topic]) as log:
            log.become_leader(3)
            results = [result_of(log, data, facts) for _ in range(2)]
        logs = sorted(setup.path.glob("*.log"))
        found.append((results, [(path.name, path.read_bytes()) for path in logs]))
    assert found[0] == found[1]


def test_the_last_offsets_are_not_given_away(setup: Setup) -> None:
    log, (records, fields) = setup.log, BATCHES["one"]
    log.truncate_fully_and_start_at(OFFSET_MAX - 10)
    data = encode_batch(records, fields)
    for facts in (None, facts_of(records)):
        with pytest.raises(LimitExceededError, match="no offsets are left"):
            log.append(data, facts=facts)


def calls_of(action: Any) -> list[str]:
    """The names of the functions that are called."""
    names: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return names


def test_a_record_that_is_appended_is_encoded_once_and_not_decoded(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
        logs.append("orders", b"first", key=b"k")
        calls = calls_of(lambda: logs.append("orders", b"value", key=b"k"))
        assert [record.value for record in logs.partition("orders", 0).read()] == [
            b"first",
            b"value",
        ]
    assert not DECODERS.intersection(calls)
    encoding = calls_of(lambda: encode_batch(*BATCHES["one"]))
    assert calls.count("encode_lists") == 1
    assert "encode_batch" not in calls
    assert calls.count("crc32c") == encoding.count("crc32c") > 0

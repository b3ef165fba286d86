"""What Kafka says about a golden case, as the values that Stratalog returns."""

from __future__ import annotations

import base64
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from stratalog.format.batch import TimestampType
from stratalog.format.record import Header, Record
from stratalog.log.reader import IsolationLevel
from tests.golden.cases import CompactionCase, GoldenCase, all_cases

if TYPE_CHECKING:
    from pathlib import Path

    from tests.golden.cases import Json

_TIMESTAMP_TYPES = {kind.kafka_name: kind for kind in TimestampType}


class BatchFacts(NamedTuple):
    """One record as Kafka's loader met it, with what its batch says."""

    record: Record
    sequence: int
    producer_id: int
    is_transactional: bool
    is_control: bool
    leader_epoch: int
    codec: str
    magic: int


class Offsets(NamedTuple):
    """Where a real consumer began and ended."""

    beginning: int
    end: int
    """For its isolation level: the last stable offset, or the log end offset."""


@cache
def is_consumed(case: GoldenCase) -> bool:
    """Whether a real consumer read it; none can read magic 0 and 1 files made without a broker."""
    return _consumed_json(case, IsolationLevel.READ_UNCOMMITTED) is not None


@cache
def consumed(case: GoldenCase, isolation: IsolationLevel) -> tuple[Record, ...]:
    """What a real Java consumer read; of an unclean case after Kafka recovered it."""
    found = _consumed_json(case, isolation)
    assert found is not None
    return tuple(_record(entry) for entry in found["records"])


@cache
def consumed_offsets(case: GoldenCase, isolation: IsolationLevel) -> Offsets:
    found = _consumed_json(case, isolation)
    assert found is not None
    return Offsets(found["beginning_offset"], found["end_offset_for_isolation"])


@cache
def loaded(case: GoldenCase) -> tuple[BatchFacts, ...]:
    """Every record that Kafka's loader found, control records included."""
    return tuple(_facts(entry) for entry in case.loaddir["records"])


@cache
def visible(case: GoldenCase) -> tuple[Record, ...]:
    """Every record that Kafka's loader found, without the control records."""
    return tuple(facts.record for facts in loaded(case) if not facts.is_control)


@cache
def compacted(case: CompactionCase, directory: str) -> tuple[Record, ...]:
    """The data records of one directory of a compaction case."""
    return tuple(
        _record({"timestamp_type": batch["timestamp_type"], **entry})
        for segment in case.records(directory)["segments"]
        for batch in segment["batches"]
        if not batch.get("control", False)  # a legacy message never is one
        for entry in batch["records"]
    )


@cache
def log_start_offset(case: GoldenCase) -> int | None:
    """What the log directory's checkpoint said, where the case's manifest tells."""
    start: int | None = case.manifest.get("delete_records_to")
    return start


def directory_to_read(case: GoldenCase) -> Path:
    """The partition directory as it was found; of an unclean case before recovery."""
    return case.partition_dirs()[0]


def undamaged_cases() -> list[GoldenCase]:
    """Those in which every batch of the log is good, torn tails aside."""
    return [case for case in all_cases() if case.name != "u-badcrc"]


def _consumed_json(case: GoldenCase, isolation: IsolationLevel) -> Json | None:
    manifest = case.manifest
    after_recovery = "after_recovery_" if case.is_unclean else ""
    found: Json | None = manifest.get(f"consumed_{after_recovery}{isolation.value}")
    return found


def _facts(entry: Json) -> BatchFacts:
    return BatchFacts(
        record=_record(entry),
        sequence=entry["sequence"],
        producer_id=entry["producerId"],
        is_transactional=entry["txn"],
        is_control=entry["control"],
        leader_epoch=entry["leaderEpoch"],
        codec=entry["codec"],
        magic=entry["magic"],
    )


def _record(entry: Json) -> Record:
    return Record(
        offset=entry["offset"],
        timestamp=entry["timestamp"],
        key=_bytes(entry["key"]),
        value=_bytes(entry["value"]),
        headers=tuple(Header(key, _bytes(value)) for key, value in entry.get("headers", ())),
        timestamp_type=_TIMESTAMP_TYPES[entry["timestamp_type"]],
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)

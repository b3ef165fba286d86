"""Sets committed offsets of groups back to the end of their log, after a restore has truncated it.

Each is reset by a new commit appended to `__consumer_offsets`; the records already there stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import CorruptError, UnsupportedError
from stratalog.format.batch import HEADER_BYTES, MAGIC_2
from stratalog.format.legacy import encode_legacy
from stratalog.format.messages.group_records import encode_group_record, read_group_record
from stratalog.format.names import CONSUMER_OFFSETS_TOPIC, TopicPartition
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.format.times import current_time_ms
from stratalog.log.latest_records import LatestRecords
from stratalog.log.offset_assignment import AppendOrigin
from stratalog.log.reader import CorruptionPolicy, batches_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stratalog.log.partition_log import PartitionLog

_COMMIT_TYPES: Final = frozenset({0, 1})
_VALUE_VERSION: Final = 3
_OLD_VALUE_VERSION: Final = 1
"""The newest version of committed offsets that brokers before magic 2 know."""
_RECORD_OVERHEAD_BYTES: Final = 32
"""The maximum size of a record besides its key and value."""


class _Commit(NamedTuple):
    """The last committed offset of a group for a partition."""

    key: dict[str, Any]
    value: dict[str, Any]
    producer_id: int | None = None
    """Producer id of the open transaction that it belongs to."""


class ClampedOffset(NamedTuple):
    """A committed offset that was set back to the end of its log."""

    group: str
    topic: str
    partition: int
    offset: int
    end_offset: int


def clamp_offsets(logs: Mapping[TopicPartition, PartitionLog]) -> tuple[ClampedOffset, ...]:
    """Commit the end of a log for groups that have read further; otherwise their consumers would
    start over, at the beginning or the end."""
    clamped: list[ClampedOffset] = []
    for tp, log in sorted(logs.items()):
        if tp.topic != CONSUMER_OFFSETS_TOPIC:
            continue
        found = [
            (commit, end)
            for commit in _commits(log)
            if (end := _end_below(logs, commit.key, commit.value)) is not None
        ]
        for producer_id in dict.fromkeys(commit.producer_id for commit, _ in found):
            commits = [(commit, end) for commit, end in found if commit.producer_id == producer_id]
            if (magic := _last_magic(log)) < MAGIC_2:
                _append_old_commits(log, commits, magic)
            else:
                records = [_commit_record(*each, _VALUE_VERSION) for each in commits]
                _append_commits(log, records, _fields_of(log, producer_id))
        clamped += [
            ClampedOffset(key["group"], key["topic"], key["partition"], value["offset"], end)
            for (key, value, _), end in found
        ]
    return tuple(clamped)


def _fields_of(log: PartitionLog, producer_id: int | None) -> BatchFields:
    """The fields of a batch of commits. A pending offset is reset within its transaction: if the
    transaction is committed, the group continues at the end of the log, and if it is aborted, at
    its earlier offset. Both are right."""
    if producer_id is None:
        return BatchFields()
    state = log.producers.producers[producer_id]
    return BatchFields(
        is_transactional=True, producer_id=producer_id, producer_epoch=state.producer_epoch
    )


def _commits(log: PartitionLog) -> list[_Commit]:
    """Committed offsets as a group coordinator loads them, then those of open transactions, which
    the coordinator keeps until the transaction ends."""
    latest = LatestRecords.of(log)
    known = log.producers.producers  # all that can still end a transaction
    pending = [(each, tp) for tp, each in latest.pending.items() if tp in known]
    stored = [(latest.committed, None), *pending]
    return [
        _Commit(*fields, producer_id)
        for records, producer_id in stored
        for key, (value, _) in records.items()
        if (fields := _commit_fields(key, value)) is not None
    ]


def _commit_fields(key: bytes, value: bytes | None) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """None for a record that is not a committed offset."""
    try:
        decoded = read_group_record(key, value, decode_members=False)
    except (CorruptError, UnsupportedError):  # of a later version of Kafka
        return None
    if decoded.type_id not in _COMMIT_TYPES or decoded.value is None:
        return None
    return decoded.key, decoded.value


def _end_below(
    logs: Mapping[TopicPartition, PartitionLog], key: Mapping[str, Any], value: Mapping[str, Any]
) -> int | None:
    """The end of the log, if the committed offset is above it."""
    log = logs.get(TopicPartition(key["topic"], key["partition"]))
    if log is None or value["offset"] <= log.log_end_offset:
        return None
    return log.log_end_offset


def _last_magic(log: PartitionLog) -> int:
    """The magic of the last batch."""
    magic = MAGIC_2
    for part in log.parts_from(max(log.log_start_offset, log.log_end_offset - 1)):
        for batch in batches_of(part, CorruptionPolicy(None, lambda: False)):
            magic = batch.entry.magic
    return magic


def _commit_record(commit: _Commit, end: int, version: int) -> tuple[bytes, bytes | None]:
    fields = {
        "offset": end,
        "leaderEpoch": -1,
        "metadata": commit.value["metadata"],
        "commitTimestamp": current_time_ms(),
        "expireTimestamp": -1,
    }
    return encode_group_record(1, commit.key, fields, version)


def _append_old_commits(
    log: PartitionLog, commits: Sequence[tuple[_Commit, int]], magic: int
) -> None:
    """Append in the format of the log. A broker that old may not know a newer format, and would
    then load no offsets at all. `append` would convert the records."""
    for each in commits:
        key, value = _commit_record(*each, _OLD_VALUE_VERSION)
        now_ms = current_time_ms()
        record = Record(log.log_end_offset, now_ms, key, value)
        log.append_as_follower(encode_legacy([record], magic))


def _append_commits(
    log: PartitionLog, commits: Sequence[tuple[bytes, bytes | None]], fields: BatchFields
) -> None:
    """Append in as many batches as the topic's settings require."""
    now_ms = current_time_ms()
    bytes_max = min(log.config.max_message_bytes, log.config.segment_bytes)
    records: list[Record] = []
    size_bytes = 0
    for key, value in commits:
        record_bytes = len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES
        if records and HEADER_BYTES + size_bytes + record_bytes > bytes_max:
            log.append(encode_batch(records, fields), origin=AppendOrigin.COORDINATOR)
            records, size_bytes = [], 0
        records.append(Record(len(records), now_ms, key, value))
        size_bytes += record_bytes
    if records:
        log.append(encode_batch(records, fields), origin=AppendOrigin.COORDINATOR)

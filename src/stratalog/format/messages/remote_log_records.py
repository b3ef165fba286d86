"""Records of `__remote_log_metadata`: which segments a broker has in remote storage.

A value is a frame version (1), the record's type and version (all varints), then the fields; it has
no key. Every type is flexible from version 0. Records are shown in the form in which Kafka prints
the objects it creates from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.errors import CorruptRecordError, UnsupportedError
from stratalog.format import varint
from stratalog.format.messages.schema import (
    Array,
    Field,
    FramedRecord,
    Message,
    read_message,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

FRAME_VERSION: Final = 1
SEGMENT, SEGMENT_UPDATE, PARTITION_DELETE = range(3)

SEGMENT_STATES: Final = (
    "COPY_SEGMENT_STARTED",
    "COPY_SEGMENT_FINISHED",
    "DELETE_SEGMENT_STARTED",
    "DELETE_SEGMENT_FINISHED",
)
PARTITION_STATES: Final = (
    "DELETE_PARTITION_MARKED",
    "DELETE_PARTITION_STARTED",
    "DELETE_PARTITION_FINISHED",
)

_PARTITION = (Field("name", "string"), Field("id", "uuid"), Field("partition", "int32"))
_SEGMENT_ID = (Field("topicIdPartition", _PARTITION), Field("id", "uuid"))
_LEADER_EPOCHS = Array((Field("leaderEpoch", "int32"), Field("offset", "int64")))


def _message(name: str, *fields: Field) -> Message:
    return Message(name, fields, version_max=1, flexible_since=0)


_RECORDS: Final[Mapping[int, Message]] = {
    SEGMENT: _message(
        "RemoteLogSegmentMetadataRecord",
        Field("remoteLogSegmentId", _SEGMENT_ID),
        Field("startOffset", "int64"),
        Field("endOffset", "int64"),
        Field("brokerId", "int32"),
        Field("maxTimestampMs", "int64"),
        Field("eventTimestampMs", "int64"),
        Field("segmentLeaderEpochs", _LEADER_EPOCHS),
        Field("segmentSizeInBytes", "int32"),
        Field("customMetadata", "bytes", nullable_since=0),
        Field("remoteLogSegmentState", "int8"),
        Field("txnIndexEmpty", "bool", tag=0, default=False),
    ),
    SEGMENT_UPDATE: _message(
        "RemoteLogSegmentMetadataUpdateRecord",
        Field("remoteLogSegmentId", _SEGMENT_ID),
        Field("brokerId", "int32"),
        Field("eventTimestampMs", "int64"),
        Field("customMetadata", "bytes", nullable_since=0),
        Field("remoteLogSegmentState", "int8"),
    ),
    PARTITION_DELETE: _message(
        "RemotePartitionDeleteMetadataRecord",
        Field("topicIdPartition", _PARTITION),
        Field("brokerId", "int32"),
        Field("eventTimestampMs", "int64"),
        Field("remotePartitionDeleteState", "int8"),
    ),
}


class RemoteLogRecord(FramedRecord):
    """One event in the life of a remote segment, or of everything that a partition has in remote
    storage."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Such as RemoteLogSegmentMetadataRecord."""
        return _RECORDS[self.type_id].name


def read_remote_log_record(value: bytes) -> RemoteLogRecord:
    """What a record of `__remote_log_metadata` says."""
    frame_version, at = varint.read_unsigned(value, 0, len(value))
    if frame_version != FRAME_VERSION:
        raise UnsupportedError(f"unknown frame version {frame_version} of remote log metadata")
    type_id, at = varint.read_unsigned(value, at, len(value))
    version, at = varint.read_unsigned(value, at, len(value))
    if type_id not in _RECORDS:
        raise UnsupportedError(f"unknown type {type_id} of remote log metadata")
    fields, _ = read_message(_RECORDS[type_id], value, at, version)
    states = PARTITION_STATES if type_id == PARTITION_DELETE else SEGMENT_STATES
    name = "remotePartitionDeleteState" if type_id == PARTITION_DELETE else "remoteLogSegmentState"
    if not 0 <= fields[name] < len(states):
        raise CorruptRecordError(f"{name} {fields[name]} is unknown", position=at)
    return RemoteLogRecord(type_id, version, {**fields, name: states[fields[name]]})

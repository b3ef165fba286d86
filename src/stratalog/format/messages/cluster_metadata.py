"""Records of `__cluster_metadata`: the state of a KRaft cluster, up to Kafka 4.0.

A value is a frame version (1), the record's type and version (all varints), then the fields; it has
no key. Every type is flexible from version 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.errors import CorruptRecordError, UnsupportedError
from stratalog.format import varint
from stratalog.format.control import ControlType
from stratalog.format.messages.schema import (
    Array,
    Field,
    FramedRecord,
    Message,
    Value,
    read_message,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

FRAME_VERSION: Final = 1
_SHORT_MAX = 0x7FFF

_BROKERS = Array("int32")
_ENDPOINTS = Array(
    (
        Field("name", "string"),
        Field("host", "string"),
        Field("port", "uint16"),
        Field("securityProtocol", "int16"),
    )
)
_FEATURES = Array(
    (
        Field("name", "string"),
        Field("minSupportedVersion", "int16"),
        Field("maxSupportedVersion", "int16"),
    )
)
_ACL = (
    Field("resourceType", "int8"),
    Field("resourceName", "string"),
    Field("patternType", "int8"),
    Field("principal", "string"),
    Field("host", "string"),
    Field("operation", "int8"),
    Field("permissionType", "int8"),
)


def _unchanged(name: str, kind: Array, tag: int, since: int = 0) -> Field:
    """A tagged list that is absent, or null, where nothing changed."""
    return Field(name, kind, since=since, nullable_since=since, tag=tag)


_REGISTER_BROKER = (
    Field("brokerId", "int32"),
    Field("isMigratingZkBroker", "bool", since=2),
    Field("incarnationId", "uuid"),
    Field("brokerEpoch", "int64"),
    Field("endPoints", _ENDPOINTS),
    Field("features", _FEATURES),
    Field("rack", "string", nullable_since=0),
    Field("fenced", "bool"),
    Field("inControlledShutdown", "bool", since=1),
    Field("logDirs", Array("uuid"), since=3, tag=0, default=[]),
)
_PARTITION = (
    Field("partitionId", "int32"),
    Field("topicId", "uuid"),
    Field("replicas", _BROKERS),
    Field("isr", _BROKERS),
    Field("removingReplicas", _BROKERS),
    Field("addingReplicas", _BROKERS),
    Field("leader", "int32"),
    Field("leaderRecoveryState", "int8", tag=0, default=0),
    Field("leaderEpoch", "int32"),
    Field("partitionEpoch", "int32"),
    Field("directories", Array("uuid"), since=1),
    _unchanged("eligibleLeaderReplicas", _BROKERS, tag=1, since=2),
    _unchanged("lastKnownElr", _BROKERS, tag=2, since=2),
)
_PARTITION_CHANGE = (
    Field("partitionId", "int32"),
    Field("topicId", "uuid"),
    _unchanged("isr", _BROKERS, tag=0),
    Field("leader", "int32", tag=1, default=-2),
    _unchanged("replicas", _BROKERS, tag=2),
    _unchanged("removingReplicas", _BROKERS, tag=3),
    _unchanged("addingReplicas", _BROKERS, tag=4),
    Field("leaderRecoveryState", "int8", tag=5, default=-1),
    _unchanged("directories", Array("uuid"), tag=8, since=1),
    _unchanged("eligibleLeaderReplicas", _BROKERS, tag=6, since=2),
    _unchanged("lastKnownElr", _BROKERS, tag=7, since=2),
)
_CONFIG = (
    Field("resourceType", "int8"),
    Field("resourceName", "string"),
    Field("name", "string"),
    Field("value", "string", nullable_since=0),
)
_DELEGATION_TOKEN = (
    Field("owner", "string"),
    Field("requester", "string"),
    Field("renewers", Array("string")),
    Field("issueTimestamp", "int64"),
    Field("maxTimestamp", "int64"),
    Field("expirationTimestamp", "int64"),
    Field("tokenId", "string"),
)
_SCRAM_CREDENTIAL = (
    Field("name", "string"),
    Field("mechanism", "int8"),
    Field("salt", "bytes"),
    Field("storedKey", "bytes"),
    Field("serverKey", "bytes"),
    Field("iterations", "int32"),
)
_CLIENT_QUOTA = (
    Field(
        "entity",
        Array((Field("entityType", "string"), Field("entityName", "string", nullable_since=0))),
    ),
    Field("key", "string"),
    Field("value", "float64"),
    Field("remove", "bool"),
)
_PRODUCER_IDS = (
    Field("brokerId", "int32"),
    Field("brokerEpoch", "int64"),
    Field("nextProducerId", "int64"),
)
_BROKER_CHANGE = (
    Field("brokerId", "int32"),
    Field("brokerEpoch", "int64"),
    Field("fenced", "int8", tag=0, default=0),
    Field("inControlledShutdown", "int8", since=1, tag=1, default=0),
    Field("logDirs", Array("uuid"), since=2, tag=2, default=[]),
)
_REGISTER_CONTROLLER = (
    Field("controllerId", "int32"),
    Field("incarnationId", "uuid"),
    Field("zkMigrationReady", "bool"),
    Field("endPoints", _ENDPOINTS),
    Field("features", _FEATURES),
)
_BROKER_AND_EPOCH = (Field("brokerId", "int32"), Field("brokerEpoch", "int64"))
_ID_AND_EPOCH = (Field("id", "int32"), Field("epoch", "int64"))


def _message(name: str, *fields: Field, version_max: int = 0) -> Message:
    return Message(name, fields, version_max=version_max, flexible_since=0)


_RECORDS: Final[Mapping[int, Message]] = {
    0: _message("RegisterBrokerRecord", *_REGISTER_BROKER, version_max=3),
    1: _message("UnregisterBrokerRecord", *_BROKER_AND_EPOCH),
    2: _message("TopicRecord", Field("name", "string"), Field("topicId", "uuid")),
    3: _message("PartitionRecord", *_PARTITION, version_max=2),
    4: _message("ConfigRecord", *_CONFIG),
    5: _message("PartitionChangeRecord", *_PARTITION_CHANGE, version_max=2),
    7: _message("FenceBrokerRecord", *_ID_AND_EPOCH),
    8: _message("UnfenceBrokerRecord", *_ID_AND_EPOCH),
    9: _message("RemoveTopicRecord", Field("topicId", "uuid")),
    10: _message("DelegationTokenRecord", *_DELEGATION_TOKEN),
    11: _message("UserScramCredentialRecord", *_SCRAM_CREDENTIAL),
    12: _message("FeatureLevelRecord", Field("name", "string"), Field("featureLevel", "int16")),
    14: _message("ClientQuotaRecord", *_CLIENT_QUOTA),
    15: _message("ProducerIdsRecord", *_PRODUCER_IDS),
    17: _message("BrokerRegistrationChangeRecord", *_BROKER_CHANGE, version_max=2),
    18: _message("AccessControlEntryRecord", Field("id", "uuid"), *_ACL),
    19: _message("RemoveAccessControlEntryRecord", Field("id", "uuid")),
    20: _message("NoOpRecord"),
    21: _message("ZkMigrationStateRecord", Field("zkMigrationState", "int8")),
    22: _message(
        "RemoveUserScramCredentialRecord", Field("name", "string"), Field("mechanism", "int8")
    ),
    23: _message("BeginTransactionRecord", Field("name", "string", nullable_since=0, tag=0)),
    24: _message("EndTransactionRecord"),
    25: _message("AbortTransactionRecord", Field("reason", "string", nullable_since=0, tag=0)),
    26: _message("RemoveDelegationTokenRecord", Field("tokenId", "string")),
    27: _message("RegisterControllerRecord", *_REGISTER_CONTROLLER),
    28: _message("ClearElrRecord", Field("topicName", "string")),
}


class MetadataRecord(FramedRecord):
    """One change of the cluster's state."""

    __slots__ = ()

    @property
    def kafka_name(self) -> str:
        """Such as PARTITION_CHANGE_RECORD."""
        name = _RECORDS[self.type_id].name
        return "".join(f"_{c}" if c.isupper() else c for c in name).lstrip("_").upper()


def read_metadata_record(value: bytes) -> MetadataRecord:
    """What a record of `__cluster_metadata` says."""
    at = 0
    frame_version, at = _read_short(value, at, "frame version")
    if frame_version != FRAME_VERSION:
        raise UnsupportedError(
            "Could not deserialize metadata record due to unknown frame version "
            f"{frame_version}(only frame version {FRAME_VERSION} is supported)"
        )
    type_id, at = _read_short(value, at, "type")
    version, at = _read_short(value, at, "version")
    if type_id not in _RECORDS:
        raise UnsupportedError(
            "org.apache.kafka.common.errors.UnsupportedVersionException: "
            f"Unknown metadata id {type_id}"
        )
    try:
        fields, at = read_message(_RECORDS[type_id], value, at, version)
    except (CorruptRecordError, UnsupportedError) as error:
        reason = f"Failed to deserialize record with type {type_id}"
        raise CorruptRecordError(reason, position=at) from error
    if at != len(value):
        reason = f"Found {len(value) - at} byte(s) of garbage after {type_id}"
        raise CorruptRecordError(reason, position=at)
    return MetadataRecord(type_id, version, fields)


def _read_short(value: bytes, at: int, name: str) -> tuple[int, int]:
    try:
        number, after = varint.read_unsigned(value, at, len(value))
    except CorruptRecordError:
        raise CorruptRecordError(f"Error while reading {name}", position=at) from None
    if number > _SHORT_MAX:
        raise CorruptRecordError(f"Value for {name} was too large.", position=at)
    return number, after


# Values of the control records a KRaft quorum writes into its log and snapshots.

_VERSION = Field("version", "int16")
_VOTER = (
    Field("voterId", "int32"),
    Field("voterDirectoryId", "uuid"),
    Field(
        "endpoints",
        Array((Field("name", "string"), Field("host", "string"), Field("port", "uint16"))),
    ),
    Field(
        "kRaftVersionFeature",
        (Field("minSupportedVersion", "int16"), Field("maxSupportedVersion", "int16")),
    ),
)
_ELECTOR = (Field("voterId", "int32"), Field("voterDirectoryId", "uuid", since=1))

QUORUM_RECORDS: Final[Mapping[ControlType, Message]] = {
    ControlType.LEADER_CHANGE: Message(
        "LeaderChangeMessage",
        (
            _VERSION,
            Field("leaderId", "int32"),
            Field("voters", Array(_ELECTOR)),
            Field("grantingVoters", Array(_ELECTOR)),
        ),
        version_max=1,
        flexible_since=0,
    ),
    ControlType.SNAPSHOT_HEADER: Message(
        "SnapshotHeaderRecord",
        (_VERSION, Field("lastContainedLogTimestamp", "int64")),
        flexible_since=0,
    ),
    ControlType.SNAPSHOT_FOOTER: Message("SnapshotFooterRecord", (_VERSION,), flexible_since=0),
    ControlType.KRAFT_VERSION: Message(
        "KRaftVersionRecord", (_VERSION, Field("kRaftVersion", "int16")), flexible_since=0
    ),
    ControlType.KRAFT_VOTERS: Message(
        "VotersRecord", (_VERSION, Field("voters", Array(_VOTER))), flexible_since=0
    ),
}


def read_quorum_record(control_type: ControlType, value: bytes) -> dict[str, Value]:
    """The fields of a control record of one of the `QUORUM_RECORDS` types.

    Every layout so far begins with its version, and version 0 is what Kafka reads.
    """
    return read_message(QUORUM_RECORDS[control_type], value, 0, 0)[0]

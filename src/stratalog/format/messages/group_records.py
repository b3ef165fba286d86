"""Records of `__consumer_offsets`: committed offsets and the state of groups, up to Kafka 4.0.

A key starts with the record's type, a value with its version. Types 0 and 1 are the same record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import (
    CorruptRecordError,
    StratalogError,
    UnknownGroupRecordError,
    UnsupportedError,
)
from stratalog.format.messages.schema import (
    Array,
    Field,
    Message,
    Value,
    read_message,
    write_message,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPE_BYTES = 2
_CONSUMER_PROTOCOL = "consumer"

_TOPIC_PARTITIONS = (Field("topicId", "uuid"), Field("partitions", Array("int32")))
_PARTITIONS_OF_TOPIC = (Field("topic", "string"), Field("partitions", Array("int32")))
_RACKS = (Field("partition", "int32"), Field("racks", Array("string")))
_CLASSIC_MEMBER = (
    Field("sessionTimeoutMs", "int32"),
    Field(
        "supportedProtocols",
        Array((Field("name", "string"), Field("metadata", "bytes"))),
    ),
)
_MEMBER = (
    Field("memberId", "string"),
    Field("groupInstanceId", "string", since=3, nullable_since=3),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("rebalanceTimeout", "int32", since=1),
    Field("sessionTimeout", "int32"),
    Field("subscription", "bytes"),
    Field("assignment", "bytes"),
)
_TOPIC_INFO = (Field("topicId", "uuid"), Field("topicName", "string"))

CONSUMER_SUBSCRIPTION: Final = Message(
    "ConsumerProtocolSubscription",
    (
        Field("topics", Array("string")),
        Field("userData", "bytes", nullable_since=0),
        Field("ownedPartitions", Array(_PARTITIONS_OF_TOPIC), since=1),
        Field("generationId", "int32", since=2),
        Field("rackId", "string", since=3, nullable_since=3),
    ),
    version_max=3,
)
CONSUMER_ASSIGNMENT: Final = Message(
    "ConsumerProtocolAssignment",
    (
        Field("assignedPartitions", Array(_PARTITIONS_OF_TOPIC)),
        Field("userData", "bytes", nullable_since=0),
    ),
    version_max=3,
)

_OFFSET_KEY = (Field("group", "string"), Field("topic", "string"), Field("partition", "int32"))
_GROUP_KEY = (Field("groupId", "string"),)
_MEMBER_KEY = (Field("groupId", "string"), Field("memberId", "string"))
_EPOCH_VALUE = (Field("epoch", "int32"),)
_ASSIGNMENT_EPOCH_VALUE = (Field("assignmentEpoch", "int32"),)
_TARGET_VALUE = (Field("topicPartitions", Array(_TOPIC_PARTITIONS)),)

_OFFSET_VALUE = Message(
    "OffsetCommitValue",
    (
        Field("offset", "int64"),
        Field("leaderEpoch", "int32", since=3),
        Field("metadata", "string"),
        Field("commitTimestamp", "int64"),
        Field("expireTimestamp", "int64", since=1, until=1),
    ),
    version_max=4,
    flexible_since=4,
)
GROUP_METADATA_TYPE: Final = 2
_GROUP_METADATA_VALUE = Message(
    "GroupMetadataValue",
    (
        Field("protocolType", "string"),
        Field("generation", "int32"),
        Field("protocol", "string", nullable_since=0),
        Field("leader", "string", nullable_since=0),
        Field("currentStateTimestamp", "int64", since=2),
        Field("members", Array(_MEMBER)),
    ),
    version_max=4,
    flexible_since=4,
)
_CONSUMER_PARTITIONS_VALUE = (
    Field(
        "topics",
        Array(
            (
                Field("topicId", "uuid"),
                Field("topicName", "string"),
                Field("numPartitions", "int32"),
                Field("partitionMetadata", Array(_RACKS)),
            )
        ),
    ),
)
_CONSUMER_MEMBER_VALUE = (
    Field("instanceId", "string", nullable_since=0),
    Field("rackId", "string", nullable_since=0),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("subscribedTopicNames", Array("string")),
    Field("subscribedTopicRegex", "string", nullable_since=0),
    Field("rebalanceTimeoutMs", "int32"),
    Field("serverAssignor", "string", nullable_since=0),
    Field("classicMemberMetadata", _CLASSIC_MEMBER, nullable_since=0, tag=0),
)
_CURRENT_VALUE = (
    Field("memberEpoch", "int32"),
    Field("previousMemberEpoch", "int32"),
    Field("state", "int8"),
    Field("assignedPartitions", Array(_TOPIC_PARTITIONS)),
)
_CONSUMER_CURRENT_VALUE = (
    *_CURRENT_VALUE,
    Field("partitionsPendingRevocation", Array(_TOPIC_PARTITIONS)),
)
_SHARE_MEMBER_VALUE = (
    Field("rackId", "string", nullable_since=0),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("subscribedTopicNames", Array("string")),
)
_SHARE_STATE_VALUE = (
    Field(
        "initializedTopics",
        Array((*_TOPIC_INFO, Field("partitions", Array("int32")))),
    ),
    Field("deletingTopics", Array(_TOPIC_INFO)),
)
_EXPRESSION_KEY = (Field("groupId", "string"), Field("regularExpression", "string"))
_EXPRESSION_VALUE = (
    Field("topics", Array("string")),
    Field("version", "int64"),
    Field("timestamp", "int64"),
)


class _Record(NamedTuple):
    key: Message
    value: Message


def _record(name: str, key: tuple[Field, ...], value: tuple[Field, ...] | Message) -> _Record:
    if not isinstance(value, Message):
        value = Message(f"{name}Value", value, flexible_since=0)
    return _Record(Message(f"{name}Key", key, version_max=0x7FFF), value)


_RECORDS: Final[Mapping[int, _Record]] = {
    0: _record("OffsetCommit", _OFFSET_KEY, _OFFSET_VALUE),
    1: _record("OffsetCommit", _OFFSET_KEY, _OFFSET_VALUE),
    2: _record("GroupMetadata", (Field("group", "string"),), _GROUP_METADATA_VALUE),
    3: _record("ConsumerGroupMetadata", _GROUP_KEY, _EPOCH_VALUE),
    4: _record("ConsumerGroupPartitionMetadata", _GROUP_KEY, _CONSUMER_PARTITIONS_VALUE),
    5: _record("ConsumerGroupMemberMetadata", _MEMBER_KEY, _CONSUMER_MEMBER_VALUE),
    6: _record("ConsumerGroupTargetAssignmentMetadata", _GROUP_KEY, _ASSIGNMENT_EPOCH_VALUE),
    7: _record("ConsumerGroupTargetAssignmentMember", _MEMBER_KEY, _TARGET_VALUE),
    8: _record("ConsumerGroupCurrentMemberAssignment", _MEMBER_KEY, _CONSUMER_CURRENT_VALUE),
    9: _record("ShareGroupPartitionMetadata", _GROUP_KEY, _CONSUMER_PARTITIONS_VALUE),
    10: _record("ShareGroupMemberMetadata", _MEMBER_KEY, _SHARE_MEMBER_VALUE),
    11: _record("ShareGroupMetadata", _GROUP_KEY, _EPOCH_VALUE),
    12: _record("ShareGroupTargetAssignmentMetadata", _GROUP_KEY, _ASSIGNMENT_EPOCH_VALUE),
    13: _record("ShareGroupTargetAssignmentMember", _MEMBER_KEY, _TARGET_VALUE),
    14: _record("ShareGroupCurrentMemberAssignment", _MEMBER_KEY, _CURRENT_VALUE),
    15: _record("ShareGroupStatePartitionMetadata", _GROUP_KEY, _SHARE_STATE_VALUE),
    16: _record("ConsumerGroupRegularExpression", _EXPRESSION_KEY, _EXPRESSION_VALUE),
}


def type_id_of(name: str) -> int:
    """The type of the records that Kafka calls `name`."""
    return next(type_id for type_id, found in _RECORDS.items() if found.key.name == f"{name}Key")


class GroupRecord(NamedTuple):
    """A record's type and key, its value's version and fields. A tombstone has no value."""

    type_id: int
    key: dict[str, Value]
    value_version: int | None
    value: dict[str, Value] | None


def read_group_record(
    key: bytes, value: bytes | None, *, decode_members: bool = True
) -> GroupRecord:
    """What a record of `__consumer_offsets` says.

    Members of a consumer group carry their subscription and assignment as bytes of the consumer
    protocol. With `decode_members` they are decoded too, and stay bytes where that fails.
    """
    type_id = _read_prefix(key, "key")
    if type_id not in _RECORDS:
        raise UnknownGroupRecordError(type_id)
    record = _RECORDS[type_id]
    key_fields = _read_body(record.key, key, type_id, "key")
    if value is None:
        return GroupRecord(type_id, key_fields, None, None)
    version = _read_prefix(value, "value")
    fields = _read_body(record.value, value, version, "value")
    is_classic = type_id == GROUP_METADATA_TYPE
    if decode_members and is_classic and fields["protocolType"] == _CONSUMER_PROTOCOL:
        for member in fields["members"]:
            _decode_in_place(member, "subscription", CONSUMER_SUBSCRIPTION)
            _decode_in_place(member, "assignment", CONSUMER_ASSIGNMENT)
    return GroupRecord(type_id, key_fields, version, fields)


def encode_group_record(
    type_id: int, key: Mapping[str, Value], value: Mapping[str, Value] | None, version: int = 0
) -> tuple[bytes, bytes | None]:
    """The key and value of a record; no value is a tombstone. `version` is the value's."""
    record = _RECORDS[type_id]
    key_bytes = _prefixed(type_id, write_message(record.key, key, type_id))
    if value is None:
        return key_bytes, None
    return key_bytes, _prefixed(version, write_message(record.value, value, version))


def read_consumer_protocol(message: Message, data: bytes) -> dict[str, Value]:
    """A subscription or assignment as consumers exchange it: a version, then the fields.

    A newer version than is known is read as the newest known one, as consumers do.
    """
    return read_message(message, data, _TYPE_BYTES, consumer_protocol_version(message, data))[0]


def consumer_protocol_version(message: Message, data: bytes) -> int:
    """The version in which a subscription or assignment is read."""
    return min(_read_prefix(data, message.name), message.version_max)


def write_consumer_protocol(message: Message, fields: Mapping[str, Value], version: int) -> bytes:
    """The other way round of `read_consumer_protocol`."""
    return _prefixed(version, write_message(message, fields, version))


def _prefixed(version: int, message: bytes) -> bytes:
    return version.to_bytes(_TYPE_BYTES, signed=True) + message


def _read_prefix(data: bytes, name: str) -> int:
    if len(data) < _TYPE_BYTES:
        raise CorruptRecordError(f"Could not read version from {name}'s buffer.")
    return int.from_bytes(data[:_TYPE_BYTES], signed=True)


def _read_body(message: Message, data: bytes, version: int, name: str) -> dict[str, Value]:
    try:
        return read_message(message, data, _TYPE_BYTES, version)[0]
    except (CorruptRecordError, UnsupportedError) as error:
        cause = error.reason if isinstance(error, CorruptRecordError) else str(error)
        raise CorruptRecordError(
            f"Could not read record with version {version} from {name}'s buffer due to: {cause}."
        ) from None


def _decode_in_place(member: dict[str, Value], name: str, message: Message) -> None:
    data = member[name]
    try:
        version = _read_prefix(data, name)
        member[name] = read_message(message, data, _TYPE_BYTES, version)[0]
    except StratalogError:
        return

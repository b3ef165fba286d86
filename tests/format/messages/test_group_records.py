"""Records of `__consumer_offsets`, from bytes put together by hand after Kafka's schemas."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptRecordError, StratalogError, UnknownGroupRecordError
from stratalog.format.messages.group_records import encode_group_record, read_group_record
from stratalog.format.messages.schema import to_json


def text(value: str) -> str:
    """A string before flexible versions, in hex."""
    return f"{len(value):04x}" + value.encode().hex()


def compact(value: str) -> str:
    """A string in flexible versions, in hex."""
    return f"{len(value) + 1:02x}" + value.encode().hex()


def _json(key: str, value: str | None) -> tuple[str, str | None]:
    raw = bytes.fromhex(key), None if value is None else bytes.fromhex(value)
    found = read_group_record(*raw)
    plain = read_group_record(*raw, decode_members=False)
    assert encode_group_record(*plain[:2], plain.value, plain.value_version or 0) == raw
    return (
        to_json({"type": str(found.type_id), "data": found.key}),
        None
        if found.value is None
        else to_json({"version": str(found.value_version), "data": found.value}),
    )


OFFSET_KEY = text("group") + text("topic") + "00000003"
OFFSET_JSON = '"data":{"group":"group","topic":"topic","partition":3}}'
COMMIT = "000000000000002a"
TIME = "0000018bcfe56800"  # 1700000000000


@pytest.mark.parametrize("type_id", [0, 1])
@pytest.mark.parametrize(
    ("version", "value", "expected"),
    [
        (
            0,
            COMMIT + text("m") + TIME,
            '"offset":42,"metadata":"m","commitTimestamp":1700000000000',
        ),
        (
            1,
            COMMIT + text("") + TIME + TIME,
            '"offset":42,"metadata":"","commitTimestamp":1700000000000,'
            '"expireTimestamp":1700000000000',
        ),
        (2, COMMIT + text("") + TIME, '"offset":42,"metadata":"","commitTimestamp":1700000000000'),
        (
            3,
            COMMIT + "00000007" + text("") + TIME,
            '"offset":42,"leaderEpoch":7,"metadata":"","commitTimestamp":1700000000000',
        ),
        (
            4,
            COMMIT + "ffffffff" + compact("m") + TIME + "00",
            '"offset":42,"leaderEpoch":-1,"metadata":"m","commitTimestamp":1700000000000',
        ),
    ],
)
def test_committed_offsets(type_id: int, version: int, value: str, expected: str) -> None:
    key, shown = _json(f"{type_id:04x}{OFFSET_KEY}", f"{version:04x}{value}")
    assert key == f'{{"type":"{type_id}",{OFFSET_JSON}'
    assert shown == f'{{"version":"{version}","data":{{{expected}}}}}'


def test_a_tombstone() -> None:
    key, shown = _json("0003" + text("group"), None)
    assert key == '{"type":"3","data":{"groupId":"group"}}'
    assert shown is None


SUBSCRIPTION = (
    "0003" + "00000001" + text("foo") + "ffffffff"
    + "00000001" + text("foo") + "00000001" + "00000000" + "00000000" + text("rack")
)  # fmt: skip
ASSIGNMENT = (
    "0003" + "00000001" + text("foo") + "00000001" + "00000000" + "ffffffff"
)  # fmt: skip


def _group(subscription: str, assignment: str) -> str:
    def raw(data: str) -> str:
        return f"{len(data) // 2 + 1:02x}{data}"

    member = (
        compact("member") + compact("instance") + compact("client") + compact("host")
        + "000003e8" + "00000064" + raw(subscription) + raw(assignment) + "00"
    )  # fmt: skip
    return (
        "0004" + compact("consumer") + "0000000a" + compact("range") + compact("member")
        + "ffffffffffffffff" + "02" + member + "00"
    )  # fmt: skip


MEMBER_JSON = (
    '{"version":"4","data":{"protocolType":"consumer","generation":10,"protocol":"range",'
    '"leader":"member","currentStateTimestamp":-1,"members":[{"memberId":"member",'
    '"groupInstanceId":"instance","clientId":"client","clientHost":"host",'
    '"rebalanceTimeout":1000,"sessionTimeout":100,'
)


def test_members_of_a_consumer_group_are_decoded_too() -> None:
    key, shown = _json("0002" + text("group"), _group(SUBSCRIPTION, ASSIGNMENT))
    assert key == '{"type":"2","data":{"group":"group"}}'
    assert shown == (
        MEMBER_JSON + '"subscription":{"topics":["foo"],"userData":null,"ownedPartitions":'
        '[{"topic":"foo","partitions":[0]}],"generationId":0,"rackId":"rack"},'
        '"assignment":{"assignedPartitions":[{"topic":"foo","partitions":[0]}],"userData":null}}]}}'
    )


def test_what_a_member_says_stays_bytes_where_it_cannot_be_decoded() -> None:
    value = _group(b"Subscription".hex(), b"Assignment".hex())
    _, shown = _json("0002" + text("group"), value)
    assert shown == (
        MEMBER_JSON + '"subscription":"U3Vic2NyaXB0aW9u","assignment":"QXNzaWdubWVudA=="}]}}'
    )


def test_an_old_group_without_members() -> None:
    value = "0000" + text("connect") + "00000002" + "ffff" + "ffff" + "00000000"
    _, shown = _json("0002" + text("g"), value)
    assert shown == (
        '{"version":"0","data":{"protocolType":"connect","generation":2,"protocol":null,'
        '"leader":null,"members":[]}}'
    )


UUID = "00000000000000000000000000000001"
UUID_JSON = "AAAAAAAAAAAAAAAAAAAAAQ"
TOPICS = f"02 {UUID} 03 00000000 00000002 00"
TOPICS_JSON = f'[{{"topicId":"{UUID_JSON}","partitions":[0,2]}}]'


@pytest.mark.parametrize(
    ("type_id", "key", "value", "expected"),
    [
        (3, text("g"), "0000000a 00", '{"epoch":10}'),
        (
            4,
            text("g"),
            f"02 {UUID} {compact('t')} 00000002 02 00000000 02 {compact('r')} 00 00 00",
            f'{{"topics":[{{"topicId":"{UUID_JSON}","topicName":"t","numPartitions":2,'
            '"partitionMetadata":[{"partition":0,"racks":["r"]}]}]}',
        ),
        (
            5,
            text("g") + text("m"),
            f"00 00 {compact('c')} {compact('h')} 02 {compact('t')} 00 ffffffff 00 00",
            '{"instanceId":null,"rackId":null,"clientId":"c","clientHost":"h",'
            '"subscribedTopicNames":["t"],"subscribedTopicRegex":null,"rebalanceTimeoutMs":-1,'
            '"serverAssignor":null}',
        ),
        (
            5,
            text("g") + text("m"),
            f"00 00 01 01 01 00 ffffffff 00 01 00 10 01 00001770 02 {compact('range')} 02 ff 00 00",
            '{"instanceId":null,"rackId":null,"clientId":"","clientHost":"",'
            '"subscribedTopicNames":[],"subscribedTopicRegex":null,"rebalanceTimeoutMs":-1,'
            '"serverAssignor":null,"classicMemberMetadata":{"sessionTimeoutMs":6000,"supportedProtocols":'
            '[{"name":"range","metadata":"/w=="}]}}',
        ),
        (6, text("g"), "0000000b 00", '{"assignmentEpoch":11}'),
        (7, text("g") + text("m"), f"{TOPICS} 00", f'{{"topicPartitions":{TOPICS_JSON}}}'),
        (
            8,
            text("g") + text("m"),
            f"00000005 00000004 01 {TOPICS} 01 00",
            '{"memberEpoch":5,"previousMemberEpoch":4,"state":1,'
            f'"assignedPartitions":{TOPICS_JSON},"partitionsPendingRevocation":[]}}',
        ),
        (
            10,
            text("g") + text("m"),
            f"00 {compact('c')} {compact('h')} 01 00",
            '{"rackId":null,"clientId":"c","clientHost":"h","subscribedTopicNames":[]}',
        ),
        (11, text("g"), "00000001 00", '{"epoch":1}'),
        (12, text("g"), "00000001 00", '{"assignmentEpoch":1}'),
        (13, text("g") + text("m"), "01 00", '{"topicPartitions":[]}'),
        (
            14,
            text("g") + text("m"),
            "00000005 00000004 00 01 00",
            '{"memberEpoch":5,"previousMemberEpoch":4,"state":0,"assignedPartitions":[]}',
        ),
        (
            15,
            text("g"),
            f"02 {UUID} {compact('t')} 02 00000000 00 01 00",
            f'{{"initializedTopics":[{{"topicId":"{UUID_JSON}","topicName":"t","partitions":[0]}}],'
            '"deletingTopics":[]}',
        ),
        (
            16,
            text("g") + text("a.*"),
            f"02 {compact('ab')} 0000000000000001 {TIME} 00",
            '{"topics":["ab"],"version":1,"timestamp":1700000000000}',
        ),
    ],
)
def test_state_of_newer_groups(type_id: int, key: str, value: str, expected: str) -> None:
    shown_key, shown = _json(f"{type_id:04x}{key}", f"0000{value}")
    assert shown_key.startswith(f'{{"type":"{type_id}","data":{{"groupId":"g"')
    assert shown == f'{{"version":"0","data":{expected}}}'


def test_a_record_of_a_later_kafka() -> None:
    with pytest.raises(UnknownGroupRecordError) as caught:
        read_group_record(bytes.fromhex("7fff"), b"")
    assert caught.value.type_id == 32767
    assert pickle.loads(pickle.dumps(caught.value)).type_id == 32767


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("00", None, "Could not read version from key's buffer."),
        ("0003" + text("group"), "", "Could not read version from value's buffer."),
        (
            # The value is that of a member, whose record type is another.
            "0003" + text("group"),
            "0000 01 01 01 01 01 01 ffffffff 01 00",
            "Could not read record with version 0 from value's buffer due to: Error reading byte "
            "array of 536870911 byte(s): only 1 byte(s) available.",
        ),
        (
            "0001" + OFFSET_KEY,
            "0005",
            "Could not read record with version 5 from value's buffer due to: Can't read version 5 "
            "of OffsetCommitValue.",
        ),
        (
            "0003ffff",
            None,
            "Could not read record with version 3 from key's buffer due to: non-nullable field "
            "groupId was serialized as null.",
        ),
    ],
)
def test_wrong_bytes_are_told_in_kafkas_words(key: str, value: str | None, reason: str) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        read_group_record(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    assert caught.value.reason == reason


@given(st.integers(-1, 20), st.binary(max_size=40), st.none() | st.binary(max_size=80))
def test_any_bytes_give_a_record_or_an_error(type_id: int, key: bytes, value: bytes | None) -> None:
    try:
        found = read_group_record(type_id.to_bytes(2, signed=True) + key, value)
    except StratalogError:
        return
    assert found.type_id == type_id

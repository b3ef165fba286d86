"""What administrators see of groups: ListGroups, DescribeGroups, ConsumerGroupDescribe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.broker.groups.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, ClassicState
from stratalog.broker.groups.consumer_group import ConsumerGroup, ConsumerMember
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stratalog.broker.groups.assignors import Assignment
    from stratalog.broker.groups.coordinator import Group
    from stratalog.broker.groups.environment import Body, Topics

_UNKNOWN_IS_AN_ERROR_SINCE: Final = 6
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


def list_groups(
    groups: Mapping[str, Group], states: Collection[str], types: Collection[str]
) -> list[Body]:
    """The groups in one of these states and of one of these types; an empty filter matches all."""
    wanted_states = {state.lower() for state in states}
    wanted_types = {name.lower() for name in types}
    listed = [_listed(group) for group in groups.values()]
    return [
        entry
        for entry in listed
        if (not wanted_states or entry["groupState"].lower() in wanted_states)
        and (not wanted_types or entry["groupType"] in wanted_types)
    ]


def _listed(group: Group) -> Body:
    if isinstance(group, ClassicGroup):
        protocol_type, group_type = group.protocol_type or "", "classic"
    else:
        protocol_type, group_type = CONSUMER_PROTOCOL_TYPE, "consumer"
    return {
        "groupId": group.group_id,
        "protocolType": protocol_type,
        "groupState": group.state.value,
        "groupType": group_type,
    }


def describe_classic(group_id: str, group: Group | None, version: int) -> Body:
    """One group of DescribeGroups. A group of the other protocol is reported as not found;
    until version 5, as dead and without an error."""
    if not isinstance(group, ClassicGroup):
        is_error = version >= _UNKNOWN_IS_AN_ERROR_SINCE
        return {
            "errorCode": ErrorCode.GROUP_ID_NOT_FOUND if is_error else ErrorCode.NONE,
            "errorMessage": f"Group {group_id} not found." if is_error else None,
            "groupId": group_id,
            "groupState": ClassicState.DEAD.value,
            "protocolType": "",
            "protocolData": "",
            "members": [],
        }
    protocol = group.protocol if group.state is ClassicState.STABLE else None
    return {
        "errorCode": ErrorCode.NONE,
        "groupId": group_id,
        "groupState": group.state.value,
        "protocolType": group.protocol_type or "",
        "protocolData": protocol or "",
        "members": [
            {
                "memberId": member.member_id,
                "groupInstanceId": member.instance_id,
                "clientId": member.client_id,
                "clientHost": member.client_host,
                "memberMetadata": member.metadata_for(protocol),
                "memberAssignment": member.assignment,
            }
            for member in group.members.values()
        ],
    }


def describe_consumer(group_id: str, group: Group | None, topics: Topics) -> Body:
    """One group of ConsumerGroupDescribe. A classic group is reported as not found."""
    if not isinstance(group, ConsumerGroup):
        return {"errorCode": ErrorCode.GROUP_ID_NOT_FOUND, "groupId": group_id}
    return {
        "errorCode": ErrorCode.NONE,
        "groupId": group_id,
        "groupState": group.state.value,
        "groupEpoch": group.epoch,
        "assignmentEpoch": group.assignment_epoch,
        "assignorName": group.assignor,
        "members": [_described(member, group, topics) for member in group.members.values()],
    }


def _described(member: ConsumerMember, group: ConsumerGroup, topics: Topics) -> Body:
    return {
        "memberId": member.member_id,
        "instanceId": member.instance_id,
        "rackId": member.rack_id,
        "memberEpoch": member.epoch,
        "clientId": member.client_id,
        "clientHost": member.client_host,
        "subscribedTopicNames": sorted(member.topic_names),
        "subscribedTopicRegex": member.topic_regex or "",
        "assignment": _named(member.assigned, topics),
        "targetAssignment": _named(group.target_of(member), topics),
        "memberType": _CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    }


def _named(assignment: Assignment, topics: Topics) -> Body:
    names = {topic_id: topics.name_of(topic_id) for topic_id in assignment}
    return {
        "topicPartitions": [
            {"topicId": topic_id, "topicName": names[topic_id], "partitions": sorted(numbers)}
            for topic_id, numbers in assignment.items()
            if names[topic_id] is not None
        ]
    }

"""Upgrading and downgrading groups from one protocol to the other, while members keep consuming.

The first member that uses the consumer protocol turns a classic group into a consumer group. Its
classic members stay: JoinGroup and SyncGroup give them their part of the coordinator's assignment,
and Heartbeat sends them back to JoinGroup when that changes. No leader assigns anything. When the
last member of the consumer protocol is gone, the group becomes a classic one again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from stratalog.broker.groups.classic_group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicMember,
    ClassicState,
)
from stratalog.broker.groups.consumer_group import (
    ClassicMembership,
    ConsumerGroup,
    ConsumerMember,
    GroupDraft,
    MemberState,
)
from stratalog.broker.groups.environment import GroupRecordWrite
from stratalog.errors import RequestError, StratalogError
from stratalog.format.messages.group_records import (
    CONSUMER_ASSIGNMENT,
    CONSUMER_SUBSCRIPTION,
    GROUP_METADATA_TYPE,
    consumer_protocol_version,
    read_consumer_protocol,
    write_consumer_protocol,
)
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from stratalog.broker.groups.assignors import Assignment
    from stratalog.broker.groups.consumer import ConsumerProtocol
    from stratalog.broker.groups.environment import Body, Environment, GroupRequest, Topics

_MEMBER_ID_REQUIRED_SINCE: Final = 4


# -- from one protocol to the other


def upgraded(group: ClassicGroup, topics: Topics) -> tuple[ConsumerGroup, list[GroupRecordWrite]]:
    """A classic group as a consumer group, with the records that make it one. Raises RequestError
    if its members do not use the protocol of consumers."""
    consumer = ConsumerGroup(
        group.group_id, group.generation, group.generation, offsets=group.offsets
    )
    draft = GroupDraft(consumer)
    try:
        members = [_consumer_member(member, group, topics) for member in group.members.values()]
    except StratalogError:
        raise RequestError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group."
        ) from None
    draft.write(*(consumer.member_record(member) for member in members))
    draft.write(consumer.topics_record(draft.group.current_topics(topics).values()))
    draft.write(consumer.epoch_record(group.generation))
    draft.write(*(consumer.target_record(member.member_id, member.assigned) for member in members))
    draft.write(consumer.target_epoch_record(group.generation))
    draft.write(*(consumer.current_record(member) for member in members))
    draft.take_effect()
    return consumer, [classic_removal(group), *draft.records]


def classic_removal(group: ClassicGroup) -> GroupRecordWrite:
    """The tombstone of a classic group."""
    return GroupRecordWrite(GROUP_METADATA_TYPE, {"group": group.group_id}, None)


def _consumer_member(member: ClassicMember, group: ClassicGroup, topics: Topics) -> ConsumerMember:
    metadata = member.metadata_for(group.protocol) or member.protocols[0][1]
    subscription = read_consumer_protocol(CONSUMER_SUBSCRIPTION, metadata)
    assigned: Assignment = {}
    if member.assignment:
        found = read_consumer_protocol(CONSUMER_ASSIGNMENT, member.assignment)
        assigned = _by_topic_id(found["assignedPartitions"], topics)
    return ConsumerMember(
        member.member_id,
        member.instance_id,
        subscription.get("rackId"),
        member.client_id,
        member.client_host,
        frozenset(subscription["topics"]),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMembership(member.session_timeout_ms, member.protocols),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned=assigned,
    )


def downgraded(group: ConsumerGroup, topics: Topics, now_ms: int) -> ClassicGroup:
    """A consumer group whose members are all classic, or gone, as a classic group."""
    classic = ClassicGroup(
        group.group_id,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=group.epoch,
        offsets=group.offsets,
    )
    for member in group.members.values():
        assert member.classic is not None
        classic.add(
            ClassicMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                member.classic.protocols,
                _assignment_bytes(member, topics),
            ),
            CONSUMER_PROTOCOL_TYPE,
        )
    if classic.members:
        classic.protocol = classic.choose_protocol()
    classic.enter(ClassicState.STABLE if classic.members else ClassicState.EMPTY, now_ms)
    return classic


def _by_topic_id(entries: list[Body], topics: Topics) -> Assignment:
    found = {entry["topic"]: topics.find(entry["topic"]) for entry in entries}
    return {
        facts.topic_id: frozenset(entry["partitions"])
        for entry in entries
        if (facts := found[entry["topic"]]) is not None and entry["partitions"]
    }


def _assignment_bytes(member: ConsumerMember, topics: Topics) -> bytes:
    """The member's assignment as classic members read it."""
    assert member.classic is not None
    entries = [
        {"topic": name, "partitions": sorted(numbers)}
        for topic_id, numbers in member.assigned.items()
        if (name := topics.name_of(topic_id)) is not None
    ]
    version = consumer_protocol_version(CONSUMER_SUBSCRIPTION, member.classic.protocols[0][1])
    fields = {"assignedPartitions": entries, "userData": None}
    return write_consumer_protocol(CONSUMER_ASSIGNMENT, fields, version)


# -- classic members of a consumer group


class ClassicMembers:
    """Serves the classic requests of members of consumer groups."""

    def __init__(self, environment: Environment, consumer: ConsumerProtocol) -> None:
        self._env = environment
        self._consumer = consumer

    def join(self, group: ConsumerGroup, request: GroupRequest) -> Body:
        """JoinGroup: the member's next step towards its target."""
        body, member_id = request.body, request.body["memberId"]
        names = [entry["name"] for entry in body["protocols"]]
        self._check_protocols(group, member_id, body["protocolType"], names)
        instance_id = body.get("groupInstanceId")
        if not member_id:
            member_id = self._env.new_member_id()
            if instance_id is None and request.version >= _MEMBER_ID_REQUIRED_SINCE:
                return {"errorCode": ErrorCode.MEMBER_ID_REQUIRED, "memberId": member_id}
        try:
            subscription = read_consumer_protocol(
                CONSUMER_SUBSCRIPTION, bytes(body["protocols"][0]["metadata"])
            )
        except StratalogError:
            raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
        draft = GroupDraft(group)
        known = self._consumer.find_or_add(draft, member_id, instance_id)
        updated = _subscribed(known, request, subscription)
        is_new = member_id not in draft.group.members
        if updated != known or is_new:
            draft.write(group.member_record(updated))
        has_changed = is_new or updated.topic_names != known.topic_names
        self._consumer.refresh_target(draft, has_changed=has_changed)
        owned = _by_topic_id(subscription.get("ownedPartitions") or [], self._env.topics)
        after = self._consumer.reconcile(draft, member_id, owned)
        self._consumer.commit(draft, group)
        self._consumer.expect_heartbeat(group, member_id)
        return {
            "errorCode": ErrorCode.NONE,
            "memberId": member_id,
            "generationId": after.epoch,
            "protocolType": CONSUMER_PROTOCOL_TYPE,
            "protocolName": names[0],
            "leader": "",
            "skipAssignment": False,
            "members": [],
        }

    def _check_protocols(
        self, group: ConsumerGroup, member_id: str, protocol_type: str, names: list[str]
    ) -> None:
        others = [
            {name for name, _ in member.classic.protocols}
            for member in group.members.values()
            if member.classic is not None and member.member_id != member_id
        ]
        common = set(names).intersection(*others)
        if protocol_type != CONSUMER_PROTOCOL_TYPE or not common:
            raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def sync(self, group: ConsumerGroup, request: GroupRequest) -> Body:
        """SyncGroup: the member's assignment."""
        body = request.body
        member = self._member(group, body)
        assert member.classic is not None
        protocol = member.classic.protocols[0][0]
        is_same = body.get("protocolType") in (None, CONSUMER_PROTOCOL_TYPE)
        if not is_same or body.get("protocolName") not in (None, protocol):
            raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        has_to_catch_up = member.state is not MemberState.UNREVOKED_PARTITIONS
        if group.epoch > member.epoch and has_to_catch_up:
            raise RequestError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._consumer.expect_heartbeat(group, member.member_id)
        return {
            "errorCode": ErrorCode.NONE,
            "protocolType": CONSUMER_PROTOCOL_TYPE,
            "protocolName": protocol,
            "assignment": _assignment_bytes(member, self._env.topics),
        }

    def heartbeat(self, group: ConsumerGroup, request: GroupRequest) -> None:
        """Heartbeat. Raises RequestError with 27 when the member shall join again: to catch up, to
        give up partitions, or to get some that have become free."""
        member = self._member(group, request.body)
        self._consumer.expect_heartbeat(group, member.member_id)
        waits = member.state is MemberState.UNRELEASED_PARTITIONS
        if (
            member.epoch < group.epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (waits and group.reconcile(member, None).assigned != member.assigned)
        ):
            raise RequestError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """LeaveGroup, one member."""
        if instance_id is not None:
            owner_id = group.static_members.get(instance_id)
            if owner_id is None:
                raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
            if member_id and owner_id != member_id:
                raise RequestError(ErrorCode.FENCED_INSTANCE_ID)
            member_id = owner_id
        group.member(member_id)
        self._consumer.remove(group, member_id)

    def _member(self, group: ConsumerGroup, body: dict[str, Any]) -> ConsumerMember:
        member_id, instance_id = body["memberId"], body.get("groupInstanceId")
        if instance_id is not None:
            owner_id = group.static_members.get(instance_id)
            if owner_id is not None and owner_id != member_id:
                raise RequestError(ErrorCode.FENCED_INSTANCE_ID)
        member = group.member(member_id)
        if member.classic is None:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        if body["generationId"] != member.epoch:
            raise RequestError(ErrorCode.ILLEGAL_GENERATION)
        return member


def _subscribed(
    member: ConsumerMember, request: GroupRequest, subscription: Body
) -> ConsumerMember:
    body = request.body
    protocols = tuple((entry["name"], bytes(entry["metadata"])) for entry in body["protocols"])
    rebalance_timeout_ms = body.get("rebalanceTimeoutMs", -1)
    if rebalance_timeout_ms < 0:
        rebalance_timeout_ms = body["sessionTimeoutMs"]
    return replace(
        member,
        instance_id=body.get("groupInstanceId") or member.instance_id,
        rack_id=subscription.get("rackId"),
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=frozenset(subscription["topics"]),
        rebalance_timeout_ms=rebalance_timeout_ms,
        classic=ClassicMembership(body["sessionTimeoutMs"], protocols),
    )

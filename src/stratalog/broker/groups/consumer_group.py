"""A group of the consumer protocol (KIP-848): its members and assignments, without timers.

The group's epoch grows with each change of members, subscriptions or topics. For each epoch the
coordinator computes a target assignment; each member moves towards its part on its own, first
giving up the partitions of others. A member that has to give up partitions stays at its old epoch
until it has; one that waits for partitions of others is already at the new epoch.

Every change is a record of `__consumer_offsets`, and `apply` is the only way to make it: what a
restart reads is what a running group did. No partition is assigned to two members at any time.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.broker.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, MemberSpec
from stratalog.broker.groups.environment import GroupRecordWrite, TopicFacts
from stratalog.broker.groups.offsets import CommittedOffsets
from stratalog.errors import RequestError
from stratalog.format.messages.group_records import type_id_of
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stratalog.broker.groups.assignors import Assignment
    from stratalog.broker.groups.environment import Body, Topics

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2


class RecordType(enum.IntEnum):
    """The records of a consumer group in `__consumer_offsets`, by the version of their keys."""

    GROUP = type_id_of("ConsumerGroupMetadata")
    TOPICS = type_id_of("ConsumerGroupPartitionMetadata")
    MEMBER = type_id_of("ConsumerGroupMemberMetadata")
    TARGET_EPOCH = type_id_of("ConsumerGroupTargetAssignmentMetadata")
    TARGET = type_id_of("ConsumerGroupTargetAssignmentMember")
    CURRENT = type_id_of("ConsumerGroupCurrentMemberAssignment")


CONSUMER_TYPES: Final = frozenset(RecordType)


class MemberState(enum.IntEnum):
    """How far a member has come towards its target. The numbers are those in records."""

    STABLE = 1
    UNREVOKED_PARTITIONS = 2
    """It has to give up partitions first."""
    UNRELEASED_PARTITIONS = 3
    """It waits for partitions that others have not given up yet."""


class ClassicMembership(NamedTuple):
    """What is kept of a member that uses the classic protocol in this group."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class ConsumerMember:
    """A member: what it wants, and what it has."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMembership | None = None
    """None: it uses the consumer protocol."""
    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=dict)
    pending_revocation: Assignment = field(default_factory=dict)
    """What it has to give up, and nobody else may have yet."""

    def wants(self, topics: Topics) -> frozenset[str]:
        """Names of the topics that it subscribes to."""
        if self.topic_regex is None:
            return self.topic_names
        return self.topic_names | topics.matching(self.topic_regex)


class ConsumerState(enum.Enum):
    """Where a group stands. The values are what clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass
class ConsumerGroup:
    """Members, target and topics of a group."""

    group_id: str
    epoch: int = 0
    assignment_epoch: int = 0
    """The group's epoch for which `target` was computed."""
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id."""
    target: dict[str, Assignment] = field(default_factory=dict)
    topics: dict[str, TopicFacts] = field(default_factory=dict)
    """Subscribed topics that exist, by name, as of the group's epoch."""
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)

    # -- questions

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        is_settled = all(
            member.state is MemberState.STABLE and member.epoch == self.assignment_epoch
            for member in self.members.values()
        )
        return ConsumerState.STABLE if is_settled else ConsumerState.RECONCILING

    @property
    def assignor(self) -> str:
        """What most members ask for, of those that ask."""
        wanted = (member.server_assignor for member in self.members.values())
        votes = Counter(name for name in wanted if name is not None)
        return max(ASSIGNORS, key=lambda name: votes[name]) if votes else DEFAULT_ASSIGNOR

    def member(self, member_id: str) -> ConsumerMember:
        """Raises RequestError if there is no such member."""
        member = self.members.get(member_id)
        if member is None:
            raise RequestError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def free_partitions(self, member: ConsumerMember, topic_id: str) -> frozenset[int]:
        """Partitions of a topic in the member's target that nobody else has."""
        taken = {
            number
            for other in self.members.values()
            if other.member_id != member.member_id
            for held in (other.assigned, other.pending_revocation)
            for number in held.get(topic_id, ())
        }
        return self.target_of(member).get(topic_id, frozenset()) - taken

    def target_of(self, member: ConsumerMember) -> Assignment:
        return self.target.get(member.member_id, {})

    def subscribed_topics(self, topics: Topics) -> set[str]:
        return {name for member in self.members.values() for name in member.wants(topics)}

    # -- decisions

    def current_topics(self, topics: Topics) -> dict[str, TopicFacts]:
        """The subscribed topics as they are now."""
        found = (topics.find(name) for name in sorted(self.subscribed_topics(topics)))
        return {facts.name: facts for facts in found if facts is not None}

    def compute_target(self, topics: Topics) -> dict[str, Assignment]:
        """The target assignment for the members and topics of the current epoch."""
        specs = {
            member.member_id: MemberSpec(
                frozenset(
                    self.topics[name].topic_id
                    for name in member.wants(topics)
                    if name in self.topics
                ),
                member.instance_id,
                self.target_of(member),
            )
            for member in self.members.values()
        }
        counts = {facts.topic_id: facts.partition_count for facts in self.topics.values()}
        return ASSIGNORS[self.assignor](specs, counts) if specs else {}

    def reconcile(self, member: ConsumerMember, owned: Assignment | None) -> ConsumerMember:
        """The member's next step towards its target. `owned` is what it says it has, None if it
        does not say."""
        if member.state is MemberState.STABLE and member.epoch == self.assignment_epoch:
            return member
        if member.state is MemberState.UNREVOKED_PARTITIONS and (
            owned is None or _overlap(owned, member.pending_revocation)
        ):
            return member
        target = self.target_of(member)
        kept = _intersection(member.assigned, target)
        revoked = _difference(member.assigned, target)
        if revoked and (owned is None or _overlap(owned, revoked)):
            return replace(
                member,
                state=MemberState.UNREVOKED_PARTITIONS,
                assigned=kept,
                pending_revocation=revoked,
            )
        free = {topic_id: self.free_partitions(member, topic_id) for topic_id in target}
        assigned = _union(kept, {topic: free[topic] for topic in target if free[topic]})
        is_complete = assigned == dict(target)
        return replace(
            member,
            state=MemberState.STABLE if is_complete else MemberState.UNRELEASED_PARTITIONS,
            epoch=self.assignment_epoch,
            previous_epoch=member.epoch,
            assigned=assigned,
            pending_revocation={},
        )

    # -- records

    def member_record(self, member: ConsumerMember) -> GroupRecordWrite:
        classic = member.classic and {
            "sessionTimeoutMs": member.classic.session_timeout_ms,
            "supportedProtocols": [
                {"name": name, "metadata": metadata} for name, metadata in member.classic.protocols
            ],
        }
        value = {
            "instanceId": member.instance_id,
            "rackId": member.rack_id,
            "clientId": member.client_id,
            "clientHost": member.client_host,
            "subscribedTopicNames": sorted(member.topic_names),
            "subscribedTopicRegex": member.topic_regex,
            "rebalanceTimeoutMs": member.rebalance_timeout_ms,
            "serverAssignor": member.server_assignor,
            "classicMemberMetadata": classic,
        }
        return self._member_record(RecordType.MEMBER, member.member_id, value)

    def current_record(self, member: ConsumerMember) -> GroupRecordWrite:
        value = {
            "memberEpoch": member.epoch,
            "previousMemberEpoch": member.previous_epoch,
            "state": int(member.state),
            "assignedPartitions": topic_partitions(member.assigned),
            "partitionsPendingRevocation": topic_partitions(member.pending_revocation),
        }
        return self._member_record(RecordType.CURRENT, member.member_id, value)

    def target_record(self, member_id: str, target: Assignment) -> GroupRecordWrite:
        value = {"topicPartitions": topic_partitions(target)}
        return self._member_record(RecordType.TARGET, member_id, value)

    def epoch_record(self, epoch: int) -> GroupRecordWrite:
        return GroupRecordWrite(RecordType.GROUP, self._key, {"epoch": epoch})

    def target_epoch_record(self, epoch: int) -> GroupRecordWrite:
        return GroupRecordWrite(RecordType.TARGET_EPOCH, self._key, {"assignmentEpoch": epoch})

    def topics_record(self, topics: Iterable[TopicFacts]) -> GroupRecordWrite:
        entries = [
            {
                "topicId": facts.topic_id,
                "topicName": facts.name,
                "numPartitions": facts.partition_count,
                "partitionMetadata": [],
            }
            for facts in topics
        ]
        return GroupRecordWrite(RecordType.TOPICS, self._key, {"topics": entries})

    def removal_records(self, member_id: str) -> list[GroupRecordWrite]:
        """Tombstones of a member."""
        return [
            self._member_record(type_id, member_id, None)
            for type_id in (RecordType.CURRENT, RecordType.TARGET, RecordType.MEMBER)
        ]

    def tombstones(self) -> list[GroupRecordWrite]:
        """What removes the group, without its offsets."""
        members = [record for name in self.members for record in self.removal_records(name)]
        return members + [
            GroupRecordWrite(type_id, self._key, None)
            for type_id in (RecordType.TARGET_EPOCH, RecordType.TOPICS, RecordType.GROUP)
        ]

    @property
    def _key(self) -> dict[str, Any]:
        return {"groupId": self.group_id}

    def _member_record(
        self, type_id: int, member_id: str, value: Mapping[str, Any] | None
    ) -> GroupRecordWrite:
        return GroupRecordWrite(type_id, {**self._key, "memberId": member_id}, value)

    def apply(self, type_id: int, key: Mapping[str, Any], value: Body | None) -> None:
        """Make the change that a record describes."""
        member_id = key.get("memberId", "")
        if type_id == RecordType.GROUP:
            self.epoch = value["epoch"] if value else 0
        elif type_id == RecordType.TARGET_EPOCH:
            self.assignment_epoch = value["assignmentEpoch"] if value else 0
        elif type_id == RecordType.TOPICS:
            self.topics = _topic_facts(value["topics"] if value else [])
        elif type_id == RecordType.TARGET:
            self.target.pop(member_id, None)
            if value:
                self.target[member_id] = assignment_of(value["topicPartitions"])
        elif type_id == RecordType.CURRENT:
            self._apply_current(member_id, value)
        elif value is None:
            self._forget(member_id)
        else:
            self._apply_member(member_id, value)

    def _forget(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        instance_id = "" if member is None else member.instance_id or ""
        if self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]

    def _apply_member(self, member_id: str, value: Body) -> None:
        classic = value.get("classicMemberMetadata")
        known = self.members.get(member_id) or ConsumerMember(member_id)
        self.members[member_id] = replace(
            known,
            instance_id=value["instanceId"],
            rack_id=value["rackId"],
            client_id=value["clientId"],
            client_host=value["clientHost"],
            topic_names=frozenset(value["subscribedTopicNames"]),
            topic_regex=value["subscribedTopicRegex"],
            rebalance_timeout_ms=value["rebalanceTimeoutMs"],
            server_assignor=value["serverAssignor"],
            classic=classic
            and ClassicMembership(
                classic["sessionTimeoutMs"],
                tuple((item["name"], item["metadata"]) for item in classic["supportedProtocols"]),
            ),
        )
        if value["instanceId"] is not None:
            self.static_members[value["instanceId"]] = member_id

    def _apply_current(self, member_id: str, value: Body | None) -> None:
        known = self.members.get(member_id)
        if known is None and value is None:
            return
        known = known or ConsumerMember(member_id)
        if value is None:
            self.members[member_id] = replace(
                known,
                epoch=LEAVE_EPOCH,
                previous_epoch=LEAVE_EPOCH,
                assigned={},
                pending_revocation={},
            )
            return
        self.members[member_id] = replace(
            known,
            epoch=value["memberEpoch"],
            previous_epoch=value["previousMemberEpoch"],
            state=MemberState(value["state"]),
            assigned=assignment_of(value["assignedPartitions"]),
            pending_revocation=assignment_of(value["partitionsPendingRevocation"]),
        )


class GroupDraft:
    """Changes of a group that are decided, but not yet in the log.

    `group` is the group as it will be; the real one changes with `take_effect`.
    """

    def __init__(self, group: ConsumerGroup) -> None:
        self._real = group
        self.group = replace(
            group,
            members=dict(group.members),
            static_members=dict(group.static_members),
            target=dict(group.target),
        )
        self.records: list[GroupRecordWrite] = []

    def write(self, *records: GroupRecordWrite) -> None:
        """Decide on a change."""
        for record in records:
            self.records.append(record)
            value = None if record.value is None else dict(record.value)
            self.group.apply(record.type_id, record.key, value)

    def take_effect(self) -> None:
        """The records are in the log."""
        vars(self._real).update(vars(self.group))


def topic_partitions(assignment: Assignment) -> list[Body]:
    """An assignment as messages and records have it."""
    return [
        {"topicId": topic_id, "partitions": sorted(numbers)}
        for topic_id, numbers in assignment.items()
    ]


def assignment_of(entries: Iterable[Mapping[str, Any]]) -> Assignment:
    """The other way round of `topic_partitions`."""
    return {
        entry["topicId"]: frozenset(entry["partitions"]) for entry in entries if entry["partitions"]
    }


def is_subset(part: Assignment, whole: Assignment) -> bool:
    """Whether every partition of `part` is in `whole`."""
    return not _difference(part, whole)


def _topic_facts(entries: Iterable[Mapping[str, Any]]) -> dict[str, TopicFacts]:
    return {
        entry["topicName"]: TopicFacts(entry["topicId"], entry["topicName"], entry["numPartitions"])
        for entry in entries
    }


def _overlap(one: Assignment, other: Assignment) -> bool:
    return bool(_intersection(one, other))


def _intersection(one: Assignment, other: Assignment) -> dict[str, frozenset[int]]:
    common = {topic: numbers & other.get(topic, frozenset()) for topic, numbers in one.items()}
    return {topic: numbers for topic, numbers in common.items() if numbers}


def _difference(one: Assignment, other: Assignment) -> dict[str, frozenset[int]]:
    left = {topic: numbers - other.get(topic, frozenset()) for topic, numbers in one.items()}
    return {topic: numbers for topic, numbers in left.items() if numbers}


def _union(one: Assignment, other: Assignment) -> dict[str, frozenset[int]]:
    topics = [*one, *(topic for topic in other if topic not in one)]
    return {topic: one.get(topic, frozenset()) | other.get(topic, frozenset()) for topic in topics}

"""A group of the classic protocol: its members and what they have agreed on, without timers.

Invariants:

* the leader is a member, unless there are none;
* every member supports at least one protocol that all support;
* a member that waits for a response to JoinGroup or SyncGroup is alive: its session does not end.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stratalog.broker.groups.environment import GroupRecordWrite
from stratalog.broker.groups.offsets import CommittedOffsets
from stratalog.errors import RequestError, StratalogError
from stratalog.format.messages.group_records import (
    CONSUMER_SUBSCRIPTION,
    GROUP_METADATA_TYPE,
    read_consumer_protocol,
)
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stratalog.broker.groups.environment import Body, Reply

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_VALUE_VERSION: Final = 3  # the newest that is not flexible: what Kafka 4.0 writes


class ClassicState(enum.Enum):
    """Where a group stands. The values are what clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass
class ClassicMember:
    """A consumer in the group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Names of protocols, most wanted first, with the member's metadata for each."""
    assignment: bytes = b""
    join_reply: Reply | None = None
    """Set while the member waits for the rebalance."""
    sync_reply: Reply | None = None
    """Set while the member waits for the leader's assignment."""
    is_new: bool = False
    """Whether it waits for its first generation, without sending heartbeats."""

    @property
    def is_waiting(self) -> bool:
        return self.join_reply is not None or self.sync_reply is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        return dict(self.protocols).get(protocol or "", b"")

    def vote(self, candidates: Collection[str]) -> str:
        """The member's first protocol among those that all members support."""
        return next(name for name, _ in self.protocols if name in candidates)


@dataclass
class ClassicGroup:
    """Members, protocol and generation of a group."""

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    state_timestamp_ms: int = -1
    """Since when the group is in its state; -1 is unknown."""
    protocol_type: str | None = None
    protocol: str | None = None
    generation: int = 0
    leader: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id."""
    pending_members: set[str] = field(default_factory=set)
    """Ids that were given out to consumers that have not joined with them yet."""
    unsynced: set[str] = field(default_factory=set)
    """Members of this generation that have not sent SyncGroup."""
    has_new_member: bool = False
    """Whether somebody joined since the initial delay began."""
    is_initial: bool = False
    """Whether the group waits for its first members."""
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)

    # -- questions

    @property
    def is_simple(self) -> bool:
        """Whether it only has offsets: its consumers choose their partitions themselves."""
        return self.protocol_type is None

    @property
    def has_consumers(self) -> bool:
        """Whether its members are consumers, whose subscriptions can be read."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def has_all_joined(self) -> bool:
        waiting = sum(member.join_reply is not None for member in self.members.values())
        return waiting == len(self.members) and not self.pending_members

    def is_leader(self, member_id: str) -> bool:
        return self.leader == member_id

    def supports(self, protocol_type: str, names: Collection[str]) -> bool:
        """Whether a member with these protocols can join."""
        if not protocol_type or not names:
            return False
        if not self.members:
            return True
        return protocol_type == self.protocol_type and bool(self._common_protocols() & set(names))

    def _common_protocols(self) -> set[str]:
        supported = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*supported)

    def choose_protocol(self) -> str:
        """The protocol with the most votes, among those that all members support."""
        candidates = self._common_protocols()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member that a request names. Raises RequestError if it is not one."""
        if instance_id is not None:
            current_id = self.static_members.get(instance_id)
            if current_id is None:
                raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current_id != member_id:
                raise RequestError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def subscribed_topics(self) -> set[str] | None:
        """Topics that the members read; None if that is not known."""
        if not self.has_consumers:
            return None
        if not self.members:
            return set()
        if self.protocol is None:
            return None
        try:
            return {
                topic
                for member in self.members.values()
                for topic in read_consumer_protocol(
                    CONSUMER_SUBSCRIPTION, member.metadata_for(self.protocol)
                )["topics"]
            }
        except StratalogError:
            return None

    # -- changes

    def enter(self, state: ClassicState, now_ms: int) -> None:
        self.state = state
        self.state_timestamp_ms = now_ms

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.pending_members.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        self.unsynced.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace_static(self, instance_id: str, new_id: str) -> ClassicMember:
        """Give the place of a static member to a new process of it. Returns the old one, whose
        replies are still to be sent; the new one has none."""
        old_id = self.static_members[instance_id]
        old = self.members[old_id]
        new = ClassicMember(**{**vars(old), "member_id": new_id})
        new.join_reply = new.sync_reply = None
        self.members = {
            (new_id if name == old_id else name): (new if name == old_id else member)
            for name, member in self.members.items()
        }
        self.static_members[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)
        return old

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that has rejoined. Returns whether there is one."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.join_reply is not None:
            return True
        joined = (name for name, member in self.members.items() if member.join_reply is not None)
        new_leader = next(joined, None)
        if new_leader is not None:
            self.leader = new_leader
        return new_leader is not None

    def next_generation(self, now_ms: int) -> None:
        self.generation = 1 if self.generation == (1 << 31) - 1 else self.generation + 1
        self.is_initial = False
        if self.members:
            self.protocol = self.choose_protocol()
            self.enter(ClassicState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.leader = None
            self.enter(ClassicState.EMPTY, now_ms)

    # -- records

    def record(self, assignments: Mapping[str, bytes], now_ms: int) -> GroupRecordWrite:
        """The record of the group with these assignments."""
        members = [
            {
                "memberId": member.member_id,
                "groupInstanceId": member.instance_id,
                "clientId": member.client_id,
                "clientHost": member.client_host,
                "rebalanceTimeout": member.rebalance_timeout_ms,
                "sessionTimeout": member.session_timeout_ms,
                "subscription": member.metadata_for(self.protocol),
                "assignment": assignments.get(member.member_id, b""),
            }
            for member in self.members.values()
        ]
        value = {
            "protocolType": self.protocol_type or "",
            "generation": self.generation,
            "protocol": self.protocol,
            "leader": self.leader,
            "currentStateTimestamp": now_ms,
            "members": members,
        }
        return GroupRecordWrite(
            GROUP_METADATA_TYPE, {"group": self.group_id}, value, _VALUE_VERSION
        )

    def restore(self, value: Body) -> None:
        """Become what a record says. Its members have one protocol: the chosen one."""
        self.protocol_type = value["protocolType"] or None
        self.generation = value["generation"]
        self.protocol = value["protocol"]
        self.leader = value["leader"]
        self.members = {}
        self.static_members = {}
        for entry in value["members"]:
            member = ClassicMember(
                entry["memberId"],
                entry.get("groupInstanceId"),
                entry["clientId"],
                entry["clientHost"],
                entry.get("rebalanceTimeout", entry["sessionTimeout"]),
                entry["sessionTimeout"],
                ((self.protocol or "", entry["subscription"]),),
                entry["assignment"],
            )
            self.members[member.member_id] = member
            if member.instance_id is not None:
                self.static_members[member.instance_id] = member.member_id
        self.state = ClassicState.STABLE if self.members else ClassicState.EMPTY
        self.state_timestamp_ms = value.get("currentStateTimestamp", -1)

"""The group coordinator: all groups of a broker, and the requests about them.

A group is classic or of the consumer protocol; an empty one becomes what its next member uses. A
group without members and offsets is removed. Requests raise RequestError, or respond with a body;
those that may have to wait take a `reply`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from stratalog.broker.groups.classic import ClassicProtocol, join_error, sync_error
from stratalog.broker.groups.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, ClassicState
from stratalog.broker.groups.consumer import ConsumerProtocol, check_heartbeat
from stratalog.broker.groups.consumer_group import (
    CONSUMER_TYPES,
    JOIN_EPOCH,
    ConsumerGroup,
    RecordType,
)
from stratalog.broker.groups.migration import ClassicMembers, classic_removal, downgraded, upgraded
from stratalog.broker.groups.offsets import (
    OFFSET_TYPES,
    CommittedOffset,
    CommittedOffsets,
    tombstone,
)
from stratalog.errors import RequestError
from stratalog.format.messages.group_records import GROUP_METADATA_TYPE
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stratalog.broker.groups.environment import Body, Environment, GroupRequest, Reply
    from stratalog.format.messages.group_records import GroupRecord
    from stratalog.producing.transaction_log import ProducerIdentity

Group: TypeAlias = "ClassicGroup | ConsumerGroup"

_NEW_ERRORS_SINCE: Final = 9
_NO_GENERATION: Final = -1


class GroupCoordinator:
    """Serves all groups. One thread only."""

    def __init__(self, environment: Environment) -> None:
        self._env = environment
        self.classic = ClassicProtocol(environment)
        self.consumer = ConsumerProtocol(environment, self._downgrade_if_classic)
        self.classic_members = ClassicMembers(environment, self.consumer)
        self.groups: dict[str, Group] = {}
        self._in_transaction: dict[int, set[str]] = {}
        """Groups with offsets in the open transaction of a producer, by its id."""

    # -- the classic protocol

    def join(self, request: GroupRequest, reply: Reply) -> None:
        """JoinGroup."""
        body = request.body
        try:
            self._check_join(body)
            group = self.groups.get(body["groupId"])
            if isinstance(group, ConsumerGroup) and group.members:
                response = self.classic_members.join(group, request)
                reply({**join_error(ErrorCode.NONE, body["memberId"]), **response})
                return
            classic = self._classic_to_join(body["groupId"], body["memberId"])
            self.classic.join(classic, request, reply)
        except RequestError as error:
            reply(join_error(ErrorCode(error.code), body["memberId"]))
            return
        self.groups.setdefault(classic.group_id, classic)

    def _check_join(self, body: Body) -> None:
        settings = self._env.settings
        if not body["groupId"]:
            raise RequestError(ErrorCode.INVALID_GROUP_ID)
        shortest_ms = settings.group_min_session_timeout_ms
        longest_ms = settings.group_max_session_timeout_ms
        if not shortest_ms <= body["sessionTimeoutMs"] <= longest_ms:
            raise RequestError(ErrorCode.INVALID_SESSION_TIMEOUT)

    def _classic_to_join(self, group_id: str, member_id: str) -> ClassicGroup:
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group
        if member_id:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group is None:
            return ClassicGroup(group_id)
        return self._to_classic(group)

    def sync(self, request: GroupRequest, reply: Reply) -> None:
        """SyncGroup."""
        try:
            group = self._group_of_member(request.body["groupId"])
            if isinstance(group, ConsumerGroup):
                reply(self.classic_members.sync(group, request))
            else:
                self.classic.sync(group, request, reply)
        except RequestError as error:
            reply(sync_error(ErrorCode(error.code)))

    def heartbeat(self, request: GroupRequest) -> Body:
        """Heartbeat of the classic protocol."""
        group = self._group_of_member(request.body["groupId"])
        if isinstance(group, ConsumerGroup):
            self.classic_members.heartbeat(group, request)
        else:
            self.classic.heartbeat(group, request)
        return {"errorCode": ErrorCode.NONE}

    def leave(self, request: GroupRequest) -> Body:
        """LeaveGroup: one member, or a list of them."""
        body = request.body
        if "members" not in body:
            code = self._leave(body["groupId"], body["memberId"], None)
            return {"errorCode": code}
        if not body["groupId"]:
            raise RequestError(ErrorCode.INVALID_GROUP_ID)
        members = [
            {
                "memberId": entry["memberId"],
                "groupInstanceId": entry["groupInstanceId"],
                "errorCode": self._leave(
                    body["groupId"], entry["memberId"], entry["groupInstanceId"]
                ),
            }
            for entry in body["members"]
        ]
        return {"errorCode": ErrorCode.NONE, "members": members}

    def _leave(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        try:
            group = self._group_of_member(group_id)
            if isinstance(group, ConsumerGroup):
                self.classic_members.leave(group, member_id, instance_id)
            else:
                self.classic.leave(group, member_id, instance_id)
        except RequestError as error:
            return ErrorCode(error.code)
        return ErrorCode.NONE

    def _group_of_member(self, group_id: str) -> Group:
        if not group_id:
            raise RequestError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(group_id)
        if group is None:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # -- from one protocol to the other

    def _to_classic(self, group: ConsumerGroup) -> ClassicGroup:
        """A group without members of the consumer protocol becomes a classic one."""
        now_ms = self._env.now_ms()
        classic = downgraded(group, self._env.topics, now_ms)
        assignments = {name: member.assignment for name, member in classic.members.items()}
        record = classic.record(assignments, now_ms)
        self._env.log.append(group.group_id, [*group.tombstones(), record])
        self.consumer.stop(group)
        self.groups[group.group_id] = classic
        return classic

    def _downgrade_if_classic(self, group: ConsumerGroup) -> None:
        """The last member of the consumer protocol may be gone."""
        members = group.members.values()
        if members and all(member.classic is not None for member in members):
            self.classic.rebalance_all(self._to_classic(group))

    def _to_consumer(self, group: ClassicGroup) -> ConsumerGroup:
        """A group becomes one of the consumer protocol; its epochs continue its generations."""
        consumer, records = upgraded(group, self._env.topics)
        if not group.is_simple:
            self._env.log.append(group.group_id, records)
        self.classic.hand_over(group)
        self.groups[group.group_id] = consumer
        self.consumer.resume(consumer)
        return consumer

    # -- the consumer protocol

    def consumer_heartbeat(self, request: GroupRequest) -> Body:
        """ConsumerGroupHeartbeat."""
        check_heartbeat(request)
        group_id = request.body["groupId"]
        group = self.groups.get(group_id)
        if request.body["memberEpoch"] == JOIN_EPOCH:
            if isinstance(group, ClassicGroup):
                group = self._to_consumer(group)
            elif group is None:
                group = ConsumerGroup(group_id)
        if not isinstance(group, ConsumerGroup):
            raise RequestError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found."
            )
        response = self.consumer.heartbeat(group, request)
        self.groups.setdefault(group_id, group)
        return response

    # -- offsets

    def commit(self, request: GroupRequest) -> Body:
        """OffsetCommit."""
        body = request.body
        group, code = self._group_to_commit(body, request.version)
        if code is ErrorCode.STALE_MEMBER_EPOCH and request.version < _NEW_ERRORS_SINCE:
            code = ErrorCode.UNSUPPORTED_VERSION
        offsets = self._offsets_to_commit(body, code)
        response = self._store_offsets(group, body, offsets, None)
        return {"topics": response}

    def commit_in_transaction(self, request: GroupRequest, producer: ProducerIdentity) -> Body:
        """TxnOffsetCommit, once the transaction coordinator has agreed: the offsets count when the
        transaction is committed."""
        body = {
            "memberId": "",
            "generationIdOrMemberEpoch": request.body.get("generationId", _NO_GENERATION),
            **request.body,
        }
        group, code = self._group_to_commit(body, 0, is_transactional=True)
        if code is ErrorCode.STALE_MEMBER_EPOCH:  # which producers do not know
            code = ErrorCode.ILLEGAL_GENERATION
        offsets = self._offsets_to_commit(body, code)
        return {"topics": self._store_offsets(group, body, offsets, producer)}

    def _group_to_commit(
        self, body: Body, version: int, *, is_transactional: bool = False
    ) -> tuple[Group, ErrorCode]:
        """The group, and why this client may not commit."""
        group_id, generation = body["groupId"], body["generationIdOrMemberEpoch"]
        group = self.groups.get(group_id)
        try:
            if group is None:
                group = ClassicGroup(group_id)
                if generation >= 0:
                    is_new = version >= _NEW_ERRORS_SINCE
                    raise RequestError(
                        ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION
                    )
            elif isinstance(group, ClassicGroup):
                self.classic.check_commit(group, body, is_transactional=is_transactional)
            else:
                _check_consumer_commit(group, body, is_transactional=is_transactional)
        except RequestError as error:
            return group or ClassicGroup(group_id), ErrorCode(error.code)
        return group, ErrorCode.NONE

    def _offsets_to_commit(
        self, body: Body, code: ErrorCode
    ) -> dict[tuple[str, int], CommittedOffset | ErrorCode]:
        """For each partition the offset to store, or why it is refused."""
        now_ms = self._env.now_ms()
        retention_ms = body.get("retentionTimeMs", -1)
        found: dict[tuple[str, int], CommittedOffset | ErrorCode] = {}
        for topic in body["topics"]:
            facts = self._env.topics.find(topic["name"])
            for entry in topic["partitions"]:
                place = (topic["name"], entry["partitionIndex"])
                metadata = entry.get("committedMetadata") or ""
                if facts is None or not 0 <= place[1] < facts.partition_count:
                    found[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif code is not ErrorCode.NONE:
                    found[place] = code
                elif len(metadata.encode()) > self._env.settings.offset_metadata_max_bytes:
                    found[place] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    found[place] = CommittedOffset(
                        entry["committedOffset"],
                        entry.get("committedLeaderEpoch", -1),
                        metadata,
                        now_ms,
                        now_ms + retention_ms if retention_ms >= 0 else -1,
                    )
        return found

    def _store_offsets(
        self,
        group: Group,
        body: Body,
        offsets: Mapping[tuple[str, int], CommittedOffset | ErrorCode],
        producer: ProducerIdentity | None,
    ) -> list[Body]:
        """Write the offsets, and return the topics of the response."""
        accepted = {
            place: offset
            for place, offset in offsets.items()
            if isinstance(offset, CommittedOffset)
        }
        if accepted:
            records = [offset.record(group.group_id, *place) for place, offset in accepted.items()]
            self._env.log.append(group.group_id, records, producer)
            self.groups.setdefault(group.group_id, group)
        for place, offset in accepted.items():
            if producer is None:
                group.offsets.put(*place, offset)
            else:
                self._put_pending(group, producer.producer_id, place, offset)
        codes = {
            place: ErrorCode.NONE if isinstance(result, CommittedOffset) else result
            for place, result in offsets.items()
        }
        return [_codes_of_topic(topic, codes) for topic in body["topics"]]

    def end_transaction(
        self, producer_id: int, *, commit: bool, is_ended: Callable[[str], bool] = lambda _: True
    ) -> None:
        """A marker of the producer is in the log of the groups for which `is_ended` is true."""
        waiting = self._in_transaction.get(producer_id, set())
        for group_id in [name for name in waiting if is_ended(name)]:
            waiting.discard(group_id)
            if group_id in self.groups:
                self.groups[group_id].offsets.end_transaction(producer_id, commit=commit)
        if not waiting:
            self._in_transaction.pop(producer_id, None)

    def _put_pending(
        self, group: Group, producer_id: int, place: tuple[str, int], offset: CommittedOffset
    ) -> None:
        group.offsets.put_pending(producer_id, *place, offset)
        self._in_transaction.setdefault(producer_id, set()).add(group.group_id)

    def fetch_offsets(self, asked: Body, *, require_stable: bool) -> Body:
        """One group of OffsetFetch: the topics that were asked for, or all. Raises RequestError."""
        group = self.groups.get(asked["groupId"])
        if isinstance(group, ConsumerGroup):
            _check_consumer_fetch(group, asked)
        topics = asked["topics"]
        if group is None:
            group = ClassicGroup(asked["groupId"])
        if topics is None:
            topics = [
                {"name": name, "partitionIndexes": sorted(partitions)}
                for name, partitions in group.offsets.by_topic.items()
            ]
        return {
            "groupId": asked["groupId"],
            "errorCode": ErrorCode.NONE,
            "topics": [
                {
                    "name": topic["name"],
                    "partitions": [
                        group.offsets.fetched(topic["name"], number, require_stable=require_stable)
                        for number in topic["partitionIndexes"]
                    ],
                }
                for topic in topics
            ],
        }

    def delete_offsets(self, request: GroupRequest) -> Body:
        """OffsetDelete: not for topics that the group reads. Raises RequestError."""
        body = request.body
        group = self._existing(body["groupId"])
        subscribed = self._subscribed_topics(group)
        is_foreign = isinstance(group, ClassicGroup) and not group.has_consumers
        if group.members and is_foreign:
            raise RequestError(ErrorCode.NON_EMPTY_GROUP)
        codes: dict[tuple[str, int], ErrorCode] = {}
        removed = []
        for topic in body["topics"]:
            is_read = subscribed is None or topic["name"] in subscribed
            for entry in topic["partitions"]:
                place = (topic["name"], entry["partitionIndex"])
                codes[place] = (
                    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                    if group.members and is_read
                    else ErrorCode.NONE
                )
                if codes[place] is ErrorCode.NONE and group.offsets.find(*place) is not None:
                    removed.append(place)
        self._remove_offsets(group, removed)
        topics = [_codes_of_topic(topic, codes) for topic in body["topics"]]
        return {"errorCode": ErrorCode.NONE, "topics": topics}

    def _remove_offsets(self, group: Group, places: list[tuple[str, int]]) -> None:
        if places:
            records = [tombstone(group.group_id, *place) for place in places]
            self._env.log.append(group.group_id, records)
        for place in places:
            group.offsets.remove(*place)

    def _subscribed_topics(self, group: Group) -> set[str] | None:
        if isinstance(group, ConsumerGroup):
            return group.subscribed_topics(self._env.topics)
        return group.subscribed_topics()

    def topic_deleted(self, topic: str) -> None:
        """Offsets of a deleted topic are meaningless. The topic is gone, whether or not they can be
        removed."""
        for group in list(self.groups.values()):
            partitions = group.offsets.by_topic.get(topic, {})
            with suppress(RequestError):
                self._remove_offsets(group, [(topic, number) for number in partitions])

    # -- expiry

    def expire(self) -> None:
        """Remove expired offsets, then groups that have nothing left."""
        now_ms, retention_ms = self._env.now_ms(), self._env.settings.offsets_retention_ms
        for group in list(self.groups.values()):
            base_ms = partial(_retained_since_ms, group, self._subscribed_topics(group))
            self._remove_offsets(group, group.offsets.expired(now_ms, retention_ms, base_ms))
            if not group.members and group.offsets.is_empty and not _awaits_members(group):
                self._remove(group)

    # -- administration

    def delete_group(self, group_id: str) -> None:
        """DeleteGroups, one of them. Raises RequestError."""
        group = self._existing(group_id)
        if group.members or _awaits_members(group):
            raise RequestError(ErrorCode.NON_EMPTY_GROUP)
        self._remove_offsets(group, [(topic, number) for topic, number, _ in group.offsets.all()])
        self._remove(group)

    def _remove(self, group: Group) -> None:
        if isinstance(group, ConsumerGroup):
            self._env.log.append(group.group_id, group.tombstones())
            self.consumer.stop(group)
        else:
            if not group.is_simple:
                self._env.log.append(group.group_id, [classic_removal(group)])
            self.classic.stop(group)
            group.state = ClassicState.DEAD
        del self.groups[group.group_id]

    def _existing(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    # -- loading

    def apply(self, record: GroupRecord, producer_id: int | None = None) -> None:
        """Take over a record of the log. With a producer id, it is part of a transaction."""
        type_id, key, value = record.type_id, record.key, record.value
        if type_id in OFFSET_TYPES:
            self._apply_offset(key, value, producer_id)
        elif type_id == GROUP_METADATA_TYPE:
            self._apply_classic(key["group"], value)
        elif type_id in CONSUMER_TYPES:
            self._apply_consumer(type_id, key, value)

    def _apply_offset(self, key: Body, value: Body | None, producer_id: int | None) -> None:
        group_id, place = key["group"], (key["topic"], key["partition"])
        if value is None:
            if group_id in self.groups:
                self.groups[group_id].offsets.remove(*place)
            return
        group = self.groups.setdefault(group_id, ClassicGroup(group_id))
        offset = CommittedOffset.read(value)
        if producer_id is None:
            group.offsets.put(*place, offset)
        else:
            self._put_pending(group, producer_id, place, offset)

    def _apply_classic(self, group_id: str, value: Body | None) -> None:
        group = self.groups.get(group_id)
        if value is None:
            if isinstance(group, ClassicGroup):
                self._unload(group)
            return
        restored = ClassicGroup(group_id)
        if group is not None:
            restored.offsets = group.offsets
        restored.restore(value)
        self.groups[group_id] = restored

    def _apply_consumer(self, type_id: int, key: Body, value: Body | None) -> None:
        group_id = key["groupId"]
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            offsets = CommittedOffsets() if group is None else group.offsets
            group = ConsumerGroup(group_id, offsets=offsets)
            self.groups[group_id] = group
        group.apply(type_id, key, value)
        if type_id == RecordType.GROUP and value is None:
            self._unload(group)

    def _unload(self, group: Group) -> None:
        """The records of the group are removed; its offsets may still be there, or come."""
        del self.groups[group.group_id]
        if not group.offsets.is_empty:
            self.groups[group.group_id] = ClassicGroup(group.group_id, offsets=group.offsets)

    def resume(self, *, with_members: bool = True) -> None:
        """All records are read: from now on members must show that they are alive.

        Without members, only what the groups have committed is taken over: their members talk to
        another broker, or to none.
        """
        for group_id, group in list(self.groups.items()):
            if not with_members:
                self.groups[group_id] = _without_members(group)
            elif isinstance(group, ConsumerGroup):
                self.consumer.resume(group)
            elif group.is_simple and group.offsets.is_empty:
                del self.groups[group_id]
            else:
                self.classic.resume(group)


def _without_members(group: Group) -> ClassicGroup:
    protocol_type: str | None = CONSUMER_PROTOCOL_TYPE
    if isinstance(group, ClassicGroup):
        protocol_type = group.protocol_type
    return ClassicGroup(group.group_id, protocol_type=protocol_type, offsets=group.offsets)


def _retained_since_ms(
    group: Group, subscribed: set[str] | None, topic: str, offset: CommittedOffset
) -> int | None:
    """From when the retention of an offset counts; None while somebody reads the topic."""
    if group.members:
        is_kept = subscribed is None or topic in subscribed
        return None if is_kept else offset.commit_timestamp_ms
    if isinstance(group, ClassicGroup) and not group.is_simple and group.state_timestamp_ms >= 0:
        return group.state_timestamp_ms
    return offset.commit_timestamp_ms


def _awaits_members(group: Group) -> bool:
    """Whether a consumer was given an id, and may be back any moment."""
    return isinstance(group, ClassicGroup) and bool(group.pending_members)


def _check_consumer_commit(group: ConsumerGroup, body: Body, *, is_transactional: bool) -> None:
    """Members commit with their epoch; others only while there are none, or in transactions of
    producers that do not say whose offsets they are."""
    epoch, member_id = body["generationIdOrMemberEpoch"], body["memberId"]
    is_nobody = epoch < 0 and not member_id and body.get("groupInstanceId") is None
    if (epoch < 0 and not group.members) or (is_nobody and is_transactional):
        return
    member = group.member(member_id)
    if epoch != member.epoch:
        is_classic = member.classic is not None
        raise RequestError(
            ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
        )


def _check_consumer_fetch(group: ConsumerGroup, asked: Body) -> None:
    """A member that names itself must be up to date."""
    member_id, epoch = asked.get("memberId"), asked.get("memberEpoch", -1)
    if member_id is None or (epoch < 0 and not member_id):
        return
    if group.member(member_id).epoch != epoch:
        raise RequestError(ErrorCode.STALE_MEMBER_EPOCH)


def _codes_of_topic(topic: Body, codes: Mapping[tuple[str, int], ErrorCode]) -> Body:
    return {
        "name": topic["name"],
        "partitions": [
            {
                "partitionIndex": entry["partitionIndex"],
                "errorCode": codes[topic["name"], entry["partitionIndex"]],
            }
            for entry in topic["partitions"]
        ],
    }

"""The consumer group protocol (KIP-848): everything goes through ConsumerGroupHeartbeat.

A heartbeat says who the member is, its epoch, and what has changed since the last one; null means
unchanged. The response has the member's epoch, and its assignment if that has changed. Decisions
are in `consumer_group.py`; here they are put in order, written, and timed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stratalog.broker.groups.assignors import ASSIGNORS
from stratalog.broker.groups.consumer_group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    GroupDraft,
    MemberState,
    assignment_of,
    is_subset,
    topic_partitions,
)
from stratalog.errors import RequestError
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratalog.broker.groups.assignors import Assignment
    from stratalog.broker.groups.environment import Body, Environment, GroupRequest

_CLIENT_MAKES_MEMBER_ID_SINCE: Final = 1


def check_heartbeat(request: GroupRequest) -> None:
    """What is wrong with the request by itself. Raises RequestError."""
    body, epoch = request.body, request.body["memberEpoch"]
    if not body["groupId"]:
        raise _invalid("GroupId can't be empty.")
    for name in ("instanceId", "rackId"):
        if body.get(name) == "":
            raise _invalid(f"{name[0].upper()}{name[1:]} can't be empty.")
    client_makes_id = request.version >= _CLIENT_MAKES_MEMBER_ID_SINCE
    if not body["memberId"] and (client_makes_id or epoch != JOIN_EPOCH):
        raise _invalid("MemberId can't be empty.")
    if epoch == JOIN_EPOCH:
        _check_join(body)
    elif epoch == STATIC_LEAVE_EPOCH and body.get("instanceId") is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    assignor = body.get("serverAssignor")
    if assignor is not None and assignor not in ASSIGNORS:
        raise RequestError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {assignor} is not supported. Supported assignors: "
            f"{', '.join(ASSIGNORS)}.",
        )


def _check_join(body: Body) -> None:
    if body["rebalanceTimeoutMs"] == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if body["topicPartitions"] is None or body["topicPartitions"]:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if body["subscribedTopicNames"] is None and body.get("subscribedTopicRegex") is None:
        raise _invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message)


class ConsumerProtocol:
    """Serves the heartbeats of all groups."""

    def __init__(
        self, environment: Environment, on_removed: Callable[[ConsumerGroup], None]
    ) -> None:
        self._env = environment
        self.on_removed = on_removed
        """Called after members were removed."""

    def heartbeat(self, group: ConsumerGroup, request: GroupRequest) -> Body:
        """Join, stay or leave. Raises RequestError; then nothing has changed."""
        epoch = request.body["memberEpoch"]
        if epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(group, request.body)
        body = request.body
        member_id = body["memberId"] or self._env.new_member_id()
        draft = GroupDraft(group)
        member = self._known_member(draft, member_id, body)
        changed = self._subscribe(draft, member, request)
        self.refresh_target(draft, has_changed=changed)
        owned = body["topicPartitions"]
        after = self.reconcile(draft, member_id, None if owned is None else assignment_of(owned))
        self.commit(draft, group)
        self.expect_heartbeat(group, member_id)
        shows_assignment = _is_full(body) or after.assigned != member.assigned
        return {
            "errorCode": ErrorCode.NONE,
            "errorMessage": None,
            "memberId": member_id,
            "memberEpoch": after.epoch,
            "heartbeatIntervalMs": self._env.settings.group_consumer_heartbeat_interval_ms,
            "assignment": {"topicPartitions": topic_partitions(after.assigned)}
            if shows_assignment
            else None,
        }

    # -- who it is

    def _known_member(self, draft: GroupDraft, member_id: str, body: Body) -> ConsumerMember:
        """The member as it was before this heartbeat."""
        instance_id = body.get("instanceId")
        if body["memberEpoch"] == JOIN_EPOCH:
            return self.find_or_add(draft, member_id, instance_id)
        self._check_instance(draft.group, member_id, instance_id)
        member = draft.group.member(member_id)
        self._check_epoch(member, body)
        return member

    def find_or_add(
        self, draft: GroupDraft, member_id: str, instance_id: str | None
    ) -> ConsumerMember:
        """The member that joins, as it was before: new, if it was not there."""
        group = draft.group
        owner_id = None if instance_id is None else group.static_members.get(instance_id)
        if owner_id is not None and owner_id != member_id:
            return self._replace_static(draft, group.members[owner_id], member_id)
        self._check_size(group, member_id)
        return group.members.get(member_id, ConsumerMember(member_id))

    def _check_instance(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> None:
        """A static member must be the one that has the instance id now."""
        if instance_id is None:
            return
        owner_id = group.static_members.get(instance_id)
        if owner_id is None:
            raise RequestError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown."
            )
        if owner_id != member_id:
            raise RequestError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by "
                f"member {owner_id}.",
            )

    def _check_size(self, group: ConsumerGroup, member_id: str) -> None:
        size_max = self._env.settings.group_consumer_max_size
        if member_id not in group.members and len(group.members) >= size_max:
            raise RequestError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {size_max} members.",
            )

    def _check_epoch(self, member: ConsumerMember, body: Body) -> None:
        """A member one epoch behind may have missed a response; otherwise it must rejoin."""
        epoch = body["memberEpoch"]
        owned = body["topicPartitions"]
        missed_response = (
            epoch == member.previous_epoch
            and owned is not None
            and is_subset(assignment_of(owned), member.assigned)
        )
        if epoch == member.epoch or (epoch < member.epoch and missed_response):
            return
        word = "greater" if epoch > member.epoch else "smaller"
        raise RequestError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {word} member epoch ({epoch}) than the one known by "
            f"the group coordinator ({member.epoch}). The member must abandon all its partitions "
            "and rejoin.",
        )

    def _replace_static(
        self, draft: GroupDraft, old: ConsumerMember, member_id: str
    ) -> ConsumerMember:
        """A new process takes the place, and the partitions, of a static member that has left for
        now. One that uses the classic protocol does not say that it leaves."""
        if old.epoch != STATIC_LEAVE_EPOCH and old.classic is None:
            raise RequestError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {old.instance_id} cannot join the "
                f"group because the instance id is owned by {old.member_id} member.",
            )
        group, target = draft.group, draft.group.target_of(old)
        new = replace(old, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        draft.write(
            *group.removal_records(old.member_id),
            group.member_record(new),
            group.target_record(member_id, target),
            group.current_record(new),
        )
        return new

    # -- what it wants

    def _subscribe(self, draft: GroupDraft, member: ConsumerMember, request: GroupRequest) -> bool:
        """Take over what the member has changed. Returns whether the group's epoch must grow."""
        body = request.body
        names, regex = body["subscribedTopicNames"], body.get("subscribedTopicRegex")
        updated = replace(
            member,
            instance_id=_given(body.get("instanceId"), member.instance_id),
            rack_id=_given(body.get("rackId"), member.rack_id),
            client_id=request.client_id,
            client_host=request.client_host,
            topic_names=member.topic_names if names is None else frozenset(names),
            topic_regex=member.topic_regex if regex is None else regex or None,
            rebalance_timeout_ms=member.rebalance_timeout_ms
            if body["rebalanceTimeoutMs"] == -1
            else body["rebalanceTimeoutMs"],
            server_assignor=_given(body.get("serverAssignor"), member.server_assignor),
            classic=None,
        )
        if updated.topic_regex is not None:
            self._env.topics.matching(updated.topic_regex)  # refuses a bad one
        is_new = member.member_id not in draft.group.members
        if updated != member or is_new:
            draft.write(draft.group.member_record(updated))
        before = (member.topic_names, member.topic_regex)
        return is_new or before != (updated.topic_names, updated.topic_regex)

    def refresh_target(self, draft: GroupDraft, *, has_changed: bool) -> None:
        """Begin a new epoch if members or topics have changed, and compute its target."""
        group = draft.group
        topics = group.current_topics(self._env.topics)
        if topics != group.topics:
            draft.write(group.topics_record(topics.values()))
            has_changed = True
        if has_changed:
            draft.write(group.epoch_record(group.epoch + 1))
        if group.epoch == group.assignment_epoch:
            return
        target = group.compute_target(self._env.topics)
        for member_id, assignment in target.items():
            if group.target.get(member_id) != assignment:
                draft.write(group.target_record(member_id, assignment))
        draft.write(group.target_epoch_record(group.epoch))

    def reconcile(
        self, draft: GroupDraft, member_id: str, owned: Assignment | None
    ) -> ConsumerMember:
        """The member's next step towards its target."""
        member = draft.group.members[member_id]
        after = draft.group.reconcile(member, owned)
        if after != member:
            draft.write(draft.group.current_record(after))
        return after

    def commit(self, draft: GroupDraft, group: ConsumerGroup) -> None:
        """Write what was decided; then it takes effect."""
        if not draft.records:
            return
        self._env.log.append(group.group_id, draft.records)
        before = dict(group.members)
        draft.take_effect()
        for member_id in before.keys() - group.members.keys():
            self._env.timers.cancel(("session", group.group_id, member_id))
            self._env.timers.cancel(("revocation", group.group_id, member_id))
        for member_id, member in group.members.items():
            if member != before.get(member_id):
                self._time_revocation(group, member)

    # -- leaving

    def _leave(self, group: ConsumerGroup, body: Body) -> Body:
        member_id, epoch = body["memberId"], body["memberEpoch"]
        self._check_instance(group, member_id, body.get("instanceId"))
        member = group.member(member_id)
        if epoch == STATIC_LEAVE_EPOCH:
            draft = GroupDraft(group)
            away = replace(
                member,
                epoch=STATIC_LEAVE_EPOCH,
                state=MemberState.STABLE,
                pending_revocation={},
            )
            draft.write(group.current_record(away))
            self.commit(draft, group)
        else:
            self.remove(group, member_id)
        return {
            "errorCode": ErrorCode.NONE,
            "errorMessage": None,
            "memberId": member_id,
            "memberEpoch": epoch,
            "heartbeatIntervalMs": 0,
            "assignment": None,
        }

    def remove(self, group: ConsumerGroup, *member_ids: str) -> None:
        """Members have left, or their sessions have ended."""
        draft = GroupDraft(group)
        for member_id in member_ids:
            draft.write(*group.removal_records(member_id))
        topics = draft.group.current_topics(self._env.topics)
        if topics != group.topics:
            draft.write(group.topics_record(topics.values()))
        draft.write(group.epoch_record(group.epoch + 1))
        self.commit(draft, group)
        self.on_removed(group)

    # -- time

    def resume(self, group: ConsumerGroup) -> None:
        """After a start: every member must show that it is alive."""
        for member in group.members.values():
            self.expect_heartbeat(group, member.member_id)
            self._time_revocation(group, member)

    def stop(self, group: ConsumerGroup) -> None:
        """Forget the timers of a group that is no longer served."""
        for member_id in group.members:
            self._env.timers.cancel(("session", group.group_id, member_id))
            self._env.timers.cancel(("revocation", group.group_id, member_id))

    def expect_heartbeat(self, group: ConsumerGroup, member_id: str) -> None:
        """The member is alive, until its session ends."""
        classic = group.members[member_id].classic
        settings = self._env.settings

        def end_session() -> None:
            if member_id in group.members:
                self.remove(group, member_id)

        self._env.timers.schedule(
            ("session", group.group_id, member_id),
            settings.group_consumer_session_timeout_ms
            if classic is None
            else classic.session_timeout_ms,
            end_session,
        )

    def _time_revocation(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A member that does not give up its partitions in time is removed."""
        key = ("revocation", group.group_id, member.member_id)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._env.timers.cancel(key)
            return

        def end_wait() -> None:
            now = group.members.get(member.member_id)
            if now is not None and (now.state, now.epoch) == (member.state, member.epoch):
                self.remove(group, member.member_id)

        self._env.timers.schedule(key, member.rebalance_timeout_ms, end_wait)


def _is_full(body: Body) -> bool:
    """Whether the member says everything about itself: it may have missed responses."""
    subscriptions = (body["subscribedTopicNames"], body.get("subscribedTopicRegex"))
    return (
        body["rebalanceTimeoutMs"] != -1
        and subscriptions != (None, None)
        and body["topicPartitions"] is not None
    )


def _given(value: str | None, known: str | None) -> str | None:
    return known if value is None else value

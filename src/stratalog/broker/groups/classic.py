"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

A rebalance has two phases. While it is prepared, responses to JoinGroup wait until every known
member has rejoined, or the rebalance timeout has passed; then the generation begins, and the leader
gets the list of members. While it is completed, responses to SyncGroup wait for the leader's
assignment.

A group is written when its assignment is known, when a static member is replaced, and when it
becomes empty. A member is removed when it leaves or its session ends; a static one also survives
its own restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.broker.groups.classic_group import ClassicGroup, ClassicMember, ClassicState
from stratalog.errors import RequestError, StratalogError
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stratalog.broker.groups.environment import Body, Environment, GroupRequest, Reply

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60_000
"""How long a new member may wait for its first rebalance: it sends no heartbeats until then."""
_MEMBER_ID_REQUIRED_SINCE: Final = 4
_SKIPS_ASSIGNMENT_SINCE: Final = 9


class ClassicProtocol:
    """Serves the classic requests of all groups."""

    def __init__(self, environment: Environment) -> None:
        self._env = environment

    # -- JoinGroup

    def join(self, group: ClassicGroup, request: GroupRequest, reply: Reply) -> None:
        """Respond now, or once the rebalance allows it. Raises RequestError."""
        body = request.body
        member_id = body["memberId"]
        if group.state is ClassicState.DEAD:
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._check_size(group, member_id)
        if not group.supports(body["protocolType"], [entry["name"] for entry in body["protocols"]]):
            raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not member_id:
            self._join_new(group, request, reply)
        elif member_id in group.pending_members:
            self._add(group, request, member_id, reply)
        else:
            member = group.member(member_id, body.get("groupInstanceId"))
            self._rejoin(group, member, request, reply)

    def _check_size(self, group: ClassicGroup, member_id: str) -> None:
        """Raise if the group is full. A member that is known, or has been promised a place, is not
        counted again."""
        is_known = member_id in group.members or member_id in group.pending_members
        size = len(group.members) + len(group.pending_members)
        if not is_known and size >= self._env.settings.group_max_size:
            raise RequestError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _join_new(self, group: ClassicGroup, request: GroupRequest, reply: Reply) -> None:
        instance_id = request.body.get("groupInstanceId")
        member_id = f"{instance_id or request.client_id}-{self._env.new_uuid()}"
        if instance_id is not None and instance_id in group.static_members:
            self._return_static(group, request, member_id, reply)
        elif instance_id is not None or request.version < _MEMBER_ID_REQUIRED_SINCE:
            self._add(group, request, member_id, reply)
        else:
            group.pending_members.add(member_id)
            self._env.timers.schedule(
                ("pending", group.group_id, member_id),
                request.body["sessionTimeoutMs"],
                lambda: self._forget_pending(group, member_id),
            )
            reply(join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _forget_pending(self, group: ClassicGroup, member_id: str) -> None:
        if member_id in group.pending_members:
            group.pending_members.remove(member_id)
            self._complete_join_if_all_joined(group)

    def _add(
        self, group: ClassicGroup, request: GroupRequest, member_id: str, reply: Reply
    ) -> None:
        self._env.timers.cancel(("pending", group.group_id, member_id))
        member = ClassicMember(
            member_id,
            request.body.get("groupInstanceId"),
            request.client_id,
            request.client_host,
            _rebalance_timeout_ms(request.body),
            request.body["sessionTimeoutMs"],
            _protocols(request.body),
            join_reply=reply,
            is_new=True,
        )
        group.add(member, request.body["protocolType"])
        group.has_new_member = True
        self._expect_heartbeat(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance(group)

    def _rejoin(
        self, group: ClassicGroup, member: ClassicMember, request: GroupRequest, reply: Reply
    ) -> None:
        is_same = _protocols(request.body) == member.protocols
        is_leader = group.is_leader(member.member_id)
        is_completing = group.state is ClassicState.COMPLETING_REBALANCE
        is_stable = group.state is ClassicState.STABLE
        if is_same and (is_completing or (is_stable and not is_leader)):
            reply(self._joined(group, member.member_id))  # its response was lost
            return
        self._update(member, request, reply)
        self._rebalance(group)

    def _update(self, member: ClassicMember, request: GroupRequest, reply: Reply | None) -> None:
        member.rebalance_timeout_ms = _rebalance_timeout_ms(request.body)
        member.session_timeout_ms = request.body["sessionTimeoutMs"]
        member.protocols = _protocols(request.body)
        # If an older request of it is still waiting, its response is no longer needed.
        _reply_to_join(member, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.join_reply = reply

    def _return_static(
        self, group: ClassicGroup, request: GroupRequest, member_id: str, reply: Reply
    ) -> None:
        """Give the place of a static member to its new process. If the group is stable and would
        still choose the same protocol, no rebalance is needed."""
        instance_id = request.body["groupInstanceId"]
        old_leader = group.leader
        old = group.replace_static(instance_id, member_id)
        member = group.members[member_id]
        self._update(member, request, None)
        needs_rebalance = (
            group.state is not ClassicState.STABLE or group.choose_protocol() != group.protocol
        )
        if not needs_rebalance:
            try:
                assignments = {name: each.assignment for name, each in group.members.items()}
                self._write(group, assignments)
            except StratalogError:
                group.replace_static(instance_id, old.member_id)
                group.members[old.member_id] = old
                raise
        self._env.timers.cancel(_heartbeat_key(group, old.member_id))
        _reply_to_join(old, join_error(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
        _reply_to_sync(old, sync_error(ErrorCode.FENCED_INSTANCE_ID))
        self._expect_heartbeat(group, member)
        if needs_rebalance:
            member.join_reply = reply
            self._rebalance(group)
            return
        is_leader = group.is_leader(member_id)
        if request.version >= _SKIPS_ASSIGNMENT_SINCE:
            reply({**self._joined(group, member_id), "skipAssignment": is_leader})
        else:  # as a follower: the leader's assignment of this generation is known
            reply({**self._joined(group, member_id), "leader": old_leader, "members": []})

    # -- the rebalance

    def _rebalance(self, group: ClassicGroup) -> None:
        """Start a rebalance, or go on with the one that is being prepared."""
        if group.state is ClassicState.PREPARING_REBALANCE:
            self._complete_join_if_all_joined(group)
            return
        was_empty = group.state is ClassicState.EMPTY
        for member in group.members.values():
            _reply_to_sync(member, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        if group.state is ClassicState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
        self._env.timers.cancel(("sync", group.group_id))
        group.unsynced.clear()
        group.enter(ClassicState.PREPARING_REBALANCE, self._env.now_ms())
        if was_empty:
            self._start_initial_delay(group)
            return
        self._schedule_join_end(group)
        self._complete_join_if_all_joined(group)

    def _schedule_join_end(self, group: ClassicGroup) -> None:
        self._env.timers.schedule(
            ("join", group.group_id),
            group.rebalance_timeout_ms,
            lambda: self._complete_join(group),
        )

    def _start_initial_delay(self, group: ClassicGroup) -> None:
        group.is_initial = True
        delay_ms = self._env.settings.group_initial_rebalance_delay_ms
        remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        self._wait_initially(group, delay_ms, remaining_ms)

    def _wait_initially(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        """Wait for more members, so that the first rebalance is not followed by another at once."""
        group.has_new_member = False

        def end() -> None:
            if group.has_new_member and remaining_ms > 0:
                next_ms = min(self._env.settings.group_initial_rebalance_delay_ms, remaining_ms)
                self._wait_initially(group, next_ms, remaining_ms - next_ms)
            else:
                group.is_initial = False
                self._complete_join(group)

        self._env.timers.schedule(("join", group.group_id), delay_ms, end)

    def _complete_join_if_all_joined(self, group: ClassicGroup) -> None:
        is_waiting = group.state is ClassicState.PREPARING_REBALANCE and not group.is_initial
        if is_waiting and group.has_all_joined:
            self._complete_join(group)

    def _complete_join(self, group: ClassicGroup) -> None:
        """Begin the next generation, without the members that have not rejoined."""
        if group.state is not ClassicState.PREPARING_REBALANCE:
            return
        absent = [
            member
            for member in group.members.values()
            if member.join_reply is None and member.instance_id is None
        ]
        for member in absent:
            self._env.timers.cancel(_heartbeat_key(group, member.member_id))
            group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            self._schedule_join_end(group)  # only static members, and none is back
            return
        self._env.timers.cancel(("join", group.group_id))
        group.next_generation(self._env.now_ms())
        if group.members:
            self._send_generation(group)
        else:
            self._write(group, {})

    def _send_generation(self, group: ClassicGroup) -> None:
        group.unsynced = set(group.members)
        self._env.timers.schedule(
            ("sync", group.group_id),
            group.rebalance_timeout_ms,
            lambda: self._remove_unsynced(group),
        )
        for member in list(group.members.values()):
            member.is_new = False
            self._expect_heartbeat(group, member)
            _reply_to_join(member, self._joined(group, member.member_id))

    def _remove_unsynced(self, group: ClassicGroup) -> None:
        if group.state in _AGREED and group.unsynced:
            for member_id in list(group.unsynced):
                self._drop(group, member_id)
            self._rebalance(group)

    def _joined(self, group: ClassicGroup, member_id: str) -> Body:
        """The response to JoinGroup with the current generation."""
        is_leader = group.is_leader(member_id)
        return {
            "errorCode": ErrorCode.NONE,
            "generationId": group.generation,
            "protocolType": group.protocol_type,
            "protocolName": group.protocol,
            "leader": group.leader or "",
            "skipAssignment": False,
            "memberId": member_id,
            "members": [
                {
                    "memberId": member.member_id,
                    "groupInstanceId": member.instance_id,
                    "metadata": member.metadata_for(group.protocol),
                }
                for member in group.members.values()
                if is_leader
            ],
        }

    # -- SyncGroup

    def sync(self, group: ClassicGroup, request: GroupRequest, reply: Reply) -> None:
        """Respond now, or when the leader has sent the assignment. Raises RequestError."""
        body = request.body
        member = self._checked_member(group, body)
        names = (body.get("protocolType"), body.get("protocolName"))
        expected = (group.protocol_type, group.protocol)
        is_same = all(name in (None, own) for name, own in zip(names, expected, strict=True))
        if not is_same:
            raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is ClassicState.EMPTY:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is ClassicState.PREPARING_REBALANCE:
            raise RequestError(ErrorCode.REBALANCE_IN_PROGRESS)
        group.unsynced.discard(member.member_id)
        if not group.unsynced:
            self._env.timers.cancel(("sync", group.group_id))
        if group.state is ClassicState.STABLE:
            self._expect_heartbeat(group, member)
            reply(self._synced(group, member))
            return
        _reply_to_sync(member, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if group.is_leader(member.member_id):
            sent = {entry["memberId"]: bytes(entry["assignment"]) for entry in body["assignments"]}
            self._finish_sync(group, sent)

    def _finish_sync(self, group: ClassicGroup, sent: Mapping[str, bytes]) -> None:
        """Write the leader's assignment, and send every member that waits its part of it."""
        assignments = {name: sent.get(name, b"") for name in group.members}
        try:
            self._write(group, assignments)
        except StratalogError:
            for member in group.members.values():
                _reply_to_sync(member, sync_error(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            self._rebalance(group)
            return
        for member_id, assignment in assignments.items():
            group.members[member_id].assignment = assignment
        group.enter(ClassicState.STABLE, self._env.now_ms())
        for member in group.members.values():
            if member.sync_reply is not None:
                self._expect_heartbeat(group, member)
                _reply_to_sync(member, self._synced(group, member))

    def _synced(self, group: ClassicGroup, member: ClassicMember) -> Body:
        return {
            "errorCode": ErrorCode.NONE,
            "protocolType": group.protocol_type,
            "protocolName": group.protocol,
            "assignment": member.assignment,
        }

    # -- Heartbeat, LeaveGroup

    def heartbeat(self, group: ClassicGroup, request: GroupRequest) -> None:
        """Note that the member is alive. Raises RequestError; code 27 tells it to rejoin."""
        member = self._checked_member(group, request.body)
        if group.state is ClassicState.EMPTY:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        self._expect_heartbeat(group, member)
        if group.state is ClassicState.PREPARING_REBALANCE:
            raise RequestError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, group: ClassicGroup, member_id: str, instance_id: str | None) -> None:
        """Remove a member; a static one may be named by its instance id alone."""
        if not member_id and instance_id is not None:
            member_id = group.static_members.get(instance_id, "")
        if member_id in group.pending_members:
            group.pending_members.remove(member_id)
            self._env.timers.cancel(("pending", group.group_id, member_id))
            self._complete_join_if_all_joined(group)
            return
        self._remove(group, group.member(member_id, instance_id).member_id)

    def check_commit(self, group: ClassicGroup, body: Body, *, is_transactional: bool) -> None:
        """Raise RequestError unless this client may commit offsets now."""
        member_id, generation = body["memberId"], body["generationIdOrMemberEpoch"]
        instance_id = body.get("groupInstanceId")
        if group.state is ClassicState.DEAD:
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and not group.members:
            return  # no member, or an administrator
        if generation >= 0 or member_id or instance_id is not None:
            member = group.member(member_id, instance_id)
            if generation != group.generation:
                raise RequestError(ErrorCode.ILLEGAL_GENERATION)
            self._expect_heartbeat(group, member)
        elif not is_transactional:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is ClassicState.COMPLETING_REBALANCE and not is_transactional:
            raise RequestError(ErrorCode.REBALANCE_IN_PROGRESS)

    def resume(self, group: ClassicGroup) -> None:
        """After a start, expect every member to show that it is alive."""
        for member in group.members.values():
            self._expect_heartbeat(group, member)

    def rebalance_all(self, group: ClassicGroup) -> None:
        """Take over a group whose members have their partitions from another protocol."""
        self.resume(group)
        self._rebalance(group)

    def hand_over(self, group: ClassicGroup) -> None:
        """Stop serving the group, which another protocol serves from now on; members that are
        waiting are told to ask again."""
        self.stop(group)
        group.state = ClassicState.DEAD
        for member in group.members.values():
            _reply_to_join(member, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
            _reply_to_sync(member, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))

    def stop(self, group: ClassicGroup) -> None:
        """Forget the timers of a group that is no longer served."""
        for kind in ("join", "sync"):
            self._env.timers.cancel((kind, group.group_id))
        for member_id in group.members:
            self._env.timers.cancel(_heartbeat_key(group, member_id))
        for member_id in group.pending_members:
            self._env.timers.cancel(("pending", group.group_id, member_id))

    def _checked_member(self, group: ClassicGroup, body: Body) -> ClassicMember:
        if group.state is ClassicState.DEAD:
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = group.member(body["memberId"], body.get("groupInstanceId"))
        if body["generationId"] != group.generation:
            raise RequestError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _expect_heartbeat(
        self, group: ClassicGroup, member: ClassicMember, within_ms: int | None = None
    ) -> None:
        self._env.timers.schedule(
            _heartbeat_key(group, member.member_id),
            member.session_timeout_ms if within_ms is None else within_ms,
            lambda: self._end_session(group, member),
        )

    def _end_session(self, group: ClassicGroup, member: ClassicMember) -> None:
        is_current = group.members.get(member.member_id) is member
        if is_current and (member.is_new or not member.is_waiting):
            self._remove(group, member.member_id)

    def _remove(self, group: ClassicGroup, member_id: str) -> None:
        self._drop(group, member_id)
        if group.state in _AGREED:
            self._rebalance(group)
        else:
            self._complete_join_if_all_joined(group)

    def _drop(self, group: ClassicGroup, member_id: str) -> None:
        self._env.timers.cancel(_heartbeat_key(group, member_id))
        member = group.members[member_id]
        group.remove(member_id)
        _reply_to_join(member, join_error(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
        _reply_to_sync(member, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))

    def _write(self, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
        record = group.record(assignments, self._env.now_ms())
        self._env.log.append(group.group_id, [record])


_AGREED: Final = frozenset({ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE})


def join_error(code: ErrorCode, member_id: str) -> Body:
    """A JoinGroup response that reports an error."""
    return {
        "errorCode": code,
        "generationId": -1,
        "protocolType": None,
        "protocolName": None,
        "leader": "",
        "skipAssignment": False,
        "memberId": member_id,
        "members": [],
    }


def sync_error(code: ErrorCode) -> Body:
    """A SyncGroup response that reports an error."""
    return {"errorCode": code, "protocolType": None, "protocolName": None, "assignment": b""}


def _reply_to_join(member: ClassicMember, body: Body) -> None:
    reply, member.join_reply = member.join_reply, None
    if reply is not None:
        reply(body)


def _reply_to_sync(member: ClassicMember, body: Body) -> None:
    reply, member.sync_reply = member.sync_reply, None
    if reply is not None:
        reply(body)


def _heartbeat_key(group: ClassicGroup, member_id: str) -> tuple[str, str, str]:
    return ("heartbeat", group.group_id, member_id)


def _rebalance_timeout_ms(body: Body) -> int:
    """Version 0 has none: the session timeout is used instead."""
    timeout_ms: int = body.get("rebalanceTimeoutMs", -1)
    return timeout_ms if timeout_ms >= 0 else int(body["sessionTimeoutMs"])


def _protocols(body: Body) -> tuple[tuple[str, bytes], ...]:
    return tuple((entry["name"], bytes(entry["metadata"])) for entry in body["protocols"])

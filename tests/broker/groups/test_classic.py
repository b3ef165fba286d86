"""The classic protocol on a manual clock: what captured conversations do not show."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.errors import RequestError
from stratalog.format.messages.group_records import (
    CONSUMER_SUBSCRIPTION,
    write_consumer_protocol,
)
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from tests.broker.groups.simulation import Sent, Simulation

SESSION_MS = 10_000
REBALANCE_MS = 20_000


def subscription(*topics: str) -> bytes:
    fields = {"topics": list(topics), "userData": None, "ownedPartitions": []}
    return write_consumer_protocol(CONSUMER_SUBSCRIPTION, fields, 1)


def join(simulation: Simulation, member_id: str = "", **fields: Any) -> Sent:
    """Version 3: new members need no second request."""
    body = {
        "groupId": "g",
        "sessionTimeoutMs": SESSION_MS,
        "rebalanceTimeoutMs": REBALANCE_MS,
        "memberId": member_id,
        "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("t")}],
        **fields,
    }
    return simulation.send(ApiKey.JOIN_GROUP, fields.get("version", 3), body)


def sync(simulation: Simulation, joined: dict[str, Any], **assignments: bytes) -> Sent:
    entries = [{"memberId": name, "assignment": raw} for name, raw in assignments.items()]
    body = {
        "groupId": "g",
        "generationId": joined["generationId"],
        "memberId": joined["memberId"],
        "assignments": entries,
    }
    return simulation.send(ApiKey.SYNC_GROUP, 0, body)


def heartbeat(simulation: Simulation, joined: dict[str, Any]) -> int:
    body = {key: joined[key] for key in ("generationId", "memberId")}
    code: int = simulation.send(ApiKey.HEARTBEAT, 0, {"groupId": "g", **body}).body["errorCode"]
    return code


def state(simulation: Simulation) -> tuple[str, int]:
    described = simulation.send(ApiKey.DESCRIBE_GROUPS, 0, {"groups": ["g"]}).body
    group = described["groups"][0]
    return group["groupState"], len(group["members"])


@pytest.fixture
def simulation() -> Simulation:
    return Simulation({"t": 3})


def stable_pair(simulation: Simulation) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two members that have their assignments: the leader and a follower."""
    sent = join(simulation), join(simulation)
    simulation.timers.advance(6_000)
    leader, follower = (each.body for each in sent)
    waiting = sync(simulation, follower)
    assert not waiting.is_answered
    given = {leader["memberId"]: b"one", follower["memberId"]: b"two"}
    assert sync(simulation, leader, **given).body["assignment"] == b"one"
    assert waiting.body["assignment"] == b"two"
    return leader, follower


def test_the_first_join_waits_for_more_members(simulation: Simulation) -> None:
    first = join(simulation)
    simulation.timers.advance(2_999)
    second = join(simulation)
    simulation.timers.advance(3_000)
    assert not first.is_answered
    simulation.timers.advance(1)
    assert first.body["generationId"] == second.body["generationId"] == 1
    assert len(first.body["members"]) == 2
    assert second.body["members"] == []


def test_the_first_join_waits_at_most_the_rebalance_timeout(simulation: Simulation) -> None:
    first = join(simulation)
    for _ in range(19):
        simulation.timers.advance(1_000)
        join(simulation)
        assert not first.is_answered
    simulation.timers.advance(1_000)
    assert first.is_answered


def test_a_silent_member_is_removed_and_the_others_rebalance(simulation: Simulation) -> None:
    leader, _ = stable_pair(simulation)
    simulation.timers.advance(SESSION_MS - 1)
    assert heartbeat(simulation, leader) == 0
    assert state(simulation) == ("Stable", 2)
    simulation.timers.advance(1)
    assert state(simulation) == ("PreparingRebalance", 1)
    assert heartbeat(simulation, leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert join(simulation, leader["memberId"]).body["generationId"] == 2


def test_who_does_not_rejoin_in_time_is_left_behind(simulation: Simulation) -> None:
    leader, follower = stable_pair(simulation)
    again = join(simulation, leader["memberId"])
    for _ in range(3):
        simulation.timers.advance(5_000)
        assert heartbeat(simulation, follower) == ErrorCode.REBALANCE_IN_PROGRESS
    assert not again.is_answered
    simulation.timers.advance(5_000)
    assert (again.body["generationId"], len(again.body["members"])) == (2, 1)
    assert heartbeat(simulation, follower) == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_sync_in_time_is_removed(simulation: Simulation) -> None:
    sent = join(simulation), join(simulation)
    simulation.timers.advance(6_000)
    leader, follower = (each.body for each in sent)
    waiting = sync(simulation, follower)
    for _ in range(4):
        simulation.timers.advance(5_000)
        heartbeat(simulation, leader)
    assert waiting.body["errorCode"] == ErrorCode.REBALANCE_IN_PROGRESS
    assert heartbeat(simulation, leader) == ErrorCode.UNKNOWN_MEMBER_ID
    assert state(simulation) == ("PreparingRebalance", 1)


def test_the_last_member_leaves_an_empty_group_in_the_log(simulation: Simulation) -> None:
    for joined in stable_pair(simulation):
        body = {"groupId": "g", "memberId": joined["memberId"]}
        assert simulation.send(ApiKey.LEAVE_GROUP, 2, body).body["errorCode"] == 0
    assert state(simulation) == ("Empty", 0)
    simulation.restart()
    assert state(simulation) == ("Empty", 0)
    again = join(simulation)
    simulation.timers.advance(3_000)
    assert again.body["generationId"] == 3


def test_members_go_on_after_a_restart(simulation: Simulation) -> None:
    leader, follower = stable_pair(simulation)
    simulation.restart()
    assert state(simulation) == ("Stable", 2)
    assert [heartbeat(simulation, each) for each in (leader, follower)] == [0, 0]
    assert sync(simulation, follower).body["assignment"] == b"two"
    simulation.timers.advance(SESSION_MS)
    assert state(simulation)[1] == 0


def test_members_that_do_not_come_back_after_a_restart_are_removed(simulation: Simulation) -> None:
    stable_pair(simulation)
    simulation.restart()
    simulation.timers.advance(SESSION_MS + REBALANCE_MS)
    assert state(simulation) == ("Empty", 0)


def test_a_follower_with_another_subscription_starts_a_rebalance(simulation: Simulation) -> None:
    leader, follower = stable_pair(simulation)
    protocols = [{"name": "range", "metadata": subscription("t", "u")}]
    waiting = join(simulation, follower["memberId"], protocols=protocols)
    assert not waiting.is_answered
    assert heartbeat(simulation, leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert len(join(simulation, leader["memberId"]).body["members"]) == 2
    assert waiting.body["generationId"] == 2


def test_a_follower_that_missed_the_answer_gets_it_again(simulation: Simulation) -> None:
    _, follower = stable_pair(simulation)
    assert join(simulation, follower["memberId"]).body["generationId"] == 1
    assert state(simulation) == ("Stable", 2)


def test_the_protocol_that_most_members_prefer_is_chosen(simulation: Simulation) -> None:
    def protocols(*names: str) -> list[dict[str, Any]]:
        return [{"name": name, "metadata": subscription("t")} for name in names]

    sent = [
        join(simulation, protocols=protocols("a", "b")),
        join(simulation, protocols=protocols("b", "a", "c")),
        join(simulation, protocols=protocols("c", "b", "a")),
    ]
    simulation.timers.advance(6_000)
    assert {each.body["protocolName"] for each in sent} == {"b"}


def test_a_full_group_takes_nobody_more() -> None:
    simulation = Simulation({"t": 3}, group_max_size=1)
    join(simulation)
    assert join(simulation).body["errorCode"] == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_an_assignment_that_cannot_be_stored_is_not_given_out(simulation: Simulation) -> None:
    joined = join(simulation)
    simulation.timers.advance(3_000)
    simulation.log.failure = RequestError(ErrorCode.KAFKA_STORAGE_ERROR)
    answer = sync(simulation, joined.body, **{joined.body["memberId"]: b"x"}).body
    assert answer["errorCode"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    simulation.log.failure = None
    again = join(simulation, joined.body["memberId"])
    assert again.body["generationId"] == 2


def test_offsets_of_topics_that_nobody_reads_expire_in_a_live_group(
    simulation: Simulation,
) -> None:
    simulation.topics.counts["old"] = 1
    leader, follower = stable_pair(simulation)
    topics = [
        {"name": name, "partitions": [{"partitionIndex": 0, "committedOffset": 1}]}
        for name in ("t", "old")
    ]
    body = {
        "groupId": "g",
        "generationIdOrMemberEpoch": 1,
        "memberId": leader["memberId"],
        "topics": topics,
    }
    simulation.send(ApiKey.OFFSET_COMMIT, 9, body)
    simulation.timers.now_ms += 8 * 24 * 60 * 60 * 1000
    for joined in (leader, follower):
        heartbeat(simulation, joined)
    simulation.coordinator.expire()
    assert list(simulation.coordinator.groups["g"].offsets.by_topic) == ["t"]


def test_no_request_stays_without_an_answer(simulation: Simulation) -> None:
    leader, follower = stable_pair(simulation)
    first, second = (join(simulation, leader["memberId"]) for _ in range(2))
    assert first.body["errorCode"] == ErrorCode.REBALANCE_IN_PROGRESS
    join(simulation, follower["memberId"])
    assert second.body["generationId"] == 2
    waiting, again = (sync(simulation, {**follower, "generationId": 2}) for _ in range(2))
    assert waiting.body["errorCode"] == ErrorCode.REBALANCE_IN_PROGRESS
    sync(simulation, second.body, **{follower["memberId"]: b"new"})
    assert again.body["assignment"] == b"new"

"""The consumer protocol on a manual clock: single steps, then many members at random."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stratalog.broker.groups.consumer_group import ConsumerState
from stratalog.format.messages.group_records import (
    CONSUMER_ASSIGNMENT,
    CONSUMER_SUBSCRIPTION,
    read_consumer_protocol,
    write_consumer_protocol,
)
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from tests.broker.groups.simulation import Sent, Simulation
from tests.effort import scaled

SESSION_MS = 45_000
REVOKE_MS = 60_000


class Consumer:
    """A client: what it owns changes only as the coordinator says."""

    def __init__(self, simulation: Simulation, name: str, instance: str | None = None) -> None:
        self.simulation = simulation
        self.name = name
        self.instance = instance
        self.epoch = 0
        self.owned: dict[str, set[int]] = {}

    def beat(self, **fields: Any) -> dict[str, Any]:
        """A heartbeat that says what the client has."""
        is_first = self.epoch == 0
        body = {
            "groupId": "g",
            "memberId": self.name,
            "memberEpoch": self.epoch,
            "instanceId": self.instance,
            "rackId": None,
            "rebalanceTimeoutMs": REVOKE_MS if is_first else -1,
            "subscribedTopicNames": ["t", "u"] if is_first else None,
            "subscribedTopicRegex": None,
            "serverAssignor": None,
            "topicPartitions": [
                {"topicId": topic, "partitions": sorted(numbers)}
                for topic, numbers in self.owned.items()
            ],
            **fields,
        }
        answer = self.simulation.send(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body).body
        code = answer["errorCode"]
        if code == 0:
            self.epoch = answer["memberEpoch"]
            if answer["assignment"] is not None:
                self.take(answer["assignment"]["topicPartitions"])
        elif code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned = 0, {}
        return answer

    def take(self, entries: list[dict[str, Any]]) -> None:
        self.owned = {entry["topicId"]: set(entry["partitions"]) for entry in entries}

    def leave(self, epoch: int = -1) -> None:
        self.beat(memberEpoch=epoch)
        self.epoch, self.owned = 0, {}

    @property
    def places(self) -> set[tuple[str, int]]:
        return {(topic, number) for topic, numbers in self.owned.items() for number in numbers}


class ClassicConsumer(Consumer):
    """A client of the classic protocol: it gives up everything, joins, syncs and beats. If it is
    told to lead, it deals out the partitions."""

    joining: Sent | None = None
    syncing: Sent | None = None
    is_member = False

    def beat(self, **_: Any) -> dict[str, Any]:
        if self.joining is not None and self.joining.is_answered:
            self.on_joined(self.joining.body)
        if self.syncing is not None and self.syncing.is_answered:
            self.on_synced(self.syncing.body)
        if self.joining is not None or self.syncing is not None:
            return {}
        if not self.is_member:
            self.join()
            return {}
        body = {"groupId": "g", "generationId": self.epoch, "memberId": self.name}
        answer = self.simulation.send(ApiKey.HEARTBEAT, 0, body).body
        if answer["errorCode"]:
            self.rejoin(answer["errorCode"])
        return answer

    def rejoin(self, code: int) -> None:
        """The broker has refused something."""
        self.is_member, self.owned = False, {}
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.name = ""

    def join(self) -> None:
        fields = {"topics": ["t", "u"], "userData": None, "ownedPartitions": []}
        metadata = write_consumer_protocol(CONSUMER_SUBSCRIPTION, fields, 1)
        body = {
            "groupId": "g",
            "sessionTimeoutMs": SESSION_MS,
            "rebalanceTimeoutMs": REVOKE_MS,
            "memberId": self.name,
            "protocolType": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}],
        }
        self.joining = self.simulation.send(ApiKey.JOIN_GROUP, 9, body)

    def on_joined(self, answer: dict[str, Any]) -> None:
        self.joining = None
        if answer["errorCode"] == ErrorCode.MEMBER_ID_REQUIRED:
            self.name = answer["memberId"]
        elif answer["errorCode"]:
            self.rejoin(answer["errorCode"])
        else:
            self.name, self.epoch = answer["memberId"], answer["generationId"]
            names = [member["memberId"] for member in answer["members"]]
            body = {
                "groupId": "g",
                "generationId": self.epoch,
                "memberId": self.name,
                "assignments": [
                    {"memberId": name, "assignment": self.share(names.index(name), len(names))}
                    for name in names
                ],
            }
            self.syncing = self.simulation.send(ApiKey.SYNC_GROUP, 0, body)

    def share(self, position: int, count: int) -> bytes:
        entries = [
            {"topic": name, "partitions": list(range(position, partitions, count))}
            for name, partitions in self.simulation.topics.counts.items()
        ]
        fields = {"assignedPartitions": entries, "userData": None}
        return write_consumer_protocol(CONSUMER_ASSIGNMENT, fields, 1)

    def on_synced(self, answer: dict[str, Any]) -> None:
        self.syncing = None
        if answer["errorCode"]:
            self.rejoin(answer["errorCode"])
            return
        self.is_member = True
        found = read_consumer_protocol(CONSUMER_ASSIGNMENT, answer["assignment"])
        self.owned = {
            self.simulation.topics.topic_id(entry["topic"]): set(entry["partitions"])
            for entry in found["assignedPartitions"]
        }

    def disconnected(self) -> None:
        """The broker was restarted: nobody will answer what waits."""
        if self.joining is not None or self.syncing is not None:
            self.joining = self.syncing = None
            self.is_member, self.owned = False, {}

    def leave(self, _: int = -1) -> None:
        body = {"groupId": "g", "memberId": self.name}
        self.simulation.send(ApiKey.LEAVE_GROUP, 2, body)
        self.is_member, self.owned = False, {}


@pytest.fixture
def simulation() -> Simulation:
    return Simulation({"t": 4, "u": 2})


def settle(simulation: Simulation, *consumers: Consumer) -> None:
    """Let all of them beat until nothing changes any more."""
    for _ in range(8 * len(consumers) + 8):
        simulation.timers.advance(1_000)
        for consumer in consumers:
            consumer.beat()
    assert simulation.coordinator.groups["g"].state.value == "Stable"


def all_places(simulation: Simulation) -> set[tuple[str, int]]:
    return {
        (simulation.topics.topic_id(name), number)
        for name, count in simulation.topics.counts.items()
        for number in range(count)
    }


def test_records_of_a_new_member_are_one_batch_in_kafkas_order(simulation: Simulation) -> None:
    Consumer(simulation, "a").beat()
    assert simulation.log.types() == [[5, 4, 3, 7, 6, 8]]
    simulation.send(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        {
            "groupId": "g",
            "memberId": "a",
            "memberEpoch": -1,
            "instanceId": None,
            "rebalanceTimeoutMs": -1,
            "topicPartitions": None,
            "subscribedTopicNames": None,
        },
    )
    assert simulation.log.types()[1] == [8, 7, 5, 4, 3]


def test_a_member_that_crashed_is_replaced_by_the_others(simulation: Simulation) -> None:
    first, second = Consumer(simulation, "a"), Consumer(simulation, "b")
    settle(simulation, first, second)
    assert first.places | second.places == all_places(simulation)
    simulation.timers.advance(SESSION_MS - 10_000)
    second.beat()
    simulation.timers.advance(10_000)
    settle(simulation, second)
    assert second.places == all_places(simulation)


def test_a_member_that_does_not_give_up_partitions_is_removed(simulation: Simulation) -> None:
    first, second = Consumer(simulation, "a"), Consumer(simulation, "b")
    first.beat()
    second.beat()
    held = dict(first.owned)
    for _ in range(REVOKE_MS // 10_000 + 1):
        simulation.timers.advance(10_000)
        second.beat()
        first.owned = dict(held)  # it keeps what it had, whatever the answers say
        first.beat()
    assert first.epoch == 0
    settle(simulation, second)
    assert second.places == all_places(simulation)


def test_a_lost_answer_does_no_harm(simulation: Simulation) -> None:
    first, second = Consumer(simulation, "a"), Consumer(simulation, "b")
    settle(simulation, first, second)
    second.leave()
    before = (first.epoch, dict(first.owned))
    first.beat()
    first.epoch, first.owned = before
    full = {"rebalanceTimeoutMs": REVOKE_MS, "subscribedTopicNames": ["t", "u"]}
    assert first.beat(**full)["errorCode"] == 0
    settle(simulation, first)
    assert first.places == all_places(simulation)


def test_a_static_member_comes_back_with_its_partitions(simulation: Simulation) -> None:
    first, second = Consumer(simulation, "a", "one"), Consumer(simulation, "b", "two")
    settle(simulation, first, second)
    epoch, owned = first.epoch, dict(first.owned)
    first.leave(-2)
    back = Consumer(simulation, "c", "one")
    back.beat()
    assert (back.epoch, back.owned) == (epoch, owned)
    assert first.beat(memberEpoch=epoch)["errorCode"] == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_stays_away_is_removed(simulation: Simulation) -> None:
    first, second = Consumer(simulation, "a", "one"), Consumer(simulation, "b", "two")
    settle(simulation, first, second)
    first.leave(-2)
    simulation.timers.advance(SESSION_MS // 2)
    second.beat()
    simulation.timers.advance(SESSION_MS // 2)
    settle(simulation, second)
    assert second.places == all_places(simulation)


def test_new_partitions_are_assigned(simulation: Simulation) -> None:
    first = Consumer(simulation, "a")
    first.beat()
    simulation.topics.counts["t"] = 6
    settle(simulation, first)
    assert first.places == all_places(simulation)


def test_topics_are_found_by_an_expression(simulation: Simulation) -> None:
    first = Consumer(simulation, "a")
    first.beat(subscribedTopicNames=None, subscribedTopicRegex="t.*")
    assert {topic for topic, _ in first.places} == {simulation.topics.topic_id("t")}
    simulation.topics.counts["t2"] = 1
    simulation.timers.advance(1_000)
    first.beat()
    assert (simulation.topics.topic_id("t2"), 0) in first.places


def test_a_full_group_takes_nobody_more() -> None:
    simulation = Simulation({"t": 1, "u": 1}, group_consumer_max_size=1)
    Consumer(simulation, "a").beat()
    answer = Consumer(simulation, "b").beat()
    assert answer["errorCode"] == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_an_empty_group_changes_its_protocol_both_ways(simulation: Simulation) -> None:
    first = Consumer(simulation, "a")
    first.beat()
    first.leave()
    old = ClassicConsumer(simulation, "")
    settle(simulation, old)
    assert old.places == all_places(simulation)
    assert type(simulation.coordinator.groups["g"]).__name__ == "ClassicGroup"
    simulation.restart()
    assert type(simulation.coordinator.groups["g"]).__name__ == "ClassicGroup"


@pytest.mark.parametrize("seed", range(scaled(12)))
def test_no_partition_is_ever_read_by_two(simulation: Simulation, seed: int) -> None:
    """Members of both protocols join, crash and leave, and the coordinator restarts, at random."""
    choose = random.Random(seed)
    consumers: list[Consumer] = [Consumer(simulation, "first")]
    for step in range(150):
        simulation.timers.advance(choose.choice([100, 1_000, 5_000]))
        let_something_happen(choose, simulation, consumers, f"member-{step}")
        for consumer in choose.sample(consumers, len(consumers)):
            if choose.random() < 0.8:
                consumer.beat()
        check_owners(consumers)
    for _ in range(20):  # the sessions of those that were killed end
        simulation.timers.advance(5_000)
        for consumer in consumers:
            consumer.beat()
        check_owners(consumers)
    settle(simulation, *consumers)
    check_owners(consumers)
    has_leader = any(isinstance(each, ClassicConsumer) for each in consumers)
    if not has_leader or simulation.coordinator.groups["g"].state is ConsumerState.STABLE:
        assert {place for each in consumers for place in each.places} == all_places(simulation)


def let_something_happen(
    choose: random.Random, simulation: Simulation, consumers: list[Consumer], name: str
) -> None:
    action = choose.random()
    if action < 0.10 and len(consumers) < 6:
        is_classic = choose.random() < 0.5
        new = ClassicConsumer(simulation, "") if is_classic else Consumer(simulation, name)
        consumers.append(new)
    elif action < 0.15 and len(consumers) > 1:
        consumers.pop(choose.randrange(len(consumers))).leave()
    elif action < 0.18 and len(consumers) > 1:
        consumers.pop(choose.randrange(len(consumers)))  # without a word
    elif action < 0.20:
        simulation.restart()
        for consumer in consumers:
            if isinstance(consumer, ClassicConsumer):
                consumer.disconnected()
    elif action < 0.22:
        simulation.topics.counts["t"] = min(simulation.topics.counts["t"] + 1, 9)


def check_owners(consumers: list[Consumer]) -> None:
    places = [place for each in consumers for place in each.places]
    assert len(places) == len(set(places))

from __future__ import annotations

from typing import Any

import pytest

from stratalog.broker.groups.environment import GroupRequest
from stratalog.errors import RequestError
from stratalog.producing.transaction_log import ProducerIdentity
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from tests.broker.groups.simulation import Simulation

DAY_MS = 24 * 60 * 60 * 1000
NONE: dict[str, Any] = {"memberId": "", "generationIdOrMemberEpoch": -1}


def commit(simulation: Simulation, offset: int, *, partition: int = 0, **fields: Any) -> int:
    partitions = [{"partitionIndex": partition, "committedOffset": offset}]
    body = {"groupId": "g", **NONE, "topics": [{"name": "t", "partitions": partitions}], **fields}
    answer = simulation.send(ApiKey.OFFSET_COMMIT, 9, body).body
    code: int = answer["topics"][0]["partitions"][0]["errorCode"]
    return code


def commit_in_transaction(simulation: Simulation, producer_id: int, offset: int) -> None:
    partitions = [{"partitionIndex": 0, "committedOffset": offset}]
    body = {"groupId": "g", "topics": [{"name": "t", "partitions": partitions}]}
    simulation.coordinator.commit_in_transaction(
        GroupRequest(0, "c", "/127.0.0.1", body), ProducerIdentity(producer_id, 0)
    )


def fetch(simulation: Simulation, *, stable: bool = False) -> tuple[int, int]:
    asked = {"groupId": "g", "topics": [{"name": "t", "partitionIndexes": [0]}]}
    body = {"groups": [asked], "requireStable": stable}
    found = simulation.send(ApiKey.OFFSET_FETCH, 9, body).body
    entry = found["groups"][0]["topics"][0]["partitions"][0]
    return entry["committedOffset"], entry["errorCode"]


@pytest.fixture
def simulation() -> Simulation:
    return Simulation({"t": 2})


def test_offsets_survive_a_restart(simulation: Simulation) -> None:
    commit(simulation, 5)
    commit(simulation, 7)
    simulation.restart()
    assert fetch(simulation) == (7, 0)


def test_a_deleted_group_stays_deleted(simulation: Simulation) -> None:
    commit(simulation, 5)
    deleted = simulation.send(ApiKey.DELETE_GROUPS, 2, {"groupsNames": ["g"]}).body
    assert deleted["results"][0]["errorCode"] == 0
    simulation.restart()
    assert simulation.coordinator.groups == {}


def test_offsets_of_a_transaction_count_from_its_commit_on(simulation: Simulation) -> None:
    commit(simulation, 1)
    commit_in_transaction(simulation, 9, 4)
    assert fetch(simulation) == (1, 0)
    assert fetch(simulation, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    simulation.restart()
    assert fetch(simulation, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    simulation.coordinator.end_transaction(9, commit=True)
    assert fetch(simulation, stable=True) == (4, 0)


def test_offsets_of_an_aborted_transaction_never_count(simulation: Simulation) -> None:
    commit_in_transaction(simulation, 9, 4)
    simulation.coordinator.end_transaction(9, commit=False)
    assert fetch(simulation, stable=True) == (-1, 0)


def test_an_offset_committed_after_that_of_a_transaction_stays(simulation: Simulation) -> None:
    commit_in_transaction(simulation, 9, 4)
    commit(simulation, 6)
    simulation.coordinator.end_transaction(9, commit=True)
    assert fetch(simulation) == (6, 0)


def test_offsets_expire_a_week_after_their_commit(simulation: Simulation) -> None:
    commit(simulation, 5)
    simulation.timers.advance(7 * DAY_MS - 1)
    simulation.coordinator.expire()
    assert fetch(simulation) == (5, 0)
    simulation.timers.advance(1)
    simulation.coordinator.expire()
    assert simulation.coordinator.groups == {}
    simulation.restart()
    assert simulation.coordinator.groups == {}


def test_an_expiry_that_the_client_asked_for_takes_precedence(simulation: Simulation) -> None:
    partitions = [{"partitionIndex": 0, "committedOffset": 3, "committedMetadata": None}]
    topics = [{"name": "t", "partitions": partitions}]
    body = {"groupId": "g", **NONE, "retentionTimeMs": 1000, "topics": topics}
    simulation.send(ApiKey.OFFSET_COMMIT, 2, body)
    simulation.restart()
    simulation.timers.advance(999)
    simulation.coordinator.expire()
    assert fetch(simulation) == (3, 0)
    simulation.timers.advance(1)
    simulation.coordinator.expire()
    assert fetch(simulation) == (-1, 0)


def test_nothing_expires_while_a_transaction_may_change_it(simulation: Simulation) -> None:
    commit(simulation, 1)
    commit_in_transaction(simulation, 9, 4)
    simulation.timers.advance(8 * DAY_MS)
    simulation.coordinator.expire()
    assert fetch(simulation) == (1, 0)


def test_offsets_of_a_deleted_topic_are_removed(simulation: Simulation) -> None:
    commit(simulation, 5)
    simulation.coordinator.topic_deleted("t")
    simulation.restart()
    assert fetch(simulation) == (-1, 0)


def test_a_deleted_topic_is_no_reason_to_fail_if_its_offsets_cannot_be_removed(
    simulation: Simulation,
) -> None:
    commit(simulation, 5)
    simulation.log.failure = RequestError(ErrorCode.NOT_COORDINATOR)
    simulation.coordinator.topic_deleted("t")
    assert fetch(simulation) == (5, 0)


def test_topics_are_named_by_id_from_version_10_on(simulation: Simulation) -> None:
    topic_id = simulation.topics.topic_id("t")
    partitions = [{"partitionIndex": 0, "committedOffset": 3}]
    known = {"topicId": topic_id, "partitions": partitions}
    unknown = {"topicId": simulation.topics.topic_id("?"), "partitions": partitions}
    body = {"groupId": "g", **NONE, "topics": [unknown, known]}
    answer = simulation.send(ApiKey.OFFSET_COMMIT, 10, body).body
    assert [topic["topicId"] for topic in answer["topics"]] == [unknown["topicId"], topic_id]
    codes = [topic["partitions"][0]["errorCode"] for topic in answer["topics"]]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_ID, 0]
    asked = {"groupId": "g", "topics": [{"topicId": topic_id, "partitionIndexes": [0]}]}
    found = simulation.send(ApiKey.OFFSET_FETCH, 10, {"groups": [asked]}).body
    topic = found["groups"][0]["topics"][0]
    assert (topic["topicId"], topic["partitions"][0]["committedOffset"]) == (topic_id, 3)


def test_nothing_changes_if_the_log_refuses(simulation: Simulation) -> None:
    commit(simulation, 1)
    simulation.log.failure = RequestError(ErrorCode.NOT_COORDINATOR)
    assert commit(simulation, 2) == ErrorCode.NOT_COORDINATOR
    assert fetch(simulation) == (1, 0)


def delete(simulation: Simulation, topic: str) -> tuple[int, list[int]]:
    body = {"groupId": "g", "topics": [{"name": topic, "partitions": [{"partitionIndex": 0}]}]}
    answer = simulation.send(ApiKey.OFFSET_DELETE, 0, body).body
    codes = [
        entry["errorCode"] for found in answer.get("topics", ()) for entry in found["partitions"]
    ]
    return answer["errorCode"], codes


def test_offsets_are_deleted_one_by_one(simulation: Simulation) -> None:
    commit(simulation, 1)
    assert delete(simulation, "?") == (0, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
    assert delete(simulation, "t") == (0, [0])
    assert fetch(simulation) == (-1, 0)
    simulation.restart()
    assert fetch(simulation) == (-1, 0)


def test_offsets_of_a_group_that_is_not_of_consumers_stay_while_it_has_members(
    simulation: Simulation,
) -> None:
    body = {
        "groupId": "g",
        "sessionTimeoutMs": 10_000,
        "memberId": "",
        "protocolType": "connect",
        "protocols": [{"name": "sessioned", "metadata": b""}],
    }
    simulation.send(ApiKey.JOIN_GROUP, 0, body)
    simulation.timers.advance(3_000)
    assert delete(simulation, "t") == (ErrorCode.NON_EMPTY_GROUP, [])


def test_offsets_without_a_group_id_are_accepted_as_they_always_were(
    simulation: Simulation,
) -> None:
    assert commit(simulation, 1, groupId="") == 0
    deleted = simulation.send(ApiKey.DELETE_GROUPS, 2, {"groupsNames": [""]}).body
    assert deleted["results"][0]["errorCode"] == 0


def test_an_unknown_generation_is_refused_in_words_that_the_client_knows(
    simulation: Simulation,
) -> None:
    body = {"groupId": "?", "generationIdOrMemberEpoch": 3, "memberId": "m"}
    topics = [{"name": "t", "partitions": [{"partitionIndex": 0, "committedOffset": 1}]}]
    for version, code in ((8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)):
        answer = simulation.send(ApiKey.OFFSET_COMMIT, version, {**body, "topics": topics}).body
        assert answer["topics"][0]["partitions"][0]["errorCode"] == code

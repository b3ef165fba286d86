"""Conversations of real clients with a real Kafka about groups, replayed on our coordinator.

Requests arrive at the captured times, ids of members are the captured ones; then every answer must
be the captured one, field by field.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.format.messages.schema import read_message, uuid_bytes, write_message
from stratalog.wire.apis import ApiKey
from stratalog.wire.frames import read_request
from tests.broker.groups.simulation import Sent, Simulation
from tests.golden_wire import exchanges

if TYPE_CHECKING:
    from tests.golden_wire import Frame

GROUP_APIS = {
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.LIST_GROUPS,
}
SCENARIOS = [
    ("raw", "group_errors"),
    ("raw", "heartbeat_848"),
    ("raw", "v2_heartbeat_848"),
    ("raw", "find_coordinator"),
    *((client, "group_eager") for client in ("confluent", "kafka-python", "aiokafka")),
    *((client, "group_static") for client in ("confluent", "kafka-python", "aiokafka")),
    *((client, "group_cooperative") for client in ("confluent", "kafka-python")),
    *((client, "offsets") for client in ("confluent", "kafka-python", "aiokafka")),
    *((client, "admin_groups") for client in ("confluent", "kafka-python", "aiokafka")),
    ("aiokafka", "group_sticky"),
    ("confluent", "v2_group_848"),
    ("kcat", "group"),
]


IGNORED = {
    # This snapshot of Kafka lists the group a second time, as one that it does not know.
    ("raw", "heartbeat_848", ApiKey.CONSUMER_GROUP_DESCRIBE),
}


def response_of(frame: Frame) -> dict[str, Any]:
    api = ApiKey(frame.api_key)
    is_flexible = api.response.is_flexible(frame.api_version)
    at = 4 + (is_flexible and api is not ApiKey.API_VERSIONS)
    return read_message(api.response, frame.payload, at, frame.api_version)[0]


def as_sent(api: ApiKey, body: dict[str, Any], version: int) -> dict[str, Any]:
    """A body as the client reads it: with the fields of the version only, defaults filled in."""
    return read_message(api.response, write_message(api.response, body, version), 0, version)[0]


def normalized(value: Any) -> Any:
    """Lists whose order Kafka leaves to a hash table are sorted."""
    if isinstance(value, dict):
        return {key: normalized(item) for key, item in value.items() if key not in ("host", "port")}
    if isinstance(value, list):
        return sorted((normalized(item) for item in value), key=repr)
    return value


def topics_of(client: str, scenario: str) -> Simulation:
    simulation = Simulation(
        group_initial_rebalance_delay_ms=500, group_consumer_heartbeat_interval_ms=1000
    )
    for exchange in exchanges(client, scenario):
        if exchange.request.api_key == ApiKey.METADATA and exchange.response is not None:
            for topic in response_of(exchange.response)["topics"]:
                if topic["errorCode"] == 0:
                    simulation.topics.counts[topic["name"]] = len(topic["partitions"])
                    simulation.topics.ids[topic["name"]] = topic.get("topicId", "")
        elif exchange.request.api_key == ApiKey.OFFSET_COMMIT:
            for topic in read_request(exchange.request.payload)[1]["topics"]:
                if not topic["name"].startswith("nope"):
                    simulation.topics.counts.setdefault(topic["name"], 3)
    return simulation


def new_member_uuid(asked: dict[str, Any], answered: dict[str, Any]) -> uuid.UUID | None:
    """The id that Kafka made up for this member, to be made up again."""
    message = answered.get("errorMessage") or ""
    if message.startswith("Static member "):
        return uuid.UUID(bytes=uuid_bytes(message.split()[2]))
    member_id = answered.get("memberId")
    if not member_id or asked.get("memberId"):
        return None
    if len(member_id) == 22:
        return uuid.UUID(bytes=uuid_bytes(member_id))
    return uuid.UUID(member_id[-36:])


@pytest.mark.parametrize(("client", "scenario"), SCENARIOS)
def test_answers_are_kafkas(client: str, scenario: str) -> None:
    simulation = topics_of(client, scenario)
    began_ms = simulation.timers.now_ms
    sent: list[tuple[Frame, Frame, Sent]] = []
    for exchange in exchanges(client, scenario):
        request, response = exchange
        if request.api_key not in GROUP_APIS or response is None:
            continue
        if (client, scenario, request.api_key) in IGNORED:
            continue
        api = ApiKey(request.api_key)
        _, body = read_request(request.payload)
        simulation.timers.advance_to(began_ms + int(request.at_ms))
        simulation.next_uuid = new_member_uuid(body, response_of(response))
        answer = simulation.send(api, request.api_version, body, request.client_id or "")
        sent.append((request, response, answer))
    assert sent
    simulation.timers.advance(2000)
    for request, response, answer in sent:
        api = ApiKey(request.api_key)
        got = as_sent(api, answer.body, request.api_version)
        expected = response_of(response)
        if api is ApiKey.LIST_GROUPS:  # without the groups of earlier scenarios
            known = simulation.coordinator.groups.keys() | {got["groupId"] for got in got["groups"]}
            expected["groups"] = [each for each in expected["groups"] if each["groupId"] in known]
        assert (str(request), normalized(got)) == (str(request), normalized(expected))

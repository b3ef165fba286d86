"""A user without rights, with every request that real clients have sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stratalog.broker.broker import Broker
from stratalog.broker.logs import id_of
from stratalog.wire.apis import SERVED, ApiKey
from tests.broker.raw_client import RawClient
from tests.broker.replaying import before, request_body
from tests.golden_wire import CLIENTS, frames, scenarios

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.golden_wire import Frame

REFUSALS = {29, 30, 31, 53}
"""Kafka's errors for topics, groups, the cluster and transactional ids."""
OPEN = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
LISTS = {
    ApiKey.METADATA: "topics",
    ApiKey.LIST_GROUPS: "groups",
    ApiKey.LIST_TRANSACTIONS: "transactionStates",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "topics",
    ApiKey.OFFSET_FETCH: "topics",
    ApiKey.DESCRIBE_CLUSTER: "clusterAuthorizedOperations",
}
"""What may be answered without an error as long as it lists nothing."""


def _one_of_each() -> Iterator[Frame]:
    """The longest captured request of each API and version."""
    found: dict[tuple[int, int], Frame] = {}
    for client in CLIENTS:
        for scenario in scenarios(client):
            for frame in frames(client, scenario):
                key = (frame.api_key, frame.api_version)
                if frame.direction != "req" or frame.api_key not in SERVED:
                    continue
                known = found.get(key)
                if known is None or len(frame.data) > len(known.data):
                    found[key] = frame
    yield from found.values()


_CODE_FIELDS = ("errorCode", "partitionErrorCode")


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        yield from (value[name] for name in _CODE_FIELDS if name in value)
        for each in value.values():
            yield from _codes(each)
    elif isinstance(value, list):
        for each in value:
            yield from _codes(each)


@pytest.mark.slow
def test_nothing_is_given_to_a_user_without_rights(tmp_path: Path) -> None:
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "group.initial.rebalance.delay.ms": 0,
    }
    chosen = [frame for frame in _one_of_each() if frame.api_key not in OPEN]
    assert len(chosen) > 60
    served: list[str] = []
    with Broker(
        tmp_path, listeners="SASL_PLAINTEXT://127.0.0.1:0", users={"alice": "x"}, config=config
    ) as broker:
        for client, scenario in {(frame.client, frame.scenario) for frame in chosen}:
            for name in before(client, scenario).partitions:
                if name not in broker.log_dir.topics and not name.startswith("__"):
                    broker.log_dir.create_topic(name)
        for frame in chosen:
            body = request_body(frame)
            if body is None or frame.api_key not in broker._dispatcher.apis:
                continue
            api, version = ApiKey(frame.api_key), frame.api_version
            answer = _answer_to(broker, api, version, body)
            if answer is not None and not _is_refused(api, answer):
                served.append(f"{frame}: {answer}")
        topics = set(broker.log_dir.topics)
    assert served == []
    assert not {name for name in topics if name.startswith("__")}


def _answer_to(
    broker: Broker, api: ApiKey, version: int, body: dict[str, Any]
) -> dict[str, Any] | None:
    with RawClient(broker.bootstrap_servers) as client:
        client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        client.call(ApiKey.SASL_AUTHENTICATE, 2, {"authBytes": b"\0alice\0x"})
        if api is ApiKey.PRODUCE and body["acks"] == 0:
            return None
        return client.call(api, version, body)


def _is_refused(api: ApiKey, answer: dict[str, Any]) -> bool:
    codes = set(_codes(answer))
    if REFUSALS & codes or (api is ApiKey.FETCH and codes == {0, 100}):  # by an id of a real broker
        return True
    listed = LISTS.get(api)
    return listed is not None and not answer.get(listed)


# -- some rights

RULES = """
allow User:alice Create,Delete,Describe,Alter,AlterConfigs on topic prefix own-
allow User:alice Delete on topic hidden
deny User:alice Describe on topic hidden
allow User:alice Write on transactional-id t1
allow User:alice Describe on transactional-id t1
"""


@pytest.fixture
def alice(tmp_path: Path) -> Iterator[RawClient]:
    rules = tmp_path / "acls.txt"
    rules.write_text(RULES)
    listeners = "SASL_PLAINTEXT://127.0.0.1:0"
    with (
        Broker(tmp_path / "data", listeners=listeners, users={"alice": "x"}, acls=rules) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        for name in ("own-1", "hidden", "other"):
            broker.log_dir.create_topic(name)
        client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        client.call(ApiKey.SASL_AUTHENTICATE, 2, {"authBytes": b"\0alice\0x"})
        yield client


def _results(answer: dict[str, Any], field: str, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(each[name] for name in names) for each in answer[field])


def test_each_entry_of_a_request_needs_its_right(alice: RawClient) -> None:
    topics = [
        {"name": name, "numPartitions": 1, "replicationFactor": 1} for name in ("own-2", "foreign")
    ]
    answer = alice.call(ApiKey.CREATE_TOPICS, 7, {"topics": topics})
    assert _results(answer, "topics", "name", "errorCode") == [("foreign", 29), ("own-2", 0)]
    created = next(topic for topic in answer["topics"] if topic["name"] == "own-2")
    assert created["configs"]  # ALTER_CONFIGS includes DESCRIBE_CONFIGS
    more = [{"name": name, "count": 2, "assignments": None} for name in ("own-1", "other")]
    answer = alice.call(ApiKey.CREATE_PARTITIONS, 3, {"topics": more})
    assert _results(answer, "results", "name", "errorCode") == [("other", 29), ("own-1", 0)]
    records = [
        {"name": name, "partitions": [{"partitionIndex": 0, "offset": -1}]}
        for name in ("own-1", "other")
    ]
    answer = alice.call(ApiKey.DELETE_RECORDS, 2, {"topics": records})
    by_name = {topic["name"]: topic["partitions"][0] for topic in answer["topics"]}
    assert by_name["own-1"]["errorCode"] == 0
    assert (by_name["other"]["errorCode"], by_name["other"]["lowWatermark"]) == (29, -1)


def test_configs_by_kind_of_resource(alice: RawClient) -> None:
    resources = [
        {"resourceType": kind, "resourceName": name}
        for kind, name in ((2, "own-1"), (2, "other"), (4, "1"), (32, "group"))
    ]
    answer = alice.call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": resources})
    assert _results(answer, "results", "resourceName", "errorCode") == [
        ("1", 31),
        ("group", 30),
        ("other", 29),
        ("own-1", 0),
    ]


def test_a_name_stays_secret_where_a_topic_is_deleted_by_id(tmp_path: Path) -> None:
    rules = tmp_path / "acls.txt"
    rules.write_text(RULES + "deny User:alice Delete on topic hidden\n")
    listeners = "SASL_PLAINTEXT://127.0.0.1:0"
    with (
        Broker(tmp_path / "data", listeners=listeners, users={"alice": "x"}, acls=rules) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        hidden = id_of(broker.log_dir.create_topic("hidden"))
        own = id_of(broker.log_dir.create_topic("own-1"))
        client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        client.call(ApiKey.SASL_AUTHENTICATE, 2, {"authBytes": b"\0alice\0x"})
        unknown = "AAAAAAAAAAAAAAAAAAAAAQ"
        topics = [{"name": None, "topicId": each} for each in (hidden, own, unknown)]
        answer = client.call(ApiKey.DELETE_TOPICS, 6, {"topics": topics})
        found = {
            topic["topicId"]: (topic["name"], topic["errorCode"]) for topic in answer["responses"]
        }
        assert found == {hidden: (None, 29), own: ("own-1", 0), unknown: (None, 100)}
        assert list(broker.log_dir.topics) == ["hidden"]


def test_transactions_need_their_id(alice: RawClient) -> None:
    body = {"transactionalId": "t1", "transactionTimeoutMs": 1000}
    mine = alice.call(ApiKey.INIT_PRODUCER_ID, 4, body)
    assert mine["errorCode"] == 0
    other = alice.call(ApiKey.INIT_PRODUCER_ID, 4, {**body, "transactionalId": "t2"})
    assert (other["errorCode"], other["producerId"]) == (53, -1)
    plain = alice.call(ApiKey.INIT_PRODUCER_ID, 4, {**body, "transactionalId": None})
    assert plain["errorCode"] == 31  # neither IDEMPOTENT_WRITE nor WRITE on any topic
    add = {
        "v3AndBelowTransactionalId": "t1",
        "v3AndBelowProducerId": mine["producerId"],
        "v3AndBelowProducerEpoch": mine["producerEpoch"],
        "v3AndBelowTopics": [{"name": "other", "partitions": [0]}],
    }
    answer = alice.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, add)
    assert list(_codes(answer)) == [29]
    listed = alice.call(ApiKey.LIST_TRANSACTIONS, 1, {})
    assert [state["transactionalId"] for state in listed["transactionStates"]] == ["t1"]

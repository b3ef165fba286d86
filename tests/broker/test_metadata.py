from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.broker.broker import Broker
from stratalog.errors import BrokerStartError
from stratalog.wire.apis import SERVED, ApiKey
from stratalog.wire.error_codes import ErrorCode
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def _named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_is_served(client: RawClient, version: int) -> None:
    body = {"clientSoftwareName": "raw", "clientSoftwareVersion": "1.0"}
    answer = client.call(ApiKey.API_VERSIONS, version, body)
    listed = {key["apiKey"]: (key["minVersion"], key["maxVersion"]) for key in answer["apiKeys"]}
    assert listed[ApiKey.METADATA] == SERVED[ApiKey.METADATA]
    features = {feature["name"] for feature in answer.get("supportedFeatures", ())}
    assert ("group.version" in features) == (version == 4)
    assert ("finalizedFeatures" in answer) == (version >= 3)


@pytest.mark.parametrize("name", ["", "-a", "a_b", "a-"])
def test_a_software_name_that_kafka_refuses(client: RawClient, name: str) -> None:
    body = {"clientSoftwareName": name, "clientSoftwareVersion": "1.0"}
    answer = client.call(ApiKey.API_VERSIONS, 3, body)
    assert answer == {"errorCode": 42, "apiKeys": [], "throttleTimeMs": 0}


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(client: RawClient) -> None:
    client.socket.sendall(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 99, 5, -1))
    versions = SERVED[ApiKey.API_VERSIONS]
    expected = struct.pack(">ihihhh", 5, ErrorCode.UNSUPPORTED_VERSION, 1, 18, *versions)
    assert client.receive_frame() == expected
    assert client.call(ApiKey.METADATA, 1, {"topics": []})["topics"] == []


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">ihhih", 10, ApiKey.METADATA, 99, 5, -1),
        struct.pack(">ihhih", 10, 999, 0, 5, -1),
        struct.pack(">ihhih", 10, ApiKey.METADATA, 12, 5, -1),
        struct.pack(">ih", 2, ApiKey.METADATA),
        struct.pack(">i", -1),
        struct.pack(">i", 200_000_000),
    ],
    ids=["version", "key", "truncated", "no header", "negative length", "huge length"],
)
def test_what_is_no_request_closes_the_connection(broker: Broker, frame: bytes) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        client.socket.sendall(frame)
        assert client.receive_frame() == b""
    with RawClient(broker.bootstrap_servers) as client:
        assert client.call(ApiKey.METADATA, 12, {"topics": None})["topics"] == []


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_topics(broker: Broker, client: RawClient, version: int) -> None:
    broker.log_dir.create_topic("orders", 3)
    answer = client.call(
        ApiKey.METADATA,
        version,
        {"topics": _named("orders", "missing", "bad name"), "allowAutoTopicCreation": False},
    )
    host, port = broker.bootstrap_servers.split(":")
    (node,) = answer["brokers"]
    assert (node["nodeId"], node["host"], node["port"]) == (1, host, int(port))
    topics = {topic["name"]: topic for topic in answer["topics"]}
    partitions = topics["orders"]["partitions"]
    assert [partition["partitionIndex"] for partition in partitions] == [0, 1, 2]
    assert {partition["leaderId"] for partition in partitions} == {1}
    assert topics["bad name"]["errorCode"] == ErrorCode.INVALID_TOPIC_EXCEPTION
    if version >= 4:
        assert topics["missing"]["errorCode"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_all_topics_none_and_by_id(broker: Broker, client: RawClient) -> None:
    info = broker.log_dir.create_topic("orders")
    assert client.call(ApiKey.METADATA, 1, {"topics": []})["topics"] == []
    (of_v0,) = client.call(ApiKey.METADATA, 0, {"topics": []})["topics"]
    (of_all,) = client.call(ApiKey.METADATA, 12, {"topics": None})["topics"]
    assert of_v0["name"] == of_all["name"] == "orders"
    assert of_all["topicAuthorizedOperations"] == -(1 << 31)
    body = {"topics": [{"topicId": of_all["topicId"], "name": None}]}
    (by_id,) = client.call(ApiKey.METADATA, 12, body)["topics"]
    assert (by_id["name"], by_id["topicId"]) == ("orders", of_all["topicId"])
    assert info.topic_id is not None
    unknown = {"topics": [{"topicId": "A" * 22, "name": None}]}
    unknown["topics"][0]["topicId"] = "AAAAAAAAAAAAAAAAAAAAAQ"
    (missing,) = client.call(ApiKey.METADATA, 12, unknown)["topics"]
    assert (missing["errorCode"], missing["name"]) == (ErrorCode.UNKNOWN_TOPIC_ID, None)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_in_a_version_that_has_none_yet(client: RawClient, version: int) -> None:
    asked = [{"name": None, "topicId": "AAAAAAAAAAAAAAAAAAAAAQ"}, {"name": "orders"}]
    topics = client.call(ApiKey.METADATA, version, {"topics": asked})["topics"]
    assert [topic["errorCode"] for topic in topics] == [ErrorCode.INVALID_REQUEST] * 2


def test_a_topic_is_created_where_client_and_config_allow_it(tmp_path: Path) -> None:
    body = {"topics": _named("new"), "allowAutoTopicCreation": True}
    with Broker(tmp_path / "a") as broker, RawClient(broker.bootstrap_servers) as client:
        (topic,) = client.call(ApiKey.METADATA, 12, body)["topics"]
        assert (topic["errorCode"], len(topic["partitions"])) == (0, 1)
    config = {"auto.create.topics.enable": "false"}
    with (
        Broker(tmp_path / "b", config=config) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        (topic,) = client.call(ApiKey.METADATA, 12, body)["topics"]
        assert topic["errorCode"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_authorized_operations_on_request(broker: Broker, client: RawClient) -> None:
    broker.log_dir.create_topic("orders")
    asked = {
        "topics": None,
        "includeTopicAuthorizedOperations": True,
        "includeClusterAuthorizedOperations": True,
    }
    answer = client.call(ApiKey.METADATA, 10, asked)
    assert answer["topics"][0]["topicAuthorizedOperations"] == 3576
    assert answer["clusterAuthorizedOperations"] == 8096
    cluster = client.call(
        ApiKey.DESCRIBE_CLUSTER, 1, {"includeClusterAuthorizedOperations": True, "endpointType": 1}
    )
    assert cluster["clusterAuthorizedOperations"] == 8096
    controllers = client.call(ApiKey.DESCRIBE_CLUSTER, 1, {"endpointType": 2})
    assert controllers["errorCode"] == 114


def test_topic_partitions_in_pages(broker: Broker, client: RawClient) -> None:
    for name in ("b", "a", "c"):
        broker.log_dir.create_topic(name, 3)
    api = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    seen, cursor, pages = [], None, 0
    while True:
        body = {"topics": _named("c", "a", "b"), "responsePartitionLimit": 2, "cursor": cursor}
        answer = client.call(api, 0, body)
        for topic in answer["topics"]:
            seen += [(topic["name"], p["partitionIndex"]) for p in topic["partitions"]]
        pages += 1
        cursor = answer["nextCursor"]
        if cursor is None:
            break
    assert seen == [(name, number) for name in "abc" for number in range(3)]
    assert pages == 5


@pytest.mark.parametrize("limit", [0, -2])
def test_a_page_has_at_least_one_partition(broker: Broker, client: RawClient, limit: int) -> None:
    broker.log_dir.create_topic("a", 3)
    body = {"topics": _named("a"), "responsePartitionLimit": limit}
    answer = client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)
    [topic] = answer["topics"]
    assert [partition["partitionIndex"] for partition in topic["partitions"]] == [0]
    assert answer["nextCursor"] == {"topicName": "a", "partitionIndex": 1}


def test_pipelined_requests_are_answered_in_order(client: RawClient) -> None:
    sent = [client.send(ApiKey.METADATA, 12, {"topics": []}) for _ in range(50)]
    for correlation_id in sent:
        client.answer(ApiKey.METADATA, 12, correlation_id)


def test_a_port_that_is_taken(broker: Broker, tmp_path: Path) -> None:
    port = int(broker.bootstrap_servers.split(":")[1])
    with pytest.raises(BrokerStartError, match="cannot listen on 127"):
        Broker(tmp_path / "other", port=port).start()
    assert not (tmp_path / "other").exists()

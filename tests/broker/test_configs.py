"""Requests about settings, compared with what Kafka answered to real clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stratalog.broker.broker import Broker
from stratalog.format.messages.schema import read_message
from stratalog.wire.apis import ApiKey
from stratalog.wire.frames import response_header_bytes
from tests.broker.raw_client import RawClient
from tests.golden_wire import exchanges

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)

REMOVED_IN_4_0 = {
    "message.downconversion.enable",
    "message.format.version",
    "message.timestamp.difference.max.ms",
}
OTHER_DEFAULT_IN_4_0 = {
    "message.timestamp.after.max.ms",
    "log.message.timestamp.after.max.ms",
    "num.recovery.threads.per.data.dir",
}


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    broker.log_dir.create_topic("orders")
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def describe(
    client: RawClient,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    **options: bool,
) -> dict[str, Any]:
    resource = {"resourceType": kind, "resourceName": name, "configurationKeys": keys}
    body = {"resources": [resource], "includeSynonyms": True, **options}
    [result] = client.call(ApiKey.DESCRIBE_CONFIGS, 4, body)["results"]
    found: dict[str, Any] = result
    return found


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in result["configs"]}


def change(client: RawClient, *configs: tuple[str, int, str | None]) -> tuple[int, str | None]:
    resource = {
        "resourceType": TOPIC,
        "resourceName": "orders",
        "configs": [{"name": n, "configOperation": o, "value": v} for n, o, v in configs],
    }
    answer = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
    [result] = answer["responses"]
    return result["errorCode"], result["errorMessage"]


def captured(client: str, kind: int) -> dict[str, dict[str, Any]]:
    """What Kafka described first."""
    api = ApiKey.DESCRIBE_CONFIGS
    for request, response in exchanges(client, "admin_configs"):
        if request.api_key == api and response is not None:
            at = len(response_header_bytes(api, request.api_version, 0))
            body, _ = read_message(api.response, response.payload, at, request.api_version)
            for result in body["results"]:
                if result["resourceType"] == kind:
                    return by_name(result)
    raise AssertionError("not captured")


class TestDescribe:
    def test_topics_have_the_settings_that_kafka_describes(self, client: RawClient) -> None:
        ours = by_name(describe(client, TOPIC, "orders"))
        kafkas = captured("confluent", TOPIC)
        assert set(kafkas) - set(ours) == REMOVED_IN_4_0
        for name in set(ours) - OTHER_DEFAULT_IN_4_0:
            for field in ("value", "configSource", "readOnly", "isSensitive", "synonyms"):
                assert ours[name][field] == kafkas[name][field], (name, field)
        types = {name: each["configType"] for name, each in captured("kafka-python", TOPIC).items()}
        assert {name: each["configType"] for name, each in ours.items()}.items() <= types.items()

    def test_brokers_have_values_and_defaults_of_kafka(self, tmp_path: Path) -> None:
        kafkas = captured("confluent", BROKER)
        config = {
            "offsets.topic.num.partitions": "4",
            "log.retention.bytes": "5000000",
            "node.id": "1",
        }
        with Broker(tmp_path, config=config) as broker, RawClient(broker.bootstrap_servers) as raw:
            ours = by_name(describe(raw, BROKER, "1"))
            assert by_name(describe(raw, BROKER, "")).keys() == ours.keys()
        shared = [
            name
            for name, each in ours.items()
            if name in kafkas and each["configSource"] == kafkas[name]["configSource"] == 5
        ]
        assert len(shared) > 40
        for name in set(shared) - OTHER_DEFAULT_IN_4_0:
            for field in ("value", "synonyms"):
                assert ours[name][field] == kafkas[name][field], name
        assert ours["offsets.topic.num.partitions"]["synonyms"] == [
            {"name": "offsets.topic.num.partitions", "value": "4", "source": 4},
            {"name": "offsets.topic.num.partitions", "value": "50", "source": 5},
        ]
        assert ours["log.retention.bytes"]["configSource"] == 4

    def test_the_id_of_the_node_is_the_one_that_clients_see(self, client: RawClient) -> None:
        assert by_name(describe(client, BROKER, "1"))["node.id"]["value"] == "1"

    def test_only_what_was_asked_for(self, client: RawClient) -> None:
        found = describe(client, TOPIC, "orders", ["retention.ms", "nope"], includeSynonyms=False)
        [config] = found["configs"]
        assert (config["name"], config["synonyms"], config["documentation"]) == (
            "retention.ms",
            [],
            None,
        )
        found = describe(client, TOPIC, "orders", ["retention.ms"], includeDocumentation=True)
        assert "deleted" in found["configs"][0]["documentation"]

    def test_what_does_not_exist(self, client: RawClient) -> None:
        unknown = describe(client, TOPIC, "nope")
        assert (unknown["errorCode"], unknown["errorMessage"]) == (3, "")
        other = describe(client, BROKER, "77")
        assert (other["errorCode"], other["errorMessage"]) == (
            42,
            "Unexpected broker id, expected 1 or empty string, but received 77",
        )
        assert describe(client, 99, "x")["errorCode"] == 42

    def test_the_root_logger(self, client: RawClient) -> None:
        [logger] = describe(client, LOGGER, "1", ["root"])["configs"]
        assert (logger["name"], logger["configSource"], logger["documentation"]) == ("root", 6, "")
        assert logger["value"] in {"ALL", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"}

    def test_which_resources_there_are(self, client: RawClient) -> None:
        assert client.call(ApiKey.LIST_CONFIG_RESOURCES, 0)["configResources"] == []
        for types, expected in (([], 3), ([TOPIC], 1), ([16, 32], 0)):
            answer = client.call(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resourceTypes": types})
            assert len(answer["configResources"]) == expected


class TestAlter:
    def test_settings_change_one_by_one(self, client: RawClient, broker: Broker) -> None:
        assert change(client, ("retention.ms", SET, "60000"), ("segment.ms", SET, "1000")) == (
            0,
            None,
        )
        assert change(client, ("cleanup.policy", APPEND, "compact"), ("segment.ms", DELETE, None))
        overrides = broker.log_dir.topic("orders").overrides
        assert dict(overrides) == {"retention.ms": "60000", "cleanup.policy": "compact,delete"}
        retention = by_name(describe(client, TOPIC, "orders"))["retention.ms"]
        assert (retention["value"], retention["configSource"]) == ("60000", 1)
        assert retention["synonyms"] == [{"name": "retention.ms", "value": "60000", "source": 1}]
        change(client, ("cleanup.policy", SUBTRACT, "delete"))
        assert broker.log_dir.topic("orders").config.is_compacted
        assert not broker.log_dir.topic("orders").config.has_delete_policy

    def test_settings_are_replaced_together(self, client: RawClient, broker: Broker) -> None:
        change(client, ("retention.ms", SET, "60000"))
        resource = {
            "resourceType": TOPIC,
            "resourceName": "orders",
            "configs": [{"name": "segment.ms", "value": "70000"}],
        }
        for validate_only in (True, False):
            answer = client.call(
                ApiKey.ALTER_CONFIGS, 2, {"resources": [resource], "validateOnly": validate_only}
            )
            assert answer["responses"][0]["errorCode"] == 0
            name = "retention.ms" if validate_only else "segment.ms"
            assert list(broker.log_dir.topic("orders").overrides) == [name]

    def test_what_is_refused_and_in_which_words(self, client: RawClient, broker: Broker) -> None:
        wrong: dict[tuple[str, int, str | None], tuple[int, str]] = {
            ("retention.ms", SET, "abc"): (
                40,
                "Invalid value abc for configuration retention.ms: Not a number of type LONG",
            ),
            ("bogus", SET, "1"): (40, "Unknown topic config name: bogus"),
            ("retention.ms", APPEND, "1"): (
                40,
                "Can't APPEND to key retention.ms because its type is not LIST.",
            ),
            ("retention.ms", SET, None): (42, "Null value not supported for : retention.ms"),
            ("retention.ms", 9, "1"): (42, "Unknown operation 9 for retention.ms"),
        }
        for config, expected in wrong.items():
            assert change(client, config) == expected
        twice = ("retention.ms", SET, "1")
        assert change(client, twice, twice) == (42, "Error due to duplicate config keys")
        assert not broker.log_dir.topic("orders").overrides

    @pytest.mark.parametrize(
        ("kind", "name", "code"), [(TOPIC, "nope", 3), (BROKER, "1", 42), (32, "group", 42)]
    )
    def test_what_cannot_be_changed(
        self, client: RawClient, kind: int, name: str, code: int
    ) -> None:
        config = {"name": "log.retention.ms", "configOperation": SET, "value": "1"}
        resource = {"resourceType": kind, "resourceName": name, "configs": [config]}
        answer = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        assert answer["responses"][0]["errorCode"] == code

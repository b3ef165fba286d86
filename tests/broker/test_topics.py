"""Admin requests about topics, with the answers that Kafka gave to the same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from stratalog.wire.message_tables import ZERO_UUID
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.broker.broker import Broker

LATEST = {
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.ELECT_LEADERS: 2,
}


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def call(client: RawClient, api: ApiKey, **body: Any) -> dict[str, Any]:
    return client.call(api, LATEST[api], body)


def topic(name: str, partitions: int = 1, replicas: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "numPartitions": partitions,
        "replicationFactor": replicas,
        "assignments": [],
        "configs": [],
        **fields,
    }


def create(client: RawClient, *topics: dict[str, Any], **fields: Any) -> dict[str, Any]:
    answer = call(client, ApiKey.CREATE_TOPICS, topics=list(topics), **fields)
    return {each["name"]: each for each in answer["topics"]}


def outcome(result: dict[str, Any]) -> tuple[int, str | None]:
    return result["errorCode"], result["errorMessage"]


class TestCreate:
    def test_a_topic_has_what_was_asked_for(self, client: RawClient, broker: Broker) -> None:
        config = {"name": "retention.ms", "value": "60000"}
        made = create(client, topic("orders", 3, configs=[config]))["orders"]
        assert (made["errorCode"], made["numPartitions"], made["replicationFactor"]) == (0, 3, 1)
        assert made["topicId"] != ZERO_UUID
        settings = {each["name"]: each for each in made["configs"]}
        assert (settings["retention.ms"]["value"], settings["retention.ms"]["configSource"]) == (
            "60000",
            1,
        )
        assert settings["cleanup.policy"]["configSource"] == 5
        assert broker.log_dir.topic("orders").partition_count == 3

    def test_what_is_refused_and_in_which_words(self, client: RawClient) -> None:
        create(client, topic("a.q"))
        wrong = create(
            client,
            topic("x", configs=[{"name": "bogus", "value": "1"}]),
            topic("y", 0),
            topic("a" * 250),
            topic(".."),
            topic("bad name!"),
            topic("rf", replicas=3),
            topic("a.q"),
            topic("a_q"),
            topic("twice"),
            topic("twice", 2),
        )
        del wrong["a" * 250]["errorMessage"]
        assert wrong["a" * 250]["errorCode"] == 17
        del wrong["a" * 250]
        assert {name: outcome(result) for name, result in wrong.items()} == {
            "x": (40, "Unknown topic config name: bogus"),
            "y": (37, "Number of partitions was set to an invalid non-positive value."),
            "..": (17, "Topic name is invalid: '..' is not allowed"),
            "bad name!": (
                17,
                "Topic name is invalid: 'bad name!' contains one or more characters other than "
                "ASCII alphanumerics, '.', '_' and '-'",
            ),
            "rf": (
                38,
                "Unable to replicate the partition 3 time(s): The target replication factor of 3 "
                "cannot be reached because only 1 broker(s) are registered.",
            ),
            "a.q": (36, "Topic 'a.q' already exists."),
            "a_q": (17, "Topic 'a_q' collides with existing topic: a.q"),
            "twice": (42, "Duplicate topic name."),
        }
        assert {each["numPartitions"] for each in wrong.values()} == {-1}

    def test_defaults_are_the_brokers(self, client: RawClient) -> None:
        made = create(client, topic("z", -1, -1))["z"]
        assert (made["numPartitions"], made["replicationFactor"]) == (1, 1)

    def test_validating_creates_nothing(self, client: RawClient, broker: Broker) -> None:
        made = create(client, topic("v", 2), topic("..", 2), validateOnly=True)
        assert (made["v"]["errorCode"], made["v"]["numPartitions"]) == (0, 2)
        assert made[".."]["errorCode"] == 17
        assert "v" not in broker.log_dir.topics

    def test_partitions_may_be_placed_on_the_only_broker(self, client: RawClient) -> None:
        def placed(*brokers: int) -> list[dict[str, Any]]:
            return [{"partitionIndex": i, "brokerIds": [b]} for i, b in enumerate(brokers)]

        made = create(
            client,
            topic("here", -1, -1, assignments=placed(1, 1)),
            topic("there", -1, -1, assignments=placed(1, 2)),
            topic("both", 2, -1, assignments=placed(1, 1)),
        )
        codes = {name: result["errorCode"] for name, result in made.items()}
        assert codes == {"here": 0, "there": 39, "both": 42}
        assert made["here"]["numPartitions"] == 2


class TestDelete:
    def test_by_name_and_by_id(self, client: RawClient, broker: Broker) -> None:
        topic_id = create(client, topic("a"), topic("b"))["b"]["topicId"]
        other_id = "q" * 21 + "A"
        answer = call(
            client,
            ApiKey.DELETE_TOPICS,
            topics=[
                {"name": "a", "topicId": ZERO_UUID},
                {"name": None, "topicId": topic_id},
                {"name": None, "topicId": other_id},
                {"name": "nope", "topicId": ZERO_UUID},
                {"name": None, "topicId": ZERO_UUID},
            ],
        )
        found = [(each["name"], *outcome(each)) for each in answer["responses"]]
        assert found == [
            ("a", 0, None),
            ("b", 0, None),
            (None, 100, "This server does not host this topic ID."),
            ("nope", 3, "This server does not host this topic-partition."),
            (None, 42, "Neither topic name nor id were specified."),
        ]
        assert not broker.log_dir.topics

    def test_a_name_that_is_there_twice_is_not_deleted(
        self, client: RawClient, broker: Broker
    ) -> None:
        create(client, topic("a"), topic("b"))
        named = [{"name": name, "topicId": ZERO_UUID} for name in ("a", "b", "a")]
        answer = call(client, ApiKey.DELETE_TOPICS, topics=named)
        found = [(each["name"], *outcome(each)) for each in answer["responses"]]
        assert found == [("b", 0, None), ("a", 42, "Duplicate topic name.")]
        assert list(broker.log_dir.topics) == ["a"]

    @pytest.mark.parametrize("version", range(1, 6))
    def test_older_versions_have_names_only(self, client: RawClient, version: int) -> None:
        create(client, topic("a"))
        answer = client.call(ApiKey.DELETE_TOPICS, version, {"topicNames": ["a", "nope"]})
        assert [(each["name"], each["errorCode"]) for each in answer["responses"]] == [
            ("a", 0),
            ("nope", 3),
        ]


class TestPartitions:
    def test_a_topic_only_grows(self, client: RawClient, broker: Broker) -> None:
        create(client, topic("a", 2), topic("b", 2))
        wanted = [("a", 4, None), ("b", 2, None), ("nope", 3, None)]
        answer = call(
            client,
            ApiKey.CREATE_PARTITIONS,
            topics=[{"name": n, "count": c, "assignments": a} for n, c, a in wanted],
        )
        assert [outcome(each) for each in answer["results"]] == [
            (0, None),
            (37, "The topic b currently has 2 partition(s); 2 would not be an increase."),
            (3, "This server does not host this topic-partition."),
        ]
        assert broker.log_dir.topic("a").partition_count == 4

    def test_validating_and_placing(self, client: RawClient, broker: Broker) -> None:
        create(client, topic("a", 1))
        codes = []
        for brokers in ([[1], [1]], [[1]], [[7], [1]]):
            answer = call(
                client,
                ApiKey.CREATE_PARTITIONS,
                topics=[
                    {"name": "a", "count": 3, "assignments": [{"brokerIds": b} for b in brokers]}
                ],
                validateOnly=True,
            )
            codes.append(answer["results"][0]["errorCode"])
        assert codes == [0, 39, 39]
        assert broker.log_dir.topic("a").partition_count == 1


class TestRecords:
    def test_delete(self, client: RawClient, broker: Broker) -> None:
        create(client, topic("a", 3), topic("compacted"))
        broker.log_dir.alter_config("compacted", {"cleanup.policy": "compact"})
        for number in range(3):
            for _ in range(10):
                broker.log_dir.append("a", b"x", partition=number)
        answer = call(
            client,
            ApiKey.DELETE_RECORDS,
            topics=[
                {
                    "name": "a",
                    "partitions": [
                        {"partitionIndex": 0, "offset": 4},
                        {"partitionIndex": 0, "offset": 2},
                        {"partitionIndex": 1, "offset": -1},
                        {"partitionIndex": 2, "offset": 1000},
                        {"partitionIndex": 3, "offset": 0},
                    ],
                },
                {"name": "compacted", "partitions": [{"partitionIndex": 0, "offset": 0}]},
            ],
        )
        found = [
            [(each["lowWatermark"], each["errorCode"]) for each in named["partitions"]]
            for named in answer["topics"]
        ]
        assert found == [[(4, 0), (4, 0), (10, 0), (-1, 1), (-1, 3)], [(-1, 44)]]
        assert broker.log_dir.partition("a", 0).log_start_offset == 4


def test_log_dirs(client: RawClient, broker: Broker) -> None:
    create(client, topic("a", 2))
    broker.log_dir.append("a", b"x", partition=1)
    wanted = [{"topic": "a", "partitions": [0, 1, 7]}, {"topic": "nope", "partitions": [0]}]
    for topics in (wanted, None):
        [found] = call(client, ApiKey.DESCRIBE_LOG_DIRS, topics=topics)["results"]
        assert found["logDir"] == str(broker.log_dir.paths[0])
        assert found["totalBytes"] >= found["usableBytes"] > 0
        [described] = found["topics"]
        sizes = [each["partitionSize"] for each in described["partitions"]]
        assert sizes == [0, broker.log_dir.partition("a", 1).size_bytes]


def test_leaders_are_never_elected(client: RawClient) -> None:
    create(client, topic("a"))
    answer = call(client, ApiKey.ELECT_LEADERS, topicPartitions=None)
    assert answer["replicaElectionResults"] == [{"topic": "a", "partitionResult": []}]
    wanted = [{"topic": "a", "partitions": [0, 1]}]
    answer = call(client, ApiKey.ELECT_LEADERS, topicPartitions=wanted)
    [result] = answer["replicaElectionResults"]
    codes = [each["errorCode"] for each in result["partitionResult"]]
    assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_what_a_cluster_of_one_has_to_say(client: RawClient) -> None:
    answer = client.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None})
    assert (answer["errorCode"], answer["topics"]) == (0, [])
    answer = client.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [], "strict": False})
    assert (answer["errorCode"], answer["entries"]) == (0, [])
    asked = [{"topicName": "__cluster_metadata", "partitions": [{"partitionIndex": 0}]}]
    answer = client.call(ApiKey.DESCRIBE_QUORUM, 2, {"topics": asked})
    [quorum] = answer["topics"][0]["partitions"]
    assert (quorum["leaderId"], quorum["currentVoters"][0]["replicaId"]) == (1, 1)
    assert answer["nodes"][0]["nodeId"] == 1


def test_a_request_creates_ten_thousand_partitions_at_most(
    broker: Broker, client: RawClient
) -> None:
    broker.log_dir.create_topic("orders")
    refused = (
        ErrorCode.POLICY_VIOLATION,
        "Excessively large number of partitions per request.",
    )
    for counts in ((10_001,), (5_000, 5_001), (0x7FFFFFFF,)):
        topics = [topic(f"t{number}", count) for number, count in enumerate(counts)]
        assert {outcome(each) for each in create(client, *topics).values()} == {refused}
    more = [{"name": "orders", "count": 0x7FFFFFFF, "assignments": None}]
    (result,) = call(client, ApiKey.CREATE_PARTITIONS, topics=more)["results"]
    assert outcome(result) == refused
    assert list(broker.log_dir.topics) == ["orders"]
    assert broker.log_dir.topic("orders").partition_count == 1

"""A disk that takes no more: what clients are told, and that everything goes on afterwards."""

from __future__ import annotations

import resource
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.broker import group_handlers
from stratalog.broker.broker import Broker
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GROUP, MEMBER = "group", "member"


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", config={"offsets.topic.num.partitions": 1}) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    broker.log_dir.create_topic("orders", 2)
    with RawClient(broker.bootstrap_servers) as client:
        client.call(ApiKey.FIND_COORDINATOR, 4, {"coordinatorKeys": [GROUP]})
        yield client


def _commit(client: RawClient) -> int:
    partition = {"partitionIndex": 0, "committedOffset": 1, "committedMetadata": ""}
    body = {"groupId": GROUP, "topics": [{"name": "orders", "partitions": [partition]}]}
    answer = client.call(ApiKey.OFFSET_COMMIT, 9, body)
    code: int = answer["topics"][0]["partitions"][0]["errorCode"]
    return code


def _heartbeat(client: RawClient, member_id: str, epoch: int) -> dict[str, Any]:
    body = {
        "groupId": GROUP,
        "memberId": member_id,
        "memberEpoch": epoch,
        "rebalanceTimeoutMs": 10_000,
        "subscribedTopicNames": ["orders"],
        "topicPartitions": [],
    }
    return client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)


def _start_producer(client: RawClient) -> int:
    body = {"transactionalId": "shop", "transactionTimeoutMs": 10_000}
    code: int = client.call(ApiKey.INIT_PRODUCER_ID, 5, body)["errorCode"]
    return code


def _join_code(client: RawClient) -> int:
    code: int = _heartbeat(client, MEMBER, 0)["errorCode"]
    return code


def _delete_group(client: RawClient) -> int:
    answer = client.call(ApiKey.DELETE_GROUPS, 2, {"groupsNames": [GROUP]})
    code: int = answer["results"][0]["errorCode"]
    return code


@pytest.mark.parametrize("ask", [_commit, _join_code, _start_producer, _delete_group])
def test_clients_of_a_coordinator_retry(
    client: RawClient, caplog: pytest.LogCaptureFixture, ask: Any
) -> None:
    """As in Kafka: they look for the coordinator again, and do not give up."""
    if ask is _delete_group:
        assert _commit(client) == 0
    with full_disk():
        assert ask(client) == ErrorCode.NOT_COORDINATOR
    (line,) = [each for each in caplog.records if "File too large" in each.getMessage()]
    assert line.exc_info is None
    assert ask(client) == 0


def test_deleted_records_that_cannot_be_checkpointed_are_an_error_that_clients_retry(
    broker: Broker, client: RawClient
) -> None:
    for number in range(3):
        broker.log_dir.append("orders", b"%d" % number, partition=0)
    partitions = [{"partitionIndex": 0, "offset": 2}, {"partitionIndex": 1, "offset": 5}]
    body = {"topics": [{"name": "orders", "partitions": partitions}], "timeoutMs": 1000}

    def delete() -> list[tuple[int, int, int]]:
        (topic,) = client.call(ApiKey.DELETE_RECORDS, 2, body)["topics"]
        return [
            (each["partitionIndex"], each["lowWatermark"], each["errorCode"])
            for each in topic["partitions"]
        ]

    beyond = (1, -1, ErrorCode.OFFSET_OUT_OF_RANGE)
    with full_disk():
        assert delete() == [(0, -1, ErrorCode.KAFKA_STORAGE_ERROR), beyond]
    assert delete() == [(0, 2, 0), beyond]


@pytest.mark.slow
def test_a_session_that_ends_meanwhile_ends_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_handlers, "_RETRY_MS", 50)
    config = {"group.consumer.session.timeout.ms": 300, "offsets.topic.num.partitions": 1}
    with (
        Broker(tmp_path / "data", config=config) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        broker.log_dir.create_topic("orders", 2)
        assert _heartbeat(client, MEMBER, 0)["errorCode"] == 0
        with full_disk():
            time.sleep(0.5)
            assert _member_count(client) == 1
        deadline = time.monotonic() + 5
        while _member_count(client) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert _member_count(client) == 0


def _member_count(client: RawClient) -> int:
    (group,) = client.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, {"groupIds": [GROUP]})["groups"]
    return len(group["members"])

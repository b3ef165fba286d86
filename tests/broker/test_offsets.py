from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stratalog.wire.apis import ApiKey
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.broker.broker import Broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    broker.log_dir.create_topic("t")
    for at_ms in (1000, 3000, 2000):
        broker.log_dir.append("t", b"v", timestamp=at_ms)
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def _list(client: RawClient, timestamp: int, version: int = 10, **more: Any) -> tuple[int, ...]:
    partition = {"partitionIndex": 0, "timestamp": timestamp, **more}
    body = {"topics": [{"name": "t", "partitions": [partition]}]}
    (topic,) = client.call(ApiKey.LIST_OFFSETS, version, body)["topics"]
    (found,) = topic["partitions"]
    return tuple(
        found.get(name, -1) for name in ("errorCode", "offset", "timestamp", "leaderEpoch")
    )


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, (0, 3, -1, 0)),
        (-2, (0, 0, -1, 0)),
        (-3, (0, 1, 3000, 0)),
        (-4, (0, 0, -1, 0)),
        (-5, (0, -1, -1, -1)),
        (-6, (35, -1, -1, -1)),
        (0, (0, 0, 1000, 0)),
        (1500, (0, 1, 3000, 0)),
        (5000, (0, -1, -1, -1)),
    ],
)
def test_offsets_by_time(client: RawClient, timestamp: int, expected: tuple[int, ...]) -> None:
    assert _list(client, timestamp) == expected


@pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11)])
def test_a_special_timestamp_before_its_version(
    client: RawClient, timestamp: int, since: int
) -> None:
    assert _list(client, timestamp, since - 1)[0] == 35
    assert _list(client, timestamp, since)[0] == 0


def test_nothing_waits_for_an_upload_without_a_remote_store(client: RawClient) -> None:
    assert _list(client, -6, version=11) == (0, -1, -1, -1)


def test_errors_of_a_partition(client: RawClient) -> None:
    assert _list(client, -1, partitionIndex=4)[0] == 3
    assert _list(client, -1, currentLeaderEpoch=9)[0] == 75


def test_where_leader_epochs_end(broker: Broker, client: RawClient) -> None:
    log = broker.log_dir.partition("t", 0)
    log.become_leader(2)
    broker.log_dir.append("t", b"v")

    def ask(epoch: int, current: int = -1) -> tuple[int, int, int]:
        partition = {"partition": 0, "leaderEpoch": epoch, "currentLeaderEpoch": current}
        body = {"topics": [{"topic": "t", "partitions": [partition]}]}
        (topic,) = client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, body)["topics"]
        (found,) = topic["partitions"]
        return found["errorCode"], found["leaderEpoch"], found["endOffset"]

    assert ask(0) == (0, 0, 3)
    assert ask(2) == (0, 2, 4)
    assert ask(3) == (0, -1, -1)
    assert ask(-1) == (0, -1, -1)
    assert ask(2, current=1)[0] == 74

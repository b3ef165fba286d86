"""Records of real clients through the broker: what one produces, every other one consumes."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest

import stratalog
from stratalog.broker.broker import Broker
from stratalog.maintenance.verify.directory import verify_directory
from tests.compat.clients import CLIENTS, Client, Got, Sent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

CODEC_CASES = [
    pytest.param(client, codec, id=f"{client.name}-{codec}")
    for client in CLIENTS
    for codec in client.codecs
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


_numbers = itertools.count()


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"records-{next(_numbers)}"
    broker.log_dir.create_topic(name, 3)
    return name


def _records(count: int) -> list[Sent]:
    """Keys, headers, empty values and tombstones, over three partitions."""
    start = int(time.time() * 1000) - 100_000
    values = (None, b"", b"v" * 300)
    return [
        Sent(
            partition=number % 3,
            key=None if number % 5 == 0 and values[number % 7 % 3] else b"key %d" % number,
            value=values[number % 7 % 3],
            headers=(("first", b"1"), ("second", b"")) if number % 4 == 0 else (),
            timestamp=start + number,
        )
        for number in range(1, count + 1)
    ]


def _all_of(topic: str) -> list[tuple[str, int]]:
    return [(topic, number) for number in range(3)]


def _expected(topic: str, records: list[Sent], offsets: list[int]) -> list[Got]:
    return sorted(
        Got(topic, r.partition, offset, r.key, r.value, r.headers, r.timestamp or 0)
        for r, offset in zip(records, offsets, strict=True)
    )


@pytest.mark.parametrize(("client", "codec"), CODEC_CASES)
def test_what_one_client_produces_all_consume(
    broker: Broker, topic: str, client: Client, codec: str
) -> None:
    records = _records(60)
    offsets = client.produce(broker.bootstrap_servers, topic, records, codec=codec)
    expected = _expected(topic, records, offsets)
    assert sorted(offsets) == sorted(list(range(20)) * 3)
    for consumer in CLIENTS:
        if codec in consumer.codecs:
            got = consumer.consume(broker.bootstrap_servers, _all_of(topic), len(records))
            assert sorted(got) == expected, consumer.name
    log = broker.log_dir.partition(topic, 0)
    stored = [(r.offset, r.key, r.value) for r in log.read()]
    assert stored == [got[2:5] for got in expected if got.partition == 0]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(broker: Broker, topic: str, client: Client, acks: int | str) -> None:
    records = [Sent(0, None, b"%d" % number) for number in range(50)]
    offsets = client.produce(broker.bootstrap_servers, topic, records, acks=acks)
    if acks != 0:
        assert offsets == list(range(50))
    got = client.consume(broker.bootstrap_servers, [(topic, 0)], 50)
    assert [record.value for record in got] == [record.value for record in records]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_large_records_and_many_fetches(broker: Broker, topic: str, client: Client) -> None:
    """Larger than what is copied, and than what a client asks for at a time."""
    records = [Sent(number % 3, None, bytes([number]) * 900_000) for number in range(12)]
    client_offsets = client.produce(broker.bootstrap_servers, topic, records[:1])
    assert client_offsets == [0]
    CLIENTS[0].produce(broker.bootstrap_servers, topic, records[1:])
    got = client.consume(broker.bootstrap_servers, _all_of(topic), 12)
    assert sorted(r.value or b"" for r in got) == sorted(r.value or b"" for r in records)


def test_verify_finds_nothing_in_what_the_broker_wrote(tmp_path: Path) -> None:
    records = _records(30)
    with Broker(tmp_path) as broker:
        broker.log_dir.create_topic("t", 3)
        for client in CLIENTS:
            client.produce(broker.bootstrap_servers, "t", records, codec="gzip")
    assert verify_directory(tmp_path).findings == ()
    with stratalog.open_dirs(tmp_path) as logs:
        assert sum(len(list(log.read())) for log in logs.partitions_of("t")) == 90

"""Transactions of real clients: committed, aborted, fenced, and with the offsets of a group."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import confluent_kafka
import kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaError as AioKafkaError

from stratalog.broker.broker import Broker
from stratalog.log.reader import IsolationLevel
from tests.compat.clients import CLIENTS, Client

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.slow

WAIT_S = 20
_numbers = itertools.count()


class Producer(ABC):
    """A transactional producer of one of the clients."""

    @abstractmethod
    def __init__(self, bootstrap: str, transactional_id: str) -> None: ...

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Send a record and wait until it is acknowledged."""

    @abstractmethod
    def send_offsets(self, group: str, offsets: dict[tuple[str, int], int]) -> None: ...

    @abstractmethod
    def end(self, *, commit: bool) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class ConfluentProducer(Producer):
    """confluent-kafka."""

    fenced = confluent_kafka.KafkaException

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._bootstrap = bootstrap
        config = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
        self._producer = confluent_kafka.Producer(config)
        self._producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        errors: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(error)

        self._producer.produce(topic, value, partition=partition, on_delivery=delivered)
        try:
            self._producer.flush(WAIT_S)
        except SystemError as error:  # it raises being fenced, and then still calls `delivered`
            raise error.__cause__ or error from None
        if errors:
            raise confluent_kafka.KafkaException(errors[0])

    def send_offsets(self, group: str, offsets: dict[tuple[str, int], int]) -> None:
        # The client takes a group's metadata from a consumer only.
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": group}
        )
        try:
            listed = [confluent_kafka.TopicPartition(*at, offset) for at, offset in offsets.items()]
            self._producer.send_offsets_to_transaction(
                listed, consumer.consumer_group_metadata(), WAIT_S
            )
        finally:
            consumer.close()

    def end(self, *, commit: bool) -> None:
        if commit:
            self._producer.commit_transaction(WAIT_S)
        else:
            self._producer.abort_transaction(WAIT_S)

    def close(self) -> None:
        del self._producer


class KafkaPythonProducer(Producer):
    """kafka-python."""

    fenced = kafka.errors.KafkaError

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(topic, value, partition=partition).get(WAIT_S)

    def send_offsets(self, group: str, offsets: dict[tuple[str, int], int]) -> None:
        listed = {
            kafka.TopicPartition(*at): kafka.OffsetAndMetadata(offset, "", -1)
            for at, offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(listed, group)

    def end(self, *, commit: bool) -> None:
        if commit:
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()

    def close(self) -> None:
        with contextlib.suppress(kafka.errors.KafkaError):
            self._producer.close(timeout=1)


class AiokafkaProducer(Producer):
    """aiokafka, in an event loop of its own."""

    fenced = AioKafkaError

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._loop = asyncio.new_event_loop()

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=transactional_id
            )
            await producer.start()
            return producer

        self._producer = self._run(start())

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, WAIT_S))

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._run(self._producer.send_and_wait(topic, value, partition=partition))

    def send_offsets(self, group: str, offsets: dict[tuple[str, int], int]) -> None:
        listed = {AioTopicPartition(*at): offset for at, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(listed, group))

    def end(self, *, commit: bool) -> None:
        if commit:
            self._run(self._producer.commit_transaction())
        else:
            self._run(self._producer.abort_transaction())

    def close(self) -> None:
        with contextlib.suppress(AioKafkaError, TimeoutError):
            self._run(self._producer.stop())
        self._loop.close()


PRODUCERS: tuple[type[Any], ...] = (ConfluentProducer, KafkaPythonProducer, AiokafkaProducer)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = {
        "offsets.topic.num.partitions": 2,
        "transaction.state.log.num.partitions": 2,
        "group.initial.rebalance.delay.ms": 0,
    }
    with Broker(tmp_path_factory.mktemp("broker"), config=config) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"transactions-{next(_numbers)}"
    broker.log_dir.create_topic(name, 2)
    return name


@pytest.fixture(params=PRODUCERS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[Any]:
    found: type[Any] = request.param
    return found


def values_of(
    client: Client, broker: Broker, topic: str, count: int, isolation: str
) -> list[bytes]:
    places = [(topic, partition) for partition in range(2)]
    got = client.consume(broker.bootstrap_servers, places, count, isolation=isolation)
    return sorted(record.value or b"" for record in got)


def in_log(broker: Broker, topic: str, isolation: IsolationLevel) -> list[bytes]:
    found: list[bytes] = []
    for log in broker.log_dir.partitions_of(topic):
        found += [record.value or b"" for record in log.read(isolation=isolation)]
    return sorted(found)


def run(producer: Producer, topic: str, values: Sequence[bytes], *, commit: bool) -> None:
    producer.begin()
    for value in values:
        producer.send(topic, value[0] % 2, value)
    producer.end(commit=commit)


def test_consumers_see_what_was_committed(broker: Broker, topic: str, kind: type[Any]) -> None:
    producer = kind(broker.bootstrap_servers, f"id-{topic}")
    run(producer, topic, [b"a1", b"b1"], commit=True)
    run(producer, topic, [b"a2", b"b2"], commit=False)
    run(producer, topic, [b"a3", b"b3"], commit=True)
    run(producer, topic, [], commit=True)
    producer.close()
    committed, all_of_them = (
        [b"a1", b"a3", b"b1", b"b3"],
        [b"a1", b"a2", b"a3", b"b1", b"b2", b"b3"],
    )
    for client in CLIENTS:
        assert values_of(client, broker, topic, 4, "read_committed") == committed, client.name
        assert values_of(client, broker, topic, 6, "read_uncommitted") == all_of_them, client.name
    assert in_log(broker, topic, IsolationLevel.READ_COMMITTED) == committed


def test_an_open_transaction_holds_readers_back(
    broker: Broker, topic: str, kind: type[Any]
) -> None:
    producer = kind(broker.bootstrap_servers, f"id-{topic}")
    producer.begin()
    producer.send(topic, 0, b"open")
    broker.log_dir.append(topic, b"after", partition=0)
    assert in_log(broker, topic, IsolationLevel.READ_COMMITTED) == []
    producer.end(commit=True)
    assert in_log(broker, topic, IsolationLevel.READ_COMMITTED) == [b"after", b"open"]
    producer.close()


def test_a_zombie_is_fenced(broker: Broker, topic: str, kind: type[Any]) -> None:
    zombie = kind(broker.bootstrap_servers, f"id-{topic}")
    zombie.begin()
    zombie.send(topic, 0, b"zombie")
    successor = kind(broker.bootstrap_servers, f"id-{topic}")  # aborts what is open
    run(successor, topic, [b"b successor"], commit=True)

    def go_on() -> None:
        zombie.send(topic, 0, b"late")
        zombie.end(commit=True)

    with pytest.raises(kind.fenced):
        go_on()
    zombie.close()
    successor.close()
    assert in_log(broker, topic, IsolationLevel.READ_COMMITTED) == [b"b successor"]


def test_offsets_are_part_of_the_transaction(broker: Broker, topic: str, kind: type[Any]) -> None:
    group, at = f"group-{topic}", (topic, 1)
    producer = kind(broker.bootstrap_servers, f"id-{topic}")
    for offset, commit, expected in ((5, True, 5), (9, False, 5), (7, True, 7)):
        producer.begin()
        producer.send(topic, 0, b"x")
        producer.send_offsets(group, {at: offset})
        producer.end(commit=commit)
        assert committed_offset(broker, group, at) == expected
    producer.close()


def committed_offset(broker: Broker, group: str, at: tuple[str, int]) -> int:
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group}
    consumer = confluent_kafka.Consumer(config)
    try:
        [found] = consumer.committed([confluent_kafka.TopicPartition(*at)], WAIT_S)
        return int(found.offset)
    finally:
        consumer.close()


def test_a_transaction_that_takes_too_long_is_aborted(broker: Broker, topic: str) -> None:
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": f"id-{topic}",
        "transaction.timeout.ms": 1000,
        "message.timeout.ms": 1000,
    }
    producer = confluent_kafka.Producer(config)
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"slow", partition=0)
    producer.flush(WAIT_S)
    time.sleep(1.1)
    broker.log_dir.coordinator.abort_timed_out()
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(WAIT_S)
    assert in_log(broker, topic, IsolationLevel.READ_COMMITTED) == []

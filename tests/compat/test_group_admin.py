"""Every call about groups of each client's admin API."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from typing import TYPE_CHECKING, Any

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import OffsetAndMetadata as AioOffset
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient

from stratalog.broker.broker import Broker
from tests.compat.processes import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

WAIT_S = 30
SETTINGS = {**SMALL, "group.consumer.heartbeat.interval.ms": 200}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("groups"), config=SETTINGS) as broker:
        yield broker


@pytest.fixture
def name(broker: Broker) -> str:
    """Of a topic with three records in each of two partitions, and of a group."""
    name = f"n{next(_numbers)}"
    broker.log_dir.create_topic(name, 2)
    for number in range(6):
        broker.log_dir.append(name, b"v", partition=number % 2)
    return name


def consumer_of(broker: Broker, name: str, **options: Any) -> confluent_kafka.Consumer:
    """A member that has read everything, and committed it."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": name,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **options,
        }
    )
    consumer.subscribe([name])
    assert len(consumer.consume(6, WAIT_S)) == 6
    consumer.commit(asynchronous=False)
    return consumer


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_confluent(broker: Broker, name: str, protocol: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    consumer = consumer_of(broker, name, **{"group.protocol": protocol})
    listed = admin.list_consumer_groups().result(WAIT_S)
    (group,) = [each for each in listed.valid if each.group_id == name]
    assert (group.state.name, group.type.name) == ("STABLE", protocol.upper())
    assert listed.errors == []

    described = admin.describe_consumer_groups([name], include_authorized_operations=True)
    group = described[name].result(WAIT_S)
    assert (group.group_id, group.state.name) == (name, "STABLE")
    (member,) = group.members
    assert (member.client_id, member.host) == ("reader", "/127.0.0.1")
    places = [(at.topic, at.partition) for at in member.assignment.topic_partitions]
    assert sorted(places) == [(name, 0), (name, 1)]
    assert len(group.authorized_operations) == 5

    asked = confluent_kafka.ConsumerGroupTopicPartitions(name)
    offsets = admin.list_consumer_group_offsets([asked])[name].result(WAIT_S).topic_partitions
    assert sorted((at.partition, at.offset) for at in offsets) == [(0, 3), (1, 3)]
    with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([name])[name].result(WAIT_S)

    consumer.close()
    moved = confluent_kafka.ConsumerGroupTopicPartitions(
        name, [confluent_kafka.TopicPartition(name, 0, 1)]
    )
    admin.alter_consumer_group_offsets([moved])[name].result(WAIT_S)
    offsets = admin.list_consumer_group_offsets([asked])[name].result(WAIT_S).topic_partitions
    assert sorted((at.partition, at.offset) for at in offsets) == [(0, 1), (1, 3)]
    admin.delete_consumer_groups([name])[name].result(WAIT_S)
    with pytest.raises(confluent_kafka.KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([name])[name].result(WAIT_S)


def test_kafka_python(broker: Broker, name: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    consumer = consumer_of(broker, name)
    (group,) = [each for each in admin.list_groups() if each["group_id"] == name]
    assert (group["group_state"], group["group_type"]) == ("Stable", "classic")
    group = admin.describe_groups([name])[name]
    assert (group["group_state"], group["protocol_type"]) == ("Stable", "consumer")
    assert [member["client_id"] for member in group["members"]] == ["reader"]
    offsets = admin.list_group_offsets([name])[name]
    assert {at.partition: found.offset for at, found in offsets.items()} == {0: 3, 1: 3}
    assert admin.delete_groups([name]) == {name: "NonEmptyGroupError"}

    consumer.close()
    place = kafka.TopicPartition(name, 0)
    admin.alter_group_offsets(name, {place: kafka.OffsetAndMetadata(1, "", -1)})
    offsets = admin.list_group_offsets([name])[name]
    assert {at.partition: found.offset for at, found in offsets.items()} == {0: 1, 1: 3}
    admin.delete_group_offsets(name, [place])
    offsets = admin.list_group_offsets([name])[name]
    assert {at.partition: found.offset for at, found in offsets.items()} == {1: 3}
    assert admin.delete_groups([name]) == {name: "OK"}
    admin.close()


def test_aiokafka(broker: Broker, name: str) -> None:
    asyncio.run(_try_aiokafka(broker, name))


async def _try_aiokafka(broker: Broker, name: str) -> None:
    consumer = AIOKafkaConsumer(
        name,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=name,
        client_id="reader",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        for _ in range(6):
            await asyncio.wait_for(consumer.getone(), WAIT_S)
        await consumer.commit()
        assert (name, "consumer") in await admin.list_consumer_groups()
        (answer,) = await admin.describe_consumer_groups([name])
        (described,) = answer.groups
        assert described[1:3] == (name, "Stable")
        offsets = await admin.list_consumer_group_offsets(name)
        assert offsets == {AioTopicPartition(name, number): AioOffset(3, "") for number in range(2)}
        assert await admin.find_coordinator(name) == 1
    finally:
        await consumer.stop()
        await admin.close()


def test_groups_of_a_dead_broker_are_served_without_their_members(
    broker: Broker, name: str, tmp_path: Path
) -> None:
    consumer = consumer_of(broker, name)
    shutil.copytree(
        broker.log_dir.paths[0], tmp_path / "copy", ignore=shutil.ignore_patterns(".lock")
    )
    consumer.close()
    with Broker(tmp_path / "copy", read_only=True, config=SETTINGS) as dead:
        admin = AdminClient({"bootstrap.servers": dead.bootstrap_servers})
        group = admin.describe_consumer_groups([name])[name].result(WAIT_S)
        assert (group.state.name, list(group.members)) == ("EMPTY", [])
        asked = confluent_kafka.ConsumerGroupTopicPartitions(name)
        offsets = admin.list_consumer_group_offsets([asked])[name].result(WAIT_S).topic_partitions
        assert sorted((at.partition, at.offset) for at in offsets) == [(0, 3), (1, 3)]
        moved = confluent_kafka.ConsumerGroupTopicPartitions(
            name, [confluent_kafka.TopicPartition(name, number, 0) for number in range(2)]
        )
        admin.alter_consumer_group_offsets([moved])[name].result(WAIT_S)
        consumer_of(dead, name).close()

"""The admin APIs of real clients: topics, settings, records, log directories, transactions."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import kafka.errors
import pytest
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete

from stratalog.broker.broker import Broker
from tests.compat.processes import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

WAIT_S = 20
confluent: Any = confluent_kafka.admin
"""Its stub does not export all names."""
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker"), config=SMALL) as broker:
        yield broker


@pytest.fixture
def name() -> str:
    return f"admin-{next(_numbers)}"


@pytest.fixture
def topic(broker: Broker, name: str) -> str:
    """With ten records in each of two partitions."""
    broker.log_dir.create_topic(name, 2)
    for number in range(20):
        broker.log_dir.append(name, b"x", partition=number % 2)
    return name


class TestConfluent:
    """confluent-kafka."""

    @pytest.fixture
    def admin(self, broker: Broker) -> Any:
        return confluent.AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    def result_of(self, futures: dict[Any, Any]) -> Any:
        [future] = futures.values()
        return future.result(WAIT_S)

    def code_of(self, futures: dict[Any, Any]) -> int:
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            self.result_of(futures)
        return int(refused.value.args[0].code())

    def test_topics(self, admin: Any, broker: Broker, name: str) -> None:
        new_topic = confluent.NewTopic
        new = new_topic(name, 2, 1, config={"cleanup.policy": "compact"})
        self.result_of(admin.create_topics([new], validate_only=True))
        assert name not in broker.log_dir.topics
        self.result_of(admin.create_topics([new]))
        assert self.code_of(admin.create_topics([new])) == 36
        assert self.code_of(admin.create_topics([new_topic("bad name!", 1, 1)])) == 17
        grown = confluent.NewPartitions
        self.result_of(admin.create_partitions([grown(name, 4)]))
        assert self.code_of(admin.create_partitions([grown(name, 2)])) == 37
        listed = admin.list_topics(name, WAIT_S).topics[name]
        assert sorted(listed.partitions) == [0, 1, 2, 3]
        described = self.result_of(admin.describe_topics(confluent_kafka.TopicCollection([name])))
        assert len(described.partitions) == 4
        self.result_of(admin.delete_topics([name]))
        assert self.code_of(admin.delete_topics([name])) == 3

    def test_settings(self, admin: Any, topic: str) -> None:
        resource = confluent.ConfigResource(confluent.ConfigResource.Type.TOPIC, topic)
        entries = [
            ("retention.ms", "60000", confluent.AlterConfigOpType.SET),
            ("cleanup.policy", "compact", confluent.AlterConfigOpType.APPEND),
        ]
        for setting, value, operation in entries:
            resource.add_incremental_config(
                confluent.ConfigEntry(setting, value, incremental_operation=operation)
            )
        self.result_of(admin.incremental_alter_configs([resource]))
        found = self.result_of(admin.describe_configs([resource]))
        assert found["retention.ms"].value == "60000"
        assert found["cleanup.policy"].value == "compact,delete"
        replaced = confluent.ConfigResource(
            confluent.ConfigResource.Type.TOPIC, topic, set_config={"segment.ms": "5000"}
        )
        with pytest.warns(DeprecationWarning, match="incremental_alter_configs"):
            self.result_of(admin.alter_configs([replaced]))
        found = self.result_of(admin.describe_configs([resource]))
        assert (found["retention.ms"].value, found["segment.ms"].value) == ("604800000", "5000")
        own = confluent.ConfigResource(confluent.ConfigResource.Type.BROKER, "1")
        found = self.result_of(admin.describe_configs([own]))
        assert found["offsets.topic.num.partitions"].value == "2"

    def test_records(self, admin: Any, topic: str, broker: Broker) -> None:
        at = confluent_kafka.TopicPartition(topic, 0, 4)
        assert self.result_of(admin.delete_records([at])).low_watermark == 4
        assert broker.log_dir.partition(topic, 0).log_start_offset == 4
        assert (
            self.code_of(admin.delete_records([confluent_kafka.TopicPartition(topic, 1, 99)])) == 1
        )

    def test_leaders(self, admin: Any, topic: str) -> None:
        wanted = [
            confluent_kafka.TopicPartition(topic, 0),
            confluent_kafka.TopicPartition(topic, 7),
        ]
        elected = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, wanted)
        found = {at.partition: error.code() for at, error in elected.result(WAIT_S).items()}
        assert found == {0: 84, 7: 3}

    def test_cluster(self, admin: Any, broker: Broker) -> None:
        found = admin.describe_cluster().result(WAIT_S)
        assert [str(node.port) for node in found.nodes] == [
            broker.bootstrap_servers.rpartition(":")[2]
        ]


class TestKafkaPython:
    """kafka-python."""

    @pytest.fixture
    def admin(self, broker: Broker) -> Iterator[Any]:
        admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        yield admin
        admin.close()

    def test_topics(self, admin: Any, broker: Broker, name: str) -> None:
        new = [kafka.admin.NewTopic(name, 2, 1)]
        admin.create_topics(new, validate_only=True)
        assert name not in broker.log_dir.topics
        admin.create_topics(new)
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            admin.create_topics(new)
        admin.create_partitions({name: kafka.admin.NewPartitions(4)})
        with pytest.raises(kafka.errors.InvalidPartitionsError):
            admin.create_partitions({name: kafka.admin.NewPartitions(2)})
        [described] = admin.describe_topics([name])
        assert len(described["partitions"]) == 4
        assert name in admin.list_topics()
        admin.delete_topics([name])
        with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
            admin.delete_topics([name])

    def test_settings(self, admin: Any, topic: str, broker: Broker) -> None:
        kind = kafka.admin.ConfigResourceType.TOPIC
        changes = {"retention.ms": "60000"}
        for incremental in (True, False):
            resource = kafka.admin.ConfigResource(kind, topic, configs=changes)
            admin.alter_configs([resource], incremental=incremental)
            assert dict(broker.log_dir.topic(topic).overrides) == changes
            changes = {"segment.ms": "5000"}
        found = str(admin.describe_configs([kafka.admin.ConfigResource(kind, topic)]))
        assert "segment.ms" in found
        assert "5000" in found
        wrong = kafka.admin.ConfigResource(kind, topic, configs={"retention.ms": "abc"})
        assert "Not a number of type LONG" in str(admin.alter_configs([wrong]))
        own = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.BROKER, "1")
        found = str(admin.describe_configs([own], config_filter="all"))
        assert "offsets.topic.num.partitions" in found
        admin.list_config_resources()

    def test_records(self, admin: Any, topic: str, broker: Broker) -> None:
        admin.delete_records({kafka.TopicPartition(topic, 0): 4})
        assert broker.log_dir.partition(topic, 0).log_start_offset == 4
        with pytest.raises(kafka.errors.OffsetOutOfRangeError):
            admin.delete_records({kafka.TopicPartition(topic, 1): 99})

    def test_cluster(self, admin: Any, topic: str, broker: Broker) -> None:
        assert topic in str(admin.describe_log_dirs())
        assert admin.list_partition_reassignments() in ({}, [])
        assert "__cluster_metadata" in str(admin.describe_metadata_quorum())
        assert str(broker.bootstrap_servers.rpartition(":")[2]) in str(admin.describe_cluster())
        admin.describe_features()
        admin.describe_topic_partitions([topic])
        assert topic in str(admin.elect_leaders(0, {topic: [0]}))  # not needed, and no error

    def test_transactions(self, admin: Any, topic: str, broker: Broker) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id=f"id-{topic}"
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).get(WAIT_S)
        assert f"id-{topic}" in str(admin.list_transactions())
        described = str(admin.describe_transactions([f"id-{topic}"]))
        assert "ngoing" in described or "ONGOING" in described
        partition = kafka.TopicPartition(topic, 0)
        assert "10" in str(admin.describe_producers([partition]))  # where the transaction began
        assert admin.find_hanging_transactions() in ([], {})
        producer.commit_transaction()
        producer.close()


class TestAiokafka:
    """aiokafka."""

    def run(self, broker: Broker, work: Any) -> Any:
        async def main() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
            await admin.start()
            try:
                return await asyncio.wait_for(work(admin), WAIT_S)
            finally:
                await admin.close()

        return asyncio.run(main())

    def test_topics(self, broker: Broker, name: str) -> None:
        async def work(admin: AIOKafkaAdminClient) -> None:
            created = await admin.create_topics([AioNewTopic(name, 2, 1)])
            assert [each[1] for each in created.topic_errors] == [0]
            created = await admin.create_topics([AioNewTopic(name, 2, 1)])
            assert [each[1] for each in created.topic_errors] == [36]
            grown = await admin.create_partitions({name: AioNewPartitions(4)})
            assert [each[1] for each in grown.topic_errors] == [0]
            [described] = await admin.describe_topics([name])
            assert len(described["partitions"]) == 4
            assert name in await admin.list_topics()
            deleted = await admin.delete_topics([name])
            assert [each[1] for each in deleted.topic_error_codes] == [0]

        self.run(broker, work)
        assert name not in broker.log_dir.topics

    def test_settings(self, broker: Broker, topic: str) -> None:
        async def work(admin: AIOKafkaAdminClient) -> str:
            kind = AioConfigResourceType.TOPIC
            changed = AioConfigResource(kind, topic, configs={"retention.ms": "60000"})
            await admin.alter_configs([changed])
            own = AioConfigResource(AioConfigResourceType.BROKER, "1")
            await admin.describe_configs([own])
            return str(await admin.describe_configs([AioConfigResource(kind, topic)]))

        assert "60000" in self.run(broker, work)
        assert dict(broker.log_dir.topic(topic).overrides) == {"retention.ms": "60000"}

    def test_records(self, broker: Broker, topic: str) -> None:
        async def work(admin: AIOKafkaAdminClient) -> Any:
            return await admin.delete_records(
                {AioTopicPartition(topic, 0): RecordsToDelete(before_offset=4)}
            )

        assert self.run(broker, work) == {AioTopicPartition(topic, 0): 4}
        assert broker.log_dir.partition(topic, 0).log_start_offset == 4

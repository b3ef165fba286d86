"""What clients were told survives kills of the broker, and answers that never arrived."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import confluent_kafka
import confluent_kafka.admin
import pytest

import stratalog
from stratalog.broker.broker import Broker
from stratalog.log.reader import IsolationLevel
from stratalog.maintenance.verify.directory import verify_directory
from stratalog.maintenance.verify.findings import Finding, Severity
from tests.compat.clients import CLIENTS, Client, Sent
from tests.compat.processes import SMALL, BrokerProcess, CuttingProxy, free_port, wait_until
from tests.effort import scaled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

WAIT_S = 60
THROUGH_KILLS = {
    "log_level": 0,  # it would report each lost connection
    "metadata.recovery.strategy": "none",
    # With "rebootstrap" librdkafka 2.16 forgets its only broker when it is away, but not that it is
    # the coordinator of a group: a request to it then waits in vain, up to its time-out.
}
PARTITIONS = 3


class Load(threading.Thread):
    """Something that a client does again and again until it is told to stop."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__()
        self.broker = broker
        self.done = 0
        self.failure: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error
            raise

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.stopping.set()
        self.join(WAIT_S * 2)
        assert not self.is_alive()
        assert self.failure is None


class IdempotentLoad(Load):
    """Numbers, round robin, with acks=all. Remembers which offset each was acknowledged at."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        super().__init__(broker)
        self.prefix = name
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failed: list[Any] = []

    def work(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                **THROUGH_KILLS,
                "linger.ms": 2,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "message.timeout.ms": WAIT_S * 1000,
            }
        )
        while not self.stopping.is_set():
            value = b"%s-%d" % (self.prefix.encode(), self.done)
            with contextlib.suppress(BufferError):
                producer.produce(
                    "numbers", value, partition=self.done % PARTITIONS, on_delivery=self._delivered
                )
                self.done += 1
            producer.poll(0.001)
        assert producer.flush(WAIT_S) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            at = (message.partition(), message.offset())
            assert at not in self.acknowledged
            self.acknowledged[at] = message.value()


class TransactionLoad(Load):
    """Transactions that write the same number to every partition."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(broker)
        self.committed: set[bytes] = set()
        self._producer: Any = None

    def work(self) -> None:
        while not self.stopping.is_set():
            value = b"%d" % self.done
            self.done += 1
            if self._producer is None:
                self._producer = transactional_producer(self.broker, "pairs")
            try:
                self._producer.begin_transaction()
                for partition in range(PARTITIONS):
                    self._producer.produce("pairs", value, partition=partition)
                commit(self._producer)
            except confluent_kafka.KafkaException as error:
                self._recover(error)
            else:
                self.committed.add(value)

    def _recover(self, error: confluent_kafka.KafkaException) -> None:
        """Abort, or begin again as another producer if that is not possible."""
        if error.args[0].txn_requires_abort():
            with contextlib.suppress(confluent_kafka.KafkaException):
                self._producer.abort_transaction(WAIT_S)
                return
        self._producer = None


def transactional_producer(broker: BrokerProcess, transactional_id: str) -> Any:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": transactional_id,
            **THROUGH_KILLS,
            "retry.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


def commit(producer: Any) -> None:
    """The client wants a commit to be tried again while the broker is away."""
    while True:
        try:
            producer.commit_transaction(WAIT_S)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


def create_topics(broker: BrokerProcess, *names: str) -> None:
    module: Any = confluent_kafka.admin  # its stub does not export all names
    admin = module.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topics = [module.NewTopic(name, PARTITIONS, 1) for name in names]
    for future in admin.create_topics(topics).values():
        future.result(WAIT_S)


def test_what_was_acknowledged_survives_kills(broker: BrokerProcess) -> None:
    create_topics(broker, "numbers", "pairs")
    numbers = [IdempotentLoad(broker, name) for name in ("a", "b")]
    pairs = TransactionLoad(broker)
    loads: list[Load] = [*numbers, pairs]
    for load in loads:
        load.start()
    rng = random.Random(1)
    for _ in range(scaled(5)):
        before = [len(load.acknowledged) for load in numbers], len(pairs.committed)

        def has_gone_on(before: tuple[list[int], int] = before) -> bool:
            more = [len(load.acknowledged) for load in numbers]
            return all(n > o for n, o in zip(more, before[0], strict=True)) and (
                len(pairs.committed) > before[1] or not pairs.is_alive()
            )

        wait_until(has_gone_on)
        time.sleep(rng.uniform(0, 0.2))
        broker.kill()
        broker.start()
    for load in loads:
        load.finish()
    assert not [error for load in numbers for error in load.failed]
    broker.stop()
    check_numbers(broker.path, numbers)
    check_pairs(broker.path, pairs)
    assert problems_in(broker.path) == []


def problems_in(path: Path) -> list[Finding]:
    """What verify finds. Notes say that something is normal after a crash."""
    return [each for each in verify_directory(path).findings if each.severity is not Severity.NOTE]


def check_numbers(path: Path, loads: list[IdempotentLoad]) -> None:
    """Every number once, in order; those that were acknowledged at the offsets that were named."""
    with stratalog.open_dirs(path) as logs:
        for partition in range(PARTITIONS):
            found = {r.offset: r.value for r in logs.partition("numbers", partition).read()}
            for load in loads:
                prefix = load.prefix.encode() + b"-"
                stored = [v for v in found.values() if v is not None and v.startswith(prefix)]
                sent = range(partition, load.done, PARTITIONS)
                assert stored == [prefix + b"%d" % number for number in sent]
                for (at_partition, offset), value in load.acknowledged.items():
                    if at_partition == partition:
                        assert found[offset] == value


def check_pairs(path: Path, load: TransactionLoad) -> None:
    """A transaction is in all partitions once, or in none; one whose commit was acknowledged is in
    all."""
    counts: defaultdict[bytes | None, list[int]] = defaultdict(list)
    with stratalog.open_dirs(path) as logs:
        for partition in range(PARTITIONS):
            log = logs.partition("pairs", partition)
            for record in log.read(isolation=IsolationLevel.READ_COMMITTED):
                counts[record.value].append(partition)
            assert log.last_stable_offset == log.log_end_offset
    assert {tuple(each) for each in counts.values()} == {tuple(range(PARTITIONS))}
    assert load.committed <= set(counts)


def test_what_admins_and_transactions_did_survives_a_kill(broker: BrokerProcess) -> None:
    create_topics(broker, "changed", "deleted", "pairs")
    module: Any = confluent_kafka.admin
    admin = module.AdminClient({"bootstrap.servers": broker.bootstrap_servers, **THROUGH_KILLS})
    resource = module.ConfigResource(module.ConfigResource.Type.TOPIC, "changed")
    entry = module.ConfigEntry(
        "retention.ms", "7000000", incremental_operation=module.AlterConfigOpType.SET
    )
    resource.add_incremental_config(entry)
    producer = transactional_producer(broker, "pairs")
    produce_in_transaction(producer, b"finished")
    commit(producer)
    produce_in_transaction(producer, b"open")
    deleted_up_to = [confluent_kafka.TopicPartition("pairs", 0, 1)]
    for futures in (
        admin.incremental_alter_configs([resource]),
        admin.create_partitions([module.NewPartitions("changed", PARTITIONS + 2)]),
        admin.delete_topics(["deleted"]),
        admin.delete_records(deleted_up_to),
    ):
        for future in futures.values():
            future.result(WAIT_S)
    broker.kill()
    broker.start()
    commit(producer)  # the one that was open
    topics = admin.list_topics(timeout=WAIT_S).topics
    assert "deleted" not in topics
    assert len(topics["changed"].partitions) == PARTITIONS + 2
    [settings] = admin.describe_configs([resource]).values()
    assert settings.result(WAIT_S)["retention.ms"].value == "7000000"
    broker.stop()
    with stratalog.open_dirs(broker.path) as logs:
        found = [
            [
                r.value
                for r in logs.partition("pairs", p).read(isolation=IsolationLevel.READ_COMMITTED)
            ]
            for p in range(PARTITIONS)
        ]
    assert found == [[b"open"], [b"finished", b"open"], [b"finished", b"open"]]


def produce_in_transaction(producer: Any, value: bytes) -> None:
    """Begin a transaction and write to every partition."""
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce("pairs", value, partition=partition)
    assert producer.flush(WAIT_S) == 0


class Transformer(Load):
    """Consumes numbers, and produces their squares with the offsets in one transaction."""

    def work(self) -> None:
        while not self.stopping.is_set():
            producer = transactional_producer(self.broker, "squares")
            consumer = confluent_kafka.Consumer(
                {
                    "bootstrap.servers": self.broker.bootstrap_servers,
                    "group.id": "squares",
                    **THROUGH_KILLS,
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "session.timeout.ms": 6000,
                    "reconnect.backoff.max.ms": 100,
                }
            )
            consumer.subscribe(["numbers"])
            try:
                with contextlib.suppress(confluent_kafka.KafkaException):
                    self._transform(consumer, producer)
            finally:
                consumer.close()

    def _transform(self, consumer: Any, producer: Any) -> None:
        """Until an error: then both begin again where the last transaction ended."""
        while not self.stopping.is_set():
            messages = [m for m in consumer.consume(10, 0.2) if m.error() is None]
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                square = b"%d" % int(message.value()) ** 2
                producer.produce("squares", square, partition=message.partition())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()),
                consumer.consumer_group_metadata(),
                WAIT_S,
            )
            commit(producer)
            self.done += len(messages)


def test_consume_transform_produce_is_exactly_once(broker: BrokerProcess) -> None:
    create_topics(broker, "numbers", "squares")
    count = scaled(1000)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce("numbers", b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    transformer = Transformer(broker)
    transformer.start()
    rng = random.Random(2)
    kills = scaled(4)
    for kill in range(kills):
        done = count * kill // (2 * kills)
        wait_until(lambda done=done: squares_in(broker.path) >= done)
        time.sleep(rng.uniform(0, 0.1))
        broker.kill()
        assert squares_in(broker.path) < count
        broker.start()
    wait_until(lambda: squares_in(broker.path) >= count, WAIT_S * 2)
    transformer.finish()
    broker.stop()
    found: list[bytes | None] = []
    with stratalog.open_dirs(broker.path) as logs:
        for partition in range(PARTITIONS):
            log = logs.partition("squares", partition)
            found += [r.value for r in log.read(isolation=IsolationLevel.READ_COMMITTED)]
    assert sorted(int(value or b"") for value in found) == [n * n for n in range(count)]
    assert problems_in(broker.path) == []


def squares_in(path: Path) -> int:
    """Read beside the broker, as Spark does."""
    with stratalog.open_dirs(path) as logs:
        return sum(
            1
            for partition in range(PARTITIONS)
            for _ in logs.partition("squares", partition).read(
                isolation=IsolationLevel.READ_COMMITTED
            )
        )


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_batch_whose_answer_was_lost_is_stored_once(tmp_path: Path, client: Client) -> None:
    proxy, port = CuttingProxy(cuts={1, 3, 4}), free_port()
    config = {
        **SMALL,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}",
    }
    with Broker(tmp_path, config=config) as broker:
        broker.log_dir.create_topic("numbers", PARTITIONS)
        proxy.serve(port)
        values = [b"%d" % number for number in range(30)]
        for start in range(0, 30, 5):
            batch = [Sent(0, None, value) for value in values[start : start + 5]]
            client.produce(f"127.0.0.1:{proxy.port}", "numbers", batch, idempotent=True)
        log = broker.log_dir.partition("numbers", 0)
        assert [record.value for record in log.read()] == values
        assert proxy.cut == 3
    proxy.close()

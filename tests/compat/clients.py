"""Three real clients behind one small interface, so that each test runs with each of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import confluent_kafka
import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

READ_S = 20


class Sent(NamedTuple):
    """A record to produce."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int | None = None


class Got(NamedTuple):
    """A record that a client consumed."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int


class Client(ABC):
    """What every client can do."""

    name: str
    codecs: tuple[str, ...]

    @abstractmethod
    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], **options: Any
    ) -> list[int]:
        """Produce all of them; returns their offsets."""

    @abstractmethod
    def consume(
        self,
        bootstrap: str,
        partitions: Sequence[tuple[str, int]],
        count: int,
        *,
        isolation: str = "read_uncommitted",
    ) -> list[Got]:
        """The first `count` records of these topics and partitions, from the beginning; more if
        more came with them."""


class Confluent(Client):
    """confluent-kafka, that is librdkafka."""

    name = "confluent"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], **options: Any
    ) -> list[int]:
        config = {
            "bootstrap.servers": bootstrap,
            "compression.type": options.get("codec", "none"),
            "acks": options.get("acks", "all"),
            "enable.idempotence": options.get("idempotent", False),
        }
        producer = confluent_kafka.Producer(config)
        offsets: dict[int, int] = {}
        errors: list[Any] = []

        for number, record in enumerate(records):

            def delivered(error: Any, message: Any, number: int = number) -> None:
                if error is not None:
                    errors.append(error)
                offsets[number] = message.offset()

            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=list(record.headers),
                timestamp=record.timestamp or int(time.time() * 1000),
                on_delivery=delivered,
            )
            producer.poll(0)
        assert producer.flush(READ_S) == 0
        if errors:
            raise AssertionError(str(errors[0]))
        return [offsets[number] for number in range(len(records))]

    def consume(
        self,
        bootstrap: str,
        partitions: Sequence[tuple[str, int]],
        count: int,
        *,
        isolation: str = "read_uncommitted",
    ) -> list[Got]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "check.crcs": True,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(*at, 0) for at in partitions])
        got: list[Got] = []
        deadline = time.monotonic() + READ_S
        try:
            while len(got) < count and time.monotonic() < deadline:
                message: Any = consumer.poll(0.5)
                if message is None:
                    continue
                assert message.error() is None, message.error()
                got.append(
                    Got(
                        message.topic(),
                        message.partition(),
                        message.offset(),
                        message.key(),
                        message.value(),
                        _headers_of(message),
                        message.timestamp()[1],
                    )
                )
        finally:
            consumer.close()
        return got


def _headers_of(message: Any) -> tuple[tuple[str, bytes], ...]:
    return tuple(message.headers() or ())


class KafkaPython(Client):
    """kafka-python."""

    name = "kafka-python"
    codecs = ("none", "gzip", "zstd")  # the others need packages that are not installed

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], **options: Any
    ) -> list[int]:
        codec = options.get("codec", "none")
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=options.get("acks", "all"),
            enable_idempotence=options.get("idempotent", False),
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=record.partition,
                    headers=list(record.headers),
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            producer.flush(READ_S)
            return [future.get(READ_S).offset for future in futures]
        finally:
            producer.close()

    def consume(
        self,
        bootstrap: str,
        partitions: Sequence[tuple[str, int]],
        count: int,
        *,
        isolation: str = "read_uncommitted",
    ) -> list[Got]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level=isolation,
        )
        got: list[Got] = []
        deadline = time.monotonic() + READ_S
        try:
            consumer.assign([kafka.TopicPartition(*at) for at in partitions])
            while len(got) < count and time.monotonic() < deadline:
                for records in consumer.poll(500).values():
                    got += [
                        Got(
                            r.topic,
                            r.partition,
                            r.offset,
                            r.key,
                            r.value,
                            tuple(r.headers),
                            r.timestamp,
                        )
                        for r in records
                    ]
        finally:
            consumer.close()
        return got


class Aiokafka(Client):
    """aiokafka."""

    name = "aiokafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], **options: Any
    ) -> list[int]:
        codec = options.get("codec", "none")

        async def run() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                acks=options.get("acks", "all"),
                enable_idempotence=options.get("idempotent", False),
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        partition=record.partition,
                        headers=list(record.headers),
                        timestamp_ms=record.timestamp,
                    )
                    for record in records
                ]
                sent = await asyncio.wait_for(asyncio.gather(*futures), READ_S)
                return [-1 if one is None else one.offset for one in sent]
            finally:
                await producer.stop()

        return asyncio.run(run())

    def consume(
        self,
        bootstrap: str,
        partitions: Sequence[tuple[str, int]],
        count: int,
        *,
        isolation: str = "read_uncommitted",
    ) -> list[Got]:
        async def run() -> list[Got]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level=isolation,
            )
            await consumer.start()
            got: list[Got] = []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READ_S):
                    consumer.assign([AioTopicPartition(*at) for at in partitions])
                    while len(got) < count:
                        for records in (await consumer.getmany(timeout_ms=500)).values():
                            got += [
                                Got(
                                    r.topic,
                                    r.partition,
                                    r.offset,
                                    r.key,
                                    r.value,
                                    tuple(r.headers),
                                    r.timestamp,
                                )
                                for r in records
                            ]
            await consumer.stop()
            return got

        return asyncio.run(run())


CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), Aiokafka())

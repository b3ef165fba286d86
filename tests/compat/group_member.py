"""One member of a group, as a process of its own that can be killed.

    python -m tests.compat.group_member CLIENT BOOTSTRAP GROUP TOPIC OUTPUT [NAME=VALUE ...]

It writes lines of JSON: before it commits a record, what it tries, after that, what it has read.
If the commit is refused, it reads the record again, unless the partition has gone to another
member. SIGTERM lets it leave the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

_stopping = False


def _stop(*_: object) -> None:
    global _stopping  # noqa: PLW0603  # a signal handler has nothing else
    _stopping = True


class Output:
    """Lines of a file, written at once."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115  # until the end

    def write(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()


def run_confluent(
    bootstrap: str, group: str, topic: str, output: Output, options: dict[str, str]
) -> None:
    import confluent_kafka  # noqa: PLC0415  # each member has one client

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **options,
        }
    )

    def assigned(_: Any, partitions: list[Any]) -> None:
        output.write(assigned=sorted(each.partition for each in partitions))

    def revoked(_: Any, partitions: list[Any]) -> None:
        output.write(revoked=sorted(each.partition for each in partitions))

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    while not _stopping:
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error():
            output.write(error=str(message.error()))
            continue
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        output.write(tries=[partition, offset])
        try:
            consumer.commit(message=message, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            output.write(error=str(error))
            with contextlib.suppress(confluent_kafka.KafkaException):
                consumer.seek(confluent_kafka.TopicPartition(topic, partition, offset))
            continue
        output.write(partition=partition, offset=offset)
    consumer.close()
    output.write(left=True)


def run_kafka_python(
    bootstrap: str, group: str, topic: str, output: Output, options: dict[str, str]
) -> None:
    import kafka  # noqa: PLC0415
    from kafka.coordinator.assignors.cooperative_sticky import (  # noqa: PLC0415
        CooperativeStickyAssignor,
    )
    from kafka.coordinator.assignors.range import RangePartitionAssignor  # noqa: PLC0415

    strategies = {
        "range": RangePartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=options.get("group.instance.id"),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(options.get("session.timeout.ms", 10_000)),
        heartbeat_interval_ms=500,
        partition_assignment_strategy=[
            strategies[options.get("partition.assignment.strategy", "range")]
        ],
    )
    consumer.subscribe([topic])
    while not _stopping:
        for at, messages in consumer.poll(timeout_ms=100, max_records=1).items():
            for message in messages:
                output.write(tries=[message.partition, message.offset])
                try:
                    after = kafka.OffsetAndMetadata(message.offset + 1, "", -1)
                    consumer.commit({at: after})
                except kafka.errors.KafkaError as error:
                    output.write(error=repr(error))
                    if at in consumer.assignment():
                        consumer.seek(at, message.offset)
                    continue
                output.write(partition=message.partition, offset=message.offset)
    consumer.close(autocommit=False)
    output.write(left=True)


def run_aiokafka(
    bootstrap: str, group: str, topic: str, output: Output, options: dict[str, str]
) -> None:
    asyncio.run(_run_aiokafka(bootstrap, group, topic, output, options))


async def _run_aiokafka(
    bootstrap: str, group: str, topic: str, output: Output, options: dict[str, str]
) -> None:
    import aiokafka  # noqa: PLC0415
    from aiokafka.errors import KafkaError  # noqa: PLC0415

    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=options.get("group.instance.id"),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(options.get("session.timeout.ms", 10_000)),
        heartbeat_interval_ms=500,
    )
    await consumer.start()
    while not _stopping:
        for at, messages in (await consumer.getmany(timeout_ms=100, max_records=1)).items():
            for message in messages:
                output.write(tries=[message.partition, message.offset])
                try:
                    await consumer.commit({at: message.offset + 1})
                except KafkaError as error:
                    output.write(error=repr(error))
                    if at in consumer.assignment():
                        consumer.seek(at, message.offset)
                    continue
                output.write(partition=message.partition, offset=message.offset)
    await consumer.stop()
    output.write(left=True)


RUNNERS = {
    "confluent": run_confluent,
    "kafka-python": run_kafka_python,
    "aiokafka": run_aiokafka,
}


def main() -> None:
    client, bootstrap, group, topic, path, *pairs = sys.argv[1:]
    signal.signal(signal.SIGTERM, _stop)
    options = dict(pair.split("=", 1) for pair in pairs)
    RUNNERS[client](bootstrap, group, topic, Output(path), options)


if __name__ == "__main__":
    main()

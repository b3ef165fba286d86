"""Directories that a real Kafka wrote, served without a write to real clients."""

from __future__ import annotations

import shutil
import time
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import confluent_kafka
import pytest

from stratalog.broker.broker import Broker
from stratalog.errors import InconsistentLogDirsError, RequestError
from stratalog.log.reader import IsolationLevel
from stratalog.log_dir import LogDir
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from tests.broker.raw_client import RawClient
from tests.compat.clients import CLIENTS, Client, Got, Sent
from tests.golden.expected import (
    consumed,
    directory_to_read,
    is_consumed,
    loaded,
    log_start_offset,
    undamaged_cases,
    visible,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.format.record import Record
    from tests.golden.cases import GoldenCase

pytestmark = pytest.mark.slow

over_clients = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
over_isolation = pytest.mark.parametrize("isolation", IsolationLevel, ids=lambda level: level.value)


def _topic_of(case: GoldenCase) -> str:
    return directory_to_read(case).name.rpartition("-")[0]


@cache
def _expected(case: GoldenCase, isolation: IsolationLevel) -> tuple[Record, ...]:
    """What a Java consumer read, or where none can, what Kafka found in the files."""
    return consumed(case, isolation) if is_consumed(case) else visible(case)


class Served(NamedTuple):
    """A broker over all golden directories, and how they looked before."""

    broker: Broker
    roots: tuple[Path, ...]
    before: dict[Path, tuple[int, int]]


def _state_of(roots: tuple[Path, ...]) -> dict[Path, tuple[int, int]]:
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns)
        for root in roots
        for path in root.rglob("*")
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two log directories that hold every golden partition between them."""
    roots = (tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second"))
    starts: dict[Path, list[str]] = {root: [] for root in roots}
    for number, case in enumerate(undamaged_cases()):
        root, directory = roots[number % 2], directory_to_read(case)
        shutil.copytree(directory, root / directory.name)
        start = log_start_offset(case)
        if start is not None:
            starts[root].append(f"{_topic_of(case)} 0 {start}")
    for root in roots:
        lines = ["0", str(len(starts[root])), *starts[root]]
        (root / "log-start-offset-checkpoint").write_text("\n".join(lines) + "\n")
    before = _state_of(roots)
    with Broker(*roots, read_only=True) as broker:
        yield Served(broker, roots, before)
    assert _state_of(roots) == before


@over_clients
@over_isolation
def test_every_client_gets_exactly_what_kafka_gave(
    served: Served, client: Client, isolation: IsolationLevel
) -> None:
    cases = [case for case in undamaged_cases() if _is_readable(case, client)]
    assert len(cases) > 20
    expected = sorted(
        Got(_topic_of(case), 0, r.offset, r.key, r.value, _headers_of(r), r.timestamp)
        for case in cases
        for r in _expected(case, isolation)
    )
    got = client.consume(
        served.broker.bootstrap_servers,
        [(_topic_of(case), 0) for case in cases],
        len(expected),
        isolation=isolation.value,
    )
    assert sorted(map(_comparable, got)) == sorted(map(_comparable, expected))


def _is_readable(case: GoldenCase, client: Client) -> bool:
    stored = {(facts.codec.lower(), facts.magic) for facts in loaded(case)}
    if client.name == "aiokafka" and ("lz4", 0) in stored:
        return False  # it knows no lz4 in messages that old
    return {codec for codec, _ in stored} <= set(client.codecs)


def _headers_of(record: Record) -> tuple[tuple[str, bytes], ...]:
    return tuple((header.key, header.value) for header in record.headers)  # type: ignore[misc]


def _comparable(record: Got) -> tuple[object, ...]:
    """Null and empty keys differ, and can be sorted. For messages without a timestamp librdkafka
    says 0, kafka-python None, and Kafka -1."""
    return tuple(map(repr, record[:-1])), max(record.timestamp or 0, 0)


def test_writes_are_refused_and_commits_kept_in_memory(served: Served) -> None:
    bootstrap = served.broker.bootstrap_servers
    with pytest.raises(RequestError, match="read-only"):
        _ = served.broker.log_dir
    with pytest.raises(AssertionError, match="POLICY_VIOLATION"):
        CLIENTS[0].produce(bootstrap, "multiseg", [Sent(0, None, b"no")])
    config = {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(config)
    committed = [confluent_kafka.TopicPartition("multiseg", 0, 17)]
    consumer.commit(offsets=committed, asynchronous=False)
    (found,) = consumer.committed([confluent_kafka.TopicPartition("multiseg", 0)], timeout=10)
    assert found.offset == 17
    consumer.close()


@over_clients
def test_a_directory_that_grows_is_followed(tmp_path: Path, client: Client) -> None:
    with LogDir.open(tmp_path) as writer:
        writer.create_topic("live")
        writer.append("live", b"0")
        with Broker(tmp_path, read_only=True) as broker:
            first = client.consume(broker.bootstrap_servers, [("live", 0)], 1)
            for number in range(1, 50):
                writer.append("live", b"%d" % number)
            writer.partition("live", 0).roll()
            writer.append("live", b"50")
            writer.create_topic("later")
            writer.append("later", b"new")
            time.sleep(0.5)
            wanted = [("live", 0), ("later", 0)]
            got = client.consume(broker.bootstrap_servers, wanted, 52)
    assert [record.value for record in first] == [b"0"]
    assert [r.value for r in got if r.topic == "live"] == [b"%d" % n for n in range(51)]
    assert [r.value for r in got if r.topic == "later"] == [b"new"]


def test_a_long_poll_sees_what_another_process_writes(tmp_path: Path) -> None:
    with LogDir.open(tmp_path) as writer:
        writer.create_topic("live")
        with Broker(tmp_path, read_only=True) as broker:
            config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"}
            consumer = confluent_kafka.Consumer(config)
            consumer.assign([confluent_kafka.TopicPartition("live", 0, 0)])
            assert consumer.poll(0.5) is None
            writer.append("live", b"seen")
            message = consumer.poll(10)
            assert message is not None
            assert message.value() == b"seen"
            consumer.close()


def test_directories_that_hold_the_same_partition_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with LogDir.open(tmp_path / name) as logs:
            logs.append("t", b"v")
    with pytest.raises(InconsistentLogDirsError, match="in two places"):
        Broker(tmp_path / "a", tmp_path / "b", read_only=True).start()


def test_a_partition_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    with LogDir.open(tmp_path) as logs:
        logs.create_topic("t", 2)
        logs.append("t", b"v", partition=1)
    for path in (tmp_path / "t-0").glob("*.log"):
        path.unlink()
    with Broker(tmp_path, read_only=True) as broker:
        got = CLIENTS[0].consume(broker.bootstrap_servers, [("t", 1)], 1)
        assert [record.value for record in got] == [b"v"]
        with RawClient(broker.bootstrap_servers) as client:
            partition = {"partitionIndex": 0, "timestamp": -1}
            body = {"topics": [{"name": "t", "partitions": [partition]}]}
            (topic,) = client.call(ApiKey.LIST_OFFSETS, 7, body)["topics"]
            assert topic["partitions"][0]["errorCode"] == ErrorCode.KAFKA_STORAGE_ERROR

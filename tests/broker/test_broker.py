"""`Broker`: its defaults and arguments, from its start to its end."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.broker.broker import Broker
from stratalog.config import BrokerConfig
from stratalog.errors import (
    BrokerStartError,
    CorruptCheckpointError,
    InvalidArgumentError,
    StorageError,
)
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from pathlib import Path

FORGETS = """
import sys
from stratalog import Broker

broker = Broker(sys.argv[1])
broker.start()
broker.log_dir.append("t", b"v")
"""

FORKS = """
import os, signal, socket, sys
from stratalog import Broker

broker = Broker(sys.argv[1])
broker.start()
host, port = broker.bootstrap_servers.split(":")
client = socket.create_connection((host, port))
while not broker.connection_count:
    pass
child = os.fork()
if child == 0:
    signal.alarm(30)  # it ends also if the test fails
    signal.pause()
broker.close()
client.settimeout(10)
print(client.recv(1))
with Broker(sys.argv[1], port=int(port)):
    print("again")
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""


def test_the_first_member_of_a_group_does_not_wait_unless_that_is_set(tmp_path: Path) -> None:
    def delay_ms(config: BrokerConfig | dict[str, object] | Path | None) -> int:
        with Broker(tmp_path / "data", config=config) as broker:
            return broker.log_dir.config.group_initial_rebalance_delay_ms

    assert delay_ms(None) == 0
    assert delay_ms({"num.partitions": 3}) == 0
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\n")
    assert delay_ms(file) == 0
    file.write_text("group.initial.rebalance.delay.ms=200\n")
    assert delay_ms(file) == 200
    assert delay_ms({"group.initial.rebalance.delay.ms": 100}) == 100
    assert delay_ms(BrokerConfig()) == 3000


@pytest.mark.parametrize("address", [{"host": "127.0.0.1"}, {"port": 0}])
def test_listeners_are_given_in_one_way(tmp_path: Path, address: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="either listeners, or host and port"):
        Broker(tmp_path, listeners="PLAINTEXT://127.0.0.1:0", **address)


def test_directories_come_from_the_config_or_are_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="give a log directory"):
        Broker()
    config = {"log.dirs": str(tmp_path / "data")}
    with Broker(config=config) as broker:
        broker.log_dir.create_topic("t")
    with (
        Broker(config=config, read_only=True) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        (topic,) = client.call(ApiKey.METADATA, 12, {"topics": None})["topics"]
        assert topic["name"] == "t"
    with pytest.raises(StorageError, match="No such file or directory"):
        Broker(tmp_path / "none", read_only=True).start()


def test_a_broker_says_whether_it_is_started(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    for ask in (lambda: broker.bootstrap_servers, lambda: broker.log_dir):
        with pytest.raises(BrokerStartError, match="is not started"):
            ask()
    with broker, pytest.raises(BrokerStartError, match="running already"):
        broker.start()


def test_a_broker_that_fails_to_start_leaves_the_directory_free(tmp_path: Path) -> None:
    bad = tmp_path / "stratalog-security.json"
    bad.write_text("{")
    broker = Broker(tmp_path)
    with pytest.raises(CorruptCheckpointError) as caught:
        broker.start()
    assert caught.value.path == bad
    bad.unlink()
    broker.start()
    broker.close()


def test_a_topic_that_the_program_deletes_is_deleted_for_clients_and_groups(tmp_path: Path) -> None:
    config = {"offsets.topic.num.partitions": 1}
    with Broker(tmp_path, config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        broker.log_dir.create_topic("orders", 1)
        client.call(ApiKey.FIND_COORDINATOR, 4, {"coordinatorKeys": ["group"]})
        partition = {"partitionIndex": 0, "committedOffset": 3, "committedMetadata": ""}
        body = {"groupId": "group", "topics": [{"name": "orders", "partitions": [partition]}]}
        client.call(ApiKey.OFFSET_COMMIT, 9, body)
        fetched = {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1000}
        topics = [{"topic": "orders", "partitions": [fetched]}]
        fetch = {"maxWaitMs": 8_000, "minBytes": 1, "isolationLevel": 0, "topics": topics}
        long_poll = client.send(ApiKey.FETCH, 11, fetch)
        time.sleep(0.05)
        started_s = time.monotonic()
        broker.log_dir.delete_topic("orders")
        (topic,) = client.answer(ApiKey.FETCH, 11, long_poll)["responses"]
        assert topic["partitions"][0]["errorCode"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert time.monotonic() - started_s < 5
        broker.log_dir.create_topic("orders", 1)
        groups = [{"groupId": "group", "topics": None}]
        (group,) = client.call(ApiKey.OFFSET_FETCH, 8, {"groups": groups})["groups"]
        assert group["topics"] == []


def test_why_groups_are_not_possible_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients ask again and again."""
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        for _ in range(3):
            answer = client.call(ApiKey.FIND_COORDINATOR, 4, {"coordinatorKeys": ["group"]})
            (found,) = answer["coordinators"]
            assert found["errorCode"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    (line,) = caplog.records
    assert "__consumer_offsets cannot be created" in line.getMessage()


@pytest.mark.slow
def test_a_forked_child_keeps_neither_clients_nor_the_port(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("b''\nagain\n", "")


@pytest.mark.slow
def test_a_program_that_forgets_its_broker_shuts_down_cleanly(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORGETS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / ".kafka_cleanshutdown").exists()

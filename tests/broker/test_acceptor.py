"""Listeners and limits: no client keeps the others from being served."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.broker.broker import Broker
from stratalog.errors import BrokerStartError, ConfigError
from stratalog.wire.apis import ApiKey
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _is_served(client: RawClient) -> bool:
    return "brokers" in client.call(ApiKey.METADATA, 12, {"topics": []})


def _wait_until(is_true: Callable[[], bool], timeout_s: float = 5) -> None:
    end = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_each_listener_advertises_itself(tmp_path: Path) -> None:
    config = {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0,SIX://[::1]:0",
        "advertised.listeners": "OUTSIDE://kafka.example.org:19092",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,SIX:PLAINTEXT",
    }
    with Broker(tmp_path, config=config) as broker:
        assert broker.bootstrap_servers == broker.address_of("INSIDE")
        assert broker.address_of("OUTSIDE") == "kafka.example.org:19092"
        outside = broker._sockets[1].socket.getsockname()[1]
        for address, expected in (
            (broker.address_of("INSIDE"), broker.address_of("INSIDE")),
            (f"127.0.0.1:{outside}", "kafka.example.org:19092"),
        ):
            with RawClient(address) as client:
                (node,) = client.call(ApiKey.METADATA, 12, {"topics": []})["brokers"]
                assert f"{node['host']}:{node['port']}" == expected
        assert broker.address_of("SIX").startswith("[::1]:")


def test_all_interfaces_advertise_the_address_that_the_client_used(tmp_path: Path) -> None:
    with Broker(tmp_path, host="0.0.0.0", allow_anonymous=True) as broker:
        port = broker.bootstrap_servers.split(":")[1]
        with RawClient(f"127.0.0.2:{port}") as client:
            (node,) = client.call(ApiKey.METADATA, 12, {"topics": []})["brokers"]
            assert (node["host"], node["port"]) == ("127.0.0.2", int(port))


def test_other_machines_need_a_flag_or_authentication(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--allow-anonymous"):
        Broker(tmp_path / "a", host="0.0.0.0").start()
    with pytest.raises(ConfigError, match="--allow-anonymous"):
        Broker(tmp_path / "a", config={"listeners": "PLAINTEXT://:0"}).start()
    assert not (tmp_path / "a").exists()
    with Broker(tmp_path, listeners="SASL_PLAINTEXT://0.0.0.0:0", users={"a": "b"}):
        pass


def test_a_port_that_is_taken_releases_the_others(tmp_path: Path) -> None:
    with Broker(tmp_path / "a") as broker, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        listeners = f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://{broker.bootstrap_servers}"
        with pytest.raises(BrokerStartError, match="cannot listen on"):
            Broker(tmp_path / "b", listeners=listeners).start()
        with Broker(tmp_path / "b", port=port):
            pass


def test_connections_above_the_limit_wait_until_one_is_closed(tmp_path: Path) -> None:
    with Broker(tmp_path, config={"max.connections": 2}) as broker, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.bootstrap_servers)) for _ in range(3)]
        assert _is_served(clients[0])
        assert _is_served(clients[1])
        clients[2].send(ApiKey.METADATA, 12, {"topics": []})
        clients[2].socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            clients[2].socket.recv(1)
        clients[0].socket.close()
        clients[2].socket.settimeout(5)
        assert clients[2].receive_frame()


def test_connections_of_one_address_are_limited(tmp_path: Path) -> None:
    with Broker(tmp_path, config={"max.connections.per.ip": 1}) as broker:
        with RawClient(broker.bootstrap_servers) as first:
            assert _is_served(first)
            with RawClient(broker.bootstrap_servers) as second:
                assert second.receive_frame() == b""
            assert _is_served(first)
        _wait_until(lambda: len(broker._connections) == 0)
        with RawClient(broker.bootstrap_servers) as third:
            assert _is_served(third)


def test_idle_clients_are_disconnected_and_busy_ones_are_not(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, config={"connections.max.idle.ms": 200}) as broker,
        RawClient(broker.bootstrap_servers) as idle,
        RawClient(broker.bootstrap_servers) as busy,
    ):
        for _ in range(8):
            assert _is_served(busy)
            time.sleep(0.05)
        assert idle.receive_frame() == b""
        assert _is_served(busy)


def test_a_half_sent_request_counts_as_idle(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, config={"connections.max.idle.ms": 150}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        client.socket.sendall(struct.pack(">i", 1000) + b"\0\3\0")
        assert client.receive_frame() == b""


@pytest.mark.slow
def test_an_answer_that_is_not_read_counts_as_idle(tmp_path: Path) -> None:
    with Broker(tmp_path, config={"connections.max.idle.ms": 1000}) as broker:
        broker.log_dir.create_topic("t")
        for _ in range(20):
            broker.log_dir.append("t", bytes(900_000))
        with RawClient(broker.bootstrap_servers) as client:
            client.send(ApiKey.FETCH, 12, _fetch(wait_ms=0, bytes_max=18 << 20))
            assert len(client.socket.recv(4)) == 4
            _wait_until(lambda: len(broker._connections) == 0, timeout_s=20)


@pytest.mark.slow
def test_a_client_is_not_idle_while_it_waits_for_its_answer(tmp_path: Path) -> None:
    with Broker(tmp_path, config={"connections.max.idle.ms": 1000}) as broker:
        broker.log_dir.create_topic("t")
        with RawClient(broker.bootstrap_servers) as client:
            assert client.call(ApiKey.FETCH, 12, _fetch(wait_ms=1500))["errorCode"] == 0
            time.sleep(0.4)  # the next look at idle clients is past
            assert _is_served(client)


def _fetch(*, wait_ms: int, bytes_max: int = 1 << 20) -> dict[str, Any]:
    partition = {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": bytes_max}
    topics = [{"topic": "t", "partitions": [partition]}]
    return {"maxWaitMs": wait_ms, "minBytes": 1, "maxBytes": bytes_max, "topics": topics}


def test_memory_of_half_sent_requests_is_limited(tmp_path: Path) -> None:
    first, rest = struct.pack(">i", 50 << 20) + bytes(60_000), bytes(1 << 20)
    config = {"queued.max.request.bytes": 8 << 20}
    with Broker(tmp_path, config=config) as broker, ExitStack() as stack:
        connections, sent_bytes = broker._connections, 0
        clients = [stack.enter_context(RawClient(broker.bootstrap_servers)) for _ in range(8)]
        for client in clients:
            for part in (first, rest):
                client.socket.sendall(part)
                sent_bytes += len(part)
                _wait_until(lambda: connections.traffic.received_bytes == sent_bytes)  # noqa: B023
        _wait_until(lambda: connections._held_bytes <= 8 << 20)
        assert 1 < len(connections) < 8
        assert clients[0].receive_frame() == b""  # the first to begin
        with RawClient(broker.bootstrap_servers) as other:
            assert _is_served(other)


def test_a_request_that_is_alone_may_exceed_the_limit(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, config={"queued.max.request.bytes": 1000}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        name = "t" * 200
        topics = [{"name": f"{name}{number}"} for number in range(300)]
        answer = client.call(
            ApiKey.METADATA, 8, {"topics": topics, "allowAutoTopicCreation": False}
        )
        assert len(answer["topics"]) == 300


def test_the_largest_request_is_a_setting(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, config={"socket.request.max.bytes": 100}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        assert _is_served(client)
        client.socket.sendall(struct.pack(">i", 101) + bytes(101))
        assert client.receive_frame() == b""

from __future__ import annotations

import json
import logging
import re
import socket
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.broker.broker import Broker
from stratalog.broker.logging_format import JsonLines, TextLines
from stratalog.errors import BrokerStartError, InvalidArgumentError
from stratalog.format.names import TopicPartition
from stratalog.wire.apis import ApiKey
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LINE = re.compile(r"(?P<name>[a-z_]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>[0-9.e+-]+)")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", metrics_port=0) as broker:
        yield broker


def _get(broker: Broker, path: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(f"http://{broker.metrics_address}{path}", timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def _samples(text: str) -> dict[tuple[str, str], float]:
    """As Prometheus reads them: every line is a comment or a sample."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP [a-z_]+ .+|TYPE [a-z_]+ (counter|gauge|histogram))", line)
            continue
        match = _LINE.fullmatch(line)
        assert match is not None, line
        key = (match["name"], match["labels"] or "")
        assert key not in found
        found[key] = float(match["value"])
    return found


def test_metrics_count_what_happens(broker: Broker) -> None:
    broker.log_dir.create_topic("orders", 3)
    with RawClient(broker.bootstrap_servers) as client:
        for _ in range(5):
            client.call(ApiKey.METADATA, 12, {"topics": None})
        status, content_type, text = _get(broker, "/metrics")
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    samples = _samples(text)
    duration = "stratalog_request_duration_seconds"
    assert samples[f"{duration}_count", 'api="Metadata"'] == 5
    assert samples[f"{duration}_bucket", 'api="Metadata",le="+Inf"'] == 5
    buckets = [
        n for (name, labels), n in samples.items() if "Metadata" in labels and "le=" in labels
    ]
    assert buckets == sorted(buckets)
    assert 0 < samples[f"{duration}_sum", 'api="Metadata"'] < 5
    assert samples["stratalog_connections", 'listener="PLAINTEXT"'] == 1
    assert samples["stratalog_connections_accepted_total", 'listener="PLAINTEXT"'] == 1
    assert samples["stratalog_topics", ""] == 1
    assert samples["stratalog_partitions", ""] == 3
    assert samples["stratalog_received_bytes_total", ""] > 100
    assert samples["stratalog_sent_bytes_total", ""] > 500
    assert samples["process_resident_memory_bytes", ""] > 1 << 20
    assert samples["process_open_fds", ""] > 5


def test_connections_that_the_broker_closes_are_counted(broker: Broker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        client.socket.sendall(b"\xff\xff\xff\xff")
        assert client.receive_frame() == b""
    samples = _samples(_get(broker, "/metrics")[2])
    assert samples["stratalog_connections_closed_total", 'reason="closed by the broker"'] == 1
    assert samples["stratalog_connections", 'listener="PLAINTEXT"'] == 0


def test_health_fails_with_background_work_until_it_succeeds(broker: Broker) -> None:
    status, content_type, text = _get(broker, "/health")
    assert (status, content_type) == (200, "application/json")
    assert json.loads(text)["status"] == "ok"
    health = broker.log_dir._health
    subject = TopicPartition("orders", 0)
    health.record("retention", subject, OSError("disk is full"))
    status, _, text = _get(broker, "/health")
    content: dict[str, Any] = json.loads(text)
    assert (status, content["status"]) == (503, "failing")
    assert content["failures"][0]["subject"] == "orders-0"
    assert content["failures"][0]["message"] == "disk is full"
    assert _samples(_get(broker, "/metrics")[2])["stratalog_failing_tasks", ""] == 1
    health.record_success("retention", subject)
    assert _get(broker, "/health")[0] == 200


def test_other_pages_and_methods(broker: Broker) -> None:
    assert _get(broker, "/")[0] == 404
    assert _get(broker, "/health?x=1")[0] == 200
    host, port = broker.metrics_address.split(":")
    for request, answer in (
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 "),
        (b"HEAD /health HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"\r\n\r\n", b"HTTP/1.1 405 "),
        (b"GET /" + b"x" * 10_000, b""),
    ):
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(request)
            received = b""
            try:
                while data := client.recv(1000):
                    received += data
            except ConnectionResetError:
                pass
            assert received.startswith(answer), request
            assert bool(received) == bool(answer)


def test_the_pages_are_off_by_default(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, pytest.raises(InvalidArgumentError, match="metrics_port"):
        _ = broker.metrics_address


def test_a_port_of_the_pages_that_is_taken(broker: Broker, tmp_path: Path) -> None:
    port = int(broker.metrics_address.split(":")[1])
    with pytest.raises(BrokerStartError, match="cannot serve metrics on 127"):
        Broker(tmp_path / "other", metrics_port=port).start()
    assert not (tmp_path / "other").exists()


# -- logs


def _record(message: str, *args: object, **fields: object) -> logging.LogRecord:
    record = logging.LogRecord(
        "stratalog.broker.x", logging.WARNING, "/src/listening.py", 1, message, args, None
    )
    record.created, record.msecs = 1_700_000_000.25, 250.0
    vars(record).update(fields)
    return record


def test_lines_of_json_have_all_fields() -> None:
    record = _record("closing %s", "é", client="10.0.0.7", port=9092)
    assert json.loads(JsonLines().format(record)) == {
        "timestamp": "2023-11-14T22:13:20.250Z",
        "level": "WARNING",
        "logger": "stratalog.broker.x",
        "message": "closing é",
        "client": "10.0.0.7",
        "port": 9092,
    }


def test_a_traceback_stays_on_its_line_in_json() -> None:
    record = _record("failed")
    try:
        raise ValueError("line 1\nline 2")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    line = JsonLines().format(record)
    assert "\n" not in line
    assert "line 1\nline 2" in json.loads(line)["exception"]


def test_lines_of_text() -> None:
    line = TextLines().format(_record("closing %s", "x", client="10.0.0.7"))
    assert line == "2023-11-14T22:13:20.250Z WARNING listening closing x"

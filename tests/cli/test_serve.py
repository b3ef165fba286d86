"""`stratalog serve`: a broker in a process of its own, from its start to its end."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from stratalog.log_dir import LogDir
from stratalog.wire.apis import ApiKey
from tests.broker.raw_client import RawClient
from tests.cli.command import COMMAND, stratalog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@contextmanager
def serving(*args: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process and where clients connect."""
    command = [*COMMAND, "serve", *map(str, args), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            row = json.loads(process.stdout.readline())
            assert row["kind"] == "broker"
            yield process, row["bootstrapServers"]
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_serves_until_a_signal_and_shuts_down_cleanly(tmp_path: Path, number: int) -> None:
    with serving(tmp_path / "data") as (process, bootstrap):
        with RawClient(bootstrap) as client:
            body = {"topics": [{"name": "orders"}], "allowAutoTopicCreation": True}
            (topic,) = client.call(ApiKey.METADATA, 12, body)["topics"]
            assert (topic["errorCode"], len(topic["partitions"])) == (0, 1)
            client.send(ApiKey.FETCH, 11, _long_poll())
            time.sleep(0.1)
            process.send_signal(number)
            assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.slow
def test_nohup_keeps_it_running(tmp_path: Path) -> None:
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which the command inherits
    try:
        with serving(tmp_path / "data") as (process, bootstrap):
            process.send_signal(signal.SIGHUP)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            with RawClient(bootstrap) as client:
                assert client.call(ApiKey.METADATA, 12, {"topics": None})["brokers"]
    finally:
        signal.signal(signal.SIGHUP, handler)


def _long_poll() -> dict[str, object]:
    partition = {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1000}
    topics = [{"topic": "orders", "partitions": [partition]}]
    return {"maxWaitMs": 100_000, "minBytes": 1, "isolationLevel": 0, "topics": topics}


def test_clients_that_hang_up_do_no_harm(tmp_path: Path) -> None:
    with LogDir.open(tmp_path) as logs:
        logs.append("orders", bytes(900_000))
    with serving(tmp_path) as (process, bootstrap):
        for _ in range(30):
            with RawClient(bootstrap) as client:
                for _ in range(5):
                    client.send(ApiKey.FETCH, 11, _long_poll())
                client.socket.shutdown(socket.SHUT_WR)  # the next reset raises SIGPIPE
                time.sleep(0.01)
        assert process.poll() is None
        with RawClient(bootstrap) as client:
            assert client.call(ApiKey.METADATA, 1, {"topics": []})["topics"] == []


def test_it_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        with serving(tmp_path) as (process, _):
            limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert limits == (hard, hard)


def test_what_does_not_start_is_one_line(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (_, bootstrap):
        port = bootstrap.rpartition(":")[2]
        taken = stratalog("serve", tmp_path / "other", "--port", port)
        assert (taken.status, taken.stderr.count("\n")) == (1, 1)
        assert f"cannot listen on 127.0.0.1:{port}" in taken.stderr
        locked = stratalog("serve", tmp_path / "data", "--port", "0")
        assert (locked.status, locked.stderr.count("\n")) == (1, 1)
        assert "locked by" in locked.stderr
    wrong = stratalog("serve", tmp_path / "data", "-c", "no.such.setting=1")
    assert (wrong.status, wrong.stderr.count("\n")) == (2, 1)
    unread = stratalog("serve", tmp_path / "data", "--acls", tmp_path / "none")
    assert unread.stderr.endswith(f"{tmp_path}/none: cannot be read: No such file or directory\n")
    both = stratalog("serve", tmp_path / "data", "--port", "0", "--listeners", "PLAINTEXT://:0")
    assert both.status == 2
    assert "--listeners cannot be combined with --host and --port" in both.stderr
    exposed = stratalog("serve", tmp_path / "data", "--host", "0.0.0.0", "--port", "0")
    assert exposed.status == 2
    assert "--allow-anonymous" in exposed.stderr


def test_read_only_needs_no_lock(tmp_path: Path) -> None:
    with LogDir.open(tmp_path) as logs:
        logs.append("t", b"v")
        with serving(tmp_path, "--read-only") as (_, bootstrap), RawClient(bootstrap) as client:
            topics = client.call(ApiKey.METADATA, 12, {"topics": None})["topics"]
            assert [topic["name"] for topic in topics] == ["t"]


def test_users_rights_metrics_and_logs(tmp_path: Path) -> None:
    users, acls = tmp_path / "users.properties", tmp_path / "acls.txt"
    users.write_text("alice=secret\n")
    acls.write_text("allow User:alice Describe on topic orders\n")
    with LogDir.open(tmp_path / "data") as logs:
        for name in ("orders", "other"):
            logs.create_topic(name)
    command: list[str | Path] = [*COMMAND, "serve", tmp_path / "data"]
    command += ["--listeners", "SASL_PLAINTEXT://127.0.0.1:0"]
    command += ["--users", users, "--acls", acls, "--metrics-port", "0"]
    command += ["--log-format", "json", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            row = json.loads(process.stdout.readline())
            assert _log_in(row["bootstrapServers"], b"\0alice\0wrong") is None
            assert _log_in(row["bootstrapServers"], b"\0alice\0secret") == ["orders"]
            page = f"http://{row['metricsAddress']}/metrics"
            with urllib.request.urlopen(page, timeout=10) as answer:
                assert b"stratalog_authentication_failures_total 1\n" in answer.read()
            process.terminate()
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    (line,) = errors.decode().splitlines()
    event = json.loads(line)
    assert (event["level"], event["client"], event["mechanism"]) == (
        "WARNING",
        "127.0.0.1",
        "PLAIN",
    )


def test_what_is_logged_is_printed_once_and_in_one_format(tmp_path: Path) -> None:
    with LogDir.open(tmp_path) as logs:
        logs.append("t", b"whole")
        logs.append("t", b"torn")
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (log,) = (tmp_path / "t-0").glob("*.log")
    log.write_bytes(log.read_bytes()[:-3])
    properties = tmp_path / "server.properties"
    properties.write_text("com.example.plugin=x\nnum.partition=3\n")
    command = [
        *COMMAND, "serve", str(tmp_path), "--port", "0", "--log-format", "json",
        "--server-properties", str(properties),
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            ignored, truncated, started = (json.loads(process.stderr.readline()) for _ in range(3))
            process.terminate()
            assert process.stderr.read() == b""
        finally:
            process.kill()
    assert (ignored["level"], ignored["message"]) == (
        "WARNING",
        f"{properties}: ignored settings that a Kafka broker does not have: com.example.plugin, "
        "num.partition (did you mean 'num.partitions'?)",
    )
    assert (truncated["level"], "truncated at byte" in truncated["message"]) == ("WARNING", True)
    assert (started["level"], started["directories"]) == ("INFO", [str(tmp_path)])
    assert started["bootstrapServers"].startswith("127.0.0.1:")


def _log_in(bootstrap_servers: str, token: bytes) -> list[str] | None:
    """The topics that a user sees; None if the log-in fails."""
    with RawClient(bootstrap_servers) as client:
        client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        if client.call(ApiKey.SASL_AUTHENTICATE, 2, {"authBytes": token})["errorCode"]:
            return None
        topics = client.call(ApiKey.METADATA, 12, {"topics": None})["topics"]
        return [topic["name"] for topic in topics]

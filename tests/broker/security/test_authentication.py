"""Log-ins on a real connection, request by request."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import pytest

from stratalog.broker.broker import Broker
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALICE = b"\0alice\0secret"
SASL = "SASL_PLAINTEXT://127.0.0.1:0"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    config = {"connection.failed.authentication.delay.ms": 150}
    with Broker(tmp_path, listeners=SASL, users={"alice": "secret"}, config=config) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def _log_in(client: RawClient, token: bytes = ALICE) -> dict[str, object]:
    answer = client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    assert answer["errorCode"] == 0
    return client.call(ApiKey.SASL_AUTHENTICATE, 2, {"authBytes": token})


def test_nothing_is_served_before_the_log_in(client: RawClient) -> None:
    assert client.call(ApiKey.API_VERSIONS, 3, _SOFTWARE)["errorCode"] == 0
    client.send(ApiKey.METADATA, 12, {"topics": None})
    assert client.receive_frame() == b""


_SOFTWARE = {"clientSoftwareName": "raw", "clientSoftwareVersion": "1"}


def test_a_log_in_by_plain(client: RawClient) -> None:
    answer = _log_in(client)
    assert answer == {
        "errorCode": 0,
        "errorMessage": "",
        "authBytes": b"",
        "sessionLifetimeMs": 0,
    }
    assert client.call(ApiKey.METADATA, 12, {"topics": None})["topics"] == []


def test_a_wrong_password_is_answered_late_and_then_the_connection_is_closed(
    client: RawClient,
) -> None:
    began = time.monotonic()
    answer = _log_in(client, b"\0alice\0wrong")
    assert time.monotonic() - began >= 0.15
    assert answer["errorCode"] == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer["errorMessage"] == "Authentication failed: Invalid username or password"
    assert client.receive_frame() == b""


def test_requests_behind_a_failed_log_in_are_not_served(client: RawClient) -> None:
    client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    first = client.send(ApiKey.SASL_AUTHENTICATE, 2, {"authBytes": b"\0alice\0wrong"})
    client.send(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    answer = client.answer(ApiKey.SASL_AUTHENTICATE, 2, first)
    assert answer["errorCode"] == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.receive_frame() == b""


def test_an_unknown_mechanism_is_answered_with_those_that_are_offered(client: RawClient) -> None:
    answer = client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "GSSAPI"})
    assert answer["errorCode"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer["mechanisms"] == ["PLAIN", "SCRAM-SHA-512", "SCRAM-SHA-256"]
    assert client.receive_frame() == b""


def test_tokens_without_a_handshake_close_the_connection(client: RawClient) -> None:
    client.send(ApiKey.SASL_AUTHENTICATE, 2, {"authBytes": ALICE})
    assert client.receive_frame() == b""


def test_a_second_log_in_is_refused_and_the_connection_stays(client: RawClient) -> None:
    _log_in(client)
    again = client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    assert again["errorCode"] == ErrorCode.ILLEGAL_SASL_STATE
    again = client.call(ApiKey.SASL_AUTHENTICATE, 2, {"authBytes": ALICE})
    assert again["errorCode"] == ErrorCode.ILLEGAL_SASL_STATE
    assert client.call(ApiKey.METADATA, 12, {"topics": None})["topics"] == []


def test_old_clients_send_tokens_without_headers(client: RawClient) -> None:
    answer = client.call(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})
    assert answer["errorCode"] == 0
    client.socket.sendall(struct.pack(">i", len(ALICE)) + ALICE)
    assert client.socket.recv(4) == bytes(4)  # an empty token
    assert client.call(ApiKey.METADATA, 12, {"topics": None})["topics"] == []


def test_a_wrong_token_without_a_header_closes_the_connection(client: RawClient) -> None:
    client.call(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})
    client.socket.sendall(struct.pack(">i", 5) + b"wrong")
    assert client.receive_frame() == b""


def test_requests_before_the_log_in_are_small(client: RawClient) -> None:
    client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    client.socket.sendall(struct.pack(">i", (512 << 10) + 1) + bytes(1000))
    assert client.receive_frame() == b""


def test_a_session_that_has_expired_must_be_renewed(tmp_path: Path) -> None:
    config = {"connections.max.reauth.ms": 300}
    with (
        Broker(tmp_path, listeners=SASL, users={"alice": "secret"}, config=config) as broker,
        RawClient(broker.bootstrap_servers) as client,
        RawClient(broker.bootstrap_servers) as other,
    ):
        assert _log_in(client)["sessionLifetimeMs"] == 300
        _log_in(other)
        client.call(ApiKey.METADATA, 12, {"topics": None})
        time.sleep(0.35)
        assert _log_in(client)["errorCode"] == 0
        client.call(ApiKey.METADATA, 12, {"topics": None})
        other.send(ApiKey.METADATA, 12, {"topics": None})
        assert other.receive_frame() == b""


def test_without_sasl_there_is_no_log_in(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        answer = client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        assert answer["errorCode"] == ErrorCode.ILLEGAL_SASL_STATE

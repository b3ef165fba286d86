"""Malformed input on the wire: the broker goes on serving others, and its memory stays flat."""

from __future__ import annotations

import gc
import logging
import os
import random
import resource
import socket
import struct
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from stratalog.broker.broker import Broker
from stratalog.wire.apis import ApiKey
from stratalog.wire.frames import request_frame
from tests.broker.fuzzing import create_topics, mutations, resident_bytes, send_frames
from tests.broker.raw_client import RawClient
from tests.compat.processes import SMALL
from tests.effort import scaled

if TYPE_CHECKING:
    from pathlib import Path


def _is_served(client: RawClient) -> bool:
    return "brokers" in client.call(ApiKey.METADATA, 12, {"topics": []})


@pytest.mark.slow
def test_mutated_frames_leave_the_broker_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # pytest keeps every line that is logged, and there is one for each connection that is closed.
    caplog.set_level(logging.ERROR, "stratalog.broker")
    seed = random.randrange(1 << 32)
    with Broker(tmp_path, config=SMALL) as broker, RawClient(broker.bootstrap_servers) as other:
        frames = mutations(seed)
        create_topics(broker.bootstrap_servers)
        try:
            send_frames(broker.bootstrap_servers, frames, 500)
            gc.collect()
            before = resident_bytes(os.getpid())
            for _ in range(5):
                send_frames(broker.bootstrap_servers, frames, scaled(300))
                assert _is_served(other)
            gc.collect()
            grown = resident_bytes(os.getpid()) - before
            assert grown < 30 << 20
            with RawClient(broker.bootstrap_servers) as new:
                assert _is_served(new)
        except BaseException as error:
            error.add_note(f"seed: {seed}")
            raise
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        assert _is_served(client)  # what it wrote can be opened again


@pytest.mark.slow
def test_a_thousand_idle_connections_do_not_disturb_the_others(tmp_path: Path) -> None:
    limit, limit_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, min(limit_max, 4096)), limit_max))
    with Broker(tmp_path) as broker, ExitStack() as stack:
        host, port = broker.bootstrap_servers.split(":")
        before = resident_bytes(os.getpid())
        for number in range(1000):
            client = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            if number % 2:
                client.sendall(struct.pack(">i", 90 << 20) + bytes(100))  # and never the rest
        with RawClient(broker.bootstrap_servers) as other:
            took = []
            for _ in range(50):
                began = time.monotonic()
                assert _is_served(other)
                took.append(time.monotonic() - began)
            assert sorted(took)[25] < 0.1
            assert len(broker._connections) > 1000
        assert resident_bytes(os.getpid()) - before < 100 << 20


def test_a_slow_sender_is_served_and_blocks_nobody(tmp_path: Path) -> None:
    with (
        Broker(tmp_path) as broker,
        RawClient(broker.bootstrap_servers) as slow,
        RawClient(broker.bootstrap_servers) as other,
    ):
        frame = request_frame(
            ApiKey.METADATA, 12, {"topics": []}, correlation_id=1, client_id="slow"
        )
        for byte in frame:
            slow.socket.sendall(bytes([byte]))
            assert _is_served(other)
        assert slow.receive_frame()[:4] == struct.pack(">i", 1)


@pytest.mark.slow
def test_a_client_that_never_reads_blocks_nobody(tmp_path: Path) -> None:
    with (
        Broker(tmp_path) as broker,
        RawClient(broker.bootstrap_servers) as deaf,
        RawClient(broker.bootstrap_servers) as other,
    ):
        broker.log_dir.create_topic("wide", 40)
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            deaf.socket.setsockopt(socket.SOL_SOCKET, buffer, 4096)
        deaf.socket.settimeout(0.3)

        asked = {"topics": [{"name": "wide"}] * 30}  # fills the buffers of both sides soon

        def flood() -> None:
            try:
                while True:
                    deaf.send(ApiKey.METADATA, 12, asked)
            except OSError:
                pass  # the broker reads no further: our buffer is full

        before = resident_bytes(os.getpid())
        sender = threading.Thread(target=flood)
        sender.start()
        sender.join()
        for _ in range(20):
            assert _is_served(other)
        assert resident_bytes(os.getpid()) - before < 20 << 20


def test_a_client_that_vanishes_in_the_middle_of_a_request(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as other:
        for number in range(50):
            with RawClient(broker.bootstrap_servers) as client:
                client.socket.sendall(struct.pack(">i", 1000) + bytes(number))
                if number % 2:  # with a reset
                    linger = struct.pack("ii", 1, 0)
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        assert _is_served(other)
        end = time.monotonic() + 5
        while len(broker._connections) > 1 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(broker._connections) == 1

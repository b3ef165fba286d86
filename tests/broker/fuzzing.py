"""Frames that no client should send: captured requests with changes, random bytes, truncations.

    python -m tests.broker.fuzzing --frames 100000 --seed 1

runs against a broker in its own process and reports its memory. A frame is only as wrong as its
seed and number: `mutations(seed)` gives the same ones again.
"""

from __future__ import annotations

import argparse
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.wire.apis import ApiKey
from tests.broker.raw_client import RawClient
from tests.broker.replaying import before
from tests.golden_wire import CLIENTS, all_frames, scenarios

if TYPE_CHECKING:
    from collections.abc import Iterator

_WAIT_S: Final = 0.005
_WAITS_MAX: Final = 3
"""After so many frames without an answer a new connection is made."""
_INTERESTING: Final = (0, 1, 0x7F, 0x80, 0xFF)
_NUMBERS: Final = (-1, 0, 1, 0x7FFF, 0x7FFFFFFF, -0x80000000, 100 << 20, (100 << 20) + 1)


def mutations(seed: int) -> Iterator[bytes]:
    """Frames without end, most of them wrong."""
    rng = random.Random(seed)
    requests = [frame.data for frame in all_frames() if frame.direction == "req"]
    while True:
        yield _mutated(rng, bytearray(rng.choice(requests)), requests)


def _mutated(rng: random.Random, frame: bytearray, requests: list[bytes]) -> bytes:
    way = rng.randrange(10)
    if way == 0:
        return rng.randbytes(rng.randrange(200))
    if way == 1:  # a length that the rest does not have
        frame[:4] = struct.pack(">i", rng.choice((*_NUMBERS, rng.randrange(1 << 31))))
        return bytes(frame)
    if way == 2:  # another key or version
        at = rng.choice((4, 6))
        frame[at : at + 2] = struct.pack(">h", rng.choice((-1, 0, 1, 99, rng.randrange(80))))
        return bytes(frame)
    body = frame[4:]
    if way == 3:
        body = body[: rng.randrange(len(body) + 1)]
    elif way == 4:
        other = rng.choice(requests)[4:]
        body = body[: rng.randrange(len(body))] + other[rng.randrange(len(other)) :]
    elif way == 5:
        body += rng.randbytes(rng.randrange(1, 300))
    elif way == 6 and len(body) > 12:  # a number somewhere
        at = rng.randrange(8, len(body) - 3)
        body[at : at + 4] = struct.pack(">i", rng.choice(_NUMBERS))
    else:
        for _ in range(rng.randrange(1, 8)):
            at = rng.randrange(len(body))
            body[at] = rng.choice((rng.randrange(256), rng.choice(_INTERESTING), body[at] ^ 1))
    return struct.pack(">i", len(body)) + bytes(body)


def create_topics(bootstrap_servers: str) -> None:
    """Create the topics that the captured requests are about, so that they reach logs."""
    names = sorted(
        {
            name
            for client in CLIENTS
            for scenario in scenarios(client)
            for name in before(client, scenario).partitions
            if not name.startswith("__")
        }
    )
    topics = [{"name": name, "numPartitions": 3, "replicationFactor": 1} for name in names]
    with RawClient(bootstrap_servers, timeout_s=60) as client:
        client.call(ApiKey.CREATE_TOPICS, 7, {"topics": topics})


def send_frames(bootstrap_servers: str, frames: Iterator[bytes], count: int) -> int:
    """Send so many frames, each to a broker that still listens to the connection. Returns how many
    connections it took."""
    host, _, port = bootstrap_servers.rpartition(":")
    sent = connections = 0
    while sent < count:
        connections += 1
        with (
            socket.create_connection((host, int(port)), timeout=10) as client,
            suppress(ConnectionError),
        ):
            waits = 0
            while sent < count and waits < _WAITS_MAX:
                sent += 1
                client.sendall(next(frames))
                waits += not _is_answered(client)
    return connections


def _is_answered(client: socket.socket) -> bool:
    """Whether an answer comes soon. There may be none: the broker waits for the rest of a frame, or
    for records. Raises ConnectionError once the broker has closed the connection."""
    client.settimeout(_WAIT_S)
    try:
        if not client.recv(1 << 16):
            raise ConnectionResetError
    except TimeoutError:
        return False
    finally:
        client.settimeout(10)
    return True


def resident_bytes(process_id: int) -> int:
    """The memory of a process."""
    lines = Path(f"/proc/{process_id}/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


SERVE = """
import logging, sys, time
from stratalog.broker.broker import Broker
logging.disable(logging.CRITICAL)
config = {"group.initial.rebalance.delay.ms": 0, "log.cleaner.enable": "false"}
with Broker(sys.argv[1], config=config) as broker:
    print(broker.bootstrap_servers, flush=True)
    sys.stdin.read()
"""


def main() -> None:
    """Fuzz a broker in a process of its own."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as path,
        subprocess.Popen(
            [sys.executable, "-c", SERVE, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        create_topics(address)
        frames = mutations(options.seed)
        tenth = max(options.frames // 10, 1)
        began = time.monotonic()
        for number in range(10):
            connections = send_frames(address, frames, tenth)
            with RawClient(address) as client:
                asked = time.monotonic()
                client.call(ApiKey.METADATA, 12, {"topics": []})
                took_ms = (time.monotonic() - asked) * 1000
            megabytes = resident_bytes(process.pid) / 1e6
            seconds = time.monotonic() - began
            sys.stdout.write(
                f"{(number + 1) * tenth:>8} frames, {connections} connections, {seconds:.0f} s, "
                f"{megabytes:.1f} MB, an answer in {took_ms:.1f} ms\n"
            )
            sys.stdout.flush()
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


if __name__ == "__main__":
    main()

"""A broker in a process of its own, to be killed, and a proxy that cuts connections."""

from __future__ import annotations

import json
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_START_S = 60
_PROGRAM = """
import json, signal, sys
from stratalog.broker.broker import Broker
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
path, port, config = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
broker = Broker(path, port=port, config=config)
broker.start()
print(broker.bootstrap_servers, flush=True)
signal.sigwait({signal.SIGTERM})
broker.close()
"""

SMALL = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
    "log.index.size.max.bytes": 100_000,
}
"""Kafka's fifty partitions take their time to be recovered after each kill."""


class BrokerProcess:
    """Keeps its port over restarts, so that clients find it again."""

    def __init__(self, path: Path, config: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self._config = {**SMALL, **(config or {})}
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None
        self.kills = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGKILL)

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start, and wait until it serves."""
        arguments = [str(self.path), str(self._port), json.dumps(self._config)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        started = self._process.stdout.readline().strip()
        assert started, "the broker did not start"
        self._port = int(started.rpartition(":")[2])

    def kill(self) -> None:
        """As a crash does: without a chance to write or to say anything."""
        self._end(signal.SIGKILL)
        self.kills += 1

    def stop(self) -> None:
        """As an operator does."""
        assert self._end(signal.SIGTERM) == 0

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        code = process.wait(_START_S)
        assert process.stdout is not None
        process.stdout.close()
        return code


class CuttingProxy:
    """Stands between clients and a broker. Passes requests on, and closes the connection instead of
    passing on the answer to some of the Produce requests."""

    def __init__(self, cuts: set[int]) -> None:
        """Cuts the Produce requests with these numbers, counted from 1."""
        self._cuts = cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._target = 0
        self._produced = 0
        self._lock = threading.Lock()
        self.cut = 0
        """How many connections were cut."""

    def serve(self, target_port: int) -> None:
        """Pass everything on to the broker at this port, in threads."""
        self._target = target_port
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        """One request at a time, as a broker answers them."""
        broker = socket.create_connection(("127.0.0.1", self._target))
        with client, broker, suppress(OSError):
            while (request := _frame(client)) is not None:
                broker.sendall(request)
                answer = _frame(broker)
                if answer is None or self._is_cut(request):
                    return
                client.sendall(answer)

    def _is_cut(self, request: bytes) -> bool:
        (key,) = struct.unpack_from(">h", request, 4)
        if key != 0:
            return False
        with self._lock:
            self._produced += 1
            is_cut = self._produced in self._cuts
            self.cut += is_cut
            return is_cut


def _frame(sock: socket.socket) -> bytes | None:
    head = _exactly(sock, 4)
    if head is None:
        return None
    body = _exactly(sock, struct.unpack(">i", head)[0])
    return None if body is None else head + body


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            return None
        data += more
    return data


def free_port() -> int:
    """A port that nobody listens on, and that the system gives to no connection: a client that
    tries to reach a broker that is away may else be connected to itself, and take its port."""
    while True:
        port = random.randrange(20_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def wait_until(what: Any, timeout_s: float = 60) -> None:
    """Wait until `what()` is true."""
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)

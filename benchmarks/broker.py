"""The broker with a real client, librdkafka: throughput, latency, start and memory.

The broker is `stratalog serve` in a process of its own, on a disk in memory; the client is another
process, which counts what was acknowledged or consumed. Both cores are used. With so little work in
the broker, the client is what takes the time, so the CPU time of the broker is shown as well. The
aims are what Apache Kafka reached with the same client on such a machine.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.report import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from benchmarks.report import Report

ROUND_BYTES = 48 << 20
QUICK_BYTES = 12 << 20
VALUE_BYTES = (100, 1024)
PARTITIONS = (1, 8)
CLIENTS = (1, 16)
GROWTH = (10, 100, 1000)
KAFKA_PRODUCE = {100: 82, 1024: 164}  # MB/s
KAFKA_CONSUME = {100: 68, 1024: 832}
KAFKA_P50_MS, KAFKA_P99_MS = 0.76, 4.2
START_MAX_S = 0.4
IDLE_MAX_MB = 120
SHARE_MIN = 0.1
"""Of Kafka's figures, however busy the machine is."""
CPU_MAX_S = 10
"""Of the broker, for a gigabyte."""
WAIT_S = 120
BATCH = 10_000
CLIENT_ID = "bench"
_FETCH_AHEAD = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 5}
"""Kafka was measured with these settings of the consumer. By default librdkafka stops fetching for
a second when it has 100,000 records in hand, and one second is longer than a round takes."""
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


def run(report: Report) -> None:
    with _all_cores(), _Clients() as clients:
        _start(report)
        for value_bytes in VALUE_BYTES:
            for partitions in PARTITIONS:
                for count in CLIENTS:
                    _throughput(report, clients, _Load(value_bytes, partitions, count))
        _latency(report, clients)
        for partitions in GROWTH:
            _growth(report, clients, partitions)


@contextmanager
def _all_cores() -> Iterator[None]:
    """Other benchmarks run on one core; a broker and its client need one each."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# -- the broker


class _Served:
    """A broker in a process of its own."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "stratalog", "serve", str(directory), "--port", "0"]
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, "--json"], stdout=subprocess.PIPE, env=_environment()
        )
        assert self._process.stdout is not None
        self.bootstrap: str = json.loads(self._process.stdout.readline())["bootstrapServers"]
        self.topics = _metadata(self.bootstrap)
        self.start_s = time.perf_counter() - started
        """Until the first answer to a client that asks for all topics."""

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    @property
    def memory_mb(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1e3

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _environment() -> dict[str, str]:
    """With compiled modules, as where Stratalog is installed."""
    kept = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    return {**kept, "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir(), "stratalog-bench-pyc"))}


def _metadata(bootstrap: str) -> int:
    """How many topics the broker has, asked over a bare socket: a client would take longer to
    start than the broker."""
    import socket  # noqa: PLC0415

    from stratalog.format.messages.schema import read_message  # noqa: PLC0415
    from stratalog.wire.apis import ApiKey  # noqa: PLC0415
    from stratalog.wire.frames import request_frame  # noqa: PLC0415

    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        body = {"topics": None}
        connection.sendall(
            request_frame(ApiKey.METADATA, 12, body, correlation_id=1, client_id=CLIENT_ID)
        )
        stream = connection.makefile("rb")
        data = stream.read(int.from_bytes(stream.read(4), "big"))
    answer, _ = read_message(ApiKey.METADATA.response, data, 5, 12)
    return len(answer["topics"])


@contextmanager
def _served(partitions: int = 0) -> Iterator[_Served]:
    """A broker with a topic of so many partitions."""
    home = Path(tempfile.mkdtemp(prefix="stratalog-bench-", dir=_memory_disk()))
    try:
        if partitions:
            from stratalog.log_dir import LogDir  # noqa: PLC0415

            with LogDir.open(home / "data") as logs:
                logs.create_topic("bench", partitions)
        served = _Served(home / "data")
        try:
            yield served
        finally:
            served.close()
    finally:
        shutil.rmtree(home)


def _memory_disk() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# -- the client


class _Load(NamedTuple):
    """What clients do in a round."""

    value_bytes: int
    partitions: int
    clients: int

    def __str__(self) -> str:
        partitions = f"{self.partitions} partition{'s' * (self.partitions != 1)}"
        clients = f"{self.clients} client{'s' * (self.clients != 1)}"
        return f"{self.value_bytes} B, {partitions}, {clients}"


class _Clients:
    """A process that runs the functions below, one at a time."""

    def __enter__(self) -> _Clients:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send(None)
        self._process.join()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        self._ours.send((function, args))
        return self._ours.recv()


def _work(calls: Connection) -> None:
    import confluent_kafka  # noqa: F401, PLC0415  # not timed

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # librdkafka reports each broker that stops
    while (call := calls.recv()) is not None:
        function, args = call
        calls.send(function(*args))


class _Done(NamedTuple):
    """What clients have done, and from when to when; connecting does not count."""

    records: int
    started: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.started


def _produce(bootstrap: str, load: _Load, records: int) -> _Done:
    """Produce, and count what was acknowledged."""
    from confluent_kafka import Producer  # noqa: PLC0415

    config = {
        "bootstrap.servers": bootstrap,
        "queue.buffering.max.messages": 2_000_000,
        "queue.buffering.max.kbytes": 2_000_000,
        "linger.ms": 5,
    }
    producers = [Producer(config) for _ in range(load.clients)]
    for producer in producers:
        producer.list_topics("bench", WAIT_S)
    value = (b"0123456789abcdef" * 64)[: load.value_bytes]
    started = time.perf_counter()
    for number in range(records):
        producer = producers[number % load.clients]
        producer.produce("bench", value, partition=number % load.partitions)
    left = sum(producer.flush(WAIT_S) for producer in producers)
    return _Done(records - left, started, time.perf_counter())


def _consume(bootstrap: str, load: _Load, records: int) -> _Done:
    """Let every client consume its share from the beginning; the first begins, the last ends."""
    share = records // load.clients
    done: list[_Done] = []
    threads = [
        threading.Thread(
            target=lambda: done.append(_consume_share(bootstrap, load.partitions, share))
        )
        for _ in range(load.clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    started, ended = min(each.started for each in done), max(each.ended for each in done)
    return _Done(sum(each.records for each in done), started, ended)


def _consume_share(bootstrap: str, partitions: int, share: int) -> _Done:
    """From the first record on."""
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": CLIENT_ID,
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8 << 20,
            **_FETCH_AHEAD,
        }
    )
    consumer.assign([TopicPartition("bench", number, 0) for number in range(partitions)])
    count = len(consumer.consume(1, WAIT_S))
    started = time.perf_counter()
    deadline = started + WAIT_S
    while count < share and time.perf_counter() < deadline:
        count += len(consumer.consume(min(BATCH, share - count), 1))
    ended = time.perf_counter()
    consumer.close()
    return _Done(count, started, ended)


def _latencies(bootstrap: str, seconds: float, per_second: int) -> list[float]:
    """Milliseconds from handing over a record to its acknowledgement, one record at a time."""
    from confluent_kafka import Producer  # noqa: PLC0415

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    found: list[float] = []
    for number in range(int(seconds * per_second) + 10):
        started = time.perf_counter()
        producer.produce("bench", b"x" * 100, partition=0)
        producer.flush(WAIT_S)
        took = time.perf_counter() - started
        if number >= 10:  # the first ones connect
            found.append(took * 1e3)
        time.sleep(max(0, 1 / per_second - took))
    return found


def _end_to_end(bootstrap: str, count: int) -> list[float]:
    """Milliseconds from handing over a record until a consumer has it, one after another."""
    from confluent_kafka import Consumer, Producer, TopicPartition  # noqa: PLC0415

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": CLIENT_ID})
    end = consumer.get_watermark_offsets(TopicPartition("bench", 0), WAIT_S)[1]
    consumer.assign([TopicPartition("bench", 0, end)])
    found: list[float] = []
    for number in range(count + 10):
        started = time.perf_counter()
        producer.produce("bench", b"x" * 100, partition=0)
        producer.poll(0)
        if not consumer.consume(1, WAIT_S):
            raise TimeoutError("the record did not come back")
        if number >= 10:  # the first ones connect
            found.append((time.perf_counter() - started) * 1e3)
    producer.flush(WAIT_S)
    consumer.close()
    return found


def _half_load(bootstrap: str, bytes_per_second: float, seconds: float) -> None:
    """Produce at this rate."""
    from confluent_kafka import Producer  # noqa: PLC0415

    config = {"bootstrap.servers": bootstrap, "linger.ms": 5}
    producer = Producer({**config, "queue.buffering.max.kbytes": 2_000_000})
    value, started, sent = b"y" * 1024, time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < seconds:
        while sent < passed * bytes_per_second:
            producer.produce("bench", value, partition=1)
            sent += len(value)
        producer.poll(0)
        time.sleep(0.005)
    producer.flush(WAIT_S)


# -- what is measured


def _start(report: Report) -> None:
    starts, memory = [], 0.0
    for _ in range(report.rounds + 1):
        with _served() as served:
            starts.append(served.start_s)
            memory = served.memory_mb
    start_s = statistics.median(starts[1:])
    report.require("start to the first response", start_s, at_most=5, unit=" s", aim=START_MAX_S)
    report.require("idle memory", memory, at_most=IDLE_MAX_MB, unit=" MB")


def _throughput(report: Report, clients: _Clients, load: _Load) -> None:
    size_bytes = QUICK_BYTES if report.is_quick else ROUND_BYTES
    records = size_bytes // load.value_bytes // load.clients * load.clients
    with _served(load.partitions) as served:
        before_s = served.cpu_s
        args = (served.bootstrap, load, records)
        produced = _time(report, f"produce, {load}", partial(clients.call, _produce, *args), load)
        written = records * load.value_bytes * (report.rounds + 1)
        cpu_s = (served.cpu_s - before_s) / written * 1e9
        # All of it: what one round has written is consumed too fast to be timed.
        args = (served.bootstrap, load, records * (report.rounds + 1))
        consumed = _time(report, f"consume, {load}", partial(clients.call, _consume, *args), load)
        memory = served.memory_mb
    report.require(f"{load}: CPU of the broker for 1 GB", cpu_s, at_most=CPU_MAX_S, unit=" s")
    if load.clients > 1 and load.partitions > 1 and load.value_bytes > 100:
        report.require("memory under load", memory, at_most=2 * IDLE_MAX_MB, unit=" MB")
    if load.clients == 1 and load.partitions == 1:
        for what, timing, kafka in (
            ("produce", produced, KAFKA_PRODUCE[load.value_bytes]),
            ("consume", consumed, KAFKA_CONSUME[load.value_bytes]),
        ):
            rate, floor = timing.megabytes_per_second, kafka * SHARE_MIN
            report.require(f"{what}, {load}", rate, at_least=floor, unit=" MB/s", aim=kafka)


def _time(report: Report, case: str, call: Callable[[], _Done], load: _Load) -> Timing:
    """The median of several rounds, as the client measured them."""
    rounds = [call() for _ in range(report.rounds + 1)]
    records = rounds[0].records
    assert all(done.records == records for done in rounds), case
    seconds = statistics.median(done.seconds for done in rounds[1:])
    size_bytes = records * load.value_bytes
    timing = Timing(report.benchmark, case, "broker", seconds, report.rounds, records, size_bytes)
    report.timings.append(timing)
    return timing


def _latency(report: Report, clients: _Clients) -> None:
    seconds = 2 if report.is_quick else 5
    with _served(2) as served:
        found = clients.call(_end_to_end, served.bootstrap, 100 * seconds)
        _require_latency(report, "end to end", found)
        _require_latency(
            report, "low rate", clients.call(_latencies, served.bootstrap, seconds, 50)
        )
        rate = KAFKA_PRODUCE[1024] / 2 * 1e6
        with _Clients() as others:
            args = (served.bootstrap, rate, seconds + 1.0)
            busy = threading.Thread(target=others.call, args=(_half_load, *args))
            busy.start()
            found = clients.call(_latencies, served.bootstrap, seconds, 50)
            busy.join()
        _require_latency(report, "82 MB/s beside it", found)


def _require_latency(report: Report, what: str, found: list[float]) -> None:
    p50, p99 = statistics.median(found), sorted(found)[int(len(found) * 0.99)]
    bound = 20 * KAFKA_P99_MS
    report.require(f"latency, {what}: p50", p50, at_most=bound, unit=" ms", aim=KAFKA_P50_MS)
    report.require(f"latency, {what}: p99", p99, at_most=bound, unit=" ms", aim=KAFKA_P99_MS)


def _growth(report: Report, clients: _Clients, partitions: int) -> None:
    load = _Load(1024, partitions, 1)
    records = QUICK_BYTES // load.value_bytes
    with _served(partitions) as served:
        report.require(f"{partitions} partitions: start", served.start_s, at_most=10, unit=" s")
        args = (served.bootstrap, load, records)
        _time(report, f"produce, {load}", lambda: clients.call(_produce, *args), load)
        memory = served.memory_mb
    report.require(f"{partitions} partitions: memory", memory, at_most=500, unit=" MB")

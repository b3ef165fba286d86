"""A real Kafka broker, of version 0.9.0.1, with its ZooKeeper: what it says when it opens a log
directory.

`scripts/ensure_test_tools` fetches the jars. The broker knows message format 0 and two files of a
segment, `.log` and `.index`; those that later versions added, it leaves alone.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import kafka

from tests.compat.processes import free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HOME = Path(os.environ.get("KAFKA_09_JARS") or Path(sys.prefix) / "kafka-0.9")
JAVA = shutil.which("java")
_SEGMENT_BYTES = 20_000
PARTITIONS = 2
_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PATIENCE_S = 60
_LOGGING = """
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%p %c: %m%n
"""
_ZOOKEEPER = """
tickTime=500
maxSessionTimeout=60000
clientPortAddress=127.0.0.1
clientPort={port}
dataDir={path}
"""
_SERVER = f"""
broker.id=0
port={{port}}
host.name=127.0.0.1
zookeeper.connect=127.0.0.1:{{zookeeper}}
zookeeper.session.timeout.ms={{session_ms}}
log.dirs={{path}}
log.segment.bytes={_SEGMENT_BYTES}
log.index.interval.bytes=1000
log.index.size.max.bytes=100000
num.partitions={PARTITIONS}
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
controlled.shutdown.enable=false
"""
_API_VERSION = (0, 9)
_REPAIRS = (
    "Found an orphaned index file",
    "Found a corrupted index file",
    "Could not find index file",
    "from interrupted swap operation, repairing",
    "Recovering unflushed segment",
    "Found invalid offset during recovery",
    "Corruption found in segment",
    "Found invalid messages in log segment",
    "Truncating",
    "Rolled new log segment",
    "already exists; deleting it first",
    "Scheduling log segment",
    "Deleting segment",
    "Deleting index",
    "Error occured while reading recovery-point-offset-checkpoint",
    "Resetting the recovery checkpoint",
    "error in one of the threads during logs loading",
    "No checkpointed highwatermark",
    "No meta.properties file",
    "Failed to read meta.properties",
)
"""What `kafka.log` and those that read the checkpoints say of anything that they change."""


def why_not() -> str | None:
    """Why there is no such broker here."""
    if JAVA is None:
        return "there is no Java"
    if not any(HOME.glob("kafka_*-0.9.0.1.jar")):
        return "Kafka 0.9 is not here: `make test-tools` fetches it, or set KAFKA_09_JARS"
    return None


class Row(NamedTuple):
    """A record, as this broker knows it: it has neither a time nor headers."""

    offset: int
    key: bytes | None
    value: bytes | None


class _Program:
    """A JVM with a main class of the distribution. What it prints goes into a file."""

    def __init__(self, path: Path, main: str, *args: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._output = path / f"{main.rpartition('.')[2]}.log"
        (path / "log4j.properties").write_text(_LOGGING)
        self._command = _java(path / "log4j.properties", main, *args)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> str:
        return self._output.read_text()

    def start(self) -> None:
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def check_running(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.output

    def end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_PATIENCE_S)
        finally:
            process.kill()
            process.wait()


def _java(logging: Path, main: str, *args: str) -> list[str]:
    jars = os.pathsep.join(map(str, sorted(HOME.glob("*.jar"))))
    return [str(JAVA), *_OPTIONS, f"-Dlog4j.configuration=file:{logging}", "-cp", jars, main, *args]


class ZooKeeper:
    """Knows the topics, over all starts of brokers."""

    def __init__(self, path: Path) -> None:
        self.port = free_port()
        path.mkdir(parents=True)
        config = path / "zoo.cfg"
        config.write_text(_ZOOKEEPER.format(port=self.port, path=path / "data"))
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        self._program = _Program(path, main, str(config))

    def __enter__(self) -> Self:
        self._program.start()
        try:
            wait_until(lambda: self._reply("ruok") == "imok")
        except BaseException:
            self._program.end(signal.SIGKILL)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._program.end(signal.SIGKILL)

    def wait_for_no_broker(self) -> None:
        """The session of a broker that was killed ends some seconds later."""
        wait_until(lambda: "/brokers/ids/" not in self._reply("dump"))

    def _reply(self, word: str) -> str:
        self._program.check_running()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as sock:
            sock.sendall(word.encode())
            return b"".join(iter(lambda: sock.recv(65536), b"")).decode()
        return ""


class OldKafka:
    """The broker on one log directory; `scratch` takes its settings and what it prints.

    If it is killed, the next broker can start after `session_ms`.
    """

    def __init__(
        self, log_dir: Path, zookeeper: ZooKeeper, scratch: Path, *, session_ms: int = 10_000
    ) -> None:
        self._port = free_port()
        self._zookeeper = zookeeper
        scratch.mkdir(parents=True)
        config = scratch / "server.properties"
        text = _SERVER.format(
            port=self._port, zookeeper=zookeeper.port, path=log_dir, session_ms=session_ms
        )
        config.write_text(text)
        self._program = _Program(scratch, "kafka.Kafka", str(config))

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def output(self) -> str:
        return self._program.output

    def __enter__(self) -> Self:
        self._zookeeper.wait_for_no_broker()
        self._program.start()
        try:
            wait_until(self._is_started)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._program.end(signal.SIGTERM)

    def kill(self) -> None:
        self._program.end(signal.SIGKILL)

    def _is_started(self) -> bool:
        self._program.check_running()
        return re.search(r"kafka.server.KafkaServer: .*, started$", self.output, re.M) is not None

    @property
    def repairs(self) -> list[str]:
        """What it says of files that it found wrong or changed."""
        return [
            line
            for line in self.output.splitlines()
            if any(words in line for words in _REPAIRS)
            or re.match(r"(WARN|ERROR|FATAL) kafka\.(log|coordinator)\.", line)
        ]

    @property
    def log_ends(self) -> dict[str, int]:
        """The log end offset of every partition, as its loader reports it."""
        found = re.findall(r"Completed load of log (\S+) with log end offset (\d+)", self.output)
        return {name: int(offset) for name, offset in found}


def produce(broker: OldKafka, topic: str, numbers: range, *, codec: str | None = None) -> None:
    """To both partitions in turn, in small batches; returns once all are acknowledged."""
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        api_version=_API_VERSION,
        enable_idempotence=False,
        acks="all",
        compression_type=codec,
        batch_size=800,
        linger_ms=5,
    )
    try:
        futures = [
            producer.send(topic, b"%d " % number * 20, key=b"k%d" % (number % 7), partition=at)
            for number in numbers
            for at in range(PARTITIONS)
        ]
        producer.flush(_PATIENCE_S)
        assert all(future.succeeded() for future in futures)
    finally:
        producer.close()


def consume(broker: OldKafka, ends: Mapping[str, int]) -> dict[str, list[Row]]:
    """All records of these partitions (`topic-0`), up to these offsets, by name."""
    found: dict[str, list[Row]] = {name: [] for name in ends}
    consumer = _consumer(broker)
    try:
        at = {_topic_partition(name): name for name in ends}
        consumer.assign(list(at))
        deadline = time.monotonic() + _PATIENCE_S
        while any(len(found[name]) < end for name, end in ends.items()):
            assert time.monotonic() < deadline, {name: len(found[name]) for name in found}
            for topic_partition, records in consumer.poll(200).items():
                rows = [Row(each.offset, each.key, each.value) for each in records]
                found[at[topic_partition]] += rows
    finally:
        consumer.close()
    return found


def commit(broker: OldKafka, group: str, offsets: Mapping[str, int]) -> None:
    """Committed offsets of a group."""
    consumer = _consumer(broker, group)
    try:
        fields = {"metadata": "", "leader_epoch": -1}
        consumer.commit(
            {
                _topic_partition(name): kafka.OffsetAndMetadata(offset, **fields)
                for name, offset in offsets.items()
            }
        )
    finally:
        consumer.close()


def committed(broker: OldKafka, group: str, names: Iterable[str]) -> dict[str, int | None]:
    """What a consumer of the group would start from."""
    consumer = _consumer(broker, group)
    try:
        return {name: consumer.committed(_topic_partition(name)) for name in names}
    finally:
        consumer.close()


def _consumer(broker: OldKafka, group: str | None = None) -> kafka.KafkaConsumer:
    return kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        api_version=_API_VERSION,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        check_crcs=True,
        retry_backoff_ms=20,
    )


def _topic_partition(name: str) -> kafka.TopicPartition:
    topic, _, number = name.rpartition("-")
    return kafka.TopicPartition(topic, int(number))


def dump(scratch: Path, files: Sequence[Path], *options: str) -> subprocess.CompletedProcess[str]:
    """Kafka's DumpLogSegments."""
    scratch.mkdir(parents=True, exist_ok=True)
    logging = scratch / "log4j.properties"
    logging.write_text(_LOGGING)
    names = ",".join(map(str, files))
    command = _java(logging, "kafka.tools.DumpLogSegments", "--files", names, *options)
    return subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)

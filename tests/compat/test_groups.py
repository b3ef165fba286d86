"""Groups of three real consumers: joins, crashes, rebalances, restarts of the broker.

Every record is committed before it counts as read, so each one must be read by exactly one member,
whatever happens to the others: a record that was read twice had a committed offset, and one that
was not read at all was skipped.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stratalog.broker.broker import Broker
from tests.compat.processes import SMALL, BrokerProcess
from tests.effort import scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

PARTITIONS = 6
WAIT_S = 60
SETTINGS = {
    **SMALL,
    "group.initial.rebalance.delay.ms": 100,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.heartbeat.interval.ms": 200,
}
SHORT = {"session.timeout.ms": "3000"}
EAGER = {"partition.assignment.strategy": "range"}
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
QUICK = {"heartbeat.interval.ms": "300"}
NEW_PROTOCOL = {"group.protocol": "consumer"}
KINDS = [
    pytest.param("confluent", EAGER | QUICK | SHORT, id="confluent-eager"),
    pytest.param("confluent", COOPERATIVE | QUICK | SHORT, id="confluent-cooperative"),
    pytest.param("confluent", NEW_PROTOCOL, id="confluent-consumer-protocol"),
    pytest.param("kafka-python", EAGER | SHORT, id="kafka-python-eager"),
    pytest.param("kafka-python", COOPERATIVE | SHORT, id="kafka-python-cooperative"),
    pytest.param("aiokafka", SHORT, id="aiokafka-eager"),
]
_numbers = itertools.count()


class Member:
    """A process that reads in the group."""

    def __init__(self, command: list[str], output: Path) -> None:
        self.output = output
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.compat.group_member", *command]
        )

    @property
    def lines(self) -> list[dict[str, Any]]:
        if not self.output.exists():
            return []
        whole = self.output.read_text(encoding="utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def read(self) -> list[tuple[int, int]]:
        return [(line["partition"], line["offset"]) for line in self.lines if "offset" in line]

    @property
    def tried_last(self) -> set[tuple[int, int]]:
        """What it may have committed without saying so, because it was killed."""
        lines = self.lines
        is_killed = self.process.poll() == -signal.SIGKILL
        return (
            {tuple(lines[-1]["tries"])} if is_killed and lines and "tries" in lines[-1] else set()
        )

    def stop(self) -> None:
        """Let it leave."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)


class Group:
    """A topic, a group that reads it, and who reads what."""

    def __init__(
        self, broker: Broker | BrokerProcess, tmp_path: Path, client: str, options: dict[str, str]
    ) -> None:
        number = next(_numbers)
        self.broker = broker
        self.topic, self.group_id = f"orders-{number}", f"group-{number}"
        self.members: list[Member] = []
        self._tmp_path, self._client, self.options = tmp_path, client, options
        self._produced = 0
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 0,
            }
        )
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for created in admin.create_topics([NewTopic(self.topic, PARTITIONS)]).values():
            created.result(WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.process.kill()
            member.process.wait()

    def start_member(self, client: str | None = None, **options: str) -> Member:
        output = self._tmp_path / f"member-{len(self.members)}"
        named = {
            **self.options,
            **{name.replace("_", "."): item for name, item in options.items()},
        }
        pairs = [f"{name}={value}" for name, value in named.items()]
        where = [client or self._client, self.broker.bootstrap_servers, self.group_id, self.topic]
        member = Member([*where, str(output), *pairs], output)
        self.members.append(member)
        return member

    def produce(self, per_partition: int = 5) -> None:
        """The same number of records for each partition."""
        for partition in range(PARTITIONS):
            for _ in range(per_partition):
                self._producer.produce(self.topic, b"v", partition=partition)
        assert self._producer.flush(WAIT_S) == 0
        self._produced += per_partition

    def wait_until_all_is_read(self) -> None:
        """Produce more until every member that runs reads something; then wait for all of it."""
        wanted = {
            (partition, offset)
            for partition in range(PARTITIONS)
            for offset in range(self._produced)
        }

        def missing() -> set[tuple[int, int]]:
            unsaid = {place for member in self.members for place in member.tried_last}
            return wanted - self.times_read.keys() - unsaid

        wait_for(lambda: not missing(), lambda: f"missing {missing()}\n{self.report()}")

    def wait_until_all_members_read(self, *members: Member) -> None:
        """Every one of these has partitions."""
        counts = [len(member.read) for member in members]

        def has_read() -> bool:
            self.produce(1)
            return all(
                len(member.read) > count for member, count in zip(members, counts, strict=True)
            )

        wait_for(has_read, self.report, pause_s=0.2)

    @property
    def times_read(self) -> Counter[tuple[int, int]]:
        return Counter(place for member in self.members for place in member.read)

    def check_each_record_was_read_once(self) -> None:
        self.wait_until_all_is_read()
        repeated = {place: count for place, count in self.times_read.items() if count > 1}
        assert repeated == {}, self.report()

    def report(self) -> str:
        return "\n".join(f"{member.output.name}: {member.lines[-12:]}" for member in self.members)


def wait_for(
    is_done: Callable[[], bool], report: Callable[[], str], *, pause_s: float = 0.1
) -> None:
    end = time.monotonic() + WAIT_S
    while not is_done():
        assert time.monotonic() < end, report()
        time.sleep(pause_s)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {**SETTINGS, "group.consumer.session.timeout.ms": 3000}
    with Broker(tmp_path_factory.mktemp("groups"), config=settings) as broker:
        yield broker


@pytest.mark.parametrize(("client", "options"), KINDS)
def test_three_members_join_crash_and_leave(
    broker: Broker, tmp_path: Path, client: str, options: dict[str, str]
) -> None:
    with Group(broker, tmp_path, client, options) as group:
        group.produce()
        first = group.start_member()
        group.wait_until_all_members_read(first)
        second, third = group.start_member(), group.start_member()
        group.wait_until_all_members_read(first, second, third)
        second.kill()
        group.wait_until_all_members_read(first, third)
        group.wait_until_all_is_read()
        first.stop()
        group.wait_until_all_members_read(third)
        group.check_each_record_was_read_once()


STATIC = [
    pytest.param("confluent", EAGER | QUICK, id="confluent"),
    pytest.param("confluent", NEW_PROTOCOL, id="confluent-consumer-protocol"),
    pytest.param("kafka-python", EAGER, id="kafka-python"),
    pytest.param("aiokafka", {}, id="aiokafka"),
]


@pytest.mark.parametrize(("client", "options"), STATIC)
def test_static_members_keep_their_partitions_over_a_restart(
    broker: Broker, tmp_path: Path, client: str, options: dict[str, str]
) -> None:
    with Group(broker, tmp_path, client, options) as group:
        group.produce()
        names = ("one", "two", "three")
        members = [group.start_member(group_instance_id=name) for name in names]
        group.wait_until_all_members_read(*members)
        before = partitions_read(group, members)
        members[1].stop()
        members[1] = group.start_member(group_instance_id="two")
        group.wait_until_all_members_read(*members)
        assert partitions_read(group, members) == before
        group.check_each_record_was_read_once()


def partitions_read(group: Group, members: list[Member]) -> list[set[int]]:
    """Who reads what, once no partition changes hands any more."""
    group.wait_until_all_is_read()
    counts = [len(member.read) for member in members]
    group.produce(1)
    group.wait_until_all_is_read()
    return [
        {partition for partition, _ in member.read[count:]}
        for member, count in zip(members, counts, strict=True)
    ]


def test_a_group_changes_to_the_consumer_protocol_and_back_while_it_reads(
    broker: Broker, tmp_path: Path
) -> None:
    with Group(broker, tmp_path, "confluent", COOPERATIVE | QUICK) as group:
        group.produce()
        old, older = group.start_member(), group.start_member()
        group.wait_until_all_members_read(old, older)
        assert group_type(group) == "CLASSIC"
        group.options = NEW_PROTOCOL
        new = group.start_member()
        group.wait_until_all_members_read(old, older, new)
        assert group_type(group) == "CONSUMER"
        older.stop()
        group.wait_until_all_members_read(old, new)
        new.stop()
        group.wait_until_all_members_read(old)
        assert group_type(group) == "CLASSIC"
        group.check_each_record_was_read_once()


def group_type(group: Group) -> str:
    admin = AdminClient({"bootstrap.servers": group.broker.bootstrap_servers})
    listed = admin.list_consumer_groups().result(WAIT_S).valid
    (kind,) = [each.type.name for each in listed if each.group_id == group.group_id]
    return str(kind)


@pytest.mark.parametrize(
    ("client", "options"),
    [KINDS[0], KINDS[2], KINDS[5]],
)
def test_a_group_reads_on_after_the_broker_was_killed(
    tmp_path: Path, client: str, options: dict[str, str]
) -> None:
    with (
        BrokerProcess(tmp_path / "data", SETTINGS) as broker,
        Group(broker, tmp_path, client, options) as group,
    ):
        group.produce()
        members = [group.start_member() for _ in range(3)]
        group.wait_until_all_members_read(*members)
        for _ in range(scaled(1)):
            broker.kill()
            broker.start()
            group.wait_until_all_members_read(*members)
        group.check_each_record_was_read_once()

"""kcat, where Debian's package is installed: list, produce, consume, query, a group."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from stratalog.broker.broker import Broker
from tests.compat.processes import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator

KCAT = shutil.which("kcat")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(KCAT is None, reason="kcat is not installed"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker"), config=SMALL) as broker:
        yield broker


def _kcat(broker: Broker, *args: str, stdin: str = "") -> str:
    command = [str(KCAT), "-b", broker.bootstrap_servers, "-q", *args]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_topic_is_listed(broker: Broker) -> None:
    broker.log_dir.create_topic("listed", 3)
    listing = json.loads(_kcat(broker, "-L", "-J", "-t", "listed"))
    assert [topic["topic"] for topic in listing["topics"]] == ["listed"]
    assert len(listing["topics"][0]["partitions"]) == 3
    assert listing["brokers"][0]["name"] == broker.bootstrap_servers


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_go_in_and_come_out(broker: Broker, codec: str) -> None:
    lines = [f"k{number}:value {number}" for number in range(100)]
    topic = f"codec-{codec}"
    broker.log_dir.create_topic(topic)
    _kcat(broker, "-P", "-t", topic, "-K", ":", "-z", codec, stdin="\n".join(lines))
    assert _kcat(broker, "-C", "-t", topic, "-K", ":", "-e").splitlines() == lines


def test_offsets_by_time(broker: Broker) -> None:
    broker.log_dir.create_topic("timed")
    for at_ms in (1000, 2000, 3000):
        broker.log_dir.append("timed", b"v", timestamp=at_ms)
    assert _kcat(broker, "-Q", "-t", "timed:0:1500").strip() == "timed [0] offset 1"


def test_a_group_consumes(broker: Broker) -> None:
    broker.log_dir.create_topic("grouped", 2)
    _kcat(broker, "-P", "-t", "grouped", stdin="\n".join(map(str, range(20))))
    args = ("-G", "kcat-group", "-c", "20", "-X", "auto.offset.reset=earliest", "grouped")
    assert sorted(map(int, _kcat(broker, *args).split())) == list(range(20))


def test_a_transaction(broker: Broker) -> None:
    broker.log_dir.create_topic("transactional")
    settings = ("-X", "transactional.id=kcat-txn")
    _kcat(broker, "-P", "-t", "transactional", *settings, stdin="a\nb\nc")
    read = ("-C", "-t", "transactional", "-e", "-X", "isolation.level=read_committed")
    assert _kcat(broker, *read).split() == ["a", "b", "c"]

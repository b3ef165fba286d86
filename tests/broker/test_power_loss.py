"""A power loss under the broker: what it had flushed is there, and the rest is a prefix."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from stratalog.broker.broker import Broker
from stratalog.broker.logs import Logs, WritableLogs
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log_dir import LogDir
from stratalog.wire.apis import ApiKey
from tests.broker.raw_client import RawClient
from tests.disks import SimulatedDisk
from tests.effort import scaled
from tests.opening import SMALL, kill

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.storage.disk import Disk

VALUES = [b"%d" % number for number in range(20)]


class BrokerOnDisk(Broker):
    """Writes to a disk that can lose power."""

    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(path, config=SMALL)
        self._disk = disk

    def _opened_logs(self) -> Logs:
        return WritableLogs(LogDir.open(*self._paths, config=SMALL, disk=self._disk))


def produce(client: RawClient, topic: str, value: bytes) -> None:
    """With acks=all."""
    records = encode_batch([Record(0, 1, key=None, value=value)], BatchFields())
    partition = {"index": 0, "records": records}
    body = {
        "transactionalId": None,
        "acks": -1,
        "timeoutMs": 1000,
        "topicData": [{"name": topic, "partitionData": [partition]}],
    }
    answer = client.call(ApiKey.PRODUCE, 9, body)
    assert answer["responses"][0]["partitionResponses"][0]["errorCode"] == 0


@pytest.mark.parametrize("seed", range(scaled(4)))
def test_what_was_flushed_survives(tmp_path: Path, seed: int) -> None:
    simulated = SimulatedDisk(tmp_path)
    with BrokerOnDisk(tmp_path, simulated.disk) as broker:
        broker.log_dir.create_topic("flushed", 1, config={"flush.messages": 1})
        broker.log_dir.create_topic("unflushed", 1)
        with RawClient(broker.bootstrap_servers) as client:
            for value in VALUES:
                produce(client, "flushed", value)
                produce(client, "unflushed", value)
        kill(broker.log_dir)  # from here on, nothing is written
    simulated.crash(random.Random(seed))
    with LogDir.open(tmp_path, config=SMALL, disk=simulated.disk) as logs:
        found = {
            topic: [record.value for record in logs.partition(topic, 0).read()]
            for topic in ("flushed", "unflushed")
        }
    assert found["flushed"] == VALUES
    assert found["unflushed"] == VALUES[: len(found["unflushed"])]

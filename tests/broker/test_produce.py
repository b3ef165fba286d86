from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.format.batch import Codec
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.broker.broker import Broker

NOW_MS = int(time.time() * 1000)


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    broker.log_dir.create_topic("t", 2)
    broker.log_dir.create_topic("compacted", 1, config={"cleanup.policy": "compact"})
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def _batch(*values: bytes, key: bytes | None = b"k", at_ms: int = NOW_MS, **fields: Any) -> bytes:
    records = [Record(offset, at_ms, key, value, ()) for offset, value in enumerate(values)]
    return encode_batch(records, BatchFields(**fields))


def _produce(data: bytes | None, *, topic: str = "t", acks: int = -1, **more: Any) -> Any:
    partition = {"index": more.pop("partition", 0), "records": data}
    return {
        "acks": acks,
        "timeoutMs": 1000,
        "topicData": [{"name": topic, "partitionData": [partition]}],
        **more,
    }


def _answer(client: RawClient, body: Any, version: int = 9) -> dict[str, Any]:
    (topic,) = client.call(ApiKey.PRODUCE, version, body)["responses"]
    (partition,) = topic["partitionResponses"]
    result: dict[str, Any] = partition
    return result


@pytest.mark.parametrize("version", range(3, 13))
def test_offsets_are_assigned(client: RawClient, version: int) -> None:
    assert _answer(client, _produce(_batch(b"a", b"b")), version)["baseOffset"] == 0
    second = _answer(client, _produce(_batch(b"c")), version)
    assert (second["baseOffset"], second["logAppendTimeMs"]) == (2, -1)


def test_version_13_names_topics_by_id(broker: Broker, client: RawClient) -> None:
    topics = client.call(ApiKey.METADATA, 12, {"topics": [{"name": "t"}]})["topics"]
    body = _produce(_batch(b"a"))
    body["topicData"][0]["topicId"] = topics[0]["topicId"]
    assert _answer(client, body, 13)["errorCode"] == 0
    body["topicData"][0]["topicId"] = "AAAAAAAAAAAAAAAAAAAAAQ"
    assert _answer(client, body, 13)["errorCode"] == ErrorCode.UNKNOWN_TOPIC_ID


def _damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


REFUSED = [
    pytest.param(_produce(_batch(b"a"), topic="missing"), 3, id="no topic"),
    pytest.param(_produce(_batch(b"a"), partition=7), 3, id="no partition"),
    pytest.param(_produce(None), 87, id="null records"),
    pytest.param(_produce(b""), 87, id="no records"),
    pytest.param(_produce(_batch(b"a") * 2), 87, id="two batches"),
    pytest.param(_produce(_batch(b"a"), acks=3), 21, id="acks"),
    pytest.param(_produce(_damaged(_batch(b"a"))), 2, id="CRC"),
    pytest.param(_produce(_batch(b"a" * 1_100_000)), 10, id="too large"),
    pytest.param(_produce(_batch(b"a", is_control=True)), 87, id="control batch"),
    pytest.param(_produce(_batch(b"a", key=None), topic="compacted"), 87, id="no key"),
    pytest.param(_produce(_batch(b"a", at_ms=NOW_MS + 7_200_000)), 32, id="future"),
    pytest.param(
        _produce(_batch(b"a", is_transactional=True, producer_id=5, producer_epoch=0)),
        53,
        id="transactional without id",
    ),
]


@pytest.mark.parametrize(("body", "code"), REFUSED)
def test_what_is_refused_changes_nothing(
    broker: Broker, client: RawClient, body: Any, code: int
) -> None:
    answer = _answer(client, body)
    assert answer["errorCode"] == code
    assert answer["baseOffset"] == -1
    for topic in ("t", "compacted"):
        assert broker.log_dir.partition(topic, 0).log_end_offset == 0
    assert _answer(client, _produce(_batch(b"good")))["errorCode"] == 0


def test_records_at_fault_are_named(client: RawClient) -> None:
    answer = _answer(client, _produce(_batch(b"a", b"b", key=None), topic="compacted"))
    assert [error["batchIndex"] for error in answer["recordErrors"]] == [0, 1]
    assert answer["logStartOffset"] == 0


def test_zstd_needs_version_7(client: RawClient) -> None:
    body = _produce(_batch(b"a" * 100, codec=Codec.ZSTD))
    assert _answer(client, body, 3)["errorCode"] == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert _answer(client, body, 7)["errorCode"] == 0


def test_an_idempotent_batch_that_comes_twice_is_stored_once(client: RawClient) -> None:
    def batch(sequence: int, epoch: int = 0) -> Any:
        fields: Any = {"producer_id": 7, "producer_epoch": epoch, "base_sequence": sequence}
        return _produce(_batch(b"a", b"b", **fields))

    assert _answer(client, batch(0))["baseOffset"] == 0
    assert _answer(client, batch(2))["baseOffset"] == 2
    again = _answer(client, batch(0))
    assert (again["errorCode"], again["baseOffset"]) == (0, 0)
    assert again["logAppendTimeMs"] == NOW_MS
    assert _answer(client, batch(9))["errorCode"] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert _answer(client, batch(0, epoch=1))["errorCode"] == 0
    assert _answer(client, batch(4))["errorCode"] == ErrorCode.INVALID_PRODUCER_EPOCH


def test_without_acks_there_is_no_answer(broker: Broker, client: RawClient) -> None:
    client.send(ApiKey.PRODUCE, 9, _produce(_batch(b"a"), acks=0))
    assert client.call(ApiKey.METADATA, 1, {"topics": []})["topics"] == []
    assert broker.log_dir.partition("t", 0).log_end_offset == 1


def test_a_failure_without_acks_closes_the_connection(client: RawClient) -> None:
    client.send(ApiKey.PRODUCE, 9, _produce(_batch(b"a"), topic="missing", acks=0))
    assert client.receive_frame() == b""


def test_log_append_time_is_told_and_stored(broker: Broker, client: RawClient) -> None:
    broker.log_dir.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    answer = _answer(client, _produce(_batch(b"a", at_ms=5), topic="stamped"))
    (record,) = broker.log_dir.partition("stamped", 0).read()
    assert answer["logAppendTimeMs"] == record.timestamp >= NOW_MS


def test_an_internal_topic_is_not_for_clients(broker: Broker, client: RawClient) -> None:
    broker.log_dir.create_topic("__consumer_offsets")
    answer = _answer(client, _produce(_batch(b"a"), topic="__consumer_offsets"))
    assert answer["errorCode"] == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_disk_that_takes_no_more_is_one_line_and_an_error_that_clients_retry(
    client: RawClient, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    assert _answer(client, _produce(_batch(b"first")))["baseOffset"] == 0
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # part of the batch is written
    try:
        answer = _answer(client, _produce(_batch(b"refused")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert answer["errorCode"] == ErrorCode.KAFKA_STORAGE_ERROR
    (line,) = [each for each in caplog.records if "t-0" in each.getMessage()]
    assert "File too large" in line.getMessage()
    assert line.exc_info is None
    assert _answer(client, _produce(_batch(b"second")))["baseOffset"] == 1
    values = [record.value for record in broker.log_dir.partition("t", 0).read()]
    assert values == [b"first", b"second"]

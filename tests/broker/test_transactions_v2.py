"""Transactions of clients that speak version 2 (Java from 4.0 on): nothing is announced, and each
transaction has an epoch of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.reader import IsolationLevel
from stratalog.producing.transaction_log import ProducerIdentity
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.broker.broker import Broker

ID, GROUP = "shop", "group"


class JavaProducer:
    """Sends what a Java producer of Kafka 4.0 sends."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        body = {"transactionalId": ID, "transactionTimeoutMs": 10_000}
        answer = client.call(ApiKey.INIT_PRODUCER_ID, 5, body)
        assert answer["errorCode"] == 0
        self.identity = ProducerIdentity(answer["producerId"], answer["producerEpoch"])

    def produce(self, partition: int, value: bytes, sequence: int = 0) -> int:
        """The error code."""
        fields = BatchFields(
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        records = encode_batch([Record(0, 1, key=None, value=value)], fields)
        topic = {"name": "orders", "partitionData": [{"index": partition, "records": records}]}
        body = {"transactionalId": ID, "acks": -1, "timeoutMs": 1000, "topicData": [topic]}
        answer = self._client.call(ApiKey.PRODUCE, 12, body)
        code: int = answer["responses"][0]["partitionResponses"][0]["errorCode"]
        return code

    def commit_offset(self, offset: int) -> int:
        """The error code."""
        partition = {"partitionIndex": 0, "committedOffset": offset, "committedMetadata": ""}
        body = {
            "transactionalId": ID,
            "groupId": GROUP,
            **self._identity_fields(),
            "topics": [{"name": "orders", "partitions": [partition]}],
        }
        answer = self._client.call(ApiKey.TXN_OFFSET_COMMIT, 5, body)
        code: int = answer["topics"][0]["partitions"][0]["errorCode"]
        return code

    def end(self, *, commit: bool) -> int:
        """The error code; continues with the identity of the answer."""
        body = {"transactionalId": ID, **self._identity_fields(), "committed": commit}
        answer = self._client.call(ApiKey.END_TXN, 5, body)
        if not answer["errorCode"]:
            self.identity = ProducerIdentity(answer["producerId"], answer["producerEpoch"])
        code: int = answer["errorCode"]
        return code

    def _identity_fields(self) -> dict[str, Any]:
        producer_id, epoch = self.identity
        return {"producerId": producer_id, "producerEpoch": epoch}


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    broker.log_dir.create_topic("orders", 2)
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def committed_offset(client: RawClient) -> int:
    topics = [{"name": "orders", "partitionIndexes": [0]}]
    body = {"groups": [{"groupId": GROUP, "topics": topics}], "requireStable": True}
    answer = client.call(ApiKey.OFFSET_FETCH, 9, body)
    offset: int = answer["groups"][0]["topics"][0]["partitions"][0]["committedOffset"]
    return offset


def committed(broker: Broker, partition: int) -> list[bytes | None]:
    log = broker.log_dir.partition("orders", partition)
    return [record.value for record in log.read(isolation=IsolationLevel.READ_COMMITTED)]


def test_a_log_that_does_not_know_the_producer_begins_with_its_first_batch(
    client: RawClient, broker: Broker
) -> None:
    """The second batch of a transaction overtook the first: the client sends it again."""
    producer = JavaProducer(client)
    assert producer.produce(0, b"second", sequence=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.produce(0, b"first") == 0
    assert producer.produce(0, b"second", sequence=1) == 0
    assert producer.end(commit=True) == 0
    assert committed(broker, 0) == [b"first", b"second"]


def test_transactions_follow_each_other(client: RawClient, broker: Broker) -> None:
    producer = JavaProducer(client)
    seen = []
    for number, commit in enumerate((True, False, True)):
        codes = [
            producer.produce(0, b"%d" % number),
            producer.produce(0, b"%d again" % number, sequence=1),
            producer.produce(1, b"%d" % number),
            producer.commit_offset(10 + number),
        ]
        assert codes == [0, 0, 0, 0]
        assert producer.end(commit=commit) == 0
        seen.append((producer.identity.producer_epoch, committed_offset(client)))
    assert seen == [(1, 10), (2, 10), (3, 12)]
    assert committed(broker, 0) == [b"0", b"0 again", b"2", b"2 again"]
    assert committed(broker, 1) == [b"0", b"2"]


def test_a_batch_of_the_last_transaction_comes_too_late(client: RawClient) -> None:
    producer = JavaProducer(client)
    producer.produce(0, b"1")
    before = producer.identity
    producer.end(commit=True)
    producer.identity = before
    for partition in (0, 1):
        assert producer.produce(partition, b"late", sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_empty_transaction_may_be_aborted_but_not_committed(client: RawClient) -> None:
    producer = JavaProducer(client)
    assert producer.end(commit=True) == ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=False) == 0
    assert producer.identity.producer_epoch == 1
    assert producer.produce(0, b"1") == 0
    assert producer.end(commit=True) == 0

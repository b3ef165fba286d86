"""Requests about transactions. The captured conversations are the measure of each answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stratalog.broker.broker import Broker
from stratalog.broker.transactions import join_transaction
from stratalog.errors import InvalidProducerEpochError, RequestError
from stratalog.format.messages.schema import read_message
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log_dir import LogDir
from stratalog.producing.transaction_log import ProducerIdentity
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from stratalog.wire.frames import read_request, response_header_bytes
from tests.broker.raw_client import RawClient
from tests.golden_wire import exchanges

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.golden_wire import Frame

OWN = {
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
}
ID = "shop"


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    broker.log_dir.create_topic("orders", 3)
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def init(client: RawClient, transactional_id: str | None = ID, **fields: Any) -> dict[str, Any]:
    body = {"transactionalId": transactional_id, "transactionTimeoutMs": 10_000, **fields}
    return client.call(ApiKey.INIT_PRODUCER_ID, 4, body)


def started(client: RawClient) -> ProducerIdentity:
    answer = init(client)
    return ProducerIdentity(answer["producerId"], answer["producerEpoch"])


def fields_of(identity: ProducerIdentity) -> dict[str, Any]:
    producer_id, epoch = identity
    return {"transactionalId": ID, "producerId": producer_id, "producerEpoch": epoch}


def add(
    client: RawClient, identity: ProducerIdentity, *numbers: int, version: int = 3
) -> list[int]:
    """The error code of each partition."""
    producer_id, epoch = identity
    body = {
        "v3AndBelowTransactionalId": ID,
        "v3AndBelowProducerId": producer_id,
        "v3AndBelowProducerEpoch": epoch,
        "v3AndBelowTopics": [{"name": "orders", "partitions": list(numbers)}],
    }
    answer = client.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, body)
    [topic] = answer["resultsByTopicV3AndBelow"]
    return [each["partitionErrorCode"] for each in topic["resultsByPartition"]]


def end(
    client: RawClient, identity: ProducerIdentity, *, commit: bool, version: int = 3
) -> dict[str, Any]:
    body = {**fields_of(identity), "committed": commit}
    return client.call(ApiKey.END_TXN, version, body)


def produce(broker: Broker, identity: ProducerIdentity) -> None:
    """What Produce appends, once it has joined the transaction."""
    fields = BatchFields(
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    batch = encode_batch([Record(0, 1, key=None, value=b"x")], fields)
    broker.log_dir.partition("orders", 0).append(batch)


# -- captured


@pytest.mark.parametrize("scenario", ["txn_errors", "v2_txn"])
def test_kafka_answered_the_same(client: RawClient, broker: Broker, scenario: str) -> None:
    """Apart from `_is_exception`: timing, and what another version of Kafka does."""
    conversation = _Conversation(client, broker)
    for request, response in exchanges("raw", scenario):
        if request.api_key in OWN and response is not None:
            conversation.replay(request, response)
    assert conversation.compared > 10


class _Conversation:
    """Sends what was sent, with our producer ids for those of Kafka."""

    def __init__(self, client: RawClient, broker: Broker) -> None:
        self._client = client
        self._broker = broker
        self._ours: dict[int, int] = {-1: -1}
        self.compared = 0

    def replay(self, request: Frame, response: Frame) -> None:
        api, version = ApiKey(request.api_key), request.api_version
        _, body = read_request(request.payload)
        at = len(response_header_bytes(api, version, 0))
        kafkas, _ = read_message(api.response, response.payload, at, version)
        for name in _topics_in(body):
            if name not in self._broker.log_dir.topics:
                self._broker.log_dir.create_topic(name, 3)
        if _is_time_out(request):
            self._broker.log_dir.coordinator.abort(body["transactionalId"])
        answer = self._client.call(api, version, self._translated(body))
        if api is ApiKey.INIT_PRODUCER_ID and not answer["errorCode"]:
            self._ours.setdefault(kafkas["producerId"], answer["producerId"])
        if not _is_exception(request, kafkas):
            assert _comparable(answer) == _comparable(self._translated(kafkas)), request
            self.compared += 1

    def _translated(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._translated(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            name: self._ours.get(each, each)
            if name.endswith("roducerId")
            else self._translated(each)
            for name, each in value.items()
        }


def _topics_in(body: dict[str, Any]) -> set[str]:
    listed = body.get("v3AndBelowTopics", [])
    for each in (*body.get("transactions", ()), *body.get("markers", ())):
        listed = listed + each["topics"]
    return {each["name"] for each in listed}


def _is_time_out(request: Frame) -> bool:
    """The pause in which Kafka aborted the transaction has to be taken as read."""
    return (
        request.scenario == "txn_errors"
        and request.api_key == ApiKey.END_TXN
        and (request.at_ms > 15_000)
    )


def _is_exception(request: Frame, kafkas: dict[str, Any]) -> bool:
    if kafkas.get("errorCode") == ErrorCode.CONCURRENT_TRANSACTIONS:
        return True  # markers are written before EndTxn is answered
    # Aborting without a partition is allowed since Kafka 4.0.0; the captured one is older.
    return request.scenario == "v2_txn" and request.at_ms > 1545


def _comparable(answer: Any) -> Any:
    """Without times; partitions of a topic in any order."""
    if isinstance(answer, list):
        listed = [_comparable(each) for each in answer]
        return sorted(listed, key=repr)
    if isinstance(answer, dict):
        skipped = {"transactionStartTimeMs", "throttleTimeMs"}
        return {name: _comparable(v) for name, v in answer.items() if name not in skipped}
    return answer


# -- by hand


def test_a_producer_without_a_transactional_id_gets_an_id(client: RawClient) -> None:
    first, second = init(client, None), init(client, None)
    assert (first["errorCode"], first["producerEpoch"]) == (0, 0)
    assert second["producerId"] == first["producerId"] + 1


def test_what_init_producer_id_refuses(client: RawClient) -> None:
    assert init(client, "")["errorCode"] == ErrorCode.INVALID_REQUEST
    assert init(client, producerId=7)["errorCode"] == ErrorCode.INVALID_REQUEST
    refused = init(client, transactionTimeoutMs=1_000_000)
    assert (refused["errorCode"], refused["producerId"], refused["producerEpoch"]) == (50, -1, -1)


def test_old_clients_get_the_error_that_they_know(client: RawClient) -> None:
    fenced = started(client)
    started(client)
    assert [add(client, fenced, 0, version=v) for v in range(4)] == [[47], [47], [90], [90]]
    ends = [end(client, fenced, commit=True, version=v)["errorCode"] for v in range(6)]
    assert ends == [47, 47, 90, 90, 90, 90]
    codes = []
    for version in (3, 4):
        body = {**fields_of(fenced), "transactionTimeoutMs": 1000}
        codes.append(client.call(ApiKey.INIT_PRODUCER_ID, version, body)["errorCode"])
    assert codes == [47, 90]


def test_partitions_are_added_all_or_none(client: RawClient) -> None:
    identity = started(client)
    assert add(client, identity, 0, 88) == [55, 3]
    [state] = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactionalIds": [ID]})[
        "transactionStates"
    ]
    assert (state["transactionState"], state["topics"]) == ("Empty", [])
    assert add(client, identity, 0, 2) == [0, 0]


def test_producers_of_a_partition(client: RawClient, broker: Broker) -> None:
    txn = broker.log_dir.transaction("other")
    txn.append("orders", b"x", partition=0).result()
    asked = [{"name": "orders", "partitionIndexes": [0, 1, 9]}]
    answer = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": asked})
    partitions = answer["topics"][0]["partitions"]
    assert [each["errorCode"] for each in partitions] == [0, 0, 3]
    [producer] = partitions[0]["activeProducers"]
    assert (producer["lastSequence"], producer["coordinatorEpoch"]) == (0, -1)
    assert producer["currentTxnStartOffset"] == 0
    txn.commit()
    [producer] = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": asked})["topics"][0][
        "partitions"
    ][0]["activeProducers"]
    assert (producer["coordinatorEpoch"], producer["currentTxnStartOffset"]) == (0, -1)


def test_lists_are_filtered(client: RawClient) -> None:
    identity = started(client)
    add(client, identity, 0)
    init(client, "other")

    def listed(**filters: Any) -> list[str]:
        body = {"stateFilters": [], "producerIdFilters": [], **filters}
        answer = client.call(ApiKey.LIST_TRANSACTIONS, 2, body)
        assert answer["errorCode"] == (128 if filters == {"transactionalIdPattern": "["} else 0)
        return sorted(each["transactionalId"] for each in answer["transactionStates"])

    assert listed() == ["other", ID]
    assert listed(stateFilters=["Ongoing"]) == [ID]
    assert listed(stateFilters=["Bogus"]) == []
    assert listed(producerIdFilters=[identity.producer_id]) == [ID]
    assert listed(stateFilters=["Ongoing"], durationFilter=100_000) == []
    assert listed(transactionalIdPattern="o.*") == ["other"]
    assert listed(transactionalIdPattern="o") == []
    assert listed(transactionalIdPattern="[") == []


def test_transactions_are_shown_read_only(tmp_path: Path) -> None:
    data = tmp_path / "dead"
    with LogDir.open(data) as logs:
        logs.create_topic("orders", 2)
        with logs.transaction("done") as txn:
            txn.append("orders", b"x", partition=0)
        [producer_id] = logs.partition("orders", 0).producers.producers
    with Broker(data, read_only=True) as broker, RawClient(broker.bootstrap_servers) as client:
        [listed] = client.call(ApiKey.LIST_TRANSACTIONS, 1)["transactionStates"]
        assert listed == {
            "transactionalId": "done",
            "producerId": producer_id,
            "transactionState": "CompleteCommit",
        }
        asked = {"transactionalIds": ["done", "none"]}
        states = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, asked)["transactionStates"]
        assert [state["errorCode"] for state in states] == [0, 105]
        topics = [{"name": "orders", "partitionIndexes": [0, 1, 2]}]
        [topic] = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics})["topics"]
        assert [each["errorCode"] for each in topic["partitions"]] == [0, 0, 3]
        [producer] = topic["partitions"][0]["activeProducers"]
        assert (producer["producerId"], producer["currentTxnStartOffset"]) == (producer_id, -1)


class TestJoin:
    """What Produce does before it appends a transactional batch."""

    @pytest.fixture
    def identity(self, client: RawClient) -> ProducerIdentity:
        return started(client)

    def join(self, broker: Broker, identity: ProducerIdentity, version: int) -> None:
        join_transaction(
            broker._context, broker.log_dir.partition("orders", 0), ID, identity, version
        )

    @pytest.mark.parametrize(("version", "code"), [(3, 48), (10, 48), (11, 120)])
    def test_a_partition_that_was_not_added(
        self, broker: Broker, identity: ProducerIdentity, version: int, code: int
    ) -> None:
        with pytest.raises(RequestError) as refused:
            self.join(broker, identity, version)
        assert refused.value.code == code

    def test_one_that_was_added(
        self, broker: Broker, client: RawClient, identity: ProducerIdentity
    ) -> None:
        add(client, identity, 0)
        self.join(broker, identity, 9)

    def test_version_2_adds_it(
        self, broker: Broker, client: RawClient, identity: ProducerIdentity
    ) -> None:
        self.join(broker, identity, 12)
        after = end(client, identity, commit=True, version=5)
        assert (after["errorCode"], after["producerEpoch"]) == (0, 1)

    def test_a_fenced_producer(
        self, broker: Broker, client: RawClient, identity: ProducerIdentity
    ) -> None:
        started(client)
        for version in (9, 12):
            with pytest.raises(RequestError) as refused:
                self.join(broker, identity, version)
            assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH

    def test_the_log_itself_refuses_a_zombie_while_its_successor_writes(
        self, broker: Broker, client: RawClient, identity: ProducerIdentity
    ) -> None:
        successor = started(client)
        add(client, successor, 0)
        produce(broker, successor)
        for version in (9, 12):
            self.join(broker, identity, version)
        with pytest.raises(InvalidProducerEpochError):
            produce(broker, identity)

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.broker.fetch_sessions import (
    EVICTION_MS,
    FetchedPartition,
    FetchSessions,
    PartitionKey,
)
from stratalog.errors import RequestError
from stratalog.format.batch import BatchHeader
from stratalog.format.record import BatchFields, Record, decode_records, encode_batch
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.broker.broker import Broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def _batch(*values: bytes) -> bytes:
    now_ms = int(time.time() * 1000)
    records = [Record(offset, now_ms, None, value, ()) for offset, value in enumerate(values)]
    return encode_batch(records, BatchFields())


def _records(data: bytes) -> list[Record]:
    return list(decode_records(data, 0, BatchHeader.unpack(data)))


def _fetch(
    *partitions: tuple[int, int],
    wait_ms: int = 0,
    session: tuple[int, int] = (0, -1),
    topic: str = "t",
    bytes_max: int = 1 << 20,
    partition_bytes: int = 1 << 20,
    bytes_min: int = 1,
    isolation: int = 0,
    forgotten: tuple[int, ...] = (),
    **more: Any,
) -> dict[str, Any]:
    wanted = [
        {"partition": at, "fetchOffset": offset, "partitionMaxBytes": partition_bytes, **more}
        for at, offset in partitions
    ]
    return {
        "maxWaitMs": wait_ms,
        "minBytes": bytes_min,
        "maxBytes": bytes_max,
        "isolationLevel": isolation,
        "sessionId": session[0],
        "sessionEpoch": session[1],
        "topics": [{"topic": topic, "partitions": wanted}] if wanted else [],
        "forgottenTopicsData": [{"topic": topic, "partitions": list(forgotten)}]
        if forgotten
        else [],
    }


def _parts(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    assert answer.get("errorCode", 0) == 0
    return {
        partition["partitionIndex"]: partition
        for topic in answer["responses"]
        for partition in topic["partitions"]
    }


@pytest.mark.parametrize("version", range(4, 13))
def test_a_batch_comes_back_byte_for_byte(broker: Broker, client: RawClient, version: int) -> None:
    log = _log(broker)
    log.append(_batch(b"a", b"b"))
    answer = client.call(ApiKey.FETCH, version, _fetch((0, 0)))
    (partition,) = _parts(answer).values()
    assert bytes(partition["records"]) == log.segments[0].file.read(0, 1 << 20)
    assert (partition["errorCode"], partition["highWatermark"]) == (0, 2)
    assert partition["abortedTransactions"] is None


def _log(broker: Broker, partitions: int = 1) -> Any:
    if "t" not in broker.log_dir.topics:
        broker.log_dir.create_topic("t", partitions)
    return broker.log_dir.partition("t", 0)


def test_an_offset_inside_a_batch_gets_the_whole_batch(broker: Broker, client: RawClient) -> None:
    _log(broker).append(_batch(b"a", b"b", b"c"))
    (partition,) = _parts(client.call(ApiKey.FETCH, 11, _fetch((0, 2)))).values()
    records = _records(bytes(partition["records"]))
    assert [record.value for record in records] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("offset", [-1, 4])
def test_an_offset_outside_the_log(broker: Broker, client: RawClient, offset: int) -> None:
    _log(broker).append(_batch(b"a", b"b", b"c"))
    body = _fetch((0, offset), wait_ms=5000)
    (partition,) = _parts(client.call(ApiKey.FETCH, 11, body)).values()
    assert partition["errorCode"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (partition["highWatermark"], partition["logStartOffset"]) == (-1, -1)
    assert bytes(partition["records"]) == b""


def test_limits_hold_after_the_first_batch(broker: Broker, client: RawClient) -> None:
    _log(broker, 2)
    for number in (0, 1):
        for _ in range(3):
            broker.log_dir.partition("t", number).append(_batch(b"x" * 1000))
    size = len(_batch(b"x" * 1000))
    whole = _parts(client.call(ApiKey.FETCH, 11, _fetch((0, 0), (1, 0), bytes_max=10)))
    assert [len(whole[number]["records"]) for number in (0, 1)] == [size, 0]
    cut = _parts(client.call(ApiKey.FETCH, 11, _fetch((0, 0), partition_bytes=size + 100)))
    assert len(cut[0]["records"]) == size + 100
    both = _parts(client.call(ApiKey.FETCH, 11, _fetch((0, 0), (1, 0), bytes_max=size * 4)))
    assert [len(both[number]["records"]) for number in (0, 1)] == [size * 3, size]


def test_leader_epochs(broker: Broker, client: RawClient) -> None:
    _log(broker).append(_batch(b"a"))
    newer = client.call(ApiKey.FETCH, 12, _fetch((0, 0), currentLeaderEpoch=5))
    assert _parts(newer)[0]["errorCode"] == ErrorCode.UNKNOWN_LEADER_EPOCH
    _log(broker).become_leader(3)
    older = client.call(ApiKey.FETCH, 12, _fetch((0, 0), currentLeaderEpoch=1))
    assert _parts(older)[0]["errorCode"] == ErrorCode.FENCED_LEADER_EPOCH
    diverged = client.call(ApiKey.FETCH, 12, _fetch((0, 5), lastFetchedEpoch=0))
    assert _parts(diverged)[0]["divergingEpoch"] == {"epoch": 0, "endOffset": 1}


def test_a_long_poll_ends_with_the_next_record(broker: Broker, client: RawClient) -> None:
    _log(broker)
    correlation_id = client.send(ApiKey.FETCH, 11, _fetch((0, 0), wait_ms=20_000))
    with RawClient(broker.bootstrap_servers) as other:
        timer = threading.Timer(0.1, other.call, (ApiKey.PRODUCE, 9, _produce(b"new")))
        started = time.monotonic()
        timer.start()
        answer = client.answer(ApiKey.FETCH, 11, correlation_id)
        timer.join()
    assert time.monotonic() - started < 5
    records = _records(bytes(_parts(answer)[0]["records"]))
    assert [record.value for record in records] == [b"new"]


def _produce(value: bytes) -> dict[str, Any]:
    partition = {"index": 0, "records": _batch(value)}
    return {
        "acks": -1,
        "timeoutMs": 1000,
        "topicData": [{"name": "t", "partitionData": [partition]}],
    }


def test_a_long_poll_ends_with_its_time(broker: Broker, client: RawClient) -> None:
    _log(broker)
    started = time.monotonic()
    answer = client.call(ApiKey.FETCH, 11, _fetch((0, 0), wait_ms=150))
    assert 0.1 < time.monotonic() - started < 5
    assert bytes(_parts(answer)[0]["records"]) == b""


def test_a_client_that_goes_away_leaves_nothing_behind(broker: Broker) -> None:
    _log(broker)
    with RawClient(broker.bootstrap_servers) as client:
        client.send(ApiKey.FETCH, 11, _fetch((0, 0), wait_ms=600_000))
        time.sleep(0.1)
    with RawClient(broker.bootstrap_servers) as client:
        assert client.call(ApiKey.PRODUCE, 9, _produce(b"a"))["responses"]
    deadline = time.monotonic() + 5
    while broker.connection_count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert broker.connection_count == 0


def test_a_session_tells_news_only(broker: Broker, client: RawClient) -> None:
    _log(broker, 2)
    first = client.call(ApiKey.FETCH, 11, _fetch((0, 0), (1, 0), session=(0, 0)))
    session_id = first["sessionId"]
    assert session_id > 0
    assert _parts(first).keys() == {0, 1}
    assert _parts(client.call(ApiKey.FETCH, 11, _fetch(session=(session_id, 1)))) == {}
    broker.log_dir.partition("t", 1).append(_batch(b"a"))
    news = client.call(ApiKey.FETCH, 11, _fetch(session=(session_id, 2)))
    assert _parts(news).keys() == {1}
    assert news["sessionId"] == session_id
    moved = client.call(ApiKey.FETCH, 11, _fetch((1, 1), session=(session_id, 3)))
    assert _parts(moved) == {}
    broker.log_dir.partition("t", 1).append(_batch(b"b"))
    forgotten = client.call(ApiKey.FETCH, 11, _fetch(session=(session_id, 4), forgotten=(1,)))
    assert _parts(forgotten) == {}
    wrong = client.call(ApiKey.FETCH, 11, _fetch(session=(session_id, 9)))
    assert (wrong["errorCode"], wrong["sessionId"]) == (71, 0)
    unknown = client.call(ApiKey.FETCH, 11, _fetch(session=(session_id + 1, 1)))
    assert (unknown["errorCode"], unknown["sessionId"]) == (70, 0)
    closed = client.call(ApiKey.FETCH, 11, _fetch((0, 0), session=(session_id, -1)))
    assert closed["sessionId"] == 0
    assert _parts(closed).keys() == {0}
    gone = client.call(ApiKey.FETCH, 11, _fetch(session=(session_id, 5)))
    assert gone["errorCode"] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_topics_by_id(broker: Broker, client: RawClient) -> None:
    _log(broker).append(_batch(b"a"))
    (topic,) = client.call(ApiKey.METADATA, 12, {"topics": None})["topics"]
    body = _fetch((0, 0), session=(0, 0))
    body["topics"][0]["topicId"] = topic["topicId"]
    answer = client.call(ApiKey.FETCH, 17, body)
    assert answer["responses"][0]["topicId"] == topic["topicId"]
    assert len(_parts(answer)[0]["records"]) > 0
    switched = client.call(ApiKey.FETCH, 12, _fetch(session=(answer["sessionId"], 1)))
    assert switched["errorCode"] == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    body["topics"][0]["topicId"] = "AAAAAAAAAAAAAAAAAAAAAQ"
    unknown = client.call(ApiKey.FETCH, 17, body)
    assert _parts(unknown)[0]["errorCode"] == ErrorCode.UNKNOWN_TOPIC_ID
    assert unknown["sessionId"] > 0


def test_read_committed_stops_at_an_open_transaction(broker: Broker, client: RawClient) -> None:
    _log(broker)
    producer = broker.log_dir.transactional_producer("aborted", linger_ms=0)
    with producer.transaction() as txn:
        txn.append("t", b"no").result()
        first = client.call(ApiKey.FETCH, 11, _fetch((0, 0), isolation=1))
        assert len(_parts(first)[0]["records"]) == 0
        assert _parts(first)[0]["lastStableOffset"] == 0
        seen = client.call(ApiKey.FETCH, 11, _fetch((0, 0), isolation=0))
        assert len(_parts(seen)[0]["records"]) > 0
        txn.abort()
    answer = client.call(ApiKey.FETCH, 11, _fetch((0, 0), isolation=1))
    (aborted,) = _parts(answer)[0]["abortedTransactions"]
    assert aborted["firstOffset"] == 0
    assert len(_parts(answer)[0]["records"]) > 0


def test_the_session_cache_replaces_what_is_old_or_small() -> None:
    sessions = FetchSessions(sessions_max=2)
    first = sessions.opened(1, uses_ids=False, now_ms=0)
    second = sessions.opened(5, uses_ids=False, now_ms=1)
    assert first is not None
    assert second is not None
    for session, count in ((first, 1), (second, 5)):
        session.update(
            [FetchedPartition(PartitionKey("t", n), 0, 1, -1, -1) for n in range(count)], ()
        )
    assert sessions.opened(9, uses_ids=False, now_ms=2) is None
    body = {"sessionId": first.session_id, "sessionEpoch": 1}
    assert sessions.continued(body, uses_ids=False, now_ms=EVICTION_MS) is first
    third = sessions.opened(1, uses_ids=False, now_ms=EVICTION_MS + 2)
    assert third is not None
    with pytest.raises(RequestError):
        sessions.continued(
            {"sessionId": second.session_id, "sessionEpoch": 1}, uses_ids=False, now_ms=0
        )
    assert len(sessions) == 2


def test_an_answer_copies_little_however_many_partitions_it_has(
    broker: Broker, client: RawClient
) -> None:
    """The rest are slices of files: they come back the same."""
    count, size = 20, 50_000
    _log(broker, count)
    for number in range(count):
        broker.log_dir.partition("t", number).append(_batch(b"%02d" % number * (size // 2)))
    wanted = [(number, 0) for number in range(count)]
    answer = client.call(ApiKey.FETCH, 11, _fetch(*wanted, bytes_max=50 << 20))
    for number, partition in _parts(answer).items():
        (record,) = _records(bytes(partition["records"]))
        assert record.value == b"%02d" % number * (size // 2)


def test_an_unknown_partition_ends_the_wait_if_there_is_no_other(
    broker: Broker, client: RawClient
) -> None:
    _log(broker)
    started = time.monotonic()
    alone = client.call(ApiKey.FETCH, 11, _fetch((7, 0), wait_ms=60_000))
    assert _parts(alone)[7]["errorCode"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert time.monotonic() - started < 30
    started = time.monotonic()
    beside = client.call(ApiKey.FETCH, 11, _fetch((0, 0), (7, 0), wait_ms=200))
    assert _parts(beside).keys() == {0, 7}
    assert time.monotonic() - started > 0.15

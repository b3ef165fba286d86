"""Fetch: send batches of a log to clients, as slices of its files.

A request that finds less than it wants waits: until enough has been appended, or its time is over.
The partitions it names wake it; nothing is polled.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from stratalog.broker.authorization import Operation, Resource
from stratalog.broker.connection import FileSlice
from stratalog.broker.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchedPartition,
    FetchSessions,
    PartitionKey,
)
from stratalog.broker.logs import checked_log
from stratalog.broker.offsets import READ_COMMITTED
from stratalog.broker.requests import Deferred, HandlerGroup, handles
from stratalog.errors import OffsetOutOfRangeError, RequestError, StratalogError
from stratalog.format.names import TopicPartition
from stratalog.log.slices import find_slice
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.broker.context import BrokerContext
    from stratalog.broker.fetch_sessions import FetchSession
    from stratalog.broker.logs import ServedLog
    from stratalog.broker.reactor import Timer
    from stratalog.broker.requests import Request, Response
    from stratalog.log.slices import LogSlice
    from stratalog.wire.frames import Body

_log = logging.getLogger(__name__)

FETCH_BYTES_MAX: Final = 55 << 20
"""Kafka's default of `fetch.max.bytes`."""
_BY_ID_SINCE: Final = 13
_SESSIONS_SINCE: Final = 7
_COPY_BYTES_MAX: Final = 64 << 10
"""Smaller slices are read and sent with the rest of the response: one system call less."""
_COPIES_BYTES_MAX: Final = 256 << 10
"""Of all slices of a response: a client that does not read it takes no more memory."""
_UNKNOWN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""Errors that do not end the wait as long as another partition may still get records."""


class FetchHandlers(HandlerGroup):
    """The handler of this module."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self.sessions = FetchSessions()

    @handles(ApiKey.FETCH)
    def fetch(self, request: Request) -> Response:
        try:
            fetch = self._started(request)
        except RequestError as error:
            return {"errorCode": int(error.code), "sessionId": NO_SESSION}
        return fetch.response()

    def _started(self, request: Request) -> _Fetch:
        body, version = request.body, request.version
        uses_ids = version >= _BY_ID_SINCE
        wanted = list(_wanted(body, uses_ids=uses_ids))
        session_id, epoch = NO_SESSION, FINAL_EPOCH
        if version >= _SESSIONS_SINCE:
            session_id, epoch = body["sessionId"], body["sessionEpoch"]
        now_ms = self._context.reactor.now_ms()
        if epoch in {INITIAL_EPOCH, FINAL_EPOCH}:
            if session_id != NO_SESSION:
                self.sessions.close(session_id)
            session = None
            if epoch == INITIAL_EPOCH:
                session = self.sessions.opened(len(wanted), uses_ids=uses_ids, now_ms=now_ms)
                if session is not None:
                    session.update(wanted, ())
            return _Fetch(self._context, request, wanted, session)
        session = self.sessions.continued(body, uses_ids=uses_ids, now_ms=now_ms)
        session.update(wanted, _forgotten(body, uses_ids=uses_ids))
        return _Fetch(self._context, request, None, session)


def _wanted(body: Body, *, uses_ids: bool) -> Iterator[FetchedPartition]:
    for topic in body["topics"]:
        name = topic["topicId" if uses_ids else "topic"]
        for partition in topic["partitions"]:
            yield FetchedPartition(
                PartitionKey(name, partition["partition"]),
                partition["fetchOffset"],
                partition["partitionMaxBytes"],
                partition.get("currentLeaderEpoch", -1),
                partition.get("lastFetchedEpoch", -1),
            )


def _forgotten(body: Body, *, uses_ids: bool) -> Iterator[PartitionKey]:
    for topic in body["forgottenTopicsData"]:
        name = topic["topicId" if uses_ids else "topic"]
        for partition in topic["partitions"]:
            yield PartitionKey(name, partition)


class _Fetch:
    """One request: it reads, perhaps waits, and reads again."""

    def __init__(
        self,
        context: BrokerContext,
        request: Request,
        wanted: list[FetchedPartition] | None,
        session: FetchSession | None,
    ) -> None:
        """`wanted` None: an incremental request, for all partitions of the session."""
        self._context = context
        self._request = request
        self._is_incremental = wanted is None
        self._session = session
        known = () if session is None else session.partitions.values()
        self._partitions = list(known) if wanted is None else wanted
        body = request.body
        self._bytes_max = min(body.get("maxBytes", FETCH_BYTES_MAX), FETCH_BYTES_MAX)
        self._bytes_min = min(body["minBytes"], self._bytes_max)
        self._is_committed = body["isolationLevel"] == READ_COMMITTED
        self._watched: list[TopicPartition] = []
        self._deferred: Deferred | None = None
        self._timer: Timer | None = None

    def response(self) -> Response:
        """The response, or a promise of it."""
        results, is_enough = self._read()
        wait_ms = self._request.body["maxWaitMs"]
        if is_enough or wait_ms <= 0 or not self._partitions:
            return self._body(results)
        self._deferred = Deferred(self._stop_waiting)
        for partition in self._partitions:
            name = self._topic_of(partition.key)
            if name is not None:
                tp = TopicPartition(name, partition.key.partition)
                self._context.changes.wait(tp, self, self._on_change)
                self._watched.append(tp)
        self._timer = self._context.reactor.call_later(wait_ms, self._on_timeout)
        return self._deferred

    # -- waiting

    def _on_change(self) -> None:
        """A partition has changed."""
        results, is_enough = self._read()
        if is_enough:
            self._finish(results)

    def _on_timeout(self) -> None:
        self._finish(self._read()[0])

    def _finish(self, results: list[tuple[FetchedPartition, Body]]) -> None:
        self._stop_waiting()
        if self._deferred is not None:
            self._deferred.respond(self._body(results))

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for tp in self._watched:
            self._context.changes.forget(tp, self)
        self._watched = []

    # -- reading

    def _read(self) -> tuple[list[tuple[FetchedPartition, Body]], bool]:
        """What each partition has now, and whether that is enough for a response."""
        left, found_bytes, copied_bytes, is_enough = self._bytes_max, 0, 0, False
        results = []
        for partition in self._partitions:
            response: Body = {"partitionIndex": partition.key.partition}
            try:
                piece = self._read_partition(partition, response, left, is_first=found_bytes == 0)
                records = (
                    b"" if piece is None else _as_piece(piece, _COPIES_BYTES_MAX - copied_bytes)
                )
            except (StratalogError, OSError) as error:
                code = self._error_code(error, partition)
                is_enough = is_enough or code not in _UNKNOWN
                results.append((partition, _failed(partition, code)))
                continue
            size_bytes = 0 if piece is None else piece.size_bytes
            found_bytes += size_bytes
            left = max(0, left - size_bytes)
            copied_bytes += len(records) if isinstance(records, bytes) else 0
            response["records"] = records
            is_enough = is_enough or "divergingEpoch" in response
            results.append((partition, response))
        is_all_unknown = all(response.get("errorCode") in _UNKNOWN for _, response in results)
        return results, is_enough or is_all_unknown or found_bytes >= self._bytes_min

    @staticmethod
    def _error_code(error: StratalogError | OSError, partition: FetchedPartition) -> int:
        if isinstance(error, OffsetOutOfRangeError):
            return ErrorCode.OFFSET_OUT_OF_RANGE
        code = getattr(error, "code", None)
        if code is None:
            _log.error("cannot read %s: %s", partition.key, error)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        return int(code)

    def _read_partition(
        self, partition: FetchedPartition, response: Body, left: int, *, is_first: bool
    ) -> LogSlice | None:
        """Fill in the response; what to send of the log."""
        log = self._log(partition)
        # Another process may replace the files of a log that is served read-only.
        return log.retry_if_gone(
            lambda: self._read_log(log, partition, response, left, is_first=is_first)
        )

    def _read_log(
        self,
        log: ServedLog,
        partition: FetchedPartition,
        response: Body,
        left: int,
        *,
        is_first: bool,
    ) -> LogSlice | None:
        offset = partition.fetch_offset
        if _diverges(log, partition, response):
            return None
        end = log.last_stable_offset if self._is_committed else log.high_watermark
        response["highWatermark"] = log.high_watermark
        response["lastStableOffset"] = log.last_stable_offset
        response["logStartOffset"] = log.log_start_offset
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise RequestError(ErrorCode.OFFSET_OUT_OF_RANGE)
        bytes_max = min(partition.bytes_max, left)
        piece = find_slice(log, offset, end, bytes_max, is_first_whole=is_first)
        if self._is_committed:
            response["abortedTransactions"] = [] if piece is None else _aborted(log, offset, piece)
        return piece

    def _log(self, partition: FetchedPartition) -> ServedLog:
        name = self._topic_of(partition.key)
        if name is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID)
        if not self._context.authorizer.allows(
            self._request.session, Operation.READ, Resource.TOPIC, name
        ):
            raise RequestError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return checked_log(
            self._context.logs, name, partition.key.partition, partition.leader_epoch
        )

    def _topic_of(self, key: PartitionKey) -> str | None:
        if self._request.version < _BY_ID_SINCE:
            return key.topic
        return self._context.logs.name_of(key.topic)

    # -- the response

    def _body(self, results: list[tuple[FetchedPartition, Body]]) -> Body:
        session = self._session
        topics: dict[str, list[Body]] = {}
        for partition, response in results:
            is_named = not self._is_incremental or _is_news(partition, response)
            self._note_sent(partition, response)
            if is_named:
                topics.setdefault(partition.key.topic, []).append(response)
        name_field = "topicId" if self._request.version >= _BY_ID_SINCE else "topic"
        return {
            "sessionId": NO_SESSION if session is None else session.session_id,
            "responses": [
                {name_field: topic, "partitions": responses} for topic, responses in topics.items()
            ],
        }

    def _note_sent(self, partition: FetchedPartition, response: Body) -> None:
        """For the next request of the session."""
        partition.last_sent = None if response.get("errorCode") else _offsets_of(response)
        if self._session is not None and response["records"]:
            known = self._session.partitions
            if partition.key in known:
                known.move_to_end(partition.key)  # the others are served first next time


def _is_news(partition: FetchedPartition, response: Body) -> bool:
    """Whether an incremental response names the partition."""
    has_more = response.get("errorCode") or response["records"] or "divergingEpoch" in response
    return bool(has_more) or _offsets_of(response) != partition.last_sent


def _offsets_of(response: Body) -> tuple[int, int, int]:
    return (
        response["highWatermark"],
        response.get("lastStableOffset", -1),
        response.get("logStartOffset", -1),
    )


def _failed(partition: FetchedPartition, code: int) -> Body:
    return {
        "partitionIndex": partition.key.partition,
        "errorCode": code,
        "highWatermark": -1,
        "abortedTransactions": [] if code in _UNKNOWN else None,
        "records": b"",
    }


def _diverges(log: ServedLog, partition: FetchedPartition, response: Body) -> bool:
    """Whether the log has other records than the client has read; if so, the response says since
    when."""
    if partition.last_fetched_epoch < 0:
        return False
    epoch, end_offset = log.end_offset_for_epoch(partition.last_fetched_epoch)
    if epoch < 0:
        raise RequestError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch >= partition.last_fetched_epoch and end_offset >= partition.fetch_offset:
        return False
    response["highWatermark"] = log.high_watermark
    response["lastStableOffset"] = log.last_stable_offset
    response["logStartOffset"] = log.log_start_offset
    response["divergingEpoch"] = {"epoch": epoch, "endOffset": end_offset}
    return True


def _aborted(log: ServedLog, offset: int, piece: LogSlice) -> list[dict[str, Any]]:
    """The aborted transactions that the records of the slice may belong to."""
    return [
        {"producerId": txn.producer_id, "firstOffset": txn.first_offset}
        for txn in log.aborted_transactions(offset, piece.end_offset)
    ]


def _as_piece(piece: LogSlice, copy_bytes_left: int) -> bytes | FileSlice:
    if piece.size_bytes <= min(_COPY_BYTES_MAX, copy_bytes_left):
        return piece.file.read(piece.position, piece.size_bytes)
    return FileSlice(piece.file, piece.position, piece.size_bytes)

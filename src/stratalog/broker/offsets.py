"""ListOffsets and OffsetForLeaderEpoch: which offset belongs to a time or to a leader epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.broker.authorization import Operation, Resource
from stratalog.broker.logs import checked_log
from stratalog.broker.requests import HandlerGroup, handles
from stratalog.errors import RequestError, StratalogError
from stratalog.log.reader import find_max_timestamp
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from stratalog.broker.context import BrokerContext
    from stratalog.broker.logs import ServedLog
    from stratalog.broker.requests import Request
    from stratalog.wire.frames import Body

LATEST: Final = -1
EARLIEST: Final = -2
LARGEST_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_SINCE: Final = {
    LATEST: 0,
    EARLIEST: 0,
    LARGEST_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version of ListOffsets that accepts each special timestamp."""
READ_COMMITTED: Final = 1


class FoundOffset(NamedTuple):
    """The result of a lookup; -1 where there is none."""

    offset: int = -1
    timestamp: int = -1


class OffsetHandlers(HandlerGroup):
    """The handlers of this module."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    @handles(ApiKey.LIST_OFFSETS)
    def list_offsets(self, request: Request) -> Body:
        is_committed = request.body.get("isolationLevel") == READ_COMMITTED
        topics = [
            {
                "name": topic["name"],
                "partitions": [
                    self._listed(topic["name"], partition, request, is_committed=is_committed)
                    for partition in topic["partitions"]
                ],
            }
            for topic in request.body["topics"]
        ]
        return {"topics": topics}

    def _listed(self, topic: str, partition: Body, request: Request, *, is_committed: bool) -> Body:
        response: Body = {"partitionIndex": partition["partitionIndex"]}
        try:
            _check_timestamp(partition["timestamp"], request.version)
            log = self._log(topic, partition["partitionIndex"], partition, request)
            found = _found(log, partition["timestamp"], is_committed=is_committed)
        except StratalogError as error:
            return {**response, "errorCode": _code_of(error)}
        epoch = -1
        if found.offset >= 0:
            epoch = _epoch_at(log, found.offset)
        return {**response, **found._asdict(), "leaderEpoch": epoch}

    @handles(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    def offset_for_leader_epoch(self, request: Request) -> Body:
        topics = [
            {
                "topic": topic["topic"],
                "partitions": [
                    self._epoch_end(topic["topic"], partition, request)
                    for partition in topic["partitions"]
                ],
            }
            for topic in request.body["topics"]
        ]
        return {"topics": topics}

    def _epoch_end(self, topic: str, partition: Body, request: Request) -> Body:
        response: Body = {"partition": partition["partition"]}
        try:
            log = self._log(topic, partition["partition"], partition, request)
        except StratalogError as error:
            return {**response, "errorCode": _code_of(error)}
        epoch, end_offset = log.end_offset_for_epoch(partition["leaderEpoch"])
        return {**response, "leaderEpoch": epoch, "endOffset": end_offset}

    def _log(self, topic: str, number: int, partition: Body, request: Request) -> ServedLog:
        if not self._context.authorizer.allows(
            request.session, Operation.DESCRIBE, Resource.TOPIC, topic
        ):
            raise RequestError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        epoch = partition.get("currentLeaderEpoch", -1)
        return checked_log(self._context.logs, topic, number, epoch)


def _code_of(error: StratalogError) -> int:
    """Unreadable files have no code of their own: KAFKA_STORAGE_ERROR."""
    return int(getattr(error, "code", ErrorCode.KAFKA_STORAGE_ERROR))


def _check_timestamp(timestamp: int, version: int) -> None:
    if timestamp < 0 and _SINCE.get(timestamp, version + 1) > version:
        raise RequestError(ErrorCode.UNSUPPORTED_VERSION)


def _found(log: ServedLog, timestamp: int, *, is_committed: bool) -> FoundOffset:
    end = log.last_stable_offset if is_committed else log.high_watermark
    if timestamp == LATEST:
        return FoundOffset(end)
    if timestamp in {EARLIEST, EARLIEST_LOCAL}:
        return FoundOffset(log.log_start_offset)
    if timestamp in {LATEST_TIERED, EARLIEST_PENDING_UPLOAD}:  # nothing is moved to a remote store
        return FoundOffset()
    if timestamp == LARGEST_TIMESTAMP:
        # Kafka looks at all segments, also at records below the log start.
        largest = log.retry_if_gone(lambda: find_max_timestamp(log.segments, 0))
        return FoundOffset() if largest is None else FoundOffset(*largest)
    found = log.find_time(timestamp)
    if found is None or found.offset >= end:
        return FoundOffset()
    return FoundOffset(*found)


def _epoch_at(log: ServedLog, offset: int) -> int:
    """The leader epoch of the record at an offset; at the log end, that of the next record; below
    the log start, the oldest one known."""
    if offset < log.log_end_offset:
        epoch = log.epochs.epoch_for_offset(offset)
        if epoch is not None:
            return epoch
        if log.epochs.entries:
            return log.epochs.entries[0].epoch
    return max(log.leader_epoch, 0)

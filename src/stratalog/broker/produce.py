"""Produce: append the batches of clients to the log.

The checks come in Kafka's order; the first that fails decides what the client gets. A batch is
checked by its header and CRC; its records are decoded only where the topic's settings demand it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.broker.authorization import Operation, Resource
from stratalog.broker.requests import CloseConnection, HandlerGroup, handles
from stratalog.broker.transactions import PRODUCE_ADDS_SINCE, join_transaction
from stratalog.errors import AppendError, InvalidRecordError, RequestError, StratalogError
from stratalog.format.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEADER_BYTES,
    MAGIC_2,
    MAGIC_AT,
    PREFIX_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Codec,
)
from stratalog.format.names import INTERNAL_TOPICS
from stratalog.log.partition_log import PartitionLog
from stratalog.log.producer_transitions import EPOCH_PER_TRANSACTION
from stratalog.producing.transaction_log import ProducerIdentity
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from stratalog.broker.context import BrokerContext
    from stratalog.broker.requests import Request
    from stratalog.format.buffers import Buffer
    from stratalog.log.log_state import AppendInfo
    from stratalog.wire.frames import Body

_log = logging.getLogger(__name__)

ACKS: Final = frozenset({-1, 0, 1})
ADMIN_CLIENT_ID: Final = "__admin_client"
"""The one client that may write to internal topics."""
_NAMED_BY_ID_SINCE: Final = 13
_ZSTD_SINCE: Final = 7
_LOW_ATTRIBUTES_AT: Final = ATTRIBUTES_AT + 1
_NO_OFFSET: Final = -1
_REFUSED_EARLY: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
    }
)
"""Kafka's responses to these lack the log start offset."""


class _Batch(NamedTuple):
    """A batch on its way into a partition."""

    topic: str
    partition: int
    data: Buffer
    request: Request

    @property
    def is_transactional(self) -> bool:
        return bool(self.data[_LOW_ATTRIBUTES_AT] & TRANSACTIONAL_BIT)

    @property
    def transaction_version(self) -> int:
        """Of the protocol that the client follows; 0 outside a transaction."""
        is_newer = self.is_transactional and self.request.version >= PRODUCE_ADDS_SINCE
        return EPOCH_PER_TRANSACTION if is_newer else 0


class ProduceHandlers(HandlerGroup):
    """The handler of this module."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    @handles(ApiKey.PRODUCE)
    def produce(self, request: Request) -> Body | None:
        body = request.body
        denied = self._denied_transaction(request)
        responses, failed = [], 0
        for topic in body["topicData"]:
            name = self._name_of(topic, request.version)
            partition_responses = []
            for partition in topic["partitionData"]:
                response = denied or self._response_of(name, partition, request)
                failed = failed or response["errorCode"]
                partition_responses.append({"index": partition["index"], **response})
            responses.append({**_label(topic), "partitionResponses": partition_responses})
        if body["acks"] != 0:
            return {"responses": responses}
        if failed:
            # Without a response, this is how the client learns that it must ask for metadata.
            raise CloseConnection(f"Produce with acks=0 failed with error {failed}")
        return None

    def _name_of(self, topic: Body, version: int) -> str | None:
        if version < _NAMED_BY_ID_SINCE:
            return str(topic["name"])
        return self._context.logs.name_of(topic["topicId"])

    def _denied_transaction(self, request: Request) -> Body | None:
        """The error of every partition if a batch is in a transaction that is not the client's."""
        body = request.body
        if not any(
            _is_transactional(partition["records"])
            for topic in body["topicData"]
            for partition in topic["partitionData"]
        ):
            return None
        transactional_id = body["transactionalId"]
        if transactional_id is not None and self._context.authorizer.allows(
            request.session, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id
        ):
            return None
        return _error(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    def _response_of(self, topic: str | None, partition: Body, request: Request) -> Body:
        log: PartitionLog | None = None
        try:
            if topic is None:
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID)
            batch = _Batch(topic, partition["index"], partition["records"], request)
            log = self._checked_log(batch)
            info = log.append_by_header(batch.data, batch.transaction_version)
        except AppendError as error:
            _log.debug("batch for %s-%s rejected: %s", topic, partition["index"], error)
            is_early = log is None or error.code in _REFUSED_EARLY
            start = _NO_OFFSET if log is None or is_early else log.log_start_offset
            return _refused(error, f"{topic}-{partition['index']}", start)
        except RequestError as error:
            return _error(error.code, error.message)
        except StratalogError as error:
            _log.error("cannot append to %s-%s: %s", topic, partition["index"], error)
            code = getattr(error, "code", ErrorCode.KAFKA_STORAGE_ERROR)
            return _error(code, str(error))
        self._context.changes.notify(topic, batch.partition)
        return _appended(info, batch.data, log.log_start_offset)

    def _checked_log(self, batch: _Batch) -> PartitionLog:
        """The log to append to, once all checks passed that come before those of the log."""
        context, request = self._context, batch.request
        topic = batch.topic
        if not context.authorizer.allows(request.session, Operation.WRITE, Resource.TOPIC, topic):
            raise RequestError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        log = context.logs.find(topic, batch.partition)
        if log is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        _check_one_batch(batch.data, request.version)
        if request.body["acks"] not in ACKS:
            raise RequestError(ErrorCode.INVALID_REQUIRED_ACKS)
        if topic in INTERNAL_TOPICS and request.client_id != ADMIN_CLIENT_ID:
            raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if not isinstance(log, PartitionLog):
            raise RequestError(ErrorCode.POLICY_VIOLATION, "The broker serves its logs read-only")
        if batch.is_transactional:
            header = BatchHeader.unpack(batch.data)
            identity = ProducerIdentity(header.producer_id, header.producer_epoch)
            transactional_id = request.body["transactionalId"]
            join_transaction(context, log, transactional_id, identity, request.version)
        return log


def _label(topic: Body) -> Body:
    """The topic's name or id, as the client gave it."""
    return {key: value for key, value in topic.items() if key in {"name", "topicId"}}


def _is_transactional(records: Buffer | None) -> bool:
    if records is None or len(records) < HEADER_BYTES or records[MAGIC_AT] != MAGIC_2:
        return False
    return bool(records[_LOW_ATTRIBUTES_AT] & TRANSACTIONAL_BIT)


def _check_one_batch(data: Buffer | None, version: int) -> None:
    """Raise unless it is exactly one batch of the current format."""
    if data is None or len(data) < HEADER_BYTES or data[MAGIC_AT] != MAGIC_2:
        raise RequestError(ErrorCode.INVALID_RECORD)
    size_bytes = PREFIX_BYTES + int.from_bytes(data[8:PREFIX_BYTES], "big", signed=True)
    if HEADER_BYTES <= size_bytes < len(data):
        raise RequestError(ErrorCode.INVALID_RECORD)  # another one follows
    if version < _ZSTD_SINCE and data[_LOW_ATTRIBUTES_AT] & CODEC_MASK == Codec.ZSTD:
        raise RequestError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def _error(code: int, message: str | None = None) -> Body:
    return {"errorCode": int(code), "baseOffset": _NO_OFFSET, "errorMessage": message}


def _refused(error: AppendError, partition: str, log_start_offset: int) -> Body:
    """Kafka has a text for single records at fault, and none for a batch as a whole."""
    found = error.record_errors
    if isinstance(error, InvalidRecordError):
        text = f"Compacted topic cannot accept message without key in topic partition {partition}"
        found = tuple(each._replace(message=text) for each in found)
    message = None
    if found:
        shown = ", ".join(
            f"RecordError(batchIndex={index}, message='{text}')" for index, text in found[:3]
        )
        message = (
            f"One or more records have been rejected due to {len(found)} record errors in total, "
            f"and only showing the first three errors at most: [{shown}]"
        )
    records: list[dict[str, Any]] = [
        {"batchIndex": index, "batchIndexErrorMessage": text} for index, text in found
    ]
    return {
        **_error(error.code, message),
        "logStartOffset": log_start_offset,
        "recordErrors": records,
    }


def _appended(info: AppendInfo, data: Buffer, log_start_offset: int) -> Body:
    append_time_ms = info.log_append_time_ms
    if info.is_duplicate and append_time_ms < 0:  # Kafka's response to a repeated batch
        append_time_ms = BatchHeader.unpack(data).max_timestamp
    return {
        "errorCode": 0,
        "baseOffset": info.first_offset,
        "logAppendTimeMs": append_time_ms,
        "logStartOffset": log_start_offset,
    }

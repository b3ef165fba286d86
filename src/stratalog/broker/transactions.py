"""Transactions: InitProducerId, AddPartitionsToTxn, EndTxn, and the requests of admin tools.

The coordinator is that of the log directory (`producing.coordinator`): it has all states and rules.
Here are the requests. A transaction has ended, markers included, when the response to EndTxn is
sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.broker.logs import checked_log
from stratalog.broker.regular_expressions import full_matches
from stratalog.broker.requests import HandlerGroup, coordinator_code, handles
from stratalog.errors import (
    ConcurrentTransactionsError,
    ProducerFencedError,
    RequestError,
    StratalogError,
)
from stratalog.format.batch import NO_LEADER_EPOCH
from stratalog.format.messages.transaction_records import TransactionStatus
from stratalog.format.names import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from stratalog.format.times import current_time_ms
from stratalog.log.partition_log import PartitionLog
from stratalog.log.producer_transitions import EPOCH_PER_TRANSACTION
from stratalog.producing.transaction_log import ProducerIdentity, read_states
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stratalog.broker.context import BrokerContext
    from stratalog.broker.logs import ServedLog
    from stratalog.broker.requests import Request
    from stratalog.format.messages.transaction_records import TransactionState
    from stratalog.format.producer_snapshot import ProducerEntry
    from stratalog.producing.coordinator import MarkerListener, TransactionCoordinator
    from stratalog.wire.frames import Body

_NO_IDENTITY: Final = ProducerIdentity(-1, -1)
# The first version of each request whose clients know PRODUCER_FENCED; older ones get
# INVALID_PRODUCER_EPOCH.
_FENCED_SINCE: Final[Mapping[ApiKey, int]] = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
_END_WITH_EPOCH_SINCE: Final = 5
_MANY_TRANSACTIONS_SINCE: Final = 4
_PRODUCE_ABORTABLE_SINCE: Final = 11
PRODUCE_ADDS_SINCE: Final = 12
_STATE_NAMES: Final = frozenset(status.kafka_name for status in TransactionStatus)


def join_transaction(
    context: BrokerContext,
    log: PartitionLog,
    transactional_id: str,
    identity: ProducerIdentity,
    version: int,
) -> None:
    """Before a transactional batch is appended: make sure that its partition is part of the
    producer's transaction, or nobody would ever end it there.

    `version` is that of Produce, or of Produce when the request at hand was the newest. From
    version 12 on the broker adds the partition; older clients add it themselves before. Raises
    RequestError.
    """
    known = log.producers.producers.get(identity.producer_id)
    if known is not None and known.has_open_txn and known.producer_epoch >= identity.producer_epoch:
        return  # it is part of it, or fenced: the log refuses the batch itself
    coordinator, tp = coordinator_of(context), log.topic_partition
    try:
        if version >= PRODUCE_ADDS_SINCE:
            coordinator.add_partitions(
                transactional_id, identity, [tp], client_version=EPOCH_PER_TRANSACTION
            )
        elif (
            context.config.transaction_partition_verification_enable
            and not coordinator.verify_partitions(transactional_id, identity, [tp])[tp]
        ):
            is_known = version >= _PRODUCE_ABORTABLE_SINCE
            raise RequestError(
                ErrorCode.TRANSACTION_ABORTABLE if is_known else ErrorCode.INVALID_TXN_STATE
            )
    except ConcurrentTransactionsError as error:  # of these two errors, producers retry the other
        raise RequestError(ErrorCode.NOT_ENOUGH_REPLICAS, str(error)) from None
    except ProducerFencedError as error:
        is_fenced = error.code == ErrorCode.PRODUCER_FENCED
        code = ErrorCode.INVALID_PRODUCER_EPOCH if is_fenced else error.code
        raise RequestError(code) from None


def coordinator_of(context: BrokerContext) -> TransactionCoordinator:
    """The coordinator of the log directories that are served. Raises RequestError if they are
    read-only."""
    return context.logs.log_dir.coordinator


class TransactionHandlers(HandlerGroup):
    """The handlers of this module."""

    def __init__(self, context: BrokerContext, offsets_partition: Callable[[str], int]) -> None:
        """`offsets_partition` is the partition of `__consumer_offsets` that has a group."""
        self._context = context
        self._offsets_partition = offsets_partition
        self.on_marker: list[MarkerListener] = [self._notify]
        """Called in the reactor's thread after a marker was written."""
        if not context.logs.is_read_only:
            self._coordinator.marker_listeners.append(self._marker_written)

    @property
    def _coordinator(self) -> TransactionCoordinator:
        return coordinator_of(self._context)

    # -- markers

    def _marker_written(self, tp: TopicPartition, identity: ProducerIdentity, commit: bool) -> None:
        if self._context.reactor.is_own_thread:
            self._tell(tp, identity, commit=commit)
        else:
            self._context.reactor.call_soon(lambda: self._tell(tp, identity, commit=commit))

    def _tell(self, tp: TopicPartition, identity: ProducerIdentity, *, commit: bool) -> None:
        for listener in self.on_marker:
            listener(tp, identity, commit)

    def _notify(self, tp: TopicPartition, _identity: ProducerIdentity, _commit: bool) -> None:
        self._context.changes.notify(*tp)

    # -- what producers ask for

    @handles(ApiKey.INIT_PRODUCER_ID)
    def init_producer_id(self, request: Request) -> Body:
        body = request.body
        transactional_id = body["transactionalId"]
        if transactional_id is None:
            return {"producerId": self._coordinator.new_producer_id(), "producerEpoch": 0}
        expected = ProducerIdentity(body.get("producerId", -1), body.get("producerEpoch", -1))
        try:
            if not transactional_id or (expected.producer_id < 0) != (expected.producer_epoch < 0):
                raise RequestError(ErrorCode.INVALID_REQUEST)
            identity = self._coordinator.init_producer_id(
                transactional_id,
                body["transactionTimeoutMs"],
                None if expected == _NO_IDENTITY else expected,
            )
        except StratalogError as error:
            code = _code_of(error, request)
            return {"errorCode": code, "producerId": -1, "producerEpoch": -1}
        return {"producerId": identity.producer_id, "producerEpoch": identity.producer_epoch}

    @handles(ApiKey.ADD_PARTITIONS_TO_TXN)
    def add_partitions(self, request: Request) -> Body:
        body = request.body
        if request.version < _MANY_TRANSACTIONS_SINCE:
            identity = ProducerIdentity(
                body["v3AndBelowProducerId"], body["v3AndBelowProducerEpoch"]
            )
            results = self._added(
                request,
                body["v3AndBelowTransactionalId"],
                identity,
                body["v3AndBelowTopics"],
            )
            return {"resultsByTopicV3AndBelow": results}
        return {
            "resultsByTransaction": [
                {
                    "transactionalId": each["transactionalId"],
                    "topicResults": self._added_by_broker(request, each),
                }
                for each in body["transactions"]
            ]
        }

    def _added_by_broker(self, request: Request, transaction: Body) -> list[Body]:
        identity = _identity_in(transaction)
        transactional_id, topics = transaction["transactionalId"], transaction["topics"]
        if not transaction["verifyOnly"]:
            return self._added(request, transactional_id, identity, topics)
        partitions = _partitions_in(topics)
        try:
            verified = self._coordinator.verify_partitions(transactional_id, identity, partitions)
        except StratalogError as error:
            code = _code_of(error, request)
            return _results(topics, lambda _: code)
        return _results(
            topics, lambda tp: 0 if verified[tp] else int(ErrorCode.TRANSACTION_ABORTABLE)
        )

    def _added(
        self,
        request: Request,
        transactional_id: str,
        identity: ProducerIdentity,
        topics: list[Body],
    ) -> list[Body]:
        partitions = _partitions_in(topics)
        unknown = {tp for tp in partitions if self._context.logs.find(*tp) is None}
        if unknown:
            attempted = int(ErrorCode.OPERATION_NOT_ATTEMPTED)
            missing = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return _results(topics, lambda tp: missing if tp in unknown else attempted)
        code = 0
        try:
            self._coordinator.add_partitions(transactional_id, identity, partitions)
        except StratalogError as error:
            code = _code_of(error, request)
        return _results(topics, lambda _: code)

    @handles(ApiKey.ADD_OFFSETS_TO_TXN)
    def add_offsets(self, request: Request) -> Body:
        body = request.body
        try:
            number = self._offsets_partition(body["groupId"])
            tp = TopicPartition(CONSUMER_OFFSETS_TOPIC, number)
            self._coordinator.add_partitions(body["transactionalId"], _identity_in(body), [tp])
        except StratalogError as error:
            return {"errorCode": _code_of(error, request)}
        return {}

    @handles(ApiKey.END_TXN)
    def end(self, request: Request) -> Body:
        body = request.body
        has_epochs = request.version >= _END_WITH_EPOCH_SINCE
        try:
            identity = self._coordinator.end_transaction(
                body["transactionalId"],
                _identity_in(body),
                commit=body["committed"],
                client_version=EPOCH_PER_TRANSACTION if has_epochs else 0,
            )
        except StratalogError as error:
            return {"errorCode": _code_of(error, request), "producerId": -1, "producerEpoch": -1}
        return {"producerId": identity.producer_id, "producerEpoch": identity.producer_epoch}

    # -- what shows and repairs transactions

    @handles(ApiKey.WRITE_TXN_MARKERS)
    def write_markers(self, request: Request) -> Body:
        return {"markers": [self._marked(marker) for marker in request.body["markers"]]}

    def _marked(self, marker: Body) -> Body:
        topics = _by_partition(
            marker["topics"],
            "partitionIndexes",
            lambda tp: {"partitionIndex": tp.partition, "errorCode": self._written(marker, tp)},
        )
        return {"producerId": marker["producerId"], "topics": topics}

    def _written(self, marker: Body, tp: TopicPartition) -> int:
        try:
            self._coordinator.write_marker(
                tp,
                _identity_in(marker),
                commit=marker["transactionResult"],
                coordinator_epoch=marker["coordinatorEpoch"],
            )
        except StratalogError as error:
            return int(getattr(error, "code", ErrorCode.KAFKA_STORAGE_ERROR))
        return 0

    @handles(ApiKey.DESCRIBE_PRODUCERS)
    def describe_producers(self, request: Request) -> Body:
        topics = request.body["topics"]
        return {"topics": _by_partition(topics, "partitionIndexes", self._producers)}

    def _producers(self, tp: TopicPartition) -> Body:
        try:
            producers = _producers_of(checked_log(self._context.logs, *tp, NO_LEADER_EPOCH))
        except StratalogError as error:
            code = int(getattr(error, "code", ErrorCode.KAFKA_STORAGE_ERROR))
            return {"partitionIndex": tp.partition, "errorCode": code, "activeProducers": []}
        return {
            "partitionIndex": tp.partition,
            "activeProducers": [
                {
                    "producerId": producer.producer_id,
                    "producerEpoch": producer.producer_epoch,
                    "lastSequence": producer.last_sequence,
                    "lastTimestamp": producer.timestamp,
                    "coordinatorEpoch": producer.coordinator_epoch,
                    "currentTxnStartOffset": producer.current_txn_first_offset,
                }
                for producer in producers
            ],
        }

    @handles(ApiKey.DESCRIBE_TRANSACTIONS)
    def describe(self, request: Request) -> Body:
        return {"transactionStates": [self._described(i) for i in request.body["transactionalIds"]]}

    def _described(self, transactional_id: str) -> Body:
        state = self._find(transactional_id) if transactional_id else None
        if state is None:
            is_valid = bool(transactional_id)
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if is_valid else ErrorCode.INVALID_REQUEST
            return {"transactionalId": transactional_id, "errorCode": int(code)}
        return {
            "transactionalId": transactional_id,
            "transactionState": state.status.kafka_name,
            "transactionTimeoutMs": state.timeout_ms,
            "transactionStartTimeMs": state.start_timestamp,
            "producerId": state.producer_id,
            "producerEpoch": state.producer_epoch,
            "topics": [
                {"topic": topic, "partitions": list(numbers)} for topic, numbers in state.partitions
            ],
        }

    @handles(ApiKey.LIST_TRANSACTIONS)
    def list(self, request: Request) -> Body:
        body = request.body
        states, pattern = self._states(), body.get("transactionalIdPattern")
        if pattern:
            matching = full_matches(pattern, states, "TransactionalIdPattern")
            states = {name: states[name] for name in states if name in matching}
        return {
            "unknownStateFilters": [
                name for name in body["stateFilters"] if name not in _STATE_NAMES
            ],
            "transactionStates": [
                {
                    "transactionalId": transactional_id,
                    "producerId": state.producer_id,
                    "transactionState": state.status.kafka_name,
                }
                for transactional_id, state in states.items()
                if _is_wanted(state, body)
            ],
        }

    def _find(self, transactional_id: str) -> TransactionState | None:
        if self._context.logs.is_read_only:
            return self._states().get(transactional_id)
        return self._coordinator.find(transactional_id)

    def _states(self) -> dict[str, TransactionState]:
        """By transactional id. Logs that are read-only have no coordinator, but its topic."""
        logs = self._context.logs
        if not logs.is_read_only:
            return dict(self._coordinator.states())
        states: dict[str, TransactionState] = {}
        info = logs.find_topic(TRANSACTION_STATE_TOPIC)
        for partition in () if info is None else info.partitions:
            log = logs.find(TRANSACTION_STATE_TOPIC, partition)
            if log is not None:
                states |= read_states(log)
        return states


def _producers_of(log: ServedLog) -> list[ProducerEntry]:
    if isinstance(log, PartitionLog):
        return [producer.to_entry() for producer in list(log.producers.producers.values())]
    return list(log.producers)


def _is_wanted(state: TransactionState, filters: Body) -> bool:
    names, producer_ids = filters["stateFilters"], filters["producerIdFilters"]
    longer_than_ms = filters.get("durationFilter", -1)
    age_ms = current_time_ms() - state.start_timestamp
    return (
        (not names or state.status.kafka_name in names)
        and (not producer_ids or state.producer_id in producer_ids)
        and (longer_than_ms < 0 or age_ms > longer_than_ms)
    )


def _identity_in(body: Body) -> ProducerIdentity:
    return ProducerIdentity(body["producerId"], body["producerEpoch"])


def _partitions_in(topics: Iterable[Body]) -> list[TopicPartition]:
    return [
        TopicPartition(each["name"], number) for each in topics for number in each["partitions"]
    ]


def _by_partition(
    topics: Iterable[Body],
    field: str,
    respond: Callable[[TopicPartition], Body],
    responses_field: str = "partitions",
) -> list[Body]:
    """Responses about the partitions that each topic has in `field`."""
    return [
        {
            "name": topic["name"],
            responses_field: [
                respond(TopicPartition(topic["name"], each)) for each in topic[field]
            ],
        }
        for topic in topics
    ]


def _results(topics: Iterable[Body], code_of: Callable[[TopicPartition], int]) -> list[Body]:
    return _by_partition(
        topics,
        "partitions",
        lambda tp: {"partitionIndex": tp.partition, "partitionErrorCode": code_of(tp)},
        "resultsByPartition",
    )


def _code_of(error: StratalogError, request: Request) -> int:
    code = coordinator_code(error, request.api.title)
    if code == ErrorCode.PRODUCER_FENCED and request.version < _FENCED_SINCE[request.api]:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return code

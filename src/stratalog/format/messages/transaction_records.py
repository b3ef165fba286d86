"""Records of `__transaction_state`: what each transactional id is doing."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from stratalog.errors import CorruptRecordError, UnsupportedError
from stratalog.format.messages.schema import Array, Field, Message, read_message, write_message

_KEY: Final = Message("TransactionLogKey", (Field("transactionalId", "string"),))
_VALUE: Final = Message(
    "TransactionLogValue",
    (
        Field("producerId", "int64"),
        Field("previousProducerId", "int64", since=1, tag=0, default=-1),
        Field("nextProducerId", "int64", since=1, tag=1, default=-1),
        Field("producerEpoch", "int16"),
        Field("transactionTimeoutMs", "int32"),
        Field("transactionStatus", "int8"),
        Field(
            "transactionPartitions",
            Array((Field("topic", "string"), Field("partitionIds", Array("int32")))),
            nullable_since=0,
        ),
        Field("transactionLastUpdateTimestampMs", "int64"),
        Field("transactionStartTimestampMs", "int64"),
        Field("clientTransactionVersion", "int16", since=1, tag=2, default=0),
    ),
    version_max=1,
    flexible_since=1,
)
_VERSION_BYTES = 2


class TransactionStatus(enum.IntEnum):
    """Where a transaction stands."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))


class TransactionState(NamedTuple):
    """The state a coordinator keeps for one transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus
    partitions: tuple[tuple[str, tuple[int, ...]], ...]
    """Partitions in the transaction, by topic in stored order."""
    last_update_timestamp: int
    start_timestamp: int
    previous_producer_id: int = -1
    next_producer_id: int = -1
    client_transaction_version: int = 0
    last_producer_epoch: int = -1
    """The epoch before the last one that a client was given. Not in the record: lost by a restart,
    as in Kafka."""


def key_version(key: bytes) -> int:
    """0 so far. A record whose key has another version is to be skipped."""
    return _read_version(key)


def read_transactional_id(key: bytes) -> str:
    """The transactional id a record's key names."""
    fields, _ = read_message(_KEY, key, _VERSION_BYTES, _read_version(key))
    return str(fields["transactionalId"])


def read_transaction_state(value: bytes) -> TransactionState:
    """What a record's value says about its transactional id."""
    version = _read_version(value)
    if not 0 <= version <= _VALUE.version_max:
        raise UnsupportedError(f"Unknown version {version} from the transaction log message value")
    fields, _ = read_message(_VALUE, value, _VERSION_BYTES, version)
    status = fields["transactionStatus"]
    if status not in list(TransactionStatus):
        raise CorruptRecordError(
            f"Unknown transaction status byte {status} from the transaction status message"
        )
    return TransactionState(
        producer_id=fields["producerId"],
        producer_epoch=fields["producerEpoch"],
        timeout_ms=fields["transactionTimeoutMs"],
        status=TransactionStatus(status),
        partitions=tuple(
            (topic["topic"], tuple(topic["partitionIds"]))
            for topic in fields["transactionPartitions"] or ()
        ),
        last_update_timestamp=fields["transactionLastUpdateTimestampMs"],
        start_timestamp=fields["transactionStartTimestampMs"],
        previous_producer_id=fields.get("previousProducerId", -1),
        next_producer_id=fields.get("nextProducerId", -1),
        client_transaction_version=fields.get("clientTransactionVersion", 0),
    )


def encode_transactional_id(transactional_id: str) -> bytes:
    """The key of a record about this transactional id."""
    return _prefixed(0, write_message(_KEY, {"transactionalId": transactional_id}, 0))


def encode_transaction_state(state: TransactionState, version: int = 0) -> bytes:
    """The value of a record. Version 0 is what brokers write that keep one epoch for several
    transactions; version 1 has the fields of those that do not."""
    by_topic = [{"topic": topic, "partitionIds": list(ids)} for topic, ids in state.partitions]
    values = {
        "producerId": state.producer_id,
        "previousProducerId": state.previous_producer_id,
        "nextProducerId": state.next_producer_id,
        "producerEpoch": state.producer_epoch,
        "transactionTimeoutMs": state.timeout_ms,
        "transactionStatus": state.status,
        "transactionPartitions": None if state.status is TransactionStatus.EMPTY else by_topic,
        "transactionLastUpdateTimestampMs": state.last_update_timestamp,
        "transactionStartTimestampMs": state.start_timestamp,
        "clientTransactionVersion": state.client_transaction_version,
    }
    return _prefixed(version, write_message(_VALUE, values, version))


def _prefixed(version: int, message: bytes) -> bytes:
    return version.to_bytes(_VERSION_BYTES, signed=True) + message


def _read_version(data: bytes) -> int:
    if len(data) < _VERSION_BYTES:
        raise CorruptRecordError("too short for a version")
    return int.from_bytes(data[:_VERSION_BYTES], signed=True)

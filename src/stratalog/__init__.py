"""Apache Kafka's log storage in Python: read, explain and write Kafka's own files.

>>> import stratalog
>>> logs = stratalog.open_dirs("/var/lib/kafka/data")            # doctest: +SKIP
>>> for record in logs.partition("orders", 0).read("earliest"):   # doctest: +SKIP
...     print(record.offset, record.key, record.value)

>>> with stratalog.LogDir.open("my-data") as logs:                # doctest: +SKIP
...     logs.append("orders", b"two apples", key=b"alice")

The names below are the public surface. Each is imported when it is first used, so that commands
which need few of them start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratalog.config import BrokerConfig, LogConfig
    from stratalog.errors import (
        AccessDeniedError,
        AppendError,
        BrokerDirectoryError,
        CleaningAbortedError,
        CommitError,
        CommitPendingError,
        CommitReplayError,
        ConfigError,
        CorruptBatchError,
        CorruptCheckpointError,
        CorruptError,
        CorruptIndexError,
        CorruptMessageError,
        CorruptRecordError,
        CorruptSnapshotError,
        DataLossError,
        DiskFullError,
        FlushedCorruptionError,
        FsyncError,
        InconsistentLogDirsError,
        InputFileError,
        InvalidLeaderEpochError,
        InvalidNameError,
        InvalidPartitionsError,
        InvalidProducerEpochError,
        InvalidRecordError,
        InvalidReplicationFactorError,
        InvalidTimestampError,
        InvalidTopicError,
        InvalidTransactionTimeoutError,
        InvalidTxnStateError,
        JobError,
        LimitExceededError,
        LockedError,
        LogDirLockedError,
        LogOfflineError,
        MessageTooLargeError,
        MissingLogDirsError,
        NoSegmentError,
        NotALogDirError,
        OffsetOutOfRangeError,
        OffsetOverflowError,
        OutOfOrderSequenceError,
        PartitionGoneError,
        ProducerFencedError,
        RecordError,
        RecordListTooLargeError,
        RecordsTooLargeError,
        SegmentGoneError,
        SourceError,
        SparkStartError,
        StorageError,
        StratalogError,
        TextError,
        TopicAlreadyExistsError,
        TopicDeletionDisabledError,
        TopicError,
        TransactionCoordinatorFencedError,
        UnexpectedAppendOffsetError,
        UnknownGroupRecordError,
        UnknownProducerIdError,
        UnknownSettingsError,
        UnknownTopicOrPartitionError,
        UnsupportedCompressionTypeError,
        UnsupportedError,
        UnsupportedForMessageFormatError,
        UnsupportedRecordsError,
        WriteSchemaError,
    )
    from stratalog.format.batch import BatchHeader, Codec, TimestampType
    from stratalog.format.names import TopicPartition
    from stratalog.format.record import Header, Record
    from stratalog.log.log_state import AppendInfo
    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.reader import IsolationLevel, Skipped
    from stratalog.log_dir import LogDir
    from stratalog.partitions.topics import TopicInfo
    from stratalog.partitions.view import LogDirsView, open_dirs, open_partition
    from stratalog.producing.batches import AppendedRange, Delivery, RecordMetadata
    from stratalog.producing.coordinator import OpenTransaction
    from stratalog.producing.producer import Producer
    from stratalog.producing.transactions import Transaction, TransactionalProducer
    from stratalog.storage.trace import Trace

__version__ = "0.1.0.dev0"

__all__ = [
    "AccessDeniedError",
    "AppendError",
    "AppendInfo",
    "AppendedRange",
    "BatchHeader",
    "BrokerConfig",
    "BrokerDirectoryError",
    "CleaningAbortedError",
    "Codec",
    "CommitError",
    "CommitPendingError",
    "CommitReplayError",
    "ConfigError",
    "CorruptBatchError",
    "CorruptCheckpointError",
    "CorruptError",
    "CorruptIndexError",
    "CorruptMessageError",
    "CorruptRecordError",
    "CorruptSnapshotError",
    "DataLossError",
    "Delivery",
    "DiskFullError",
    "FlushedCorruptionError",
    "FsyncError",
    "Header",
    "InconsistentLogDirsError",
    "InputFileError",
    "InvalidLeaderEpochError",
    "InvalidNameError",
    "InvalidPartitionsError",
    "InvalidProducerEpochError",
    "InvalidRecordError",
    "InvalidReplicationFactorError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTransactionTimeoutError",
    "InvalidTxnStateError",
    "IsolationLevel",
    "JobError",
    "LimitExceededError",
    "LockedError",
    "LogConfig",
    "LogDir",
    "LogDirLockedError",
    "LogDirsView",
    "LogOfflineError",
    "MessageTooLargeError",
    "MissingLogDirsError",
    "NoSegmentError",
    "NotALogDirError",
    "OffsetOutOfRangeError",
    "OffsetOverflowError",
    "OpenTransaction",
    "OutOfOrderSequenceError",
    "PartitionGoneError",
    "PartitionLog",
    "PartitionView",
    "Producer",
    "ProducerFencedError",
    "Record",
    "RecordError",
    "RecordListTooLargeError",
    "RecordMetadata",
    "RecordsTooLargeError",
    "SegmentGoneError",
    "Skipped",
    "SourceError",
    "SparkStartError",
    "StorageError",
    "StratalogError",
    "TextError",
    "TimestampType",
    "TopicAlreadyExistsError",
    "TopicDeletionDisabledError",
    "TopicError",
    "TopicInfo",
    "TopicPartition",
    "Trace",
    "Transaction",
    "TransactionCoordinatorFencedError",
    "TransactionalProducer",
    "UnexpectedAppendOffsetError",
    "UnknownGroupRecordError",
    "UnknownProducerIdError",
    "UnknownSettingsError",
    "UnknownTopicOrPartitionError",
    "UnsupportedCompressionTypeError",
    "UnsupportedError",
    "UnsupportedForMessageFormatError",
    "UnsupportedRecordsError",
    "WriteSchemaError",
    "open_dirs",
    "open_partition",
]

_HOMES = {
    "stratalog.config": ("BrokerConfig", "LogConfig"),
    "stratalog.format.batch": ("BatchHeader", "Codec", "TimestampType"),
    "stratalog.format.names": ("TopicPartition",),
    "stratalog.format.record": ("Header", "Record"),
    "stratalog.log.reader": ("IsolationLevel", "Skipped"),
    "stratalog.log.log_state": ("AppendInfo",),
    "stratalog.log.partition_log": ("PartitionLog",),
    "stratalog.log.partition_view": ("PartitionView",),
    "stratalog.partitions.view": ("LogDirsView", "open_dirs", "open_partition"),
    "stratalog.producing.coordinator": ("OpenTransaction",),
    "stratalog.producing.batches": ("AppendedRange", "Delivery", "RecordMetadata"),
    "stratalog.log_dir": ("LogDir",),
    "stratalog.producing.producer": ("Producer",),
    "stratalog.partitions.topics": ("TopicInfo",),
    "stratalog.producing.transactions": ("Transaction", "TransactionalProducer"),
    "stratalog.storage.trace": ("Trace",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF.get(name, "stratalog.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

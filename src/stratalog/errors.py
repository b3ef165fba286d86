"""Every exception that Stratalog raises on purpose.

::

    StratalogError
    ├── CorruptError                  bytes break a rule of the format
    │   ├── CorruptBatchError         a record batch: header, length or CRC
    │   ├── FlushedCorruptionError    corruption below the offset up to which a log was flushed
    │   ├── CorruptRecordError        a record inside a batch whose CRC is valid
    │   ├── CorruptIndexError         .index, .timeindex or .txnindex
    │   ├── CorruptSnapshotError      .snapshot
    │   └── CorruptCheckpointError    a text file: checkpoint, metadata, properties
    ├── UnsupportedError              well-formed, but of a version or type that is not supported
    │   ├── UnsupportedRecordsError   an unknown codec (also a CorruptRecordError)
    │   └── UnknownGroupRecordError   a record type of __consumer_offsets of a later Kafka
    ├── LimitExceededError            a declared size is larger than the caller allows
    │   └── RecordsTooLargeError      the records of a batch (also a CorruptRecordError)
    ├── ConfigError                   a setting's name or value is not one Kafka accepts
    ├── InvalidArgumentError          an argument has a value that is not accepted (a ValueError)
    ├── UnknownSettingsError          the cleanup.policy or retention of a topic is not known
    ├── InvalidNameError              a topic, file or directory name breaks Kafka's rules
    ├── NotALogDirError               the path contains no Kafka log
    │   ├── NoSegmentError            a partition directory that has no segment yet
    │   └── PartitionGoneError        no such partition directory, or it was just deleted
    ├── UnknownTopicOrPartitionError  no such topic or partition in the directory
    ├── OffsetOutOfRangeError         below the log start offset or above the log end offset
    ├── SegmentGoneError              a broker removed or replaced it since the directory was listed
    ├── CleaningAbortedError          the log changed while it was cleaned; nothing was replaced
    ├── OffsetOverflowError           too far above the segment's base offset; the log must roll
    ├── InvalidLeaderEpochError       a leader epoch or its start offset is negative
    ├── LockedError                   another process writes to the log directory
    │   └── LogDirLockedError         the same, with the directory and who holds it
    ├── InconsistentLogDirsError      directories of different clusters, or the same partition twice
    │   └── MissingLogDirsError       some directories of a set were not opened
    ├── BackupError                   a backup is missing, incomplete or corrupt, or cannot be made
    ├── RepairError                   a repair that cannot be done or undone; nothing was changed
    ├── CommitError                   staged batches that cannot be committed
    │   ├── CommitPendingError        a decided commit that could not be finished yet
    │   └── CommitReplayError         a repeated commit number with other rows
    ├── TopicError                    a topic cannot be created, changed or deleted
    │   ├── InvalidTopicError                   17  a bad name, or one too close to another
    │   ├── TopicAlreadyExistsError             36  a topic of that name exists
    │   ├── InvalidPartitionsError              37  not positive, or not an increase
    │   ├── InvalidReplicationFactorError       38  more replicas than brokers
    │   ├── BrokerDirectoryError                44  only the Kafka cluster may change this
    │   └── TopicDeletionDisabledError          73  delete.topic.enable is false
    ├── AuthenticationError                     58  SASL authentication failed
    ├── InvalidTransactionTimeoutError          50  longer than transaction.max.timeout.ms
    ├── ConcurrentTransactionsError             51  the last transaction is still ending: try again
    ├── RequestError                  a broker rejects a request, with Kafka's error code
    ├── FrameError                    bytes from a client that are not a request
    ├── BrokerStartError              a broker's port is taken, or its options are invalid
    ├── AccessDeniedError             no permission to read a file (also a PermissionError)
    ├── StorageError                  an I/O error on a file
    │   ├── DiskFullError             no space left on the disk or in the quota
    │   ├── FsyncError                an fsync failed: reopen the log to read what is on disk
    │   └── StoreError                an object store rejected a request, or could not be reached
    ├── TieredLogError                the remote part of a tiered log is incomplete or locked
    ├── LogOfflineError               closed, or a write failed: reopen the log
    ├── SourceError                   a Spark query that the log directory cannot serve
    │   └── DataLossError             records that the query should read are no longer in the log
    ├── WriteSchemaError              a DataFrame whose columns cannot become records
    ├── InputFileError                a file to ingest is corrupt or cannot be read
    ├── TextError                     a key or value that is not UTF-8 text
    ├── JobError                      a task of a bulk job failed on its worker
    ├── SparkStartError               Spark is not installed, or does not start
    └── AppendError                   a batch that the log rejects, with Kafka's error code
        ├── CorruptMessageError                  2  corrupt in transit
        ├── MessageTooLargeError                10  larger than max.message.bytes
        ├── RecordListTooLargeError             18  larger than a segment
        ├── InvalidTimestampError               32  outside the topic's limits
        ├── OutOfOrderSequenceError             45  a batch of the producer is missing before it
        ├── InvalidProducerEpochError           47  a newer instance of the producer has written
        ├── InvalidTxnStateError                48  not allowed in this state of the transaction
        ├── TransactionCoordinatorFencedError   52  a newer coordinator has ended transactions
        ├── UnsupportedCompressionTypeError     76  no such codec
        ├── InvalidRecordError                  87  breaks a rule for what clients may send
        ├── ProducerFencedError                 90  another producer has taken over
        │   └── InvalidProducerIdMappingError   49  the transactional id has another producer id
        └── UnexpectedAppendOffsetError         -1  does not continue the log of a follower

Catch the narrowest type. A corrupt error has `path` (if a file was read) and `position` in bytes.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

if TYPE_CHECKING:
    from pathlib import Path


def command_line(*words: object) -> str:
    """A command for a message that suggests one: complete, with its paths, ready to be pasted."""
    return shlex.join(("stratalog", *map(str, words)))


class StratalogError(Exception):
    """Base of everything raised on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with all attributes and notes. `Exception` would call the class with the message
        alone, which most constructors do not accept."""
        return (_without_init, (type(self), self.args), self.__dict__)


def _without_init(kind: type[StratalogError], args: tuple[object, ...]) -> StratalogError:
    return kind.__new__(kind, *args)


class CorruptError(StratalogError):
    """Bytes break a rule of the format.

    The format layer does no I/O, so it raises without `path`. The caller that read the bytes adds
    the path, and the position at which the buffer began, with `located`.
    """

    def __init__(
        self,
        reason: str,
        *,
        position: int = 0,
        path: Path | None = None,
        offsets: tuple[int, int] | None = None,
    ) -> None:
        self.reason = reason
        self.position = position
        self.path = path
        self.offsets = offsets
        """First and last offset of the corrupt batch, according to its header."""
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.path or '<bytes>'} at byte {self.position}"
        if self.offsets is not None:
            first, last = self.offsets
            where += f" (offset {first})" if first == last else f" (offsets {first} to {last})"
        return f"{where}: {self.reason}"

    def located(self, path: Path, *, buffer_start: int = 0) -> Self:
        """The same error for the file `path`, whose byte `buffer_start` was byte 0 of the
        buffer."""
        return type(self)(
            self.reason,
            position=self.position + buffer_start,
            path=path,
            offsets=self.offsets,
        )


class CorruptBatchError(CorruptError):
    """A record batch: its header, length or CRC. Recovery may truncate the log here."""


class FlushedCorruptionError(CorruptError):
    """A log is corrupt below the offset up to which it was flushed.

    An interrupted write cannot explain that, so nothing was truncated or changed.
    """


class CorruptRecordError(CorruptError):
    """A record inside a batch whose CRC is valid: a fault of the writer, not of the disk."""


class CorruptIndexError(CorruptError):
    """An index file. It can always be rebuilt from the log (`stratalog reindex`)."""


class CorruptSnapshotError(CorruptError):
    """A producer snapshot. Kafka deletes it and falls back to the next older one."""


class CorruptCheckpointError(CorruptError):
    """A text file: a checkpoint, partition.metadata, meta.properties. `position` is a line number
    only where the message says so, else a byte."""


class UnsupportedError(StratalogError):
    """Well-formed, but of a version or type that is not supported."""


class LimitExceededError(StratalogError):
    """A declared length, count or decompressed size is larger than the caller allows."""


class UnsupportedRecordsError(UnsupportedError, CorruptRecordError):
    """The records of a batch whose CRC is valid use an unknown codec."""


class UnknownGroupRecordError(UnsupportedError):
    """A record type of a later Kafka. Brokers skip such records, and so should readers."""

    def __init__(self, type_id: int) -> None:
        super().__init__(f"unknown record type {type_id}")
        self.type_id = type_id


class RecordsTooLargeError(LimitExceededError, CorruptRecordError):
    """The records of a batch whose CRC is valid are larger than the caller allows."""


class ConfigError(StratalogError):
    """A setting's name or value is not one Kafka accepts."""

    name: str
    """Kafka's name of the setting, as the user wrote it; empty if the error is about a file."""
    reason: str
    value: object
    """The rejected value; None if the name itself was rejected."""
    suggestions: tuple[str, ...]
    """Similar names, the closest first."""
    path: Path | None
    """The file with the setting."""

    def __init__(
        self,
        name: str,
        reason: str,
        *,
        value: object = None,
        suggestions: tuple[str, ...] = (),
        path: Path | None = None,
    ) -> None:
        self.name, self.reason, self.value = name, reason, value
        self.suggestions, self.path = suggestions, path
        super().__init__(str(self))

    def __str__(self) -> str:
        where = "" if self.path is None else str(self.path)
        return ": ".join(part for part in (where, self.name, self.reason) if part)

    def located(self, path: Path) -> Self:
        """The same error for a setting in the file `path`."""
        return type(self)(
            self.name, self.reason, value=self.value, suggestions=self.suggestions, path=path
        )


class InvalidArgumentError(StratalogError, ValueError):
    """An argument of a function has a value that it does not accept. Nothing was done."""


class InvalidNameError(StratalogError):
    """A topic, file or directory name breaks Kafka's rules."""


class NotALogDirError(StratalogError):
    """The path does not exist, is not a directory, or does not hold a Kafka log."""


class PartitionGoneError(NotALogDirError):
    """A partition directory does not exist, or was deleted since it was listed."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: no such directory")


class NoSegmentError(NotALogDirError):
    """A directory has the name of a partition but no segment. A broker creates the directory before
    the segment, and starts an empty log where it finds one."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: no segment (*.log) in this directory")


class UnknownTopicOrPartitionError(StratalogError):
    """The directory holds no such topic or partition."""

    code: ClassVar[int] = 3
    kafka_name: ClassVar[str] = "UNKNOWN_TOPIC_OR_PARTITION"


class OffsetOutOfRangeError(StratalogError):
    """The offset is below the log start offset or above the log end offset."""

    def __init__(
        self, offset: int, *, log_start_offset: int, log_end_offset: int, path: Path | None = None
    ) -> None:
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.path = path
        where = "" if path is None else f"{path}: "
        super().__init__(
            f"{where}offset {offset} is out of range: the log has offsets "
            f"{log_start_offset} (log start offset) to {log_end_offset} (log end offset, exclusive)"
        )


class SegmentGoneError(StratalogError):
    """A broker removed or replaced a segment since the directory was listed. List it again."""

    def __init__(self, path: Path, reason: str = "") -> None:
        self.path = path
        reason = (
            reason or "removed or replaced since the directory was listed; open the partition again"
        )
        super().__init__(f"{path}: {reason}")


class CleaningAbortedError(StratalogError):
    """The log was truncated, or lost segments, while it was cleaned. Nothing was replaced; clean it
    again."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: cleaning was aborted: {reason}")


class OffsetOverflowError(StratalogError):
    """The offset does not fit the 31 bits above its segment's base offset."""

    def __init__(self, offset: int, *, base_offset: int) -> None:
        self.offset = offset
        self.base_offset = base_offset
        super().__init__(
            f"offset {offset} is too far above base offset {base_offset} of its segment"
        )


class InvalidLeaderEpochError(StratalogError):
    """A leader epoch or its start offset is negative."""


class LockedError(StratalogError):
    """Another process, a Kafka broker perhaps, holds the lock of the log directory."""


class LogDirLockedError(LockedError):
    """A log directory has a writer already: a Kafka broker, or another `LogDir`."""

    def __init__(self, path: Path, holder: str | None = None) -> None:
        self.path = path
        """The log directory."""
        self.holder = holder
        """Process id and name, if the system reports them."""
        who = "a Kafka broker or another writer" if holder is None else holder
        self.what = f"{path}: locked by {who}"
        super().__init__(
            f"{self.what}; one process at a time may write to a log directory "
            "(reading needs no lock: see open_dirs)"
        )


class InconsistentLogDirsError(StratalogError):
    """Log directories that cannot belong to one broker: of two clusters, or with a partition
    twice."""


class MissingLogDirsError(InconsistentLogDirsError):
    """Log directories that belong together were not all opened for writing."""

    def __init__(self, action: str, missing: tuple[str, ...]) -> None:
        self.missing = missing
        """The paths that the missing directories had when they were opened last."""
        super().__init__(
            f"cannot {action} without {', '.join(missing)}: these log directories belong together. "
            "Open all of them; one that was moved is recognized at its new path. To work without "
            "the missing ones for now, use missing_dirs='offline'; if they are lost for good, use "
            "missing_dirs='forget'. On the command line: stratalog maintain --missing-dirs"
        )


class RepairError(StratalogError):
    """A repair of a partition cannot be done, or undone. Nothing was changed."""


class CommitError(StratalogError):
    """Staged batches that cannot be committed, or a decided commit that cannot be finished."""


class CommitPendingError(CommitError):
    """A commit is decided, but could not be finished: the disk is full, or a staged file cannot be
    read. Journal and staged files remain; the next commit or `LogDir.open` finishes it."""


class CommitReplayError(CommitError):
    """A commit repeats the number of an earlier one by the same writer to the same topic, but has
    other rows, or is too old to be compared. Nothing was written."""


class UnknownSettingsError(StratalogError):
    """A topic is neither compacted nor deleted from while its settings are not known."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(
            f"the cleanup.policy of {topic!r} is unknown, so nothing is deleted or compacted "
            f"({reason}); set it, for example cleanup.policy=compact"
        )


class TopicError(StratalogError):
    """A topic cannot be created, changed or deleted; nothing was changed.

    `code` and `kafka_name` are what a broker returns to the client.
    """

    code: ClassVar[int] = -1
    kafka_name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"


class InvalidTopicError(TopicError):
    """The name breaks Kafka's rules, collides with another topic's, or is reserved."""

    code = 17
    kafka_name = "INVALID_TOPIC_EXCEPTION"


class TopicAlreadyExistsError(TopicError):
    """A topic of that name exists."""

    code = 36
    kafka_name = "TOPIC_ALREADY_EXISTS"


class InvalidPartitionsError(TopicError):
    """The number of partitions is not positive, or not an increase."""

    code = 37
    kafka_name = "INVALID_PARTITIONS"


class InvalidReplicationFactorError(TopicError):
    """More replicas than there are brokers, which is one, or less than one."""

    code = 38
    kafka_name = "INVALID_REPLICATION_FACTOR"


class BrokerDirectoryError(TopicError):
    """The directory belongs to a Kafka broker, so only its cluster may make this change.

    A broker renames partitions of a topic that its cluster does not know to `-stray`, and does not
    read settings that are stored here.
    """

    code = 44
    kafka_name = "POLICY_VIOLATION"


class TopicDeletionDisabledError(TopicError):
    """`delete.topic.enable` is false."""

    code = 73
    kafka_name = "TOPIC_DELETION_DISABLED"


class AuthenticationError(StratalogError):
    """A client could not authenticate with SASL. The message is for the client: it does not say
    whether the user exists."""

    code: ClassVar[int] = 58
    kafka_name: ClassVar[str] = "SASL_AUTHENTICATION_FAILED"


class InvalidTransactionTimeoutError(StratalogError):
    """A transaction may not stay open for longer than `transaction.max.timeout.ms`."""

    code: ClassVar[int] = 50
    kafka_name: ClassVar[str] = "INVALID_TRANSACTION_TIMEOUT"


class ConcurrentTransactionsError(StratalogError):
    """The last transaction of the transactional id is still ending. Try again a little later."""

    code: ClassVar[int] = 51
    kafka_name: ClassVar[str] = "CONCURRENT_TRANSACTIONS"


class RequestError(StratalogError):
    """A broker rejects a request of a client, or a part of it.

    `code` is what it returns to the client; `message` is sent along if the response has a field for
    it.
    """

    def __init__(self, code: int, message: str | None = None) -> None:
        self.code = code
        self.message = message
        super().__init__(message or f"error code {int(code)}")


class FrameError(StratalogError):
    """The bytes are not a request of Kafka's protocol. The connection is closed, as by Kafka."""


class BrokerStartError(StratalogError):
    """A broker cannot start: the port is taken, or an option does not fit the others."""


class AccessDeniedError(StratalogError, PermissionError):
    """This user may not read a file or directory. The data in it may be fine."""

    def __init__(self, path: Path, reason: str = "") -> None:
        """`reason` is what a store says; without one it is a file on a disk."""
        self.path = path
        advice = f"{reason}; check the credentials and what they allow" if reason else ""
        advice = advice or "run as its owner, or change its mode"
        super().__init__(f"{path}: no permission to read it; {advice}")


class StorageError(StratalogError):
    """An I/O error. Kafka returns this code to clients and takes the directory offline."""

    code: ClassVar[int] = 56
    kafka_name: ClassVar[str] = "KAFKA_STORAGE_ERROR"

    def __init__(self, path: Path, operation: str, errno: int, reason: str = "") -> None:
        self.path = path
        self.operation = operation
        """The operation that failed: write, fsync, rename, …"""
        self.errno = errno
        self.reason = reason
        super().__init__(f"{path}: cannot {operation}: {reason or f'errno {errno}'}")


class DiskFullError(StorageError):
    """No space is left, or the quota is spent. Nothing was written; a retry may succeed."""


class FsyncError(StorageError):
    """An fsync failed. The kernel may have dropped what it could not write, and a later fsync may
    still succeed. The log directory is offline until it is reopened, which reads what is really on
    the disk."""


class StoreError(StorageError):
    """An object store or server refused a request, could not be reached, or did not return what it
    had listed. Requests that may succeed later were repeated."""

    def __init__(
        self, path: Path, operation: str, errno: int, reason: str, attempts: int = 1
    ) -> None:
        self.attempts = attempts
        tried = f" ({attempts} attempts)" if attempts > 1 else ""
        super().__init__(path, operation, errno, f"{reason}{tried}")


class TieredLogError(StratalogError):
    """The remote part of a tiered log cannot be read: its metadata or a segment is missing, or the
    key that it is encrypted with was not given."""


class LogOfflineError(StratalogError):
    """The log is closed, or a write failed and only reopening can recover it; or its log directory
    is offline after a failed fsync, or belongs to the process that this one was forked from."""

    code: ClassVar[int] = 56
    kafka_name: ClassVar[str] = "KAFKA_STORAGE_ERROR"

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}; open the log again to write to it")


class SourceError(StratalogError):
    """A Spark query that the log directory cannot serve as it is now."""


class DataLossError(SourceError):
    """Records that the query should read are no longer in the log."""


class WriteSchemaError(StratalogError):
    """A DataFrame whose columns cannot become records: one is missing or of the wrong type."""


class InputFileError(StratalogError):
    """A file to ingest is corrupt or cannot be read."""


class TextError(StratalogError):
    """A key or value that is not UTF-8 text."""


class BackupError(StratalogError):
    """A backup is missing, incomplete or corrupt, or the directories given do not fit it."""


class JobError(StratalogError):
    """A task of a bulk job failed on its worker; the message is the task's own."""

    def __init__(self, message: str, error: StratalogError | None = None) -> None:
        super().__init__(message)
        self.error = error
        """The error that the task raised, if it was a `StratalogError`."""


class SparkStartError(StratalogError):
    """Spark is not installed, or does not start."""


class RecordError(NamedTuple):
    """Why one record of a rejected batch is not accepted."""

    batch_index: int
    """Its index in the batch, from 0."""
    message: str


class AppendError(StratalogError):
    """The log rejects a batch; nothing was written.

    `code` and `kafka_name` are what a broker returns to the producer; `record_errors` lists the
    records at fault, if the fault is in single records.
    """

    code: ClassVar[int] = -1
    kafka_name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"

    def __init__(self, message: str, *, record_errors: tuple[RecordError, ...] = ()) -> None:
        self.message = message
        self.record_errors = record_errors
        super().__init__(message)


class CorruptMessageError(AppendError):
    """The bytes break the batch format, or the CRC does not match."""

    code = 2
    kafka_name = "CORRUPT_MESSAGE"


class MessageTooLargeError(AppendError):
    """A batch is larger than the topic's max.message.bytes."""

    code = 10
    kafka_name = "MESSAGE_TOO_LARGE"


class RecordListTooLargeError(AppendError):
    """The append as a whole is larger than a segment may be."""

    code = 18
    kafka_name = "RECORD_LIST_TOO_LARGE"


class InvalidTimestampError(AppendError):
    """A record's timestamp is outside the topic's limits, or its type is LogAppendTime."""

    code = 32
    kafka_name = "INVALID_TIMESTAMP"


class OutOfOrderSequenceError(AppendError):
    """The batch does not follow the producer's last one: a batch in between is missing."""

    code = 45
    kafka_name = "OUT_OF_ORDER_SEQUENCE_NUMBER"


class InvalidProducerEpochError(AppendError):
    """A newer instance of the producer has written already: this one is fenced."""

    code = 47
    kafka_name = "INVALID_PRODUCER_EPOCH"


class InvalidTxnStateError(AppendError):
    """A transactional batch without its transaction, or another one inside a transaction."""

    code = 48
    kafka_name = "INVALID_TXN_STATE"


class TransactionCoordinatorFencedError(AppendError):
    """The marker is from a coordinator that has been replaced since."""

    code = 52
    kafka_name = "TRANSACTION_COORDINATOR_FENCED"


class UnsupportedCompressionTypeError(AppendError):
    """The batch has an unknown codec."""

    code = 76
    kafka_name = "UNSUPPORTED_COMPRESSION_TYPE"


class InvalidRecordError(AppendError):
    """A batch or one of its records breaks a rule for what clients may send."""

    code = 87
    kafka_name = "INVALID_RECORD"


class ProducerFencedError(AppendError):
    """Another producer with the same transactional id has taken over."""

    code = 90
    kafka_name = "PRODUCER_FENCED"


class InvalidProducerIdMappingError(ProducerFencedError):
    """The transactional id is not known, or belongs to another producer id now."""

    code = 49
    kafka_name = "INVALID_PRODUCER_ID_MAPPING"


class UnexpectedAppendOffsetError(AppendError):
    """A batch with assigned offsets does not continue the log.

    It occurs between a follower and its leader only; Kafka has no error code for it.
    """

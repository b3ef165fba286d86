"""Apache Kafka's log storage in Python: read, explain and check Kafka's own files, no broker needed.

>>> import stratalog
>>> logs = stratalog.open_dirs("/var/lib/kafka/data")            # doctest: +SKIP
>>> for record in logs.partition("orders", 0).read("earliest"):   # doctest: +SKIP
...     print(record.offset, record.key, record.value)
"""

from stratalog.errors import (
    CorruptBatchError,
    CorruptCheckpointError,
    CorruptError,
    CorruptIndexError,
    CorruptRecordError,
    CorruptSnapshotError,
    InvalidNameError,
    LimitExceededError,
    NotALogDirError,
    OffsetOutOfRangeError,
    StratalogError,
    UnknownTopicOrPartitionError,
    UnsupportedError,
)
from stratalog.format.batch import BatchHeader, Codec, TimestampType
from stratalog.format.names import TopicPartition
from stratalog.format.record import Header, Record
from stratalog.log.damage import Skipped
from stratalog.log.isolation import IsolationLevel
from stratalog.log.partition_view import PartitionView
from stratalog.log_dir import LogDirsView, open_dirs, open_partition
from stratalog.storage.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "BatchHeader",
    "Codec",
    "CorruptBatchError",
    "CorruptCheckpointError",
    "CorruptError",
    "CorruptIndexError",
    "CorruptRecordError",
    "CorruptSnapshotError",
    "Header",
    "InvalidNameError",
    "IsolationLevel",
    "LimitExceededError",
    "LogDirsView",
    "NotALogDirError",
    "OffsetOutOfRangeError",
    "PartitionView",
    "Record",
    "Skipped",
    "StratalogError",
    "TimestampType",
    "TopicPartition",
    "Trace",
    "UnknownTopicOrPartitionError",
    "UnsupportedError",
    "open_dirs",
    "open_partition",
]

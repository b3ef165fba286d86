"""Apache Kafka's log storage in Python: read and explain Kafka's own files, without a broker.

>>> import stratalog
>>> logs = stratalog.open_dirs("/var/lib/kafka/data")            # doctest: +SKIP
>>> for record in logs.partition("orders", 0).read("earliest"):   # doctest: +SKIP
...     print(record.offset, record.key, record.value)

The names below are the public surface. Each is imported when it is first used, so that commands
which need few of them start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        SegmentGoneError,
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
    "SegmentGoneError",
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

_HOMES = {
    "stratalog.format.batch": ("BatchHeader", "Codec", "TimestampType"),
    "stratalog.format.names": ("TopicPartition",),
    "stratalog.format.record": ("Header", "Record"),
    "stratalog.log.damage": ("Skipped",),
    "stratalog.log.isolation": ("IsolationLevel",),
    "stratalog.log.partition_view": ("PartitionView",),
    "stratalog.log_dir": ("LogDirsView", "open_dirs", "open_partition"),
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

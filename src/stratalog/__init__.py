"""Apache Kafka's log storage in Python: read, explain and write Kafka's own files.

>>> import stratalog
>>> with stratalog.open_dirs("/var/lib/kafka/data") as logs:      # doctest: +SKIP
...     for record in logs.partition("orders", 0).read("earliest"):
...         print(record.offset, record.key, record.value)

>>> with stratalog.LogDir.open("my-data") as logs:                # doctest: +SKIP
...     logs.append("orders", b"two apples", key=b"alice")

The names below are what most programs start with. Every exception is in `stratalog.errors`, and
every other type that a method returns in `stratalog.types`. Each name is imported when it is first
used, so that commands which need few of them start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratalog import errors, types
    from stratalog.broker.broker import Broker
    from stratalog.config import BrokerConfig, LogConfig
    from stratalog.errors import StratalogError
    from stratalog.format.batch import Codec, TimestampType
    from stratalog.format.names import TopicPartition
    from stratalog.format.record import Header, Record
    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.reader import IsolationLevel
    from stratalog.log_dir import LogDir
    from stratalog.partitions.topics import TopicInfo
    from stratalog.partitions.view import LogDirsView, open_dirs, open_partition
    from stratalog.producing.batches import AppendedRange, Delivery, RecordMetadata
    from stratalog.producing.producer import Producer
    from stratalog.producing.transactions import Transaction, TransactionalProducer

__version__ = "0.1.0.dev0"

__all__ = [
    "AppendedRange",
    "Broker",
    "BrokerConfig",
    "Codec",
    "Delivery",
    "Header",
    "IsolationLevel",
    "LogConfig",
    "LogDir",
    "LogDirsView",
    "PartitionLog",
    "PartitionView",
    "Producer",
    "Record",
    "RecordMetadata",
    "StratalogError",
    "TimestampType",
    "TopicInfo",
    "TopicPartition",
    "Transaction",
    "TransactionalProducer",
    "errors",
    "open_dirs",
    "open_partition",
    "types",
]

_HOMES = {
    "stratalog.broker.broker": ("Broker",),
    "stratalog.config": ("BrokerConfig", "LogConfig"),
    "stratalog.errors": ("StratalogError",),
    "stratalog.format.batch": ("Codec", "TimestampType"),
    "stratalog.format.names": ("TopicPartition",),
    "stratalog.format.record": ("Header", "Record"),
    "stratalog.log.reader": ("IsolationLevel",),
    "stratalog.log.partition_log": ("PartitionLog",),
    "stratalog.log.partition_view": ("PartitionView",),
    "stratalog.log_dir": ("LogDir",),
    "stratalog.partitions.topics": ("TopicInfo",),
    "stratalog.partitions.view": ("LogDirsView", "open_dirs", "open_partition"),
    "stratalog.producing.batches": ("AppendedRange", "Delivery", "RecordMetadata"),
    "stratalog.producing.producer": ("Producer",),
    "stratalog.producing.transactions": ("Transaction", "TransactionalProducer"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME_OF.get(name)
    if home is None:
        return import_module(f"stratalog.{name}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """An overview, without what this module needs itself."""
    return [*__all__, "__doc__", "__version__"]

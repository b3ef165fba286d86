"""The options of Spark's Kafka connector: which are supported, ignored or rejected here.

The connector passes options that start with `kafka.` to Kafka's consumer or producer. Most of them
are about the connection to brokers: they are accepted and ignored, so that a job runs with the
options that it has. Those that would change which records are read or where they are written are
refused instead. docs/migrating-from-the-kafka-connector.md has the same table for users.

Nothing here needs PySpark.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Treatment(enum.Enum):
    """What becomes of an option of the connector."""

    SAME = "same"
    DIFFERENT = "different"
    """Known here as well, with a difference that the page explains."""
    IGNORED = "ignored"
    REFUSED = "refused"


_SAME, _DIFFERENT = Treatment.SAME, Treatment.DIFFERENT
_IGNORED, _REFUSED = Treatment.IGNORED, Treatment.REFUSED

CONNECTOR_OPTIONS: Final[Mapping[str, Treatment]] = {
    "assign": _SAME,
    "subscribe": _SAME,
    "subscribePattern": _DIFFERENT,
    "startingTimestamp": _SAME,
    "startingOffsetsByTimestamp": _SAME,
    "startingOffsets": _SAME,
    "startingOffsetsByTimestampStrategy": _SAME,
    "endingTimestamp": _SAME,
    "endingOffsetsByTimestamp": _SAME,
    "endingOffsets": _SAME,
    "failOnDataLoss": _SAME,
    "includeHeaders": _SAME,
    "minPartitions": _SAME,
    "maxRecordsPerPartition": _SAME,
    "maxOffsetsPerTrigger": _SAME,
    "minOffsetsPerTrigger": _SAME,
    "maxTriggerDelay": _SAME,
    "topic": _SAME,
    "kafka.isolation.level": _SAME,
    "kafka.compression.type": _SAME,
    "kafka.compression.gzip.level": _SAME,
    "kafka.compression.lz4.level": _SAME,
    "kafka.compression.zstd.level": _SAME,
    "kafka.batch.size": _DIFFERENT,
    "kafka.bootstrap.servers": _IGNORED,
    "kafka.group.id": _IGNORED,
    "groupIdPrefix": _IGNORED,
    "kafkaConsumer.pollTimeoutMs": _IGNORED,
    "fetchOffset.numRetries": _IGNORED,
    "fetchOffset.retryIntervalMs": _IGNORED,
    "kafka.auto.offset.reset": _REFUSED,
    "kafka.enable.auto.commit": _REFUSED,
    "kafka.interceptor.classes": _REFUSED,
    "kafka.key.deserializer": _REFUSED,
    "kafka.key.serializer": _REFUSED,
    "kafka.partitioner.class": _REFUSED,
    "kafka.partitioner.ignore.keys": _REFUSED,
    "kafka.transactional.id": _REFUSED,
    "kafka.value.deserializer": _REFUSED,
    "kafka.value.serializer": _REFUSED,
}
"""All options of the connector but `IGNORED_CLIENT_SETTINGS`."""

IGNORED_CLIENT_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "clients": (
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "config.providers",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.*",
        "security.protocol",
        "security.providers",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "ssl.*",
    ),
    "consumers": (
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "check.crcs",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "session.timeout.ms",
    ),
    "producers": (
        "acks",
        "buffer.memory",
        "delivery.timeout.ms",
        "enable.idempotence",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.request.size",
        "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "retries",
        "transaction.timeout.ms",
        "transaction.two.phase.commit.enable",
    ),
}
"""Settings of Kafka's clients, without the prefix `kafka.`; `*` stands for anything."""

_ADVICE: Final = {
    "kafka.auto.offset.reset": "use startingOffsets; the connector refuses it too",
    "kafka.enable.auto.commit": "no offsets are committed; the connector refuses it too",
    "kafka.interceptor.classes": "the connector refuses it too",
    "kafka.partitioner.class": "add a column partition; without one, keys are placed as by "
    "Kafka's default partitioner",
    "kafka.partitioner.ignore.keys": "add a column partition, or write null keys",
    "kafka.transactional.id": "every write is atomic; to repeat a batch write safely, use "
    "txnAppId and txnVersion",
}
_SERIALIZERS: Final = (
    "keys and values are bytes: cast them in the query; the connector refuses it too"
)
_PROPER: Final = {name.lower(): name for name in CONNECTOR_OPTIONS}
_CLIENT_SETTINGS: Final = frozenset(
    f"kafka.{name}" for names in IGNORED_CLIENT_SETTINGS.values() for name in names
)
_PREFIXES: Final = tuple(name.removesuffix("*") for name in _CLIENT_SETTINGS if name[-1] == "*")


def split_off_ignored(
    options: Mapping[str, str], known: Iterable[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The options without those that only a broker needs, and the names of these. `known` options
    have a meaning here, whatever the connector does with them.

    Raises ConfigError for one that cannot be ignored.
    """
    meaningful = {name.lower() for name in known}
    left, ignored = {}, []
    for name, value in options.items():
        lower = name.lower()
        if lower in meaningful or not _is_connector_option(lower):
            left[name] = value
        elif CONNECTOR_OPTIONS.get(_PROPER.get(lower, "")) is _REFUSED:
            proper = _PROPER[lower]
            raise ConfigError(proper, f"is not supported; {_ADVICE.get(proper, _SERIALIZERS)}")
        else:
            ignored.append(_PROPER.get(lower, lower))
    return left, tuple(sorted(ignored))


def _is_connector_option(lower: str) -> bool:
    """Whether the connector accepts the option, and passes it to Kafka's clients."""
    if lower in _PROPER:
        name = _PROPER[lower]
        return CONNECTOR_OPTIONS[name] in (_IGNORED, _REFUSED) or name.startswith("kafka.")
    return lower in _CLIENT_SETTINGS or lower.startswith(_PREFIXES)

"""What topic settings may be where Kafka has a list of words, or a grammar, for it."""

from __future__ import annotations

import enum

from stratalog.config.values import Choice, Choices, TextList
from stratalog.format.batch import Codec, TimestampType


class CleanupPolicy(enum.StrEnum):
    """What happens to old segments: nothing, dropped by retention, compacted by key, or both."""

    COMPACT = "compact"
    DELETE = "delete"


class TopicCompression(enum.StrEnum):
    """A topic's `compression.type`: a codec that the log enforces, or whatever producers send."""

    UNCOMPRESSED = "uncompressed"
    ZSTD = "zstd"
    LZ4 = "lz4"
    SNAPPY = "snappy"
    GZIP = "gzip"
    PRODUCER = "producer"

    @property
    def codec(self) -> Codec | None:
        """The codec to store with; None leaves each batch as it came."""
        return _CODECS[self]


_CODECS = {
    TopicCompression.UNCOMPRESSED: Codec.NONE,
    TopicCompression.ZSTD: Codec.ZSTD,
    TopicCompression.LZ4: Codec.LZ4,
    TopicCompression.SNAPPY: Codec.SNAPPY,
    TopicCompression.GZIP: Codec.GZIP,
    TopicCompression.PRODUCER: None,
}

POLICIES = Choices(Choice(tuple((policy.value, policy) for policy in CleanupPolicy)))
COMPRESSION = Choice(tuple((compression.value, compression) for compression in TopicCompression))
TIMESTAMP_TYPES = Choice(
    tuple(
        (kind.kafka_name, kind) for kind in TimestampType if kind is not TimestampType.NO_TIMESTAMP
    )
)
THROTTLED = TextList(
    r"[0-9]+:[0-9]+", wildcard="*", described="partition:broker, partition:broker, …, or * alone"
)

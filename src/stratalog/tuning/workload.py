"""The workload of a topic: figures that a user gives, that a log shows, or both."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.format.batch import Codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stratalog.tuning.headers import HeaderFacts

SPAN_MS_MIN: Final = 1000
"""A log of less record time than this shows no rate."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is known of a topic. None is unknown."""

    message_bytes: float | None = None
    """A record as stored: compressed, with its share of the batch header."""
    rate: float | None = None
    """Records a second, of all partitions."""
    partitions: int = 1
    retention_ms: int | None = None
    retention_bytes: int | None = None
    """The size limit of one partition."""
    offset_lookups: float = 0.0
    """A second, of all partitions: consumers that start, seek or fetch old data."""
    time_lookups: float = 0.0
    segment_bytes: int | None = None
    """If the user has decided on it."""
    batch_bytes: float | None = None
    largest_batch_bytes: int = 0
    is_compacted: bool = False
    keys: int | None = None
    superseded: float | None = None
    """Share of records that have a later one with the same key."""
    codec_ratios: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """What codecs make of a byte of keys and values, by a sample."""
    codecs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Share of the stored bytes by codec."""
    broker_partitions: int | None = None
    """Partitions of all topics on the broker."""
    late_ms: int = 0
    late_share: float = 0.0
    """Share of records whose timestamp is below an earlier one."""
    future_ms: int = 0
    append_time_share: float | None = None
    """Share of batches with LogAppendTime."""
    span_ms: int = 0

    @property
    def bytes_per_second(self) -> float | None:
        """Bytes per second of one partition."""
        if self.rate is None or self.message_bytes is None:
            return None
        return self.rate * self.message_bytes / self.partitions

    @property
    def lookups(self) -> float:
        return self.offset_lookups + self.time_lookups

    def given(self, numbers: Mapping[str, object]) -> Workload:
        """The workload with the user's figures, which override those of the log."""
        known = {name: value for name, value in numbers.items() if value is not None}
        return dataclasses.replace(self, **known)  # type: ignore[arg-type]  # fields by name


_CODEC_NAMES: Final = {codec.value: codec.name.lower() for codec in Codec}


def measured_workload(facts: HeaderFacts, partitions: int) -> Workload:
    """What the headers of a topic's batches show."""
    if not facts.batches:
        return Workload(partitions=partitions)
    span_ms = facts.span_ms
    return Workload(
        message_bytes=facts.record_bytes_mean or None,
        rate=facts.records / span_ms * 1000 if span_ms >= SPAN_MS_MIN else None,
        partitions=partitions,
        batch_bytes=facts.batch_bytes_mean,
        largest_batch_bytes=facts.largest_batch_bytes,
        codecs={
            _CODEC_NAMES.get(codec, str(codec)): found.size_bytes / facts.size_bytes
            for codec, found in sorted(facts.codecs.items())
        },
        late_ms=facts.latest_ms,
        late_share=facts.late_records / facts.records if facts.records else 0.0,
        future_ms=facts.future_ms,
        append_time_share=facts.append_time_batches / facts.batches,
        span_ms=span_ms,
    )

"""Advice for one topic: its numbers, its settings, what to change and what to beware of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.tuning.advice import Recommendation, recommend
from stratalog.tuning.traps import Trap, find_traps
from stratalog.tuning.workload import Workload, measured_workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stratalog.config import LogConfig
    from stratalog.tuning.headers import HeaderFacts


@dataclass(frozen=True)
class TopicAdvice:
    """What a topic is like, and what to set."""

    topic: str
    """Empty if only numbers were given."""
    workload: Workload
    config: LogConfig
    """As it is now, or Kafka's defaults."""
    recommendations: Sequence[Recommendation]
    traps: Sequence[Trap]
    """The traps of the current config."""


def advise(
    topic: str, workload: Workload, config: LogConfig, segments: int | None = None
) -> TopicAdvice:
    """Advice for a topic. `segments` are those of the whole broker, if known."""
    traps = find_traps(workload, config, segments=segments)
    return TopicAdvice(topic, workload, config, recommend(workload), traps)


def workload_of(
    facts: HeaderFacts, partitions: int, config: LogConfig, measured: Mapping[str, object]
) -> Workload:
    """What the headers of a topic and its settings show, and what other jobs have `measured`."""
    known: dict[str, object] = {"is_compacted": config.is_compacted}
    if config.has_delete_policy and config.retention_ms >= 0:
        known["retention_ms"] = config.retention_ms
    if config.has_delete_policy and config.retention_bytes >= 0:
        known["retention_bytes"] = config.retention_bytes
    return measured_workload(facts, partitions).given({**known, **measured})

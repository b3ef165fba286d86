"""Retention plans of partitions that are only read: no lock is taken and nothing is written.

The plan itself is made by `maintenance.retention`. This module adds the settings of the topic, and
leaves out limits that nobody has stated: a broker's default limits are in its server.properties,
which is not in the log directory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.config import LogConfig
from stratalog.config.topic import CleanupPolicy
from stratalog.errors import StratalogError
from stratalog.format.names import RootFile
from stratalog.maintenance.retention import plan_retention, retention_log_of_view
from stratalog.partitions.settings import ConfigSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_view import PartitionView
    from stratalog.maintenance.retention import RetentionPlan
    from stratalog.partitions.settings import EffectiveConfig, SettingsFinder

LIMITS: Final = ("retention.ms", "retention.bytes")


class PlannedRetention(NamedTuple):
    """The plan for one partition."""

    plan: RetentionPlan
    unknown: tuple[str, ...]
    """Limits of the topic that are not known here. They are not applied."""
    settings: EffectiveConfig
    """Including what was given for this run."""


class FailedPartition(NamedTuple):
    """A partition that could not be read, or that does not exist."""

    topic_partition: TopicPartition | None
    message: str


RetentionOutcome: TypeAlias = PlannedRetention | FailedPartition


class RetentionPlanner:
    """Plans retention for partitions of any log directory, as of one time."""

    def __init__(
        self,
        settings: SettingsFinder,
        now_ms: int,
        *,
        overrides: Mapping[str, object],
        has_broker_config: bool,
        uses_defaults: bool,
    ) -> None:
        """`overrides` are settings of topics for this run. With `has_broker_config` the broker's
        server.properties is known; with `uses_defaults`, Kafka's default limits apply."""
        self._settings = settings
        self._now_ms = now_ms
        self._overrides = overrides
        self._knows_limits = has_broker_config
        self._uses_defaults = uses_defaults

    def plan(self, view: PartitionView) -> RetentionOutcome:
        """What retention would delete of this partition."""
        try:
            settings, unknown = self._settings_of(view)
            facts = retention_log_of_view(view, self._now_ms)
            plan = plan_retention(facts, settings.config, self._now_ms)
        except (StratalogError, OSError) as error:  # OSError: removed meanwhile
            return FailedPartition(view.topic_partition, str(error))
        return PlannedRetention(plan, unknown, settings)

    def _settings_of(self, view: PartitionView) -> tuple[EffectiveConfig, tuple[str, ...]]:
        """The settings, and which limits are not known.

        If the cleanup.policy is unknown, Kafka's cleaner checkpoint shows which logs are compacted.
        """
        found = self._settings.of(view)
        if found.unknown is not None and view.checkpointed(RootFile.CLEANER_OFFSETS) is not None:
            compacted = replace(found.config, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
            found = replace(found, config=compacted)
        found = found.given(self._overrides)
        unknown: list[str] = []
        if found.config.has_delete_policy and not self._uses_defaults:
            unknown = [name for name in LIMITS if self._is_unknown(name, found)]
            config = LogConfig.parse(dict.fromkeys(unknown, -1), found.config)
            found = replace(found, config=config)
        return found, tuple(unknown)

    def _is_unknown(self, name: str, found: EffectiveConfig) -> bool:
        is_of_cluster = found.partition_count is not None or found.is_assumed
        is_default = found.source_of(name) is ConfigSource.DEFAULT
        return is_of_cluster and is_default and not self._knows_limits

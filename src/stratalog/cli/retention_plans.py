"""Retention plans of the partitions that a command names, made read-only and without a lock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.cli.ls import select
from stratalog.cli.output import Progress
from stratalog.cli.overrides import SettingsFinder
from stratalog.config import LogConfig
from stratalog.config.topic import CleanupPolicy
from stratalog.errors import StratalogError
from stratalog.format.names import CLUSTER_METADATA_TOPIC, RootFile
from stratalog.maintenance.retention import plan_retention, retention_log_of_view
from stratalog.partitions.settings import ConfigSource
from stratalog.storage.log_dir_scan import read_offset_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.cli.overrides import Overrides
    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_view import PartitionView
    from stratalog.maintenance.retention import RetentionPlan
    from stratalog.partitions.settings import EffectiveConfig

LIMITS: Final = ("retention.ms", "retention.bytes")


class Planned(NamedTuple):
    """A partition that could be read."""

    plan: RetentionPlan
    unknown: tuple[str, ...]
    """Limits of the topic that nobody tells: they do not apply."""
    settings: EffectiveConfig
    """With what was given for this run."""


class Failed(NamedTuple):
    """A partition, or what was named as one, that could not."""

    topic_partition: TopicPartition | None
    message: str


Outcome: TypeAlias = Planned | Failed


class Rules(NamedTuple):
    """By which settings, and when."""

    now_ms: int
    settings: Overrides
    uses_defaults: bool


def look(where: Sequence[str], log_dirs: Sequence[Path], rules: Rules) -> list[Outcome]:
    """A plan for each partition that is named, read-only."""
    outcomes: list[Outcome] = []
    views: list[PartitionView] = []
    for opener in select(where, log_dirs, []).openers():
        try:
            views += opener()
        except StratalogError as error:
            outcomes.append(Failed(None, str(error)))
    progress = Progress(sum(view.size_bytes for view in views), is_output_last=True)
    named = (path for path in map(Path, where) if path.is_dir())  # may have the metadata only
    roots = (*log_dirs, *(view.path.absolute().parent for view in views), *named)
    known = _Known(rules, roots)
    done_bytes = 0
    for view in views:
        if view.topic_partition.topic != CLUSTER_METADATA_TOPIC:  # that is the controllers'
            with view:
                outcomes.append(_plan(view, known, rules))
        done_bytes += view.size_bytes
        progress.update(done_bytes)
    progress.clear()
    return outcomes


def _plan(view: PartitionView, known: _Known, rules: Rules) -> Outcome:
    try:
        settings, unknown = known.settings_of(view)
        plan = plan_retention(
            retention_log_of_view(view, rules.now_ms), settings.config, rules.now_ms
        )
    except (StratalogError, OSError) as error:  # OSError: removed while we looked
        return Failed(view.topic_partition, str(error))
    return Planned(plan, unknown, settings)


class _Known:
    """What log directories, and the command line, tell of the settings of topics."""

    def __init__(self, rules: Rules, roots: Sequence[Path]) -> None:
        self._rules = rules
        self._finder = SettingsFinder(rules.settings, dict.fromkeys(roots))
        self._cleaned: dict[Path, dict[TopicPartition, int]] = {}

    def settings_of(self, view: PartitionView) -> tuple[EffectiveConfig, tuple[str, ...]]:
        """The settings, and which limits are not known.

        Where nobody tells the policy, Kafka's cleaner does: it has a checkpoint of each log that it
        compacts. A limit that is in no metadata is in the broker's server.properties, or Kafka's.
        """
        found = self._finder.of(view)
        if found.unknown is not None and self._is_cleaned(view):
            compacted = replace(found.config, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
            found = replace(found, config=compacted)
        found = found.given(self._rules.settings.of_topics)
        unknown: list[str] = []
        if found.config.is_deleted and not self._rules.uses_defaults:
            unknown = [name for name in LIMITS if self._is_unknown(name, found)]
            config = LogConfig.parse(dict.fromkeys(unknown, -1), found.config)
            found = replace(found, config=config)
        return found, tuple(unknown)

    def _is_unknown(self, name: str, found: EffectiveConfig) -> bool:
        is_a_cluster_s = found.partition_count is not None or found.is_assumed
        has_none = found.source_of(name) is ConfigSource.DEFAULT
        return is_a_cluster_s and has_none and not self._rules.settings.has_properties

    def _is_cleaned(self, view: PartitionView) -> bool:
        root = view.path.absolute().parent
        if root not in self._cleaned:
            self._cleaned[root] = read_offset_checkpoint(root, RootFile.CLEANER_OFFSETS)
        return view.topic_partition in self._cleaned[root]

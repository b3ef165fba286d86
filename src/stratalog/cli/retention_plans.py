"""Retention plans of the partitions that a command names, made read-only and without a lock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.cli.ls import select
from stratalog.cli.output import Progress
from stratalog.config import LogConfig
from stratalog.config.choices import CleanupPolicy
from stratalog.errors import StratalogError
from stratalog.format.checkpoint import decode_offsets
from stratalog.format.names import CLUSTER_METADATA_TOPIC, RootFile
from stratalog.log_dir.settings import TopicSettings
from stratalog.maintenance.retention import plan_retention
from stratalog.maintenance.retention_facts import facts_of_view

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.cli.overrides import Overrides
    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_view import PartitionView
    from stratalog.maintenance.retention import RetentionPlan

LIMITS: Final = ("retention.ms", "retention.bytes")


class Planned(NamedTuple):
    """A partition that could be read."""

    plan: RetentionPlan
    unknown: tuple[str, ...]
    """Settings of the topic that nobody tells: there is no limit by these."""


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
    known: dict[Path, _Directory] = {}
    done_bytes = 0
    for view in views:
        if view.topic_partition.topic != CLUSTER_METADATA_TOPIC:  # that is the controllers'
            with view:
                outcomes.append(_plan(view, known, rules))
        done_bytes += view.size_bytes
        progress.update(done_bytes)
    progress.clear()
    return outcomes


def _plan(view: PartitionView, known: dict[Path, _Directory], rules: Rules) -> Outcome:
    root = view.path.resolve().parent
    try:
        if root not in known:
            known[root] = _Directory(root, rules)
        config, unknown = known[root].config_of(view)
        plan = plan_retention(facts_of_view(view, rules.now_ms), config, rules.now_ms)
    except (StratalogError, OSError) as error:  # OSError: removed while we looked
        return Failed(view.topic_partition, str(error))
    return Planned(plan, unknown)


class _Directory:
    """A log directory, and what it tells of its topics' settings."""

    def __init__(self, path: Path, rules: Rules) -> None:
        self._rules = rules
        self._settings = TopicSettings([path], rules.settings.broker.log_config)
        is_a_cluster_s = (path / RootFile.META_PROPERTIES.value).exists()
        self._is_ours = self._settings.are_kept and not is_a_cluster_s
        self._cleaned = read_offsets(path / RootFile.CLEANER_OFFSETS.value)

    def config_of(self, view: PartitionView) -> tuple[LogConfig, tuple[str, ...]]:
        """The settings, and which of them are not known.

        Kafka's cleaner has a checkpoint of each log that it compacts: such a log is not to be
        deleted by age.
        """
        topic = view.topic_partition.topic
        config = self._settings.config_of(topic, view.topic_id)
        given = self._rules.settings.names
        is_known = self._is_ours or bool(self._settings.overrides_of(topic, view.topic_id))
        unknown: list[str] = []
        if not is_known:
            if view.topic_partition in self._cleaned and "cleanup.policy" not in given:
                config = replace(config, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
            if config.is_deleted and not self._rules.uses_defaults:
                unknown = [name for name in LIMITS if name not in given]
                config = LogConfig.parse(dict.fromkeys(unknown, -1), config)
        return self._rules.settings.config_of(config), tuple(unknown)


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """A checkpoint; empty when it is missing or, as for Kafka, unreadable."""
    try:
        return decode_offsets(path.read_bytes())
    except (FileNotFoundError, StratalogError):
        return {}

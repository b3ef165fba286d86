"""Which settings a topic has, as far as its log directory tells.

A Kafka cluster keeps the settings of its topics with its controllers, not in its log directories.
What Stratalog was told of a topic is in the kept state; everything else is as the broker's config
says, and a broker's own topics are compacted, as Kafka makes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stratalog.config import LogConfig
from stratalog.config.choices import CleanupPolicy
from stratalog.errors import ConfigError
from stratalog.format.names import INTERNAL_TOPICS
from stratalog.log_dir.kept_state import STATE_FILE, KeptState, StateStore
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def overrides_of(state: KeptState, name: str, topic_id: uuid.UUID | None) -> Mapping[str, str]:
    """What was set for the topic; nothing of one that had its name before."""
    kept = state.kept_topics.get(name)
    return kept.overrides if kept is not None and kept.topic_id == topic_id else {}


def base_config(name: str, defaults: LogConfig) -> LogConfig:
    """What a topic has without any setting of its own."""
    if name not in INTERNAL_TOPICS:
        return defaults
    return replace(defaults, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))


class TopicSettings:
    """The settings of topics in log directories that are only read."""

    def __init__(self, dirs: Sequence[Path], defaults: LogConfig) -> None:
        """Reads what was kept; raises CorruptError if that makes no sense."""
        self._dirs = dirs
        self._defaults = defaults
        self._state = StateStore(Disk(), dirs).state

    @property
    def are_kept(self) -> bool:
        """Whether Stratalog has kept settings here, so that a topic without any has none."""
        return any((path / STATE_FILE).exists() for path in self._dirs)

    def overrides_of(self, name: str, topic_id: uuid.UUID | None) -> Mapping[str, str]:
        """What was set for the topic."""
        return overrides_of(self._state, name, topic_id)

    def config_of(self, name: str, topic_id: uuid.UUID | None) -> LogConfig:
        """All settings of the topic."""
        try:
            overrides = self.overrides_of(name, topic_id)
            return LogConfig.parse(overrides, base_config(name, self._defaults))
        except ConfigError as error:
            raise error.located(self._dirs[0] / STATE_FILE) from None

"""Which settings a topic has, and where each of them comes from.

The settings of topics that were created here are in the kept state. Those of a Kafka cluster's
topics are in the cluster's metadata, which each of its nodes has on disk (`cluster_metadata`). As
in Kafka, what is set for the topic comes first, then what was set dynamically for this broker, then
for all brokers, then its `server.properties` (the config that was given), then Kafka's default.

Where neither tells of a topic, its settings are unknown. Reading needs none, and records may be
appended; but nothing is deleted or compacted there until somebody says which policy holds.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stratalog.config import LogConfig
from stratalog.config.topic import TOPIC_DEFINITIONS, CleanupPolicy
from stratalog.errors import ConfigError, StratalogError
from stratalog.format.metadata import MetaProperties, decode_meta_properties, encode_id
from stratalog.format.names import INTERNAL_TOPICS, RootFile
from stratalog.partitions.cluster_metadata import METADATA_DIR, read_cluster_metadata
from stratalog.partitions.state import STATE_FILE, StateStore
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from stratalog.config import BrokerConfig
    from stratalog.partitions.cluster_metadata import ClusterMetadata
    from stratalog.partitions.state import SavedState

POLICY = "cleanup.policy"


class ConfigSource(enum.StrEnum):
    """Where a setting comes from, by Kafka's names; the strongest first."""

    GIVEN = "GIVEN"
    """Not Kafka's: given for this run."""
    TOPIC = "DYNAMIC_TOPIC_CONFIG"
    BROKER = "DYNAMIC_BROKER_CONFIG"
    CLUSTER = "DYNAMIC_DEFAULT_BROKER_CONFIG"
    STATIC = "STATIC_BROKER_CONFIG"
    DEFAULT = "DEFAULT_CONFIG"

    @property
    def words(self) -> str:
        """For people."""
        return _WORDS[self]


_WORDS = {
    ConfigSource.GIVEN: "given for this run",
    ConfigSource.TOPIC: "topic",
    ConfigSource.BROKER: "dynamic broker config",
    ConfigSource.CLUSTER: "dynamic cluster default",
    ConfigSource.STATIC: "broker config",
    ConfigSource.DEFAULT: "Kafka's default",
}


@dataclass(frozen=True)
class EffectiveConfig:
    """All settings of a topic."""

    config: LogConfig
    overrides: Mapping[str, str] = field(default_factory=dict)
    """What is set for the topic itself."""
    sources: Mapping[str, ConfigSource] = field(default_factory=dict)
    """Of every setting that is not Kafka's default."""
    unknown: str | None = None
    """Why the topic's settings are not known; None if they are. Then `config` is the broker's."""
    partition_count: int | None = None
    """As the cluster has it; None if it is not known."""
    is_assumed: bool = False
    """Whether the settings are unknown, or were until somebody said which ones hold."""

    def source_of(self, name: str) -> ConfigSource:
        return self.sources.get(name, ConfigSource.DEFAULT)

    def shown(self) -> dict[str, tuple[str, ConfigSource]]:
        """Every setting that is not Kafka's default, as text, and where it comes from."""
        texts = {**self.config.as_dict()}
        names = [name for name in texts if name in self.sources]
        return {name: (texts[name], self.sources[name]) for name in names}

    def given(self, settings: Mapping[str, object]) -> EffectiveConfig:
        """With these in place of the topic's, for this run. With a cleanup.policy among them, what
        may be deleted or compacted is known."""
        if not settings:
            return self
        return dataclasses.replace(
            self,
            config=LogConfig.parse(settings, self.config),
            sources={**self.sources, **dict.fromkeys(settings, ConfigSource.GIVEN)},
            unknown=None if POLICY in settings else self.unknown,
        )


class TopicSettings:
    """The settings of the topics in some log directories, of one broker or of Stratalog."""

    def __init__(
        self,
        dirs: Sequence[Path],
        broker: BrokerConfig,
        *,
        assumed: Mapping[str, object] | None = None,
        state: Callable[[], SavedState] | None = None,
        search: Iterable[Path] = (),
    ) -> None:
        """`assumed` are settings for topics whose own are unknown. `state` is what was kept, read
        from the directories if it is not given; raises CorruptError if that makes no sense. The
        cluster's metadata may also be in one of `search`."""
        self._dirs = dirs
        self._search = tuple(search)
        self._broker = broker
        self._assumed = assumed or {}
        LogConfig.parse(self._assumed)
        if state is None:
            store = StateStore(Disk(), dirs)
            self._state: Callable[[], SavedState] = lambda: store.state
        else:
            self._state = state

    def of(self, name: str, topic_id: uuid.UUID | None) -> EffectiveConfig:
        """A topic's settings. Raises ConfigError if those that were kept are wrong."""
        state, cluster = self._state(), self.cluster
        kept = state.kept_topics.get(name)
        registered = None if cluster is None else cluster.topics.get(name)
        is_it = registered is not None and topic_id in {None, registered.topic_id}
        if cluster is not None and registered is not None and is_it:
            found = self._of_cluster(name, cluster)
            return dataclasses.replace(found, partition_count=registered.partition_count)
        if kept is not None and kept.topic_id == topic_id:
            return self._of_kept(name, kept.overrides)
        if kept is None and not state.lists_all_topics and cluster is None and not self.is_broker_s:
            return self._of_kept(name, {})  # of an earlier version, which did not list it
        other_id = None if registered is None else registered.topic_id
        return self._unknown(name, self._why_unknown(topic_id, other_id))

    def warnings(self) -> tuple[str, ...]:
        """What was odd about the cluster's metadata."""
        return () if self.cluster is None else self.cluster.warnings

    # -- the parts

    def _of_kept(self, name: str, overrides: Mapping[str, str]) -> EffectiveConfig:
        layers = [(ConfigSource.TOPIC, _checked_values(overrides))]
        try:
            return self._layered(name, layers, overrides)
        except ConfigError as error:
            raise error.located(self._dirs[0] / STATE_FILE) from None

    def _of_cluster(self, name: str, cluster: ClusterMetadata) -> EffectiveConfig:
        overrides = cluster.topic_configs(name)
        try:
            layers = [
                (ConfigSource.CLUSTER, _broker_values(cluster.cluster_configs)),
                (ConfigSource.BROKER, _broker_values(cluster.broker_configs(self.node_id))),
                (ConfigSource.TOPIC, _topic_values(overrides)),
            ]
            return self._layered(name, layers, overrides)
        except ConfigError as error:
            return self._unknown(name, f"the cluster's metadata has a setting of it with {error}")

    def _layered(
        self,
        name: str,
        layers: Iterable[tuple[ConfigSource, Mapping[str, Any]]],
        overrides: Mapping[str, str],
    ) -> EffectiveConfig:
        base = base_config(name, self._broker.log_config)
        sources = dict.fromkeys(self._broker.topic_settings, ConfigSource.STATIC)
        values: dict[str, Any] = {}
        for source, layer in layers:
            values |= layer
            sources |= dict.fromkeys(layer, source)
        return EffectiveConfig(LogConfig.parse(values, base), overrides, sources)

    def _unknown(self, name: str, why: str) -> EffectiveConfig:
        found = dataclasses.replace(self._layered(name, (), {}), unknown=why, is_assumed=True)
        return found.given(self._assumed)

    def _why_unknown(self, topic_id: uuid.UUID | None, other_id: uuid.UUID | None) -> str:
        if other_id is not None and topic_id is not None:
            return (
                f"the cluster's topic of this name has the id {encode_id(other_id)}, this one "
                f"{encode_id(topic_id)}: it was deleted, and a broker would rename it to -stray"
            )
        if self.cluster is not None:
            return "the cluster has no topic of this name: a broker would rename it to -stray"
        if self._metadata_problem is not None:
            return f"the cluster's metadata cannot be read: {self._metadata_problem}"
        if self.is_broker_s:
            return (
                f"this is a Kafka broker's directory, and the cluster's metadata ({METADATA_DIR}) "
                "is not here; name the directory that has it with metadata.log.dir"
            )
        return "the topic was not created here, and there is no cluster metadata beside it"

    # -- what the directories say

    @property
    def is_broker_s(self) -> bool:
        """Whether a Kafka node has formatted one of the directories."""
        return any((path / RootFile.META_PROPERTIES.value).exists() for path in self._dirs)

    @cached_property
    def node_id(self) -> int | None:
        """Of the node whose directories these are."""
        found = next(filter(None, map(_meta_of, self._dirs)), None)
        if found is not None and found.node_id is not None:
            return found.node_id
        return None if self._broker.node_id < 0 else self._broker.node_id

    @property
    def cluster(self) -> ClusterMetadata | None:
        """The cluster's metadata, if it is there and can be read."""
        return self._metadata[0]

    @property
    def _metadata_problem(self) -> str | None:
        return self._metadata[1]

    @cached_property
    def _metadata(self) -> tuple[ClusterMetadata | None, str | None]:
        root = self._broker.metadata_log_dir
        if root is None:
            root = next(filter(self._may_be_ours, (*self._dirs, *self._search)), None)
        if root is None:
            return None, None
        if not self._is_of_our_cluster(root):
            return None, f"{root} belongs to another cluster"
        try:
            return read_cluster_metadata(root / METADATA_DIR), None
        except StratalogError as error:
            return None, str(error)

    def _may_be_ours(self, root: Path) -> bool:
        """A node keeps it in the first of its log directories: any of those at hand."""
        return (root / METADATA_DIR).is_dir() and self._is_of_our_cluster(root)

    def _is_of_our_cluster(self, root: Path) -> bool:
        theirs = _meta_of(root)
        ours = next(filter(None, map(_meta_of, self._dirs)), None)
        return theirs is None or ours is None or ours.cluster_id == theirs.cluster_id


def base_config(name: str, defaults: LogConfig) -> LogConfig:
    """What a topic has without any setting of its own."""
    if name not in INTERNAL_TOPICS:
        return defaults
    return dataclasses.replace(defaults, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))


def _checked_values(overrides: Mapping[str, str]) -> Mapping[str, Any]:
    LogConfig.parse(overrides)  # a name that nobody knows is an error
    return overrides


def _topic_values(overrides: Mapping[str, str]) -> dict[str, Any]:
    """As Kafka does, without names that this version has no setting for."""
    return {
        name: TOPIC_DEFINITIONS[name].parse(text)
        for name, text in overrides.items()
        if name in TOPIC_DEFINITIONS
    }


def _broker_values(properties: Mapping[str, str]) -> dict[str, Any]:
    """What a broker's settings say about topics, by the topics' names."""
    found = {name: each.choose(properties) for name, each in TOPIC_DEFINITIONS.items()}
    return {name: value for name, value in found.items() if value is not None}


def _meta_of(path: Path) -> MetaProperties | None:
    """None also if it cannot be read: whoever opens the directory says so."""
    try:
        return decode_meta_properties((path / RootFile.META_PROPERTIES.value).read_bytes())
    except (OSError, StratalogError):
        return None

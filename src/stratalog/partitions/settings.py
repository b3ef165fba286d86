"""The settings of a topic, and the source of each of them.

The settings of topics that were created here are in the saved state. Those of a Kafka cluster's
topics are in the cluster's metadata, which each of its nodes has on disk (`cluster_metadata`).
Precedence is Kafka's: the topic's own settings, then the dynamic settings of this broker, then
those of all brokers, then `server.properties` (the given config), then Kafka's defaults.

If a topic is in neither of them, its settings are unknown. It can be read and appended to, but
nothing of it is deleted or compacted until somebody gives a `cleanup.policy`.
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
from stratalog.format.directory_metadata import MetaProperties, decode_meta_properties
from stratalog.format.names import INTERNAL_TOPICS, RootFile
from stratalog.format.uuids import encode_id
from stratalog.partitions.cluster_metadata import METADATA_DIR, read_cluster_metadata
from stratalog.partitions.saved_state import STATE_FILE, StateStore
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from stratalog.config import BrokerConfig
    from stratalog.log.partition_view import PartitionView
    from stratalog.partitions.cluster_metadata import ClusterMetadata
    from stratalog.partitions.saved_state import SavedState

POLICY = "cleanup.policy"


class ConfigSource(enum.StrEnum):
    """The source of a setting, by Kafka's names; the highest precedence first."""

    GIVEN = "GIVEN"
    """Not in Kafka: given for this run."""
    TOPIC = "DYNAMIC_TOPIC_CONFIG"
    BROKER = "DYNAMIC_BROKER_CONFIG"
    CLUSTER = "DYNAMIC_DEFAULT_BROKER_CONFIG"
    STATIC = "STATIC_BROKER_CONFIG"
    DEFAULT = "DEFAULT_CONFIG"

    @property
    def label(self) -> str:
        """For messages and tables."""
        return _LABELS[self]


_LABELS = {
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
    """The settings of the topic itself."""
    sources: Mapping[str, ConfigSource] = field(default_factory=dict)
    """Sources of every setting that is not Kafka's default."""
    unknown: str | None = None
    """Why the topic's settings are unknown (`config` is the broker's then); None if they are
    known."""
    partition_count: int | None = None
    """According to the cluster's metadata; None if unknown."""
    is_assumed: bool = False
    """Whether the topic's own settings are unknown, even if some were assumed for this run."""

    def source_of(self, name: str) -> ConfigSource:
        return self.sources.get(name, ConfigSource.DEFAULT)

    def shown(self) -> dict[str, tuple[str, ConfigSource]]:
        """Every setting that is not Kafka's default: its value as text, and its source."""
        texts = {**self.config.as_dict()}
        names = [name for name in texts if name in self.sources]
        return {name: (texts[name], self.sources[name]) for name in names}

    def given(self, settings: Mapping[str, object]) -> EffectiveConfig:
        """The config with these settings instead of the topic's, for this run. If a
        `cleanup.policy` is among them, the topic's settings are no longer unknown."""
        if not settings:
            return self
        return dataclasses.replace(
            self,
            config=LogConfig.parse(settings, self.config),
            sources={**self.sources, **dict.fromkeys(settings, ConfigSource.GIVEN)},
            unknown=None if POLICY in settings else self.unknown,
        )


class TopicSettings:
    """The settings of the topics in some log directories."""

    def __init__(
        self,
        dirs: Sequence[Path],
        broker: BrokerConfig,
        *,
        assumed: Mapping[str, object] | None = None,
        state: Callable[[], SavedState] | None = None,
        search: Iterable[Path] = (),
    ) -> None:
        """`assumed` has settings for topics whose own are unknown. `state` returns the saved state;
        without it, the state is read from the directories, which may raise CorruptError. The
        cluster's metadata is looked for in `dirs`, then in `search`."""
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
        """A topic's settings. Raises ConfigError if saved ones are invalid."""
        state, cluster = self._state(), self.cluster
        saved = state.saved_topics.get(name)
        registered = None if cluster is None else cluster.topics.get(name)
        is_same = registered is not None and topic_id in {None, registered.topic_id}
        if cluster is not None and registered is not None and is_same:
            found = self._from_cluster(name, cluster)
            return dataclasses.replace(found, partition_count=registered.partition_count)
        if saved is not None and saved.topic_id == topic_id:
            return self._from_saved_state(name, saved.overrides)
        is_listed = saved is not None or state.lists_all_topics
        if not is_listed and cluster is None and not self.is_broker_dir:
            # The topic was created by a version that did not list all topics.
            return self._from_saved_state(name, {})
        other_id = None if registered is None else registered.topic_id
        return self._unknown(name, self._unknown_reason(topic_id, other_id))

    def warnings(self) -> tuple[str, ...]:
        """Problems with the cluster's metadata that did not prevent reading it."""
        return () if self.cluster is None else self.cluster.warnings

    def _from_saved_state(self, name: str, overrides: Mapping[str, str]) -> EffectiveConfig:
        layers = [(ConfigSource.TOPIC, _checked_values(overrides))]
        try:
            return self._layered(name, layers, overrides)
        except ConfigError as error:
            raise error.located(self._dirs[0] / STATE_FILE) from None

    def _from_cluster(self, name: str, cluster: ClusterMetadata) -> EffectiveConfig:
        overrides = cluster.topic_configs(name)
        try:
            layers = [
                (ConfigSource.CLUSTER, _broker_values(cluster.cluster_configs)),
                (ConfigSource.BROKER, _broker_values(cluster.broker_configs(self.node_id))),
                (ConfigSource.TOPIC, _topic_values(overrides)),
            ]
            return self._layered(name, layers, overrides)
        except ConfigError as error:
            return self._unknown(
                name, f"the cluster's metadata has an invalid setting for it: {error}"
            )

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

    def _unknown_reason(self, topic_id: uuid.UUID | None, other_id: uuid.UUID | None) -> str:
        if other_id is not None and topic_id is not None:
            return (
                f"the cluster's topic of this name has the id {encode_id(other_id)}, this one "
                f"{encode_id(topic_id)}: it was deleted, and a broker would rename it to -stray"
            )
        if self.cluster is not None:
            return "the cluster has no topic of this name: a broker would rename it to -stray"
        if self._metadata_problem is not None:
            return f"the cluster's metadata cannot be read: {self._metadata_problem}"
        if self.is_broker_dir:
            return (
                f"this is a Kafka broker's directory, and the cluster's metadata ({METADATA_DIR}) "
                "is not here; set metadata.log.dir to the directory that has it"
            )
        return "the topic was not created here, and no cluster metadata was found"

    # -- the cluster

    @property
    def is_broker_dir(self) -> bool:
        """Whether a Kafka node has formatted one of the directories."""
        return any((path / RootFile.META_PROPERTIES.value).exists() for path in self._dirs)

    @cached_property
    def node_id(self) -> int | None:
        """The id of the Kafka node that has these directories."""
        found = next(filter(None, map(_meta_of, self._dirs)), None)
        if found is not None and found.node_id is not None:
            return found.node_id
        return None if self._broker.node_id < 0 else self._broker.node_id

    @property
    def cluster(self) -> ClusterMetadata | None:
        """The cluster's metadata, if it exists and can be read."""
        return self._metadata[0]

    @property
    def _metadata_problem(self) -> str | None:
        return self._metadata[1]

    @cached_property
    def _metadata(self) -> tuple[ClusterMetadata | None, str | None]:
        root = self._broker.metadata_log_dir
        if root is None:
            root = next(filter(self._has_metadata, (*self._dirs, *self._search)), None)
        if root is None:
            return None, None
        if not self._is_same_cluster(root):
            return None, f"{root} belongs to another cluster"
        try:
            return read_cluster_metadata(root / METADATA_DIR), None
        except StratalogError as error:
            return None, str(error)

    def _has_metadata(self, root: Path) -> bool:
        """A node keeps its metadata in the first of its log directories: any of those given."""
        return (root / METADATA_DIR).is_dir() and self._is_same_cluster(root)

    def _is_same_cluster(self, root: Path) -> bool:
        theirs = _meta_of(root)
        ours = next(filter(None, map(_meta_of, self._dirs)), None)
        return theirs is None or ours is None or ours.cluster_id == theirs.cluster_id


def base_config(name: str, defaults: LogConfig) -> LogConfig:
    """The settings of a topic that overrides none."""
    if name not in INTERNAL_TOPICS:
        return defaults
    return dataclasses.replace(defaults, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))


def _checked_values(overrides: Mapping[str, str]) -> Mapping[str, Any]:
    LogConfig.parse(overrides)  # raises for an unknown name
    return overrides


def _topic_values(overrides: Mapping[str, str]) -> dict[str, Any]:
    """As in Kafka, without names that this version does not know."""
    return {
        name: TOPIC_DEFINITIONS[name].parse(text)
        for name, text in overrides.items()
        if name in TOPIC_DEFINITIONS
    }


def _broker_values(properties: Mapping[str, str]) -> dict[str, Any]:
    """A broker's settings that are defaults of topics, by the names of the topic settings."""
    found = {name: each.choose(properties) for name, each in TOPIC_DEFINITIONS.items()}
    return {name: value for name, value in found.items() if value is not None}


def _meta_of(path: Path) -> MetaProperties | None:
    """None if it cannot be read either: opening the directory raises the error."""
    try:
        return decode_meta_properties((path / RootFile.META_PROPERTIES.value).read_bytes())
    except (OSError, StratalogError):
        return None


class SettingsFinder:
    """The settings of topics by the log directory that they are in. Each directory is read once."""

    def __init__(self, broker: BrokerConfig, search: Iterable[Path] = ()) -> None:
        """The cluster's metadata may also be in one of `search`."""
        self._broker = broker
        self._search = tuple(search)
        self._found: dict[Path, TopicSettings] = {}

    def of(self, view: PartitionView) -> EffectiveConfig:
        """The settings of the topic that this partition belongs to."""
        root = view.path.absolute().parent
        if root not in self._found:
            self._found[root] = TopicSettings([root], self._broker, search=self._search)
        return self._found[root].of(view.topic_partition.topic, view.topic_id)

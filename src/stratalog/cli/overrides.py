"""Settings by Kafka's names as `--config NAME=VALUE` gives them, for one run of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import typer

from stratalog.config import BrokerConfig, LogConfig
from stratalog.config.broker import read_properties
from stratalog.config.topic import TOPIC_DEFINITIONS
from stratalog.partitions.settings import ConfigSource, TopicSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from stratalog.log.partition_view import PartitionView
    from stratalog.partitions.settings import EffectiveConfig


_NAMES_MAX: Final = 10


class Overrides(NamedTuple):
    """What was given, told apart by name: a topic's settings, and a broker's."""

    of_topics: dict[str, object]
    of_broker: dict[str, object]
    broker: BrokerConfig
    names: frozenset[str]
    """Of all that was given, by Kafka's name for topics (`log.retention.hours`: `retention.ms`)."""
    has_properties: bool = False
    """Whether a server.properties is among it: then what it does not have is Kafka's default."""

    @classmethod
    def parse(
        cls,
        given: Sequence[str],
        server_properties: Path | None = None,
        metadata_log_dir: Path | None = None,
    ) -> Overrides:
        """Raises BadParameter for what is not NAME=VALUE, ConfigError for what Kafka refuses."""
        of_topics: dict[str, object] = {}
        of_broker: dict[str, object] = {}
        if server_properties is not None:
            of_broker |= read_properties(server_properties)
        if metadata_log_dir is not None:
            of_broker["metadata.log.dir"] = str(metadata_log_dir)
        for setting in given:
            name, equals, value = setting.partition("=")
            if not equals:
                raise typer.BadParameter(f"--config {setting!r} is not NAME=VALUE")
            (of_topics if name.strip() in TOPIC_DEFINITIONS else of_broker)[name.strip()] = value
        LogConfig.parse(of_topics)
        synonyms = (_topic_name(name) for name in of_broker)
        names = frozenset({*of_topics, *synonyms})
        broker = BrokerConfig.parse(of_broker)
        return cls(of_topics, of_broker, broker, names, server_properties is not None)

    def broker_with(self, defaults: Mapping[str, object]) -> BrokerConfig:
        """A broker's settings, with these where nothing was given."""
        return BrokerConfig.parse({**defaults, **self.of_broker})


class SettingsFinder:
    """The settings of topics by the log directories that they are in; each is read once."""

    def __init__(self, given: Overrides, log_dirs: Iterable[Path] = ()) -> None:
        """The metadata of a cluster may be in any of `log_dirs`."""
        self._given = given
        self._search = tuple(log_dirs)
        self._found: dict[Path, TopicSettings] = {}

    def at(self, root: Path) -> TopicSettings:
        """Those of one log directory."""
        if root not in self._found:
            broker = self._given.broker
            self._found[root] = TopicSettings([root], broker, search=self._search)
        return self._found[root]

    def of(self, view: PartitionView) -> EffectiveConfig:
        """Those of the topic that a partition is of, without what was given for topics."""
        settings = self.at(view.path.absolute().parent)
        return settings.of(view.topic_partition.topic, view.topic_id)


class HasSettings(Protocol):
    """A topic's settings and where they come from, whoever found them."""

    @property
    def config(self) -> LogConfig: ...
    @property
    def sources(self) -> Mapping[str, ConfigSource]: ...
    @property
    def unknown(self) -> str | None: ...


def settings_row(topic: str, found: HasSettings, names: Iterable[str]) -> dict[str, Any]:
    """These settings of a topic with their sources, for JSON."""
    texts, settings = found.config.as_dict(), None
    if found.unknown is None:
        settings = {
            name: {"value": texts[name], "source": _source_of(found, name).value} for name in names
        }
    return {"topic": topic, "settings": settings, "settingsUnknown": found.unknown}


def settings_lines(topics: Mapping[str, HasSettings], names: Sequence[str]) -> list[str]:
    """These settings with their sources, a line for all topics that have the same."""
    alike: dict[str, list[str]] = {}
    for topic, found in sorted(topics.items()):
        if found.unknown is not None:
            text = f"settings unknown: {found.unknown}"
        else:
            values = found.config.as_dict()
            text = ", ".join(
                f"{name}={values[name]} ({_source_of(found, name).label})" for name in names
            )
        alike.setdefault(text, []).append(topic)
    return [f"{_listed(found)}: {text}" for text, found in alike.items()]


def _source_of(found: HasSettings, name: str) -> ConfigSource:
    return found.sources.get(name, ConfigSource.DEFAULT)


def _listed(topics: Sequence[str]) -> str:
    more = len(topics) - _NAMES_MAX
    return ", ".join(topics[:_NAMES_MAX]) + (f" and {more:,} more" if more > 0 else "")


def _topic_name(broker_name: str) -> str:
    """Of a broker's setting that is a default for topics; any other keeps its name."""
    for name, definition in TOPIC_DEFINITIONS.items():
        if any(synonym.name == broker_name for synonym in definition.synonyms):
            return name
    return broker_name

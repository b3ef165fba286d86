"""Kafka settings for one run of a command: `--config NAME=VALUE`, `--server-properties FILE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from stratalog.cli.arguments import setting_values
from stratalog.config import BrokerConfig, LogConfig
from stratalog.config.broker import read_server_properties
from stratalog.config.topic import TOPIC_DEFINITIONS
from stratalog.partitions.settings import ConfigSource, SettingsFinder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_NAMES_MAX: Final = 10


class Overrides(NamedTuple):
    """Settings for this run: those of topics, and those of the broker."""

    of_topics: dict[str, object]
    of_broker: dict[str, object]
    broker: BrokerConfig
    names: frozenset[str]
    """Names of all of them, as topics call them (`log.retention.hours` is `retention.ms`)."""
    has_properties: bool = False
    """Whether a server.properties was given. What it does not set has Kafka's default."""

    @classmethod
    def parse(
        cls,
        given: Sequence[str],
        server_properties: Path | None = None,
        metadata_log_dir: Path | None = None,
    ) -> Overrides:
        """Raises BadParameter if a setting is not NAME=VALUE, ConfigError if Kafka rejects it."""
        of_topics: dict[str, object] = {}
        of_broker: dict[str, object] = {}
        if server_properties is not None:
            of_broker |= read_server_properties(server_properties)
        if metadata_log_dir is not None:
            of_broker["metadata.log.dir"] = str(metadata_log_dir)
        for name, value in setting_values("--config", given).items():
            (of_topics if name in TOPIC_DEFINITIONS else of_broker)[name] = value
        LogConfig.parse(of_topics)
        names = frozenset({*of_topics, *map(_topic_name, of_broker)})
        broker = BrokerConfig.parse(of_broker)
        return cls(of_topics, of_broker, broker, names, server_properties is not None)

    def broker_with(self, defaults: Mapping[str, object]) -> BrokerConfig:
        """The broker's settings, with these defaults."""
        return BrokerConfig.parse({**defaults, **self.of_broker})

    def finder(
        self, log_dirs: Iterable[Path] | None = None, partitions: Iterable[Path] = ()
    ) -> SettingsFinder:
        """Finds the settings of topics. The cluster's metadata may be in one of `log_dirs`, or
        beside one of `partitions`."""
        roots = (path.absolute().parent for path in partitions)
        return SettingsFinder(self.broker, dict.fromkeys([*(log_dirs or ()), *roots]))


def _topic_name(broker_name: str) -> str:
    """The topic's name of a broker setting; the same name if topics have no such setting."""
    for name, definition in TOPIC_DEFINITIONS.items():
        if any(synonym.name == broker_name for synonym in definition.synonyms):
            return name
    return broker_name


# -- printing settings and where they come from


class HasSettings(Protocol):
    """A topic's settings and their sources."""

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
    """These settings with their sources. Topics with the same settings share a line."""
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
    return [f"{_joined(found)}: {text}" for text, found in alike.items()]


def _source_of(found: HasSettings, name: str) -> ConfigSource:
    return found.sources.get(name, ConfigSource.DEFAULT)


def _joined(topics: Sequence[str]) -> str:
    more = len(topics) - _NAMES_MAX
    return ", ".join(topics[:_NAMES_MAX]) + (f" and {more:,} more" if more > 0 else "")

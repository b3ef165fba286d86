"""Settings by Kafka's names as `--config NAME=VALUE` gives them, for one run of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import typer

from stratalog.config import BrokerConfig, LogConfig
from stratalog.config.topic import TOPIC_DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Overrides(NamedTuple):
    """What was given, told apart by name: a topic's settings, and a broker's."""

    of_topics: dict[str, object]
    of_broker: dict[str, object]
    broker: BrokerConfig
    names: frozenset[str]
    """Of all that was given, by Kafka's name for topics (`log.retention.hours`: `retention.ms`)."""

    @classmethod
    def parse(cls, given: Sequence[str]) -> Overrides:
        """Raises BadParameter for what is not NAME=VALUE, ConfigError for what Kafka refuses."""
        of_topics: dict[str, object] = {}
        of_broker: dict[str, object] = {}
        for setting in given:
            name, equals, value = setting.partition("=")
            if not equals:
                raise typer.BadParameter(f"--config {setting!r} is not NAME=VALUE")
            (of_topics if name.strip() in TOPIC_DEFINITIONS else of_broker)[name.strip()] = value
        LogConfig.parse(of_topics)
        synonyms = (_topic_name(name) for name in of_broker)
        names = frozenset({*of_topics, *synonyms})
        return cls(of_topics, of_broker, BrokerConfig.parse(of_broker), names)

    def broker_with(self, defaults: Mapping[str, object]) -> BrokerConfig:
        """A broker's settings, with these where nothing was given."""
        return BrokerConfig.parse({**defaults, **self.of_broker})

    def config_of(self, topic_config: LogConfig) -> LogConfig:
        """A topic's settings with those that were given in their place."""
        return LogConfig.parse(self.of_topics, topic_config)


def _topic_name(broker_name: str) -> str:
    """Of a broker's setting that is a default for topics; any other keeps its name."""
    for name, definition in TOPIC_DEFINITIONS.items():
        if any(synonym.name == broker_name for synonym in definition.synonyms):
            return name
    return broker_name

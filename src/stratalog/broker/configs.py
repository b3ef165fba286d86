"""Settings of topics and of the broker: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

A topic's settings can be changed; the log directory keeps them. The broker's are those that it was
started with, so they are shown as read-only.
"""

from __future__ import annotations

import enum
import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stratalog.broker.requests import HandlerGroup, handles
from stratalog.config.broker import BROKER_DEFINITIONS
from stratalog.config.topic import TOPIC_DEFINITIONS, LogConfig
from stratalog.errors import ConfigError, RequestError, StratalogError, UnknownTopicOrPartitionError
from stratalog.partitions.cluster_metadata import ResourceType
from stratalog.partitions.settings import ConfigSource
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from stratalog.broker.context import BrokerContext
    from stratalog.broker.requests import Request
    from stratalog.config.definitions import Definition
    from stratalog.partitions.topics import TopicInfo
    from stratalog.wire.frames import Body


class Change(enum.IntEnum):
    """What an incremental change does to a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_SOURCES: Final[Mapping[ConfigSource, int]] = {
    ConfigSource.GIVEN: 4,  # not in Kafka: given when the broker was started
    ConfigSource.TOPIC: 1,
    ConfigSource.BROKER: 2,
    ConfigSource.CLUSTER: 3,
    ConfigSource.STATIC: 4,
    ConfigSource.DEFAULT: 5,
}
_STATIC: Final = _SOURCES[ConfigSource.STATIC]
_DEFAULT: Final = _SOURCES[ConfigSource.DEFAULT]
_LOGGER: Final = 6
_TYPES: Final[Mapping[str, int]] = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
}
_LEVELS: Final[Mapping[int, str]] = {
    logging.CRITICAL: "FATAL",
    logging.WARNING: "WARN",
    logging.NOTSET: "ALL",
}
_ROOT_LOGGER: Final = "root"
NO_SUCH_TOPIC: Final = "This server does not host this topic-partition."
_NUMBERS: Final = {"int", "short", "long", "double"}


class ConfigHandlers(HandlerGroup):
    """The handlers of this module."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._logs = context.logs

    # -- describing

    @handles(ApiKey.DESCRIBE_CONFIGS)
    def describe(self, request: Request) -> Body:
        return {
            "results": [self._described(each, request.body) for each in request.body["resources"]]
        }

    def _described(self, resource: Body, body: Body) -> Body:
        result = {
            "errorMessage": "",
            "resourceType": resource["resourceType"],
            "resourceName": resource["resourceName"],
            "configs": [],
        }
        try:
            configs = self._configs_of(resource)
        except StratalogError as error:
            code = getattr(error, "code", ErrorCode.UNKNOWN_SERVER_ERROR)
            message = error.message if isinstance(error, RequestError) else ""
            return {**result, "errorCode": int(code), "errorMessage": message}
        keys = resource["configurationKeys"]
        configs = (each for each in configs if not keys or each["name"] in keys)
        return {**result, "configs": [_as_asked(each, body) for each in configs]}

    def _configs_of(self, resource: Body) -> Iterable[Body]:
        kind, name = resource["resourceType"], resource["resourceName"]
        if kind == ResourceType.TOPIC:
            return topic_configs(self._logs.topic(name))
        if kind in {ResourceType.BROKER, ResourceType.BROKER_LOGGER}:
            self._check_own_id(name, may_be_empty=kind == ResourceType.BROKER)
            return self._broker_configs() if kind == ResourceType.BROKER else [_root_logger()]
        if kind in {ResourceType.CLIENT_METRICS, ResourceType.GROUP}:
            return []
        raise RequestError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")

    def _check_own_id(self, name: str, *, may_be_empty: bool) -> None:
        own = str(self._context.node_id)
        if name != own and not (may_be_empty and not name):
            expected = f"{own} or empty string" if may_be_empty else own
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {expected}, but received {name}",
            )

    def _broker_configs(self) -> Iterator[Body]:
        config = replace(self._context.config, node_id=self._context.node_id)
        for definition in BROKER_DEFINITIONS.values():
            value = getattr(config, definition.field)
            is_default = value == definition.default
            yield _broker_config(definition, definition.name, value, is_default=is_default)
        for definition in TOPIC_DEFINITIONS.values():
            if definition.synonyms:
                value = getattr(config.log_config, definition.field)
                is_default = definition.name not in config.topic_settings
                yield from _defaults_of_topics(definition, value, is_default=is_default)

    @handles(ApiKey.LIST_CONFIG_RESOURCES)
    def list_resources(self, request: Request) -> Body:
        asked = request.body.get("resourceTypes")
        own = [str(self._context.node_id)]
        named: list[tuple[ResourceType, Collection[str]]] = []
        if asked is not None:  # version 0 lists the resources of client metrics only
            named = [
                (ResourceType.TOPIC, self._logs.topics),
                (ResourceType.BROKER, own),
                (ResourceType.BROKER_LOGGER, own),
            ]
        return {
            "configResources": [
                {"resourceName": name, "resourceType": int(kind)}
                for kind, names in named
                if not asked or kind in asked
                for name in names
            ]
        }

    # -- changing

    @handles(ApiKey.ALTER_CONFIGS)
    def alter(self, request: Request) -> Body:
        return self._altered(request, self._replaced)

    @handles(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    def alter_incrementally(self, request: Request) -> Body:
        return self._altered(request, self._changed)

    def _altered(
        self,
        request: Request,
        changes_of: Callable[[TopicInfo, Iterable[Body]], Mapping[str, str | None]],
    ) -> Body:
        resources = request.body["resources"]
        counts = Counter((each["resourceType"], each["resourceName"]) for each in resources)
        responses = []
        for resource in resources:
            key = (resource["resourceType"], resource["resourceName"])
            result: Body = {"errorMessage": None, "resourceType": key[0], "resourceName": key[1]}
            try:
                if counts[key] > 1:
                    raise RequestError(
                        ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                    )
                info = self._changeable(*key)
                _check_names_differ(resource["configs"])
                self._logs.log_dir.alter_config(
                    info.name,
                    changes_of(info, resource["configs"]),
                    validate_only=request.body["validateOnly"],
                )
            except StratalogError as error:
                result["errorCode"], result["errorMessage"] = code_and_message(error)
            responses.append(result)
        return {"responses": responses}

    def _changeable(self, kind: int, name: str) -> TopicInfo:
        if kind == ResourceType.TOPIC:
            info = self._logs.find_topic(name)
            if info is None:
                raise RequestError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
                )
            return info
        if kind in {ResourceType.BROKER, ResourceType.BROKER_LOGGER}:
            self._check_own_id(name, may_be_empty=True)
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                "The settings of a running broker cannot be changed: restart it with other "
                "settings",
            )
        raise RequestError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")

    def _replaced(self, info: TopicInfo, configs: Iterable[Body]) -> dict[str, str | None]:
        """All settings of the topic: those that are not named lose their override."""
        named = {each["name"]: _not_null(each) for each in configs}
        return {**dict.fromkeys(info.overrides), **named}

    def _changed(self, info: TopicInfo, configs: Iterable[Body]) -> dict[str, str | None]:
        now = info.config.as_dict()
        return {each["name"]: _after_change(each, now) for each in configs}


def _after_change(change: Body, now: Mapping[str, str]) -> str | None:
    """The new text of a setting; None for the default."""
    name, operation = change["name"], change["configOperation"]
    if operation == Change.DELETE:
        return None
    value = _not_null(change)
    if operation == Change.SET:
        return value
    if operation not in {Change.APPEND, Change.SUBTRACT}:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"Unknown operation {operation} for {name}")
    definition = TOPIC_DEFINITIONS.get(name)
    if definition is not None and definition.kind.type_name != "list":
        verb = Change(operation).name
        raise RequestError(
            ErrorCode.INVALID_CONFIG, f"Can't {verb} to key {name} because its type is not LIST."
        )
    parts = [part for part in now.get(name, "").split(",") if part]
    named = [part.strip() for part in value.split(",")]
    if operation == Change.APPEND:
        parts += [part for part in named if part not in parts]
    else:
        parts = [part for part in parts if part not in named]
    return ",".join(parts)


def _not_null(config: Body) -> str:
    value: str | None = config["value"]
    if value is None:
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config['name']}"
        )
    return value


def _check_names_differ(configs: Iterable[Body]) -> None:
    if any(count > 1 for count in Counter(each["name"] for each in configs).values()):
        raise RequestError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def code_and_message(error: StratalogError) -> tuple[int, str | None]:
    """Kafka's code and words for an error about a topic."""
    if isinstance(error, ConfigError):
        return int(ErrorCode.INVALID_CONFIG), _kafka_message(error)
    if isinstance(error, UnknownTopicOrPartitionError):
        return error.code, NO_SUCH_TOPIC
    code = getattr(error, "code", ErrorCode.UNKNOWN_SERVER_ERROR)
    return int(code), error.message if isinstance(error, RequestError) else str(error)


def _kafka_message(error: ConfigError) -> str:
    """What is wrong with a topic's setting, in Kafka's words where they are known."""
    definition = TOPIC_DEFINITIONS.get(error.name)
    if definition is None:
        return f"Unknown topic config name: {error.name}"
    reason, type_name = error.reason, definition.kind.type_name
    if type_name in _NUMBERS and "is not a" in reason:
        reason = f"Not a number of type {type_name.upper()}"
    return f"Invalid value {error.value} for configuration {error.name}: {reason}"


# -- single settings


def topic_configs(info: TopicInfo) -> list[Body]:
    """All settings of a topic."""
    return list(_topic_configs(info))


def _topic_configs(info: TopicInfo) -> Iterator[Body]:
    defaults = LogConfig()
    for name, text in info.config.as_dict().items():
        definition = TOPIC_DEFINITIONS[name]
        source = _SOURCES[info.sources.get(name, ConfigSource.DEFAULT)]
        synonyms = []
        if name in info.overrides:
            synonyms.append({"name": name, "value": text, "source": source})
        if len(definition.synonyms) == 1:  # if there are several, the first has no default
            broker_name = definition.synonyms[0].name
            default = definition.kind.text(getattr(defaults, definition.field))
            if source == _STATIC:
                synonyms.append({"name": broker_name, "value": text, "source": source})
            synonyms.append({"name": broker_name, "value": default, "source": _DEFAULT})
        yield {**_config(definition, name, text, source), "synonyms": synonyms}


def _broker_config(definition: Definition, name: str, value: object, *, is_default: bool) -> Body:
    text, default = definition.kind.text(value), definition.kind.text(definition.default)
    synonyms = [{"name": name, "value": default, "source": _DEFAULT}]
    if not is_default:
        synonyms.insert(0, {"name": name, "value": text, "source": _STATIC})
    source = _DEFAULT if is_default else _STATIC
    config = _config(definition, name, text, source)
    return {**config, "readOnly": True, "synonyms": synonyms}


def _defaults_of_topics(
    definition: Definition, value: object, *, is_default: bool
) -> Iterator[Body]:
    """A broker's names for a topic's setting. If there are several, with other units, the last has
    Kafka's default, and the others none."""
    first, last = definition.synonyms[0], definition.synonyms[-1]
    config = _broker_config(definition, first.name, value, is_default=is_default)
    if first == last:
        yield config
        return
    yield {**config, "value": None, "synonyms": []} if is_default else config
    if last.name not in BROKER_DEFINITIONS:
        assert isinstance(definition.default, int)  # times
        default = definition.default // last.ms
        other = replace(definition, kind=last.kind or definition.kind, default=default)
        yield _broker_config(other, last.name, default, is_default=True)


def _config(definition: Definition, name: str, text: str, source: int) -> Body:
    return {
        "name": name,
        "value": text,
        "configSource": source,
        "configType": _TYPES[definition.kind.type_name],
        "documentation": definition.doc or None,
    }


def _root_logger() -> Body:
    level = logging.getLogger().getEffectiveLevel()
    text = _LEVELS.get(level, logging.getLevelName(level))
    return {"name": _ROOT_LOGGER, "value": text, "configSource": _LOGGER, "documentation": ""}


def _as_asked(config: Body, request: Body) -> Body:
    """Without what the client did not ask for."""
    asked = dict(config)
    if not request["includeSynonyms"]:
        asked["synonyms"] = []
    if not request.get("includeDocumentation", False) and config.get("documentation"):
        asked["documentation"] = None
    return asked

"""`stratalog topic`: create, alter, delete and describe topics of log directories.

Changes are those of `LogDir`, under Kafka's lock; `describe` only reads.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from stratalog.cli.arguments import (
    CreateInBrokerDirOption,
    JsonOption,
    LocalLogDirOption,
    LogDirOption,
    argument,
    config_option,
    flag,
    partitions_option,
    repeatable,
    setting_values,
)
from stratalog.cli.output import json_line, print_truncations, report_line
from stratalog.cli.settings import settings_row
from stratalog.cli.tables import columns_of, counted, human_size, print_table
from stratalog.config import BrokerConfig, LogConfig
from stratalog.config.topic import TOPIC_DEFINITIONS, unknown_topic_config
from stratalog.errors import (
    BrokerDirectoryError,
    NoSegmentError,
    NotALogDirError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.names import TopicPartition
from stratalog.format.uuids import encode_id
from stratalog.log.partition_view import PartitionView
from stratalog.partitions.settings import ConfigSource
from stratalog.partitions.topics import TopicsView, check_new_topic
from stratalog.partitions.view import LogDirsView, LogDirView

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.log_dir import LogDir
    from stratalog.partitions.topics import TopicInfo

FAILS_WHEN: Final = "the topic could not be found, created, altered or deleted"

TopicArgument = Annotated[
    str, argument("TOPIC", "A topic in --log-dir (default: the current directory), or DIR/TOPIC.")
]
PartitionsOption = Annotated[int | None, partitions_option("Number of partitions. Default: 1.")]
SettingsOption = Annotated[
    list[str] | None, config_option("A Kafka setting of the topic, such as retention.ms=3600000.")
]


# -- commands


def create(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    topic: TopicArgument,
    log_dir: LocalLogDirOption = None,
    partitions: PartitionsOption = None,
    config: SettingsOption = None,
    if_not_exists: Annotated[
        bool, flag("--if-not-exists", "Do nothing if the topic exists.")
    ] = False,
    create_in_broker_dir: CreateInBrokerDirOption = False,
    as_json: JsonOption = False,
) -> None:
    """Create a topic.

    A log directory given with --log-dir is created if it does not exist. The topic keeps the
    settings given with --config; all others have Kafka's defaults. In the directory of a Kafka
    broker (it has a meta.properties file), topics are created only with --create-in-broker-dir. The
    command locks the log directory, so it fails while a broker is running.

    \b
    Examples:
      stratalog topic create orders -d /tmp/logs --partitions 12
      stratalog topic create prices -d /tmp/logs -c cleanup.policy=compact
      stratalog topic create /tmp/logs/clicks -p 3 -c retention.ms=1d --if-not-exists

    With --json, prints an object of kind topic and one of kind partition for each partition.
    """
    place = _place(topic, log_dir)
    settings = setting_values("--config", config or [])
    check_new_topic(place.topic, ())
    _note_limits(LogConfig.parse(settings))
    for path in place.dirs:
        _check_new_dir(path, is_given=place.is_given)
    with _open(place.dirs, create=True) as logs:
        try:
            info = logs.create_topic(
                place.topic,
                partitions or 1,
                config=settings,
                create_in_broker_dir=create_in_broker_dir,
            )
        except TopicAlreadyExistsError:
            if not if_not_exists:
                raise
            _print_changed(place, f"topic {place.topic} already exists", as_json=as_json)
            return
    what = f"created topic {info.name} with {counted(len(info.partitions), 'partition')}"
    _print_changed(place, what, as_json=as_json)


def alter(
    topic: TopicArgument,
    log_dir: LocalLogDirOption = None,
    config: SettingsOption = None,
    delete_config: Annotated[
        list[str] | None,
        repeatable(
            "--delete-config",
            "NAME",
            "A setting to remove from the topic, so that its default applies.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change settings of a topic.

    Other settings stay as they are. If a topic belongs to a Kafka cluster, its settings are in the
    cluster's metadata and can be changed only there (kafka-configs.sh). The command locks the log
    directory, so it fails while a broker is running.

    \b
    Examples:
      stratalog topic alter orders -d /tmp/logs -c retention.ms=3600000 -c segment.ms=600000
      stratalog topic alter /tmp/logs/orders --delete-config retention.ms

    With --json, prints an object of kind topic and one of kind partition for each partition.
    """
    settings = setting_values("--config", config or [])
    removed = [name.strip() for name in delete_config or []]
    if not settings and not removed:
        raise typer.BadParameter("nothing to change; give --config or --delete-config")
    for name in removed:
        if name not in TOPIC_DEFINITIONS:
            raise unknown_topic_config(name)
        if name in settings:
            raise typer.BadParameter(f"{name} is in both --config and --delete-config")
    LogConfig.parse(settings)
    place = _existing(topic, log_dir)
    with _open(place.dirs) as logs:
        missing = [name for name in removed if name not in logs.topic(place.topic).overrides]
        if missing:
            raise typer.BadParameter(f"{', '.join(missing)}: the topic does not have this setting")
        info = logs.alter_config(place.topic, {**settings, **dict.fromkeys(removed)})
    _note_limits(info.config)
    _print_changed(place, f"altered topic {info.name}", as_json=as_json)


def add_partitions(
    topic: TopicArgument,
    partitions: Annotated[
        int,
        partitions_option("The new total number of partitions.", show_default=False),
    ],
    log_dir: LocalLogDirOption = None,
    create_in_broker_dir: CreateInBrokerDirOption = False,
    as_json: JsonOption = False,
) -> None:
    """Add partitions to a topic.

    Existing records stay where they are. New records of a key may go to a different partition than
    its earlier ones. The number of partitions cannot be reduced. The command locks the log
    directory, so it fails while a broker is running.

    \b
    Examples:
      stratalog topic add-partitions orders -d /tmp/logs --partitions 24
      stratalog topic add-partitions /tmp/logs/orders -p 24 --json

    With --json, prints an object of kind topic and one of kind partition for each partition.
    """
    place = _existing(topic, log_dir)
    with _open(place.dirs, create_in_broker_dir=create_in_broker_dir) as logs:
        info = logs.add_partitions(place.topic, partitions)
    what = f"topic {info.name} has {counted(len(info.partitions), 'partition')} now"
    _print_changed(place, what, as_json=as_json)


def delete(
    topic: TopicArgument,
    log_dir: LocalLogDirOption = None,
    yes: Annotated[bool, flag("--yes", "Do not ask for confirmation.", short="-y")] = False,
    if_exists: Annotated[
        bool, flag("--if-exists", "Do nothing if the topic does not exist.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic and its files.

    The command asks for confirmation unless you give --yes; without a terminal, --yes is required.
    If a topic belongs to a Kafka cluster, it can be deleted only there (kafka-topics.sh). The
    command locks the log directory, so it fails while a broker is running.

    \b
    Examples:
      stratalog topic delete orders -d /tmp/logs
      stratalog topic delete /tmp/logs/orders --yes

    With --json, prints one object of kind deleted.
    """
    try:
        place = _existing(topic, log_dir)
        view = _read(place.dirs)
        facts = _facts_of(view, _topic_of(view, place.topic))
    except UnknownTopicOrPartitionError:
        if not if_exists:
            raise
        return
    _check_own(view, facts.info)
    if not yes:
        _confirm(place, facts)
    with _open(place.dirs, delay_ms=0) as logs:
        logs.delete_topic(place.topic)
    if as_json:
        row = {"topic": place.topic, "partitions": len(facts.partitions)}
        print_truncations()
        print(json_line({"kind": "deleted", **row, "sizeBytes": facts.size_bytes}))
    else:
        print(f"deleted topic {place.topic}: {facts.amount}")


def describe(
    topics: Annotated[
        list[str] | None,
        argument(
            "TOPIC",
            "Topics in --log-dir (default: the current directory), or DIR/TOPIC. If omitted, all "
            "topics.",
        ),
    ] = None,
    log_dir: LogDirOption = None,
    show_all: Annotated[
        bool,
        flag(
            "--all",
            "Show all settings. Default: only those that differ from their defaults.",
            short="-a",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show partitions, offsets, sizes and settings of topics.

    The command takes no lock and never writes. Settings are shown with their source.

    \b
    Examples:
      stratalog topic describe -d /var/lib/kafka/data
      stratalog topic describe orders -d /disk1 -d /disk2
      stratalog topic describe /var/lib/kafka/data/orders --all --json | jq .settings

    With --json, prints an object of kind topic for each topic, and one of kind partition for each
    of its partitions.
    """
    if topics:
        places = [_existing(topic, log_dir) for topic in topics]
    else:
        dirs = tuple(log_dir or [Path()])
        LogDirsView(dirs)
        names = [name for name, info in _read(dirs).topics.items() if not info.is_internal]
        places = [Place(dirs, name, is_given=True) for name in sorted(names)]
        if not places and not as_json:
            print(f"no topics in {', '.join(map(str, dirs))}")
    for at, place in enumerate(places):
        view = _read(place.dirs)
        facts = _facts_of(view, _topic_of(view, place.topic))
        if as_json:
            _print_rows(facts, shows_all=show_all)
        else:
            if at:
                print()
            _print_text(facts, shows_all=show_all)


SUBCOMMANDS: Final = {
    "create": create,
    "alter": alter,
    "add-partitions": add_partitions,
    "delete": delete,
    "describe": describe,
}


def run() -> None:
    """Create, alter, delete and describe topics of log directories.

    \b
    Examples:
      stratalog topic create orders -d /tmp/logs --partitions 12 -c retention.ms=1d
      stratalog topic describe orders -d /tmp/logs
      stratalog topic alter orders -d /tmp/logs -c cleanup.policy=compact
      stratalog topic add-partitions orders -d /tmp/logs --partitions 24
      stratalog topic delete orders -d /tmp/logs

    'stratalog topic COMMAND --help' lists all options. Each command takes --json.
    """


# -- where a topic is


class Place(NamedTuple):
    """A topic, and the log directories in which it is or will be."""

    dirs: tuple[Path, ...]
    topic: str
    is_given: bool
    """Whether the directories were named, and are not just the current one."""

    @property
    def where(self) -> str:
        return ", ".join(map(str, self.dirs))


def _place(topic: str, log_dirs: Sequence[Path] | None) -> Place:
    if log_dirs:
        return Place(tuple(log_dirs), topic, is_given=True)
    path = Path(topic)
    return Place((path.parent,), path.name, is_given="/" in topic)


def _existing(topic: str, log_dirs: Sequence[Path] | None) -> Place:
    """Raises unless the directories are log directories that have the topic."""
    place = _place(topic, log_dirs)
    LogDirsView(place.dirs).partitions_of(place.topic)
    return place


def _check_new_dir(path: Path, *, is_given: bool) -> None:
    """Raises if this is neither a log directory nor one that may become one."""
    with suppress(FileNotFoundError):
        if path.is_dir() and is_given and not any(path.iterdir()):
            return
    if path.exists() or not is_given:
        try:
            LogDirView(path)
        except NotALogDirError as error:
            hint = "" if is_given else "; give the log directory with --log-dir"
            raise NotALogDirError(f"{error}{hint}") from None


def _open(
    dirs: Sequence[Path],
    *,
    create: bool = False,
    create_in_broker_dir: bool = False,
    delay_ms: int | None = None,
) -> LogDir:
    from stratalog.log_dir import LogDir  # noqa: PLC0415 - heavy

    config = {} if delay_ms is None else {"log.segment.delete.delay.ms": delay_ms}
    return LogDir.open(
        *dirs,
        config=BrokerConfig.parse(config),
        create=create,
        background=False,
        recover_all=False,
        create_in_broker_dir=create_in_broker_dir,
    )


def _read(dirs: Sequence[Path]) -> TopicsView:
    return TopicsView([LogDirView(path) for path in dirs], BrokerConfig(), "offline")


def _topic_of(view: TopicsView, name: str) -> TopicInfo:
    info = view.topics.get(name)
    if info is None:
        raise UnknownTopicOrPartitionError(f"no topic {name!r}")
    return info


def _check_own(view: TopicsView, info: TopicInfo) -> None:
    """Raises if the topic belongs to a Kafka cluster, which would create it again."""
    is_in_broker_dir = any(log_dir.meta_properties is not None for log_dir in view.dirs)
    if info.is_in_cluster or (is_in_broker_dir and info.name not in view.store.state.saved_topics):
        raise BrokerDirectoryError(
            f"topic {info.name!r} belongs to a Kafka cluster: delete it there (kafka-topics.sh)"
        )


def _confirm(place: Place, facts: DescribedTopic) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "cannot ask for confirmation without a terminal; use --yes to delete without it"
        )
    question = f"Delete topic {place.topic} in {place.where}: {facts.amount}?"
    if not typer.confirm(question, err=True):
        report_line("stratalog: nothing was deleted")
        raise typer.Exit(1)


def _note_limits(config: LogConfig) -> None:
    for text in config.rejected_by_newer_kafka():
        report_line(f"stratalog: note: {text}")


# -- printing


class DescribedPartition(NamedTuple):
    """One partition of a topic."""

    partition: int
    path: Path
    log_start_offset: int
    log_end_offset: int
    segments: int
    size_bytes: int


class DescribedTopic(NamedTuple):
    """What is printed of a topic."""

    info: TopicInfo
    partitions: tuple[DescribedPartition, ...]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)

    @property
    def amount(self) -> str:
        offsets = sum(each.log_end_offset - each.log_start_offset for each in self.partitions)
        number = counted(len(self.partitions), "partition")
        return f"{number}, {counted(offsets, 'offset')}, {human_size(self.size_bytes)}"


def _facts_of(view: TopicsView, info: TopicInfo) -> DescribedTopic:
    return DescribedTopic(info, tuple(_partitions_of(view, info)))


def _partitions_of(view: TopicsView, info: TopicInfo) -> Iterator[DescribedPartition]:
    """Without those that a broker is just creating."""
    for number in info.partitions:
        path = view.partitions[TopicPartition(info.name, number)]
        with suppress(NoSegmentError), PartitionView(path) as partition:
            yield DescribedPartition(
                number,
                path,
                partition.log_start_offset,
                partition.log_end_offset,
                len(partition.segments),
                partition.size_bytes,
            )


def _print_changed(place: Place, what: str, *, as_json: bool) -> None:
    """The topic as it is now."""
    if not as_json:
        print(f"{what} in {place.where}")
        return
    view = _read(place.dirs)
    print_truncations()
    _print_rows(_facts_of(view, _topic_of(view, place.topic)), shows_all=False)


def _names(info: TopicInfo, *, shows_all: bool) -> list[str]:
    return sorted(info.config.as_dict() if shows_all else info.sources)


def _print_rows(facts: DescribedTopic, *, shows_all: bool) -> None:
    info = facts.info
    row: dict[str, Any] = {
        "kind": "topic",
        **settings_row(info.name, info, _names(info, shows_all=shows_all)),
        "topicId": None if info.topic_id is None else encode_id(info.topic_id),
        "partitions": len(info.partitions),
        "sizeBytes": facts.size_bytes,
    }
    print(json_line(row))
    for each in facts.partitions:
        partition = {
            "kind": "partition",
            "topic": info.name,
            "partition": each.partition,
            "path": str(each.path),
            "logStartOffset": each.log_start_offset,
            "logEndOffset": each.log_end_offset,
            "segments": each.segments,
            "sizeBytes": each.size_bytes,
        }
        print(json_line(partition))


def _print_text(facts: DescribedTopic, *, shows_all: bool) -> None:
    info = facts.info
    identity = "no id" if info.topic_id is None else f"id {encode_id(info.topic_id)}"
    print(f"{info.name}: {identity}, {facts.amount}")
    if info.unknown is not None:
        print(f"settings unknown: {info.unknown}")
    texts = info.config.as_dict()
    settings = [
        (name, texts[name], info.sources.get(name, ConfigSource.DEFAULT).label)
        for name in _names(info, shows_all=shows_all)
    ]
    if settings:
        print_table(columns_of("SETTING | VALUE | SOURCE"), settings)
    rows = [
        (
            str(each.partition),
            str(each.log_start_offset),
            str(each.log_end_offset),
            str(each.segments),
            human_size(each.size_bytes),
            str(each.path),
        )
        for each in facts.partitions
    ]
    print_table(columns_of("PARTITION# | START# | END# | SEGMENTS#/1 | SIZE# | PATH/2"), rows)

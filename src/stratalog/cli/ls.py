"""`stratalog ls`: what log directories hold, from topics down to segments.

What to show follows from what was named: log directories give topics, a topic its partitions, a
partition its segments. A partition that cannot be read is listed as such, and why is told on
standard error.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from stratalog.cli.arguments import LogDirOption, MetadataLogDirOption, ServerPropertiesOption
from stratalog.cli.inventory import Checkpoints, PartitionFacts, Wanted, partition_facts
from stratalog.cli.ls_report import (
    Report,
    TopicFacts,
    UnreadablePartition,
    log_dir_facts,
    other_directories,
)
from stratalog.cli.output import report_error
from stratalog.cli.overrides import Overrides, SettingsFinder
from stratalog.cli.targets import find_topic, is_partition_dir, open_segment, open_topic
from stratalog.errors import AccessDeniedError, StratalogError
from stratalog.format.names import CLUSTER_METADATA_TOPIC
from stratalog.log.partition_view import PartitionView, identity_of
from stratalog.partitions.view import LogDirsView, LogDirView

if TYPE_CHECKING:
    from stratalog.cli.ls_report import Level
    from stratalog.partitions.settings import EffectiveConfig

Opener: TypeAlias = Callable[[], Sequence[PartitionView]]
"""Raises AccessDeniedError, or what is wrong with the name."""


class SortBy(enum.StrEnum):
    """Orders of `--sort`; all but the name put the largest first."""

    NAME = "name"
    SIZE = "size"
    SEGMENTS = "segments"
    OFFSETS = "offsets"
    NEWEST = "newest"


@dataclass
class Selection:
    """What the arguments name."""

    dirs: list[LogDirView] = field(default_factory=list)
    """Log directories in which nothing was named: they are shown themselves, and by topics."""
    topics: list[Opener] = field(default_factory=list)
    partitions: list[Opener] = field(default_factory=list)
    """Named one by one: these are shown by segments."""

    @property
    def level(self) -> Level:
        return "topics" if self.dirs else "partitions"

    def openers(self) -> Iterator[Opener]:
        """One per thing named, so that one that cannot be opened does not spoil the others."""
        if self.dirs:
            everything = LogDirsView(log_dir.path for log_dir in self.dirs)
            for topic, number in everything.topic_partitions:
                yield partial(_open_partition, everything, topic, number)
        yield from self.topics
        yield from self.partitions


class _Problems:
    """Tells each at once and remembers that there were any."""

    count = 0

    def add(self, text: str) -> None:
        self.count += 1
        report_error(text)

    def with_partition(self, path: Path, error: Exception) -> UnreadablePartition:
        """A partition that cannot be read, told."""
        is_located = getattr(error, "path", None) is not None  # then the message begins with it
        problem = str(error) if is_located else f"{path}: {error}"
        self.add(problem)
        return UnreadablePartition(identity_of(path)[0], path, problem)


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    where: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHERE",
            help="Log directories (default: the current one), TOPIC or TOPIC:PARTITION in them, "
            "partition directories, or .log files.",
            show_default=False,
        ),
    ] = None,
    log_dir: LogDirOption = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:PARTITION]", help="Only this one. Repeatable."
        ),
    ] = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="One line per partition.")
    ] = False,
    segments: Annotated[
        bool, typer.Option("--segments", "-s", help="One line per segment as well.")
    ] = False,
    epochs: Annotated[bool, typer.Option("--epochs", help="Leader epochs as well.")] = False,
    producers: Annotated[
        bool, typer.Option("--producers", help="The state of each producer as well.")
    ] = False,
    transactions: Annotated[
        bool,
        typer.Option(
            "--transactions", help="Aborted transactions and the last stable offset as well."
        ),
    ] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All of these.")] = False,
    settings: Annotated[
        bool,
        typer.Option("--settings", help="Settings of topics, and where each comes from, as well."),
    ] = False,
    server_properties: ServerPropertiesOption = None,
    metadata_log_dir: MetadataLogDirOption = None,
    sort: Annotated[
        SortBy, typer.Option("--sort", help="Order of topics or partitions; largest first.")
    ] = SortBy.NAME,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a line: exact numbers, milliseconds."),
    ] = False,
) -> None:
    """List topics, partitions and segments of log directories.

    A log directory is shown by topics, a topic by partitions, a partition by segments. Sizes count
    .log files. START is the log start offset, END the log end offset (the next one to be written).
    OLDEST is the time of the first batch, NEWEST the largest timestamp; CODEC is that of the first
    batch. HIGH WM, RECOVERY and CLEANED come from the checkpoint files of the log directory.
    --settings adds the settings of topics, as they are kept here or in the cluster's metadata.

    Nothing is locked or written, so a directory in use by a broker may be listed.

    \b
    Examples:
      stratalog ls /var/lib/kafka/data
      stratalog ls /var/lib/kafka/data orders
      stratalog ls /var/lib/kafka/data/orders-0 --all
      stratalog ls -d /disk1 -d /disk2 --partitions --sort size
      stratalog ls /var/lib/kafka/data --segments --json | jq 'select(.kind == "segment")'

    A transaction index (.txnindex) that is missing although transactions were aborted in its
    segment is a warning on standard error, and an object of kind missing-index with --json.

    With --json each object has a kind: log-dir, topic, partition, unreadable-partition, segment,
    missing-index, file, leader-epoch, producer, aborted-transaction or directory. What is unknown
    is null.
    """
    selection = select(where or [], log_dir or [], topic or [])
    is_detailed = segments or epochs or producers or transactions or everything
    wanted = Wanted(
        segments=segments or everything or bool(selection.partitions),
        epochs=epochs or everything,
        producers=producers or everything,
        transactions=transactions or everything,
    )
    problems = _Problems()
    level: Level = "partitions" if partitions or is_detailed else selection.level
    given = Overrides.parse((), server_properties, metadata_log_dir)
    finder = SettingsFinder(given, [*(log_dir or []), *(found.path for found in selection.dirs)])
    report = look(selection, level, wanted, finder, problems)
    report = replace(
        report,
        topics=_sorted_topics(report.topics, sort),
        partitions=_sorted_partitions(report.partitions, sort),
        shows_settings=settings,
    )
    _print(report, as_json=as_json)
    if problems.count:
        raise typer.Exit(1)


def select(where: Sequence[str], log_dirs: Sequence[Path], topics: Sequence[str]) -> Selection:
    """Tell directories from topics: what exists is a path, what does not is a topic."""
    selection = Selection()
    roots, names = list(log_dirs), list(topics)
    for text in where:
        path = Path(text)
        if path.is_dir() and is_partition_dir(path):
            selection.partitions.append(partial(_open_one, PartitionView, path))
        elif path.is_dir():
            roots.append(path)
        elif path.exists():
            selection.partitions.append(partial(_open_one, open_segment, path))
        else:
            names.append(text)
    if roots and not names:
        selection.dirs = [LogDirView(path) for path in roots]
    elif names:
        _select_topics(selection, roots, names)
    elif not selection.partitions:
        selection.dirs = [LogDirView(Path())]
    return selection


def _select_topics(selection: Selection, roots: Sequence[Path], names: Sequence[str]) -> None:
    """Topics of the log directories given; `/data/orders` brings its own."""
    for name in names:
        dirs, spec = find_topic(name, roots)
        if spec.partition is None and spec.topic in dirs.topics:
            numbers = dirs.topics[spec.topic]
            selection.topics += [partial(_open_partition, dirs, spec.topic, n) for n in numbers]
        else:
            selection.partitions.append(partial(open_topic, dirs, spec))


def _open_partition(dirs: LogDirsView, topic: str, number: int) -> list[PartitionView]:
    return [dirs.partition(topic, number)]


def _open_one(how: Callable[[Path], PartitionView], path: Path) -> list[PartitionView]:
    return [how(path)]


def look(
    selection: Selection,
    level: Level,
    wanted: Wanted,
    finder: SettingsFinder,
    problems: _Problems,
) -> Report:
    """Open what was selected and gather the facts."""
    found: list[PartitionFacts] = []
    unreadable: list[UnreadablePartition] = []
    settings: dict[str, EffectiveConfig] = {}
    checkpoints = {log_dir.path: Checkpoints(log_dir) for log_dir in selection.dirs}
    for opener in selection.openers():
        try:
            views = opener()
        except AccessDeniedError as error:
            unreadable.append(problems.with_partition(error.path, error))
            continue
        except StratalogError as error:
            problems.add(str(error))
            continue
        for view in views:
            if view.path.parent not in checkpoints:
                checkpoints[view.path.parent] = Checkpoints(_log_dir_at(view.path.parent))
            try:
                with view:
                    found.append(partition_facts(view, checkpoints[view.path.parent], wanted))
                    _note_settings(settings, view, finder)
            except (StratalogError, OSError) as error:  # OSError: removed while we looked
                unreadable.append(problems.with_partition(view.path, error))
    return Report(
        level=level,
        log_dirs=[log_dir_facts(log_dir, problems.add) for log_dir in selection.dirs],
        topics=_topics(found, unreadable),
        partitions=found,
        other_directories=other_directories(selection.dirs),
        unreadable=unreadable,
        settings=settings,
    )


def _topics(
    found: Sequence[PartitionFacts], unreadable: Sequence[UnreadablePartition]
) -> list[TopicFacts]:
    by_topic: dict[str, list[PartitionFacts]] = {}
    for facts in found:
        by_topic.setdefault(facts.topic_partition.topic, []).append(facts)
    counts = Counter(each.topic_partition.topic for each in unreadable)
    names = sorted({*by_topic, *counts})
    return [TopicFacts.of(name, by_topic.get(name, []), counts[name]) for name in names]


def _note_settings(
    settings: dict[str, EffectiveConfig], view: PartitionView, finder: SettingsFinder
) -> None:
    """Of the topic, as the first of its partitions that is met tells them."""
    topic = view.topic_partition.topic
    if topic not in settings and topic != CLUSTER_METADATA_TOPIC:
        settings[topic] = finder.of(view)


def _log_dir_at(path: Path) -> LogDirView | None:
    try:
        return LogDirView(path)
    except StratalogError:
        return None


def _sorted_topics(topics: Sequence[TopicFacts], by: SortBy) -> Sequence[TopicFacts]:
    keys: dict[SortBy, Callable[[TopicFacts], int]] = {
        SortBy.SIZE: lambda topic: -topic.size_bytes,
        SortBy.SEGMENTS: lambda topic: -topic.segment_count,
        SortBy.OFFSETS: lambda topic: -topic.offsets,
        SortBy.NEWEST: lambda topic: -topic.largest_timestamp,
    }
    return sorted(topics, key=keys[by]) if by in keys else topics


def _sorted_partitions(
    partitions: Sequence[PartitionFacts], by: SortBy
) -> Sequence[PartitionFacts]:
    keys: dict[SortBy, Callable[[PartitionFacts], int]] = {
        SortBy.SIZE: lambda found: -found.size_bytes,
        SortBy.SEGMENTS: lambda found: -found.segment_count,
        SortBy.OFFSETS: lambda found: found.log_start_offset - found.log_end_offset,
        SortBy.NEWEST: lambda found: -found.largest_timestamp,
    }
    return sorted(partitions, key=keys[by]) if by in keys else partitions


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        from stratalog.cli.ls_json import json_lines  # noqa: PLC0415 one of the two is needed

        for line in json_lines(report):
            print(line)
    else:
        from stratalog.cli.ls_text import print_report  # noqa: PLC0415

        print_report(report)

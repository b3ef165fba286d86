"""What a command works on: paths and topics as users write them, and the partitions they name.

Every command accepts the forms below. For a path of another kind, the error says what it is and
what is expected.

* `orders` or `orders:3`, with one or several `--log-dir` (default: the current directory);
* a partition directory, `/data/orders-3`;
* a topic after its log directory, `/data orders` or `/data orders:3`, or joined to it with a slash,
  `/data/orders` or `/data/orders:3`;
* a segment, `/data/orders-3/00000000000000000042.log`: only that part of the log (`read`, `find`,
  `explain`, `ls`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from stratalog.cli.arguments import LogDirOption, StorageOption, WhereArgument
from stratalog.errors import (
    InvalidNameError,
    NoSegmentError,
    NotALogDirError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.names import TopicPartition
from stratalog.log.partition_view import PartitionView
from stratalog.partitions.view import (
    LogDirsView,
    LogDirView,
    default_tiered_store,
    open_dirs,
    open_partition,
)
from stratalog.storage.remote_path import location

_SEGMENT = re.compile(r"([0-9]{20})\.log(\.(swap|cleaned|deleted))?")


class TopicSpec(NamedTuple):
    """`topic` or `topic:partition`."""

    topic: str
    partition: int | None

    @classmethod
    def parse(cls, text: str) -> TopicSpec:
        topic, colon, digits = text.rpartition(":")
        if colon and topic and digits.isascii() and digits.isdigit() and len(digits) <= 10:
            return cls(topic, int(digits))
        return cls(text, None)


@dataclass
class _Named:
    """What arguments name."""

    roots: list[Path]
    """Log directories."""
    topics: list[str] = field(default_factory=list)
    partitions: list[tuple[Path, bool]] = field(default_factory=list)
    """Partition directories and files; the flag says whether it is a file."""


def _named(where: Sequence[str], log_dirs: Sequence[Path]) -> _Named:
    """With --log-dir every name is a topic. Otherwise a name that exists is a path, any other is a
    topic."""
    if log_dirs:
        return _Named(list(log_dirs), list(where))
    found = _Named([])
    for text in where:
        path = location(text)
        if path.is_dir() and not is_partition_dir(path):
            found.roots.append(path)
        elif path.exists():
            found.partitions.append((path, not path.is_dir()))
        else:
            found.topics.append(text)
    return found


# -- targets that are read record by record: `read`, `find`, `explain`


def open_targets(
    where: Sequence[str], log_dirs: Sequence[Path], *, takes_directories: bool = False
) -> list[PartitionView]:
    """The partitions that were named: paths first, then topics. With `takes_directories`, a log
    directory named alone stands for all its topics except internal ones."""
    named = _named(where, log_dirs)
    found = [
        open_segment(path) if is_file else open_partition(path)
        for path, is_file in named.partitions
    ]
    for name in named.topics:
        found += open_topic(*find_topic(name, named.roots))
    if named.topics:
        return found
    if not takes_directories:
        return found + [open_directory(root) for root in named.roots]
    if named.roots and default_tiered_store() is not None:  # any of them may have its metadata
        return found + _open_all(*named.roots)
    for root in named.roots:
        found += _open_all(root)
    return found


def _open_all(*roots: Path) -> list[PartitionView]:
    """Every partition of log directories, except those of internal topics."""
    dirs = open_dirs(*roots)
    names = [each for each in dirs.topic_partitions if not each.topic.startswith("__")]
    if not names:
        where = ", ".join(map(str, roots))
        raise UnknownTopicOrPartitionError(
            f"{where}: there are only internal topics; name one to read it"
        )
    return [dirs.partition(*each) for each in names]


def open_topic(dirs: LogDirsView, spec: TopicSpec) -> list[PartitionView]:
    """One partition of a topic, or all of them."""
    if spec.topic not in dirs.partition_numbers:
        as_directory = _as_directory(spec)
        if as_directory in dirs.topic_partitions:
            return [dirs.partition(*as_directory)]
    if spec.partition is not None:
        return [dirs.partition(spec.topic, spec.partition)]
    return list(dirs.partitions_of(spec.topic))


def open_directory(path: Path) -> PartitionView:
    """Open a partition directory. For a log directory, the error says what to write instead."""
    if is_partition_dir(path):
        return open_partition(path)
    try:
        dirs = open_dirs(path)
    except NotALogDirError:
        raise NotALogDirError(
            f"{path}: neither a partition directory (it has no segments) nor a log directory (it "
            "has no directories TOPIC-NUMBER with segments)"
        ) from None
    topics = ", ".join(list(dirs.partition_numbers)[:10]) or "none"
    raise UnknownTopicOrPartitionError(
        f"{path} is a log directory: name a topic in it, such as {path} TOPIC or "
        f"TOPIC --log-dir {path}; its topics: {topics}"
    )


def open_segment(path: Path) -> PartitionView:
    """Open the log of one segment only."""
    name = _SEGMENT.fullmatch(path.name)
    if name is None:
        raise NotALogDirError(
            f"{path}: a file, but not a segment; segments have names such as {0:020d}.log"
        )
    return PartitionView(path.parent, base_offset=int(name[1]))


def is_partition_dir(path: Path) -> bool:
    """Whether a directory has segments; a copied partition may have any name."""
    return any(_SEGMENT.fullmatch(entry.name) for entry in path.iterdir())


def find_topic(name: str, roots: Sequence[Path]) -> tuple[LogDirsView, TopicSpec]:
    """A topic in the log directories given, or in that of a name such as `/data/orders`."""
    if roots:
        return LogDirsView(roots), TopicSpec.parse(name)
    path = location(name)
    if default_tiered_store() is not None and "/" not in name:
        return LogDirsView([]), TopicSpec.parse(name)
    try:
        return LogDirsView([path.parent]), TopicSpec.parse(path.name)
    except NotALogDirError:
        raise _no_such_path(name) from None


def _as_directory(spec: TopicSpec) -> TopicPartition | None:
    """`orders-3` names partition 3 of `orders` unless there is a topic `orders-3`."""
    try:
        return None if spec.partition is not None else TopicPartition.parse(spec.topic)
    except InvalidNameError:
        return None


# -- any number of targets, by path: jobs on whole partitions


class TargetOptions(NamedTuple):
    """Arguments and options of a job that only reads, for `with_groups`."""

    where: WhereArgument = None
    log_dir: LogDirOption = None
    storage_option: StorageOption = None

    def partitions(self) -> list[Path]:
        """Every partition that was named, or that is in a log directory that was named."""
        return targets_of(self.where, self.log_dir).all_partitions()


class Targets(NamedTuple):
    """Log directories and partition directories that were named."""

    directories: tuple[Path, ...]
    """Entire log directories."""
    partitions: tuple[Path, ...]
    """Single partition directories."""

    def all_partitions(self, *, with_empty: bool = False) -> list[Path]:
        """Every partition once, including those of the log directories. Partitions without a
        segment, which a broker is still creating, are left out unless `with_empty`."""
        found = list(self.partitions)
        for directory in self.directories:
            dirs = LogDirsView([directory])
            for each in dirs.topic_partitions:
                with suppress(NoSegmentError):
                    takes_empty = with_empty and dirs.tier is None
                    found.append(dirs.path_of(*each) if takes_empty else dirs.partition(*each).path)
        once: dict[Path, Path] = {}
        for path in found:
            once.setdefault(path.resolve(), path)
        return list(once.values())


def log_bytes_of(partitions: Iterable[Path]) -> int:
    """The size of all logs, for a progress bar."""
    return sum(log.stat().st_size for path in partitions for log in path.glob("*.log"))


def targets_of(where: Sequence[str] | None, log_dirs: Sequence[Path] | None) -> Targets:
    """What a job works on; if nothing is named, the current directory."""
    named = _named(where or (), log_dirs or ())
    for path, is_file in named.partitions:
        if is_file:
            raise not_a_directory(path)
    partitions = [path for path, _ in named.partitions]
    if not named.topics:
        roots = named.roots if named.roots or partitions else [Path()]
        return Targets(tuple(roots), tuple(partitions))
    for name in named.topics:
        partitions += [view.path for view in open_topic(*find_topic(name, named.roots))]
    return Targets((), tuple(partitions))


class NamedPartitions(NamedTuple):
    """Partitions, and the log directories to read them from."""

    log_dirs: tuple[Path, ...]
    """Including directories that hold none of the partitions: for tiered topics, they may hold the
    metadata."""
    partitions: tuple[TopicPartition, ...]


def named_partitions(
    where: Sequence[str] | None, log_dirs: Sequence[Path] | None
) -> NamedPartitions:
    """The topics and partitions that were named. A log directory named without a topic stands for
    all its partitions, except those of internal topics and those without a segment."""
    named = _named(where or (), log_dirs or ())
    paths: list[Path] = []
    wanted: list[TopicPartition] = []
    for path, is_file in named.partitions:
        if is_file:
            raise not_a_directory(path)
        paths.append(path.absolute().parent)
        wanted.append(TopicPartition.parse(path.absolute().name))
    roots = list(dict.fromkeys(root.resolve() for root in named.roots))
    for name in named.topics:
        dirs, spec = find_topic(name, roots)
        paths += dirs.paths
        wanted += [view.topic_partition for view in open_topic(dirs, spec)]
    if not named.topics and (roots or not named.partitions):
        is_in_store = not roots and default_tiered_store() is not None
        dirs = LogDirsView(roots or ([] if is_in_store else [Path()]))
        paths += dirs.paths
        wanted += _with_segments(dirs)
    absolute = sorted({path.absolute() for path in paths})
    return NamedPartitions(tuple(absolute), tuple(dict.fromkeys(wanted)))


def _with_segments(dirs: LogDirsView) -> Iterator[TopicPartition]:
    for each in dirs.topic_partitions:
        if not each.topic.startswith("__"):
            with suppress(NoSegmentError):
                dirs.partition(*each)
                yield each


# -- any number of targets, opened one by one: `ls`, `retain`

Opener: TypeAlias = Callable[[], Sequence[PartitionView]]
"""Opens partitions, or raises what is wrong with them."""


@dataclass
class LazyTargets:
    """What was named, to be opened one by one: one that cannot be opened does not stop the rest."""

    dirs: list[LogDirView] = field(default_factory=list)
    """Log directories in which no topic was named."""
    topics: list[Opener] = field(default_factory=list)
    partitions: list[Opener] = field(default_factory=list)
    """Named one by one."""

    def openers(self) -> Iterator[Opener]:
        if self.dirs:
            everything = LogDirsView(log_dir.path for log_dir in self.dirs)
            for topic, number in everything.topic_partitions:
                yield partial(_open_partition, everything, topic, number)
        yield from self.topics
        yield from self.partitions


def lazy_targets(
    where: Sequence[str], log_dirs: Sequence[Path], topics: Sequence[str] = ()
) -> LazyTargets:
    """Partitions and log directories, and `topics` in these directories."""
    named, found = _named(where, log_dirs), LazyTargets()
    for path, is_file in named.partitions:
        opener = open_segment if is_file else open_partition
        found.partitions.append(partial(_open_one, opener, path))
    names = [*topics, *named.topics]
    for name in names:
        _add_topic(found, *find_topic(name, named.roots))
    if not names and (named.roots or not found.partitions):
        found.dirs = [LogDirView(path) for path in named.roots or [Path()]]
    return found


def _add_topic(found: LazyTargets, dirs: LogDirsView, spec: TopicSpec) -> None:
    if spec.partition is None and spec.topic in dirs.partition_numbers:
        numbers = dirs.partition_numbers[spec.topic]
        found.topics += [partial(_open_partition, dirs, spec.topic, number) for number in numbers]
    else:
        found.partitions.append(partial(open_topic, dirs, spec))


def _open_partition(dirs: LogDirsView, topic: str, number: int) -> list[PartitionView]:
    return [dirs.partition(topic, number)]


def _open_one(how: Callable[[Path], PartitionView], path: Path) -> list[PartitionView]:
    return [how(path)]


# -- errors


def _no_such_path(name: str) -> NotALogDirError:
    is_word = "/" not in name
    hint = f"; if {name} is a topic, add --log-dir" if is_word else ""
    return NotALogDirError(f"{name}: no such file or directory{hint}")


def not_a_directory(path: Path) -> NotALogDirError:
    """The error for a file, from commands that work on whole partitions."""
    if _SEGMENT.fullmatch(path.name):
        return NotALogDirError(
            f"{path}: a single segment; give its partition directory, {path.parent}"
        )
    return NotALogDirError(
        f"{path}: a file; give a log directory, a partition directory or a topic"
    )


def check_directory(flag: str, path: Path) -> None:
    """Raise if `path`, given with `flag`, is a file."""
    if path.exists() and not path.is_dir():
        raise NotALogDirError(f"{path}: a file; {flag} takes a directory")

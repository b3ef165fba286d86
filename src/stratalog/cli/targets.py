"""What a command works on: paths and topics as users write them, turned into opened partitions.

Every command takes the same spellings, and says of a path that is something else what it is and
what to give instead:

* `orders` or `orders:3` with one or several `--log-dir` (default: the current directory);
* a partition directory, `/data/orders-3`;
* a topic below a log directory in one word, `/data/orders` or `/data/orders:3`;
* a segment, `/data/orders-3/00000000000000000042.log`: that part of the log alone, where records
  are looked at (`read`, `find`, `explain`, `ls`).
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import (
    InvalidNameError,
    NoSegmentError,
    NotALogDirError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.names import TopicPartition
from stratalog.log.partition_view import PartitionView
from stratalog.partitions.view import LogDirsView, open_dirs

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def open_targets(target: str, log_dirs: Sequence[Path]) -> list[PartitionView]:
    """The partitions that `target` names, in order. Raises unless there is at least one."""
    if log_dirs:
        return open_topic(open_dirs(*log_dirs), TopicSpec.parse(target))
    path = Path(target)
    if path.is_dir():
        return [open_directory(path)]
    if path.exists():
        return [open_segment(path)]
    return open_topic(*find_topic(target, ()))


class Targets(NamedTuple):
    """What was named on the command line of a job."""

    directories: tuple[Path, ...]
    """Log directories as a whole."""
    partitions: tuple[Path, ...]
    """Partition directories, one by one."""

    def all_partitions(self) -> list[Path]:
        """Those of the log directories too, each of them once, but for those that a broker is just
        making."""
        found = list(self.partitions)
        for directory in self.directories:
            dirs = LogDirsView([directory])
            for each in dirs.topic_partitions:
                with suppress(NoSegmentError):
                    found.append(dirs.partition(*each).path)
        once: dict[Path, Path] = {}
        for path in found:
            once.setdefault(path.resolve(), path)
        return list(once.values())


def targets_of(where: Sequence[str] | None, log_dirs: Sequence[Path] | None) -> Targets:
    """Tell directories from topics: what exists is a path, what does not is a topic."""
    roots, names = list(log_dirs or []), []
    partitions: list[Path] = []
    for text in where or []:
        path = Path(text)
        if path.is_dir():
            (partitions if is_partition_dir(path) else roots).append(path)
        elif path.exists():
            raise not_a_directory(path)
        else:
            names.append(text)
    if not names:
        if not roots and not partitions:
            roots = [Path()]
        return Targets(tuple(roots), tuple(partitions))
    for name in names:
        partitions += [view.path for view in open_topic(*find_topic(name, roots))]
    return Targets((), tuple(partitions))


def find_topic(name: str, roots: Sequence[Path]) -> tuple[LogDirsView, TopicSpec]:
    """A topic in the log directories given; `/data/orders` brings its own."""
    if roots:
        return LogDirsView(roots), TopicSpec.parse(name)
    path = Path(name)
    try:
        return LogDirsView([path.parent]), TopicSpec.parse(path.name)
    except NotALogDirError:
        raise _no_such_path(name) from None


def _no_such_path(name: str) -> NotALogDirError:
    is_word = Path(name).name == name
    hint = "; to name a topic, say where it is with --log-dir" if is_word else ""
    return NotALogDirError(f"{name}: no such file or directory{hint}")


def not_a_directory(path: Path) -> NotALogDirError:
    """For commands that work on whole partitions."""
    if _SEGMENT.fullmatch(path.name):
        return NotALogDirError(
            f"{path}: a single segment; give the whole partition, the directory {path.parent}"
        )
    return NotALogDirError(
        f"{path}: a file; give a log directory, a partition directory or a topic"
    )


def check_place(flag: str, path: Path) -> None:
    """Refuse a file where a command is to write a directory."""
    if path.exists() and not path.is_dir():
        raise NotALogDirError(f"{path}: a file; {flag} takes a directory")


def open_topic(dirs: LogDirsView, spec: TopicSpec) -> list[PartitionView]:
    """One partition of a topic, or all of them."""
    if spec.topic not in dirs.topics:
        as_directory = _as_directory(spec)
        if as_directory in dirs.topic_partitions:
            return [dirs.partition(*as_directory)]
    if spec.partition is not None:
        return [dirs.partition(spec.topic, spec.partition)]
    return list(dirs.partitions_of(spec.topic))


def open_directory(path: Path) -> PartitionView:
    """A partition directory; a log directory gets an error that says what to write instead."""
    if is_partition_dir(path):
        return PartitionView(path)
    try:
        dirs = open_dirs(path)
    except NotALogDirError:
        raise NotALogDirError(
            f"{path}: not a partition directory (no segments in it), nor a log directory (no "
            "directories TOPIC-NUMBER with segments)"
        ) from None
    topics = ", ".join(list(dirs.topics)[:10]) or "none"
    raise UnknownTopicOrPartitionError(
        f"{path} is a log directory: name a topic in it, such as {path}/TOPIC or "
        f"TOPIC --log-dir {path}; topics here: {topics}"
    )


def open_segment(path: Path) -> PartitionView:
    """The log of one segment alone."""
    name = _SEGMENT.fullmatch(path.name)
    if name is None:
        raise NotALogDirError(
            f"{path}: a file, but not a segment: these are called {0:020d}.log and the like"
        )
    return PartitionView(path.parent, base_offset=int(name[1]))


def is_partition_dir(path: Path) -> bool:
    """By what it holds: a copy of a partition may have any name."""
    return any(_SEGMENT.fullmatch(entry.name) for entry in path.iterdir())


def _as_directory(spec: TopicSpec) -> TopicPartition | None:
    """`orders-3` names partition 3 of `orders` where no topic has that very name."""
    try:
        return None if spec.partition is not None else TopicPartition.parse(spec.topic)
    except InvalidNameError:
        return None

"""Which files a user means: a file, a partition directory, a topic, a whole log directory.

Paths stay the strings they were given as, since they are printed: `./x` is not `x`.
"""

from __future__ import annotations

import re
from os import scandir
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stratalog.dump.values import KINDS, kind_of
from stratalog.errors import InvalidNameError, NotALogDirError, UnknownTopicOrPartitionError
from stratalog.format.names import (
    DirState,
    TopicPartition,
    parse_partition_dir,
    parse_partition_file,
)

if TYPE_CHECKING:
    from collections.abc import Collection


class _Found(NamedTuple):
    """A partition's directory, ordered as it is to be shown."""

    topic_partition: TopicPartition
    path: str

    def is_named(self, text: str) -> bool:
        """By `topic`, `topic:partition` or `topic-partition`."""
        topic, partition = self.topic_partition
        return text in {topic, f"{topic}:{partition}", f"{topic}-{partition}"}


def java_path(path: str) -> str:
    """`path` as Java's File shows it: no doubled and no trailing slashes."""
    return re.sub(r"/+", "/", path).rstrip("/") or "/"


def absolute_path(path: str) -> str:
    """`path` as Java's File.getAbsolutePath gives it: dots are not resolved."""
    return path if path.startswith("/") else f"{str(Path.cwd()).rstrip('/')}/{path}"


def files_of(target: str, kinds: Collection[str] = KINDS) -> list[str]:
    """The files that `target` names, by topic, partition and offset."""
    path = java_path(target)
    if not Path(path).is_dir():
        if lexists(path):
            return [path]
        directory, slash, name = path.rpartition("/")
        log_dir = directory or slash or "."
        if not Path(log_dir).is_dir() or not _partitions_in(log_dir):
            raise NotALogDirError(f"{target}: no such file or directory")
        return files_of_topic(log_dir, name, kinds)
    if _files_in(path, KINDS):
        return _files_in(path, kinds)
    found = _partitions_in(path)
    if not any(_files_in(partition.path, KINDS) for partition in found):
        raise NotALogDirError(
            f"{target}: neither a partition directory (no segments in it) nor a log directory (no "
            "directories TOPIC-NUMBER with segments)"
        )
    return [file for partition in found for file in _files_in(partition.path, kinds)]


def files_of_topic(log_dir: str, topic: str, kinds: Collection[str] = KINDS) -> list[str]:
    """The files of a topic or of one of its partitions in a log directory."""
    if not Path(log_dir).is_dir():
        what = "a file, not a directory" if lexists(log_dir) else "no such directory"
        raise NotALogDirError(f"{java_path(log_dir)}: {what}")
    found = _partitions_in(java_path(log_dir))
    wanted = [partition for partition in found if partition.is_named(topic)]
    if not wanted:
        raise UnknownTopicOrPartitionError(
            f"{java_path(log_dir)}: no file, directory or topic {topic!r} in it"
        )
    return [file for partition in wanted for file in _files_in(partition.path, kinds)]


def _partitions_in(log_dir: str) -> list[_Found]:
    found = []
    with scandir(log_dir) as entries:
        for entry in entries:
            try:
                parsed = parse_partition_dir(entry.name) if entry.is_dir() else None
            except InvalidNameError:
                continue
            if parsed is not None and parsed.state is DirState.LIVE:
                found.append(_Found(parsed.topic_partition, _join(log_dir, entry.name)))
    return sorted(found)


def _files_in(directory: str, kinds: Collection[str]) -> list[str]:
    """Files of a partition directory that can be dumped, those of one segment together."""
    found = []
    with scandir(directory) as entries:
        for entry in entries:
            kind = kind_of(entry.name)
            if kind not in kinds or not entry.is_file():
                continue
            try:
                parsed = parse_partition_file(entry.name)
            except InvalidNameError:
                continue
            if parsed is not None and parsed.base_offset is not None:
                rank = (parsed.base_offset, KINDS.index(kind))
                found.append((rank, _join(directory, entry.name)))
    return [path for _, path in sorted(found)]


def _join(directory: str, name: str) -> str:
    if directory == ".":
        return name
    return f"{directory.rstrip('/')}/{name}"

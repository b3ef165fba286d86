"""`stratalog-state.json`: topics, settings and ids; a Kafka cluster keeps them in its metadata.

There is no quorum here, so the file is at the root of each log directory, where a broker ignores
it. It holds

* the topics that were created here and the settings that they override. A topic is identified by
  name and id: one that was deleted and created again elsewhere does not get the old settings;
* topic changes that were started and not finished, so that the next open finishes them;
* the next producer id;
* the last bulk commits of each writer (a streaming query, say) to each topic, with row counts and
  checksums, so that a repeated commit is recognized;
* which log directories belong together, and how many partitions each topic has in all of them.

Each log directory has a copy. The copies are written one after the other, so they may differ after
a crash, or when a directory was opened without the others. They are merged: each topic's settings
come from the copy with the higher generation, each writer's commits from the copy with the higher
commit number, unfinished changes from the copy with the highest generation.

Log directories that were opened together form a set, because a transaction, a commit or a topic may
span all of them. Each directory has an id and records the ids of all directories in its set. Ids,
not paths, identify a directory, so it may be moved; the paths are for messages. Invariants:

* the id of a directory is on disk before any other directory refers to it;
* the set is recorded in all directories before anything else changes in one of them.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from stratalog.errors import InconsistentLogDirsError, MissingLogDirsError
from stratalog.format.json_files import as_count, as_text, decode_json, encode_json, id_of, id_text
from stratalog.format.uuids import encode_id
from stratalog.storage.log_file import read_decoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from stratalog.partitions.view import LogDirView
    from stratalog.storage.disk import Disk

STATE_FILE: Final = "stratalog-state.json"
VERSION: Final = 0
PRODUCER_ID_BLOCK: Final = 1000
FIRST_PRODUCER_ID: Final = 1 << 40
"""A Kafka controller assigns ids from 0 on, in blocks of a thousand. Starting here, the ids of both
do not collide in a directory that both have written to."""


MissingDirs: TypeAlias = Literal["refuse", "offline", "forget"]
"""What to do if a directory of the set is not among those opened for writing.

* `refuse`: raise MissingLogDirsError;
* `offline`: use the partitions that are here. Anything that may depend on the missing directories
  is left alone or raises MissingLogDirsError: creating and deleting topics, bulk commits, removing
  staged files, and transactions that span a missing partition;
* `forget`: the missing directories are lost for good. Their partitions are created again, empty.
"""


class SavedTopic(NamedTuple):
    """The settings that a topic overrides."""

    topic_id: uuid.UUID | None
    overrides: Mapping[str, str]


class PendingCreate(NamedTuple):
    """Partitions of a topic are being created: [first_partition, partition_count)."""

    topic: str
    topic_id: uuid.UUID | None
    first_partition: int
    partition_count: int


class PendingDelete(NamedTuple):
    """A topic is being deleted: its directories are being renamed."""

    topic: str
    topic_id: uuid.UUID | None


class SavedCommit(NamedTuple):
    """What a bulk commit wrote to a topic."""

    number: int
    records: int
    checksum: int | None
    """See `commits.staged.StagedRun`; None if unknown."""


class SavedCommits(NamedTuple):
    """The last bulk commits of a writer to a topic."""

    topic_id: uuid.UUID | None
    commits: tuple[SavedCommit, ...]
    """In order of their numbers. Never empty."""


@dataclass(frozen=True)
class SavedState:
    """The content of the file."""

    generation: int = 0
    """Incremented by each write."""
    next_producer_id: int = FIRST_PRODUCER_ID
    topics: Mapping[str, SavedTopic] | None = None
    creates: tuple[PendingCreate, ...] = ()
    deletes: tuple[PendingDelete, ...] = ()
    commits: Mapping[str, int] = field(default_factory=dict)
    """The number of each writer's last bulk commit, as earlier versions recorded it: for all
    topics together, without row counts."""
    topic_commits: Mapping[str, Mapping[str, SavedCommits]] = field(default_factory=dict)
    """The last bulk commits by writer and topic."""

    dir_id: str | None = None
    """Id of the directory of this copy; None if it was never part of a set."""
    dirs: Mapping[str, str] = field(default_factory=dict)
    """The directories of the set: their last paths by id."""
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    """The number of partitions of each topic, in all directories of the set."""
    lists_all_topics: bool = True
    """Whether `topics` has every topic that was created here. Earlier versions omitted topics that
    override no setting."""

    @property
    def saved_topics(self) -> Mapping[str, SavedTopic]:
        return self.topics or {}


class StateStore:
    """The current state and its copies in the log directories."""

    def __init__(self, disk: Disk, dirs: Sequence[Path]) -> None:
        """Reads the copies. Raises if one cannot be parsed: its settings would be lost."""
        self._disk = disk
        self._lock = threading.Lock()
        self._paths = [path / STATE_FILE for path in dirs]
        self.copies = [read_decoded(path, decode_state) for path in self._paths]
        """As read; None where there was no file."""
        self.dir_ids = [None if copy is None else copy.dir_id for copy in self.copies]
        """The id of each directory, written with its copy."""
        self.state = merge([copy for copy in self.copies if copy is not None])

    def update(self, **changes: Any) -> None:
        """Replace fields of the state. Takes effect once the first copy is on disk."""
        with self._lock:
            state = replace(self.state, generation=self.state.generation + 1, **changes)
            for path, dir_id in zip(self._paths, self.dir_ids, strict=True):
                content = encode_state(replace(state, dir_id=dir_id))
                self._disk.write_atomically(path, content)
                self.state = state


def merge(copies: Sequence[SavedState]) -> SavedState:
    """One state from several copies."""
    if not copies:
        return SavedState()
    ordered = sorted(copies, key=lambda state: state.generation)
    topics: dict[str, SavedTopic] = {}
    commits: dict[str, int] = {}
    for state in ordered:
        topics |= state.saved_topics
        for writer, number in state.commits.items():
            commits[writer] = max(number, commits.get(writer, number))
    next_id = max(state.next_producer_id for state in copies)
    merged = replace(
        ordered[-1],
        topics=topics,
        next_producer_id=next_id,
        commits=commits,
        topic_commits=_merged_commits(ordered),
        lists_all_topics=any(state.lists_all_topics for state in copies),
    )
    of_set = next((state for state in reversed(ordered) if state.dirs), merged)
    return replace(merged, dirs=of_set.dirs, partition_counts=of_set.partition_counts)


def _merged_commits(ordered: Sequence[SavedState]) -> dict[str, dict[str, SavedCommits]]:
    merged: dict[str, dict[str, SavedCommits]] = {}
    for state in ordered:
        for writer, topics in state.topic_commits.items():
            of_writer = merged.setdefault(writer, {})
            for topic, saved in topics.items():
                other = of_writer.get(topic)
                if (
                    other is None
                    or other.topic_id != saved.topic_id
                    or other.commits[-1].number <= saved.commits[-1].number
                ):
                    of_writer[topic] = saved
    return merged


def encode_state(state: SavedState) -> bytes:
    """The content of the file: JSON, which people can read too."""
    content: dict[str, object] = {
        "version": VERSION,
        "generation": state.generation,
        "next_producer_id": state.next_producer_id,
        "topics": {
            name: {"topic_id": id_text(topic.topic_id), "config": dict(topic.overrides)}
            for name, topic in sorted(state.saved_topics.items())
        },
        "creating": [_with_id(create) for create in state.creates],
        "deleting": [_with_id(delete) for delete in state.deletes],
    }
    if state.lists_all_topics:
        content["lists_all_topics"] = True
    if state.commits:
        content["commits"] = dict(sorted(state.commits.items()))
    if state.topic_commits:
        content["topic_commits"] = {
            writer: {topic: _commits_json(saved) for topic, saved in sorted(topics.items())}
            for writer, topics in sorted(state.topic_commits.items())
        }
    if state.dir_id is not None:
        content["dir_id"] = state.dir_id
        content["dirs"] = dict(sorted(state.dirs.items()))
        content["partition_counts"] = dict(sorted(state.partition_counts.items()))
    return encode_json(content)


def decode_state(data: bytes) -> SavedState:
    """Strict: anything not understood would be lost with the next write."""

    def parse(content: Any) -> SavedState:
        return replace(_state_of(content), **_set_of(content))

    return decode_json(
        data, parse, "the state of a log directory", file=STATE_FILE, versions=(VERSION,)
    )


def _state_of(content: Any) -> SavedState:
    topics = {
        as_text(name): SavedTopic(
            id_of(topic["topic_id"]),
            {as_text(key): as_text(value) for key, value in topic["config"].items()},
        )
        for name, topic in content["topics"].items()
    }
    creates = tuple(
        PendingCreate(
            as_text(create["topic"]),
            id_of(create["topic_id"]),
            as_count(create["first_partition"]),
            as_count(create["partition_count"]),
        )
        for create in content["creating"]
    )
    deletes = tuple(
        PendingDelete(as_text(delete["topic"]), id_of(delete["topic_id"]))
        for delete in content["deleting"]
    )
    generation, next_id = as_count(content["generation"]), as_count(content["next_producer_id"])
    commits = {as_text(w): as_count(number) for w, number in content.get("commits", {}).items()}
    topic_commits = {
        as_text(writer): {as_text(topic): _commits_of(saved) for topic, saved in by_topic.items()}
        for writer, by_topic in content.get("topic_commits", {}).items()
    }
    return SavedState(
        generation,
        next_id,
        topics,
        creates,
        deletes,
        commits,
        topic_commits,
        lists_all_topics=content.get("lists_all_topics") is True,
    )


def _commits_json(saved: SavedCommits) -> dict[str, Any]:
    commits = [list(commit) for commit in saved.commits]
    return {"topic_id": id_text(saved.topic_id), "commits": commits}


def _commits_of(content: Any) -> SavedCommits:
    commits = tuple(
        SavedCommit(
            as_count(number),
            as_count(records),
            None if checksum is None else as_count(checksum),
        )
        for number, records, checksum in content["commits"]
    )
    if not commits:
        raise ValueError("no commits")
    return SavedCommits(id_of(content["topic_id"]), commits)


def _set_of(content: Any) -> dict[str, Any]:
    if content.get("dir_id") is None:
        return {}
    return {
        "dir_id": as_text(content["dir_id"]),
        "dirs": {as_text(dir_id): as_text(path) for dir_id, path in content["dirs"].items()},
        "partition_counts": {
            as_text(name): as_count(count) for name, count in content["partition_counts"].items()
        },
    }


def _with_id(pending: PendingCreate | PendingDelete) -> dict[str, Any]:
    return {**pending._asdict(), "topic_id": id_text(pending.topic_id)}


class ProducerIds:
    """Assigns each producer id once in the life of a log directory. Thread-safe.

    As in Kafka's controller, a block of ids is recorded as used before the first of them is
    assigned: one write serves a thousand producers, and a crash wastes the rest of a block.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._next = self._end = 0

    def take(self) -> int:
        """An id that no producer has had before."""
        with self._lock:
            if self._next == self._end:
                first = self._store.state.next_producer_id
                self._store.update(next_producer_id=first + PRODUCER_ID_BLOCK)
                self._next, self._end = first, first + PRODUCER_ID_BLOCK
            self._next += 1
            return self._next - 1


class DirSet(NamedTuple):
    """The directories that are being opened, and the others of their set."""

    ids: tuple[str, ...]
    """Ids of the directories that are being opened, in the given order."""
    members: Mapping[str, str]
    """The paths of the same directories, by id."""
    missing: Mapping[str, str]
    """The last paths of the other directories of the set, by id."""
    is_recorded: bool
    """Whether one of the directories records a set."""

    @property
    def is_set(self) -> bool:
        """Whether there is a set to record."""
        return self.is_recorded or len(self.ids) > 1

    def error(self, action: str) -> MissingLogDirsError:
        """The error to raise instead of `action`."""
        return MissingLogDirsError(action, tuple(self.missing.values()))


def find_dir_set(dirs: Sequence[LogDirView], copies: Sequence[SavedState | None]) -> DirSet:
    """The set that the state files (`copies`) of these directories record.

    Raises InconsistentLogDirsError for a directory that the others have declared lost, and for two
    with the same id.
    """
    recorded = [copy for copy in copies if copy is not None and copy.dirs]
    current = max(recorded, key=lambda copy: copy.generation).dirs if recorded else {}
    known = dict(current)
    members: dict[str, str] = {}
    for log_dir, copy in zip(dirs, copies, strict=True):
        dir_id = _dir_id(log_dir, copy)
        if dir_id in members:
            raise InconsistentLogDirsError(
                f"{members[dir_id]} and {log_dir.path} have the same directory id: one is a copy "
                "of the other; open only one of them"
            )
        # A directory that does not list itself was being added when the process ended.
        if copy is not None and dir_id in copy.dirs and dir_id not in current:
            if copy.dirs.keys() & current.keys():
                raise InconsistentLogDirsError(
                    f"{log_dir.path} was declared lost (missing_dirs='forget'), and its partitions "
                    "were created again in the other log directories; open those without it"
                )
            known |= copy.dirs  # two sets become one
        members[dir_id] = str(log_dir.path.resolve())
    missing = {dir_id: path for dir_id, path in known.items() if dir_id not in members}
    return DirSet(tuple(members), members, missing, bool(recorded))


def _dir_id(log_dir: LogDirView, copy: SavedState | None) -> str:
    """The recorded id; else Kafka's `directory.id`, if it has one; else a new one."""
    if copy is not None and copy.dir_id is not None:
        return copy.dir_id
    meta = log_dir.meta_properties
    if meta is not None and meta.directory_id is not None:
        return encode_id(meta.directory_id)
    return encode_id(uuid.uuid4())

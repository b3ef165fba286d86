"""What a log directory has to remember and Kafka's files have no place for: `stratalog-state.json`.

Kafka keeps it in its metadata quorum; here there is none, so it lies at the root of the directory,
where a broker looks at directories and at the files it knows. It holds

* the topics that were created here and the settings that they override (a topic is known by name
  and id, so that settings of a topic that was deleted and made again elsewhere do not come back);
* what has been begun with a topic and not finished, so that the next open finishes it;
* the next producer id;
* of each writer of bulk commits (a streaming query, say) and each topic the numbers of its last
  ones with their row counts and checksums, so that a commit that comes again is known;
* if there are several log directories, which of them belong together (`dir_set`), and how many
  partitions each topic has in all of them.

With several log directories each has a copy. They are written one after the other, so they may
differ after a crash, or when a directory was opened without the others: of each topic the
settings with the higher generation stand, of each writer and topic the commits up to the higher
number; what was begun stands as in the highest of all.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import CorruptCheckpointError, CorruptError, UnsupportedError
from stratalog.format.metadata import decode_id, encode_id

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from stratalog.storage.disk import Disk

STATE_FILE: Final = "stratalog-state.json"
VERSION: Final = 0
FIRST_PRODUCER_ID: Final = 1 << 40
"""A Kafka controller hands out ids from 0 by thousands. Beginning here, ids of the two do not meet
in a directory that both have written to."""


class SavedTopic(NamedTuple):
    """The settings that a topic overrides."""

    topic_id: uuid.UUID | None
    overrides: Mapping[str, str]


class PendingCreate(NamedTuple):
    """Partitions of a topic are being made: [first_partition, partition_count)."""

    topic: str
    topic_id: uuid.UUID | None
    first_partition: int
    partition_count: int


class PendingDelete(NamedTuple):
    """A topic is being deleted: its directories are being renamed."""

    topic: str
    topic_id: uuid.UUID | None


class SavedCommit(NamedTuple):
    """What a bulk commit has written to a topic."""

    number: int
    records: int
    checksum: int | None
    """See `commits.staged.StagedRun`; None if it is not known."""


class SavedCommits(NamedTuple):
    """The last bulk commits of a writer to a topic."""

    topic_id: uuid.UUID | None
    commits: tuple[SavedCommit, ...]
    """Their numbers grow. Never empty."""


@dataclass(frozen=True)
class SavedState:
    """The content of the file."""

    generation: int = 0
    """Grows with each write."""
    next_producer_id: int = FIRST_PRODUCER_ID
    topics: Mapping[str, SavedTopic] | None = None
    creates: tuple[PendingCreate, ...] = ()
    deletes: tuple[PendingDelete, ...] = ()
    commits: Mapping[str, int] = field(default_factory=dict)
    """The number of the last bulk commit of each writer, as earlier versions recorded it: for all
    topics, without counts."""
    topic_commits: Mapping[str, Mapping[str, SavedCommits]] = field(default_factory=dict)
    """The last bulk commits by writer and topic."""

    dir_id: str | None = None
    """Of the directory that this copy is in; None if it never was part of a set."""
    dirs: Mapping[str, str] = field(default_factory=dict)
    """The directories that belong together: their last paths by id."""
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    """Of each topic in all directories of the set."""
    lists_all_topics: bool = True
    """Whether `topics` has every topic that was created here. Earlier versions left out those that
    override nothing."""

    @property
    def kept_topics(self) -> Mapping[str, SavedTopic]:
        return self.topics or {}


class StateStore:
    """The current state and its copies in the log directories."""

    def __init__(self, disk: Disk, dirs: Sequence[Path]) -> None:
        """Reads the copies. One that cannot be understood raises: settings would be lost."""
        self._disk = disk
        self._lock = threading.Lock()
        self._paths = [path / STATE_FILE for path in dirs]
        self.copies = [self._read(path) for path in self._paths]
        """As they were found; None where there was none."""
        self.dir_ids = [None if copy is None else copy.dir_id for copy in self.copies]
        """The id of each directory, written with its copy."""
        self.state = merge([copy for copy in self.copies if copy is not None])

    def _read(self, path: Path) -> SavedState | None:
        try:
            return decode_state(self._disk.read_bytes(path))
        except FileNotFoundError:
            return None
        except CorruptError as error:
            raise error.located(path) from None

    def update(self, **changes: Any) -> None:
        """Replace fields of the state. It counts once the first copy is on disk."""
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
        topics |= state.kept_topics
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
            for topic, kept in topics.items():
                other = of_writer.get(topic)
                if (
                    other is None
                    or other.topic_id != kept.topic_id
                    or other.commits[-1].number <= kept.commits[-1].number
                ):
                    of_writer[topic] = kept
    return merged


def encode_state(state: SavedState) -> bytes:
    """The whole file: JSON for people to read, too."""
    content: dict[str, object] = {
        "version": VERSION,
        "generation": state.generation,
        "next_producer_id": state.next_producer_id,
        "topics": {
            name: {"topic_id": _id_text(topic.topic_id), "config": dict(topic.overrides)}
            for name, topic in sorted(state.kept_topics.items())
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
            writer: {topic: _commits_json(kept) for topic, kept in sorted(topics.items())}
            for writer, topics in sorted(state.topic_commits.items())
        }
    if state.dir_id is not None:
        content["dir_id"] = state.dir_id
        content["dirs"] = dict(sorted(state.dirs.items()))
        content["partition_counts"] = dict(sorted(state.partition_counts.items()))
    return (json.dumps(content, indent=1) + "\n").encode()


def decode_state(data: bytes) -> SavedState:
    """Strict: what is not understood would be lost with the next write."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"not JSON: {error}") from None
    try:
        return replace(_state_of(content), **_set_of(content))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptCheckpointError(f"not the state of a log directory: {error!r}") from None


def _state_of(content: Any) -> SavedState:
    if content["version"] != VERSION:
        raise UnsupportedError(f"{STATE_FILE} of version {content['version']!r}")
    topics = {
        _text(name): SavedTopic(
            _id_of(topic["topic_id"]),
            {_text(key): _text(value) for key, value in topic["config"].items()},
        )
        for name, topic in content["topics"].items()
    }
    creates = tuple(
        PendingCreate(
            _text(create["topic"]),
            _id_of(create["topic_id"]),
            _count(create["first_partition"]),
            _count(create["partition_count"]),
        )
        for create in content["creating"]
    )
    deletes = tuple(
        PendingDelete(_text(delete["topic"]), _id_of(delete["topic_id"]))
        for delete in content["deleting"]
    )
    generation, next_id = _count(content["generation"]), _count(content["next_producer_id"])
    commits = {_text(w): _count(number) for w, number in content.get("commits", {}).items()}
    topic_commits = {
        _text(writer): {_text(topic): _commits_of(kept) for topic, kept in by_topic.items()}
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


def _commits_json(kept: SavedCommits) -> dict[str, Any]:
    return {"topic_id": _id_text(kept.topic_id), "commits": [list(one) for one in kept.commits]}


def _commits_of(content: Any) -> SavedCommits:
    commits = tuple(
        SavedCommit(_count(number), _count(records), None if checksum is None else _count(checksum))
        for number, records, checksum in content["commits"]
    )
    if not commits:
        raise ValueError("no commits")
    return SavedCommits(_id_of(content["topic_id"]), commits)


def _set_of(content: Any) -> dict[str, Any]:
    if content.get("dir_id") is None:
        return {}
    return {
        "dir_id": _text(content["dir_id"]),
        "dirs": {_text(dir_id): _text(path) for dir_id, path in content["dirs"].items()},
        "partition_counts": {
            _text(name): _count(count) for name, count in content["partition_counts"].items()
        },
    }


def _with_id(pending: PendingCreate | PendingDelete) -> dict[str, Any]:
    return {**pending._asdict(), "topic_id": _id_text(pending.topic_id)}


def _id_text(topic_id: uuid.UUID | None) -> str | None:
    return None if topic_id is None else encode_id(topic_id)


def _id_of(text: Any) -> uuid.UUID | None:
    if text is None:
        return None
    topic_id = decode_id(_text(text))
    if topic_id is None:
        raise ValueError(f"{text!r} is no id")
    return topic_id


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise TypeError(f"{value!r} is no count")
    return value


# Producer ids: each is handed out once in the life of a log directory.
#
# As Kafka's controller does, a block of ids is noted as used before the first of them is handed
# out: one write serves a thousand producers, and a crash only wastes what was left of a block.

BLOCK: Final = 1000


class ProducerIds:
    """Hands out ids. Thread-safe."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._next = self._end = 0

    def take(self) -> int:
        """An id that no producer has had."""
        with self._lock:
            if self._next == self._end:
                first = self._store.state.next_producer_id
                self._store.update(next_producer_id=first + BLOCK)
                self._next, self._end = first, first + BLOCK
            self._next += 1
            return self._next - 1

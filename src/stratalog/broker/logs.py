"""The topics and logs that a broker serves: opened for writing, or read-only.

Handlers get a log by topic and partition, and topics by name or id. A topic id is Kafka's text of
it (22 characters of base64), as in the messages.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from stratalog.errors import RequestError, StratalogError, UnknownTopicOrPartitionError
from stratalog.format.names import CLUSTER_METADATA_TOPIC, TopicPartition
from stratalog.format.uuids import encode_id, id_text
from stratalog.log.epochs import read_latest_epoch
from stratalog.partitions.view import LogDirsView
from stratalog.storage.disk import storage_errors
from stratalog.wire.error_codes import ErrorCode
from stratalog.wire.message_tables import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from stratalog.format.directory_metadata import MetaProperties
    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.partition_view import PartitionView
    from stratalog.log_dir import LogDir
    from stratalog.partitions.topics import TopicInfo
    from stratalog.service.health import Failure, Subject


_log = logging.getLogger(__name__)

ServedLog: TypeAlias = "PartitionLog | PartitionView"
"""A log that is being written, or one that is only read."""


class Logs(ABC):
    """What is served."""

    is_read_only = False

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    @property
    @abstractmethod
    def paths(self) -> list[Path]:
        """The log directories."""

    @property
    @abstractmethod
    def log_dir(self) -> LogDir:
        """What changes are made to. Raises RequestError where none are possible."""

    @property
    @abstractmethod
    def meta_properties(self) -> MetaProperties | None:
        """The cluster and node that the directories belong to; None if they are no broker's."""

    @property
    @abstractmethod
    def topics(self) -> Mapping[str, TopicInfo]:
        """Topics by name, sorted, internal ones included."""

    @abstractmethod
    def find_topic(self, name: str) -> TopicInfo | None:
        """A topic by name."""

    @abstractmethod
    def find(self, topic: str, partition: int) -> ServedLog | None:
        """The log of a partition; opens it at first use."""

    @abstractmethod
    def leader_epoch(self, topic: str, partition: int) -> int:
        """The current leader epoch. Does not open the log."""

    def is_empty(self, topic: str, partition: int) -> bool:
        """Whether the log is known to have no records. Does not open it."""
        return False

    @abstractmethod
    def auto_create(self, name: str) -> TopicInfo | None:
        """Create a topic with the default settings; None if that is not possible here."""

    def failures(self) -> list[tuple[Subject, Failure]]:
        """Background tasks whose last run failed."""
        return []

    def topic(self, name: str) -> TopicInfo:
        """A topic by name. Raises UnknownTopicOrPartitionError."""
        found = self.find_topic(name)
        if found is None:
            raise UnknownTopicOrPartitionError(f"no topic {name!r}")
        return found

    @abstractmethod
    def close(self) -> None:
        """Stop serving them."""

    def name_of(self, topic_id: str) -> str | None:
        """The topic that has this id."""
        name = self._names.get(topic_id)
        if name is None or id_of(self.find_topic(name)) != topic_id:
            self._names = {id_of(info): name for name, info in self.topics.items()}
            name = self._names.get(topic_id)
        return name


def id_of(info: TopicInfo | None) -> str:
    """The id of a topic as text; zero for none. Topics from before Kafka 2.8 have no id, but
    clients of today fetch by it: they get one that follows from the name."""
    if info is None:
        return ZERO_UUID
    if info.topic_id is None:
        return id_text(sha256(f"topic {info.name}".encode()).digest()[:16])
    return encode_id(info.topic_id)


def checked_log(logs: Logs, topic: str, partition: int, leader_epoch: int) -> ServedLog:
    """The log of a partition for a client that believes in `leader_epoch` (-1: in none). Raises
    RequestError."""
    log = logs.find(topic, partition)
    if log is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    current = max(log.leader_epoch, 0)
    if leader_epoch >= 0 and leader_epoch != current:
        is_older = leader_epoch < current
        raise RequestError(
            ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH
        )
    return log


class WritableLogs(Logs):
    """The logs of a `LogDir`."""

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__()
        self._log_dir = log_dir

    @property
    def paths(self) -> list[Path]:
        return self._log_dir.paths

    @property
    def log_dir(self) -> LogDir:
        return self._log_dir

    @property
    def meta_properties(self) -> MetaProperties | None:
        return self._log_dir.meta_properties

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        return self._log_dir.topics

    def find_topic(self, name: str) -> TopicInfo | None:
        try:
            return self._log_dir.topic(name)
        except UnknownTopicOrPartitionError:
            return None

    def find(self, topic: str, partition: int) -> PartitionLog | None:
        try:
            return self._log_dir.partition(topic, partition)
        except UnknownTopicOrPartitionError:
            return None

    def leader_epoch(self, topic: str, partition: int) -> int:
        return self._log_dir.leader_epoch(topic, partition)

    def is_empty(self, topic: str, partition: int) -> bool:
        return self._log_dir.is_empty(topic, partition)

    def auto_create(self, name: str) -> TopicInfo | None:
        return self._log_dir.create_topic(name)

    def failures(self) -> list[tuple[Subject, Failure]]:
        return self._log_dir.failures()

    def close(self) -> None:
        self._log_dir.close()


class _Seen(NamedTuple):
    """What a directory and its last segment looked like: a writer changes one of them."""

    listing_ns: int
    last_bytes: int

    @classmethod
    def of(cls, view: PartitionView) -> _Seen:
        last = view.listing.segments[-1].path
        return cls(view.path.stat().st_mtime_ns, last.stat().st_size)


class ReadOnlyLogs(Logs):
    """Log directories that another process may still be writing to.

    Nothing is locked and nothing is written. `follow` finds what has changed since.
    """

    is_read_only = True

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__()
        self._paths = list(paths)
        self._opened: dict[TopicPartition, tuple[PartitionView, _Seen]] = {}
        self._list()

    def _list(self) -> None:
        self._seen_ns = self._mtimes()
        self._view = LogDirsView(self._paths)
        for tp in self._view.topic_partitions:
            self._view.path_of(*tp)  # raises if it is in two of the directories
        self._topics = {
            name: info for name, info in self._view.topics.items() if name != CLUSTER_METADATA_TOPIC
        }

    def _mtimes(self) -> list[int]:
        times_ns = []
        for path in self._paths:
            with storage_errors("list", path):
                times_ns.append(path.stat().st_mtime_ns)
        return times_ns

    @property
    def paths(self) -> list[Path]:
        return self._paths

    @property
    def log_dir(self) -> LogDir:
        raise RequestError(ErrorCode.POLICY_VIOLATION, "The broker serves its logs read-only")

    @property
    def meta_properties(self) -> MetaProperties | None:
        return self._view.dirs[0].meta_properties

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        return self._topics

    def find_topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def find(self, topic: str, partition: int) -> PartitionView | None:
        tp = TopicPartition(topic, partition)
        opened = self._opened.get(tp)
        if opened is not None:
            return opened[0]
        info = self._topics.get(topic)
        if info is None or partition not in info.partitions:
            return None
        view = self._view.partition(topic, partition)
        self._opened[tp] = (view, _Seen.of(view))
        return view

    def leader_epoch(self, topic: str, partition: int) -> int:
        opened = self._opened.get(TopicPartition(topic, partition))
        if opened is not None:
            return max(0, opened[0].leader_epoch)
        return max(0, read_latest_epoch(self._view.path_of(topic, partition)))

    def auto_create(self, name: str) -> TopicInfo | None:
        return None

    def follow(self) -> list[TopicPartition]:
        """Look again at what clients have used; the partitions that have changed."""
        try:
            if self._mtimes() != self._seen_ns:
                self._list()
        except (OSError, StratalogError) as error:
            _log.warning("cannot list the log directories: %s", error)
        return [tp for tp in list(self._opened) if self._has_changed(tp)]

    def _has_changed(self, tp: TopicPartition) -> bool:
        view, seen = self._opened[tp]
        try:
            now = _Seen.of(view)
            if now == seen:
                return False
            view.refresh()
            self._opened[tp] = (view, now)
        except (OSError, StratalogError) as error:  # deleted, or a segment was rolled just now
            _log.info("%s: opened again: %s", tp, error)
            view.close()
            del self._opened[tp]
        return True

    def close(self) -> None:
        self._view.close()

"""The remote part of a broker's topics: metadata, lineage, and views of tiered partitions.

What is in the store is known from `__remote_log_metadata`, if one of the log directories has it.
Otherwise Aiven's manifests show it: a manifest is written last, so its segment is complete. Kafka's
test store has no manifests.

Nothing is inferred from missing metadata. The events of a partition are in one partition of the
metadata topic, and a broker may have only some of these. A log is read as a local one only if it is
known to be complete on the disk, or if nothing says that it is tiered.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from stratalog.errors import CorruptError, StratalogError, TieredLogError
from stratalog.format.aiven_manifest import MANIFEST_SUFFIX, decode_manifest
from stratalog.format.checkpoint import EpochEntry, decode_leader_epochs
from stratalog.format.messages.remote_log_records import read_remote_log_record
from stratalog.format.names import REMOTE_METADATA_TOPIC, SYSTEM_TOPICS, RootFile, TopicPartition
from stratalog.format.uuids import encode_id
from stratalog.log.partition_view import PartitionView, identity_of, read_topic_id
from stratalog.log.remote_segments import (
    RemoteLog,
    TopicIdPartition,
    replay_remote_log,
    segment_of_manifest,
)
from stratalog.log.tiered_view import TieredView
from stratalog.storage.log_file import read_file
from stratalog.storage.store import fetch_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from stratalog.format.messages.remote_log_records import RemoteLogRecord
    from stratalog.partitions.topics import TopicInfo
    from stratalog.storage.tiered_store import StoredTopic, TieredStore

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalFacts:
    """Facts about topics from the log directories."""

    log_dirs: Sequence[Path]
    metadata: Sequence[Path]
    """The directories of partitions of the metadata topic, if there are any."""
    topics: Callable[[], Mapping[str, TopicInfo]]

    @property
    def metadata_partitions(self) -> list[int]:
        """The partitions of the metadata topic that are here."""
        return sorted({identity_of(path)[0].partition for path in self.metadata})

    @cached_property
    def metadata_count(self) -> int | None:
        """How many partitions the metadata topic has; None if the cluster's metadata, which says
        so, is not here."""
        info = self.topics().get(REMOTE_METADATA_TOPIC)
        return info.known_count if info is not None and info.is_in_cluster else None

    def is_tiered(self, topic: str) -> bool | None:
        """Whether a topic is tiered by its settings; None if these are unknown."""
        if topic in SYSTEM_TOPICS or topic == REMOTE_METADATA_TOPIC:
            return False
        info = self.topics().get(topic)
        if info is None or info.unknown is not None:
            return None
        if info.config.remote_storage_enable:
            return True
        return False if info.is_in_cluster else None


class RemoteTier:
    """The store of some log directories."""

    def __init__(self, store: TieredStore, local: LocalFacts) -> None:
        self.store = store
        self._facts = local
        self._warned: set[str] = set()

    @cached_property
    def stored(self) -> dict[TopicPartition, list[StoredTopic]]:
        """What the store has of each partition; several if the topic was created again."""
        found: dict[TopicPartition, list[StoredTopic]] = defaultdict(list)
        for each in self.store.partitions():
            found[TopicPartition(each.topic, each.partition)].append(each)
        return dict(found)

    @cached_property
    def logs(self) -> dict[TopicIdPartition, RemoteLog] | None:
        """Remote logs from the metadata topic; None without one."""
        if not self._facts.metadata:
            return None
        return replay_remote_log(_records(self._facts.metadata))

    @property
    def topic_partitions(self) -> set[TopicPartition]:
        """Partitions that have something in the store."""
        found = set(self.stored)
        for place, log in (self.logs or {}).items():
            if log.live:
                found.add(TopicPartition(place.topic, place.partition))
        return found

    def view(self, tp: TopicPartition, local: Path | None) -> PartitionView:
        """A partition with its remote part; an ordinary one if it has none. Raises TieredLogError
        if that cannot be known."""
        place = self._place(tp, local)
        log = None if place is None else self.log_of(place)
        if place is None or log is None or not log.live:
            if local is not None:
                return self._local_view(tp, local, place, log)
            why = self._why_unknown(tp, place)
            raise TieredLogError(
                f"{tp}: no complete remote segment in {self.store.root}{why and f': {why}'}"
            )
        directory = self.store.directory(*place)
        lineage = None
        if local is None or not _has_epochs(local):
            lineage = self._stored_lineage(log, directory)
        where = (self.store, directory)
        view = TieredView(tp, local, log, where, lineage, self._facts.log_dirs)
        if local is None and view.checkpointed(RootFile.LOG_START_OFFSETS) is None:
            self._warn_of_start(tp.topic)
        return view

    def _warn_of_start(self, topic: str) -> None:
        """Once for each topic."""
        if topic not in self._warned:
            self._warned.add(topic)
            _log.warning(
                "%s: the log start offset is unknown without the broker's log directory; the first "
                "records may be ones that were deleted",
                topic,
            )

    def _local_view(
        self, tp: TopicPartition, local: Path, place: TopicIdPartition | None, log: RemoteLog | None
    ) -> PartitionView:
        """A log without a remote part. Raises TieredLogError if it may have one."""
        view = PartitionView(local)
        first = view.segments.bases[0]
        start = view.checkpointed(RootFile.LOG_START_OFFSETS)
        if first <= (start or 0):
            return view
        is_tiered = self._facts.is_tiered(tp.topic)
        if is_tiered is False or (log is not None and log.has_deleted(start or 0, first)):
            return view
        why = self._why_unknown(tp, place)
        if start is None and not (why and (is_tiered or tp in self.stored)):
            return view
        lost = "before" if start is None else f"{start} to"
        raise TieredLogError(
            f"{tp}: the offsets {lost} {first if start is None else first - 1} of this log are not "
            f"on the disk ({local}), and no remote segment is known to have them: "
            f"{why or f'{REMOTE_METADATA_TOPIC} names none'}. To read the local part only, leave "
            "out the remote store"
        )

    def unknown_reason(self, place: TopicIdPartition) -> str:
        """Why it is unknown which segments of a partition are part of its log, and what to do;
        empty if it is known."""
        if self.logs is None:
            if self.store.layout == "aiven":
                return ""
            return (
                f"which segments in {self.store.root} are complete is only known from "
                f"{REMOTE_METADATA_TOPIC}; give the log directory that has this topic"
            )
        if place in self.logs:
            return ""
        here, count = self._facts.metadata_partitions, self._facts.metadata_count
        if count is None:
            numbers = ", ".join(map(str, here))
            return (
                f"the log directories have {REMOTE_METADATA_TOPIC} {numbers}, without any event of "
                "this partition; give the log directories that have the other partitions of that "
                "topic"
            )
        needed = place.metadata_partition(count)
        if needed in here:
            return ""
        return (
            f"its events are in partition {needed} of {REMOTE_METADATA_TOPIC}, which is not in the "
            "log directories; give the one that has it"
        )

    def _why_unknown(self, tp: TopicPartition, place: TopicIdPartition | None) -> str:
        places = [place] if place is not None else self.places(tp)
        why = next(filter(None, map(self.unknown_reason, places)), "")
        if not why and self.logs is None and tp not in self.stored:
            return f"{self.store.root} has no segment of it; check the bucket and the prefix"
        return why

    def places(self, tp: TopicPartition) -> list[TopicIdPartition]:
        """What the store has of a partition: one for each incarnation of its topic."""
        return [
            TopicIdPartition(each.topic, each.topic_id, each.partition)
            for each in self.stored.get(tp, ())
        ]

    def log_of(self, place: TopicIdPartition) -> RemoteLog | None:
        """None if nothing is known of it."""
        if self.logs is not None:
            return self.logs.get(place)
        if self.store.layout == "local":
            return None
        return self._log_of_manifests(self.store.directory(*place))

    def _place(self, tp: TopicPartition, local: Path | None) -> TopicIdPartition | None:
        topic_id = None if local is None else read_topic_id(local)
        if topic_id is not None:
            return TopicIdPartition(tp.topic, encode_id(topic_id), tp.partition)
        ids = {each.topic_id for each in self.stored.get(tp, ())}
        if self.logs is not None:
            places = [place for place, log in self.logs.items() if log.live]
            ids &= {each.topic_id for each in places}
        if len(ids) > 1:
            raise TieredLogError(
                f"{tp}: the store has several topics of this name: {', '.join(sorted(ids))}; give "
                "a log directory that has the partition, so that its topic id is known"
            )
        return TopicIdPartition(tp.topic, ids.pop(), tp.partition) if ids else None

    def _log_of_manifests(self, directory: Path) -> RemoteLog:
        objects = self.store.objects(directory)
        names = [name for name, suffixes in objects.items() if MANIFEST_SUFFIX in suffixes]
        paths = [directory / f"{name}{MANIFEST_SUFFIX}" for name in names]
        segments = []
        for path, raw in zip(paths, fetch_pool().map(read_file, paths), strict=True):
            try:
                manifest = decode_manifest(raw)
                found = segment_of_manifest(manifest.metadata, manifest.chunks.file_bytes)
                order = int(manifest.metadata["eventTimestampMs"])
            except CorruptError as error:
                raise error.located(path) from None
            except (KeyError, TypeError, ValueError) as error:
                reason = f"no metadata of the segment in its manifest: {error}"
                raise CorruptError(reason, path=path) from None
            segments.append((order, found.name, found))
        log = RemoteLog()
        for _, name, segment in sorted(segments, key=lambda each: each[:2]):
            if ".log" in objects[name]:  # a deletion may have begun
                log.add(segment)
        return log

    def _stored_lineage(self, log: RemoteLog, directory: Path) -> tuple[EpochEntry, ...]:
        """From the newest segment: its leader epoch index has all epochs up to its end."""
        newest = max(log.live, key=lambda each: (each.epochs[-1][0], each.end_offset))
        stored = self.store.segment(directory, newest.name, newest.size_bytes)
        raw = stored.side_file("leaderEpoch")
        if not raw:
            raise TieredLogError(f"{stored.log}: has no leader epochs")
        return tuple(decode_leader_epochs(raw))


def _has_epochs(local: Path) -> bool:
    try:
        return bool(PartitionView(local).leader_epochs)
    except StratalogError:
        return False


def _records(directories: Iterable[Path]) -> Iterator[RemoteLogRecord]:
    """The records of each partition of the metadata topic. Of several replicas, the longest is
    read."""
    replicas: dict[int, list[PartitionView]] = defaultdict(list)
    for path in directories:
        view = PartitionView(path)
        replicas[view.topic_partition.partition].append(view)
    for _, views in sorted(replicas.items()):
        with max(views, key=lambda view: view.log_end_offset) as view:
            for record in view.read():
                if record.value is None:
                    continue
                try:
                    yield read_remote_log_record(record.value)
                except StratalogError as error:
                    where = f"{view.path}, offset {record.offset}"
                    raise TieredLogError(f"{where}: {error}") from None


def metadata_dirs(live: Mapping[TopicPartition, Sequence[Path]]) -> list[Path]:
    """The directories of the metadata topic."""
    return [
        path
        for tp, paths in sorted(live.items())
        if tp.topic == REMOTE_METADATA_TOPIC
        for path in paths
    ]

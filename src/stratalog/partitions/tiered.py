"""The remote part of a broker's topics: metadata, lineage, and views of tiered partitions.

What is in the store is known from `__remote_log_metadata`, if one of the log directories has it.
Otherwise Aiven's manifests show it: a manifest is written last, so its segment is complete. Kafka's
test store has no manifests.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Final

from stratalog.errors import CorruptError, StratalogError, TieredLogError
from stratalog.format.aiven_manifest import decode_manifest
from stratalog.format.checkpoint import EpochEntry, decode_leader_epochs
from stratalog.format.messages.remote_log_records import read_remote_log_record
from stratalog.format.metadata import encode_id
from stratalog.format.names import TopicPartition
from stratalog.log.partition_view import PartitionView, read_topic_id
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
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from stratalog.format.messages.remote_log_records import RemoteLogRecord
    from stratalog.storage.tiered_store import StoredTopic, TieredStore

METADATA_TOPIC: Final = "__remote_log_metadata"
_MANIFEST: Final = ".rsm-manifest"

_log = logging.getLogger(__name__)


class RemoteTier:
    """The store of some log directories."""

    def __init__(self, store: TieredStore, metadata: Sequence[Path]) -> None:
        """`metadata` are the directories of partitions of the metadata topic, if there are any."""
        self.store = store
        self._metadata = metadata

    @cached_property
    def stored(self) -> dict[TopicPartition, list[StoredTopic]]:
        """What the store has of each partition; several if the topic was created again."""
        found: dict[TopicPartition, list[StoredTopic]] = defaultdict(list)
        for each in self.store.partitions():
            found[TopicPartition(each.topic, each.partition)].append(each)
        return dict(found)

    @cached_property
    def logs(self) -> dict[TopicIdPartition, RemoteLog] | None:
        """From the metadata topic; None without one."""
        if not self._metadata:
            return None
        return replay_remote_log(_records(self._metadata))

    @property
    def topic_partitions(self) -> set[TopicPartition]:
        """Partitions that have something in the store."""
        found = set(self.stored)
        for place, log in (self.logs or {}).items():
            if log.live:
                found.add(TopicPartition(place.topic, place.partition))
        return found

    def view(self, at: TopicPartition, local: Path | None) -> PartitionView:
        """A partition with its remote part; an ordinary one if it has none."""
        place = self._place(at, local)
        log = None if place is None else self.log_of(place)
        if place is None or log is None or not log.live:
            if local is None:
                raise TieredLogError(f"{at}: no complete remote segment in {self.store.root}")
            return PartitionView(local)
        directory = self.store.directory(*place)
        lineage = None
        if local is None or not _has_epochs(local):
            lineage = self._stored_lineage(log, directory)
        return TieredView(at, local, log, (self.store, directory), lineage)

    def log_of(self, place: TopicIdPartition) -> RemoteLog | None:
        if self.logs is not None:
            return self.logs.get(place)
        return self._log_of_manifests(self.store.directory(*place))

    def _place(self, at: TopicPartition, local: Path | None) -> TopicIdPartition | None:
        topic_id = None if local is None else read_topic_id(local)
        if topic_id is not None:
            return TopicIdPartition(at.topic, encode_id(topic_id), at.partition)
        ids = {each.topic_id for each in self.stored.get(at, ())}
        if self.logs is not None:
            places = [place for place, log in self.logs.items() if log.live]
            ids &= {each.topic_id for each in places}
        if len(ids) > 1:
            raise TieredLogError(
                f"{at}: the store has several topics of this name: {', '.join(sorted(ids))}; give "
                "a log directory that has the partition, so that its topic id is known"
            )
        return TopicIdPartition(at.topic, ids.pop(), at.partition) if ids else None

    def _log_of_manifests(self, directory: Path) -> RemoteLog | None:
        if self.store.layout == "local":
            raise TieredLogError(
                f"{self.store.root}: which segments are complete is only known from "
                f"{METADATA_TOPIC}; give the log directory that has this topic"
            )
        objects = self.store.objects(directory)
        names = [name for name, suffixes in objects.items() if _MANIFEST in suffixes]
        paths = [directory / f"{name}{_MANIFEST}" for name in names]
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
    """Of each partition of the metadata topic once: of several replicas, the longest."""
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
        path for at, paths in sorted(live.items()) if at.topic == METADATA_TOPIC for path in paths
    ]

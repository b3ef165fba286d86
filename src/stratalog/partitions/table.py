"""Which partition is in which log directory: found at the start, made, removed, thrown away.

The table knows directories, not topics: the catalog says what is to happen, and keeps the note of
it by which a crash in between is mended. Changes take turns, which the catalog sees to.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from stratalog.errors import CorruptError, InconsistentLogDirsError, StratalogError
from stratalog.format.metadata import (
    PartitionMetadata,
    decode_partition_metadata,
    encode_partition_metadata,
)
from stratalog.format.names import FileKind, TopicPartition
from stratalog.partitions.root import LogRoot, PartitionSlot
from stratalog.partitions.topics import emptiest

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Sequence

    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.recovery_plan import LoadPoint
    from stratalog.partitions.root import LogContext

MAKERS: Final = 8
"""Partitions that are made at a time: most of it is waiting for the disk."""


class PartitionTable:
    """The partitions of all log directories. Looking needs no lock."""

    def __init__(
        self,
        roots: Sequence[LogRoot],
        engine: LogContext,
        load: Callable[[PartitionSlot, LoadPoint], PartitionLog],
    ) -> None:
        """Takes what the roots have found. Raises InconsistentLogDirsError unless one broker could
        have all of them. `load` opens a partition's log."""
        check_consistent(roots)
        self._roots = roots
        self._disk = engine.disk
        self._now_ms = engine.now_ms
        self._load = load
        self._slots: dict[TopicPartition, PartitionSlot] = {}
        for root in roots:
            for topic_partition in root.found:
                self._add(root, topic_partition)

    def _add(self, root: LogRoot, topic_partition: TopicPartition) -> PartitionSlot:
        slot = PartitionSlot(topic_partition, root, self._load)
        self._slots[topic_partition] = root.slots[topic_partition] = slot
        return slot

    # -- finding

    def find(self, topic_partition: TopicPartition) -> PartitionSlot | None:
        """A partition's place, if there is one."""
        return self._slots.get(topic_partition)

    def slots(self) -> list[PartitionSlot]:
        """All of them."""
        return list(self._slots.values())

    def numbers(self) -> dict[str, list[int]]:
        """The numbers of the partitions that are here, by topic, in order."""
        numbers: dict[str, list[int]] = {}
        for topic, partition in sorted(self._slots):
            numbers.setdefault(topic, []).append(partition)
        return numbers

    def topic_id_of(self, topic: str, partitions: Iterable[int]) -> uuid.UUID | None:
        """The topic's id as the first of these partitions tells it that has one."""
        for partition in partitions:
            slot = self._slots[TopicPartition(topic, partition)]
            path = slot.path / FileKind.PARTITION_METADATA.value
            try:
                return decode_partition_metadata(self._disk.read_bytes(path)).topic_id
            except FileNotFoundError:
                continue
            except CorruptError as error:
                raise error.located(path) from None
        return None

    # -- making

    def make(self, topic_partitions: Iterable[TopicPartition], topic_id: uuid.UUID | None) -> None:
        """Make those that are missing, and complete those that a crash left incomplete."""
        slots = [self._slots.get(tp) or self._add(self._emptiest(), tp) for tp in topic_partitions]
        with ThreadPoolExecutor(MAKERS, thread_name_prefix="stratalog-create") as pool:
            list(pool.map(partial(self._make, topic_id=topic_id), slots))
        for root in {slot.root for slot in slots}:
            self._disk.fsync_dir(root.path)

    def _emptiest(self) -> LogRoot:
        online = [root for root in self._roots if root.offline_reason is None] or self._roots
        return online[emptiest([len(root.slots) for root in online])]

    def _make(self, slot: PartitionSlot, *, topic_id: uuid.UUID | None) -> None:
        self._disk.mkdir(slot.path, exist_ok=True)
        if topic_id is not None:
            path = slot.path / FileKind.PARTITION_METADATA.value
            metadata = encode_partition_metadata(PartitionMetadata(topic_id))
            self._disk.write_atomically(path, metadata)
        log = slot.log()
        if not log.epochs.entries:
            log.become_leader(log.leader_epoch)

    # -- removing

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Leave nothing of partitions that were being made."""
        for topic_partition in topic_partitions:
            slot = self._slots.pop(topic_partition, None)
            if slot is not None:
                _abandon(slot.retire())
                slot.root.drop([topic_partition])
                self._disk.remove_tree(slot.path)
                self._disk.fsync_dir(slot.root.path)

    def throw_away(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Put partitions into the trash: their names are free at once, their files go later."""
        thrown: dict[LogRoot, list[TopicPartition]] = {}
        try:
            for topic_partition in topic_partitions:
                slot = self._slots.get(topic_partition)
                if slot is None:
                    continue  # an earlier attempt came so far
                _abandon(slot.retire())
                slot.root.trash.throw(slot.path, topic_partition, self._now_ms())
                del self._slots[topic_partition]
                thrown.setdefault(slot.root, []).append(topic_partition)
        finally:
            for root, gone in thrown.items():
                self._disk.fsync_dir(root.path)
                root.drop(gone)


def check_consistent(roots: Sequence[LogRoot]) -> None:
    """Raise unless one broker could have all these log directories."""
    places: dict[TopicPartition, LogRoot] = {}
    for root in roots:
        for topic_partition in root.found:
            other = places.setdefault(topic_partition, root)
            if other is not root:
                raise InconsistentLogDirsError(
                    f"{topic_partition} is in both {other.path} and {root.path}"
                )
    owned = [(root, root.meta) for root in roots if root.meta is not None]
    for root, meta in owned[1:]:
        first, first_meta = owned[0]
        if (meta.cluster_id, meta.node_id) != (first_meta.cluster_id, first_meta.node_id):
            raise InconsistentLogDirsError(
                f"{first.path} belongs to node {first_meta.node_id} of cluster "
                f"{first_meta.cluster_id}, {root.path} to node {meta.node_id} of cluster "
                f"{meta.cluster_id}"
            )


def _abandon(log: PartitionLog | None) -> None:
    """Close a log whose files are not needed any more."""
    if log is not None:
        with suppress(StratalogError):
            log.close()

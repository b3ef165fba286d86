"""What a log that is being written consists of, and what an append answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.format.batch import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.format.names import TopicPartition
    from stratalog.log.epochs import LeaderEpochCache
    from stratalog.log.producer_state import ProducerStateManager
    from stratalog.log.snapshots import SnapshotFiles
    from stratalog.storage.disk import Disk
    from stratalog.storage.segment import Segment


class LogState(NamedTuple):
    """A loaded log: what `open_log` hands over. All of it belongs to the log from then on."""

    path: Path
    topic_partition: TopicPartition
    config: LogConfig
    disk: Disk
    now_ms: Callable[[], int]
    segments: list[Segment]
    """In offset order; the last one is active."""
    log_start_offset: int
    recovery_point: int
    unsynced_from: int
    """From the segment of this offset on, indexes may have been built again and not be durable."""
    leader_epoch: int
    """Of the last leader: this one goes on with it until it is told another."""
    producers: ProducerStateManager
    epochs: LeaderEpochCache
    snapshots: SnapshotFiles


class IndexSizes(NamedTuple):
    """Bytes of the two sparse index files of a segment."""

    offset_index: int
    time_index: int

    def exceed(self, other: IndexSizes) -> bool:
        """Whether one of the files is larger than the other's."""
        return self.offset_index > other.offset_index or self.time_index > other.time_index


class AppendInfo(NamedTuple):
    """The answer to an append."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int = NO_TIMESTAMP
    """The time of the append where the topic's timestamps are that; else -1."""
    is_duplicate: bool = False
    """The log had the batch already; these are its offsets there."""

"""Public names of the types that methods return, for annotations and `isinstance`.

The types themselves are where they belong; what programs use first is in `stratalog` itself.
"""

from __future__ import annotations

from stratalog.commits.committer import CommitResult, Commits
from stratalog.config import CleanupPolicy, TopicCompression
from stratalog.format.arguments import TimeLike
from stratalog.format.batch import BatchHeader, Peek
from stratalog.format.checkpoint import EpochEntry
from stratalog.format.directory_metadata import MetaProperties
from stratalog.format.legacy import LegacyHeader
from stratalog.format.names import DirState
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.aborted_transactions import MissingIndex
from stratalog.log.epochs import EpochEndOffset
from stratalog.log.log_state import AppendInfo
from stratalog.log.reader import Isolation, Location, OffsetAndTimestamp, Skipped, StartOffset
from stratalog.maintenance.cleaning.plan import (
    BoundKind,
    CheckpointReset,
    CleanerSegment,
    CleaningBound,
    CleaningPlan,
    CleaningResult,
)
from stratalog.maintenance.recovery_plan import Truncation
from stratalog.partitions.settings import ConfigSource
from stratalog.producing.coordinator import OpenTransaction
from stratalog.producing.transaction_log import ProducerIdentity
from stratalog.service.cleaners import CleanerManager, CleaningStatus, PartitionCleaning, PassReport
from stratalog.service.health import Failure
from stratalog.service.maintenance import Maintenance, MaintenanceState, PartitionState
from stratalog.storage.trace import IndexStep, Probe, RecordStep, ScanStep, SegmentStep, Trace

__all__ = [
    "AbortedTxn",
    "AppendInfo",
    "BatchHeader",
    "BoundKind",
    "CheckpointReset",
    "CleanerManager",
    "CleanerSegment",
    "CleaningBound",
    "CleaningPlan",
    "CleaningResult",
    "CleaningStatus",
    "CleanupPolicy",
    "CommitResult",
    "Commits",
    "ConfigSource",
    "DirState",
    "EpochEndOffset",
    "EpochEntry",
    "Failure",
    "IndexStep",
    "Isolation",
    "LegacyHeader",
    "Location",
    "Maintenance",
    "MaintenanceState",
    "MetaProperties",
    "MissingIndex",
    "OffsetAndTimestamp",
    "OpenTransaction",
    "PartitionCleaning",
    "PartitionState",
    "PassReport",
    "Peek",
    "Probe",
    "ProducerEntry",
    "ProducerIdentity",
    "RecordStep",
    "ScanStep",
    "SegmentStep",
    "Skipped",
    "StartOffset",
    "TimeLike",
    "TopicCompression",
    "Trace",
    "Truncation",
]

"""Who appends. What has to be checked, and whether offsets are assigned, depends on it."""

from __future__ import annotations

import enum


class AppendOrigin(enum.Enum):
    """Where a batch comes from. The names are Kafka's."""

    CLIENT = "client"
    """A producer: everything is checked."""
    COORDINATOR = "coordinator"
    """A group or transaction coordinator on this broker, which may write control batches."""
    RAFT_LEADER = "raft leader"
    """The metadata quorum, which assigns offsets and epochs itself."""
    REPLICATION = "replication"
    """The leader of the partition, which has checked everything before."""

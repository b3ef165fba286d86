"""Values of the control records a KRaft quorum writes into its log and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.format.control import ControlType
from stratalog.format.messages.schema import Array, Field, Message, Value, read_message

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION = Field("version", "int16")
_VOTER = (
    Field("voterId", "int32"),
    Field("voterDirectoryId", "uuid"),
    Field(
        "endpoints",
        Array((Field("name", "string"), Field("host", "string"), Field("port", "uint16"))),
    ),
    Field(
        "kRaftVersionFeature",
        (Field("minSupportedVersion", "int16"), Field("maxSupportedVersion", "int16")),
    ),
)
_ELECTOR = (Field("voterId", "int32"), Field("voterDirectoryId", "uuid", since=1))

QUORUM_RECORDS: Final[Mapping[ControlType, Message]] = {
    ControlType.LEADER_CHANGE: Message(
        "LeaderChangeMessage",
        (
            _VERSION,
            Field("leaderId", "int32"),
            Field("voters", Array(_ELECTOR)),
            Field("grantingVoters", Array(_ELECTOR)),
        ),
        version_max=1,
        flexible_since=0,
    ),
    ControlType.SNAPSHOT_HEADER: Message(
        "SnapshotHeaderRecord",
        (_VERSION, Field("lastContainedLogTimestamp", "int64")),
        flexible_since=0,
    ),
    ControlType.SNAPSHOT_FOOTER: Message("SnapshotFooterRecord", (_VERSION,), flexible_since=0),
    ControlType.KRAFT_VERSION: Message(
        "KRaftVersionRecord", (_VERSION, Field("kRaftVersion", "int16")), flexible_since=0
    ),
    ControlType.KRAFT_VOTERS: Message(
        "VotersRecord", (_VERSION, Field("voters", Array(_VOTER))), flexible_since=0
    ),
}


def read_quorum_record(control_type: ControlType, value: bytes) -> dict[str, Value]:
    """The fields of a control record of one of the `QUORUM_RECORDS` types.

    Every layout so far begins with its version, and version 0 is what Kafka reads.
    """
    return read_message(QUORUM_RECORDS[control_type], value, 0, 0)[0]

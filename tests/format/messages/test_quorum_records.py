"""Control records of KRaft, written by the kio library."""

from __future__ import annotations

import io
import uuid
from typing import Any

import pytest
from kio.schema.k_raft_version_record.v0.data import KRaftVersionRecord
from kio.schema.snapshot_footer_record.v0.data import SnapshotFooterRecord
from kio.schema.snapshot_header_record.v0.data import SnapshotHeaderRecord
from kio.schema.voters_record.v0 import data as voters
from kio.serial import entity_writer
from kio.static.primitive import i16, i32, i64, u16

from stratalog.errors import CorruptRecordError
from stratalog.format.control import ControlType
from stratalog.format.messages.cluster_metadata import QUORUM_RECORDS, read_quorum_record
from stratalog.format.messages.schema import to_json

VOTERS = voters.VotersRecord(
    version=i16(0),
    voters=(
        voters.Voter(
            voter_id=i32(1),  # type: ignore[arg-type]  # kio gives ids a type of their own
            voter_directory_id=uuid.UUID(int=1),
            endpoints=(voters.Endpoint(name="C", host="localhost", port=u16(65_535)),),
            k_raft_version_feature=voters.KRaftVersionFeature(
                min_supported_version=i16(0), max_supported_version=i16(1)
            ),
        ),
    ),
)


def _written(message: Any) -> bytes:
    raw = io.BytesIO()
    entity_writer(type(message))(raw, message)
    return raw.getvalue()


@pytest.mark.parametrize(
    ("control_type", "message", "expected"),
    [
        (
            ControlType.SNAPSHOT_HEADER,
            SnapshotHeaderRecord(version=i16(0), last_contained_log_timestamp=i64(17)),
            '{"version":0,"lastContainedLogTimestamp":17}',
        ),
        (ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord(version=i16(0)), '{"version":0}'),
        (
            ControlType.KRAFT_VERSION,
            KRaftVersionRecord(version=i16(0), k_raft_version=i16(1)),
            '{"version":0,"kRaftVersion":1}',
        ),
        (
            ControlType.KRAFT_VOTERS,
            VOTERS,
            '{"version":0,"voters":[{"voterId":1,"voterDirectoryId":"AAAAAAAAAAAAAAAAAAAAAQ",'
            '"endpoints":[{"name":"C","host":"localhost","port":65535}],'
            '"kRaftVersionFeature":{"minSupportedVersion":0,"maxSupportedVersion":1}}]}',
        ),
    ],
    ids=["header", "footer", "version", "voters"],
)
def test_values(control_type: ControlType, message: Any, expected: str) -> None:
    assert to_json(read_quorum_record(control_type, _written(message))) == expected


@pytest.mark.parametrize("control_type", QUORUM_RECORDS)
def test_a_value_cut_short(control_type: ControlType) -> None:
    with pytest.raises(CorruptRecordError):
        read_quorum_record(control_type, b"\x00")

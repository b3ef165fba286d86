"""The journal: its bytes, what is refused, and the plan of a commit."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.commits.journal import (
    CommitIdentity,
    Journal,
    JournalRun,
    PartitionCommit,
    decode_journal,
    encode_journal,
    plan_commit,
)
from stratalog.commits.staged import StagedCommit, StagedRun, StagedTopic
from stratalog.errors import CorruptCheckpointError, InvalidNameError, UnsupportedError
from stratalog.format.names import TopicPartition, parse_partition_file
from stratalog.log.offset_assignment import AppendRules
from stratalog.storage.staged_names import StagedName, parse_staged_name

PAGE = Path(__file__).resolve().parents[2] / "docs" / "format" / "bulk-commits.md"
QUERY = uuid.UUID("7d3c0f6b-1f0e-4a5c-9b1d-2e3f40516273")
NAME = "7d3c0f6b1f0e4a5c9b1d2e3f40516273-12-3-9f86d081884c7d65.staged"
JOURNAL = Journal(
    job=QUERY.hex,
    number=12,
    identity=CommitIdentity(str(QUERY), 12),
    dir_count=1,
    partitions=(
        PartitionCommit(
            TopicPartition("orders", 0),
            uuid.UUID(int=5),
            5000,
            (JournalRun(NAME, 1_048_576, 8192),),
        ),
    ),
    checksums={"orders": 1287364},
)


def documented() -> str:
    found = re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_documented_example() -> None:
    assert encode_journal(JOURNAL).decode() == documented()
    assert decode_journal(documented().encode()) == JOURNAL
    assert NAME in PAGE.read_text().partition("## The journal")[0]


def test_names_of_staged_files() -> None:
    name = StagedName(QUERY.hex, 12, 3, "9f86d081884c7d65")
    assert str(name) == NAME
    assert parse_staged_name(NAME) == name
    assert parse_partition_file(NAME) is None  # Kafka leaves it alone
    for other in ("00000000000000000000.log", NAME + ".tmp", NAME.upper(), "x.staged", ""):
        assert parse_staged_name(other) is None
    with pytest.raises(InvalidNameError):
        str(StagedName("../../etc/passwd", 0, 0, "9f86d081884c7d65"))


CHANGES: list[tuple[str, Any]] = [
    ("job", "x"),
    ("job", str(QUERY)),
    ("number", -1),
    ("number", True),
    ("identity", {"writer": 1, "number": 1}),
    ("identity", {"writer": "x"}),
    ("dir_count", "1"),
    ("partitions", None),
    ("checksums", {"orders": "x"}),
    ("partitions", [{}]),
]


@pytest.mark.parametrize(("field", "value"), CHANGES)
def test_what_is_not_a_journal(field: str, value: object) -> None:
    content = json.loads(documented())
    content[field] = value
    with pytest.raises(CorruptCheckpointError):
        decode_journal(json.dumps(content).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("runs", [["../../../etc/passwd", 1, 1]]),
        ("runs", [[NAME, 1]]),
        ("runs", [[NAME, -1, 1]]),
        ("skip_records", 8193),
        ("start_offset", 1 << 63),
        ("topic", 5),
        ("is_installed", 1),
    ],
)
def test_what_is_no_part_of_a_journal(field: str, value: object) -> None:
    content = json.loads(documented())
    content["partitions"][0][field] = value
    with pytest.raises(CorruptCheckpointError):
        decode_journal(json.dumps(content).encode())


def test_a_later_version() -> None:
    content = json.loads(documented())
    content["version"] = 2
    with pytest.raises(UnsupportedError):
        decode_journal(json.dumps(content).encode())


def test_an_earlier_version() -> None:
    """It recorded no progress, so there is none."""
    content = json.loads(documented())
    content["version"] = 0
    del content["checksums"]
    del content["partitions"][0]["is_installed"]
    journal = decode_journal(json.dumps(content).encode())
    assert journal == replace(JOURNAL, checksums={})
    assert not journal.partitions[0].is_installed
    assert journal.run_names == {NAME}


@given(st.binary(max_size=200))
def test_junk(data: bytes) -> None:
    with pytest.raises((CorruptCheckpointError, UnsupportedError)):
        decode_journal(data)


def run(partition: int, task: int, records: int) -> StagedRun:
    topic = StagedTopic("orders", QUERY, AppendRules(), ())
    name = str(StagedName(QUERY.hex, 0, task, f"{partition:016x}"))
    return StagedRun(topic, TopicPartition("orders", partition), task, name, 61, records)


def test_a_plan_orders_runs_by_their_tasks() -> None:
    """Not by the order in which tasks ended; and what is empty is left out."""
    runs = (run(1, 10, 5), run(0, 2, 7), run(1, 9, 3), run(1, 1, 0), run(0, 11, 1))
    ends = {TopicPartition("orders", 0): 100, TopicPartition("orders", 1): 0}
    journal = plan_commit(StagedCommit(runs, QUERY.hex), ends, 2)
    first, second = journal.partitions
    assert (first.topic_partition.partition, first.start_offset, first.end_offset) == (0, 100, 108)
    assert [r.record_count for r in first.runs] == [7, 1]
    assert (second.start_offset, second.end_offset) == (0, 8)
    assert [r.record_count for r in second.runs] == [3, 5]
    assert (journal.dir_count, journal.identity) == (2, None)

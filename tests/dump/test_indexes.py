"""What is said of indexes, snapshots and transaction indexes beyond the golden files."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.dump import files as log_headers
from stratalog.dump.log_contents import DumpOptions, Filters, IndexChecks
from stratalog.format.producer_snapshot import ProducerEntry, encode_snapshot
from stratalog.format.record import Record, encode_batch
from tests.dump.dumping import OPTIONS, dump

if TYPE_CHECKING:
    from pathlib import Path

PLAIN, SANITY = OPTIONS["plain"], OPTIONS["sanity"]
NAME = "00000000000000000100"

# Batches of two records each, from offset 100 on, ten milliseconds apart.
BATCHES = [
    encode_batch(
        [Record(first, 10 * first, b"k", b"v"), Record(first + 1, 10 * first + 5, b"k", b"v")]
    )
    for first in range(100, 112, 2)
]
SIZE = len(BATCHES[0])


def offsets(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def times(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A directory with a log; indexes are the test's to write."""
    (tmp_path / f"{NAME}.log").write_bytes(b"".join(BATCHES))
    return tmp_path


def test_offset_index(segment: Path) -> None:
    index = segment / f"{NAME}.index"
    index.write_bytes(offsets((3, SIZE), (6, 3 * SIZE), (9, 4 * SIZE), (0, 0), (11, 5 * SIZE)))
    found = dump([index], PLAIN)
    assert found.lines == [
        f"offset: 103 position: {SIZE}",
        f"offset: 106 position: {3 * SIZE}",
        f"offset: 109 position: {4 * SIZE}",
    ]
    assert found.findings == (f"Mismatches in :{index}\n  Index offset: 106, log offset: 107\n")
    quiet = dump([index], DumpOptions(index_checks=IndexChecks(verify_only=True)))
    assert quiet.lines == []
    assert quiet.findings == found.findings


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ((3, -1), "index points to position -1"),
        ((3, 100_000), "past the"),
        ((3, 6 * SIZE), "no complete batch"),
        ((3, SIZE + 4), "invalid batch length"),
    ],
)
def test_an_entry_that_leads_nowhere_ends_the_file(
    segment: Path, entry: tuple[int, int], reason: str
) -> None:
    index = segment / f"{NAME}.index"
    index.write_bytes(offsets((1, 0), entry, (5, 2 * SIZE)))
    found = dump([index], PLAIN)
    assert found.lines == ["offset: 101 position: 0"]
    assert len(found.problems) == 1
    assert found.problems[0].startswith(f"{index} at byte 8: ")
    assert reason in found.problems[0]


def test_a_batch_larger_than_the_largest_message_is_not_looked_at(segment: Path) -> None:
    index = segment / f"{NAME}.index"
    index.write_bytes(offsets((1, 0)))
    enough, too_little = (
        IndexChecks(max_message_bytes=SIZE),
        IndexChecks(max_message_bytes=SIZE - 1),
    )
    assert dump([index], DumpOptions(index_checks=enough)).problems == []
    found = dump([index], DumpOptions(index_checks=too_little))
    assert f"no complete batch of at most {SIZE - 1} bytes" in found.problems[0]


def test_an_index_without_its_log_is_listed_unchecked(segment: Path) -> None:
    (segment / f"{NAME}.log").unlink()
    index, time_index = segment / f"{NAME}.index", segment / f"{NAME}.timeindex"
    index.write_bytes(offsets((1, 0), (9, -5)))
    time_index.write_bytes(times((7, 1)))
    found = dump([index, time_index], PLAIN)
    assert found.stdout == (
        f"Dumping {index}\noffset: 101 position: 0\noffset: 109 position: -5\n"
        f"Dumping {time_index}\ntimestamp: 7 offset: 101\n"
    )
    assert [problem.partition(": ")[2] for problem in found.problems] == [
        "its .log file is missing, so entries are not checked"
    ] * 2


@pytest.mark.parametrize("has_offset_index", [True, False])
def test_time_index(segment: Path, has_offset_index: bool) -> None:
    if has_offset_index:
        (segment / f"{NAME}.index").write_bytes(offsets((3, SIZE), (7, 3 * SIZE)))
    index = segment / f"{NAME}.timeindex"
    index.write_bytes(
        times((1005, 1), (1026, 3), (1045, 5), (1030, 7), (1066, 8), (2000, 50), (0, 0), (9, 9))
    )
    found = dump([index], PLAIN)
    assert [line.split()[1] for line in found.lines] == [
        "1005", "1026", "1045", "1030", "1066", "2000",
    ]  # fmt: skip
    assert found.findings == (
        f"Found timestamp mismatch in :{index}\n"
        "  Index timestamp: 1026, log timestamp: 1025\n"
        "  Index timestamp: 1030, log timestamp: 1065\n"
        f"Found out of order timestamp in :{index}\n"
        "  Index timestamp: 1030, Previously indexed timestamp: 1045\n"
        "The following indexed offsets are not found in the log.\n"
        "Indexed offset: 108, found log offset: 109\n"
        "Indexed offset: 150, found log offset: -1\n"
    )


def test_a_time_index_of_nonsense_does_not_take_for_ever(
    segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an offset index, or with nonsense, each search would walk the whole log."""
    reads = 0
    read = log_headers.LogHeaders._read

    def counted(
        self: log_headers.LogHeaders, position: int, end: int
    ) -> log_headers.BatchPosition | None:
        nonlocal reads
        reads += 1
        return read(self, position, end)

    monkeypatch.setattr(log_headers.LogHeaders, "_read", counted)
    index = segment / f"{NAME}.timeindex"
    index.write_bytes(times(*((n, 1_000 + n * 7_919 % 5_003) for n in range(3_000))))
    assert len(dump([index], PLAIN).lines) == 3_000
    assert reads < 100


def test_sanity(segment: Path) -> None:
    index, time_index = segment / f"{NAME}.index", segment / f"{NAME}.timeindex"
    index.write_bytes(offsets((1, 0)))
    time_index.write_bytes(b"")
    found = dump([index, time_index], SANITY)
    assert found.lines == [
        f"{index} passed sanity check.",
        f"Dumping {time_index}",
        f"{time_index} passed sanity check.",
    ]
    index.write_bytes(offsets((-1, 0)))
    time_index.write_bytes(times((5, 1), (4, 2)))
    found = dump([index, time_index], SANITY)
    assert found.lines == [f"Dumping {time_index}"]
    assert [problem.rpartition(": ")[2] for problem in found.problems] == [
        "last offset 99 is below base offset 100",
        "last timestamp 4 is below the first one",
    ]
    index.write_bytes(b"\0" * 7)
    assert dump([index], SANITY).lines == [f"{index} is empty."]


PRODUCERS = (
    ProducerEntry(1001, 0, 9, 42, 2, 1_700_000_000_000, 5, -1),
    ProducerEntry(1002, 3, -1, -1, 0, 1_700_000_000_001, 6, 40),
    ProducerEntry(1003, 0, 1, 9, 3, 5, -1, -1),
)


def test_snapshot(tmp_path: Path) -> None:
    snapshot = tmp_path / f"{NAME}.snapshot"
    snapshot.write_bytes(encode_snapshot(PRODUCERS))
    assert dump([snapshot], PLAIN).lines == [
        "producerId: 1001 producerEpoch: 0 coordinatorEpoch: 5 currentTxnFirstOffset: "
        "OptionalLong.empty lastTimestamp: 1700000000000 firstSequence: 7 lastSequence: 9 "
        "lastOffset: 42 offsetDelta: 2 timestamp: 1700000000000",
        "producerId: 1002 producerEpoch: 3 coordinatorEpoch: 6 currentTxnFirstOffset: "
        "OptionalLong[40] lastTimestamp: 1700000000001 ",
        "producerId: 1003 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: "
        "OptionalLong.empty lastTimestamp: 5 firstSequence: 2147483646 lastSequence: 1 "
        "lastOffset: 9 offsetDelta: 3 timestamp: 5",
    ]
    damaged = bytearray(snapshot.read_bytes())
    damaged[-1] ^= 1
    snapshot.write_bytes(damaged)
    found = dump([snapshot], PLAIN)
    assert found.lines == []
    assert "CRC mismatch" in found.problems[0]


def test_transaction_index(tmp_path: Path) -> None:
    index = tmp_path / f"{NAME}.txnindex"
    index.write_bytes(struct.pack(">hqqqq", 0, 1001, 3, 7, 8) + b"cut short")
    assert dump([index], PLAIN).lines == [
        "version: 0 producerId: 1001 firstOffset: 3 lastOffset: 7 lastStableOffset: 8"
    ]


@pytest.mark.parametrize(
    ("filters", "limit", "expected"),
    [
        (Filters(offset_min=105), None, ["i107", "i111", "t105", "t109", "x105", "p1", "p2"]),
        (Filters(offset_end=105), None, ["i103", "t101", "x101", "x105", "p1", "p2"]),
        (Filters(timestamp_min=1050), None, ["i103", "i107", "i111", "t109", "x101", "x105", "p2"]),
        (
            Filters(producer_id=1),
            None,
            ["i103", "i107", "i111", "t101", "t105", "t109", "x101", "p1"],
        ),
        (Filters(), 2, ["i103", "i107"]),
        (Filters(), 4, ["i103", "i107", "i111", "t101"]),
    ],
)
def test_filters_and_limit(
    segment: Path, filters: Filters, limit: int | None, expected: list[str]
) -> None:
    files = {
        "index": offsets((3, SIZE), (7, 3 * SIZE), (11, 5 * SIZE)),
        "timeindex": times((1005, 1), (1045, 5), (1095, 9)),
        "txnindex": struct.pack(">hqqqqhqqqq", 0, 1, 99, 101, 102, 0, 2, 100, 105, 106),
        "snapshot": encode_snapshot(
            [ProducerEntry(1, 0, 0, 0, 0, 1000, 0, -1), ProducerEntry(2, 0, 0, 0, 0, 1100, 0, -1)]
        ),
    }
    for kind, data in files.items():
        (segment / f"{NAME}.{kind}").write_bytes(data)
    paths = [segment / f"{NAME}.{kind}" for kind in files]
    found = dump(paths, DumpOptions(filters=filters, limit=limit))
    shown = []
    for line in found.stdout.splitlines():
        words = line.split()
        match words[0]:
            case "offset:":
                shown.append(f"i{words[1]}")
            case "timestamp:":
                shown.append(f"t{words[3]}")
            case "version:":
                shown.append(f"x{words[7]}")
            case "producerId:":
                shown.append(f"p{words[1]}")
    assert shown == expected


@given(
    data=st.binary(max_size=120),
    kind=st.sampled_from(["index", "timeindex", "txnindex", "snapshot"]),
    options=st.sampled_from([PLAIN, SANITY]),
)
def test_any_bytes_are_dumped(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, kind: str, options: DumpOptions
) -> None:
    directory = tmp_path_factory.getbasetemp()
    (directory / f"{NAME}.log").write_bytes(b"".join(BATCHES))
    (directory / f"{NAME}.index").write_bytes(data)
    path = directory / f"{NAME}.{kind}"
    path.write_bytes(data)
    assert dump([path], options).stdout.startswith(f"Dumping {path}\n")

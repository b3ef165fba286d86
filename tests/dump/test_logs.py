"""Lines of logs beyond what the golden files hold, and what is done about damage."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.dump import log_contents as log_values
from stratalog.dump.log_contents import DumpOptions, Filters
from stratalog.format.batch import BatchHeader, Codec, TimestampType
from stratalog.format.control import ControlType, EndMarker, encode_end_marker
from stratalog.format.record import BatchFields, Header, Record, encode_batch, seal_batch
from tests.dump.dumping import OPTIONS, dump
from tests.golden.cases import log_dir_case

if TYPE_CHECKING:
    from pathlib import Path

HEADERS, DEEP, DATA = OPTIONS["headers"], OPTIONS["deep"], OPTIONS["data"]

# The vectors of the format's description: a data batch and an ABORT marker.
BATCH = bytes.fromhex(
    "00000000000000000000004600000000029894628100000000000100000000000003e800000000000003ed"
    "ffffffffffffffffffffffffffff0000000218000000026b027602026802780e000a02026b0100"
)
MARKER = bytes.fromhex(
    "00000000000000070000004200000003021f3ca98a00300000000000000000000007d000000000000007d0"
    "00000000000003e90000ffffffff000000012000000008000000000c00000000000500"
)
BATCH_LINE = (
    "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: -1 lastSequence: -1 producerId: -1 "
    "producerEpoch: -1 partitionLeaderEpoch: 0 isTransactional: false isControl: false "
    "deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: 1005 size: 82 magic: 2 "
    "compresscodec: none crc: 2559861377 isvalid: true"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.log"


def test_data_and_marker(log: Path) -> None:
    log.write_bytes(BATCH + MARKER)
    found = dump([log], DATA)
    assert found.stdout == (
        f"Dumping {log}\nLog starting offset: 0\n{BATCH_LINE}\n"
        "| offset: 0 CreateTime: 1000 keySize: 1 valueSize: 1 sequence: -1 headerKeys: [h] key: k "
        "payload: v\n"
        "| offset: 1 CreateTime: 1005 keySize: 1 valueSize: -1 sequence: -1 headerKeys: [] key: k\n"
        "baseOffset: 7 lastOffset: 7 count: 1 baseSequence: -1 lastSequence: -1 producerId: 1001 "
        "producerEpoch: 0 partitionLeaderEpoch: 3 isTransactional: true isControl: true "
        "deleteHorizonMs: OptionalLong.empty position: 82 CreateTime: 2000 size: 78 magic: 2 "
        "compresscodec: none crc: 524069258 isvalid: true\n"
        "| offset: 7 CreateTime: 2000 keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] "
        "endTxnMarker: ABORT coordinatorEpoch: 5\n"
    )
    assert found.findings == (f"Non-consecutive offsets in {log}\n  1 is followed by 7\n")


def test_without_record_metadata(log: Path) -> None:
    no_key = encode_batch([Record(8, 1, None, b"only"), Record(9, 1, None, None)])
    log.write_bytes(BATCH + MARKER + no_key)
    options = DumpOptions(print_data=True, skip_record_metadata=True)
    records = [line for line in dump([log], options).lines[1:] if "baseOffset" not in line]
    assert records == ["| key: k payload: v", "| key: k", "", " payload: only", ""]


def test_sequences_wrap_as_in_java(log: Path) -> None:
    def header(base_sequence: int, delta: int) -> bytes:
        template = BatchHeader.unpack(BATCH)._replace(
            base_sequence=base_sequence, last_offset_delta=delta, record_count=0
        )
        return seal_batch(template, b"")

    pairs = [(2147483647, 1), (2147483646, 3), (0, 5), (-1, 5), (-5, 2), (3, -7)]
    log.write_bytes(b"".join(header(*pair) for pair in pairs))
    shown = [line.split()[9] for line in dump([log], HEADERS).lines[1:]]
    assert shown == ["0", "1", "5", "-1", "-3", str(-7 - (2147483647 - 3) - 1 + (1 << 32))]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("00000001", "000000000007", " endTxnMarker: COMMIT coordinatorEpoch: 7"),
        ("00050000", "000500000007ffff", " endTxnMarker: ABORT coordinatorEpoch: 7"),
        ("00000002", "0000", " controlType: LEADER_CHANGE(2)"),
        ("00000003", "0000000000000000000500",
         ' SnapshotHeader {"version":0,"lastContainedLogTimestamp":5}'),
        ("00000004", "000000", ' SnapshotFooter {"version":0}'),
        ("00000005", "0000000100", ' KRaftVersion {"version":0,"kRaftVersion":1}'),
        ("00000006", "00000100", ' KRaftVoters {"version":0,"voters":[]}'),
        ("00000007", "", " controlType: UNKNOWN(7)"),
        ("0000ff9c", "", " controlType: UNKNOWN(-100)"),
    ],
)  # fmt: skip
def test_control_records(log: Path, key: str, value: str, text: str) -> None:
    record = Record(3, 1, bytes.fromhex(key), bytes.fromhex(value))
    log.write_bytes(encode_batch([record], BatchFields(is_control=True)))
    found = dump([log], DATA)
    assert found.lines[-1].endswith(f"headerKeys: []{text}")
    assert found.problems == []


@pytest.mark.parametrize(("key", "value"), [("0000", ""), ("00000001", "00"), ("00000003", "00")])
def test_a_broken_control_record_is_a_problem_and_the_dump_goes_on(
    log: Path, key: str, value: str
) -> None:
    record = Record(3, 1, bytes.fromhex(key), bytes.fromhex(value))
    log.write_bytes(encode_batch([record], BatchFields(is_control=True)) + MARKER)
    found = dump([log], DEEP)
    assert found.lines[2] == "| offset: 3"
    assert found.lines[-1].endswith("coordinatorEpoch: 5")
    assert len(found.problems) == 1
    assert found.problems[0].startswith(f"{log} at byte 0: ")


def test_bootstrap_checkpoint_and_snapshots(tmp_path: Path) -> None:
    bootstrap = log_dir_case().root / "bootstrap.checkpoint"
    found = dump([bootstrap], OPTIONS["metadata"])
    assert found.problems == []
    assert found.lines[0] == "KRaft bootstrap snapshot"
    assert ' SnapshotHeader {"version":0,"lastContainedLogTimestamp":' in found.lines[2]
    assert '{"type":"FEATURE_LEVEL_RECORD","version":0,"data":{"name":"metadata.version"' in (
        found.stdout
    )
    assert found.lines[-1].endswith(' SnapshotFooter {"version":0}')
    named = tmp_path / "00000000000000000042-0000000003.checkpoint"
    named.write_bytes(bootstrap.read_bytes())
    assert dump([named], HEADERS).lines[0] == "Snapshot end offset: 42, epoch: 3"
    other = tmp_path / "other.checkpoint"
    other.write_bytes(b"")
    assert "not the name of a metadata snapshot" in dump([other], HEADERS).problems[0]


def test_trailing_bytes_are_told_unless_bytes_are_limited(log: Path) -> None:
    log.write_bytes(BATCH + BATCH[:40])
    assert dump([log], HEADERS).lines[-1] == f"Found 40 invalid bytes at the end of {log.name}"
    for max_bytes, batches in ((0, 0), (81, 0), (82, 1), (10_000, 1)):
        found = dump([log], DumpOptions(max_bytes=max_bytes))
        assert len(found.lines) == 1 + batches
        assert "invalid bytes" not in found.stdout


@pytest.mark.parametrize("size", range(1, 18))
def test_up_to_17_bytes_are_trailing_whatever_they_are(log: Path, size: int) -> None:
    log.write_bytes(BATCH + bytes(size))
    found = dump([log], HEADERS)
    assert found.lines[-1] == f"Found {size} invalid bytes at the end of {log.name}"
    assert found.problems == []


def test_a_zero_tail_is_a_problem_where_it_starts(log: Path) -> None:
    log.write_bytes(BATCH + bytes(100))
    found = dump([log], HEADERS)
    assert found.lines[1] == BATCH_LINE
    assert found.problems == [f"{log} at byte 82: invalid batch length 0"]


def test_a_wrong_crc_is_shown_and_its_records_are_too(log: Path) -> None:
    damaged = bytearray(BATCH)
    damaged[-16] ^= 1  # in a value
    log.write_bytes(bytes(damaged) + MARKER)
    found = dump([log], DATA)
    assert found.lines[1] == BATCH_LINE.replace("true", "false")
    assert len(found.lines) == 6
    assert found.problems == []


def test_a_broken_record_is_a_problem_and_the_next_batch_is_shown(log: Path) -> None:
    template = BatchHeader.unpack(BATCH)
    broken = seal_batch(template, BATCH[61:81] + b"\x7f")
    log.write_bytes(broken + MARKER)
    found = dump([log], DEEP)
    assert [line[:12] for line in found.lines[1:]] == [
        "baseOffset: ", "| offset: 0 ", "baseOffset: ", "| offset: 7 ",
    ]  # fmt: skip
    assert len(found.problems) == 1
    assert found.problems[0].startswith(f"{log} at byte 0: in the records")


def test_a_magic_of_the_future_is_read_as_magic_2(log: Path) -> None:
    strange = bytearray(BATCH)
    strange[16] = 5
    log.write_bytes(strange)
    assert dump([log], HEADERS).lines[1] == BATCH_LINE.replace("magic: 2", "magic: 5")


def test_a_negative_magic_is_read_as_an_old_one(log: Path) -> None:
    log.write_bytes(struct.pack(">qiIbBqii", 9, 22, 7, -3, 0, 5, -1, -1))
    assert dump([log], HEADERS).lines[1] == (
        "offset: 9 position: 0 CreateTime: 5 size: 34 magic: -3 compresscodec: none crc: 7 "
        "isvalid: false"
    )


def test_an_unknown_codec(log: Path) -> None:
    template = BatchHeader.unpack(BATCH)._replace(attributes=6)
    log.write_bytes(seal_batch(template, b"xx"))
    found = dump([log], DEEP)
    assert "compresscodec: unknown(6)" in found.lines[1]
    assert "unknown codec id 6" in found.problems[0]


def test_a_batch_shorter_than_its_header(log: Path) -> None:
    log.write_bytes(struct.pack(">qiibI", 5, 20, 0, 2, 0) + bytes(11) + BATCH)
    found = dump([log], HEADERS)
    assert found.lines[1].startswith("baseOffset: 5 ")
    assert found.lines[1].endswith("size: 32 magic: 2 compresscodec: none crc: 0 isvalid: false")
    assert found.lines[2] == BATCH_LINE.replace("position: 0", "position: 32")
    log.write_bytes(struct.pack(">qiibI", 5, 20, 0, 2, 0) + bytes(11))
    assert dump([log], HEADERS).problems == [f"{log} at byte 0: file ends inside a batch header"]


def test_windows_and_oversized_batches(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [
        encode_batch([Record(offset, 5, b"k", bytes([65 + offset]) * size)])
        for offset, size in enumerate([3, 150, 10, 800, 3, 2_000, 3])
    ]
    log.write_bytes(b"".join(batches) + BATCH[:30])
    expected = dump([log], DATA)
    assert len(expected.lines) == 1 + 2 * len(batches) + 1
    monkeypatch.setattr(log_values, "WINDOW_BYTES", 100)
    assert dump([log], DATA) == expected
    monkeypatch.setattr(log_values, "BATCH_BYTES_MAX", 500)
    assert dump([log], DATA) == expected


def test_an_oversized_batch_with_a_wrong_crc_is_not_read_whole(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_values, "WINDOW_BYTES", 100)
    monkeypatch.setattr(log_values, "BATCH_BYTES_MAX", 500)
    large = bytearray(encode_batch([Record(0, 5, b"k", b"v" * 900)]))
    large[-5] ^= 1
    log.write_bytes(bytes(large) + MARKER)
    found = dump([log], DATA)
    assert found.lines[1].endswith("isvalid: false")
    assert found.problems == [f"{log} at byte 0: {len(large)} bytes with a wrong CRC"]
    assert found.lines[-1].endswith("coordinatorEpoch: 5")


def test_header_keys_that_are_no_text_are_shown_as_java_does(log: Path) -> None:
    record = Record(0, 1, None, b"v", (Header("AAA", None), Header("b", b"")))
    raw = bytearray(encode_batch([record]))
    at = raw.index(b"AAA")
    raw[at : at + 3] = b"\xed\xa0\x80"  # a surrogate: one replacement in Java, three in Python
    log.write_bytes(raw)
    assert dump([log], DEEP).lines[2].endswith("headerKeys: [\ufffd,b]")


RECORDS = [
    Record(offset, 1_000 + 10 * offset, b"k%d" % (offset % 3), b"v%d" % offset)
    for offset in range(12)
]


@pytest.fixture
def filled(log: Path) -> Path:
    runs = (RECORDS[0:4], RECORDS[4:8], RECORDS[8:12])
    log.write_bytes(
        b"".join(
            encode_batch(run, BatchFields(producer_id=pid, codec=codec))
            for run, pid, codec in zip(
                runs, (5, 6, 5), (Codec.NONE, Codec.ZSTD, Codec.GZIP), strict=True
            )
        )
    )
    return log


@pytest.mark.parametrize(
    ("filters", "batches", "offsets"),
    [
        (Filters(), [0, 4, 8], range(12)),
        (Filters(offset_min=6), [4, 8], range(6, 12)),
        (Filters(offset_end=5), [0, 4], range(5)),
        (Filters(offset_min=4, offset_end=8), [4], range(4, 8)),
        (Filters(timestamp_min=1_050, timestamp_end=1_090), [4, 8], range(5, 9)),
        (Filters(timestamp_end=1_000), [], []),
        (Filters(key=b"k1"), [0, 4, 8], [1, 4, 7, 10]),
        (Filters(key=b"k1", offset_min=5, offset_end=8), [4], [7]),
        (Filters(key=b"nobody"), [], []),
        (Filters(producer_id=5), [0, 8], [*range(4), *range(8, 12)]),
        (Filters(producer_id=7), [], []),
    ],
)
def test_filters(
    filled: Path, filters: Filters, batches: list[int], offsets: list[int] | range
) -> None:
    found = dump([filled], DumpOptions(deep_iteration=True, filters=filters))
    shown = [line.split()[1] for line in found.lines[1:] if line.startswith("baseOffset")]
    assert shown == [str(offset) for offset in batches]
    shown = [line.split()[2] for line in found.lines[1:] if line.startswith("| ")]
    assert shown == [str(offset) for offset in offsets]
    assert found.findings == ""


def test_filters_on_batches_alone_go_by_headers(filled: Path) -> None:
    options = DumpOptions(filters=Filters(offset_min=5, offset_end=6))
    assert [line[:13] for line in dump([filled], options).lines[1:]] == ["baseOffset: 4"]


def test_limit_counts_what_is_asked_for_over_all_files(filled: Path) -> None:
    def shown(options: DumpOptions) -> list[str]:
        return [line[:12] for line in dump([filled, filled], options).stdout.split("\n")]

    dumping, start = f"Dumping {filled}"[:12], "Log starting"
    batch = "baseOffset: "
    assert shown(DumpOptions(limit=0)) == [""]
    assert shown(DumpOptions(limit=2)) == [dumping, start, batch, batch, ""]
    assert shown(DumpOptions(limit=4)) == [
        dumping, start, batch, batch, batch, dumping, start, batch, "",
    ]  # fmt: skip
    assert shown(DumpOptions(limit=1, deep_iteration=True)) == [
        dumping, start, batch, "| offset: 0 ", "",
    ]  # fmt: skip


def test_log_append_time_is_the_batch_s(log: Path) -> None:
    fields = BatchFields(timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=77)
    log.write_bytes(encode_batch(RECORDS[:2], fields))
    assert [line.split()[3:5] for line in dump([log], DEEP).lines[2:]] == [
        ["LogAppendTime:", "77"]
    ] * 2


def test_names(tmp_path: Path) -> None:
    stray = tmp_path / "orders.log"
    stray.write_bytes(BATCH)
    assert dump([stray], HEADERS).problems == [
        f"{stray}: 'orders.log' does not begin with an offset"
    ]
    short = tmp_path / "7.log"
    short.write_bytes(BATCH)
    assert dump([short], HEADERS).lines[0] == "Log starting offset: 7"
    missing = tmp_path / "00000000000000000009.log"
    assert dump([missing], HEADERS).problems == [f"{missing}: No such file or directory"]
    deleted = tmp_path / "00000000000000000000.log.deleted"
    for path in (deleted, tmp_path / "README"):
        found = dump([path], HEADERS)
        assert found.stdout == f"Dumping {path}\n"
        assert found.remarks == [f"Ignoring unknown file {path}"]


def test_marker_epochs_are_signed(log: Path) -> None:
    marker = encode_end_marker(
        EndMarker(ControlType.COMMIT, -1),
        offset=0,
        timestamp=1,
        producer_id=1,
        producer_epoch=0,
        partition_leader_epoch=0,
    )
    log.write_bytes(marker)
    assert dump([log], DEEP).lines[2].endswith("endTxnMarker: COMMIT coordinatorEpoch: -1")


@given(data=st.binary(max_size=300), start=st.sampled_from([b"", BATCH, BATCH[:61], MARKER[:30]]))
def test_any_bytes_are_dumped(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, start: bytes
) -> None:
    log = tmp_path_factory.getbasetemp() / "00000000000000000000.log"
    log.write_bytes(start + data)
    for options in (HEADERS, DATA, OPTIONS["offsets"], OPTIONS["txnlog"], OPTIONS["metadata"]):
        assert dump([log], options).stdout.startswith(f"Dumping {log}\nLog starting offset: 0\n")


@pytest.mark.parametrize("cut", range(len(BATCH) + len(MARKER)))
def test_a_log_cut_anywhere(log: Path, cut: int) -> None:
    log.write_bytes((BATCH + MARKER)[:cut])
    found = dump([log], DATA)
    whole = 3 if cut >= len(BATCH) else 0
    assert found.problems == []
    left = cut - (len(BATCH) if whole else 0)
    assert len(found.lines) == 1 + whole + (left > 0)

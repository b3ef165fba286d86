"""Everything in a partition directory but its `.log`, against Kafka's own dumps of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import CorruptIndexError
from stratalog.format import offset_index, time_index, txn_index
from stratalog.format.checkpoint import (
    decode_leader_epochs,
    decode_offsets,
    encode_leader_epochs,
    encode_offsets,
)
from stratalog.format.directory_metadata import (
    decode_clean_shutdown,
    decode_meta_properties,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_partition_metadata,
)
from stratalog.format.names import (
    FileKind,
    FileState,
    RootFile,
    TopicPartition,
    parse_partition_dir,
    parse_partition_file,
    parse_root_file,
    segment_file_name,
)
from stratalog.format.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from tests.golden.cases import GoldenCase, dump_cases, log_dir_case
from tests.looping import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

CASES = for_each("case", dump_cases())
HAS_JUNK_INDEXES = {"u-badindex"}


def files_of(case: GoldenCase, kind: FileKind) -> Iterator[tuple[Path, int]]:
    """Every file of this kind, with its base offset (0 for an unnumbered one)."""
    for directory in case.partition_dirs():
        for path in sorted(directory.iterdir()):
            file = parse_partition_file(path.name)
            assert file is not None, path
            if file.kind is kind:
                yield path, file.base_offset or 0


def assert_dumped(
    case: GoldenCase, path: Path, line: str, entries: Sequence[tuple[int, ...]]
) -> None:
    """Kafka's dump of this file, if there is one, has a line like `line` for each entry."""
    dump = case.dumps(path.parent).get((path.name, "plain"))
    if dump is None:
        return
    pattern = re.compile(line.replace("N", r"(-?\d+)"), re.MULTILINE)
    expected = [tuple(map(int, match.groups())) for match in pattern.finditer(dump.stdout)]
    if dump.exception is not None:  # the tool gave up there
        assert list(entries[: len(expected)]) == expected
    elif entries:
        assert list(entries) == expected
    else:  # of an index that is all zero tail it prints slot 0
        assert len(expected) <= 1


@CASES
def test_every_file_and_directory_name_is_known(case: GoldenCase) -> None:
    for directory in case.partition_dirs():
        parsed = parse_partition_dir(directory.name)
        assert parsed is not None
        assert str(parsed.topic_partition) == directory.name
        for path in directory.iterdir():
            file = parse_partition_file(path.name)
            assert file is not None
            assert file.state is FileState.LIVE
            if file.base_offset is not None:
                assert segment_file_name(file.base_offset, file.kind) == path.name


@pytest.mark.slow
@CASES
def test_offset_indexes(case: GoldenCase) -> None:
    for path, base_offset in files_of(case, FileKind.OFFSET_INDEX):
        buf = path.read_bytes()
        entries = offset_index.count_valid_entries(buf)
        log_bytes = path.with_suffix(".log").stat().st_size
        if case.name in HAS_JUNK_INDEXES and "before" in path.parts:
            with pytest.raises(CorruptIndexError):
                offset_index.check_entries(buf, entries, log_bytes=log_bytes)
            continue
        offset_index.check_entries(buf, entries, log_bytes=log_bytes)
        read = list(offset_index.read_entries(buf, entries, base_offset))
        packed = b"".join(entry.pack(base_offset=base_offset) for entry in read)
        assert packed == buf[: len(packed)]
        assert not any(buf[len(packed) :])
        assert_dumped(case, path, "^offset: N position: N$", read)


@pytest.mark.slow
@CASES
def test_time_indexes(case: GoldenCase) -> None:
    for path, base_offset in files_of(case, FileKind.TIME_INDEX):
        buf = path.read_bytes()
        entries = time_index.count_valid_entries(buf)
        time_index.check_entries(buf, entries)
        read = list(time_index.read_entries(buf, entries, base_offset))
        packed = b"".join(entry.pack(base_offset=base_offset) for entry in read)
        assert packed == buf[: len(packed)]
        assert not any(buf[len(packed) :])
        assert_dumped(case, path, "^timestamp: N offset: N$", read)


@CASES
def test_transaction_indexes(case: GoldenCase) -> None:
    line = "^version: N producerId: N firstOffset: N lastOffset: N lastStableOffset: N$"
    for path, base_offset in files_of(case, FileKind.TXN_INDEX):
        buf = path.read_bytes()
        txn_index.check_entries(buf, base_offset)
        read = list(txn_index.read_entries(buf))
        assert b"".join(txn.pack() for txn in read) == buf
        assert_dumped(case, path, line, read)


@pytest.mark.slow
@CASES
def test_producer_snapshots(case: GoldenCase) -> None:
    for path, _ in files_of(case, FileKind.PRODUCER_SNAPSHOT):
        buf = path.read_bytes()
        entries = decode_snapshot(buf)
        assert encode_snapshot(entries) == buf
        text = case.dumps(path.parent).get((path.name, "plain"))
        if text is not None:
            assert [snapshot_line(entry) for entry in entries] == text.stdout.splitlines()[1:]


def snapshot_line(entry: ProducerEntry) -> str:
    """The line of Kafka's tool for one producer."""
    open_txn = entry.open_txn_first_offset
    line = (
        f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} "
        f"coordinatorEpoch: {entry.coordinator_epoch} currentTxnFirstOffset: "
        f"{'OptionalLong.empty' if open_txn is None else f'OptionalLong[{open_txn}]'} "
        f"lastTimestamp: {entry.timestamp} "
    )
    if entry.has_batch:
        line += (
            f"firstSequence: {entry.first_sequence} lastSequence: {entry.last_sequence} "
            f"lastOffset: {entry.last_offset} offsetDelta: {entry.offset_delta} "
            f"timestamp: {entry.timestamp}"
        )
    return line


@CASES
def test_leader_epochs_and_partition_metadata(case: GoldenCase) -> None:
    for path, _ in files_of(case, FileKind.LEADER_EPOCHS):
        buf = path.read_bytes()
        entries = decode_leader_epochs(buf)
        assert list(entries) == sorted(entries)
        assert encode_leader_epochs(entries) == buf or (buf, entries) == (b"", ())
    for path, _ in files_of(case, FileKind.PARTITION_METADATA):
        buf = path.read_bytes()
        assert encode_partition_metadata(decode_partition_metadata(buf)) == buf


def test_root_files_of_a_log_directory() -> None:
    root = log_dir_case().root
    found = {path.name for path in root.iterdir() if path.is_file()}
    assert all(parse_root_file(name) for name in found)

    for file in (RootFile.RECOVERY_POINTS, RootFile.HIGH_WATERMARKS):
        raw = (root / file.value).read_bytes()
        offsets = decode_offsets(raw)
        assert len(offsets) == 36
        assert offsets[TopicPartition("txn", 0)] == 137
        assert encode_offsets(offsets) == raw
    assert decode_offsets((root / RootFile.LOG_START_OFFSETS.value).read_bytes()) == {}
    assert decode_offsets((root / RootFile.CLEANER_OFFSETS.value).read_bytes()) == {}

    raw = (root / RootFile.CLEAN_SHUTDOWN.value).read_bytes()
    epoch = decode_clean_shutdown(raw)
    assert epoch == 7
    assert encode_clean_shutdown(epoch) == raw
    meta = decode_meta_properties((root / RootFile.META_PROPERTIES.value).read_bytes())
    assert (meta.version, meta.node_id) == (1, 1)

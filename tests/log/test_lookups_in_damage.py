"""Lookups in damaged logs: damage costs the records in it, never those behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import CorruptBatchError, CorruptError
from stratalog.format.index_entries import IndexBuilder
from stratalog.format.record import encode_batch
from stratalog.log.partition_view import PartitionView
from tests.golden.cases import GoldenCase
from tests.golden.expected import directory_to_read
from tests.log.building import (
    batches_of,
    copy_partition,
    drop_indexes,
    log_name,
    plain_records,
    segment_paths,
    write_partition,
)
from tests.log.damaging import flip

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.record import Record


@pytest.mark.parametrize("with_indexes", [True, False], ids=["with indexes", "without"])
def test_lookups_behind_damage(with_indexes: bool, tmp_path: Path) -> None:
    """Damage in a log costs the records in it, never those behind it."""
    path = copy_partition(directory_to_read(GoldenCase("v1-none")), tmp_path)
    if not with_indexes:
        drop_indexes(path)
    file = segment_paths(path)[1]
    batches = batches_of(file.read_bytes())
    damaged = batches[1]
    with file.open("r+b") as log:
        log.seek(damaged.position)
        log.write(b"\xff" * 20)
    for batch in batches[2:]:
        for record in batch.records:
            with PartitionView(path) as view:
                found = view.locate(record.offset)
                assert found is not None
                assert found.record == record
                assert next(view.read(record.offset)) == record
                assert view.find_time(record.timestamp) == (record.offset, record.timestamp)
    with PartitionView(path) as view, pytest.raises(CorruptBatchError) as caught:
        view.locate(damaged.first_offset)
    assert (caught.value.path, caught.value.position) == (file, damaged.position)


@pytest.mark.slow
@pytest.mark.parametrize("with_indexes", [True, False], ids=["with indexes", "without"])
def test_lookups_with_any_bit_of_a_header_flipped(with_indexes: bool, tmp_path: Path) -> None:
    """The right record or a typed error, never another record, never None for one that is there.

    No checksum covers the base offset. Where its last bits are flipped the batch takes the place of
    its neighbours, and a lookup that meets it alone cannot know.
    """
    records = plain_records(0, 12)
    raw = b"".join(encode_batch(records[at : at + 2]) for at in range(0, 12, 2))
    path = write_partition(tmp_path / "t-0", {0: raw})
    if with_indexes:
        _write_indexes(path / log_name(0))
    damaged = batches_of(raw)[2]
    others = [record for record in records if record not in damaged.records]
    wrong = []
    for position in range(damaged.position, damaged.position + 61):
        for bit in range(2 if position == damaged.position + 7 else 0, 8):
            flip(path / log_name(0), position, bit)
            for record in others[1::2]:
                if not _is_found(path, record):
                    wrong.append((position - damaged.position, bit, record.offset))
            flip(path / log_name(0), position, bit)
    assert wrong == []


def _write_indexes(log: Path) -> None:
    """With an entry for every batch but the first, as `index.interval.bytes=0` gives."""
    builder = IndexBuilder(0, interval_bytes=0)
    for batch in batches_of(log.read_bytes()):
        newest = max(record.timestamp for record in batch.records)
        builder.add(batch.position, len(batch.raw), batch.next_offset - 1, newest)
    builder.finish()
    log.with_suffix(".index").write_bytes(builder.offset_index)
    log.with_suffix(".timeindex").write_bytes(builder.time_index)


def _is_found(path: Path, record: Record) -> bool:
    with PartitionView(path) as view:
        try:
            by_offset = view.locate(record.offset)
            if by_offset is None or by_offset.record != record:
                return False
        except CorruptError:
            pass
        try:
            by_time = view.find_time(record.timestamp)
        except CorruptError:
            return True
        return by_time == (record.offset, record.timestamp)


def test_transaction_opened_behind_damage_is_still_open(tmp_path: Path) -> None:
    """Or a reader of committed records would see what nobody committed."""
    path = copy_partition(directory_to_read(GoldenCase("txn")), tmp_path)
    for snapshot in path.glob("*.snapshot"):
        snapshot.unlink()
    last = segment_paths(path)[-1]
    batches = batches_of(last.read_bytes())
    opening = next(at for at, batch in enumerate(batches) if batch.next_offset > 130)
    with last.open("r+b") as log:
        log.seek(batches[opening - 2].position)
        log.write(b"\xff" * 20)
    with PartitionView(path) as view:
        assert view.last_stable_offset == 130

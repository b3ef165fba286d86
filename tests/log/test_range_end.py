"""Where a range ends beside damage: what lies behind the end is nobody's business."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import CorruptBatchError
from stratalog.format.batch import MAGIC_AT
from stratalog.format.record import encode_batch
from stratalog.log.partition_view import PartitionView
from tests.log.building import log_name, plain_records, write_partition
from tests.log.readers import Reader, over_readers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIRST, LAST = plain_records(0, 2), plain_records(9, 1)


def damaged_magic(raw: bytearray) -> None:
    """Now it is a compressed set of the old format, which does not tell its first offset."""
    raw[MAGIC_AT], raw[MAGIC_AT + 1] = 1, 1


def damaged_value(raw: bytearray) -> None:
    raw[-3] ^= 1


def partition(path: Path, damaged_first: int, damage: Callable[[bytearray], None]) -> PartitionView:
    """Records 0 and 1, then a damaged batch of two, then record 9."""
    damaged = bytearray(encode_batch(plain_records(damaged_first, 2)))
    damage(damaged)
    raw = encode_batch(FIRST) + damaged + encode_batch(LAST)
    return PartitionView(write_partition(path / "t-0", {0: raw}))


@over_readers
@pytest.mark.parametrize("damage", [damaged_magic, damaged_value])
def test_damage_behind_the_end(
    reader: Reader, tmp_path: Path, damage: Callable[[bytearray], None]
) -> None:
    view = partition(tmp_path, 2, damage)
    assert list(reader(view, 0, 2)) == FIRST
    assert list(reader(view, 0, 2, on_skip=lambda skipped: pytest.fail(str(skipped)))) == FIRST


@over_readers
def test_damage_that_claims_to_lie_behind_the_end(reader: Reader, tmp_path: Path) -> None:
    """Its header says 3, but a damaged header may say anything: 2 may have been in there."""
    view = partition(tmp_path, 3, damaged_value)
    with pytest.raises(CorruptBatchError):
        list(reader(view, 0, 3))


@over_readers
def test_gap_at_the_end(reader: Reader, tmp_path: Path) -> None:
    view = partition(tmp_path, 3, lambda _: None)
    assert list(reader(view, 0, 3)) == FIRST


@over_readers
def test_bytes_left_of_a_cut_batch(reader: Reader, tmp_path: Path) -> None:
    path = write_partition(tmp_path / "t-0", {0: encode_batch(FIRST) + bytes(7)})
    (path / log_name(9)).write_bytes(encode_batch(LAST))
    with pytest.raises(CorruptBatchError, match=r"ends inside a batch \(7 bytes are left\)"):
        list(reader(PartitionView(path)))

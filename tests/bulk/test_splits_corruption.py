"""Splits by records in a damaged log: what lies at and behind the damage is in one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.bulk.read_task import ReadTask
from stratalog.errors import CorruptBatchError
from stratalog.spark.options import plan_read
from tests.bulk.reading import RECORDS
from tests.handmade import plain, write_segment

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.bulk.splits import SplitPlan

DAMAGED = range(30, 40)


@pytest.fixture(params=[(8, b"\xff" * 4), (16, b"\x09")], ids=["length", "magic"])
def log_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Ten batches of ten records; the header of the fourth is damaged."""
    at, junk = request.param
    batches = [plain(offset, 10) for offset in range(0, 100, 10)]
    at += sum(map(len, batches[:3]))
    data = bytearray(b"".join(batches))
    data[at : at + len(junk)] = junk
    write_segment(tmp_path / "t-0", 0, bytes(data))
    return tmp_path


def planned(log_dir: Path, records_max: int) -> SplitPlan:
    options = {"path": str(log_dir), "subscribe": "t"}
    return plan_read({**options, "maxRecordsPerPartition": str(records_max)})


def offsets(plan: SplitPlan, *, skips_corruption: bool) -> list[int]:
    task = ReadTask(RECORDS, skips_corruption=skips_corruption)
    batches = (batch for split in plan.splits for batch in task.read(split))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize("records_max", [1, 3, 7, 10, 33, 100])
def test_what_is_behind_damage_is_read(log_dir: Path, records_max: int) -> None:
    found = offsets(planned(log_dir, records_max), skips_corruption=True)
    assert found == [offset for offset in range(100) if offset not in DAMAGED]


@pytest.mark.parametrize("records_max", [1, 3, 7, 10, 33, 100])
def test_damage_is_an_error(log_dir: Path, records_max: int) -> None:
    with pytest.raises(CorruptBatchError):
        offsets(planned(log_dir, records_max), skips_corruption=False)

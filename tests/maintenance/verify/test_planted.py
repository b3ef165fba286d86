"""Dozens of faults, each planted in what a real Kafka wrote: found, by its name, at its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.maintenance.verify.directory import verify_partition
from stratalog.maintenance.verify.findings import Fault, Severity
from tests.golden.cases import GOLDEN_DIR
from tests.handmade import plain, write_segment
from tests.log.building import copy_partition
from tests.maintenance.verify.index_plants import INDEX_PLANTS
from tests.maintenance.verify.log_plants import LOG_PLANTS
from tests.maintenance.verify.producer_plants import PRODUCER_PLANTS
from tests.maintenance.verify.record_plants import RECORD_PLANTS
from tests.maintenance.verify.side_file_plants import SIDE_FILE_PLANTS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.maintenance.verify.planting import Plant

PLANTS = [
    *LOG_PLANTS,
    *RECORD_PLANTS,
    *INDEX_PLANTS,
    *PRODUCER_PLANTS,
    *SIDE_FILE_PLANTS,
]


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_a_planted_fault_is_found_at_its_place(plant: Plant, tmp_path: Path) -> None:
    (source,) = (GOLDEN_DIR / plant.case).glob("*-0")
    partition = copy_partition(source, tmp_path)
    spot = plant.do(partition)

    found = verify_partition(partition, threads=1).findings

    places = [
        (finding.position, finding.severity)
        for finding in found
        if finding.code == plant.fault.code and finding.path == str(partition / spot.file)
    ]
    assert (spot.position, plant.severity) in places, "\n".join(map(str, found))


@pytest.mark.parametrize("plant", LOG_PLANTS[:20], ids=str)
def test_damage_in_one_batch_is_one_error(plant: Plant, tmp_path: Path) -> None:
    """Not a flood: the indexes, epochs and producers around it are not blamed."""
    (source,) = (GOLDEN_DIR / plant.case).glob("*-0")
    partition = copy_partition(source, tmp_path)
    plant.do(partition)
    report = verify_partition(partition, threads=1)
    assert report.count_of(Severity.ERROR) <= 4, "\n".join(map(str, report.findings))


@pytest.mark.parametrize(("next_base", "highest"), [(None, 2147483747), (300, 299)])
def test_an_offset_too_far_above_the_base_offset(
    next_base: int | None, highest: int, tmp_path: Path
) -> None:
    """Old cleaners grouped segments into one whose offsets do not fit an index."""
    path = tmp_path / "t-0"
    first = plain(100)
    write_segment(path, 100, first, plain(100 + (1 << 31), 1))
    if next_base is not None:
        write_segment(path, next_base, plain(next_base))
    (found,) = (
        finding
        for finding in verify_partition(path, threads=1).findings
        if finding.code == Fault.OFFSET_OUTSIDE_SEGMENT.code
    )
    assert found.position == len(first)
    assert found.what == (
        "offsets 2147483748 to 2147483748 are outside the segment, which can have offsets 100 to "
        f"{highest}"
    )

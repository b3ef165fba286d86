"""Copies of golden partitions, and what is in them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from stratalog.log.partition_view import PartitionView
from tests.golden.cases import GoldenCase

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.record import Record


def copy_of(case: str, to: Path) -> Path:
    """A copy of the partition of a golden case, in a directory that is created if need be."""
    to.mkdir(exist_ok=True)
    shutil.copytree(GoldenCase(case).partition_dir, to / f"{case}-0")
    return to / f"{case}-0"


def records_of(partition: Path) -> dict[int, Record]:
    with PartitionView(partition) as view:
        return {record.offset: record for record in view.read()}


def files_of(partition: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in partition.iterdir() if path.is_file()}

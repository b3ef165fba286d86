"""Commands on the log directory of a KRaft broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.command import inside, stratalog
from tests.golden_metadata import broker_dir

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return broker_dir(tmp_path / "data")


def test_compact_without_names_leaves_the_metadata_log_alone(directory: Path) -> None:
    metadata = directory / "__cluster_metadata-0"
    before = {path.name: path.read_bytes() for path in metadata.iterdir()}
    result = stratalog("compact", directory)
    assert (result.stderr, result.status) == ("", 0)
    assert {path.name: path.read_bytes() for path in metadata.iterdir()} == before


def test_plans_without_names_leave_the_metadata_log_out(directory: Path) -> None:
    config = ("-c", "cleanup.policy=compact")
    rows = inside("compact", directory, "--dry-run", "--json", *config).rows
    assert "__cluster_metadata" not in {row.get("topic") for row in rows}

"""Fixtures of a log that is written, and of both ways to validate what is appended to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.log.validation import LeaderValidator
from tests.log.written_log import Setup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.log.close()


@pytest.fixture
def log(setup: Setup) -> PartitionLog:
    return setup.log


@pytest.fixture(params=[False, True], ids=["readable", "compiled"])
def leader(request: pytest.FixtureRequest) -> LeaderValidator:
    return LeaderValidator(compiled=request.param)

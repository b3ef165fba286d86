from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.broker.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data") as broker:
        yield broker

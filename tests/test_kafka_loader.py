"""The model of Kafka's loader, beside what real brokers left on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.golden.cases import GOLDEN_DIR, LOG_DIR_NAME, GoldenCase, all_cases
from tests.kafka_loader import LoadedPartition, changes_on_start

if TYPE_CHECKING:
    from pathlib import Path

CLOSED = [case for case in all_cases() if not case.is_unclean and case.name != LOG_DIR_NAME]
KILLED = [case for case in all_cases() if case.is_unclean]
CHANGED = {
    # Kafka 0.9 knew no time index.
    "real09-gzip": {"timeindex: missing: created"},
    "real09-none": {"timeindex: missing: created"},
    "real09-snappy": {"timeindex: missing: created"},
}
"""What a newer broker changes in directories that were closed cleanly."""


@pytest.mark.parametrize("case", CLOSED, ids=str)
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_nothing_is_changed_in_what_a_broker_closed(case: GoldenCase, is_clean: bool) -> None:
    loaded = LoadedPartition(case.partition_dir, is_clean=is_clean).load()
    expected = CHANGED.get(case.name, set())
    assert {each for each in loaded.changes if not each.endswith(tuple(expected))} == set()
    assert bool(loaded.changes) == bool(expected)


def test_nothing_is_changed_in_a_whole_directory() -> None:
    assert changes_on_start(GOLDEN_DIR / LOG_DIR_NAME, is_clean=True) == []


def sizes(path: Path) -> dict[str, int]:
    return {log.name: log.stat().st_size for log in path.glob("*/*.log")}


@pytest.mark.parametrize("case", KILLED, ids=str)
def test_logs_are_truncated_where_a_broker_truncated_them(case: GoldenCase) -> None:
    before, after = sizes(case.root / "before"), sizes(case.root / "after")
    (path,) = (case.root / "before").iterdir()
    loaded = LoadedPartition(path, is_clean=False).load()
    expected = {
        f"{path.name}/{name}: truncated to {size} bytes"
        for name, size in after.items()
        if size != before[name]
    }
    assert {each for each in loaded.changes if ".log: " in each} == expected
    assert loaded.log_end_offset == case.loaddir["logEndOffset"]

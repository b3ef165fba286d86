"""The figures of a report."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.bulk.report_data import PHASES, collect
from stratalog.config import BrokerConfig
from stratalog.partitions.settings import SettingsFinder
from tests.golden.cases import GOLDEN_DIR, GoldenCase

if TYPE_CHECKING:
    from pathlib import Path

NOW_MS = 1_795_000_000_000
FINDER = SettingsFinder(BrokerConfig())


def partition(name: str) -> Path:
    return GOLDEN_DIR / name / f"{name}-0"


def test_open_transactions_are_found_and_overdue_ones_marked() -> None:
    (topic,) = collect([partition("txn")], FINDER, now_ms=NOW_MS, is_quick=True).topics
    (found,) = topic.partitions
    (txn,) = found.open_transactions
    assert (txn.producer_id, txn.first_offset, txn.is_overdue) == (5, 130, True)
    assert found.last_stable_offset == 130
    soon = txn.last_timestamp + 60_000
    (topic,) = collect([partition("txn")], FINDER, now_ms=soon, is_quick=True).topics
    assert not topic.partitions[0].open_transactions[0].is_overdue


@pytest.mark.slow
def test_figures_of_headers_and_records_agree() -> None:
    facts = collect([partition("multiseg"), partition("java-lz4")], FINDER, now_ms=NOW_MS)
    assert [topic.topic for topic in facts.topics] == ["multiseg", "java-lz4"]
    for found in facts.partitions:
        assert found.stats is not None
        assert found.stats.facts.records == found.headers.records
        assert found.stats.facts.last_timestamp == found.headers.max_timestamp
        assert sum(found.headers.batch_sizes.values()) == found.headers.batches
        assert found.segments == len(found.headers.segments)
        assert found.stats.keys.top_records >= 1
        assert sum(n for _, n in found.stats.keys.by_records) == found.stats.keys.keys
    assert facts.verified is not None
    assert facts.problems == ()


@pytest.mark.parametrize("phase", range(1, len(PHASES)), ids=PHASES[1:])
def test_a_partition_that_goes_meanwhile_does_not_stop_the_others(
    phase: int, tmp_path: Path
) -> None:
    for name in ("multiseg", "txn"):
        shutil.copytree(partition(name), tmp_path / f"{name}-0")

    def on_phase(number: int, _: int) -> None:
        if number == phase:
            shutil.rmtree(tmp_path / "txn-0")

    paths = [tmp_path / "multiseg-0", tmp_path / "txn-0"]
    facts = collect(paths, FINDER, now_ms=NOW_MS, on_phase=on_phase)
    assert facts.topics[0].topic == "multiseg"
    assert facts.topics[0].records == 1500
    assert all(text.startswith("txn-0: ") for text in facts.problems)
    assert facts.problems


def test_a_flipped_bit_in_a_timestamp_is_not_the_future() -> None:
    corrupt = GOLDEN_DIR / "u-badcrc" / "before" / "u-badcrc-0"
    (found,) = collect([corrupt], FINDER, now_ms=NOW_MS, is_quick=True).partitions
    assert (found.headers.future_batches, found.headers.late_batches) == (0, 0)
    assert found.headers.corrupt_bytes == 129


def test_a_corrupt_log_is_counted_by_its_headers(tmp_path: Path) -> None:
    root = GoldenCase("u-badcrc").copy_to(tmp_path)
    facts = collect([root / "before" / "u-badcrc-0"], FINDER, now_ms=NOW_MS)
    (found,) = facts.partitions
    assert found.stats is None
    assert found.headers.records > 200
    assert "CRC mismatch" in facts.problems[0]

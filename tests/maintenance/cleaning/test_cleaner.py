"""Whole rounds of the cleaner against Kafka's, file by file."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.format.checkpoint import encode_offsets
from stratalog.format.names import RootFile, TopicPartition
from stratalog.maintenance.cleaning import offset_map
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from tests.maintenance.cleaning.batch_contents import contents
from tests.maintenance.cleaning.cleaning_cases import indexes_of, opened, over_cases, rounds_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.plan import CleaningPlan, CleaningResult
    from tests.golden.cases import CompactionCase
    from tests.maintenance.cleaning.cleaning_cases import GoldenRound


@pytest.fixture(params=["marks", "no marks"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bit for each dirty offset, and with a look at the map for each record."""
    if request.param == "no marks":
        monkeypatch.setattr(offset_map, "MARKS_BYTES_MAX", -1)


@pytest.mark.slow
@over_cases
@pytest.mark.usefixtures("_both_ways")
def test_kafkas_rounds(
    case: CompactionCase, compaction_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    slots = case.case["cleaner_config"]["offset_map_slots"]
    for golden in rounds_of(case, compaction_dir(case.name)):
        path = tmp_path / f"{golden.told['round']}" / golden.before.name
        copy_of(golden.before, path)
        with opened(golden, path, case) as log:
            plan = plan_cleaning(
                cleaner_log(log, golden.told["checkpoint_before"]), golden.config, golden.now_ms
            )
            check_plan(golden, plan)
            if golden.was_cleaned:
                result = Cleaner(24 * slots).clean(log, plan)
                log.maintenance.remove_discarded(golden.now_ms, at_once=True)
                check_result(golden, result)
                check_files(golden, path, log)


def check_plan(golden: GoldenRound, plan: CleaningPlan) -> None:
    told = golden.told
    assert plan.first_dirty_offset == told["first_dirty_offset"]
    assert plan.first_uncleanable_offset == told["first_uncleanable_offset"]
    assert plan.is_selected == told["decision"]["selected_by_manager"]


def check_result(golden: GoldenRound, result: CleaningResult) -> None:
    told, stats = golden.told, golden.told["stats"]
    assert result.end_offset == told["end_dirty_offset"] == told["checkpoint_after"]
    assert golden.after is not None
    checkpoint = golden.after.parent / RootFile.CLEANER_OFFSETS.value
    cleaned = {TopicPartition.parse(golden.after.name): result.end_offset}
    assert encode_offsets(cleaned) == checkpoint.read_bytes()
    assert [list(group) for group in result.groups] == told["groups"]
    assert result.map_entries == told["offset_map_entries"]
    assert result.bytes_read == stats["bytes_read"]
    assert result.records_kept == stats["messages_written"]
    assert result.records_without_key == stats["invalid_messages_read"]


def check_files(golden: GoldenRound, path: Path, log: PartitionLog) -> None:
    """Names and contents, but for what our indexes know more than Kafka's."""
    assert golden.after is not None
    expected = {file.name: file for file in golden.after.iterdir()}
    log.close()
    found = {file.name: file for file in path.iterdir()}
    # A closed log leaves a snapshot at its end; Kafka's was not closed when it was copied.
    end_snapshot = f"{log.log_end_offset:020d}.snapshot"
    assert found.keys() - {end_snapshot} == expected.keys() - {end_snapshot}
    rewritten = {group[0] for group in golden.told["groups"]}
    for name, file in found.items():
        if name == end_snapshot:
            continue
        raw, kafkas = file.read_bytes(), expected[name].read_bytes()
        base, _, kind = name.partition(".")
        if kind == "log":
            assert list(contents(raw)) == list(contents(kafkas)), name
            assert file.stat().st_mtime_ns == expected[name].stat().st_mtime_ns
        elif kind in {"index", "timeindex"} and int(base) in rewritten:
            log_file = found[f"{base}.log"].read_bytes()
            index = indexes_of(log_file, int(base), golden.config.index_interval_bytes)
            assert raw == getattr(index, {"index": "offset_index"}.get(kind, "time_index")), name
        elif kind != "snapshot":
            assert raw == kafkas, name


def copy_of(source: Path, target: Path) -> None:
    shutil.copytree(source, target)  # with their times

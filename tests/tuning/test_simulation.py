"""A replay predicts what writing gives: segments, the reasons for rolls, and index entries.

The truth is what a log writes from the same batches under the same settings, and what Kafka wrote.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from stratalog.bulk.survey import SurveyTask, survey_partition
from stratalog.config import LogConfig
from stratalog.format.batch_table import scan_batches
from stratalog.format.index_entries import after_batch
from stratalog.format.kernels.simulation import bucket_value
from stratalog.format.names import TopicPartition
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.maintenance.retention import plan_retention, retention_log_of_view
from stratalog.storage.disk import Disk
from stratalog.storage.roll import RollReason
from stratalog.tuning.simulation import LogSummary, Replay, sum_of_logs
from tests.effort import scaled
from tests.golden.cases import GoldenCase, all_cases
from tests.golden.writing import config_of, is_cleaned, partition_of
from tests.handmade import Head, Rec, batch, write_segment
from tests.looping import for_each
from tests.opening import UNSYNCED

if TYPE_CHECKING:
    from stratalog.tuning.simulation import SimulatedLog

NOW_MS = 1_800_000_000_000
START_MS = NOW_MS - 30 * 86_400_000

CONFIGS = [
    {},
    {"segment.bytes": "20000"},
    {"segment.bytes": "100000"},
    {"segment.bytes": "65536", "index.interval.bytes": "0"},
    {"segment.bytes": "65536", "index.interval.bytes": "100"},
    {"segment.bytes": "65536", "index.interval.bytes": "1024"},
    {"segment.bytes": "65536", "index.interval.bytes": "2048"},
    {"segment.bytes": "65536", "index.interval.bytes": "16384"},
    {"segment.ms": "3600000"},
    {"segment.ms": "60000"},
    {"segment.ms": "1"},
    {"segment.ms": "86400000", "segment.bytes": "50000"},
    {"index.interval.bytes": "500", "segment.index.bytes": "96"},
    {"index.interval.bytes": "500", "segment.index.bytes": "120"},
    {"index.interval.bytes": "0", "segment.index.bytes": "1000"},
    {"index.interval.bytes": "0", "segment.index.bytes": "4"},
    {"index.interval.bytes": "300", "segment.index.bytes": "4096", "segment.ms": "7200000"},
    {"cleanup.policy": "compact", "max.compaction.lag.ms": "600000"},
    {"cleanup.policy": "compact", "segment.bytes": "30000", "min.compaction.lag.ms": "60000"},
    {"cleanup.policy": "compact,delete", "segment.bytes": "16384"},
    {"segment.bytes": "16384", "segment.ms": "1800000", "segment.index.bytes": "64"},
    {"segment.bytes": "1048576", "index.interval.bytes": "8192", "segment.index.bytes": "240"},
    {"segment.bytes": "9000", "index.interval.bytes": "4096", "segment.ms": "300000"},
    {"segment.bytes": "262144", "index.interval.bytes": "2000", "segment.index.bytes": "2000"},
]
"""Each of the four limits rolls some of them; a few are hit by several."""


class Written(NamedTuple):
    """A segment on disk."""

    base_offset: int
    size_bytes: int
    offset_entries: int
    time_entries: int


@cache
def many_batches(seed: int = 1) -> tuple[bytes, ...]:
    """Batches of all sizes, with gaps between some, and times that mostly grow."""
    rng = random.Random(seed)
    offset, time_ms = 0, START_MS
    found = []
    for _ in range(200):
        count = rng.choice((1, 1, 2, 5, 30))
        records = [
            Rec(n, n, b"k%d" % n, rng.randbytes(rng.choice((0, 9, 200)))) for n in range(count)
        ]
        late = rng.randrange(200_000) if rng.random() < 0.1 else 0
        found.append(batch(offset, records, Head(time_ms - late)))
        offset += count + (rng.randrange(50) if rng.random() < 0.05 else 0)
        time_ms += rng.choice((0, 1, 500, 60_000, 900_000))
    return tuple(found)


def write(path: Path, batches: tuple[bytes, ...], config: LogConfig) -> list[Written]:
    """What a log writes from these batches, as a follower that gets them one by one."""
    first = int.from_bytes(batches[0][:8])
    disk = Disk(UNSYNCED)
    point = LoadPoint(log_start_offset=first)
    with open_log(path, config, disk=disk, now_ms=lambda: NOW_MS, point=point) as log:
        for each in batches:
            log.append_as_follower(each)
    return on_disk(path)


def on_disk(path: Path) -> list[Written]:
    return [
        Written(
            int(log.stem),
            log.stat().st_size,
            log.with_suffix(".index").stat().st_size // 8,
            log.with_suffix(".timeindex").stat().st_size // 12,
        )
        for log in sorted(path.glob("*.log"))
    ]


def simulate(path: Path, *configs: LogConfig, now_ms: int = NOW_MS) -> tuple[SimulatedLog, ...]:
    return survey_partition(SurveyTask(path, 0, configs, now_ms)).simulated


def check_plans(path: Path, simulated: SimulatedLog) -> None:
    """Retention and the cleaner plan the same for the files."""
    config = simulated.config
    with PartitionView(path) as view:
        retention = plan_retention(retention_log_of_view(view, NOW_MS), config, NOW_MS)
        cleaning = plan_cleaning(cleaner_log(view, None), config, NOW_MS)
    assert simulated.retention.deleted_bytes == retention.deleted_bytes
    assert simulated.retention.deleted_segments == len(retention.deleted)
    if simulated.compaction is not None:
        assert simulated.compaction.is_eligible == cleaning.is_selected
        assert simulated.compaction.cleanable_bytes == cleaning.cleanable_bytes
        assert simulated.compaction.reasons == cleaning.reasons


def shape_of(log: SimulatedLog) -> list[Written]:
    return [
        Written(each.base_offset, each.size_bytes, each.offset_entries, each.time_entries)
        for each in log.segments
    ]


@pytest.mark.slow
@for_each("seed", range(scaled(1)))
def test_a_replay_predicts_what_writing_gives(seed: int, tmp_path: Path) -> None:
    batches = many_batches(seed)
    source = tmp_path / "source-0"
    write_segment(source, 0, *batches)
    # Index files of 10 MiB, Kafka's default, take their time to be made.
    smaller = {"segment.index.bytes": "65536"}
    configs = [LogConfig.parse({**(smaller if each else {}), **each}) for each in CONFIGS]
    reasons: set[RollReason] = set()
    for number, simulated in enumerate(simulate(source, *configs)):
        written = write(tmp_path / f"t-{number}", batches, simulated.config)
        assert shape_of(simulated) == written, CONFIGS[number]
        rolls = sum_of_logs([simulated]).rolls
        assert rolls.total() == len(written) - 1
        reasons |= set(rolls)
        check_plans(tmp_path / f"t-{number}", simulated)
    assert reasons == set(RollReason) - {RollReason.OFFSET_OVERFLOW}


@pytest.mark.slow
@for_each("case", [case for case in all_cases() if not is_cleaned(case)])
def test_a_replay_predicts_the_files_that_kafka_wrote(case: GoldenCase) -> None:
    if case.name.startswith("real09") or case.name in {"v0-none", "v1-none", "v1-logappend"}:
        pytest.skip("an old Kafka indexed whole appends, not batches")
    if case.name == "epochs":
        pytest.skip("the broker was restarted, and counted bytes from zero again")
    path = partition_of(case)
    (simulated,) = simulate(path, config_of(case))
    assert shape_of(simulated) == on_disk(path)


def test_offsets_that_do_not_fit_a_segment_roll_it(tmp_path: Path) -> None:
    far = (1 << 31) + 5
    batches = (
        batch(0, [Rec(0, 0, b"k", b"v")]),
        batch(far, [Rec(0, 0, b"k", b"v")]),
        batch(far + 1, [Rec(0, 0, b"k", b"v")]),
    )
    source = tmp_path / "source-0"
    with open_log(source, LogConfig(), disk=Disk(UNSYNCED), now_ms=lambda: NOW_MS) as log:
        for each in batches:
            log.append_as_follower(each)
    (simulated,) = simulate(source, LogConfig())
    assert shape_of(simulated) == on_disk(source)
    assert sum_of_logs([simulated]).rolls == {RollReason.OFFSET_OVERFLOW: 1}


def test_batches_may_come_in_any_chunks() -> None:
    rows = scan_batches(b"".join(many_batches())).rows
    config = LogConfig.parse({"segment.bytes": "30000", "index.interval.bytes": "700"})
    frame = LogSummary(TopicPartition("t", 0), Path("t-0"), 0, 1 << 40, None, NOW_MS)
    whole, pieces = Replay(config, 0), Replay(config, 0)
    whole.add(rows)
    for part in np.array_split(rows, 37):
        pieces.add(np.ascontiguousarray(part))
    assert whole.finish(frame) == pieces.finish(frame)


def test_scan_distance_is_what_a_lookup_of_every_offset_passes(tmp_path: Path) -> None:
    """By the readable rule for entries, and a search that is as simple as can be."""
    batches = many_batches()
    source = tmp_path / "source-0"
    write_segment(source, 0, *batches)
    (simulated,) = simulate(source, LogConfig.parse({"index.interval.bytes": "900"}))
    rows = scan_batches(b"".join(batches)).rows
    entries = [(-1, 0)]
    state = (-1, 0, 0)
    for row in rows:
        size, last, time_ms = (int(row[n]) for n in ("size_bytes", "last_offset", "max_timestamp"))
        state, has_entry = after_batch(state, 900, size, last, time_ms)
        if has_entry:
            entries.append((last, int(row["position"])))
    distances = []
    for row in rows:
        for offset in range(int(row["base_offset"]), int(row["last_offset"]) + 1):
            found = max(position for last, position in entries if last <= offset)
            distances.append(int(row["position"]) - found)
    assert simulated.scanned.mean == pytest.approx(sum(distances) / len(distances))
    exact = sorted(distances)[int(len(distances) * 0.99)]
    assert simulated.scanned.p99 == pytest.approx(exact, rel=0.02)
    assert simulated.scanned.largest == pytest.approx(max(distances), rel=0.02)


def test_time_error_shrinks_with_the_interval(tmp_path: Path) -> None:
    batches = [
        batch(n, [Rec(0, 0, b"k", b"v" * 39)], Head(START_MS + n * 1000)) for n in range(500)
    ]
    write_segment(tmp_path / "t-0", 0, *batches)
    sizes = list(accumulate(len(each) for each in batches))
    assert sizes[0] > 100
    every, some = simulate(
        tmp_path / "t-0",
        LogConfig.parse({"index.interval.bytes": 0}),
        LogConfig.parse({"index.interval.bytes": 10 * sizes[0] - 1}),
    )
    assert every.time_error.mean == 0
    # An entry for every tenth batch: from 0 to 9 seconds after one.
    assert some.time_error.mean == pytest.approx(4500, rel=0.02)
    assert some.time_error.largest == pytest.approx(9000, rel=0.02)


def test_retention_is_replayed_in_record_time(tmp_path: Path) -> None:
    """One batch a day for thirty days, one batch a segment, retention of a week."""
    day = 86_400_000
    batches = [batch(n, [Rec(0, 0, b"k", b"v")], Head(START_MS + n * day)) for n in range(30)]
    write_segment(tmp_path / "t-0", 0, *batches)
    (simulated,) = simulate(tmp_path / "t-0", LogConfig.parse({"segment.ms": str(day // 2)}))
    assert len(simulated.segments) == 30
    size = len(batches[0])
    assert simulated.disk[-1].time_ms == START_MS + 29 * day
    assert (
        sum_of_logs([simulated]).peak_bytes == 8 * size
    )  # ages 0 to 7 days: an age must exceed the limit
    assert simulated.disk[-1].size_bytes == 8 * size
    # At NOW_MS, a day after the last batch, those of the last seven days are left.
    assert simulated.retention.deleted_segments == 23
    assert simulated.retention.lag_max_ms == 0


def test_a_large_segment_keeps_records_beyond_their_time(tmp_path: Path) -> None:
    hour = 3_600_000
    batches = [batch(n, [Rec(0, 0, b"k", b"v")], Head(START_MS + n * hour)) for n in range(25)]
    write_segment(tmp_path / "t-0", 0, *batches)
    (simulated,) = simulate(tmp_path / "t-0", LogConfig())
    assert simulated.retention.lag_max_ms == 24 * hour
    assert simulated.retention.lag_mean_ms == 12 * hour


def test_compaction_is_planned_by_the_cleaner_s_rules(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, *many_batches())
    small = {"segment.bytes": "16384", "cleanup.policy": "compact"}
    eager, late = simulate(
        tmp_path / "t-0",
        LogConfig.parse(small),
        LogConfig.parse({**small, "min.compaction.lag.ms": str(60 * 86_400_000)}),
    )
    assert eager.compaction is not None
    assert late.compaction is not None
    assert eager.compaction.is_eligible
    assert eager.compaction.cleanable_bytes == sum(s.size_bytes for s in eager.segments[:-1])
    # Merged by their sizes before cleaning, so none of them: each is nearly full.
    assert eager.compaction.segments_after == len(eager.segments)
    assert not late.compaction.is_eligible
    assert "can be cleaned" in late.compaction.reasons[0]


def test_corrupt_bytes_are_skipped_and_counted(tmp_path: Path) -> None:
    batches = list(many_batches()[:40])
    kept = b"".join(batches[:20]), b"".join(batches[21:])
    write_segment(tmp_path / "t-0", 0, kept[0], b"\x00" * 99, kept[1], batches[-1][:30])
    found = survey_partition(SurveyTask(tmp_path / "t-0", 0, (LogConfig(),), NOW_MS))
    assert found.facts.corrupt_bytes == 99 + 30
    assert found.facts.batches == 39
    assert sum_of_logs(found.simulated).size_bytes == len(kept[0]) + len(kept[1])


@for_each("value", [0, 1, 127, 128, 129, 1000, 4096, 65_535, 10**9, 10**15])
def test_a_bucket_is_within_one_percent(value: int) -> None:
    shift = max(0, value.bit_length() - 7)
    assert bucket_value(shift * 64 + (value >> shift)) == pytest.approx(value, rel=0.01)

"""Statistics: what a count in plain Python over the same records says."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.bulk.stats import (
    KEY_ROW,
    NO_KEYS,
    KeyCounts,
    RecordFacts,
    _counts_of,
    _key_rows,
    _merge_rows,
    _shares_of,
    _sum_of,
    stats,
)
from stratalog.bulk.workers import ThreadWorkers
from stratalog.errors import ConfigError, JobError
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.spark import jobs as spark_jobs
from tests.golden.cases import GoldenCase
from tests.log.building import log_name, write_partition

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000


def random_records(seed: int, count: int) -> list[Record]:
    rng = random.Random(seed)
    return [
        Record(
            offset,
            1_700_000_000_000 + rng.randrange(3 * HOUR_MS),
            None if rng.random() < 0.1 else b"key-%d" % rng.randrange(40),
            None if rng.random() < 0.2 else bytes(rng.randrange(300)),
        )
        for offset in range(count)
    ]


def write_log(path: Path, records: list[Record], batch_records: int = 7) -> Path:
    """Several segments of batches."""
    segments: dict[int, bytes] = {}
    for at in range(0, len(records), batch_records):
        base = at // (batch_records * 5) * (batch_records * 5)
        batch = encode_batch(records[at : at + batch_records], BatchFields())
        segments[base] = segments.get(base, b"") + batch
    return write_partition(path, segments)


def size_of(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


def expected_keys(records: list[Record]) -> KeyCounts:
    last: dict[bytes, Record] = {}
    dead_records = dead_bytes = 0
    for record in records:
        if record.key is None:
            continue
        before = last.get(record.key)
        if before is not None:
            dead_records += 1
            dead_bytes += size_of(before)
        last[record.key] = record
    live = sum(record.value is not None for record in last.values())
    by_key = Counter(record.key for record in records if record.key is not None)
    spread = Counter(1 << (count - 1).bit_length() for count in by_key.values())
    return KeyCounts(
        len(last),
        live,
        dead_records,
        dead_bytes,
        max(by_key.values(), default=0),
        tuple(sorted(spread.items())),
    )


def check(found: RecordFacts, keys: KeyCounts, records: list[Record]) -> None:
    assert found.records == len(records)
    assert found.null_keys == sum(record.key is None for record in records)
    tombstones = [record for record in records if record.value is None and record.key is not None]
    assert found.tombstones == len(tombstones)
    assert found.payload_bytes == sum(map(size_of, records))
    assert found.first_timestamp == min(record.timestamp for record in records)
    assert found.last_timestamp == max(record.timestamp for record in records)
    sizes = Counter(1 << max(0, size_of(record) - 1).bit_length() for record in records)
    assert dict(found.sizes) == dict(sizes)
    hours = Counter(record.timestamp // HOUR_MS * HOUR_MS for record in records)
    assert {start: count for start, count, _ in found.hours} == dict(hours)
    assert sum(size for _, _, size in found.hours) == found.payload_bytes
    assert keys == expected_keys(records)


@pytest.mark.parametrize("seed", range(4))
def test_a_random_log(seed: int, tmp_path: Path) -> None:
    records = random_records(seed, 400)
    path = write_log(tmp_path / "t-0", records)
    (found,) = stats([path], workers=ThreadWorkers(2)).partitions
    check(found.facts, found.keys, records)
    assert (found.topic, found.partition) == ("t", 0)
    assert found.size_bytes == sum(log.stat().st_size for log in path.glob("*.log"))


def test_the_same_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    logs = {number: random_records(number, 300) for number in range(3)}
    paths = [write_log(tmp_path / f"t-{number}", records) for number, records in logs.items()]
    result = spark_jobs.stats(spark, paths)
    assert [each.partition for each in result.partitions] == [0, 1, 2]
    for each in result.partitions:
        check(each.facts, each.keys, logs[each.partition])
    assert result.records == 900
    assert result.partitions == stats(paths, workers=ThreadWorkers(1)).partitions
    frame = spark_jobs.stats_frame(spark, result)
    assert frame.selectExpr("sum(records)", "count(*)").first()[:] == (900, 3)  # type: ignore[index]


def test_what_compaction_saves_is_what_is_dead(tmp_path: Path) -> None:
    """Records of one size: half of them superseded, half of the bytes."""
    records = [Record(n, 0, b"k%02d" % (n % 50), b"v" * 100) for n in range(100)]
    path = write_log(tmp_path / "t-0", records, 50)
    (found,) = stats([path], workers=ThreadWorkers(1)).partitions
    assert found.dead_ratio == 0.5
    assert found.compaction_saves_bytes == pytest.approx(found.size_bytes / 2, abs=1)


def test_codecs_are_compared_on_the_records_themselves(tmp_path: Path) -> None:
    text = write_log(tmp_path / "text-0", [Record(n, 0, b"k", b"abc" * 100) for n in range(200)])
    rng = random.Random(1)
    noise = write_log(
        tmp_path / "n-0", [Record(n, 0, b"k", rng.randbytes(300)) for n in range(200)]
    )
    random_bytes, texts = stats([noise, text], workers=ThreadWorkers(1)).partitions
    assert texts.size_with("zstd") < texts.size_bytes / 10
    assert random_bytes.size_with("zstd") > random_bytes.size_bytes * 0.9


def test_what_retention_would_free() -> None:
    path = GoldenCase("multiseg").partition_dir
    what_if = {"retention.bytes": "100000", "retention.ms": "1"}
    (found,) = stats([path], what_if=what_if, workers=ThreadWorkers(1)).partitions
    sizes = [log.stat().st_size for log in sorted(path.glob("*.log"))]
    excess, freed = sum(sizes) - 100_000, 0
    while excess - sizes[0] >= 0:
        excess -= sizes[0]
        freed += sizes.pop(0)
    assert found.freed_by == {"retention.bytes=100000": freed, "retention.ms=1": 147_513}
    with pytest.raises(ConfigError, match="retention"):
        stats([path], what_if={"retention.days": "1"}, workers=ThreadWorkers(1))


def test_an_empty_log(tmp_path: Path) -> None:
    path = write_partition(tmp_path / "t-0", {0: b""})
    (found,) = stats([path], workers=ThreadWorkers(1)).partitions
    assert found.facts == RecordFacts()
    assert found.dead_ratio == 0
    assert found.compaction_saves_bytes == 0


def test_damage_is_told(spark: SparkSession, tmp_path: Path) -> None:
    path = write_log(tmp_path / "t-0", random_records(1, 20))
    log = path / log_name(0)
    raw = bytearray(log.read_bytes())
    raw[80] ^= 1
    log.write_bytes(raw)
    with pytest.raises(JobError, match=r"at byte 0 .*CRC"):
        stats([path], workers=ThreadWorkers(1))
    with pytest.raises(JobError, match=r"\A\S*t-0/\d+\.log at byte 0 .*CRC"):
        spark_jobs.stats(spark, [path])


notes = st.lists(
    st.tuples(st.integers(-5, 5), st.integers(1, 100), st.booleans()), min_size=1, max_size=60
)


@given(notes, st.integers(1, 7), st.integers(0, 60))
def test_notes_may_be_cut_and_merged_anyhow(
    given_notes: list[tuple[int, int, bool]], shares: int, cut: int
) -> None:
    columns: tuple[Any, ...] = (
        np.array([number * (1 << 60) for number, _, _ in given_notes], np.int64),
        np.arange(len(given_notes), dtype=np.int64),
        np.array([size for _, size, _ in given_notes], np.int64),
        np.array([is_tombstone for _, _, is_tombstone in given_notes]),
    )
    whole = _counts_of(_key_rows(*columns))
    parts: dict[int, list[NDArray[Any]]] = {}
    for part in (slice(0, cut), slice(cut, None)):
        for share, some in _shares_of(_key_rows(*(each[part] for each in columns)), shares):
            parts.setdefault(share, []).append(some)
    total = NO_KEYS
    for found in parts.values():
        total = total.plus(_counts_of(_merge_rows(np.concatenate(found).astype(KEY_ROW))))
    assert total == whole


def test_facts_of_nothing_add_nothing() -> None:
    some = RecordFacts(1, 0, 0, 5, 7, 7, ((8, 1),), ((0, 1, 5),), (("zstd", 0.5),))
    assert _sum_of([RecordFacts(), some, RecordFacts()]) == some
    assert _sum_of([]) == RecordFacts()

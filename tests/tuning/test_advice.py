"""Advice and traps: the arithmetic of well-known examples, and what makes each of them appear."""

from __future__ import annotations

import pytest

from stratalog.config import LogConfig
from stratalog.tuning.advice import (
    Recommendation,
    entry_spacing,
    index_entries,
    index_limit,
    recommend,
    settings_of,
)
from stratalog.tuning.headers import HeaderFacts
from stratalog.tuning.topic import workload_of
from stratalog.tuning.traps import Trap, find_traps
from stratalog.tuning.workload import Workload

GIB = 1 << 30
DAY_MS = 86_400_000


def advice_of(**numbers: object) -> dict[str, Recommendation]:
    return {each.setting: each for each in recommend(Workload().given(numbers))}


def traps_of(config: dict[str, str] | None = None, **numbers: object) -> dict[str, Trap]:
    found = find_traps(Workload().given(numbers), LogConfig.parse(config or {}))
    return {each.code: each for each in found}


# -- the worked examples that everybody quotes


def test_a_gibibyte_at_4096_bytes_gives_262144_entries_of_two_mebibytes() -> None:
    assert index_entries(GIB, 4096) == 262_144
    assert 8 * index_entries(GIB, 4096) == 2 << 20
    shown = advice_of(segment_bytes=GIB)["segment.index.bytes"].arithmetic
    assert "262,144 entries: 2.0 MiB of offset index" in shown


def test_segments_above_five_gibibytes_hit_the_offset_index_first() -> None:
    limit = index_limit(10 << 20, 4096)
    assert limit.offset_index_bytes == 5 * GIB
    assert "index-full-early" not in traps_of(segment_bytes=5 * GIB)
    trap = traps_of(segment_bytes=5 * GIB + 1)["index-full-early"]
    assert trap.arithmetic == "10.0 MiB / 8 bytes = 1,310,720 offset entries, * 4.0 KiB = 5.0 GiB"


def test_the_time_index_fills_first_at_twelve_bytes_an_entry() -> None:
    assert index_limit(10 << 20, 4096).time_index_bytes == 873_812 * 4096
    assert "time-index-first" not in traps_of(segment_bytes=3 * GIB)
    assert set(traps_of(segment_bytes=4 * GIB)) == {"time-index-first", "segment-over-2gib"}
    # A denser index brings the limit below Kafka's default size of a segment.
    dense = traps_of({"index.interval.bytes": "1024"})
    assert "873,812 time entries, * 1.0 KiB = 853.3 MiB" in dense["time-index-first"].arithmetic


def test_entries_belong_to_batches() -> None:
    assert entry_spacing(4096, 1000) == 5000  # more than 4096 bytes: after five batches
    assert entry_spacing(4096, 4096) == 8192  # not after exactly 4096
    assert entry_spacing(4096, 16_384) == 16_384  # one each
    assert entry_spacing(0, 100) == 100


# -- advice


def test_a_tenth_of_what_is_retained_makes_a_segment() -> None:
    found = advice_of(message_bytes=1000, rate=1000, partitions=10, retention_ms=DAY_MS)
    # 100 kB/s for a day are 8.64 GB; a tenth of it, as a power of two.
    assert found["segment.bytes"].value == str(512 << 20)
    assert (
        "= 8.0 GiB retained in a partition; / 10 = 824.0 MiB" in found["segment.bytes"].arithmetic
    )
    assert found["retention.ms"].value == str(DAY_MS)
    assert int(found["retention.bytes"].value) > 8_640_000_000


def test_quiet_partitions_roll_by_time_and_not_all_at_once() -> None:
    found = advice_of(message_bytes=100, rate=100, partitions=100, retention_ms=DAY_MS)
    assert found["segment.bytes"].value == str(16 << 20)
    assert found["segment.ms"].value == str(DAY_MS // 10)
    assert found["segment.jitter.ms"].value == str(DAY_MS // 100)
    assert "segment.jitter.ms" not in advice_of(
        message_bytes=100, rate=1, partitions=2, retention_ms=DAY_MS
    )


@pytest.mark.parametrize(
    ("numbers", "interval"),
    [
        ({}, 4096),
        ({"message_bytes": 300}, 4096),
        ({"message_bytes": 300, "offset_lookups": 10}, 1024),
        ({"message_bytes": 1024, "time_lookups": 10}, 2048),
        ({"message_bytes": 20_000, "offset_lookups": 1000}, 4096),
        ({"message_bytes": 300, "offset_lookups": 10, "batch_bytes": 16_384}, 4096),
    ],
)
def test_small_messages_that_are_looked_up_get_a_denser_index(
    numbers: dict[str, object], interval: int
) -> None:
    assert advice_of(**numbers)["index.interval.bytes"].value == str(interval)


def test_a_dense_index_gets_the_room_it_needs() -> None:
    found = advice_of(message_bytes=100, offset_lookups=1, batch_bytes=161, segment_bytes=GIB)
    assert found["index.interval.bytes"].value == "1024"
    size = int(found["segment.index.bytes"].value)
    assert size == 16 << 20
    config = settings_of(found.values(), LogConfig())
    assert config.segment_index_bytes == size
    assert "time-index-first" not in traps_of(config.overrides(), batch_bytes=161)


def test_compacted_topics_get_advice_on_cleaning() -> None:
    found = advice_of(is_compacted=True, superseded=0.9, keys=20_000_000)
    assert found["min.cleanable.dirty.ratio"].value == "0.3"
    assert found["log.cleaner.dedupe.buffer.size"].value == str(512 << 20)
    assert "default holds 5,033,164 keys" in found["log.cleaner.dedupe.buffer.size"].arithmetic
    assert advice_of(is_compacted=True, superseded=0.05)["min.cleanable.dirty.ratio"].value == "0.7"
    assert "log.cleaner.dedupe.buffer.size" not in advice_of(is_compacted=True, keys=1000)


def test_records_of_a_compacted_topic_do_not_expire() -> None:
    facts = HeaderFacts(size_bytes=10**9, batches=10**5, records=10**6, min_timestamp=0)
    facts.max_timestamp = DAY_MS
    compacted = LogConfig.parse({"cleanup.policy": "compact"})
    found = {
        each.setting: each for each in recommend(workload_of(facts, 1, compacted, {"keys": 10}))
    }
    assert "retention.ms" not in found
    assert "nothing expires" in found["segment.bytes"].reason
    both = LogConfig.parse({"cleanup.policy": "compact,delete"})
    assert workload_of(facts, 1, both, {}).retention_ms == 7 * DAY_MS


def test_slow_rates_are_not_rounded_away() -> None:
    found = advice_of(message_bytes=100, rate=0.005, retention_ms=7 * DAY_MS)
    assert found["segment.bytes"].arithmetic.startswith("0.5 B/s * 7 d = 295.3 KiB")


def test_codecs() -> None:
    ratios = {"zstd": 0.3, "lz4": 0.5, "snappy": 0.55, "gzip": 0.32}
    assert advice_of(codec_ratios=ratios)["compression.type"].value == "zstd"
    close = {**ratios, "lz4": 0.32}
    assert advice_of(codec_ratios=close)["compression.type"].value == "lz4"
    close = {**ratios, "gzip": 0.29}  # a little smaller, and much slower
    assert advice_of(codec_ratios=close)["compression.type"].value == "zstd"
    assert advice_of(codec_ratios={"zstd": 0.99})["compression.type"].value == "producer"
    done = advice_of(codec_ratios=ratios, codecs={"none": 0.1, "lz4": 0.9})["compression.type"]
    assert (done.value, done.reason) == (
        "producer",
        "Producers already compress: 90% of the log, mostly lz4.",
    )
    assert advice_of()["compression.type"].value == "producer"


def test_all_advice_is_a_valid_config_and_explains_itself() -> None:
    found = recommend(
        Workload(
            message_bytes=0.5,
            rate=1e9,
            partitions=3000,
            retention_ms=1,
            is_compacted=True,
            keys=10**9,
            offset_lookups=1,
        )
    )
    settings_of(found, LogConfig())
    assert all(each.reason and each.arithmetic and each.trade_off for each in found)


# -- traps


@pytest.mark.parametrize(
    ("code", "config", "numbers"),
    [
        ("relative-offset-overflow", {}, {"message_bytes": 0.4}),
        ("segment-under-1mib", {"segment.bytes": "100000"}, {}),
        ("batch-over-segment", {"segment.bytes": "1048576"}, {"largest_batch_bytes": 2_000_000}),
        ("future-timestamps", {}, {"future_ms": 1000}),
        ("create-time-disorder", {}, {"late_share": 0.1, "late_ms": 5}),
        ("timestamp-type-changed", {}, {"append_time_share": 1.0}),
        (
            "timestamp-type-changed",
            {"message.timestamp.type": "LogAppendTime"},
            {"append_time_share": 0.0},
        ),
        ("segment-outlives-retention", {"retention.ms": "3600000"}, {}),
        ("retention-below-segment", {"retention.bytes": "1000000"}, {}),
        ("map-count", {}, {"message_bytes": 1000, "rate": 1e6, "broker_partitions": 20_000}),
        ("file-count", {}, {"message_bytes": 1000, "rate": 1e6, "broker_partitions": 20_000}),
        ("tiny-batches", {}, {"batch_bytes": 90}),
    ],
)
def test_each_trap_appears_when_it_should(
    code: str, config: dict[str, str], numbers: dict[str, object]
) -> None:
    trap = traps_of(config, **numbers)[code]
    assert trap.what
    assert trap.arithmetic
    assert trap.advice
    assert code not in traps_of()


def test_disorder_matters_more_if_it_rolls_segments() -> None:
    mild = traps_of(late_share=0.1, late_ms=DAY_MS)["create-time-disorder"]
    bad = traps_of(late_share=0.1, late_ms=8 * DAY_MS)["create-time-disorder"]
    assert (mild.severity, bad.severity) == ("note", "warning")
    append_time = {"message.timestamp.type": "LogAppendTime"}
    assert "create-time-disorder" not in traps_of(append_time, late_share=0.1, late_ms=DAY_MS)


def test_kafka_s_defaults_have_no_trap() -> None:
    usual: dict[str, object] = {
        "message_bytes": 500,
        "rate": 1000,
        "partitions": 12,
        "batch_bytes": 8000,
    }
    assert traps_of({}, **usual) == {}

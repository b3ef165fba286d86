"""Advice on topic settings: a value, its reason, the arithmetic behind it and the trade-off.

A pure function of a workload. Each rule returns nothing if what it needs is unknown. `settings_of`
turns the advice into a config, so that it can be simulated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.config import BrokerConfig, LogConfig
from stratalog.config.topic import TOPIC_DEFINITIONS
from stratalog.config.values import DAY_MS, HOUR_MS
from stratalog.format import offset_index, time_index
from stratalog.format.quantities import counted, duration_text, human_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from stratalog.tuning.workload import Workload


class Recommendation(NamedTuple):
    """One setting."""

    setting: str
    value: str
    """As Kafka writes it."""
    reason: str
    arithmetic: str
    trade_off: str

    @property
    def shown(self) -> str:
        """The value as people read it."""
        return shown_value(self.setting, self.value)


def shown_value(setting: str, value: str) -> str:
    """A value of a setting as people read it: `64.0 MiB`, `7 d`, `no limit`."""
    if not value.lstrip("-").isdigit() or not setting.endswith((".bytes", ".ms")):
        return value
    amount = int(value)
    if amount < 0 or amount >= 1 << 62:
        return "no limit"
    return human_size(amount) if setting.endswith(".bytes") else duration_text(amount)


# -- arithmetic of indexes


def entry_spacing(interval_bytes: int, batch_bytes: float | None) -> float:
    """Bytes of log per entry. An entry belongs to a batch, and comes after more than the interval:
    small batches have one entry per interval, large ones one entry each."""
    if not batch_bytes:
        return max(1, interval_bytes)
    return batch_bytes * (interval_bytes // batch_bytes + 1)


def index_entries(segment_bytes: int, interval_bytes: int, batch_bytes: float | None = None) -> int:
    """Entries of the offset index of a full segment."""
    return int(segment_bytes / entry_spacing(interval_bytes, batch_bytes))


class IndexLimit(NamedTuple):
    """The largest size of a segment for which its indexes have room."""

    offset_index_bytes: int
    time_index_bytes: int

    @property
    def segment_bytes(self) -> int:
        return min(self)


def index_limit(
    index_bytes: int, interval_bytes: int, batch_bytes: float | None = None
) -> IndexLimit:
    """The time index has larger entries, and keeps a slot for the last one."""
    spacing = entry_spacing(interval_bytes, batch_bytes)
    offset_slots = index_bytes // offset_index.ENTRY_BYTES
    time_slots = index_bytes // time_index.ENTRY_BYTES - 1
    return IndexLimit(int(offset_slots * spacing), int(max(0, time_slots) * spacing))


# -- the rules


def recommend(workload: Workload) -> list[Recommendation]:
    """Advice for all that the numbers allow; a setting comes after those it depends on."""
    segment = _segment_bytes(workload)
    segment_bytes = int(segment.value)
    interval = _index_interval(workload)
    found = [segment, *_segment_ms(workload, segment_bytes), interval]
    found.append(_segment_index_bytes(workload, segment_bytes, int(interval.value)))
    found += _retention_ms(workload)
    found += _retention_bytes(workload, segment_bytes)
    if workload.is_compacted:
        found += [_dirty_ratio(workload), _COMPACTION_LAG, *_dedupe_buffer(workload)]
    found += _codec(workload)
    return found


def settings_of(found: Iterable[Recommendation], base: LogConfig) -> LogConfig:
    """The config `base` with this advice."""
    known = {each.setting: each.value for each in found if each.setting in TOPIC_DEFINITIONS}
    return LogConfig.parse(known, base)


SEGMENT_BYTES_MIN: Final = 16 << 20
SEGMENT_BYTES_MAX: Final = 1 << 30
SEGMENTS_IN_RETENTION: Final = 10
"""A segment goes as a whole, so a tenth of the retained data may be older than it should be."""


def _segment_bytes(workload: Workload) -> Recommendation:
    trade_off = (
        "Smaller segments free space sooner and are recovered and compacted in smaller steps. "
        "Each segment costs four files, two memory maps and an open file."
    )
    if workload.segment_bytes is not None:
        size = min(workload.segment_bytes, (1 << 31) - 1)
        is_as_given = size == workload.segment_bytes
        reason = "As given." if is_as_given else "As given, within the range that Kafka accepts."
        arithmetic = f"{human_size(size)} a segment"
    elif (retained := _retained_bytes(workload)) is None:
        size = SEGMENT_BYTES_MAX
        reason = (
            "Kafka's default: nothing expires, and segment.ms limits how long records wait for a "
            "cleaning pass."
            if workload.is_compacted
            else "Kafka's default: without a rate and a retention time, there is no reason to "
            "change it."
        )
        arithmetic = f"{human_size(size)} a segment"
    else:
        size, arithmetic = _share_of_retained(workload, retained)
        reason = (
            "Retention deletes whole segments. With about ten of them, at most a tenth more is "
            "kept than requested."
        )
    return Recommendation("segment.bytes", str(size), reason, arithmetic, trade_off)


def _share_of_retained(workload: Workload, retained: float) -> tuple[int, str]:
    """Size of a segment, and how it follows from what a partition retains."""
    wanted = retained / SEGMENTS_IN_RETENTION
    size = int(min(max(_power_of_two_below(wanted), SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX))
    rate = workload.bytes_per_second
    arithmetic = f"{human_size(round(retained))} retained in a partition"
    if rate and workload.retention_ms is not None and workload.retention_bytes is None:
        arithmetic = (
            f"{_rate_text(rate)} * {duration_text(workload.retention_ms)} = "
            f"{human_size(round(retained))} retained in a partition"
        )
    arithmetic += f"; / {SEGMENTS_IN_RETENTION} = {human_size(round(wanted))}"
    if wanted > SEGMENT_BYTES_MAX:
        arithmetic += f", more than Kafka's default of {human_size(SEGMENT_BYTES_MAX)}"
    elif wanted < SEGMENT_BYTES_MIN:
        arithmetic += f", less than {human_size(SEGMENT_BYTES_MIN)}, where files cost more"
    else:
        arithmetic += ", rounded down to a power of two"
    return size, arithmetic


def _retained_bytes(workload: Workload) -> float | None:
    """The bytes that one partition retains."""
    rate, retention_ms = workload.bytes_per_second, workload.retention_ms
    limits = []
    if workload.retention_bytes is not None and workload.retention_bytes >= 0:
        limits.append(float(workload.retention_bytes))
    if rate is not None and retention_ms is not None and retention_ms >= 0:
        limits.append(rate * retention_ms / 1000)
    return min(limits, default=None)


JITTER_PARTITIONS_MIN: Final = 50


def _segment_ms(workload: Workload, segment_bytes: int) -> Iterator[Recommendation]:
    rate, retention_ms = workload.bytes_per_second, workload.retention_ms
    if not rate:
        return
    fills_ms = segment_bytes / rate * 1000
    fills = f"{human_size(segment_bytes)} / {_rate_text(rate)} = {_about(fills_ms)} to fill"
    limit_ms = 7 * DAY_MS
    if retention_ms is not None and retention_ms > 0:
        limit_ms = min(limit_ms, max(HOUR_MS, retention_ms // SEGMENTS_IN_RETENTION))
    if workload.is_compacted:
        limit_ms = min(limit_ms, DAY_MS)
    rolls_by_time = fills_ms > limit_ms
    if rolls_by_time:
        reason = (
            "By size alone, segments would roll too late: the active segment is neither deleted "
            "nor compacted."
        )
    else:
        reason = (
            "Segments fill up earlier, so this only limits the age of a segment when traffic drops."
        )
    value = limit_ms if rolls_by_time else 7 * DAY_MS
    yield Recommendation(
        "segment.ms",
        str(value),
        reason,
        f"{fills}, limit {duration_text(limit_ms)}",
        "A shorter time gives quiet partitions more and smaller segments. It is measured in "
        "record time, so an idle partition never rolls.",
    )
    if rolls_by_time and workload.partitions >= JITTER_PARTITIONS_MIN:
        jitter_ms = value // 10
        yield Recommendation(
            "segment.jitter.ms",
            str(jitter_ms),
            f"All {workload.partitions:,} partitions roll by time; without jitter, they all roll "
            "at once.",
            f"{counted(workload.partitions, 'roll')} spread over {duration_text(jitter_ms)} are "
            f"{workload.partitions / jitter_ms * 1000:.2g} a second",
            "Segments roll up to a tenth earlier.",
        )


INTERVAL_MIN: Final = 1024
SMALL_MESSAGE_BYTES: Final = 1024


def _index_interval(workload: Workload) -> Recommendation:
    batch, message = workload.batch_bytes, workload.message_bytes or 0
    default = LogConfig().index_interval_bytes
    value = default
    if batch is not None and batch > default:
        reason = (
            f"Kafka's default. Each batch of {human_size(round(batch))} already gets an index "
            "entry, so a smaller interval adds none."
        )
    elif not workload.lookups:
        reason = "Kafka's default: no lookup rate was given that would justify a denser index."
    elif message > SMALL_MESSAGE_BYTES:
        reason = (
            "Kafka's default: with large messages, a smaller interval adds entries but "
            "saves little scanning."
        )
    else:
        likely = batch or message * 2
        value = int(max(INTERVAL_MIN, min(default / 2, _power_of_two_below(likely))))
        reason = (
            f"Small messages, and {workload.lookups:,.4g} lookups a second that scan from an entry."
        )
    before, after = (entry_spacing(each, batch) for each in (default, value))
    arithmetic = f"an entry every {human_size(round(after))}, a lookup scans half of that"
    if value != default:
        saved = workload.lookups * (before - after) / 2
        arithmetic += (
            f"; with {default}: every {human_size(round(before))}, "
            f"{human_size(max(0, round(saved)))}/s more to scan"
        )
    return Recommendation(
        "index.interval.bytes",
        str(value),
        reason,
        arithmetic,
        "With a denser index, lookups scan less, but the index takes more page cache and fills "
        "up sooner.",
    )


INDEX_HEADROOM: Final = 1.25


def _segment_index_bytes(
    workload: Workload, segment_bytes: int, interval_bytes: int
) -> Recommendation:
    entries = index_entries(segment_bytes, interval_bytes, workload.batch_bytes)
    needed = (entries + 1) * time_index.ENTRY_BYTES
    default = LogConfig().segment_index_bytes
    with_room = needed * INDEX_HEADROOM
    value = default if with_room <= default else _power_of_two_above(with_room)
    too_small = (
        "With the default, the time index fills up before the segment does, so the segment rolls "
        "early."
    )
    per_entry = entry_spacing(interval_bytes, workload.batch_bytes)
    return Recommendation(
        "segment.index.bytes",
        str(value),
        too_small if value > default else "Kafka's default has room for a full segment.",
        f"{human_size(segment_bytes)} / {human_size(round(per_entry))} = {entries:,} entries: "
        f"{human_size(entries * offset_index.ENTRY_BYTES)} of offset index at "
        f"{offset_index.ENTRY_BYTES} bytes, {human_size(needed)} of time index at "
        f"{time_index.ENTRY_BYTES}",
        "Each active segment reserves this much address space twice, as sparse files on disk.",
    )


def _retention_ms(workload: Workload) -> Iterator[Recommendation]:
    rate, retention_ms = workload.bytes_per_second, workload.retention_ms
    if retention_ms is not None:
        total = rate * retention_ms / 1000 * workload.partitions if rate else None
        arithmetic = duration_text(retention_ms) if retention_ms >= 0 else "no limit"
        if total is not None and retention_ms >= 0:
            arithmetic += (
                f" * {_rate_text(rate or 0)} * {counted(workload.partitions, 'partition')} = "
                f"{human_size(round(total))} a replica"
            )
        yield Recommendation(
            "retention.ms",
            str(retention_ms),
            "As requested.",
            arithmetic,
            "The age is that of the newest record of a segment, so older records in it stay "
            "longer.",
        )


SIZE_GUARD: Final = 1.5
_MEBIBYTE: Final = 1 << 20


def _retention_bytes(workload: Workload, segment_bytes: int) -> Iterator[Recommendation]:
    rate, retention_ms = workload.bytes_per_second, workload.retention_ms
    if workload.retention_bytes is not None:
        yield Recommendation(
            "retention.bytes",
            str(workload.retention_bytes),
            "As requested.",
            f"{human_size(max(0, workload.retention_bytes))} * "
            f"{counted(workload.partitions, 'partition')} = "
            f"{human_size(max(0, workload.retention_bytes) * workload.partitions)} a replica, and "
            f"up to {human_size(segment_bytes)} more in each",
            "The limit is per partition. Segments are deleted when either limit is reached.",
        )
    elif rate and retention_ms is not None and retention_ms > 0 and not workload.is_compacted:
        expected = rate * retention_ms / 1000
        guard = max(expected * SIZE_GUARD, expected + 2 * segment_bytes)
        guard = math.ceil(guard / _MEBIBYTE) * _MEBIBYTE
        yield Recommendation(
            "retention.bytes",
            str(guard),
            "A safeguard: neither a burst nor a record with a future timestamp can fill the disk.",
            f"{human_size(round(expected))} expected in a partition, half as much again or two "
            "segments more",
            "If traffic grows permanently, this limit deletes records before retention.ms does; "
            "raise it in time.",
        )


def _dirty_ratio(workload: Workload) -> Recommendation:
    superseded = workload.superseded
    ratio = 0.5
    reason = "Kafka's default: a log is cleaned when half of it is dirty."
    arithmetic = "log <= compacted size / (1 - 0.5) = twice the compacted size before a pass"
    if superseded is not None:
        if superseded < 0.2:
            reason = (
                "Few records are superseded, so a cleaning pass rewrites much and frees little."
            )
            ratio = 0.7
        elif superseded > 0.8:
            reason = "Most records are superseded, so early cleaning keeps the log small."
            ratio = 0.3
        arithmetic = (
            f"{superseded:.0%} superseded; a pass at {ratio} reads 1 / {ratio} = "
            f"{1 / ratio:.1f} bytes for each new one"
        )
    return Recommendation(
        "min.cleanable.dirty.ratio",
        f"{ratio:g}",
        reason,
        arithmetic,
        "A lower ratio saves space and removes old values sooner; a higher one saves reading and "
        "rewriting.",
    )


_COMPACTION_LAG: Final = Recommendation(
    "max.compaction.lag.ms",
    str(7 * DAY_MS),
    "Limits how long a superseded or deleted value can stay, even in a quiet partition.",
    f"a segment rolls after {duration_text(7 * DAY_MS)} at the latest, and is then compacted",
    "A shorter time costs more cleaning passes. With the default, no limit, old values can stay "
    "forever.",
)


DEDUPE_SLOT_BYTES: Final = 24


def _dedupe_buffer(workload: Workload) -> Iterator[Recommendation]:
    if workload.keys:
        defaults = BrokerConfig()
        load = defaults.log_cleaner_io_buffer_load_factor
        slots = int(defaults.log_cleaner_dedupe_buffer_size // DEDUPE_SLOT_BYTES * load)
        needed = math.ceil(workload.keys * DEDUPE_SLOT_BYTES / load)
        if workload.keys > slots:
            yield Recommendation(
                "log.cleaner.dedupe.buffer.size",
                str(_power_of_two_above(needed)),
                "All keys of a partition fit into one cleaning pass. This is a broker setting.",
                f"{workload.keys:,} keys * {DEDUPE_SLOT_BYTES} bytes / {load} = "
                f"{human_size(needed)}; the default holds {slots:,} keys",
                "Memory of the broker, shared by all cleaner threads.",
            )


def _codec(workload: Workload) -> Iterator[Recommendation]:
    compressed = 1 - workload.codecs.get("none", 0.0) if workload.codecs else 0
    if compressed > 0.5:
        value = "producer"
        used = max(workload.codecs, key=lambda name: workload.codecs[name])
        reason = f"Producers already compress: {compressed:.0%} of the log, mostly {used}."
        arithmetic = ", ".join(f"{name} {share:.0%}" for name, share in workload.codecs.items())
    elif workload.codec_ratios:
        value, reason = _codec_of_sample(workload.codec_ratios)
        ratios = sorted(workload.codec_ratios.items(), key=lambda each: each[1])
        arithmetic = ", ".join(f"{name} {each:.0%}" for name, each in ratios)
    elif not workload.codecs:
        value = "producer"
        reason = "Kafka's default: producers compress once, and brokers store what they get."
        arithmetic = (
            "JSON and log lines often shrink to between a tenth and a third; give a log directory "
            "to measure yours"
        )
    else:
        return
    yield Recommendation(
        "compression.type",
        value,
        reason,
        arithmetic,
        "`producer` stores batches as they are sent. With any other codec, the broker compresses "
        "them again, which costs CPU; if you can, set compression.type in the producers instead.",
    )


WORTH_COMPRESSING: Final = 0.9
"""A codec that saves less than a tenth is not worth its time."""
CLOSE_FACTOR: Final = 1.1
CLOSE_DIFFERENCE: Final = 0.02
"""Codecs whose ratios differ by less than one of the two are equal: then the fastest is best."""
_FASTEST_FIRST: Final = ("lz4", "snappy", "zstd", "gzip")


def _codec_of_sample(ratios: Mapping[str, float]) -> tuple[str, str]:
    """The fastest of the codecs that compress a sample about as well as the best, and why."""
    smallest = min(ratios.values())
    close = max(smallest * CLOSE_FACTOR, smallest + CLOSE_DIFFERENCE)
    chosen = next(name for name in _FASTEST_FIRST if ratios.get(name, math.inf) <= close)
    if ratios[chosen] < WORTH_COMPRESSING:
        return chosen, f"A sample of the records shrinks to {ratios[chosen]:.0%} with {chosen}."
    return "producer", "A sample of the records hardly shrinks: it may be compressed or encrypted."


# -- texts


def _power_of_two_below(value: float) -> int:
    return 1 << max(0, int(value).bit_length() - 1)


def _power_of_two_above(value: float) -> int:
    return 1 << max(0, math.ceil(value) - 1).bit_length()


def _rate_text(bytes_per_second: float) -> str:
    if bytes_per_second < 10:
        return f"{bytes_per_second:.2g} B/s"
    return f"{human_size(round(bytes_per_second))}/s"


def _about(ms: float) -> str:
    return duration_text(round(ms)) if ms < 1000 * 365 * DAY_MS else "more than 1,000 years"

"""The sections of the report: each turns facts into a heading, charts and tables."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.config.values import DAY_MS, HOUR_MS
from stratalog.format.batch import Codec
from stratalog.format.quantities import counted, duration_text, human_size
from stratalog.maintenance.verify.findings import Severity
from stratalog.report.charts import (
    Bar,
    LineSeries,
    Span,
    areas,
    bars,
    chart,
    histogram,
    lanes,
    lines,
    stacks,
)
from stratalog.report.tables import (
    Cell,
    axis_time,
    duration,
    moment,
    number,
    share,
    short_time,
    size,
    table,
    words,
)
from stratalog.tuning.advice import shown_value
from stratalog.tuning.headers import sum_of_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stratalog.bulk.report_data import ReportedPartition, ReportedTopic, ReportFacts
    from stratalog.maintenance.verify.findings import Finding
    from stratalog.tuning.advice import Recommendation
    from stratalog.tuning.headers import HeaderFacts
    from stratalog.tuning.simulation import SimulatedTopic

TOP: Final = 12
"""Rows of a chart; tables have all."""
LINES_MAX: Final = 6
"""Lines of a chart, and topics of the area chart."""
_NONE = Cell("–", -1)  # noqa: RUF001 - a dash


class Section(NamedTuple):
    """A part of the page, with a name for links to it."""

    name: str
    link: str
    body: str
    heading: str = ""
    """Longer than the link to it, if need be."""

    @property
    def title(self) -> str:
        return self.heading or self.link


def sections_of(facts: ReportFacts) -> list[Section]:
    """All of them, in the order in which an operator asks."""
    return [
        Section("overview", "Overview", overview(facts)),
        Section("findings", "Findings", findings(facts)),
        Section("topics", "Topics", topics(facts), "Topics and partitions"),
        Section("segments", "Segments", segments(facts), "Segments over time"),
        Section("times", "Offsets, times", times(facts), "Offsets and timestamps"),
        Section("indexes", "Indexes", indexes(facts), "Indexes and lookups"),
        Section("compression", "Compression", compression(facts)),
        Section("sizes", "Sizes", sizes(facts), "Batches and records"),
        Section("keys", "Keys", keys(facts)),
        Section("compaction", "Compaction", compaction(facts), "Compaction and retention"),
        Section("producers", "Producers", producers(facts), "Producers and transactions"),
        Section("advice", "Advice", advice(facts)),
    ]


# -- overview


def overview(facts: ReportFacts) -> str:
    """Figures that say whether to read on."""
    partitions = facts.partitions
    open_now = [txn for each in partitions for txn in each.open_transactions]
    overdue = sum(txn.is_overdue for txn in open_now)
    errors = 0 if facts.verified is None else facts.verified.count_of(Severity.ERROR)
    warnings = 0 if facts.verified is None else facts.verified.count_of(Severity.WARNING)
    traps = sum(len(topic.advice.traps) for topic in facts.topics if topic.advice)
    not_checked = facts.verified is None
    cards = [
        ("Size", human_size(facts.size_bytes), counted(len(partitions), "partition")),
        ("Records", f"{facts.records:,}", counted(len(facts.topics), "topic")),
        ("Segments", f"{sum(each.segments for each in partitions):,}", _span_text(facts)),
        (
            "Verify",
            "not run" if not_checked else counted(errors, "error"),
            "" if not_checked else counted(warnings, "warning"),
            "bad" if errors else "fair" if warnings else "",
        ),
        (
            "Transactions",
            f"{len(open_now)} open",
            f"{overdue} overdue",
            "bad" if overdue else "fair" if open_now else "",
        ),
        ("Traps", f"{traps}", "in settings and data", "fair" if traps else ""),
    ]
    found = "".join(_card(*card) for card in cards)
    problems = "".join(f"<li>{escape(text)}</li>" for text in facts.problems)
    problems = f'<ul class="problems">{problems}</ul>' if problems else ""
    largest = facts.topics[:TOP]
    by_size = bars([Bar(t.topic, t.size_bytes, human_size(t.size_bytes)) for t in largest])
    return (
        f'<div class="cards">{found}</div>{problems}<div class="charts">'
        f"{chart('Topics by size', by_size, note=_more(facts.topics))}{_growth(facts)}</div>"
    )


def _card(title: str, figure: str, below: str, kind: str = "") -> str:
    return (
        f'<div class="card {kind}"><span>{escape(title)}</span><strong>{escape(figure)}</strong>'
        f"<small>{escape(below)}</small></div>"
    )


def _span_text(facts: ReportFacts) -> str:
    timed = [topic.headers for topic in facts.topics if topic.headers.max_timestamp >= 0]
    if not timed:
        return "no timestamps"
    start = min(each.min_timestamp for each in timed)
    end = max(each.max_timestamp for each in timed)
    return f"{duration_text(end - start)} of records"


def _more(found: Sequence[object]) -> str:
    more = len(found) - TOP
    return f"and {more:,} more in the table" if more > 0 else ""


AREA_POINTS: Final = 160


def _growth(facts: ReportFacts) -> str:
    """Size of what is there, by the time of its records: what was deleted is not in it."""
    timed = [topic for topic in facts.topics if topic.headers.hours]
    shown, rest = timed[:LINES_MAX], timed[LINES_MAX:]
    layers = [(topic.topic, dict(topic.headers.hours)) for topic in shown]
    if rest:
        layers.append((f"{len(rest)} others", sum_of_facts(t.headers for t in rest).hours))
    drawn = '<p class="empty">No record has a timestamp.</p>'
    if layers:
        start = min(min(hours) for _, hours in layers)
        end = max(max(hours) for _, hours in layers) + HOUR_MS
        times = [start + (end - start) * n / AREA_POINTS for n in range(AREA_POINTS + 1)]
        stacked = [(label, _sizes_by(hours, times)) for label, hours in layers]
        drawn = areas(times, stacked, x_text=axis_time, y_text=lambda y: human_size(round(y)))
    note = "Size by timestamp, stacked by topic; deleted records are not counted."
    return chart("Growth", drawn, legend=[label for label, _ in layers], note=note)


def _sizes_by(hours: Mapping[int, tuple[int, int]], times: Sequence[float]) -> list[float]:
    """Bytes of the hours that have ended by each of the times."""
    ends = [hour + HOUR_MS for hour in sorted(hours)]
    sums = [0, *accumulate(hours[end - HOUR_MS][1] for end in ends)]
    return [float(sums[bisect_right(ends, time_ms)]) for time_ms in times]


# -- topics


def topics(facts: ReportFacts) -> str:
    """By size and growth."""
    rows = [_topic_row(topic) for topic in facts.topics]
    titles = (
        "Topic|#Partitions|#Size|#Records|#Bytes/day|#Records/s|#Segments|#Skew|Policy|Last record"
    )
    of_topics = table("Topics", titles.split("|"), rows, can_filter=len(rows) > 10)
    titles = "Partition|#Size|#Records|#Bytes/day|#Segments|#Start|#End|First record|Last record"
    rows = [_partition_row(each) for each in facts.partitions]
    return of_topics + table("Partitions", titles.split("|"), rows, can_filter=len(rows) > 10)


def _topic_row(topic: ReportedTopic) -> list[Cell]:
    facts = topic.headers
    largest = max((each.size_bytes for each in topic.partitions), default=0)
    mean = topic.size_bytes / len(topic.partitions)
    skew = largest / mean if mean else 1.0
    policy = ",".join(sorted(topic.settings.config.cleanup_policy))
    unknown = topic.settings.unknown is not None
    return [
        words(topic.topic),
        number(len(topic.partitions)),
        size(topic.size_bytes),
        number(facts.records),
        _per_day(facts),
        _per_second(facts),
        number(sum(each.segments for each in topic.partitions)),
        number(round(skew, 2), f"{skew:.2f}"),
        words(f"{policy} (assumed)" if unknown else policy),
        moment(facts.max_timestamp),
    ]


def _partition_row(each: ReportedPartition) -> list[Cell]:
    facts = each.headers
    return [
        words(str(each.topic_partition)),
        size(each.size_bytes),
        number(facts.records),
        _per_day(facts),
        number(each.segments),
        number(each.log_start_offset),
        number(each.log_end_offset),
        moment(facts.min_timestamp),
        moment(facts.max_timestamp),
    ]


def _per_day(facts: HeaderFacts) -> Cell:
    if facts.span_ms < 1000:
        return _NONE
    return size(facts.size_bytes / facts.span_ms * DAY_MS)


def _per_second(facts: HeaderFacts) -> Cell:
    if facts.span_ms < 1000:
        return _NONE
    rate = facts.records / facts.span_ms * 1000
    return number(rate, f"{rate:,.{1 if rate >= 10 else 3}f}")


# -- segments, offsets and times


def segments(facts: ReportFacts) -> str:
    """When the records of each segment are from."""
    largest = sorted(facts.partitions, key=lambda each: -each.size_bytes)[: 2 * TOP]
    rows = [(str(each.topic_partition), _spans(each, facts.now_ms)) for each in largest]
    rows = [(label, spans) for label, spans in rows if spans]
    drawn = lanes(rows, x_text=axis_time)
    note = (
        "A mark is a segment, from its oldest to its newest record. Marks that overlap are out of "
        "order; those with records from the future are red."
    )
    reasons: Counter[str] = Counter()
    for topic in facts.topics:
        if topic.simulated is not None:
            reasons.update({_word(each.name): n for each, n in topic.simulated.rolls.items()})
    rolled = bars([Bar(name, n, f"{n:,}") for name, n in reasons.most_common()])
    below = chart(
        "What rolls segments",
        rolled if reasons else '<p class="empty">No segment has rolled.</p>',
        note="From a simulation of all batches with the settings of their topics; compaction may "
        "have merged segments since.",
    )
    return f'<div class="charts wide">{chart("Segments", drawn, note=note)}{below}</div>'


def _word(name: str) -> str:
    return name.lower().replace("_", " ")


def _spans(each: ReportedPartition, now_ms: int) -> list[Span]:
    return [
        Span(
            min(found.min_timestamp, now_ms),
            min(found.max_timestamp, now_ms),
            f"{found.base_offset}: {human_size(found.size_bytes)}, {found.records:,} records, "
            f"{short_time(found.min_timestamp)} to {short_time(found.max_timestamp)}",
            found.max_timestamp > now_ms,
        )
        for found in each.headers.segments
        if found.min_timestamp >= 0
    ]


def times(facts: ReportFacts) -> str:
    """Gaps, disorder and times from the future."""
    largest = sorted(facts.partitions, key=lambda each: -each.size_bytes)[:LINES_MAX]
    series = [
        LineSeries(str(each.topic_partition), _offsets_by_time(each, facts.now_ms))
        for each in largest
    ]
    drawn = lines(series, x_text=axis_time, y_text=lambda y: f"{y:,.0f}")
    legend = [line.label for line in series if line.points]
    rows = []
    for each in facts.partitions:
        found = each.headers
        if found.gaps or found.late_batches or found.future_batches or found.corrupt_bytes:
            rows.append(
                [
                    words(str(each.topic_partition)),
                    number(found.gap_offsets),
                    words(", ".join(str(gap.offset) for gap in found.gap_examples[:3])),
                    number(found.late_records),
                    duration(found.latest_ms),
                    number(found.future_batches),
                    duration(found.future_ms),
                    size(found.corrupt_bytes),
                ]
            )
    titles = "Partition|#Missing offsets|Before|#Late records|#Late by|#Future|#Ahead by|#Corrupt"
    caption = "Gaps, disorder and future timestamps"
    listed = table(caption, titles.split("|"), rows, can_filter=len(rows) > 10)
    if not rows:
        listed = (
            '<p class="fine">No gaps between batches, no disorder, nothing from the future.</p>'
        )
    note = "Offsets by the time of records, segment by segment: flat is quiet, steep is busy."
    figure = chart("Offsets over time", drawn, legend=legend, note=note)
    return f'<div class="charts wide">{figure}</div>{listed}'


POINTS_MAX: Final = 240


def _offsets_by_time(each: ReportedPartition, now_ms: int) -> list[tuple[float, float]]:
    points = []
    for found in each.headers.segments:
        if found.min_timestamp >= 0:
            points.append((float(min(found.min_timestamp, now_ms)), float(found.base_offset)))
            points.append((float(min(found.max_timestamp, now_ms)), float(found.end_offset)))
    points.sort()
    step = -(-len(points) // POINTS_MAX) if points else 1
    return points[::step]


# -- indexes


def indexes(facts: ReportFacts) -> str:
    """How dense they are, and what a lookup scans."""
    rows, scans = [], []
    for topic in facts.topics:
        if topic.simulated is not None:
            scanned = topic.simulated.scanned
            scans.append(Bar(topic.topic, scanned.p99, human_size(scanned.p99), scanned.mean))
            rows.append(_index_row(topic, topic.simulated))
    titles = (
        "Topic|#Interval|#Offset entries|#Time entries|#Bytes per entry|#Scan mean|#Scan p99|"
        "#Time error|#Error p99|#Unusable files"
    )
    note = (
        "Bytes scanned from the position in the offset index to the batch: 99 of 100 lookups "
        "scan no more. The inner bar is the mean."
    )
    drawn = chart("Scanned per lookup", bars(scans[:TOP]), note=note)
    density = [
        Bar(cell[0].text, float(cell[4].value or 0), cell[4].text)
        for cell in rows[:TOP]
        if cell[4] is not _NONE
    ]
    drawn += chart("Log per index entry", bars(density), note="A lower value means a denser index.")
    return f'<div class="charts">{drawn}</div>' + table("Indexes", titles.split("|"), rows)


def _index_row(topic: ReportedTopic, simulated: SimulatedTopic) -> list[Cell]:
    entries = sum(each.indexes.offset_entries for each in topic.partitions)
    scanned, error = simulated.scanned, simulated.time_error
    return [
        words(topic.topic),
        number(topic.settings.config.index_interval_bytes),
        number(entries),
        number(sum(each.indexes.time_entries for each in topic.partitions)),
        size(topic.size_bytes / entries) if entries else _NONE,
        size(scanned.mean),
        size(scanned.p99),
        duration(error.mean),
        duration(error.p99),
        number(sum(each.indexes.rebuilt for each in topic.partitions)),
    ]


# -- compression and sizes

_CODECS: Final = [codec.name.lower() for codec in Codec]


def compression(facts: ReportFacts) -> str:
    """What the codecs in use save, and what others would."""
    used = [topic for topic in facts.topics if topic.headers.size_bytes][:TOP]
    shares = stacks([(topic.topic, _codec_parts(topic.headers)) for topic in used])
    rows, ratios = [], []
    for topic in facts.topics:
        found = [each.stats for each in topic.partitions if each.stats is not None]
        plain = sum(each.facts.payload_bytes for each in found)
        if not plain or not topic.headers.size_bytes:
            continue
        ratio = plain / topic.headers.size_bytes
        main = max(topic.headers.codecs.items(), key=lambda each: each[1].size_bytes)[0]
        ratios.append(Bar(f"{topic.topic} ({_codec(main)})", ratio, f"{ratio:.2f}"))
        others = [sum(each.size_with(name) for each in found) for name in ("lz4", "zstd", "gzip")]
        rows.append(
            [
                words(topic.topic),
                words(_codec(main)),
                size(topic.headers.size_bytes),
                size(plain),
                number(round(ratio, 3), f"{ratio:.2f}"),
                *(size(other) for other in others),
            ]
        )
    in_use = {codec for topic in used for codec in topic.headers.codecs}
    titles = "Topic|Codec|#Stored|#Keys and values|#Ratio|#With lz4|#With zstd|#With gzip"
    note = "Bytes of keys and values per stored byte. Below 1, headers outweigh what is saved."
    drawn = chart(
        "Codecs",
        shares,
        legend=[_CODECS[codec] if codec in in_use else "" for codec in range(len(_CODECS))],
        note="Share of the stored bytes.",
    )
    if ratios:
        drawn += chart("Compression ratio", bars(ratios[:TOP]), note=note)
    return f'<div class="charts">{drawn}</div>{_by_codec(facts)}' + table(
        "Compression by topic", titles.split("|"), rows
    )


def _codec(codec: int) -> str:
    return _CODECS[codec] if codec < len(_CODECS) else str(codec)


def _codec_parts(facts: HeaderFacts) -> list[tuple[int, float, str]]:
    return [
        (codec, part, f"{_codec(codec)} {part:.0%}")
        for codec, found in sorted(facts.codecs.items())
        if (part := found.size_bytes / facts.size_bytes)
    ]


def _by_codec(facts: ReportFacts) -> str:
    """Partitions that have one codec show what it achieves."""
    stored: Counter[int] = Counter()
    plain: Counter[int] = Counter()
    for each in facts.partitions:
        if each.stats is not None and len(each.headers.codecs) == 1:
            (codec,) = each.headers.codecs
            stored[codec] += each.headers.size_bytes
            plain[codec] += each.stats.facts.payload_bytes
    rows = [
        [
            words(_codec(codec)),
            size(stored[codec]),
            size(plain[codec]),
            number(round(plain[codec] / stored[codec], 3), f"{plain[codec] / stored[codec]:.2f}"),
        ]
        for codec in sorted(stored)
        if stored[codec]
    ]
    titles = ["Codec", "#Stored", "#Keys and values", "#Ratio"]
    return table("Compression ratio by codec", titles, rows)


def sizes(facts: ReportFacts) -> str:
    """Histograms of batches and records."""
    batch_sizes: Counter[int] = Counter()
    batch_records: Counter[int] = Counter()
    record_sizes: Counter[int] = Counter()
    for topic in facts.topics:
        batch_sizes.update(topic.headers.batch_sizes)
        batch_records.update(topic.headers.batch_records)
        for each in topic.partitions:
            if each.stats is not None:
                record_sizes.update(dict(each.stats.facts.sizes))
    drawn = [
        chart("Batches by size", histogram(_powers(batch_sizes, human_size), "batches")),
        chart("Batches by records", histogram(_powers(batch_records, _count), "batches")),
    ]
    if record_sizes:
        bins = _powers(record_sizes, human_size)
        note = "Key and value, uncompressed. Each bin reaches up to its label."
        drawn.append(chart("Records by size", histogram(bins, "records"), note=note))
    rows = [
        [
            words(topic.topic),
            number(topic.headers.batches),
            size(topic.headers.batch_bytes_mean),
            size(topic.headers.largest_batch_bytes),
            number(
                round(topic.headers.records / topic.headers.batches, 1),
                f"{topic.headers.records / topic.headers.batches:,.1f}",
            ),
            size(topic.headers.record_bytes_mean),
            share(topic.headers.header_bytes / topic.headers.size_bytes),
        ]
        for topic in facts.topics
        if topic.headers.batches
    ]
    titles = "Topic|#Batches|#Mean|#Largest|#Records per batch|#Bytes per record|#Headers"
    return f'<div class="charts">{"".join(drawn)}</div>' + table(
        "Batches by topic", titles.split("|"), rows
    )


def _count(value: int) -> str:
    return f"{value:,}"


def _powers(counts: Counter[int], text: Callable[[int], str]) -> list[tuple[str, int]]:
    """Bins for all powers of two between the first and the last."""
    if not counts:
        return []
    low, high = min(counts).bit_length() - 1, max(counts).bit_length() - 1
    return [(text(1 << bit).replace(".0 ", " "), counts[1 << bit]) for bit in range(low, high + 1)]


# -- keys and compaction


def keys(facts: ReportFacts) -> str:
    """How many there are, and how uneven their records are."""
    rows, distinct = [], []
    spread: Counter[int] = Counter()
    for topic in facts.topics:
        found = [each.stats for each in topic.partitions if each.stats is not None]
        records = sum(each.facts.records for each in found)
        count = sum(each.keys.keys for each in found)
        if not records:
            continue
        null_keys = sum(each.facts.null_keys for each in found)
        dead = sum(each.keys.dead_records for each in found)
        top = max(each.keys.top_records for each in found)
        per_partition = [each.facts.records for each in found]
        skew = max(per_partition) / (sum(per_partition) / len(per_partition))
        for each in found:
            spread.update(dict(each.keys.by_records))
        distinct.append(Bar(topic.topic, count, f"{count:,}"))
        rows.append(
            [
                words(topic.topic),
                number(count),
                share(count / records),
                share(null_keys / records),
                number(top),
                share(top / records),
                number(round(skew, 2), f"{skew:.2f}"),
                share(dead / records),
                number(sum(each.facts.tombstones for each in found)),
            ]
        )
    if not rows:
        return '<p class="empty">Keys were not counted.</p>'
    titles = (
        "Topic|#Keys|#Keys per record|#Without key|#Top key's records|#Top key's share|"
        "#Partition skew|#Superseded|#Tombstones"
    )
    note = "If most keys are on the left, cardinality is high. Bars on the right are hot keys."
    drawn = chart("Different keys", bars(distinct[:TOP]), note="Sum over the partitions.")
    drawn += chart("Keys by records", histogram(_powers(spread, _count), "keys"), note=note)
    return f'<div class="charts">{drawn}</div>' + table("Keys by topic", titles.split("|"), rows)


def compaction(facts: ReportFacts) -> str:
    """How dirty logs are, what compaction would save, and what retention would delete."""
    partitions = [each for topic in facts.topics for each in topic.partitions]
    saves = [
        (each, each.stats.compaction_saves_bytes)
        for each in partitions
        if each.stats is not None and each.stats.keys.keys
    ]
    saves.sort(key=lambda pair: -pair[1])
    rows = [
        _compaction_row(each)
        for each in partitions
        if each.dirty_ratio is not None or each.deletable_bytes
    ]
    drawn = bars(
        [
            Bar(
                str(each.topic_partition),
                each.size_bytes,
                f"{human_size(saved)} of {human_size(each.size_bytes)}",
                each.size_bytes - saved,
            )
            for each, saved in saves[:TOP]
        ]
    )
    body = drawn if saves else '<p class="empty">No records with keys.</p>'
    note = (
        "The inner bar shows what would be left: the last record of each key, whatever the "
        "policy is."
    )
    titles = "Partition|#Size|#Dirty ratio|#Dirty|#Compaction saves|#Retention deletes now|Why"
    listed = table(
        "Compaction and retention by partition", titles.split("|"), rows, can_filter=len(rows) > 10
    )
    figure = chart("What compaction would save", body, note=note)
    return f'<div class="charts wide">{figure}</div>{listed}'


def _compaction_row(each: ReportedPartition) -> list[Cell]:
    return [
        words(str(each.topic_partition)),
        size(each.size_bytes),
        share(each.dirty_ratio),
        size(each.cleanable_bytes),
        _NONE if each.stats is None else size(each.stats.compaction_saves_bytes),
        size(each.deletable_bytes),
        words(each.compaction_text or "not compacted"),
    ]


# -- producers and transactions


def producers(facts: ReportFacts) -> str:
    """Open transactions first, overdue ones before others."""
    found = [txn for each in facts.partitions for txn in each.open_transactions]
    found.sort(key=lambda txn: (not txn.is_overdue, txn.last_timestamp))
    rows = [
        [
            Cell("overdue", 0, "error") if txn.is_overdue else Cell("open", 1, "warning"),
            words(str(txn.topic_partition)),
            number(txn.producer_id),
            number(txn.producer_epoch),
            number(txn.first_offset),
            moment(txn.last_timestamp),
            duration(max(0, facts.now_ms - txn.last_timestamp)),
        ]
        for txn in found
    ]
    titles = "State|Partition|#Producer|#Epoch|#First offset|Last written|#Since"
    opened = table("Open transactions", titles.split("|"), rows)
    if not rows:
        opened = '<p class="fine">No transaction is open.</p>'
    rows = [
        [
            words(str(each.topic_partition)),
            number(len(each.headers.producers)),
            number(each.producers),
            number(each.headers.transactional_batches),
            number(each.headers.control_batches),
            number(each.aborted_transactions),
            number(each.log_end_offset - each.last_stable_offset),
        ]
        for each in facts.partitions
        if each.headers.producers or each.producers
    ]
    titles = (
        "Partition|#Producer ids|#Remembered|#Transactional batches|#Markers|#Aborted|#Unstable"
    )
    return opened + table(
        "Producers by partition", titles.split("|"), rows, can_filter=len(rows) > 10
    )


# -- findings and advice


def findings(facts: ReportFacts) -> str:
    """What verify found."""
    if facts.verified is None:
        return '<p class="empty">Files were not verified: this is a quick report.</p>'
    found = sorted(facts.verified.findings, key=lambda each: list(Severity).index(each.severity))
    if not found:
        checked = facts.verified.counts
        return (
            f'<p class="fine">No findings. Verified: {checked.batches:,} batches with all records '
            f"and CRCs, {checked.index_entries:,} index entries, {checked.files:,} files.</p>"
        )
    grave = [each for each in found if each.severity is not Severity.NOTE]
    notes = found[len(grave) :]
    counts = Counter((each.severity, each.code) for each in found)
    drawn = bars(
        [
            Bar(f"{code} ({severity})", n, f"{n:,}")
            for (severity, code), n in counts.most_common(TOP)
        ]
    )
    body = f'<div class="charts wide">{chart("Findings of verify", drawn)}</div>'
    body += _findings_table("Errors and warnings", grave, facts)
    if not grave:
        body += '<p class="fine">No errors and no warnings.</p>'
    if notes:
        listed = _findings_table("Notes", notes, facts)
        title = f"{counted(len(notes), 'note')} <small>Kafka itself leaves these</small>"
        body += f"<details><summary>{title}</summary>{listed}</details>"
    return body


FINDINGS_MAX: Final = 500


def _findings_table(caption: str, found: Sequence[Finding], facts: ReportFacts) -> str:
    rows = [
        [
            Cell(each.severity.value, list(Severity).index(each.severity), each.severity.value),
            words(each.code),
            words(_short_path(each.path, facts)),
            _NONE if each.position < 0 else number(each.position),
            words(each.what),
            words(each.advice),
        ]
        for each in found[:FINDINGS_MAX]
    ]
    titles = "Severity|Code|File|#Byte|What|What to do"
    left = len(found) - FINDINGS_MAX
    more = f"<p>And {left:,} more: stratalog verify lists them.</p>" if left > 0 else ""
    return table(caption, titles.split("|"), rows) + more


def _short_path(path: str, facts: ReportFacts) -> str:
    for root in facts.directories:
        path = path.removeprefix(f"{root}/")
    return path


def advice(facts: ReportFacts) -> str:
    """What tune recommends, traps first."""
    found: list[str] = []
    for topic in facts.topics:
        if topic.advice is None:
            continue
        now = topic.settings.config.as_dict()
        traps = "".join(
            f'<li><span class="badge {trap.severity}">{trap.severity}</span> '
            f"{escape(trap.what)}<small>{escape(trap.arithmetic)}</small>"
            f"<small>{escape(trap.advice)}</small></li>"
            for trap in topic.advice.traps
        )
        traps = f'<ul class="traps">{traps}</ul>' if traps else ""
        changed = [
            each for each in topic.advice.recommendations if now.get(each.setting) != each.value
        ]
        rows = "".join(
            f"<dt><code>{escape(each.setting)}={escape(each.value)}</code> "
            f"<small>{escape(_change_text(each, now))}</small></dt>"
            f"<dd>{escape(each.reason)}<small>{escape(each.arithmetic)}</small>"
            f"<small>{escape(each.trade_off)}</small></dd>"
            for each in changed
        )
        body = f"<dl>{rows}</dl>" if rows else '<p class="fine">Its settings are as advised.</p>'
        counts = f"{counted(len(topic.advice.traps), 'trap')}, {counted(len(changed), 'change')}"
        opened = " open" if len(found) < 3 else ""
        found.append(
            f"<details{opened}><summary>{escape(topic.topic)} <small>{counts}</small></summary>"
            f"{traps}{body}</details>"
        )
    return "".join(found) or '<p class="empty">No topic has records.</p>'


def _change_text(each: Recommendation, now: Mapping[str, str]) -> str:
    before = now.get(each.setting)
    was = "a broker setting" if before is None else f"now {shown_value(each.setting, before)}"
    return was if each.shown == each.value else f"{each.shown}, {was}"

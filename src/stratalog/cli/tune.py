"""`stratalog tune`: recommend topic settings, and simulate a log with other settings."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stratalog.bulk.workers import Clock
from stratalog.cli.arguments import (
    ConfigOption,
    JsonOption,
    NowOption,
    SettingsFiles,
    flag,
    now_or,
    option,
    setting_values,
    with_groups,
)
from stratalog.cli.output import JobProgress, json_line, json_names, summary_row
from stratalog.cli.settings import Overrides
from stratalog.cli.tables import Column, counted, duration_text, human_size, print_table
from stratalog.cli.targets import TargetOptions, log_bytes_of
from stratalog.cli.workers import SparkOptions, result_text
from stratalog.config import LogConfig
from stratalog.format.quantities import SIZE_HELP, InvalidQuantityError, parse_size
from stratalog.format.times import format_time, parse_duration, parse_integer
from stratalog.log.partition_view import PartitionView
from stratalog.storage.remote_path import location
from stratalog.tuning.advice import settings_of, shown_value
from stratalog.tuning.topic import advise, workload_of
from stratalog.tuning.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stratalog.bulk.stats import StatsResult
    from stratalog.bulk.survey import SurveyedPartition, SurveyResult
    from stratalog.partitions.settings import SettingsFinder
    from stratalog.storage.roll import RollReason
    from stratalog.tuning.simulation import SimulatedLog, SimulatedTopic
    from stratalog.tuning.topic import TopicAdvice

SIMULATED_MAX: Final = 2
CURRENT, ADVISED = "current", "advised"
_NEXT_SETTING: Final = re.compile(r",(?=\s*[a-z][a-z.]*=)")
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_LABEL_CHARS: Final = 8
_DURATION_HELP: Final = "milliseconds, or with units: 90s, 1h30m, 7d"


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except InvalidQuantityError as error:
        raise typer.BadParameter(str(error)) from None


def _duration(text: str) -> int:
    found = parse_integer(text) if text.isdigit() else parse_duration(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration; use {_DURATION_HELP}")
    return found


def _size_option(text: str) -> Any:
    return typer.Option(parser=_size, metavar="SIZE", help=text)


@with_groups
def run(  # noqa: PLR0913  # a parameter is a flag
    *,
    targets: TargetOptions,
    message_bytes: Annotated[
        int | None, _size_option(f"Mean size of a stored record: {SIZE_HELP}.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="N", help="Records per second, in all partitions of the topic together."
        ),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of partitions of the topic.")
    ] = None,
    retention: Annotated[
        int | None,
        typer.Option(
            parser=_duration, metavar="TIME", help=f"How long to keep records: {_DURATION_HELP}."
        ),
    ] = None,
    retention_bytes: Annotated[
        int | None, _size_option("How much of each partition to keep, in the same units.")
    ] = None,
    lookups: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Lookups by offset per second: consumers that start, seek or fetch old data.",
        ),
    ] = None,
    time_lookups: Annotated[
        float | None, typer.Option(min=0, metavar="N", help="Lookups by time per second.")
    ] = None,
    segment_bytes: Annotated[
        int | None, _size_option("Use this segment.bytes, and recommend the other settings.")
    ] = None,
    batch_bytes: Annotated[int | None, _size_option("Mean size of a stored batch.")] = None,
    compacted: Annotated[
        bool | None,
        typer.Option("--compacted", help="The topic is compacted.", show_default=False),
    ] = None,
    broker_partitions: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of partitions of all topics on a broker."),
    ] = None,
    simulate: Annotated[
        list[str] | None,
        option(
            "--simulate",
            "CONFIG",
            "Simulate the log with these settings: NAME=VALUE,NAME=VALUE,…, current or advised. "
            "Give it twice to compare two simulations.",
        ),
    ] = None,
    keys: Annotated[
        bool, flag("--keys", "Also read all records, to count keys and values.")
    ] = False,
    now: NowOption = None,
    config: ConfigOption = None,
    settings_files: SettingsFiles,
    spark: SparkOptions,
    as_json: JsonOption = False,
) -> None:
    """Recommend topic settings, based on figures that you give, on logs, or on both; simulate them.

    Each recommendation comes with its reason, the arithmetic behind it and the trade-off. Traps are
    settings that have surprising effects, on their own or with this data. Figures on the command
    line override what the log shows.

    --simulate reads batch headers only. With the rules that write real logs, it computes how the
    log would be stored: segments and what rolled each, index sizes, bytes scanned per lookup, the
    error of a lookup by time, how long records outlive their retention, disk use over time, and
    what compaction would do. Nothing is written. Each batch counts as one append, and record
    timestamps serve as the clock.

    \b
    Examples:
      stratalog tune --message-bytes 300 --rate 5000 --partitions 12 --retention 3d --lookups 50
      stratalog tune /var/lib/kafka/data
      stratalog tune orders -d /data --time-lookups 20 --simulate current --simulate advised
      stratalog tune orders -d /data --simulate segment.bytes=64MiB,index.interval.bytes=1024

    With --json, the command prints one object per recommendation, trap and simulated partition.
    """
    spark.check()
    numbers: dict[str, object] = {
        "message_bytes": message_bytes,
        "rate": rate,
        "partitions": partitions,
        "retention_ms": retention,
        "retention_bytes": retention_bytes,
        "offset_lookups": lookups,
        "time_lookups": time_lookups,
        "segment_bytes": segment_bytes,
        "batch_bytes": batch_bytes,
        "is_compacted": compacted,
        "broker_partitions": broker_partitions,
    }
    given = Overrides.parse(config or [], *settings_files)
    wanted = [_Wanted.parse(text) for text in simulate or []]
    if len(wanted) > SIMULATED_MAX:
        raise typer.BadParameter("give --simulate once or twice")
    is_told = any(value is not None for value in numbers.values())
    if is_told and not targets.where and not targets.log_dir and not wanted and not keys:
        base = LogConfig.parse(given.of_topics)
        _print_advice([advise("", Workload().given(numbers), base)], as_json=as_json)
        return
    paths = targets.partitions()
    clock = Clock()
    configs = _configs_of(paths, given.finder(targets.log_dir, paths), given.of_topics)
    request = _Request(numbers, configs, tuple(wanted), now_or(now, "--now"))
    with ExitStack() as stack:
        progress = stack.enter_context(JobProgress(log_bytes_of(paths) * (2 if keys else 1)))
        workers = stack.enter_context(spark.workers("stratalog tune", progress))
        found = _look(paths, request, workers, keys=keys)
    _print_advice(found.advice, as_json=as_json)
    _print_simulations(found, wanted, as_json=as_json)
    if as_json:
        result = found.survey
        print(json_line(summary_row(result.records, result.size_bytes, clock.seconds)))
    else:
        print(result_text(found.survey))


# -- what to simulate


@dataclass(frozen=True)
class _Wanted:
    """A config to simulate: settings above those of the topic."""

    label: str
    settings: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> _Wanted:
        word = text.strip()
        if word in {CURRENT, ADVISED}:
            return cls(word, {})
        settings = setting_values("--simulate", _NEXT_SETTING.split(word))
        LogConfig.parse(settings)
        return cls(word, settings)

    def config_of(self, advice: TopicAdvice) -> LogConfig:
        if self.label == ADVISED:
            return settings_of(advice.recommendations, advice.config)
        return LogConfig.parse(self.settings, advice.config)


# -- looking at the log


@dataclass(frozen=True)
class _Request:
    numbers: Mapping[str, object]
    configs: Mapping[str, LogConfig]
    """Of each topic."""
    wanted: tuple[_Wanted, ...]
    now_ms: int


@dataclass(frozen=True)
class _Recommendations:
    advice: list[TopicAdvice]
    survey: SurveyResult


def _look(
    paths: Sequence[Path], request: _Request, workers: Any, *, keys: bool
) -> _Recommendations:
    """Two passes if a config to simulate is that of the advice, which needs the first."""
    from stratalog.bulk.stats import stats  # noqa: PLC0415 - heavy
    from stratalog.bulk.survey import survey  # noqa: PLC0415

    counted_keys = stats(paths, workers=workers) if keys else None
    needs_advice = any(each.label == ADVISED for each in request.wanted)
    first: dict[str, list[LogConfig]] = {}
    if not needs_advice:
        for topic, config in request.configs.items():
            first[topic] = [LogConfig.parse(each.settings, config) for each in request.wanted]
    result = survey(paths, configs=first, now_ms=request.now_ms, workers=workers)
    advice = _advise(result, request, counted_keys)
    if needs_advice:
        second = {
            each.topic: [wanted.config_of(each) for wanted in request.wanted] for each in advice
        }
        result = survey(paths, configs=second, now_ms=request.now_ms, workers=workers)
    return _Recommendations(advice, result)


def _configs_of(
    paths: Sequence[Path], finder: SettingsFinder, overrides: Mapping[str, object]
) -> dict[str, LogConfig]:
    """The settings of each topic."""
    configs: dict[str, LogConfig] = {}
    for path in paths:
        with PartitionView(path) as view:
            topic = view.topic_partition.topic
            if topic not in configs:
                configs[topic] = finder.of(view).given(overrides).config
    return configs


def _advise(
    result: SurveyResult, request: _Request, counted_keys: StatsResult | None
) -> list[TopicAdvice]:
    from stratalog.bulk.stats import measured_keys, sample_codecs  # noqa: PLC0415 - heavy
    from stratalog.tuning.headers import sum_of_facts  # noqa: PLC0415

    advice = []
    segments = sum(len(each.facts.segments) for each in result.partitions)
    for topic, found in _by_topic(result.partitions).items():
        largest = max(found, key=lambda each: each.facts.size_bytes)
        measured: dict[str, object] = {
            "codec_ratios": sample_codecs(location(largest.path)),
            "broker_partitions": len(result.partitions),
        }
        if counted_keys is not None:
            measured |= measured_keys(
                [each for each in counted_keys.partitions if each.topic == topic]
            )
        facts = sum_of_facts(each.facts for each in found)
        config = request.configs[topic]
        workload = workload_of(facts, len(found), config, measured)
        advice.append(advise(topic, workload.given(request.numbers), config, segments))
    return advice


def _by_topic(found: Sequence[SurveyedPartition]) -> dict[str, list[SurveyedPartition]]:
    topics: dict[str, list[SurveyedPartition]] = {}
    for each in found:
        topics.setdefault(each.topic_partition.topic, []).append(each)
    return topics


# -- printing advice


def _print_advice(advice: Sequence[TopicAdvice], *, as_json: bool) -> None:
    for each in advice:
        if as_json:
            for row in _advice_rows(each):
                print(json_line(row))
        else:
            print("\n".join(_advice_lines(each)))
            print()


def _advice_rows(advice: TopicAdvice) -> Iterator[dict[str, Any]]:
    texts = advice.config.as_dict()
    topic = advice.topic or None
    for each in advice.recommendations:
        row = json_names(each._asdict())
        yield {"kind": "recommendation", "topic": topic, **row, "now": texts.get(each.setting)}
    for trap in advice.traps:
        yield {"kind": "trap", "topic": topic, **json_names(trap._asdict())}


def _advice_lines(advice: TopicAdvice) -> Iterator[str]:
    texts = advice.config.as_dict()
    yield f"{advice.topic or 'A topic like this'}: {_workload_text(advice.workload)}"
    for each in advice.recommendations:
        now = texts.get(each.setting)
        change = ""
        if advice.topic and now is not None:
            change = (
                " (as it is)" if now == each.value else f" (now {shown_value(each.setting, now)})"
            )
        shown = "" if each.shown == each.value else f", {each.shown}"
        yield f"  {each.setting}={each.value}{shown}{change}"
        yield from _labelled(why=each.reason, sum=each.arithmetic, but=each.trade_off)
    for trap in advice.traps:
        yield f"  {trap.severity}: {trap.what} [{trap.code}]"
        yield from _labelled(sum=trap.arithmetic, do=trap.advice)


def _labelled(**texts: str) -> Iterator[str]:
    for label, text in texts.items():
        yield f"    {label:<{_LABEL_CHARS - 4}} {text}"


def _workload_text(workload: Workload) -> str:
    parts = [counted(workload.partitions, "partition")]
    if workload.message_bytes:
        parts.append(f"records of {workload.message_bytes:,.0f} B")
    if workload.batch_bytes:
        parts.append(f"batches of {human_size(round(workload.batch_bytes))}")
    if workload.rate:
        parts.append(f"{workload.rate:,.{0 if workload.rate >= 10 else 2}f} records/s")
    if workload.lookups:
        parts.append(f"{workload.lookups:,.4g} lookups/s")
    return ", ".join(parts)


# -- printing simulations


def _print_simulations(
    found: _Recommendations, wanted: Sequence[_Wanted], *, as_json: bool
) -> None:
    if not wanted:
        return
    from stratalog.tuning.simulation import sum_of_logs  # noqa: PLC0415 - heavy

    for topic, partitions in _by_topic(found.survey.partitions).items():
        if as_json:
            for each in partitions:
                for config, simulated in zip(wanted, each.simulated, strict=True):
                    print(json_line(_simulation_row(each, config, simulated)))
            continue
        columns = zip(*(each.simulated for each in partitions), strict=True)
        sums = [sum_of_logs(column) for column in columns]
        print(f"{topic}: {counted(len(partitions), 'partition')}, simulated")
        titles = [Column(""), *(Column(each.label, fold_at=44) for each in wanted)]
        print_table(titles, _rows_of(sums))
        print()


def _rows_of(sums: Sequence[SimulatedTopic]) -> list[tuple[str, ...]]:
    """One row for each figure, one column for each config."""
    found = [_figures(each) for each in sums]
    return [(name, *(each[name] for each in found)) for name in found[0]]


def _figures(log: SimulatedTopic) -> dict[str, str]:
    retention, compactions = log.retention, log.compactions
    figures = {
        "segments": f"{log.segments:,}",
        "rolled by": ", ".join(
            f"{_word(reason)} {count:,}" for reason, count in log.rolls.most_common()
        )
        or "nothing",
        "offset entries": f"{log.offset_entries:,}",
        "time entries": f"{log.time_entries:,}",
        "index size": human_size(log.index_bytes),
        "scanned per lookup": f"mean {human_size(round(log.scanned.mean))}, "
        f"p99 {human_size(log.scanned.p99)}",
        "time lookup error": f"mean {duration_text(round(log.time_error.mean))}, "
        f"p99 {duration_text(log.time_error.p99)}",
        "retention lag": f"mean {duration_text(retention.lag_mean_ms)}, "
        f"up to {duration_text(retention.lag_max_ms)}",
        "deleted now": f"{counted(retention.deleted_segments, 'segment')}, "
        f"{human_size(retention.deleted_bytes)}",
        "largest disk use": human_size(log.peak_bytes),
        "disk use": _sparkline(log),
    }
    figures["compaction"] = "off"
    if compactions:
        eligible = sum(each.is_eligible for each in compactions)
        before = sum(each.segments_before for each in compactions)
        after = sum(each.segments_after for each in compactions)
        dirty = human_size(sum(each.cleanable_bytes for each in compactions))
        figures["compaction"] = (
            f"{eligible} of {counted(len(compactions), 'partition')} eligible, {dirty} dirty, "
            f"{before:,} segments to {after:,}"
        )
    return figures


def _sparkline(log: SimulatedTopic) -> str:
    if not log.disk:
        return "unknown: no timestamps"
    step = max(1, len(log.disk) // 30)
    sizes = [point.size_bytes for point in log.disk[::step]]
    top = max(*sizes, 1)
    bars = "".join(_SPARKS[min(7, 8 * size // (top + 1))] for size in sizes)
    days = [format_time(point.time_ms)[:10] for point in (log.disk[0], log.disk[-1])]
    return f"{bars} {' to '.join(dict.fromkeys(days))}"


def _word(reason: RollReason) -> str:
    return reason.name.lower().replace("_", "-")


def _simulation_row(found: SurveyedPartition, wanted: _Wanted, log: SimulatedLog) -> dict[str, Any]:
    scanned, error = log.scanned, log.time_error
    return {
        "kind": "simulation",
        "topic": found.topic_partition.topic,
        "partition": found.topic_partition.partition,
        "label": wanted.label,
        "config": log.config.overrides(),
        "segments": [
            {
                "baseOffset": each.base_offset,
                "endOffset": each.end_offset,
                "sizeBytes": each.size_bytes,
                "batches": each.batches,
                "offsetEntries": each.offset_entries,
                "timeEntries": each.time_entries,
                "largestTimestamp": each.largest_timestamp,
                "rolledBy": None if each.rolled_by is None else _word(each.rolled_by),
            }
            for each in log.segments
        ],
        "offsetEntries": sum(each.offset_entries for each in log.segments),
        "timeEntries": sum(each.time_entries for each in log.segments),
        "indexBytes": sum(each.index_bytes for each in log.segments),
        "scannedBytesMean": round(scanned.mean),
        "scannedBytesP99": scanned.p99,
        "timeErrorMeanMs": round(error.mean),
        "timeErrorP99Ms": error.p99,
        "retention": json_names(log.retention._asdict()),
        "disk": [{"timeMs": time_ms, "sizeBytes": size} for time_ms, size in log.disk],
        "compaction": None if log.compaction is None else json_names(log.compaction._asdict()),
    }

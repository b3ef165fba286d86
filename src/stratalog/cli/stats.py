"""`stratalog stats`: records, keys and sizes of topics, and what other settings would save."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.bulk.workers import Clock
from stratalog.cli.arguments import (
    JsonOption,
    LogDirOption,
    MetadataLogDirOption,
    ServerPropertiesOption,
    WhereArgument,
    key_values,
)
from stratalog.cli.bulk import ConfOption, MasterOption, check_conf, result_text, workers_of
from stratalog.cli.output import JobProgress, json_line, json_names, summary_row
from stratalog.cli.settings import Overrides
from stratalog.cli.tables import NOTHING, columns_of, human_size, print_table
from stratalog.cli.targets import targets_of
from stratalog.format.times import format_time
from stratalog.log.partition_view import PartitionView
from stratalog.partitions.settings import POLICY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from stratalog.bulk.stats import PartitionStats, StatsResult
    from stratalog.partitions.settings import EffectiveConfig

_COLUMNS = columns_of(
    "TOPIC | PARTITION# | RECORDS# | KEYS# | SUPERSEDED# | TOMBSTONES#/3 | SIZE# | "
    "COMPACTED# | ZSTD#/1 | LZ4#/2"
)
_BAR_CHARS = 40


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    where: WhereArgument = None,
    log_dir: LogDirOption = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="KEY=VALUE",
            help="Show how much retention would free with this retention.ms or retention.bytes. "
            "Repeatable.",
        ),
    ] = None,
    server_properties: ServerPropertiesOption = None,
    metadata_log_dir: MetadataLogDirOption = None,
    histograms: Annotated[
        bool,
        typer.Option("--histograms", "-H", help="Also show histograms of record sizes and times."),
    ] = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count records, keys and sizes of topics; estimate what other settings would save.

    SUPERSEDED is the share of records that have a later record with the same key. COMPACTED
    estimates the size of the log after compaction, ZSTD and LZ4 its size with that
    compression.type. Keys are counted by 64-bit hashes.

    --what-if shows what each setting alone would free, given the cleanup.policy of the topic from
    its settings or the cluster's metadata; if that is unknown, delete is assumed.

    \b
    Examples:
      stratalog stats /var/lib/kafka/data
      stratalog stats orders -d /var/lib/kafka/data --histograms
      stratalog stats orders:3 -d /data --what-if retention.ms=86400000

    With --json there is one object per partition, and a last one of kind summary.
    """
    clock = Clock()
    from stratalog.bulk.stats import stats  # noqa: PLC0415 - heavy

    check_conf(conf, master)
    partitions = targets_of(where, log_dir).all_partitions()
    settings = key_values("--what-if", what_if or [])
    given = Overrides.parse((), server_properties, metadata_log_dir)
    configs = _configs_of(partitions, given, log_dir or []) if settings else {}
    with (
        JobProgress(_size_of(partitions)) as progress,
        workers_of("stratalog stats", master, conf, progress) as workers,
    ):
        policies = {path: each.config.as_dict()[POLICY] for path, each in configs.items()}
        result = stats(partitions, what_if=settings, policies=policies, workers=workers)
    result = replace(result, seconds=clock.seconds)
    by_topic = {path.name.rpartition("-")[0]: each for path, each in configs.items()}
    if as_json:
        _print_json(result, by_topic)
    else:
        _print_text(result, by_topic, shows_histograms=histograms)


def _configs_of(
    partitions: Sequence[Path], given: Overrides, log_dirs: Sequence[Path]
) -> dict[Path, EffectiveConfig]:
    """The settings of each partition's topic."""
    roots = [path.absolute().parent for path in partitions]
    finder = given.finder(dict.fromkeys([*log_dirs, *roots]))
    configs = {}
    for path in partitions:
        with PartitionView(path) as view:
            configs[path.absolute()] = finder.of(view)
    return configs


def _size_of(partitions: Sequence[Path]) -> int:
    return sum(log.stat().st_size for path in partitions for log in path.glob("*.log"))


def _row(stats: PartitionStats, settings: EffectiveConfig | None) -> dict[str, Any]:
    facts = stats.facts._asdict()
    facts["sizes"] = [{"bytesMax": size, "records": count} for size, count in stats.facts.sizes]
    facts["hours"] = [
        {"startMs": start, "records": records, "payloadBytes": size}
        for start, records, size in stats.facts.hours
    ]
    facts["codecs"] = {codec: stats.size_with(codec) for codec, _ in stats.facts.codecs}
    return {
        "kind": "partition",
        "topic": stats.topic,
        "partition": stats.partition,
        "sizeBytes": stats.size_bytes,
        **json_names(facts),
        **json_names(stats.keys._asdict()),
        "compactionSavesBytes": stats.compaction_saves_bytes,
        "freedBy": dict(stats.freed_by),
        **_policy_row(settings),
    }


def _policy_row(settings: EffectiveConfig | None) -> dict[str, Any]:
    """The policy that --what-if assumes."""
    if settings is None:
        return {}
    return {
        "cleanupPolicy": settings.config.as_dict()[POLICY],
        "cleanupPolicySource": settings.source_of(POLICY).value,
        "settingsUnknown": settings.unknown,
    }


def _print_json(result: StatsResult, settings: Mapping[str, EffectiveConfig]) -> None:
    for partition in result.partitions:
        print(json_line(_row(partition, settings.get(partition.topic))))
    more = {"partitions": len(result.partitions), "tasks": result.tasks}
    print(json_line(summary_row(result.records, result.size_bytes, result.seconds, **more)))


def _print_text(
    result: StatsResult, settings: Mapping[str, EffectiveConfig], *, shows_histograms: bool
) -> None:
    print_table(_COLUMNS, [_cells(partition) for partition in result.partitions])
    for partition in result.partitions:
        name = f"{partition.topic}:{partition.partition}"
        for setting, freed in partition.freed_by.items():
            by = _policy_text(settings[partition.topic])
            print(f"{name}: {setting} would free {human_size(freed)} now, with {by}")
        if shows_histograms:
            _print_histograms(name, partition)
    print(result_text(result))


def _policy_text(settings: EffectiveConfig) -> str:
    source = "assumed" if settings.unknown is not None else settings.source_of(POLICY).label
    return f"{POLICY}={settings.config.as_dict()[POLICY]} ({source})"


def _cells(stats: PartitionStats) -> tuple[str, ...]:
    facts, keys = stats.facts, stats.keys
    codecs = dict(facts.codecs)
    return (
        stats.topic,
        str(stats.partition),
        f"{facts.records:,}",
        f"{keys.keys:,}",
        f"{stats.dead_ratio:.1%}",
        f"{facts.tombstones:,}",
        human_size(stats.size_bytes),
        human_size(stats.size_bytes - stats.compaction_saves_bytes),
        human_size(stats.size_with("zstd")) if "zstd" in codecs else NOTHING,
        human_size(stats.size_with("lz4")) if "lz4" in codecs else NOTHING,
    )


def _print_histograms(name: str, stats: PartitionStats) -> None:
    facts = stats.facts
    print(f"{name}: records by size of key and value")
    _print_bars([(f"up to {human_size(size)}", count) for size, count in facts.sizes])
    print(f"{name}: records by {'hour' if len(facts.hours) <= 48 else 'day'} (UTC)")
    _print_bars(_by_time(facts.hours))


def _by_time(hours: Sequence[tuple[int, int, int]]) -> list[tuple[str, int]]:
    """By hour, or by day if there are many hours."""
    length = len("2026-11-16T00:00") if len(hours) <= 48 else len("2026-11-16")
    found: dict[str, int] = {}
    for start, records, _ in hours:
        label = format_time(start)[:length]
        found[label] = found.get(label, 0) + records
    return list(found.items())


def _print_bars(bars: Sequence[tuple[str, int]]) -> None:
    largest = max((count for _, count in bars), default=0)
    width = max((len(label) for label, _ in bars), default=0)
    for label, count in bars:
        bar = "#" * max(1, round(_BAR_CHARS * count / largest))
        print(f"  {label.rjust(width)}  {bar} {count:,}")

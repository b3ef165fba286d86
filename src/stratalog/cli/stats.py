"""`stratalog stats`: records, keys and sizes of topics, and what other settings would save."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from stratalog.bulk.workers import Clock
from stratalog.cli.arguments import (
    JsonOption,
    SettingsFiles,
    flag,
    option,
    setting_values,
    with_groups,
)
from stratalog.cli.compact import SETTINGS as COMPACTION
from stratalog.cli.output import JobProgress, json_line, json_names
from stratalog.cli.retain import SETTINGS as RETENTION
from stratalog.cli.settings import Overrides
from stratalog.cli.tables import NOTHING, columns_of, counted, human_size, print_table
from stratalog.cli.targets import TargetOptions, log_bytes_of
from stratalog.cli.workers import SparkOptions, result_row, result_text
from stratalog.config import LogConfig
from stratalog.errors import JobError
from stratalog.format.names import RootFile, TopicPartition
from stratalog.format.times import current_time_ms, format_time
from stratalog.log.partition_view import PartitionView, identity_of
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.partitions.retention_plans import FailedPartition, RetentionPlanner
from stratalog.partitions.settings import POLICY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from stratalog.bulk.stats import PartitionStats, StatsResult
    from stratalog.partitions.settings import EffectiveConfig, SettingsFinder

_COLUMNS = columns_of(
    "TOPIC | PARTITION# | RECORDS# | KEYS# | SUPERSEDED# | TOMBSTONES#/3 | SIZE# | "
    "COMPACTED# | ZSTD#/1 | LZ4#/2"
)
_BAR_CHARS = 40


@with_groups
def run(
    *,
    targets: TargetOptions,
    what_if: Annotated[
        list[str] | None,
        option(
            "--what-if",
            "KEY=VALUE",
            "Show how much space this setting would free now: retention.ms, retention.bytes, "
            "cleanup.policy or a compaction setting. Repeatable; each is evaluated on its own.",
        ),
    ] = None,
    settings_files: SettingsFiles,
    histograms: Annotated[
        bool, flag("--histograms", "Also show histograms of record sizes and times.", short="-H")
    ] = False,
    spark: SparkOptions,
    as_json: JsonOption = False,
) -> None:
    """Count records and keys, measure sizes; estimate what other settings would save.

    SUPERSEDED is the share of records that have a later record with the same key. COMPACTED is the
    estimated size of the log after compaction; ZSTD and LZ4 are its estimated sizes with that
    compression.type. Keys are counted by 64-bit hashes.

    --what-if shows how much space each setting would free now, with all other settings of the topic
    unchanged. The result is the same as that of `stratalog retain --dry-run` or, for
    cleanup.policy=compact, of `stratalog compact --dry-run` with this setting as --config. If the
    cleanup.policy of a topic is unknown, delete is assumed.

    \b
    Examples:
      stratalog stats /var/lib/kafka/data
      stratalog stats orders -d /var/lib/kafka/data --histograms
      stratalog stats orders:3 -d /data --what-if retention.ms=1d

    With --json, the command prints one object per partition. The last object is of kind summary.
    """
    clock = Clock()
    from stratalog.bulk.stats import stats  # noqa: PLC0415 - heavy

    spark.check()
    partitions = targets.partitions()
    settings = setting_values("--what-if", what_if or [])
    given = Overrides.parse((), *settings_files)
    with (
        JobProgress(log_bytes_of(partitions)) as progress,
        spark.workers("stratalog stats", progress) as workers,
    ):
        finder = given.finder(targets.log_dir, partitions)
        freeing = _Freeing(settings, finder, has_broker_config=given.has_properties)
        freed = {path.absolute(): freeing.of(path) for path in partitions} if settings else {}
        result = stats(partitions, workers=workers)
    by_place = {identity_of(path)[0]: found for path, found in freed.items()}
    found = tuple(
        replace(each, freed_by=by_place.get(TopicPartition(each.topic, each.partition), {}))
        for each in result.partitions
    )
    result = replace(result, partitions=found, seconds=clock.seconds)
    by_topic = freeing.policies
    if as_json:
        _print_json(result, by_topic)
    else:
        _print_text(result, by_topic, shows_histograms=histograms)


class _Freeing:
    """What each of some settings would free, by the plans of retention and compaction."""

    def __init__(
        self, settings: Mapping[str, str], finder: SettingsFinder, *, has_broker_config: bool
    ) -> None:
        self._settings = settings
        self._now_ms = current_time_ms()
        self._finder = finder
        self._planners = {
            name: RetentionPlanner(
                self._finder,
                self._now_ms,
                overrides={name: value},
                has_broker_config=has_broker_config,
                uses_defaults=False,
            )
            for name, value in settings.items()
        }
        self.policies: dict[str, EffectiveConfig] = {}
        """The settings of topics, by topic."""
        for name, value in settings.items():
            LogConfig.parse({name: value})

    def of(self, path: Path) -> dict[str, int]:
        """Bytes by setting, for a partition."""
        with PartitionView(path) as view:
            self.policies[view.topic_partition.topic] = self._finder.of(view)
            return {
                f"{name}={value}": self._freed(view, name, value)
                for name, value in self._settings.items()
            }

    def _freed(self, view: PartitionView, name: str, value: str) -> int:
        outcome = self._planners[name].plan(view)
        if isinstance(outcome, FailedPartition):
            raise JobError(outcome.message)
        freed = outcome.plan.deleted_bytes if name in RETENTION else 0
        settings = self._finder.of(view).given({name: value})
        if name in COMPACTION and settings.unknown is None and settings.config.is_compacted:
            freed += self._compacted(view, settings)
        return freed

    def _compacted(self, view: PartitionView, settings: EffectiveConfig) -> int:
        from stratalog.maintenance.cleaning.preview import preview_cleaning  # noqa: PLC0415

        log = cleaner_log(view, view.checkpointed(RootFile.CLEANER_OFFSETS))
        plan = plan_cleaning(log, settings.config, self._now_ms)
        return preview_cleaning(view, plan, settings.config).freed_bytes if plan.is_selected else 0


def _row(stats: PartitionStats, settings: EffectiveConfig | None) -> dict[str, Any]:
    measured = {**stats.facts._asdict(), **stats.keys._asdict()}
    measured["sizes"] = [{"bytesMax": size, "records": count} for size, count in stats.facts.sizes]
    measured["hours"] = [
        {"startMs": start, "records": records, "payloadBytes": size}
        for start, records, size in stats.facts.hours
    ]
    measured["by_records"] = [
        {"recordsMax": records, "keys": count} for records, count in stats.keys.by_records
    ]
    measured["codecs"] = {codec: stats.size_with(codec) for codec, _ in stats.facts.codecs}
    return {
        "kind": "partition",
        "topic": stats.topic,
        "partition": stats.partition,
        "sizeBytes": stats.size_bytes,
        **json_names(measured),
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
    totals: Counter[str] = Counter()
    for partition in result.partitions:
        totals.update(partition.freed_by)
    more = {"partitions": len(result.partitions), "tasks": result.tasks, "freedBy": dict(totals)}
    print(json_line(result_row(result, **more)))


def _print_text(
    result: StatsResult, settings: Mapping[str, EffectiveConfig], *, shows_histograms: bool
) -> None:
    print_table(_COLUMNS, [_cells(partition) for partition in result.partitions])
    totals: Counter[str] = Counter()
    for partition in result.partitions:
        name = f"{partition.topic}:{partition.partition}"
        totals.update(partition.freed_by)
        for setting, freed in partition.freed_by.items():
            by = _policy_text(settings[partition.topic])
            print(f"{name}: {setting} would free {human_size(freed)} now, with {by}")
        if shows_histograms:
            _print_histograms(name, partition)
    if len(result.partitions) > 1:
        for setting, freed in totals.items():
            of_all = f"{human_size(freed)} of {human_size(result.size_bytes)}"
            print(f"{counted(len(result.partitions), 'partition')}: {setting} would free {of_all}")
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

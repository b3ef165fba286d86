"""Collects the figures of a report on log directories, with the other jobs.

The inventory, plans of retention and compaction, and open transactions are looked up partition by
partition; headers, records and CRCs are read by `survey`, `stats` and `verify` on workers.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from stratalog.bulk.stats import measured_keys, sample_codecs, stats
from stratalog.bulk.survey import amounts_of, survey
from stratalog.bulk.verify import verify
from stratalog.bulk.workers import Clock, JobResult, ThreadWorkers
from stratalog.config import BrokerConfig
from stratalog.errors import StratalogError
from stratalog.format.names import CLUSTER_METADATA_TOPIC, RootFile, TopicPartition
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.retention import plan_retention, retention_log_of_view
from stratalog.maintenance.verify.findings import VerifyReport
from stratalog.tuning.headers import HeaderFacts, sum_of_facts
from stratalog.tuning.simulation import sum_of_logs
from stratalog.tuning.topic import advise, workload_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stratalog.bulk.stats import PartitionStats
    from stratalog.bulk.survey import SurveyedPartition
    from stratalog.bulk.workers import Workers
    from stratalog.partitions.settings import EffectiveConfig, SettingsFinder
    from stratalog.tuning.simulation import SimulatedTopic
    from stratalog.tuning.topic import TopicAdvice

R = TypeVar("R")
PHASES: Final = ("looking at partitions", "reading headers", "reading records", "verifying")
OVERDUE_MS: Final = BrokerConfig().transaction_max_timeout_ms + 5 * 60_000
"""As in Kafka: longer than any producer may ask for, and five minutes more."""


class ReportedTransaction(NamedTuple):
    """A transaction without an end."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp: int
    is_overdue: bool
    """Older than any transaction may be: its coordinator should have aborted it."""


class IndexFacts(NamedTuple):
    """The indexes of a partition's files."""

    offset_entries: int
    time_entries: int
    rebuilt: int
    """Index files that could not be used, and were rebuilt in memory."""


@dataclass(frozen=True)
class ReportedPartition:
    """One partition."""

    topic_partition: TopicPartition
    path: Path
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    segments: int
    size_bytes: int
    indexes: IndexFacts
    producers: int
    aborted_transactions: int
    open_transactions: tuple[ReportedTransaction, ...]
    dirty_ratio: float | None
    """None unless the topic is compacted."""
    cleanable_bytes: int
    compaction_text: str
    deletable_bytes: int
    """What retention would delete now; 0 if the settings are unknown."""
    headers: HeaderFacts = field(default_factory=HeaderFacts)
    stats: PartitionStats | None = None


@dataclass(frozen=True)
class ReportedTopic:
    """One topic."""

    topic: str
    settings: EffectiveConfig
    partitions: tuple[ReportedPartition, ...]
    headers: HeaderFacts
    simulated: SimulatedTopic | None
    """Under its own settings; None for topics without batches."""
    advice: TopicAdvice | None

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)

    @property
    def records(self) -> int:
        return self.headers.records


@dataclass(frozen=True)
class ReportFacts(JobResult):
    """All topics, and what is wrong."""

    directories: tuple[Path, ...] = ()
    now_ms: int = 0
    topics: tuple[ReportedTopic, ...] = ()
    """The largest first."""
    verified: VerifyReport | None = None
    """None if it was not asked for."""
    problems: tuple[str, ...] = ()
    """Partitions that could not be read."""

    @property
    def partitions(self) -> list[ReportedPartition]:
        return [each for topic in self.topics for each in topic.partitions]


def collect(
    partitions: Sequence[Path],
    finder: SettingsFinder,
    *,
    now_ms: int,
    workers: Workers | None = None,
    is_quick: bool = False,
    on_phase: Callable[[int, int], None] | None = None,
) -> ReportFacts:
    """Look at these partition directories. A quick report reads headers only: no keys, no CRCs.

    `on_phase` is called with the number of each phase, and of all.
    """
    clock = Clock()
    workers = workers or ThreadWorkers()
    phases = 2 if is_quick else len(PHASES)
    begin = on_phase or (lambda _number, _phases: None)
    begin(0, phases)
    collector = _FactsCollector(finder, now_ms)
    for path in partitions:
        collector.add(path)
    begin(1, phases)
    configs = {topic: [each.config] for topic, each in collector.settings.items()}

    def survey_of(found: Sequence[ReportedPartition]) -> list[SurveyedPartition]:
        paths = [each.path for each in found]
        surveyed = survey(paths, configs=configs, now_ms=now_ms, workers=workers)
        return list(surveyed.partitions)

    headers = collector.run(survey_of, "headers were not read")
    counted: list[PartitionStats] = []
    verified: VerifyReport | None = None
    if not is_quick:
        begin(2, phases)
        counted = collector.run(lambda found: _stats_of(found, workers), "records were not counted")
        begin(3, phases)
        verified = VerifyReport.sum(
            collector.run(lambda found: [_verified(found, workers)], "it was not verified")
        )
    topics = _topics(collector, headers, counted)
    return ReportFacts(
        "report",
        *amounts_of(headers),
        clock.seconds,
        len(headers),
        tuple(sorted({each.path.parent for each in collector.found})),
        now_ms,
        topics,
        verified,
        tuple(collector.problems),
    )


def _stats_of(found: Sequence[ReportedPartition], workers: Workers) -> list[PartitionStats]:
    return list(stats([each.path for each in found], workers=workers).partitions)


def _verified(found: Sequence[ReportedPartition], workers: Workers) -> VerifyReport:
    return verify(partitions=[each.path for each in found], workers=workers).report


class _FactsCollector:
    """Collects facts of partitions one by one. One that cannot be read does not stop the others."""

    def __init__(self, finder: SettingsFinder, now_ms: int) -> None:
        self._finder = finder
        self._now_ms = now_ms
        self.settings: dict[str, EffectiveConfig] = {}
        self.found: list[ReportedPartition] = []
        self.problems: list[str] = []

    def add(self, path: Path) -> None:
        try:
            with PartitionView(path) as view:
                topic = view.topic_partition.topic
                if topic == CLUSTER_METADATA_TOPIC:
                    return  # the controllers', and no data
                if topic not in self.settings:
                    self.settings[topic] = self._finder.of(view)
                self.found.append(self._facts(view, self.settings[topic]))
        except (StratalogError, OSError) as error:  # OSError: removed meanwhile
            self.problems.append(f"{path.name}: {error}")

    def run(self, job: Callable[[Sequence[ReportedPartition]], list[R]], problem: str) -> list[R]:
        """Run a job on all partitions. If one of them makes it fail, run it on each by itself."""
        with suppress(StratalogError, OSError):
            return job(self.found)
        results: list[R] = []
        for each in self.found:
            try:
                results += job([each])
            except (StratalogError, OSError) as error:
                self.problems.append(f"{each.topic_partition}: {problem}: {error}")
        return results

    def _facts(self, view: PartitionView, settings: EffectiveConfig) -> ReportedPartition:
        now_ms, config = self._now_ms, settings.config
        cleaning = None
        if config.is_compacted:
            checkpoint = view.checkpointed(RootFile.CLEANER_OFFSETS)
            cleaning = plan_cleaning(cleaner_log(view, checkpoint), config, now_ms)
        deletable = 0
        if settings.unknown is None:
            retention = retention_log_of_view(view, now_ms)
            deletable = plan_retention(retention, config, now_ms).deleted_bytes
        return ReportedPartition(
            view.topic_partition,
            view.path.absolute(),
            view.log_start_offset,
            view.log_end_offset,
            view.last_stable_offset,
            len(view.segments),
            view.size_bytes,
            _indexes(view),
            len(view.producers),
            len(view.aborted_transactions()),
            tuple(_open_transactions(view, now_ms)),
            None if cleaning is None else cleaning.ratio,
            0 if cleaning is None else cleaning.cleanable_bytes,
            "" if cleaning is None else "; ".join(cleaning.reasons),
            deletable,
        )


def _indexes(view: PartitionView) -> IndexFacts:
    offset_entries = time_entries = rebuilt = 0
    for segment in view.segments:
        segment.read_index_files()
        offsets, times = segment.offset_index, segment.times.index
        offset_entries += offsets.entries
        time_entries += times.entries
        rebuilt += (offsets.origin != "file") + (times.origin != "file")
    return IndexFacts(offset_entries, time_entries, rebuilt)


def _open_transactions(view: PartitionView, now_ms: int) -> list[ReportedTransaction]:
    return [
        ReportedTransaction(
            view.topic_partition,
            each.producer_id,
            each.producer_epoch,
            each.current_txn_first_offset,
            each.timestamp,
            now_ms - each.timestamp > OVERDUE_MS,
        )
        for each in view.producers
        if each.current_txn_first_offset >= 0
    ]


def _topics(
    collector: _FactsCollector,
    surveyed: Sequence[SurveyedPartition],
    counted: Sequence[PartitionStats],
) -> tuple[ReportedTopic, ...]:
    """Partitions without headers are left out."""
    headers = {each.path: each for each in surveyed}
    by_place = {TopicPartition(each.topic, each.partition): each for each in counted}
    by_topic: dict[str, list[ReportedPartition]] = {}
    for each in collector.found:
        if str(each.path) in headers:
            by_topic.setdefault(each.topic_partition.topic, []).append(each)
    segments = sum(each.segments for each in collector.found)
    topics = []
    for topic, found in by_topic.items():
        partitions = tuple(
            replace(
                each,
                headers=headers[str(each.path)].facts,
                stats=by_place.get(each.topic_partition),
            )
            for each in found
        )
        simulated = [headers[str(each.path)].simulated[0] for each in found]
        facts = sum_of_facts(each.headers for each in partitions)
        measured = {"broker_partitions": len(collector.found), **_measured(partitions)}
        settings = collector.settings[topic]
        workload = workload_of(facts, len(partitions), settings.config, measured)
        advice = advise(topic, workload, settings.config, segments) if facts.batches else None
        summed = sum_of_logs(simulated) if facts.batches else None
        topics.append(ReportedTopic(topic, settings, partitions, facts, summed, advice))
    return tuple(sorted(topics, key=lambda each: (-each.size_bytes, each.topic)))


def _measured(partitions: Sequence[ReportedPartition]) -> dict[str, object]:
    """Keys and codecs, by the records or a sample."""
    counted = [each.stats for each in partitions if each.stats is not None]
    if not counted:
        largest = max(partitions, key=lambda each: each.size_bytes)
        with suppress(StratalogError):
            return {"codec_ratios": sample_codecs(largest.path)}
        return {}
    largest_stats = max(counted, key=lambda each: each.facts.payload_bytes)
    return {"codec_ratios": dict(largest_stats.facts.codecs), **measured_keys(counted)}

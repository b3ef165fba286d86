"""The rounds of the golden compaction cases, as facts and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog.config import LogConfig
from stratalog.format.batch import next_entry
from stratalog.format.index_entries import IndexBuilder
from stratalog.format.log_entry import header_of
from stratalog.log.partition_view import PartitionView
from stratalog.log.producer_state_manager import ProducerStateConfig
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk
from tests.golden.cases import CompactionCase, compaction_cases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.plan import CleanerLog, CleaningPlan
    from tests.golden.cases import Json

over_cases = pytest.mark.parametrize("case", compaction_cases(), ids=str)


class GoldenRound(NamedTuple):
    """One round of Kafka's cleaner manager over one log."""

    told: Json
    """What Kafka decided, and how it came out."""
    config: LogConfig
    before: Path
    """The partition's directory at the start."""
    after: Path | None
    """And at the end; None when the log was not selected."""

    @property
    def now_ms(self) -> int:
        now_ms: int = self.told["now_ms"]
        return now_ms

    @property
    def was_cleaned(self) -> bool:
        return self.after is not None and "exception" not in self.told

    def facts(self) -> CleanerLog:
        with PartitionView(self.before, log_start_offset=self.told["log_start_offset"]) as view:
            return cleaner_log(view, self.told["checkpoint_before"])

    def plan(self) -> CleaningPlan:
        return plan_cleaning(self.facts(), self.config, self.now_ms)


def rounds_of(case: CompactionCase, root: Path) -> Iterator[GoldenRound]:
    """In order. `root` is the unpacked case."""
    about = case.case
    partition = f"{about['topic']}-{about['partition']}"
    for told in about["rounds"]:
        settings = {**about["topic_config"], **told["topic_config"], "cleanup.policy": "compact"}
        after = told["after"]
        yield GoldenRound(
            told,
            LogConfig.parse(settings),
            root / told["before"] / partition,
            None if after is None else root / after / partition,
        )


def opened(golden: GoldenRound, path: Path, case: CompactionCase) -> PartitionLog:
    """A copy of the round's log at `path`, as Kafka had it open."""
    told = golden.told
    return open_log(
        path,
        golden.config,
        disk=Disk(),
        now_ms=lambda: golden.now_ms,
        point=LoadPoint(told["log_start_offset"], told["log_end_offset"], was_clean=True),
        producer_config=ProducerStateConfig(
            producer_id_expiration_ms=case.case["producer_id_expiration_ms"]
        ),
    )


def indexes_of(log: bytes, base_offset: int, interval_bytes: int) -> IndexBuilder:
    """By the rule of appending: denser than Kafka's, which indexes a cleaned segment by the chunks
    in which it happened to be read."""
    builder = IndexBuilder(base_offset, interval_bytes)
    at = 0
    while (entry := next_entry(log, at)) is not None:
        header = header_of(log, entry)
        builder.add(at, entry.size_bytes, header.next_offset - 1, header.max_timestamp)
        at = entry.end
    builder.finish()
    return builder

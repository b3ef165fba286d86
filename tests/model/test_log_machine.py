"""Hypothesis drives a log and its model: appends, cuts, transactions, restarts and power losses.

`STRATALOG_MODEL_EXAMPLES=<n>` tries more or fewer lives.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratalog.errors import InvalidRecordError, OffsetOutOfRangeError, UnexpectedAppendOffsetError
from stratalog.format.record import BatchFields, Record, encode_batch
from tests.effort import scaled
from tests.model.driven_log import PREALLOCATED, PRODUCER_IDS, SMALL, START_MS, Draft
from tests.model.log_driver import LogDriver

if TYPE_CHECKING:
    from stratalog.config import LogConfig

EXAMPLES = scaled(50)
CONFIGS = (
    SMALL,
    PREALLOCATED,
    replace(SMALL, index_interval_bytes=0, segment_index_bytes=48),
    replace(SMALL, segment_bytes=5000, flush_messages=7),
    replace(SMALL, segment_ms=1000),
)

configs = st.sampled_from(CONFIGS)
producer_ids = st.sampled_from(PRODUCER_IDS)
drafts = st.builds(
    Draft,
    producer_id=st.sampled_from([-1, *PRODUCER_IDS]),
    record_count=st.integers(1, 4),
    value_bytes=st.sampled_from([0, 5, 60, 150]),
    is_transactional=st.booleans(),
    step_ms=st.sampled_from([7, -500, 3000]),
)
parts = st.floats(0, 1)
seeds = st.integers(0, 2**32 - 1)


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="stratalog-model-"))
        self.driver: LogDriver

    @initialize(config=configs)
    def open(self, config: LogConfig) -> None:
        self.driver = LogDriver(self.root, config)

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def offset_at(self, part: float) -> int:
        model = self.driver.model
        return model.log_start_offset + round(part * (model.end - model.log_start_offset))

    # -- appending

    @rule(draft=drafts)
    def append(self, draft: Draft) -> None:
        self.driver.append(draft)

    @rule(some=st.lists(drafts, min_size=1, max_size=5))
    def append_many(self, some: list[Draft]) -> None:
        self.driver.append_many(some)

    @rule(some=st.lists(drafts, min_size=1, max_size=3), gap=st.sampled_from([0, 0, 3]))
    def append_as_follower(self, some: list[Draft], gap: int) -> None:
        self.driver.append_as_follower(some, gap)

    @rule(producer_id=producer_ids)
    def send_again(self, producer_id: int) -> None:
        self.driver.send_again(producer_id)

    @rule(producer_id=producer_ids)
    def skip_a_sequence(self, producer_id: int) -> None:
        self.driver.skip_a_sequence(producer_id)

    @rule(producer_id=producer_ids, commit=st.booleans())
    def end_transaction(self, producer_id: int, commit: bool) -> None:
        self.driver.end_transaction(producer_id, commit=commit)

    @rule(producer_id=producer_ids)
    def bump_epoch(self, producer_id: int) -> None:
        self.driver.bump_epoch(producer_id)

    @rule()
    def be_refused(self) -> None:
        """What breaks the rules changes nothing."""
        log = self.driver.log
        batch = encode_batch([Record(5, START_MS, None, b"v")], BatchFields())
        with pytest.raises(InvalidRecordError):
            log.append(batch)
        if log.log_end_offset > 5:
            with pytest.raises(UnexpectedAppendOffsetError):
                log.append_as_follower(batch)
        with pytest.raises(OffsetOutOfRangeError):
            log.delete_records(log.log_end_offset + 1)
        with pytest.raises(OffsetOutOfRangeError):
            log.truncate_to(-1)

    # -- changing

    @rule()
    def roll(self) -> None:
        self.driver.roll()

    @rule()
    def flush(self) -> None:
        self.driver.flush()

    @rule(part=parts)
    def truncate_to(self, part: float) -> None:
        self.driver.truncate_to(self.offset_at(part))

    @rule(offset=st.integers(0, 60))
    def start_over_at(self, offset: int) -> None:
        self.driver.start_over_at(offset)

    @rule(part=parts)
    def delete_records(self, part: float) -> None:
        self.driver.delete_records(self.offset_at(part))

    @rule(part=parts)
    def delete_oldest(self, part: float) -> None:
        self.driver.delete_oldest(part)

    @rule()
    def remove_discarded(self) -> None:
        self.driver.remove_discarded()

    @rule(config=configs)
    def configure(self, config: LogConfig) -> None:
        self.driver.configure(config)

    @rule()
    def become_leader(self) -> None:
        self.driver.become_leader()

    @rule(by_ms=st.sampled_from([500, 30_000, 120_000]))
    def pass_time(self, by_ms: int) -> None:
        self.driver.pass_time(by_ms)

    # -- stopping

    @rule()
    def checkpoint(self) -> None:
        self.driver.checkpoint()

    @rule()
    def reopen_cleanly(self) -> None:
        self.driver.reopen_cleanly()
        self.driver.check_files()

    @rule(seed=seeds)
    def crash(self, seed: int) -> None:
        self.driver.crash(random.Random(seed))

    @rule(draft=drafts, after_calls=st.integers(0, 10), seed=seeds)
    def crash_while_appending(self, draft: Draft, after_calls: int, seed: int) -> None:
        rng = random.Random(seed)
        self.driver.interrupt(lambda: self.driver.append(draft), after_calls, rng)

    @rule(part=parts, after_calls=st.integers(0, 10), seed=seeds)
    def crash_while_truncating(self, part: float, after_calls: int, seed: int) -> None:
        rng, offset = random.Random(seed), self.offset_at(part)
        self.driver.interrupt(lambda: self.driver.truncate_to(offset), after_calls, rng)

    @rule(part=parts, after_calls=st.integers(0, 10), seed=seeds)
    def crash_while_deleting(self, part: float, after_calls: int, seed: int) -> None:
        rng = random.Random(seed)
        self.driver.interrupt(lambda: self.driver.delete_oldest(part), after_calls, rng)

    @rule(after_calls=st.integers(0, 20), seed=seeds)
    def crash_while_loading(self, after_calls: int, seed: int) -> None:
        self.driver.interrupt_loading(after_calls, random.Random(seed))

    # -- comparing

    @rule(part=parts, timestamp=st.integers(-600, 20_000))
    def look_up(self, part: float, timestamp: int) -> None:
        self.driver.check_lookups(self.offset_at(part), START_MS + timestamp)

    @rule()
    def look_at_the_files(self) -> None:
        self.driver.check_files()

    @invariant()
    def the_log_is_what_the_model_says(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check()


TestLogMachine = pytest.mark.slow(LogMachine.TestCase)
TestLogMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

"""The fast way to append one batch and the general one leave the same log, errors included."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratalog.config import CleanupPolicy
from stratalog.errors import StratalogError
from stratalog.format.batch import Codec, TimestampType
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log import compiled_validation
from stratalog.log.appender import Appender
from stratalog.log.offset_assignment import AppendRules, Assignment
from stratalog.log.validation import LeaderValidator
from tests.effort import scaled
from tests.log.written_log import CONFIG, NOW_MS, Setup

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.log.partition_log import PartitionLog

TOPICS = {
    "defaults": replace(CONFIG, segment_bytes=4000),
    "small segments": CONFIG,
    "log append time": replace(CONFIG, message_timestamp_type=TimestampType.LOG_APPEND_TIME),
    "compacted": replace(CONFIG, cleanup_policy=frozenset({CleanupPolicy.COMPACT})),
    "flushed": replace(CONFIG, flush_messages=3),
}


class Step(NamedTuple):
    """Something that is done to a log."""

    what: str
    records: int = 1
    codec: Codec = Codec.NONE
    sequence: int = 0
    in_txn: bool = False
    after_ms: int = 0


steps = st.builds(
    Step,
    st.sampled_from(
        ["plain", "plain", "plain", "producer", "keyless", "corrupt", "leader", "commit", "full"]
    ),
    records=st.integers(1, 5),
    codec=st.sampled_from(Codec),
    sequence=st.integers(0, 4),
    in_txn=st.booleans(),
    after_ms=st.sampled_from([0, 1, 7, 700_000_000]),
)


def do(setup: Setup, log: PartitionLog, step: Step) -> object:
    """The result of a step, or its error as text."""
    setup.now_ms += step.after_ms
    try:
        if step.what == "leader":
            log.become_leader(log.leader_epoch + 1)
            return None
        if step.what == "commit":
            return log.end_transaction(7, 0, commit=step.records > 2)
        if step.what == "full":
            setup.disk.fail_next()
        return log.append(_batch_of(setup, step))
    except StratalogError as error:
        return f"{type(error).__name__} {str(error).replace(str(setup.path), '')}"


def _batch_of(setup: Setup, step: Step) -> bytes:
    key = None if step.what == "keyless" else b"key"
    records = [Record(n, setup.now_ms - n, key, b"value %d" % n) for n in range(step.records)]
    fields = BatchFields(codec=step.codec)
    if step.what == "producer":
        fields = BatchFields(
            codec=step.codec,
            producer_id=7,
            producer_epoch=0,
            base_sequence=step.sequence,
            is_transactional=step.in_txn,
        )
    raw = encode_batch(records, fields)
    return raw[:-1] + b"?" if step.what == "corrupt" else raw


def outcome(root: Path, config: LogConfig, drawn: list[Step], *, compiled: bool) -> object:
    """All results, what readers see after each step, and the files of the closed log."""
    root.mkdir()
    setup = Setup(root)
    log = setup.reopen(config)
    log._appender._validator = LeaderValidator(compiled=compiled)
    log.append(encode_batch([Record(0, NOW_MS, b"k", b"v")]))  # loads the kernel
    results = []
    for step in drawn:
        offsets = log.log_end_offset, log.last_stable_offset, log.recovery_point, log.is_usable
        results.append((do(setup, log, step), offsets))
    log.close()
    return results, {path.name: path.read_bytes() for path in sorted(setup.path.iterdir())}


@pytest.mark.slow
@pytest.mark.parametrize("topic", TOPICS)
def test_same_results_and_same_files(topic: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(max_examples=scaled(12), suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(st.lists(steps, max_size=12))
    def check(drawn: list[Step]) -> None:
        root = tmp_path_factory.mktemp("ways")
        general = outcome(root / "general", TOPICS[topic], drawn, compiled=False)
        assert outcome(root / "fast", TOPICS[topic], drawn, compiled=True) == general

    check()


@pytest.mark.parametrize("codec", list(Codec))
def test_the_usual_append_takes_the_fast_way(
    codec: Codec, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways leave the same log, so only this shows which one was taken."""
    setup.reopen(replace(CONFIG, segment_bytes=1 << 20))
    setup.log._appender._validator = LeaderValidator(compiled=True)
    raw = encode_batch([Record(0, NOW_MS, b"k", b"v")], BatchFields(codec=codec))
    sent = BatchFields(codec=codec, producer_id=7, producer_epoch=0, base_sequence=0)
    of_producer = encode_batch([Record(0, NOW_MS, b"k", b"v")], sent)
    setup.log.append(raw)

    def never(*_: object) -> None:
        raise AssertionError("the general way was taken")

    monkeypatch.setattr(Appender, "_write", never)
    assert setup.log.append(raw).first_offset == 1
    assert setup.log.append(of_producer).first_offset == 2
    assert setup.log.append(of_producer).is_duplicate


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("value_bytes", [60_000, 300_000, 5 << 20])
def test_batches_that_need_more_memory_than_is_kept(codec: Codec, value_bytes: int) -> None:
    """Of any size; what a huge one needed is given back."""
    rules = AppendRules(max_message_bytes=1 << 30)
    assign = Assignment(0, 0, NOW_MS)
    large = encode_batch(
        [Record(n, NOW_MS, b"k", b"%d" % n * (value_bytes // 2)) for n in range(2)],
        BatchFields(codec=codec),
    )
    small = encode_batch([Record(0, NOW_MS, b"k", b"v")], BatchFields(codec=codec))
    leader = LeaderValidator(compiled=True)
    leader.validate(small, rules, assign)
    assert leader.compiled is not None
    accepted = leader.compiled.accept(large, 0, 0, NOW_MS)
    assert accepted is not None
    assert accepted[61:] == large[61:]
    group = leader.validate_group([small, large, small], rules, assign)
    assert [span.base_offset for span in group.spans] == [0, 1, 3]
    assert leader.compiled.accept(small, 0, 0, NOW_MS) is not None
    assert len(compiled_validation._scratch().view) <= 4 << 20

"""The readable and the compiled way give one answer, whatever comes in."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import AppendError, RecordError
from stratalog.format.batch import ATTRIBUTES_AT, BatchHeader, Codec, TimestampType
from stratalog.format.record import BatchFields, encode_batch, seal_batch
from stratalog.log.offset_assignment import AppendOrigin, AppendRules, Assignment, ValidatedAppend
from stratalog.log.validation import LeaderValidator, validate_follower
from tests import strategies

Answer: TypeAlias = ValidatedAppend | tuple[type[AppendError], str, tuple[RecordError, ...]]

READABLE = LeaderValidator(compiled=False)
COMPILED = LeaderValidator(compiled=True)

rules = st.builds(
    AppendRules,
    codec=st.none() | st.sampled_from(Codec),
    is_compacted=st.booleans(),
    timestamp_type=st.sampled_from([TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME]),
    timestamp_before_max_ms=st.sampled_from([strategies.LONG_MAX, 1000, 0]),
    timestamp_after_max_ms=st.sampled_from([strategies.LONG_MAX, 3_600_000, 0]),
    max_message_bytes=st.sampled_from([1_048_588, 1_048_588, 200]),
    segment_bytes=st.sampled_from([1 << 30, 1 << 30, 150]),
)
assignments = st.builds(
    Assignment,
    next_offset=st.integers(0, 1000) | st.integers(0, strategies.LONG_MAX - (1 << 31)),
    leader_epoch=st.integers(-1, strategies.INT_MAX),
    now_ms=st.sampled_from([1_700_000_050_000, 0]),
    origin=st.sampled_from([AppendOrigin.CLIENT, AppendOrigin.CLIENT, AppendOrigin.COORDINATOR]),
)


@st.composite
def sent(draw: st.DrawFn) -> bytes:
    """What a producer may send: offsets from 0 without holes, flags that mostly make sense."""
    records = [
        record._replace(offset=index) for index, record in enumerate(draw(strategies.record_runs()))
    ]
    producer_id, producer_epoch, base_sequence = draw(strategies.producers())
    fields = BatchFields(
        codec=draw(st.sampled_from(Codec)),
        is_transactional=draw(st.booleans()),
        is_control=draw(st.sampled_from([False, False, False, True])),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        max_timestamp=draw(st.none() | strategies.timestamps),
    )
    return encode_batch(records, fields)


def answer(leader: LeaderValidator, data: bytes, rules: AppendRules, assign: Assignment) -> Answer:
    try:
        append = leader.validate(data, rules, assign)
    except AppendError as error:
        return type(error), error.message, error.record_errors
    return append._replace(data=bytes(append.data))


@pytest.mark.slow
@given(sent(), rules, assignments)
def test_batches_of_producers(raw: bytes, rules: AppendRules, assign: Assignment) -> None:
    assert answer(COMPILED, raw, rules, assign) == answer(READABLE, raw, rules, assign)


@pytest.mark.slow
@given(strategies.batches(base_offset=0), rules, assignments)
def test_any_batch(
    batch: strategies.GeneratedBatch, rules: AppendRules, assign: Assignment
) -> None:
    raw = batch.raw
    assert answer(COMPILED, raw, rules, assign) == answer(READABLE, raw, rules, assign)


@given(strategies.legacy_sets(first_offset=0), rules, assignments)
def test_legacy(batch: strategies.GeneratedBatch, rules: AppendRules, assign: Assignment) -> None:
    raw = batch.raw
    assert answer(COMPILED, raw, rules, assign) == answer(READABLE, raw, rules, assign)


@pytest.mark.slow
@given(sent(), rules, assignments, st.data())
def test_damaged_bytes(
    raw: bytes, rules: AppendRules, assign: Assignment, data: st.DataObject
) -> None:
    mutated = _mutated(raw, data)
    assert answer(COMPILED, mutated, rules, assign) == answer(READABLE, mutated, rules, assign)


@pytest.mark.slow
@given(sent(), rules, assignments, st.data())
def test_damaged_records_under_a_right_crc(
    raw: bytes, rules: AppendRules, assign: Assignment, data: st.DataObject
) -> None:
    """What no CRC shows: a producer that writes nonsense."""
    header = BatchHeader.unpack(raw)
    broken = seal_batch(header, _mutated(raw[61:], data) if len(raw) > 61 else b"")
    assert answer(COMPILED, broken, rules, assign) == answer(READABLE, broken, rules, assign)


@pytest.mark.slow
@given(sent(), rules, assignments, st.data())
def test_damaged_headers_under_a_right_crc(
    raw: bytes, rules: AppendRules, assign: Assignment, data: st.DataObject
) -> None:
    fields = bytearray(raw[:61])
    position = data.draw(st.integers(ATTRIBUTES_AT, 60))
    fields[position] = data.draw(st.integers(0, 255))
    broken = seal_batch(BatchHeader.unpack(fields), raw[61:])
    assert answer(COMPILED, broken, rules, assign) == answer(READABLE, broken, rules, assign)


@given(st.binary(max_size=200), rules, assignments)
def test_junk(raw: bytes, rules: AppendRules, assign: Assignment) -> None:
    """Bytes give a result or an AppendError, nothing else."""
    assert answer(COMPILED, raw, rules, assign) == answer(READABLE, raw, rules, assign)


@pytest.mark.slow
@given(sent(), rules, assignments)
def test_what_is_accepted_is_accepted_by_a_follower(
    raw: bytes, rules: AppendRules, assign: Assignment
) -> None:
    found = answer(COMPILED, raw, rules, assign)
    if isinstance(found, ValidatedAppend):
        copy = validate_follower(found.data, log_end_offset=assign.next_offset)
        assert bytes(copy.data) == found.data
        assert copy.spans == found.spans
        assert copy.headers == found.headers
        assert copy.last_offset == found.last_offset


@pytest.mark.slow
@given(strategies.logs(legacy=True), st.data())
def test_a_follower_takes_damage_for_what_it_is(
    log: strategies.GeneratedLog, data: st.DataObject
) -> None:
    mutated = _mutated(log.raw, data)
    try:
        append = validate_follower(mutated, log_end_offset=0)
    except AppendError:
        return
    assert bytes(append.data) == mutated[: len(append.data)]


def _mutated(raw: bytes, data: st.DataObject) -> bytes:
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
    if not raw:
        return raw
    position = data.draw(st.integers(0, len(raw) - 1))
    if kind == "flip":
        bit = 1 << data.draw(st.integers(0, 7))
        return raw[:position] + bytes([raw[position] ^ bit]) + raw[position + 1 :]
    if kind == "cut":
        return raw[:position]
    if kind == "insert":
        return raw[:position] + data.draw(st.binary(min_size=1, max_size=4)) + raw[position:]
    return raw + raw[:position]

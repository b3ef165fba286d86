"""Several requests at once: each as if it came alone, all of them in one write."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stratalog.log.validation as module
from stratalog.errors import AppendError, InvalidRecordError
from stratalog.format.batch import BatchHeader, Codec, TimestampType, next_entry
from stratalog.format.record import BatchFields, Header, Record, encode_batch
from stratalog.log.offset_assignment import AppendRules, Assignment, GroupAppend, ValidatedAppend
from stratalog.log.validation import LeaderValidator

NOW_MS = 1_700_000_000_000
ASSIGN = Assignment(next_offset=100, leader_epoch=3, now_ms=NOW_MS)


def request_of(count: int, codec: Codec = Codec.NONE) -> bytes:
    records = [Record(i, NOW_MS + i, b"k", b"value %d" % i) for i in range(count)]
    return encode_batch(records, BatchFields(codec=codec))


def test_offsets_run_through(leader: LeaderValidator) -> None:
    requests = [request_of(3), request_of(1, Codec.ZSTD), request_of(2), request_of(5, Codec.LZ4)]
    group = leader.validate_group(requests, AppendRules(), ASSIGN)
    assert [(a.first_offset, a.last_offset) for a in group.accepted] == [
        (100, 102),
        (103, 103),
        (104, 105),
        (106, 110),
    ]
    assert group.next_offset == 111
    assert len(group.data) == sum(map(len, requests))
    assert bytes(group.data) == b"".join(bytes(append.data) for append in group.accepted)


def test_spans_count_from_the_start_of_the_group(leader: LeaderValidator) -> None:
    group = leader.validate_group([request_of(3), request_of(4)], AppendRules(), ASSIGN)
    first, second = group.spans
    assert (first.position, second.position) == (0, first.size_bytes)
    for span in group.spans:
        entry = next_entry(group.data, span.position)
        assert entry is not None
        assert (entry.offset, entry.size_bytes) == (span.base_offset, span.size_bytes)


def test_a_refused_request_takes_no_offsets(leader: LeaderValidator) -> None:
    bad = b"\0" * 7 + b"\1" + request_of(2)[8:]
    group = leader.validate_group(
        [bad, request_of(3), bad, bad, request_of(4), bad], AppendRules(), ASSIGN
    )
    kinds = [type(result) for result in group.results]
    refused, accepted = InvalidRecordError, ValidatedAppend
    assert kinds == [refused, accepted, refused, refused, accepted, refused]
    assert [append.first_offset for append in group.accepted] == [100, 103]
    assert group.next_offset == 107
    assert len(group.data) == len(request_of(3) + request_of(4))
    assert [span.base_offset for span in group.spans] == [100, 103]
    offsets = group.offsets
    assert offsets[1] == (100, 102)
    assert offsets[0] is group.results[0]


def test_rewritten_requests_go_along(leader: LeaderValidator) -> None:
    rules = AppendRules(codec=Codec.GZIP)
    requests = [request_of(2, Codec.GZIP), request_of(3), request_of(4, Codec.GZIP)]
    group = leader.validate_group(requests, rules, ASSIGN)
    assert [append.was_rewritten for append in group.accepted] == [False, True, False]
    assert [span.base_offset for span in group.spans] == [100, 102, 105]
    assert bytes(group.data) == b"".join(bytes(append.data) for append in group.accepted)


def test_requests_without_a_batch(leader: LeaderValidator) -> None:
    group = leader.validate_group([b"", request_of(1), b"abc"], AppendRules(), ASSIGN)
    assert [append.record_count for append in group.accepted] == [0, 1, 0]
    assert group.next_offset == 101
    assert group.offsets == [(-1, -1), (100, 100), (-1, -1)]
    nothing = leader.validate_group([], AppendRules(), ASSIGN)
    assert (bytes(nothing.data), nothing.results, nothing.next_offset) == (b"", (), 100)


def test_more_requests_than_the_kernel_takes_at_once(leader: LeaderValidator) -> None:
    group = leader.validate_group([request_of(1)] * 700, AppendRules(), ASSIGN)
    assert [append.first_offset for append in group.accepted] == list(range(100, 800))


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),
            st.sampled_from([Codec.NONE, Codec.NONE, Codec.SNAPPY, Codec.LZ4]),
            st.sampled_from(["good", "good", "good", "cut", "crc", "offset", "tail"]),
        ),
        max_size=8,
    ),
    st.sampled_from([None, Codec.NONE, Codec.SNAPPY]),
    st.sampled_from([TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME]),
)
def test_a_group_is_its_requests_one_after_the_other(
    drawn: list[tuple[int, Codec, str]], codec: Codec | None, timestamp_type: TimestampType
) -> None:
    requests = []
    for count, sent_codec, damage in drawn:
        raw = request_of(count, sent_codec)
        requests.append(
            {
                "good": raw,
                "cut": raw[:-1],
                "crc": raw[:-1] + b"?",
                "offset": b"\0" * 7 + b"\1" + raw[8:],
                "tail": raw + raw[:30],
            }[damage]
        )
    rules = AppendRules(codec=codec, timestamp_type=timestamp_type)
    readable, compiled = (LeaderValidator(compiled=compiled) for compiled in (False, True))
    expected: list[object] = []
    assign = ASSIGN
    for raw in requests:
        try:
            append = readable.validate(raw, rules, assign)
            expected.append(_comparable(append))
            if append.spans:
                assign = assign._replace(next_offset=append.next_offset)
        except AppendError as error:
            expected.append(_comparable(error))
    for leader in (readable, compiled):
        group = leader.validate_group(requests, rules, ASSIGN)
        assert [_comparable(result) for result in group.results] == expected
        assert group.next_offset == assign.next_offset
        _check_flat(group)


def _check_flat(group: GroupAppend) -> None:
    """What the group says about all its batches is what its requests say."""
    accepted = group.accepted
    assert bytes(group.data) == b"".join(bytes(append.data) for append in accepted)
    assert group.headers == [header for append in accepted for header in append.headers]
    at = 0
    for span, header in zip(group.spans, group.headers, strict=True):
        assert isinstance(header, BatchHeader)
        assert span == (
            at,
            header.size_bytes,
            header.base_offset,
            header.last_offset,
            header.max_timestamp,
        )
        at += span.size_bytes
    assert at == len(group.data)
    for place, result in zip(group.offsets, group.results, strict=True):
        if not isinstance(result, AppendError):
            assert place == (result.first_offset, result.last_offset)


def _comparable(result: ValidatedAppend | AppendError) -> object:
    if isinstance(result, AppendError):
        return type(result), result.message
    return result._replace(data=bytes(result.data))


def test_small_programs_do_not_load_the_kernels() -> None:
    code = """
import sys
from stratalog.format.record import Record, encode_batch
from stratalog.log.offset_assignment import AppendRules, Assignment
from stratalog.log.validation import LeaderValidator
validator = LeaderValidator()
raw = encode_batch([Record(0, 5, b"k", b"v")])
for offset in range(100):
    validator.validate(raw, AppendRules(), Assignment(offset, 0, 5))
print(*{name.partition(".")[0] for name in sys.modules} & {"numba", "pyarrow", "numpy"})
"""
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert answer.stdout.split() == []


def test_the_kernel_is_loaded_once_it_pays_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_KERNEL_AFTER_RECORDS", 10)
    monkeypatch.delitem(sys.modules, "stratalog.format.kernels.validate", raising=False)
    loaded = []

    def load(name: str) -> type[_Kernel]:
        loaded.append(name)
        return _Kernel

    monkeypatch.setattr(module, "import_module", load)
    leader = LeaderValidator()
    for _ in range(5):
        leader.validate(request_of(3), AppendRules(), ASSIGN)
    assert loaded == ["stratalog.format.kernels.validate"]


class _Kernel:
    """Takes nothing, so that everything goes the readable way."""

    CLIENT, COMPACTED, LOG_APPEND_TIME = 1, 2, 4

    class Terms:
        def __init__(self, *_: object) -> None: ...

        def assign(self, *_: object) -> None: ...

        def validate_one(self, *_: object) -> bool:
            return False

    @staticmethod
    def validate(*_: object) -> int:
        return 0


COMMON_RULES = [
    AppendRules(),
    AppendRules(is_compacted=True, max_message_bytes=2000, segment_bytes=2000),
    AppendRules(timestamp_before_max_ms=10, timestamp_after_max_ms=20),
    AppendRules(timestamp_type=TimestampType.LOG_APPEND_TIME),
    AppendRules(codec=Codec.NONE),
    AppendRules(codec=Codec.ZSTD, level=1),
]


@pytest.mark.parametrize("rules", COMMON_RULES, ids=str)
@pytest.mark.parametrize("codec", list(Codec))
def test_the_common_cases_need_no_readable_way(
    monkeypatch: pytest.MonkeyPatch, rules: AppendRules, codec: Codec
) -> None:
    """Both ways give one answer, so only this shows which one was taken."""
    monkeypatch.setattr(module, "validate_readably", _never)
    leader = LeaderValidator(compiled=True)
    records = [
        Record(0, NOW_MS - 10, b"", b"v", (Header("h", None),)),
        Record(1, NOW_MS + 20, b"k", None),
        Record(2, NOW_MS, b"k" * 200, b"v" * 300),
    ]
    fields = BatchFields(codec=codec, producer_id=1, producer_epoch=0, base_sequence=0)
    raw = encode_batch(records, fields)
    append = leader.validate(raw, rules, ASSIGN)
    assert append.was_rewritten is (rules.codec not in {None, codec})
    group = leader.validate_group([raw, raw], rules, ASSIGN)
    assert bytes(group.accepted[0].data) == bytes(append.data)
    assert group.next_offset == 106


def _never(*_: object) -> ValidatedAppend:
    raise AssertionError("the readable way was taken")

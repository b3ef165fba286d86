"""What a leader writes again: other codecs, other clocks, old formats; and what Raft asks of one.

Every test runs against the readable and the compiled way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    RecordListTooLargeError,
    UnexpectedAppendOffsetError,
)
from stratalog.format.batch import BatchSpan, Codec, TimestampType
from stratalog.format.compression import compress
from stratalog.format.legacy import encode_legacy, encode_message
from stratalog.format.record import BatchFields, Header, Record, encode_batch
from stratalog.log.offset_assignment import AppendOrigin, AppendRules, Assignment
from tests.log.validating import (
    ASSIGN,
    NOW_MS,
    RULES,
    batch,
    header_of,
    records,
    records_of,
    refused,
)

if TYPE_CHECKING:
    from stratalog.log.validation import LeaderValidator


class TestRewriting:
    @pytest.mark.parametrize("target", list(Codec))
    @pytest.mark.parametrize("source", list(Codec))
    def test_a_topic_with_a_codec(
        self, leader: LeaderValidator, source: Codec, target: Codec
    ) -> None:
        sent = records(*[b"value " * 20] * 30)
        sent[4] = sent[4]._replace(headers=(Header("h", None), Header("", b"x")), key=None)
        raw = encode_batch(
            sent,
            BatchFields(
                codec=source,
                is_transactional=True,
                producer_id=4,
                producer_epoch=2,
                base_sequence=17,
            ),
        )
        append = leader.validate(raw, AppendRules(codec=target), ASSIGN)
        assert append.was_rewritten is (source is not target)
        header = header_of(append)
        assert header.codec_id == target
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 2, 17)
        assert header.is_transactional
        assert header.partition_leader_epoch == 7
        assert (header.base_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS + 29)
        placed = [record._replace(offset=500 + record.offset) for record in sent]
        assert records_of(append) == placed
        assert append.spans == (BatchSpan(0, len(append.data), 500, 529, NOW_MS + 29),)

    def test_the_level_is_the_topics(self, leader: LeaderValidator) -> None:
        raw = batch(*[b"abcdefgh%d" % (i % 7) for i in range(500)])
        sizes = [
            len(leader.validate(raw, AppendRules(codec=Codec.GZIP, level=level), ASSIGN).data)
            for level in (1, 9)
        ]
        assert sizes[0] > sizes[1]
        config = LogConfig(compression_gzip_level=9)
        assert AppendRules.of(config).level is None

    def test_max_message_bytes_is_asked_again(self, leader: LeaderValidator) -> None:
        raw = batch(b"a" * 5000, fields=BatchFields(codec=Codec.GZIP))
        rules = AppendRules(codec=Codec.NONE, max_message_bytes=4000)
        assert type(refused(leader, raw, rules)) is MessageTooLargeError

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
    def test_offsets_that_do_not_count_up_by_one(
        self, leader: LeaderValidator, codec: Codec
    ) -> None:
        twisted = encode_batch(
            [Record(1, NOW_MS, b"k", b"first"), Record(1, NOW_MS + 1, b"k", b"second")],
            BatchFields(codec=codec, base_offset=0),
        )
        append = leader.validate(twisted, RULES, ASSIGN)
        assert append.was_rewritten
        assert [(r.offset, r.value) for r in records_of(append)] == [
            (500, b"first"),
            (501, b"second"),
        ]
        assert header_of(append).codec_id == codec

    def test_log_append_time(self, leader: LeaderValidator) -> None:
        rules = AppendRules(codec=Codec.LZ4, timestamp_type=TimestampType.LOG_APPEND_TIME)
        append = leader.validate(batch(), rules, ASSIGN._replace(now_ms=99))
        header = header_of(append)
        assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert (header.max_timestamp, header.base_timestamp) == (99, NOW_MS)
        assert append.log_append_time_ms == 99

    def test_negative_timestamps_are_not_written_anew(self, leader: LeaderValidator) -> None:
        raw = encode_batch(records(b"a", timestamp=-5))
        error = refused(leader, raw, AppendRules(codec=Codec.GZIP), ASSIGN._replace(now_ms=0))
        assert type(error) is InvalidTimestampError
        assert [found.batch_index for found in error.record_errors] == [0]


class TestLegacy:
    """Kafka 4.0 stores magic 2 only: what still comes as magic 0 or 1 is converted.

    (Its produce requests take magic 2 only, and answer INVALID_RECORD to anything else: that is the
    wire's to check.)
    """

    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
    def test_conversion(self, leader: LeaderValidator, magic: int, codec: Codec) -> None:
        kind = TimestampType.CREATE_TIME if magic else TimestampType.NO_TIMESTAMP
        sent = [
            Record(i, NOW_MS + i if magic else -1, b"k%d" % i, b"v%d" % i, timestamp_type=kind)
            for i in range(4)
        ]
        append = leader.validate(encode_legacy(sent, magic, codec=codec), RULES, ASSIGN)
        assert append.was_rewritten
        header = header_of(append)
        assert header.codec_id == codec
        assert header.producer_id == -1
        assert append.max_timestamp == (NOW_MS + 3 if magic else -1)
        assert [record[:4] for record in records_of(append)] == [
            (500 + i, NOW_MS + i if magic else -1, b"k%d" % i, b"v%d" % i) for i in range(4)
        ]

    def test_mixed_magics(self, leader: LeaderValidator) -> None:
        old = encode_legacy([Record(0, NOW_MS, b"k", b"v")], 1)
        older = encode_legacy([Record(0, -1, b"k", b"v")], 0)
        for raw in (old + older, old + batch(), batch() + old):
            assert type(refused(leader, raw)) is InvalidRecordError

    def test_a_set_comes_alone(self, leader: LeaderValidator) -> None:
        sent = [Record(0, NOW_MS, b"k", b"v")]
        raw = encode_legacy(sent, 1) + encode_legacy(sent, 1, codec=Codec.GZIP)
        assert type(refused(leader, raw)) is InvalidRecordError

    def test_inner_messages(self, leader: LeaderValidator) -> None:
        inner = encode_message(Record(0, NOW_MS, b"k", b"v"), 1)
        damaged = inner[:-1] + b"?"
        other_magic = encode_message(Record(0, -1, b"k", b"v"), 0)
        nested = encode_legacy([Record(0, NOW_MS, b"k", b"v")], 1, codec=Codec.GZIP)
        cases = [
            (damaged, CorruptMessageError),
            (other_magic, InvalidRecordError),
            (nested, InvalidRecordError),
            (b"", InvalidRecordError),
        ]
        for content, expected in cases:
            wrapper = Record(0, NOW_MS, None, compress(Codec.GZIP, content))
            raw = encode_message(wrapper, 1, codec=Codec.GZIP)
            assert type(refused(leader, raw)) is expected

    def test_crc(self, leader: LeaderValidator) -> None:
        raw = encode_legacy([Record(0, NOW_MS, b"k", b"v")], 1)
        assert type(refused(leader, raw[:-1] + b"?")) is CorruptMessageError

    def test_keys_and_limits_hold_as_well(self, leader: LeaderValidator) -> None:
        raw = encode_legacy([Record(0, NOW_MS, None, b"v")], 1)
        assert type(refused(leader, raw, AppendRules(is_compacted=True))) is InvalidRecordError
        future = encode_legacy([Record(0, NOW_MS + (1 << 40), b"k", b"v")], 1)
        assert type(refused(leader, future)) is InvalidTimestampError


class TestRaftLeader:
    ASSIGN = Assignment(500, 7, NOW_MS, AppendOrigin.RAFT_LEADER)

    def placed(self, offset: int = 500, epoch: int = 7) -> bytes:
        fields = BatchFields(partition_leader_epoch=epoch)
        return encode_batch(records(b"a", b"b", first=offset), fields)

    def test_offsets_are_kept(self, leader: LeaderValidator) -> None:
        raw = self.placed() + self.placed(502)
        append = leader.validate(raw, RULES, self.ASSIGN)
        assert bytes(append.data) == raw
        assert (append.first_offset, append.last_offset) == (500, 503)
        assert [span.position for span in append.spans] == [0, len(raw) // 2]

    def test_epoch_must_be_the_leaders(self, leader: LeaderValidator) -> None:
        assert type(refused(leader, self.placed(epoch=6), assign=self.ASSIGN)) is InvalidRecordError

    def test_offsets_must_continue(self, leader: LeaderValidator) -> None:
        error = refused(leader, self.placed(499), assign=self.ASSIGN)
        assert type(error) is UnexpectedAppendOffsetError

    def test_size_limits_hold(self, leader: LeaderValidator) -> None:
        raw = self.placed()
        small = AppendRules(max_message_bytes=len(raw) - 1)
        assert type(refused(leader, raw, small, self.ASSIGN)) is MessageTooLargeError
        short = AppendRules(segment_bytes=len(raw) - 1)
        assert type(refused(leader, raw, short, self.ASSIGN)) is RecordListTooLargeError

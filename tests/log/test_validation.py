"""What a leader accepts as it is, and what it refuses with which of Kafka's codes.

Every test runs against the readable and the compiled way.
"""

from __future__ import annotations

import pickle
import struct

import pytest

from stratalog.config import LogConfig
from stratalog.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    LimitExceededError,
    MessageTooLargeError,
    RecordError,
    RecordListTooLargeError,
    UnsupportedCompressionTypeError,
)
from stratalog.format.batch import OFFSET_MAX, BatchHeader, BatchSpan, Codec, TimestampType
from stratalog.format.compression import compress
from stratalog.format.record import BatchFields, Header, Record, encode_batch, seal_batch
from stratalog.log.offset_assignment import EMPTY_APPEND, AppendRules, Assignment
from stratalog.log.validation import LeaderValidator
from tests.log.validating import (
    ASSIGN,
    COORDINATOR,
    LOG_APPEND_TIME,
    NOW_MS,
    RULES,
    VECTOR_A,
    batch,
    header_of,
    marker,
    records,
    records_of,
    refused,
    resealed,
)


class TestInPlace:
    @pytest.mark.slow
    def test_only_base_offset_and_epoch_change(self, leader: LeaderValidator) -> None:
        append = leader.validate(VECTOR_A, RULES, ASSIGN._replace(now_ms=2000))
        expected = struct.pack(">q", 500) + VECTOR_A[8:12] + struct.pack(">i", 7) + VECTOR_A[16:]
        assert bytes(append.data) == expected
        assert append.spans == (BatchSpan(0, 82, 500, 501, 1005),)
        assert (append.first_offset, append.last_offset, append.next_offset) == (500, 501, 502)
        assert (append.max_timestamp, append.offset_of_max_timestamp) == (1005, 501)
        assert append.log_append_time_ms == -1
        assert append.record_count == 2
        assert not append.was_rewritten
        header_of(append)

    def test_the_senders_bytes_are_left_alone(self, leader: LeaderValidator) -> None:
        sent = bytearray(VECTOR_A)
        append = leader.validate(sent, RULES, ASSIGN)
        assert sent == VECTOR_A
        sent[:] = bytes(len(sent))
        assert bytes(append.data[16:]) == VECTOR_A[16:]

    def test_a_view_will_do(self, leader: LeaderValidator) -> None:
        view = memoryview(b"xx" + VECTOR_A + b"yy")[2:-2]
        assert leader.validate(view, RULES, ASSIGN) == leader.validate(VECTOR_A, RULES, ASSIGN)

    @pytest.mark.parametrize("codec", list(Codec))
    def test_compressed_records_stay_byte_for_byte(
        self, leader: LeaderValidator, codec: Codec
    ) -> None:
        raw = batch(*[b"value " * 50] * 20, fields=BatchFields(codec=codec))
        append = leader.validate(raw, RULES, ASSIGN)
        assert bytes(append.data[16:]) == raw[16:]
        assert [record.offset for record in records_of(append)] == list(range(500, 520))

    def test_a_wrong_max_timestamp_is_corrected(self, leader: LeaderValidator) -> None:
        raw = resealed(batch(), max_timestamp=NOW_MS + 77)
        header = header_of(leader.validate(raw, RULES, ASSIGN))
        assert header.max_timestamp == NOW_MS + 2
        assert header.crc == BatchHeader.unpack(batch()).crc

    def test_unused_attribute_bits_go_only_with_a_new_crc(self, leader: LeaderValidator) -> None:
        raw = resealed(batch(), attributes=0x7F80)
        assert header_of(leader.validate(raw, RULES, ASSIGN)).attributes == 0x7F80
        raw = resealed(raw, max_timestamp=0)
        assert header_of(leader.validate(raw, RULES, ASSIGN)).attributes == 0

    def test_timestamps_before_minus_one_do_not_count(self, leader: LeaderValidator) -> None:
        raw = encode_batch(records(b"a", b"b", timestamp=-5))
        append = leader.validate(raw, RULES, ASSIGN._replace(now_ms=0))
        assert append.max_timestamp == -1
        assert header_of(append).max_timestamp == -1

    def test_log_append_time(self, leader: LeaderValidator) -> None:
        raw = batch(
            fields=BatchFields(
                codec=Codec.GZIP,
                is_transactional=True,
                producer_id=3,
                producer_epoch=0,
                base_sequence=9,
            )
        )
        append = leader.validate(raw, LOG_APPEND_TIME, ASSIGN._replace(now_ms=12345))
        header = header_of(append)
        assert header.attributes == 0x19
        assert header.max_timestamp == append.max_timestamp == 12345
        assert header.base_timestamp == NOW_MS
        assert bytes(append.data[61:]) == raw[61:]
        assert append.log_append_time_ms == 12345
        assert {record.timestamp for record in records_of(append)} == {12345}

    def test_log_append_time_sets_no_limits(self, leader: LeaderValidator) -> None:
        rules = AppendRules(
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            timestamp_before_max_ms=0,
            timestamp_after_max_ms=0,
        )
        raw = encode_batch(records(b"a", timestamp=5))
        assert leader.validate(raw, rules, ASSIGN).max_timestamp == NOW_MS

    def test_create_time_that_claims_to_be_the_brokers(self, leader: LeaderValidator) -> None:
        """Kafka takes it for a CreateTime topic, and its one timestamp for that of all records."""
        fields = BatchFields(timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=NOW_MS + 9)
        append = leader.validate(batch(fields=fields), RULES, ASSIGN)
        header = header_of(append)
        assert header.timestamp_type is TimestampType.CREATE_TIME
        assert header.max_timestamp == NOW_MS + 9

    def test_control_batch_of_a_coordinator(self, leader: LeaderValidator) -> None:
        rules = AppendRules(codec=Codec.ZSTD, is_compacted=True)
        raw = marker()
        append = leader.validate(raw, rules, COORDINATOR)
        assert bytes(append.data[16:]) == raw[16:]
        assert header_of(append).base_offset == 500

    def test_bytes_after_the_last_whole_batch_are_cut(self, leader: LeaderValidator) -> None:
        for cut in (1, 11, 12, 16, 17, 60, 81):
            append = leader.validate(VECTOR_A + VECTOR_A[:cut], RULES, ASSIGN)
            assert len(append.data) == 82
            assert append.last_offset == 501

    @pytest.mark.parametrize("size", [0, 1, 11, 12, 16, 17, 60, 81])
    def test_no_whole_batch_is_no_error(self, leader: LeaderValidator, size: int) -> None:
        assert leader.validate(VECTOR_A[:size], RULES, ASSIGN) == EMPTY_APPEND
        assert EMPTY_APPEND.record_count == 0

    def test_offsets_up_to_the_end_of_long(self, leader: LeaderValidator) -> None:
        high = OFFSET_MAX - (1 << 31)
        append = leader.validate(VECTOR_A, RULES, ASSIGN._replace(next_offset=high))
        assert append.last_offset == high + 1
        with pytest.raises(LimitExceededError):
            leader.validate(VECTOR_A, RULES, ASSIGN._replace(next_offset=high + 1))


class TestBatchChecks:
    """In Kafka's order: what comes first decides the error."""

    def test_client_must_send_base_offset_zero(self, leader: LeaderValidator) -> None:
        raw = struct.pack(">q", 3) + batch()[8:-1] + b"?"  # a wrong CRC, too
        error = refused(leader, raw, AppendRules(max_message_bytes=10))
        assert type(error) is InvalidRecordError
        assert error.code == 87
        assert error.kafka_name == "INVALID_RECORD"

    def test_a_coordinator_may_send_any_base_offset(self, leader: LeaderValidator) -> None:
        append = leader.validate(marker(offset=33), RULES, COORDINATOR)
        assert append.first_offset == 500

    def test_max_message_bytes(self, leader: LeaderValidator) -> None:
        raw = batch()[:-1] + b"?"
        error = refused(leader, raw, AppendRules(max_message_bytes=len(raw) - 1))
        assert type(error) is MessageTooLargeError
        assert error.code == 10
        rules = AppendRules(max_message_bytes=len(raw))
        assert leader.validate(batch(), rules, ASSIGN).record_count == 3

    def test_crc(self, leader: LeaderValidator) -> None:
        for position in (17, 21, 40, 61, 70, len(batch()) - 1):
            raw = bytearray(batch())
            raw[position] ^= 1
            error = refused(leader, bytes(raw))
            assert type(error) is CorruptMessageError, position
            assert error.code == 2

    def test_impossible_lengths_and_magics(self, leader: LeaderValidator) -> None:
        short = struct.pack(">qi", 0, 13) + bytes(20)
        small = struct.pack(">qi", 0, 48) + bytes(4) + b"\x02" + bytes(60)
        unknown = struct.pack(">qi", 0, 60) + bytes(4) + b"\x03" + bytes(80)
        for raw in (short, small, unknown):
            assert type(refused(leader, raw)) is CorruptMessageError

    @pytest.mark.parametrize("codec_id", [5, 6, 7])
    def test_unknown_codec(self, leader: LeaderValidator, codec_id: int) -> None:
        error = refused(leader, resealed(batch(), attributes=codec_id))
        assert type(error) is UnsupportedCompressionTypeError
        assert error.code == 76

    def test_one_batch_only(self, leader: LeaderValidator) -> None:
        assert type(refused(leader, batch() + batch())) is InvalidRecordError

    @pytest.mark.parametrize(
        "changes",
        [
            {"record_count": 2},
            {"record_count": 0},
            {"record_count": -1},
            {"last_offset_delta": 3},
            {"last_offset_delta": -1, "record_count": 0},
        ],
    )
    @pytest.mark.parametrize("assign", [ASSIGN, COORDINATOR], ids=["client", "coordinator"])
    def test_count_and_offsets_must_agree(
        self, leader: LeaderValidator, changes: dict[str, int], assign: Assignment
    ) -> None:
        error = refused(leader, resealed(batch(), **changes), assign=assign)
        assert type(error) is InvalidRecordError

    def test_clients_write_no_control_batches(self, leader: LeaderValidator) -> None:
        assert type(refused(leader, marker())) is InvalidRecordError

    def test_producer_id_needs_a_sequence(self, leader: LeaderValidator) -> None:
        raw = batch(fields=BatchFields(producer_id=5, producer_epoch=0, base_sequence=-1))
        assert type(refused(leader, raw)) is InvalidRecordError
        assert leader.validate(raw, RULES, COORDINATOR).record_count == 3

    def test_segment_bytes(self, leader: LeaderValidator) -> None:
        raw = batch()
        error = refused(leader, raw, AppendRules(segment_bytes=len(raw) - 1))
        assert type(error) is RecordListTooLargeError
        assert error.code == 18
        rules = AppendRules(segment_bytes=len(raw))
        assert leader.validate(raw, rules, ASSIGN).record_count == 3

    def test_errors_survive_pickling(self, leader: LeaderValidator) -> None:
        keyless = encode_batch([Record(0, NOW_MS, None, b"v")])
        error = refused(leader, keyless, AppendRules(is_compacted=True))
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (copy.message, copy.record_errors) == (error.message, error.record_errors)


class TestRecordChecks:
    def test_compacted_topics_need_keys(self, leader: LeaderValidator) -> None:
        sent = records(b"a", b"b", b"c", b"d")
        sent[1] = sent[1]._replace(key=None)
        sent[3] = sent[3]._replace(key=None)
        raw = encode_batch(sent)
        error = refused(leader, raw, AppendRules(is_compacted=True))
        assert type(error) is InvalidRecordError
        assert [found.batch_index for found in error.record_errors] == [1, 3]
        assert leader.validate(raw, RULES, ASSIGN).record_count == 4

    def test_an_empty_key_is_a_key(self, leader: LeaderValidator) -> None:
        raw = encode_batch([Record(0, NOW_MS, b"", b"v")])
        assert leader.validate(raw, AppendRules(is_compacted=True), ASSIGN).record_count == 1

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
    def test_timestamp_limits(self, leader: LeaderValidator, codec: Codec) -> None:
        rules = AppendRules(timestamp_before_max_ms=10, timestamp_after_max_ms=20)
        for age, is_good in ((10, True), (11, False), (-20, True), (-21, False), (0, True)):
            sent = [Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS - age, b"k", b"v")]
            raw = encode_batch(sent, BatchFields(codec=codec))
            if is_good:
                assert leader.validate(raw, rules, ASSIGN).record_count == 2
            else:
                error = refused(leader, raw, rules)
                assert type(error) is InvalidTimestampError
                assert error.code == 32
                assert [found.batch_index for found in error.record_errors] == [1]

    def test_no_timestamp_is_in_no_limits(self, leader: LeaderValidator) -> None:
        rules = AppendRules(timestamp_before_max_ms=0, timestamp_after_max_ms=0)
        raw = encode_batch([Record(0, -1, b"k", b"v")])
        assert leader.validate(raw, rules, ASSIGN).max_timestamp == -1

    def test_defaults_allow_an_hour_ahead_and_any_past(self, leader: LeaderValidator) -> None:
        rules = AppendRules.of(LogConfig())
        assert rules == AppendRules()
        ahead = encode_batch(records(b"a", timestamp=NOW_MS + 3_600_000))
        assert leader.validate(ahead, rules, ASSIGN).record_count == 1
        too_far = encode_batch(records(b"a", timestamp=NOW_MS + 3_600_001))
        assert type(refused(leader, too_far, rules)) is InvalidTimestampError
        assert leader.validate(encode_batch(records(b"a", timestamp=0)), rules, ASSIGN)

    def test_times_so_far_back_that_their_age_overflows(self, leader: LeaderValidator) -> None:
        """In Java the age of such a record is negative: it seems to come from the future."""
        raw = encode_batch(records(b"a", timestamp=-(1 << 63)))
        assert type(refused(leader, raw)) is InvalidTimestampError

    def test_a_bad_timestamp_decides_the_code(self, leader: LeaderValidator) -> None:
        sent = records(b"a", b"b", b"c", timestamp=NOW_MS)
        sent[0] = sent[0]._replace(key=None)
        sent[2] = sent[2]._replace(timestamp=NOW_MS + (1 << 40))
        error = refused(leader, encode_batch(sent), AppendRules(is_compacted=True))
        assert type(error) is InvalidTimestampError
        assert [found.batch_index for found in error.record_errors] == [0, 2]

    def test_producers_must_not_claim_log_append_time(self, leader: LeaderValidator) -> None:
        fields = BatchFields(timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=NOW_MS)
        error = refused(leader, batch(fields=fields), LOG_APPEND_TIME)
        assert type(error) is InvalidTimestampError
        assert len(error.record_errors) == 3
        without = resealed(batch(fields=fields), max_timestamp=-1)
        assert type(refused(leader, without)) is InvalidTimestampError

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
    def test_structure_of_records(self, leader: LeaderValidator, codec: Codec) -> None:
        """A bad record under a valid CRC, wherever it is bad, is refused before anything else."""
        whole = encode_batch([Record(0, NOW_MS, b"key", b"value", (Header("h", b"x"),))])
        payload = whole[61:]
        bad = [payload[:-1], payload + b"\0", b""]
        for position in (0, 4, 8, 14, 15, 17):  # every length and the count of headers
            broken = bytearray(payload)
            broken[position] ^= 0x40
            bad.append(bytes(broken))
        template = BatchHeader.unpack(whole)._replace(attributes=codec)
        for broken_payload in bad:
            raw = seal_batch(template, compress(codec, broken_payload))
            error = refused(leader, raw, AppendRules(timestamp_before_max_ms=0))
            assert type(error) is InvalidRecordError, broken_payload.hex()

    def test_records_that_cannot_be_decompressed(self, leader: LeaderValidator) -> None:
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
            raw = seal_batch(BatchHeader.unpack(batch())._replace(attributes=codec), b"nonsense")
            assert type(refused(leader, raw)) is InvalidRecordError

    def test_record_errors_are_plain_values(self) -> None:
        assert RecordError(1, "no key") == (1, "no key")


def test_module_function_is_the_same() -> None:
    append = LeaderValidator().validate(VECTOR_A, RULES, ASSIGN)
    assert append == LeaderValidator(compiled=False).validate(VECTOR_A, RULES, ASSIGN)

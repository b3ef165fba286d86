"""Batches that Kafka stored, sent again as their producer sent them: the bytes come out the same.

A stored batch becomes a sent one by undoing what its broker did: base offset 0, no leader epoch,
and under LogAppendTime the producer's own timestamp type and largest timestamp. What the cleaner
has rewritten was never sent like that and is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog.config import LogConfig
from stratalog.format.batch import MAGIC_2, BatchHeader, Codec, TimestampType, next_entry
from stratalog.format.compression import decompress
from stratalog.format.log_entry import EntryHeader, header_of, records_of
from stratalog.format.record import BatchFields, decode_records, encode_batch, seal_batch
from stratalog.log.offset_assignment import AppendOrigin, AppendRules, Assignment
from stratalog.log.validation import LeaderValidator, validate_follower
from tests.golden.cases import GoldenCase, all_cases, log_dir_case
from tests.looping import for_each

if TYPE_CHECKING:
    from pathlib import Path

OLD_CASES = [case for case in all_cases() if case.name.startswith(("v0-", "v1-", "real09-"))]
BROKER_CASES = [case for case in all_cases() if case.name.startswith("broker-")]
CASES = [case for case in all_cases() if case not in OLD_CASES + BROKER_CASES]
WITHOUT_BATCHES = {"empty"}


class Stored(NamedTuple):
    """A magic-2 batch of a golden log."""

    raw: bytes
    header: BatchHeader

    @property
    def payload(self) -> bytes:
        return self.raw[61:]

    @property
    def plain(self) -> bytes:
        return decompress(self.header.codec_id, self.payload)


def logs_of(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.glob("*.log"))]


def stored_batches(directory: Path) -> list[Stored]:
    """As the producer and the broker made them, not the cleaner."""
    found = []
    for data in logs_of(directory):
        at = 0
        while (entry := next_entry(data, at)) is not None and entry.magic == MAGIC_2:
            header = BatchHeader.unpack(data, at)
            at = entry.end
            if header.record_count == header.last_offset_delta + 1 and (
                header.delete_horizon_ms is None
            ):
                found.append(Stored(data[entry.position : at], header))
    return found


def sent(stored: Stored) -> bytes:
    """What the producer had sent."""
    header = stored.header._replace(base_offset=0, partition_leader_epoch=-1)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        header = header._replace(attributes=header.attributes & ~0x08)
        times = [record.timestamp for record in decode_records(stored.raw, 0, header)]
        return seal_batch(header._replace(max_timestamp=max(times)), stored.payload)
    return header.pack() + stored.payload


def assignment(header: BatchHeader) -> Assignment:
    """The state of the log and the clock when Kafka appended this."""
    return Assignment(
        next_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
        now_ms=header.max_timestamp,
        origin=AppendOrigin.COORDINATOR if header.is_control else AppendOrigin.CLIENT,
    )


def rules_of(case: GoldenCase) -> AppendRules:
    return AppendRules.of(LogConfig.parse(case.manifest.get("topic_config") or {}))


@pytest.fixture(params=[False, True], ids=["readable", "compiled"])
def leader(request: pytest.FixtureRequest) -> LeaderValidator:
    return LeaderValidator(compiled=request.param)


@pytest.mark.slow
@for_each("case", CASES)
def test_bytes_come_out_the_same(case: GoldenCase, leader: LeaderValidator) -> None:
    rules = rules_of(case)
    batches = [batch for path in case.partition_dirs() for batch in stored_batches(path)]
    assert batches or case.name in WITHOUT_BATCHES
    if case.name.startswith("u-"):
        batches = [
            batch for batch in batches if batch.raw == seal_batch(batch.header, batch.payload)
        ]
    for batch in batches:
        append = leader.validate(sent(batch), rules, assignment(batch.header))
        assert bytes(append.data) == batch.raw
        assert not append.was_rewritten
        assert append.headers == (batch.header,)


def test_internal_topics(leader: LeaderValidator) -> None:
    """Written by coordinators; __consumer_offsets has sequences without a producer."""
    batches = [
        batch
        for path in log_dir_case().partition_dirs()
        if path.name.startswith(("__consumer_offsets", "__transaction_state"))
        for batch in stored_batches(path)
    ]
    assert batches
    for batch in batches:
        assign = assignment(batch.header)._replace(origin=AppendOrigin.COORDINATOR)
        append = leader.validate(sent(batch), AppendRules(is_compacted=True), assign)
        assert bytes(append.data) == batch.raw


def test_raft_leader_keeps_what_it_has(leader: LeaderValidator) -> None:
    (path,) = (p for p in log_dir_case().partition_dirs() if p.name.startswith("__cluster_meta"))
    for batch in stored_batches(path):
        assign = assignment(batch.header)._replace(origin=AppendOrigin.RAFT_LEADER)
        assert bytes(leader.validate(batch.raw, AppendRules(), assign).data) == batch.raw


@pytest.mark.parametrize("source", [Codec.NONE, Codec.GZIP, Codec.LZ4])
@for_each("case", BROKER_CASES)
def test_what_the_broker_recompressed(
    case: GoldenCase, leader: LeaderValidator, source: Codec
) -> None:
    """Compressed bytes hang on the version of the codec; what they hold does not."""
    rules = rules_of(case)
    assert rules.codec is not None
    batches = stored_batches(case.partition_dir)
    assert batches
    for batch in batches:
        header = batch.header
        records = [
            record._replace(offset=record.offset - header.base_offset)
            for record in decode_records(batch.raw, 0, header)
        ]
        fields = BatchFields(
            codec=source,
            is_transactional=header.is_transactional,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
        append = leader.validate(encode_batch(records, fields), rules, assignment(header))
        made = Stored(bytes(append.data), BatchHeader.unpack(append.data))
        assert append.was_rewritten is (source is not rules.codec)
        assert made.plain == batch.plain
        unsized = {"batch_length": 0, "crc": 0}
        assert made.header._replace(**unsized) == header._replace(**unsized)
        if rules.codec is Codec.NONE:
            assert made.raw == batch.raw


@for_each("case", OLD_CASES)
def test_old_formats_are_converted(case: GoldenCase, leader: LeaderValidator) -> None:
    """Kafka 4.0 stores magic 2 only. A set of LogAppendTime was not sent as such by anybody."""
    for data in logs_of(case.partition_dir):
        at = 0
        while (entry := next_entry(data, at)) is not None:
            at = entry.end
            records = list(records_of(data, entry))
            assign = Assignment(1000, 5, 1_800_000_000_000)
            append = leader.validate(data[entry.position : at], AppendRules(), assign)
            header = append.headers[0]
            assert isinstance(header, BatchHeader)
            made = list(decode_records(append.data, 0, header))
            assert [record[1:5] for record in made] == [record[1:5] for record in records]
            assert [record.offset for record in made] == list(range(1000, 1000 + len(records)))
            assert header.codec_id == header_of(data, entry).codec_id


@for_each("case", all_cases())
def test_a_follower_takes_every_log(case: GoldenCase) -> None:
    """Of every magic, compacted or not; of damaged ones what Kafka kept."""
    directory = case.partition_dirs()[-1]
    end = 0
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        append = validate_follower(data, log_end_offset=end)
        assert bytes(append.data) == data
        assert list(append.headers) == _headers(data)
        end = append.next_offset if append.spans else end


def _headers(data: bytes) -> list[EntryHeader]:
    found = []
    at = 0
    while (entry := next_entry(data, at)) is not None:
        found.append(header_of(data, entry))
        at = entry.end
    return found

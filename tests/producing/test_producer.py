"""Appending records: partitions, batches, deliveries, failures, and numbered batches."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from stratalog.errors import (
    AppendError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.batch import Codec, TimestampType
from stratalog.format.murmur import partition_for_key
from stratalog.format.record import Header
from stratalog.log_dir import LogDir
from stratalog.producing import batches
from stratalog.producing.batches import LoadedEncoder, RecordMetadata
from stratalog.storage.disk import Disk, SystemCalls
from tests.disks import FaultyDisk
from tests.log.building import batches_of
from tests.opening import NOW_MS, Clock, open_logs

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.batch import BatchHeader
    from stratalog.format.buffers import Buffer
    from stratalog.producing.batches import Delivery
    from stratalog.producing.producer import Producer
    from stratalog.producing.transactions import Transaction


def headers_in(path: Path) -> list[BatchHeader]:
    """Of the batches of a partition's first segment, as they are on disk."""
    from stratalog.format.batch import BatchHeader  # noqa: PLC0415

    raw = (path / "00000000000000000000.log").read_bytes()
    return [BatchHeader.unpack(raw, batch.position) for batch in batches_of(raw)]


def test_a_record_with_everything(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 7)
        metadata = logs.append(
            "orders",
            b"value",
            key=b"key",
            headers=[("a", b"1"), ("a", None)],
            timestamp=NOW_MS - 5,
        )
        partition = partition_for_key(b"key", 7)
        assert metadata == RecordMetadata("orders", partition, 0, NOW_MS - 5)
        [record] = logs.partition("orders", partition).read()
        assert record[:4] == (0, NOW_MS - 5, b"key", b"value")
        assert record.headers == (Header("a", b"1"), Header("a", None))


def test_time_defaults_to_now_and_headers_may_be_a_mapping(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        assert logs.append("orders", None, headers={"h": b"x"}).timestamp == NOW_MS
        [record] = logs.partition("orders", 0).read()
        assert (record.timestamp, record.key, record.value) == (NOW_MS, None, None)
        assert record.headers == (Header("h", b"x"),)


def test_the_logs_own_time_is_answered(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", config={"message.timestamp.type": "LogAppendTime"})
        assert logs.append("orders", b"x", timestamp=5).timestamp == NOW_MS
        [record] = logs.partition("orders", 0).read()
        assert record.timestamp_type is TimestampType.LOG_APPEND_TIME


def test_a_key_stays_in_its_partition(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 5)
        keys = [b"key-%d" % number for number in range(20)]
        for key in keys * 2:
            assert logs.append("orders", b"x", key=key).partition == partition_for_key(key, 5)


def test_a_partition_that_is_named_wins(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 5)
        assert logs.append("orders", b"x", key=b"key", partition=4).partition == 4


@pytest.mark.parametrize("value", ["text", 7, bytearray(b"x")])
def test_what_is_not_bytes_is_refused_before_it_waits(tmp_path: Path, value: object) -> None:
    with open_logs(tmp_path) as logs, logs.producer() as producer:
        kept = producer.append("orders", b"good")
        for arguments in ({"value": value}, {"value": b"", "key": value}):
            with pytest.raises(TypeError, match="must be bytes or None"):
                producer.append("orders", **arguments)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="header 'h'"):
            producer.append("orders", b"", headers={"h": value})  # type: ignore[arg-type]
        assert kept.result().offset == 0


# -- batches


def test_records_share_a_batch(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs, logs.producer() as producer:
        deliveries = [producer.append("orders", b"%d" % number) for number in range(10)]
        assert not any(delivery.is_done for delivery in deliveries)
        assert logs.partition("orders", 0).log_end_offset == 0
        assert [delivery.result().offset for delivery in deliveries] == list(range(10))
    [header] = headers_in(tmp_path / "orders-0")
    assert header.record_count == 10
    assert header.producer_id == -1


def test_a_full_batch_is_written(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs, logs.producer(batch_bytes=1000) as producer:
        deliveries = [producer.append("orders", bytes(100)) for _ in range(20)]
        # 61 bytes of header, 108 for each record: eight are 925, nine would be 1033.
        assert [delivery.is_done for delivery in deliveries] == [True] * 16 + [False] * 4
    assert [header.record_count for header in headers_in(tmp_path / "orders-0")] == [8, 8, 4]


def test_a_large_record_has_a_batch_of_its_own(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs, logs.producer(batch_bytes=500) as producer:
        for size in (10, 1000, 10, 10):
            producer.append("orders", bytes(size))
    assert [header.record_count for header in headers_in(tmp_path / "orders-0")] == [1, 1, 2]


def test_batches_are_compressed(tmp_path: Path) -> None:
    for name in ("gzip", "snappy", "lz4", "zstd"):
        with open_logs(tmp_path / name) as logs, logs.producer(compression=name) as producer:
            for _ in range(50):
                producer.append("orders", b"again and again")
        [header] = headers_in(tmp_path / name / "orders-0")
        assert header.codec_id == Codec[name.upper()]
        assert header.size_bytes < 400
        with open_logs(tmp_path / name) as logs, pytest.raises(ValueError, match="not one of none"):
            logs.producer(compression="brotli")


@pytest.mark.parametrize("idempotent", [False, True])
def test_the_same_files_with_and_without_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, idempotent: bool
) -> None:
    """Kernels are used after many records, and change nothing but the speed."""
    for name, module, records_left in (("readable", None, 1 << 40), ("compiled", None, -1)):
        monkeypatch.setattr(LoadedEncoder, "module", module)
        monkeypatch.setattr(LoadedEncoder, "records_left", records_left)
        if name == "readable":
            monkeypatch.setattr(batches, "KERNEL_RECORDS_MIN", 1 << 40)
        with open_logs(tmp_path / name) as logs:
            logs.create_topic("orders", 3)
            with logs.producer(batch_bytes=700, idempotent=idempotent) as producer:
                for number in range(500):
                    producer.append(
                        "orders",
                        None if number % 7 == 0 else b"%d" % number,
                        key=Key(b"%d" % (number % 50)),
                        headers={"h": b"x"} if number % 100 == 0 else {},
                        timestamp=NOW_MS - number % 5,
                    )
        assert (LoadedEncoder.module is None) is (name == "readable")
        monkeypatch.undo()
    for partition in range(3):
        file = f"orders-{partition}/00000000000000000000.log"
        written = (tmp_path / "compiled" / file).read_bytes()
        assert written == (tmp_path / "readable" / file).read_bytes()
        assert len(batches_of(written)) > 1


class Key(bytes):
    """Bytes of a subclass are bytes."""


def test_lingering_records_are_written_by_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock) as logs, logs.producer(linger_ms=10) as producer:
        logs.create_topic("orders", 2)
        first = producer.append("orders", b"x", partition=0)
        clock.advance(6)
        second = producer.append("orders", b"x", partition=1)
        clock.advance(4)
        logs.run_pending_tasks()
        assert (first.is_done, second.is_done) == (True, False)
        clock.advance(6)
        logs.run_pending_tasks()
        assert second.is_done


def test_a_busy_producer_is_not_disturbed_by_its_clock(tmp_path: Path) -> None:
    """Batches that fill up in time are written by whoever appends; the clock only looks again."""
    clock = Clock()
    with open_logs(tmp_path, clock=clock) as logs:
        producer = logs.producer(linger_ms=10, batch_bytes=300)
        deliveries = []
        for _ in range(20):
            deliveries += [producer.append("orders", bytes(50)) for _ in range(4)]
            clock.advance(4)
            logs.run_pending_tasks()
        assert [delivery.is_done for delivery in deliveries] == [True] * 76 + [False] * 4
        clock.advance(10)
        logs.run_pending_tasks()
        assert all(delivery.is_done for delivery in deliveries)
        clock.advance(1)
        logs.run_pending_tasks()
        last = producer.append("orders", b"x")  # the clock had stopped, and runs again
        clock.advance(10)
        logs.run_pending_tasks()
        assert last.is_done
        counts = {header.record_count for header in headers_in(tmp_path / "orders-0")[:-2]}
        assert counts == {4}


def test_lingering_records_are_written_by_a_thread(tmp_path: Path) -> None:
    with LogDir.open(tmp_path) as logs:
        producer = logs.producer(linger_ms=20)
        delivery = producer.append("orders", b"x")
        deadline = time.monotonic() + 60
        while not delivery.is_done:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert delivery.result().offset == 0


def test_without_linger_each_record_is_a_batch(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs, logs.producer(linger_ms=0) as producer:
        assert all(producer.append("orders", b"x").is_done for _ in range(3))
    assert len(headers_in(tmp_path / "orders-0")) == 3


def test_closing_the_logs_writes_what_waits(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    producer = logs.producer()
    delivery = producer.append("orders", b"x")
    logs.close()
    assert delivery.result().offset == 0
    with pytest.raises(ValueError, match="closed"):
        producer.append("orders", b"x")
    with open_logs(tmp_path) as logs:
        assert logs.partition("orders", 0).log_end_offset == 1


# -- failures


def test_a_record_that_fits_no_batch_is_refused_at_once(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", config={"max.message.bytes": 200})
        producer = logs.producer()
        small = producer.append("orders", b"x")
        with pytest.raises(MessageTooLargeError) as refusal:
            producer.append("orders", bytes(500))
        assert refusal.value.code == 10
        assert small.result().offset == 0
        logs.alter_config("orders", {"max.message.bytes": None})
        assert producer.append("orders", bytes(500)).result().offset == 1


def test_a_refused_batch_tells_each_of_its_records(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", config={"cleanup.policy": "compact"})
        producer = logs.producer()
        good = producer.append("orders", b"x", key=b"k")
        bad = producer.append("orders", b"x")
        for delivery in (good, bad):
            with pytest.raises(InvalidRecordError) as refusal:
                delivery.result()
            assert [error.batch_index for error in refusal.value.record_errors] == [1]
        producer.flush()  # both know
        assert producer.append("orders", b"y", key=b"k").result().offset == 0


def test_a_failure_that_nobody_asked_about_comes_out_of_flush(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders")
        producer = logs.producer()
        producer.append("orders", b"x", timestamp=NOW_MS + 4_000_000)
        with pytest.raises(InvalidTimestampError):
            producer.flush()
        producer.flush()
        producer.append("orders", b"x", timestamp=NOW_MS + 4_000_000)
        with pytest.raises(InvalidTimestampError):
            producer.close()


def test_a_full_disk_is_told_and_can_be_overcome(tmp_path: Path) -> None:
    faulty = FaultyDisk()
    with open_logs(tmp_path, disk=faulty.disk) as logs:
        logs.create_topic("orders")
        faulty.fail_next(28)  # ENOSPC
        with pytest.raises(StorageError, match="No space left"):
            logs.append("orders", b"lost")
        assert logs.append("orders", b"kept").offset == 0


def test_a_topic_deleted_meanwhile(tmp_path: Path) -> None:
    with open_logs(tmp_path, auto_create_topics_enable=False) as logs:
        logs.create_topic("orders")
        producer = logs.producer()
        delivery = producer.append("orders", b"x")
        logs.delete_topic("orders")
        with pytest.raises(UnknownTopicOrPartitionError):
            delivery.result()


# -- numbered batches


def test_an_idempotent_producer_numbers_its_batches(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2)
        with logs.producer(idempotent=True, linger_ms=0) as producer:
            for partition in (0, 0, 1, 0):
                producer.append("orders", b"x", partition=partition)
        with logs.producer(idempotent=True) as other:
            assert other.producer_id != producer.producer_id
            other.append("orders", b"x", partition=0)
    numbered = [
        [(header.producer_epoch, header.base_sequence) for header in headers_in(tmp_path / name)]
        for name in ("orders-0", "orders-1")
    ]
    assert numbered == [[(0, 0), (0, 1), (0, 2), (0, 0)], [(0, 0)]]


def test_after_a_refusal_the_producer_goes_on(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", config={"cleanup.policy": "compact"})
        producer = logs.producer(idempotent=True, linger_ms=0)
        producer.append("orders", b"0", key=b"k")
        with pytest.raises(InvalidRecordError):
            producer.append("orders", b"no key").result()
        assert producer.append("orders", b"1", key=b"k").result().offset == 1


def test_what_waits_is_numbered_anew_after_a_failure(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2, config={"cleanup.policy": "compact"})
        producer = logs.producer(idempotent=True, batch_bytes=150)
        elsewhere = producer.append("orders", b"x", key=b"k", partition=1)
        refused = producer.append("orders", b"no key", partition=0)
        # Too large to share a batch, and a full batch by itself: both are built together.
        large = producer.append("orders", bytes(200), key=b"k", partition=0)
        assert refused.is_done
        assert large.result().offset == 0
        assert elsewhere.result().offset == 0
        with pytest.raises(InvalidRecordError):
            producer.flush()


def test_after_doubt_the_producer_is_a_new_one(tmp_path: Path) -> None:
    """The batch may be in the log or not: with the same number, the next would be taken for it."""
    faulty = FaultyDisk()
    with open_logs(tmp_path, disk=faulty.disk) as logs:
        logs.create_topic("orders")
        producer = logs.producer(idempotent=True, linger_ms=0)
        producer.append("orders", b"0").result()
        before = producer.producer_id
        faulty.fail_next()
        with pytest.raises(StorageError):
            producer.append("orders", b"1").result()
        assert producer.append("orders", b"2").result().offset == 1
        assert producer.producer_id != before
        values = [record.value for record in logs.partition("orders", 0).read()]
        assert values == [b"0", b"2"]


# -- threads


def test_many_writers_and_readers(tmp_path: Path) -> None:
    """Each thread's records are in order and whole; readers see a growing prefix."""
    writers, records = 4, 150
    with LogDir.open(tmp_path, config={"log.segment.bytes": 20_000}) as logs:
        logs.create_topic("orders", 2)
        stop = threading.Event()
        seen_by_readers: list[list[bytes | None]] = []

        def write(number: int) -> None:
            with logs.producer(
                linger_ms=1, batch_bytes=700, idempotent=number % 2 == 0
            ) as producer:
                for count in range(records):
                    producer.append("orders", b"%d %d" % (number, count), partition=count % 2)

        def read() -> None:
            previous: list[bytes | None] = []
            while not stop.is_set():
                values = [record.value for record in logs.partition("orders", 0).read()]
                assert values[: len(previous)] == previous
                previous = values
            seen_by_readers.append(previous)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
        readers = [threading.Thread(target=read) for _ in range(3)]
        for thread in (*threads, *readers):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        for thread in readers:
            thread.join()
        assert len(seen_by_readers) == 3
        for partition in range(2):
            log = logs.partition("orders", partition)
            found = [record.value or b"" for record in log.read()]
            offsets = [record.offset for record in log.read()]
            assert offsets == list(range(writers * records // 2))
            for number in range(writers):
                mine = [value for value in found if value.startswith(b"%d " % number)]
                expected = range(partition, records, 2)
                assert mine == [b"%d %d" % (number, count) for count in expected]


# -- what spoils one batch


class Spoiled(str):
    """A header's key that cannot be encoded any more once it was appended."""

    is_spoiled = False

    def encode(self, *_: object) -> bytes:
        if self.is_spoiled:
            raise RuntimeError("spoiled")
        return super().encode()


def append_spoiled(producer: Producer | Transaction, key: bytes | None = None) -> Delivery:
    name = Spoiled("h")
    delivery = producer.append("orders", b"spoiled", key=key, headers=[(name, b"")])
    name.is_spoiled = True
    return delivery


@pytest.mark.parametrize("timestamp", [1 << 63, 1 << 80, -1, -(1 << 63) - 1])
@pytest.mark.parametrize("idempotent", [False, True])
def test_a_timestamp_that_no_batch_can_hold_is_refused_at_the_call(
    tmp_path: Path, timestamp: int, *, idempotent: bool
) -> None:
    logs = open_logs(tmp_path)
    logs.create_topic("orders", 1)
    producer = logs.producer(idempotent=idempotent)
    first = producer.append("orders", b"first")
    with pytest.raises(InvalidTimestampError):
        producer.append("orders", b"poison", timestamp=timestamp)
    with pytest.raises(InvalidTimestampError):
        logs.append("orders", b"poison", timestamp=timestamp)
    with pytest.raises(InvalidTimestampError):
        logs.append("not-created", b"poison", timestamp=timestamp)
    assert producer.append("orders", b"second").result().offset == 1
    assert first.result().offset == 0
    assert sorted(logs.topics) == ["orders"]
    producer.close()
    logs.close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    open_logs(tmp_path).close()


@pytest.mark.parametrize(
    "timestamp",
    [
        NOW_MS + 1,
        np.int64(NOW_MS + 1),
        datetime.fromtimestamp(NOW_MS // 1000, UTC) + timedelta(microseconds=1999),
        pd.Timestamp(NOW_MS + 1, unit="ms", tz="Europe/Berlin"),
        np.datetime64(NOW_MS + 1, "ms"),
    ],
    ids=["int", "numpy int", "datetime", "pandas", "numpy"],
)
def test_timestamps(tmp_path: Path, timestamp: Any) -> None:
    """What is finer than a millisecond is dropped."""
    with open_logs(tmp_path) as logs:
        assert logs.append("orders", b"x", timestamp=timestamp).timestamp == NOW_MS + 1
        with logs.producer() as producer:
            producer.append("orders", b"x", timestamp=timestamp)
        with logs.transaction("shop") as txn:
            txn.append("orders", b"x", timestamp=timestamp)
        found = [record.timestamp for record in logs.partition("orders", 0).read()]
        assert found == [NOW_MS + 1] * 3


@pytest.mark.parametrize("timestamp", [1.5, "now", b"0", datetime(2026, 5, 1), pd.NaT, True])
def test_other_timestamps_are_refused(tmp_path: Path, timestamp: Any) -> None:
    with open_logs(tmp_path) as logs:
        with pytest.raises(InvalidArgumentError, match=r"timestamp is .*(an int|no time zone)"):
            logs.append("orders", b"x", timestamp=timestamp)
        with pytest.raises(TypeError, match="header key 7"):
            logs.append("orders", b"x", headers=[(7, b"")])  # type: ignore[list-item]
        assert logs.append("orders", b"x").offset == 0


def test_a_record_of_two_gibibytes_is_too_large(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs, pytest.raises(MessageTooLargeError):
        logs.append("orders", bytes(1 << 31))


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_batch_that_cannot_be_encoded_fails_alone(tmp_path: Path, *, idempotent: bool) -> None:
    logs = open_logs(tmp_path)
    producer = logs.producer(batch_bytes=200, idempotent=idempotent)
    before = producer.append("orders", b"before", key=b"k" * 100)
    spoiled = append_spoiled(producer, key=b"k" * 100)
    after = producer.append("orders", b"after", key=b"k" * 100)
    with pytest.raises(AppendError, match=r"cannot be encoded: RuntimeError\('spoiled'\)"):
        spoiled.result()
    assert [before.result().offset, after.result().offset] == [0, 1]
    append_spoiled(producer)
    with pytest.raises(AppendError, match="cannot be encoded"):
        producer.close()
    logs.close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    with open_logs(tmp_path) as logs:
        assert [r.value for r in logs.partition("orders", 0).read()] == [b"before", b"after"]


def test_a_transaction_with_a_spoiled_batch_is_aborted(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        transaction = logs.transaction("t")
        transaction.append("orders", b"x").result()
        append_spoiled(transaction)
        with pytest.raises(AppendError, match="cannot be encoded"):
            transaction.commit()
        assert not logs.open_transactions()
        log = logs.partition("orders", 0)
        assert log.last_stable_offset == log.log_end_offset == 2


class FailingWrites:
    """A disk on which writing to logs raises what no disk should."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.disk = Disk(SystemCalls(pwrite=self._pwrite))

    def _pwrite(self, fd: int, data: Buffer, position: int) -> int:
        if self.error is not None:
            raise self.error
        return os.pwrite(fd, data, position)


def test_an_unexpected_error_fails_its_batch_alone(tmp_path: Path) -> None:
    failing = FailingWrites()
    with open_logs(tmp_path, disk=failing.disk) as logs:
        producer = logs.producer()
        producer.append("orders", b"first").result()
        spoiled = producer.append("orders", b"x")
        failing.error = RuntimeError("no disk does this")
        with pytest.raises(AppendError, match="no disk does this"):
            spoiled.result()
        failing.error = None
        assert producer.append("orders", b"second").result().offset == 1
        producer.close()
        assert [r.value for r in logs.partition("orders", 0).read()] == [b"first", b"second"]


def test_an_interrupt_loses_no_waiting_record(tmp_path: Path) -> None:
    failing = FailingWrites()
    with open_logs(tmp_path, disk=failing.disk) as logs:
        producer = logs.producer(batch_bytes=200, linger_ms=60_000)
        first = producer.append("orders", b"0", key=b"k" * 120)
        failing.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            producer.append("orders", b"1", key=b"k" * 120)  # the first one's batch is full
        failing.error = None
        with pytest.raises(AppendError, match="interrupted"):
            producer.flush()
        producer.flush()
        values = [record.value for record in logs.partition("orders", 0).read()]
        assert values == [b"1"]  # the batch with the first record was interrupted, and said so
        with pytest.raises(AppendError, match="interrupted"):
            first.result()


def test_a_lowered_limit_refuses_what_waits_and_is_too_large_now(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
        producer = logs.producer(linger_ms=60_000)
        large = producer.append("orders", bytes(5_000))
        small = producer.append("orders", b"small")
        logs.alter_config("orders", {"max.message.bytes": 1_000})
        after = producer.append("orders", b"after")
        assert [small.result().offset, after.result().offset] == [0, 1]
        with pytest.raises(MessageTooLargeError):
            large.result()
        producer.close()


@pytest.mark.parametrize(
    "options",
    [
        {"linger_ms": "a"},
        {"linger_ms": -1},
        {"batch_bytes": -1},
        {"batch_bytes": 1.5},
        {"compression": "gzip", "compression_level": 99},
        {"compression": "snappy", "compression_level": 1},
        {"compression": "zip"},
    ],
    ids=str,
)
def test_options_that_mean_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    with open_logs(tmp_path) as logs:
        with pytest.raises(InvalidArgumentError):
            logs.producer(**options)
        with pytest.raises(InvalidArgumentError):
            logs.transactional_producer("t", **options)

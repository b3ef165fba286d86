"""Dozens of faults, each planted in what a real Kafka wrote: found, by its name, at its place."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog.format.snapshot import decode_snapshot, encode_snapshot
from stratalog.maintenance.verify.findings import Fault, Severity
from stratalog.maintenance.verify.running import verify_partition
from tests.golden.cases import GOLDEN_DIR
from tests.log.building import copy_partition
from tests.maintenance.verify.planting import (
    Spot,
    batches,
    be32,
    be64,
    change_batch,
    entry_at,
    flip,
    put,
    segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ZEROS = bytes(4096)


class Plant(NamedTuple):
    """One kind of fault."""

    name: str
    case: str
    fault: Fault
    do: Callable[[Path], Spot]
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        return self.name


# -- in the log


def _flip_in_batch(at: int, number: int = 7, slot: int = 1) -> Callable[[Path], Spot]:
    def do(partition: Path) -> Spot:
        log = segments(partition)[slot]
        batch = batches(log)[number]
        flip(log, batch.position + at)
        return Spot(log.name, batch.position)

    return do


def _flip_in_last_byte(partition: Path) -> Spot:
    log = segments(partition)[2]
    batch = batches(log)[-1]
    flip(log, batch.end - 1)
    return Spot(log.name, batch.position)


def _raise_base_offset(partition: Path) -> Spot:
    log = segments(partition)[1]
    batch = batches(log)[9]
    put(log, batch.position, be64(batch.first_offset + 3))
    return Spot(log.name, batch.position)


def _lower_base_offset(partition: Path) -> Spot:
    log = segments(partition)[1]
    batch = batches(log)[9]
    put(log, batch.position, be64(batch.first_offset - 1))
    return Spot(log.name, batch.position)


def _base_offset_of_next_segment(partition: Path) -> Spot:
    log, after = segments(partition)[1:3]
    batch = batches(log)[-1]
    put(log, batch.position, be64(int(after.stem)))
    return Spot(log.name, batch.position)


def _base_offset_below_segment(partition: Path) -> Spot:
    log = segments(partition)[1]
    put(log, 0, be64(int(log.stem) - 1))
    return Spot(log.name, 0)


def _zero_in_the_middle(partition: Path) -> Spot:
    log = segments(partition)[1]
    batch = batches(log)[4]
    put(log, batch.position, bytes(len(batch.raw)))
    return Spot(log.name, batch.position)


def _cut_sealed(partition: Path) -> Spot:
    log = segments(partition)[3]
    batch = batches(log)[-1]
    log.write_bytes(log.read_bytes()[:-10])
    return Spot(log.name, batch.position)


def _cut_last(partition: Path) -> Spot:
    log = segments(partition)[-1]
    batch = batches(log)[-1]
    log.write_bytes(log.read_bytes()[:-10])
    return Spot(log.name, batch.position)


def _append_junk(slot: int) -> Callable[[Path], Spot]:
    def do(partition: Path) -> Spot:
        log = segments(partition)[slot]
        size = log.stat().st_size
        log.write_bytes(log.read_bytes() + b"\x7f" * 100)
        return Spot(log.name, size)

    return do


def _append_zeros(slot: int) -> Callable[[Path], Spot]:
    def do(partition: Path) -> Spot:
        log = segments(partition)[slot]
        size = log.stat().st_size
        log.write_bytes(log.read_bytes() + ZEROS)
        return Spot(log.name, size)

    return do


def _remove_batch(partition: Path) -> Spot:
    log = segments(partition)[1]
    batch = batches(log)[5]
    raw = log.read_bytes()
    log.write_bytes(raw[: batch.position] + raw[batch.end :])
    return Spot(log.name, batch.position)


def _swap_batches(partition: Path) -> Spot:
    log = segments(partition)[1]
    first, second = batches(log)[5:7]
    raw = log.read_bytes()
    log.write_bytes(raw[: first.position] + second.raw + first.raw + raw[second.end :])
    return Spot(log.name, first.position)


def _repeat_batch(partition: Path) -> Spot:
    log = segments(partition)[1]
    batch = batches(log)[5]
    raw = log.read_bytes()
    log.write_bytes(raw[: batch.end] + batch.raw + raw[batch.end :])
    return Spot(log.name, batch.end)


def _remove_segment(partition: Path) -> Spot:
    before, log = segments(partition)[3:5]
    for suffix in (".log", ".index", ".timeindex", ".snapshot"):
        log.with_suffix(suffix).unlink()
    return Spot(before.name, -1)


# -- in records, under a right CRC


def _set(at: int, raw: bytes) -> Callable[[bytearray], None]:
    def change(batch: bytearray) -> None:
        batch[at : at + len(raw)] = raw

    return change


def _change(change: Callable[[bytearray], None], number: int = 6) -> Callable[[Path], Spot]:
    return lambda partition: change_batch(segments(partition)[1], number, change)


def _count_up(batch: bytearray) -> None:
    batch[57:61] = be32(struct.unpack_from(">i", batch, 57)[0] + 1)


def _count_down(batch: bytearray) -> None:
    batch[57:61] = be32(struct.unpack_from(">i", batch, 57)[0] - 1)


def _record_length(batch: bytearray) -> None:
    batch[61] += 2


def _max_timestamp(batch: bytearray) -> None:
    batch[35:43] = be64(struct.unpack_from(">q", batch, 35)[0] + 1)


def _record_offset_delta(batch: bytearray) -> None:
    """The first record's: behind its length (one or two bytes), attributes and timestamp delta."""
    at = 61 + (2 if batch[61] & 0x80 else 1) + 1
    assert batch[at] == 0  # timestamp delta
    assert batch[at + 1] == 0  # offset delta
    batch[at + 1] = 0x7E  # 63


def _codec(batch: bytearray) -> None:
    batch[22] |= 0x04  # says zstd, is plain


def _control_key(partition: Path) -> Spot:
    log = partition / "00000000000000000011.log"
    found = batches(log)
    number = next(n for n, batch in enumerate(found) if batch.raw[22] & 0x20)

    def change(batch: bytearray) -> None:
        batch[66:68] = b"\xff\xff"  # the version in the key

    return change_batch(log, number, change)


# -- in indexes


def _index(number: int, suffix: str) -> Callable[[Path], Path]:
    return lambda partition: segments(partition)[number].with_suffix(suffix)


def _entry(suffix: str, slot: int, field: int, step: int) -> Callable[[Path], Spot]:
    size = 8 if suffix == ".index" else 12

    def do(partition: Path) -> Spot:
        path = segments(partition)[1].with_suffix(suffix)
        entry = list(entry_at(path, slot, size))
        entry[field] += step
        put(path, slot * size, struct.pack(">ii" if size == 8 else ">qi", *entry))
        return Spot(path.name, slot * size)

    return do


def _repeat_entry(suffix: str) -> Callable[[Path], Spot]:
    size = 8 if suffix == ".index" else 12

    def do(partition: Path) -> Spot:
        path = segments(partition)[1].with_suffix(suffix)
        raw = path.read_bytes()
        path.write_bytes(raw[: 4 * size] + raw[3 * size :])
        return Spot(path.name, 4 * size)

    return do


def _remove(suffix: str, number: int = 1) -> Callable[[Path], Spot]:
    def do(partition: Path) -> Spot:
        path = segments(partition)[number].with_suffix(suffix)
        path.unlink()
        return Spot(path.name, -1)

    return do


def _cut_index(suffix: str, drop: int) -> Callable[[Path], Spot]:
    def do(partition: Path) -> Spot:
        path = segments(partition)[1].with_suffix(suffix)
        path.write_bytes(path.read_bytes()[:-drop])
        size = 8 if suffix == ".index" else 12
        return Spot(path.name, path.stat().st_size // size * size)

    return do


def _empty_index(partition: Path) -> Spot:
    path = segments(partition)[1].with_suffix(".index")
    path.write_bytes(b"")
    return Spot(path.name, -1)


def _past_end(partition: Path) -> Spot:
    log = segments(partition)[1]
    path = log.with_suffix(".index")
    raw = path.read_bytes()
    last = entry_at(path, len(raw) // 8 - 1, 8)
    path.write_bytes(raw + struct.pack(">ii", last[0] + 1, log.stat().st_size + 50))
    return Spot(path.name, len(raw))


def _time_past_end(partition: Path) -> Spot:
    path = segments(partition)[1].with_suffix(".timeindex")
    raw = path.read_bytes()
    last = entry_at(path, len(raw) // 12 - 1, 12)
    path.write_bytes(raw + struct.pack(">qi", last[0] + 1, 5000))
    return Spot(path.name, len(raw))


def _junk_behind_zeros(suffix: str) -> Callable[[Path], Spot]:
    def do(partition: Path) -> Spot:
        path = segments(partition)[-1].with_suffix(suffix)
        raw = path.read_bytes()
        path.write_bytes(raw + bytes(240) + b"\x01" + bytes(23))
        return Spot(path.name, len(raw) + 240)

    return do


def _orphan(partition: Path) -> Spot:
    path = partition / "00000000000000000777.index"
    path.write_bytes(b"")
    return Spot(path.name, -1)


# -- transactions and producers

TXN_SEGMENT = "00000000000000000011"


def _txn(at: int, raw: bytes) -> Callable[[Path], Spot]:
    def do(partition: Path) -> Spot:
        path = partition / f"{TXN_SEGMENT}.txnindex"
        put(path, 34 + at, raw)
        return Spot(path.name, 34)

    return do


def _drop_txn(partition: Path) -> Spot:
    path = partition / f"{TXN_SEGMENT}.txnindex"
    path.write_bytes(path.read_bytes()[34:])
    return Spot(path.name, -1)


def _remove_txn_index(partition: Path) -> Spot:
    path = partition / f"{TXN_SEGMENT}.txnindex"
    path.unlink()
    return Spot(path.name, -1)


def _cut_txn(partition: Path) -> Spot:
    path = partition / f"{TXN_SEGMENT}.txnindex"
    path.write_bytes(path.read_bytes()[:-4])
    return Spot(path.name, 68)


def _empty_txn_index(partition: Path) -> Spot:
    path = partition / f"{TXN_SEGMENT}.txnindex"
    path.write_bytes(b"")
    return Spot(path.name, -1)


def _flip_snapshot(partition: Path) -> Spot:
    path = partition / "00000000000000000096.snapshot"
    flip(path, 30)
    return Spot(path.name, 0)


def _cut_snapshot(partition: Path) -> Spot:
    path = partition / "00000000000000000096.snapshot"
    path.write_bytes(path.read_bytes()[:-1])
    return Spot(path.name, 0)


def _producer(**changes: int) -> Callable[[Path], Spot]:
    """The newest producer of a snapshot, changed, under a right CRC."""

    def do(partition: Path) -> Spot:
        path = partition / "00000000000000000096.snapshot"
        entries = list(decode_snapshot(path.read_bytes()))
        entries.sort(key=lambda entry: entry.last_offset)
        newest = entries.pop()
        moved = {name: getattr(newest, name) + step for name, step in changes.items()}
        path.write_bytes(encode_snapshot([*entries, newest._replace(**moved)]))
        return Spot(path.name, -1)

    return do


def _forget_open_transaction(partition: Path) -> Spot:
    """The snapshot at 137 has a producer whose transaction is open."""
    path = partition / "00000000000000000137.snapshot"
    entries = decode_snapshot(path.read_bytes())
    assert any(entry.open_txn_first_offset is not None for entry in entries)
    kept = [entry for entry in entries if entry.open_txn_first_offset is None]
    path.write_bytes(encode_snapshot(kept))
    return Spot(path.name, -1)


def _strange_producer(partition: Path) -> Spot:
    path = partition / "00000000000000000096.snapshot"
    entries = decode_snapshot(path.read_bytes())
    path.write_bytes(encode_snapshot([*entries, entries[0]._replace(producer_id=999_999)]))
    return Spot(path.name, -1)


def _snapshot_beyond(partition: Path) -> Spot:
    path = partition / "00000000000000009999.snapshot"
    path.write_bytes(encode_snapshot(()))
    return Spot(path.name, -1)


def _stray_snapshot(partition: Path) -> Spot:
    """One is what the log was opened with; a broker would have removed any before it."""
    source = partition / "00000000000000000156.snapshot"
    for offset in (200, 250):
        (partition / f"{offset:020d}.snapshot").write_bytes(source.read_bytes())
    return Spot(f"{200:020d}.snapshot", -1)


def _sequence(partition: Path) -> Spot:
    def change(batch: bytearray) -> None:
        batch[53:57] = be32(struct.unpack_from(">i", batch, 53)[0] + 5)

    log = segments(partition)[1]
    return change_batch(log, 3, change)


# -- leader epochs, names, metadata


def _write(name: str, content: bytes, position: int = -1) -> Callable[[Path], Spot]:
    def do(partition: Path) -> Spot:
        (partition / name).write_bytes(content)
        return Spot(name, position)

    return do


def _epoch_of_batch(partition: Path) -> Spot:
    log = segments(partition)[0]
    batch = batches(log)[3]
    put(log, batch.position + 12, be32(77))
    return Spot(log.name, batch.position)


def _rename_log(partition: Path) -> Spot:
    log = segments(partition)[2]
    target = log.with_name("312.log")
    log.rename(target)
    return Spot(target.name, -1)


def _unfinished(partition: Path) -> Spot:
    path = partition / "00000000000000000000.log.cleaned"
    path.write_bytes(b"")
    return Spot(path.name, -1)


PLANTS = [
    Plant("flipped bit in a value", "multiseg", Fault.BAD_BATCH, _flip_in_batch(80)),
    Plant("flipped bit in the CRC", "multiseg", Fault.BAD_BATCH, _flip_in_batch(18)),
    Plant("flipped bit in the attributes", "multiseg", Fault.BAD_BATCH, _flip_in_batch(22)),
    Plant("flipped bit in the producer id", "multiseg", Fault.BAD_BATCH, _flip_in_batch(44)),
    Plant("flipped bit in the magic", "multiseg", Fault.BAD_BATCH, _flip_in_batch(16)),
    Plant("flipped high byte of the length", "multiseg", Fault.BAD_BATCH, _flip_in_batch(8)),
    Plant("flipped low byte of the length", "multiseg", Fault.BAD_BATCH, _flip_in_batch(11)),
    Plant("flipped high byte of the offset", "multiseg", Fault.BAD_BATCH, _flip_in_batch(0)),
    Plant("flipped last byte of a segment", "multiseg", Fault.JUNK_TAIL, _flip_in_last_byte),
    Plant("flipped bit in lz4 records", "rdk-lz4", Fault.BAD_BATCH, _flip_in_batch(90, 3, 0)),
    Plant("flipped bit in zstd records", "rdk-zstd", Fault.BAD_BATCH, _flip_in_batch(90, 3, 0)),
    Plant("flipped bit in an old message", "v1-none", Fault.BAD_BATCH, _flip_in_batch(40, 3)),
    Plant("flipped bit in an old set", "v0-gzip", Fault.BAD_BATCH, _flip_in_batch(60, 3)),
    Plant("base offset too high", "multiseg", Fault.OFFSET_DISORDER, _raise_base_offset),
    Plant("base offset too low", "multiseg", Fault.OFFSET_DISORDER, _lower_base_offset),
    Plant(
        "batch of the next segment",
        "multiseg",
        Fault.OFFSET_OUTSIDE_SEGMENT,
        _base_offset_of_next_segment,
    ),
    Plant(
        "batch of the segment before",
        "multiseg",
        Fault.OFFSET_OUTSIDE_SEGMENT,
        _base_offset_below_segment,
    ),
    Plant("zeros in the middle", "multiseg", Fault.BAD_BATCH, _zero_in_the_middle),
    Plant("sealed segment cut", "multiseg", Fault.CUT_SEALED_LOG, _cut_sealed),
    Plant("last segment torn", "multiseg", Fault.TORN_TAIL, _cut_last, Severity.WARNING),
    Plant("junk behind a sealed segment", "multiseg", Fault.JUNK_TAIL, _append_junk(2)),
    Plant(
        "zeros behind a sealed segment",
        "multiseg",
        Fault.ZERO_TAIL,
        _append_zeros(2),
        Severity.WARNING,
    ),
    Plant("preallocated zeros", "multiseg", Fault.ZERO_TAIL, _append_zeros(-1), Severity.NOTE),
    Plant("batch removed", "multiseg", Fault.OFFSET_GAP, _remove_batch, Severity.WARNING),
    Plant("batches swapped", "multiseg", Fault.OFFSET_DISORDER, _swap_batches),
    Plant("batch repeated", "multiseg", Fault.OFFSET_DISORDER, _repeat_batch),
    Plant("segment removed", "multiseg", Fault.OFFSET_GAP, _remove_segment, Severity.WARNING),
    Plant("one record too many declared", "multiseg", Fault.BAD_RECORDS, _change(_count_up)),
    Plant("one record too few declared", "multiseg", Fault.BAD_RECORDS, _change(_count_down)),
    Plant("negative record count", "multiseg", Fault.BAD_BATCH, _change(_set(57, be32(-1)))),
    Plant("huge record count", "multiseg", Fault.BAD_BATCH, _change(_set(57, be32(1 << 30)))),
    Plant("wrong record length", "multiseg", Fault.BAD_RECORDS, _change(_record_length)),
    Plant("wrong codec", "multiseg", Fault.BAD_RECORDS, _change(_codec)),
    Plant("unknown codec", "multiseg", Fault.BAD_RECORDS, _change(_set(22, b"\x07"))),
    Plant("wrong largest timestamp", "multiseg", Fault.BAD_MAX_TIMESTAMP, _change(_max_timestamp)),
    Plant(
        "record offset outside", "multiseg", Fault.BAD_RECORD_OFFSETS, _change(_record_offset_delta)
    ),
    Plant("negative offset span", "multiseg", Fault.BAD_BATCH, _change(_set(23, be32(-5)))),
    Plant("bad key of a marker", "txn", Fault.BAD_CONTROL_RECORD, _control_key),
    Plant("index offset off by one", "multiseg", Fault.INDEX_MISMATCH, _entry(".index", 4, 0, -1)),
    Plant("index position off by one", "multiseg", Fault.INDEX_MISMATCH, _entry(".index", 5, 1, 1)),
    Plant("index offset negative", "multiseg", Fault.INDEX_DISORDER, _entry(".index", 0, 0, -500)),
    Plant(
        "index offset out of order", "multiseg", Fault.INDEX_DISORDER, _entry(".index", 5, 0, -30)
    ),
    Plant("index entry repeated", "multiseg", Fault.INDEX_DISORDER, _repeat_entry(".index")),
    Plant("index entry past the end", "multiseg", Fault.INDEX_PAST_END, _past_end),
    Plant(
        "index of odd length",
        "multiseg",
        Fault.INDEX_SIZE,
        _cut_index(".index", 3),
        Severity.WARNING,
    ),
    Plant("index emptied", "multiseg", Fault.INDEX_SPARSE, _empty_index, Severity.NOTE),
    Plant("junk behind index zeros", "multiseg", Fault.INDEX_JUNK, _junk_behind_zeros(".index")),
    Plant("index removed", "multiseg", Fault.MISSING_INDEX, _remove(".index"), Severity.WARNING),
    Plant("index without a log", "multiseg", Fault.ORPHAN_INDEX, _orphan, Severity.WARNING),
    Plant("time off by one", "multiseg", Fault.INDEX_MISMATCH, _entry(".timeindex", 5, 0, 1)),
    Plant(
        "time's offset off by one", "index1", Fault.INDEX_MISMATCH, _entry(".timeindex", 5, 1, -1)
    ),
    Plant(
        "time out of order", "multiseg", Fault.INDEX_DISORDER, _entry(".timeindex", 5, 0, -(10**9))
    ),
    Plant("time entry repeated", "multiseg", Fault.INDEX_DISORDER, _repeat_entry(".timeindex")),
    Plant("time entry past the end", "multiseg", Fault.INDEX_PAST_END, _time_past_end),
    Plant("closing time entry gone", "multiseg", Fault.INDEX_SHORT, _cut_index(".timeindex", 12)),
    Plant(
        "time index of odd length",
        "multiseg",
        Fault.INDEX_SIZE,
        _cut_index(".timeindex", 5),
        Severity.WARNING,
    ),
    Plant(
        "junk behind time index zeros",
        "multiseg",
        Fault.INDEX_JUNK,
        _junk_behind_zeros(".timeindex"),
    ),
    Plant(
        "time index removed",
        "multiseg",
        Fault.MISSING_INDEX,
        _remove(".timeindex"),
        Severity.WARNING,
    ),
    Plant("aborted transaction removed", "txn", Fault.TXN_INDEX_MISSING_ENTRY, _drop_txn),
    Plant("transaction index removed", "txn", Fault.TXN_INDEX_MISSING_ENTRY, _remove_txn_index),
    Plant("transaction index cut", "txn", Fault.TXN_INDEX_BAD, _cut_txn),
    Plant("transaction index empty", "txn", Fault.TXN_INDEX_BAD, _empty_txn_index),
    Plant("aborted: version", "txn", Fault.TXN_INDEX_BAD, _txn(0, b"\x00\x09")),
    Plant("aborted: producer", "txn", Fault.TXN_INDEX_MISMATCH, _txn(2, be64(7))),
    Plant("aborted: first offset", "txn", Fault.TXN_INDEX_MISMATCH, _txn(10, be64(1))),
    Plant("aborted: last offset", "txn", Fault.TXN_INDEX_MISMATCH, _txn(18, be64(25))),
    Plant("aborted: below the segment", "txn", Fault.TXN_INDEX_BAD, _txn(18, be64(4))),
    Plant("aborted: stable offset", "txn", Fault.TXN_INDEX_MISMATCH, _txn(26, be64(35))),
    Plant("snapshot flipped", "idempotent", Fault.BAD_SNAPSHOT, _flip_snapshot, Severity.WARNING),
    Plant("snapshot cut", "idempotent", Fault.BAD_SNAPSHOT, _cut_snapshot, Severity.WARNING),
    Plant("snapshot stale", "idempotent", Fault.SNAPSHOT_MISMATCH, _producer(last_offset=-4)),
    Plant("snapshot sequence", "idempotent", Fault.SNAPSHOT_MISMATCH, _producer(last_sequence=1)),
    Plant("snapshot epoch", "idempotent", Fault.SNAPSHOT_MISMATCH, _producer(producer_epoch=1)),
    Plant("snapshot ahead", "idempotent", Fault.SNAPSHOT_MISMATCH, _producer(last_offset=500)),
    Plant(
        "snapshot open txn",
        "idempotent",
        Fault.SNAPSHOT_MISMATCH,
        _producer(current_txn_first_offset=50),
    ),
    Plant(
        "strange producer", "idempotent", Fault.SNAPSHOT_AHEAD, _strange_producer, Severity.WARNING
    ),
    Plant("open transaction forgotten", "txn", Fault.SNAPSHOT_MISMATCH, _forget_open_transaction),
    Plant(
        "snapshot past the end",
        "multiseg",
        Fault.SNAPSHOT_PAST_END,
        _snapshot_beyond,
        Severity.WARNING,
    ),
    Plant("stray snapshot", "multiseg", Fault.STRAY_SNAPSHOT, _stray_snapshot, Severity.NOTE),
    Plant("sequence jump", "idempotent", Fault.SEQUENCE_JUMP, _sequence, Severity.WARNING),
    Plant(
        "epoch file garbage",
        "epochs",
        Fault.BAD_EPOCHS,
        _write("leader-epoch-checkpoint", b"x\n", 0),
    ),
    Plant(
        "epochs out of order",
        "epochs",
        Fault.BAD_EPOCHS,
        _write("leader-epoch-checkpoint", b"0\n2\n5 0\n3 40\n"),
    ),
    Plant("epoch of a batch", "epochs", Fault.EPOCH_MISMATCH, _epoch_of_batch),
    Plant(
        "epoch past the end",
        "epochs",
        Fault.EPOCHS_PAST_END,
        _write("leader-epoch-checkpoint", b"0\n1\n0 5000\n"),
        Severity.WARNING,
    ),
    Plant(
        "topic id garbage",
        "multiseg",
        Fault.BAD_METADATA,
        _write("partition.metadata", b"version: 0\ntopic_id: x", 11),
    ),
    Plant("log under a short name", "multiseg", Fault.BAD_NAME, _rename_log),
    Plant("unfinished compaction", "multiseg", Fault.UNFINISHED_FILE, _unfinished, Severity.NOTE),
    Plant(
        "deleted segment",
        "multiseg",
        Fault.DELETED_FILE,
        _write("00000000000000000000.log.deleted", b""),
        Severity.NOTE,
    ),
]


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_a_planted_fault_is_found_at_its_place(plant: Plant, tmp_path: Path) -> None:
    (source,) = (GOLDEN_DIR / plant.case).glob("*-0")
    partition = copy_partition(source, tmp_path)
    spot = plant.do(partition)

    found = verify_partition(partition, threads=1).findings

    places = [
        (finding.position, finding.severity)
        for finding in found
        if finding.code == plant.fault.code and finding.path == str(partition / spot.file)
    ]
    assert (spot.position, plant.severity) in places, "\n".join(map(str, found))


@pytest.mark.parametrize("plant", PLANTS[:20], ids=str)
def test_damage_in_one_batch_is_one_error(plant: Plant, tmp_path: Path) -> None:
    """Not a flood: the indexes, epochs and producers around it are not blamed."""
    (source,) = (GOLDEN_DIR / plant.case).glob("*-0")
    partition = copy_partition(source, tmp_path)
    plant.do(partition)
    report = verify_partition(partition, threads=1)
    assert report.count_of(Severity.ERROR) <= 4, "\n".join(map(str, report.findings))

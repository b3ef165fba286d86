"""Faults in what is kept of transactions and producers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from stratalog.format.producer_snapshot import decode_snapshot, encode_snapshot
from stratalog.maintenance.verify.findings import Fault, Severity
from tests.maintenance.verify.planting import (
    Plant,
    Spot,
    be32,
    be64,
    change_batch,
    flip,
    put,
    segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
    """The newest producer of a snapshot, changed, under a valid CRC."""

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


PRODUCER_PLANTS = [
    Plant("aborted transaction removed", "txn", Fault.TXN_INDEX_MISSING_ENTRY, _drop_txn),
    Plant("transaction index removed", "txn", Fault.TXN_INDEX_MISSING_ENTRY, _remove_txn_index),
    Plant("transaction index cut", "txn", Fault.TXN_INDEX_TORN, _cut_txn),
    Plant("transaction index empty", "txn", Fault.TXN_INDEX_MISSING_ENTRY, _empty_txn_index),
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
]

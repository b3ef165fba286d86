"""Faults in leader epochs, names and metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.maintenance.verify.findings import Fault, Severity
from tests.maintenance.verify.planting import (
    Plant,
    Spot,
    batches,
    be32,
    put,
    segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


SIDE_FILE_PLANTS = [
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

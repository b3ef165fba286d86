"""Faults in the bytes of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.maintenance.verify.findings import Fault, Severity
from tests.maintenance.verify.planting import (
    Plant,
    Spot,
    batches,
    be64,
    flip,
    put,
    segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ZEROS = bytes(4096)


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


LOG_PLANTS = [
    Plant("flipped bit in a value", "multiseg", Fault.BAD_BATCH, _flip_in_batch(80)),
    Plant("flipped bit in the CRC", "multiseg", Fault.BAD_BATCH, _flip_in_batch(18)),
    Plant("flipped bit in the attributes", "multiseg", Fault.BAD_BATCH, _flip_in_batch(22)),
    Plant("flipped bit in the producer id", "multiseg", Fault.BAD_BATCH, _flip_in_batch(44)),
    Plant("flipped bit in the magic", "multiseg", Fault.BAD_BATCH, _flip_in_batch(16)),
    Plant("flipped high byte of the length", "multiseg", Fault.BAD_BATCH, _flip_in_batch(8)),
    Plant("flipped low byte of the length", "multiseg", Fault.BAD_BATCH, _flip_in_batch(11)),
    Plant("flipped high byte of the offset", "multiseg", Fault.BAD_BATCH, _flip_in_batch(0)),
    Plant("flipped last byte of a segment", "multiseg", Fault.GARBAGE_TAIL, _flip_in_last_byte),
    Plant("flipped bit in lz4 records", "rdk-lz4", Fault.BAD_BATCH, _flip_in_batch(90, 3, 0)),
    Plant("flipped bit in zstd records", "rdk-zstd", Fault.BAD_BATCH, _flip_in_batch(90, 3, 0)),
    Plant("flipped bit in an old message", "v1-none", Fault.BAD_BATCH, _flip_in_batch(40, 3)),
    Plant("flipped bit in an old set", "v0-gzip", Fault.BAD_BATCH, _flip_in_batch(60, 3)),
    Plant("base offset too high", "multiseg", Fault.OFFSETS_OUT_OF_ORDER, _raise_base_offset),
    Plant("base offset too low", "multiseg", Fault.OFFSETS_OUT_OF_ORDER, _lower_base_offset),
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
    Plant("sealed segment cut", "multiseg", Fault.TRUNCATED_SEALED_LOG, _cut_sealed),
    Plant("last segment torn", "multiseg", Fault.TORN_TAIL, _cut_last, Severity.WARNING),
    Plant("junk behind a sealed segment", "multiseg", Fault.GARBAGE_TAIL, _append_junk(2)),
    Plant(
        "zeros behind a sealed segment",
        "multiseg",
        Fault.ZERO_TAIL,
        _append_zeros(2),
        Severity.WARNING,
    ),
    Plant("preallocated zeros", "multiseg", Fault.ZERO_TAIL, _append_zeros(-1), Severity.NOTE),
    Plant("batch removed", "multiseg", Fault.OFFSET_GAP, _remove_batch, Severity.WARNING),
    Plant("batches swapped", "multiseg", Fault.OFFSETS_OUT_OF_ORDER, _swap_batches),
    Plant("batch repeated", "multiseg", Fault.OFFSETS_OUT_OF_ORDER, _repeat_batch),
    Plant("segment removed", "multiseg", Fault.OFFSET_GAP, _remove_segment, Severity.WARNING),
]

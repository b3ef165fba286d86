"""A first look at a run of batches: are they good, what kinds are there, how much do they hold."""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format.batch import CODEC_MASK, CONTROL_BIT, HEADER_BYTES, MAGIC_2
from stratalog.format.kernels.crc import is_right
from stratalog.format.kernels.jit import kernel, part
from stratalog.format.kernels.layout import BATCHES, PAYLOADS
from stratalog.format.record import RECORD_BYTES_MIN

# Slots of `found`.
RECORDS, PAYLOAD_BYTES, KINDS = range(3)
SLOTS = 3

# Bits of found[KINDS]: what there is at least one of.
COMPRESSED, CONTROL, LEGACY = 1, 2, 4

FOREIGN = -1


@part
def _is_good(buf: int, batch: Any, checks_crc: bool) -> bool:
    """What `read_header` and `check_crc` ask of a batch, and room for its records if plain."""
    if batch.record_count < 0 or batch.base_offset < 0 or batch.last_offset < batch.base_offset:
        return False
    if checks_crc and not is_right(buf, batch):
        return False
    is_plain = batch.attributes & CODEC_MASK == 0
    return not is_plain or batch.record_count * RECORD_BYTES_MIN <= batch.size_bytes - HEADER_BYTES


@part
def _kinds(batch: Any) -> int:
    attributes = batch.attributes
    kinds = COMPRESSED if attributes & CODEC_MASK else 0
    return kinds | CONTROL if attributes & CONTROL_BIT else kinds


@kernel(types.int64(types.int64, types.int64, BATCHES, PAYLOADS, types.int64[::1], types.boolean))
def survey(
    buf: int, buf_bytes: int, batches: Any, payloads: Any, found: Any, checks_crc: bool
) -> int:
    """How many batches are good before the first bad one. Notes what they are and, as if all were
    plain, where their records lie. Legacy entries count as good and are noted as such.

    Reads the `buf_bytes` bytes at address `buf`; answers FOREIGN if a batch does not lie there.
    """
    for i in range(len(batches)):
        batch = batches[i]
        if batch.position < 0 or batch.size_bytes < 0:
            return FOREIGN
        if batch.position + batch.size_bytes > buf_bytes:
            return FOREIGN
        if batch.magic != MAGIC_2:
            found[KINDS] |= LEGACY
            continue
        if batch.size_bytes < HEADER_BYTES or not _is_good(buf, batch, checks_crc):
            return i
        payloads[i].address = buf + batch.position + HEADER_BYTES
        payloads[i].size_bytes = batch.size_bytes - HEADER_BYTES
        found[RECORDS] += batch.record_count
        found[PAYLOAD_BYTES] += batch.size_bytes - HEADER_BYTES
        found[KINDS] |= _kinds(batch)
    return len(batches)

"""Decompression of whole runs of batches, for the codecs that have kernels."""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format.batch import CODEC_MASK, HEADER_BYTES
from stratalog.format.kernels import lz4, snappy
from stratalog.format.kernels.jit import kernel, part
from stratalog.format.kernels.layout import BATCHES
from stratalog.format.kernels.memory import memcpy
from stratalog.format.record import RECORD_BYTES_MIN

FAILED = -1

_NONE, _SNAPPY, _LZ4 = 0, 2, 3


@part
def _payload(codec_id: int, at: int, end: int, out: int, out_end: int) -> int:
    if codec_id == _LZ4:
        return lz4.frame(at, end, out, out_end)
    if codec_id == _SNAPPY:
        return snappy.stream(at, end, out, out_end)
    if codec_id != _NONE or end - at > out_end - out:
        return FAILED
    memcpy(out, at, end - at)
    return out + (end - at)


@kernel(types.int64(types.int64, BATCHES, *[types.int64] * 3, types.int64[::1]))
def expand(buf: int, batches: Any, out: int, start: int, out_bytes: int, ends: Any) -> int:
    """Put the plain records of batches at address `buf` side by side at address `out`, from `start`
    on. Answers how many batches it did and notes in `ends` where each ended.

    It stops at a batch it has no kernel or no room for, or that seems bad: the caller's to judge.
    Reads the batches only; writes `out_bytes` bytes at `out` and up to COPY_SLACK_BYTES more.
    """
    at = out + start
    for i in range(len(batches)):
        batch = batches[i]
        if batch.record_count > 0:
            first = buf + batch.position
            codec_id = batch.attributes & CODEC_MASK
            end = _payload(
                codec_id, first + HEADER_BYTES, first + batch.size_bytes, at, out + out_bytes
            )
            if end < 0 or end - at < batch.record_count * RECORD_BYTES_MIN:
                return i
            at = end
        ends[i] = at - out
    return len(batches)

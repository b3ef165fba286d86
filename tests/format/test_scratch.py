from __future__ import annotations

import tracemalloc

import pytest

from stratalog.format.buffers import Scratch

MIB = 1 << 20


def test_keeps_what_was_written() -> None:
    scratch = Scratch()
    scratch.reserve(0, 3)[:3] = b"abc"
    view = scratch.reserve(3, 5 * MIB)
    assert bytes(view[:3]) == b"abc"
    assert len(view) >= 5 * MIB + 3


@pytest.mark.slow
def test_large_ones_grow_by_less_than_they_hold() -> None:
    """Old and new memory are held together while it grows."""
    scratch = Scratch()
    tracemalloc.start()
    try:
        for at in range(0, 128 * MIB, MIB):
            scratch.reserve(at, MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(scratch.view) < 160 * MIB
    assert peak < 300 * MIB

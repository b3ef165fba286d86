"""Indexes built from the log: compiled kernels and plain Python give the same answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import OffsetOverflowError
from stratalog.format.legacy import encode_legacy
from stratalog.format.record import BatchFields, Record
from stratalog.storage import index_view as rebuild
from stratalog.storage import recovery as segment_recovery
from stratalog.storage.index_view import is_bulk_worth_it, rebuild_indexes
from stratalog.storage.recovery import check_segment
from stratalog.storage.segment_view import SegmentView
from tests.effort import scaled
from tests.golden.cases import all_cases
from tests.storage.segments import make_batch
from tests.strategies import GeneratedLog, logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stratalog.format.index_entries import IndexBuilder
    from stratalog.storage.segment_view import LoadedBatch

GOLDEN_DIRS = [directory for case in all_cases() for directory in case.partition_dirs()[:1]]


def with_python(do: Callable[[], object]) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuild, "BULK_BATCHES_MIN", 1 << 60)
        return do()


def with_kernels(do: Callable[[], object], window_bytes: int) -> object:
    """From the first batch on, and in windows so small that many batches do not fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuild, "SAMPLE_BATCHES", 1)
        patch.setattr(rebuild, "BULK_BATCHES_MIN", -1)
        patch.setattr(rebuild, "WINDOW_BYTES", window_bytes)
        patch.setattr(segment_recovery, "WINDOW_BYTES", window_bytes)
        return do()


def rebuilt(path: Path, base_offset: int) -> tuple[object, ...]:
    view = SegmentView(path, base_offset, path.stat().st_size)
    return _entries(rebuild_indexes(view))


def checked(path: Path, base_offset: int) -> tuple[object, ...]:
    view = SegmentView(path, base_offset, path.stat().st_size)
    told: list[tuple[int, object]] = []

    def on_batch(loaded: LoadedBatch) -> None:
        told.append((loaded.position, loaded.header))
        assert loaded.buf[loaded.entry.position :][:8] == path.read_bytes()[loaded.position :][:8]

    try:
        found = check_segment(view, 200, on_batch)
    except OffsetOverflowError as error:
        return str(error), told
    corruption = found.corruption
    position = None if corruption is None else (type(corruption), corruption.position)
    return *_entries(found.indexes), found.valid_bytes, found.next_offset, position, told


def _entries(builder: IndexBuilder) -> tuple[object, ...]:
    return bytes(builder.offset_index), bytes(builder.time_index), builder.max_timestamp


def same_answers(path: Path, base_offset: int) -> None:
    for ask in (rebuilt, checked):
        question = partial(ask, path, base_offset)
        plain = with_python(question)
        for window_bytes in (150, 1000, 1 << 20):
            assert with_kernels(question, window_bytes) == plain


@pytest.mark.parametrize("directory", GOLDEN_DIRS, ids=lambda path: path.name)
def test_golden_logs(directory: Path) -> None:
    for path in directory.glob("*.log"):
        same_answers(path, int(path.stem))


@pytest.mark.slow
@settings(max_examples=scaled(40), deadline=None)
@given(log=logs(legacy=True, count_max=6), data=st.data())
def test_generated_and_damaged_logs(
    tmp_path_factory: pytest.TempPathFactory, log: GeneratedLog, data: st.DataObject
) -> None:
    raw = bytearray(log.raw)
    for _ in range(data.draw(st.integers(0, 2), label="flips")):
        raw[data.draw(st.integers(0, len(raw) - 1), label="at")] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, 30) | st.just(0), label="cut")
    path = tmp_path_factory.mktemp("damaged") / "00000000000000000000.log"
    path.write_bytes(raw[: len(raw) - cut])
    same_answers(path, 0)


def test_a_timestamp_that_ends_behind_the_first_window(tmp_path: Path) -> None:
    """The walk reads 47 bytes first: a message of magic 0 and the beginning of one of magic 1."""
    old = encode_legacy([Record(0, -1, None, None)], 0)
    dated = encode_legacy([Record(1, 1_700_000_000_000, None, None)], 1)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(old + dated)
    assert len(old) == 26
    assert rebuilt(path, 0)[2] == 1_700_000_000_000
    same_answers(path, 0)


def test_news_of_producers_and_epochs_across_windows(tmp_path: Path) -> None:
    epochs = [0, 0, 1, 1, 1, 5, 5, 2, 2]
    producers = [-1, 3, -1, -1, 4, -1, -1, -1, 9]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(
        b"".join(
            make_batch(
                offset,
                fields=BatchFields(
                    partition_leader_epoch=epoch,
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=offset,
                ),
            )
            for offset, (epoch, producer_id) in enumerate(zip(epochs, producers, strict=True))
        )
    )
    for window_bytes in (100, 200, 300, 1000):
        answer = with_kernels(lambda: checked(path, 0), window_bytes)
        assert isinstance(answer, tuple)
        assert [header.base_offset for _, header in answer[-1]] == [0, 1, 2, 4, 5, 7, 8]


def test_bulk_begins_when_very_many_small_batches_are_left() -> None:
    assert not is_bulk_worth_it(4095, 4095 * 80, 1 << 30)
    assert is_bulk_worth_it(4096, 4096 * 80, 1 << 30)  # 13 million of 80 bytes
    assert not is_bulk_worth_it(4096, 4096 * 16_384, 1 << 30)  # 60 thousand of 16 KiB
    assert not is_bulk_worth_it(4096, 4096 * 80, 16_000_000)


@pytest.mark.slow
def test_large_logs_of_small_batches_switch_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    one = make_batch(0, value_bytes=1)
    count = 260_000
    path.write_bytes(b"".join(offset.to_bytes(8, "big") + one[8:] for offset in range(count)))
    loads: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        really = SegmentView.batches

        def counted(*args: object, **kwargs: object) -> Iterator[LoadedBatch]:
            for loaded in really(*args, **kwargs):  # type: ignore[arg-type] # passed on as they are
                loads.append(loaded.position)
                yield loaded

        patch.setattr(SegmentView, "batches", counted)
        fast = checked(path, 0)
    assert len(loads) < count // 10
    assert fast[3:5] == (len(one) * count, count)
    assert rebuilt(path, 0) == with_python(lambda: rebuilt(path, 0))

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import InvalidLeaderEpochError
from stratalog.format.checkpoint import EpochEntry, decode_leader_epochs, encode_leader_epochs
from stratalog.log.epochs import EpochEndOffset, LeaderEpochCache

LOG_END = 100
ENTRIES = (EpochEntry(2, 10), EpochEntry(3, 20), EpochEntry(6, 40))


class Recorder:
    """Stands in for the checkpoint file; may be told to fail."""

    def __init__(self) -> None:
        self.written: list[tuple[EpochEntry, ...]] = []
        self.fails = False

    def __call__(self, entries: tuple[EpochEntry, ...]) -> None:
        if self.fails:
            raise OSError("disk full")
        self.written.append(entries)


def cache(*entries: tuple[int, int]) -> LeaderEpochCache:
    return LeaderEpochCache(EpochEntry(*entry) for entry in entries)


def test_empty_cache_knows_nothing() -> None:
    empty = LeaderEpochCache()
    assert empty.entries == ()
    assert (empty.latest, empty.latest_epoch) == (None, None)
    assert (empty.entry(0), empty.next(0)) == (None, None)
    assert empty.epoch_for_offset(0) is None
    assert empty.end_offset_for(0, LOG_END) == EpochEndOffset(-1, -1)
    assert not empty.truncate_from_end(0)
    assert not empty.truncate_from_start(0)
    assert not empty.clear()


def test_entries_by_epoch() -> None:
    epochs = LeaderEpochCache(ENTRIES)
    assert (epochs.latest, epochs.latest_epoch) == ((6, 40), 6)
    assert (epochs.entry(3), epochs.entry(4)) == ((3, 20), None)
    assert [epochs.next(epoch) for epoch in (0, 2, 4, 6)] == [(2, 10), (3, 20), (6, 40), None]


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        pytest.param(-1, (-1, -1), id="undefined"),
        pytest.param(6, (6, LOG_END), id="latest: the log end"),
        pytest.param(7, (-1, -1), id="above the latest"),
        pytest.param(1, (1, 10), id="below the first: itself, up to the first"),
        pytest.param(2, (2, 20), id="known: up to the next"),
        pytest.param(3, (3, 40), id="known, next is not adjacent"),
        pytest.param(5, (3, 40), id="between: the one below, up to the one above"),
    ],
)
def test_end_offset(epoch: int, expected: tuple[int, int]) -> None:
    assert LeaderEpochCache(ENTRIES).end_offset_for(epoch, LOG_END) == expected


@pytest.mark.parametrize(
    ("offset", "epoch"),
    [(0, None), (9, None), (10, 2), (19, 2), (20, 3), (39, 3), (40, 6), (1000, 6), (1 << 62, 6)],
)
def test_epoch_of_an_offset(offset: int, epoch: int | None) -> None:
    assert LeaderEpochCache(ENTRIES).epoch_for_offset(offset) == epoch


class Assignment(NamedTuple):
    epoch: int
    start_offset: int
    entries: list[tuple[int, int]]


@pytest.mark.parametrize(
    "assignment",
    [
        pytest.param(Assignment(7, 50, [(2, 10), (3, 20), (6, 40), (7, 50)]), id="next leader"),
        pytest.param(Assignment(7, 40, [(2, 10), (3, 20), (7, 40)]), id="nothing was written"),
        pytest.param(Assignment(7, 15, [(2, 10), (7, 15)]), id="log was cut"),
        pytest.param(Assignment(7, 0, [(7, 0)]), id="log was emptied"),
        pytest.param(Assignment(6, 30, [(2, 10), (3, 20), (6, 30)]), id="same epoch, earlier"),
        pytest.param(Assignment(4, 60, [(2, 10), (3, 20), (4, 60)]), id="older epoch"),
        pytest.param(Assignment(3, 60, [(2, 10), (3, 60)]), id="known epoch again"),
        pytest.param(Assignment(3, 5, [(3, 5)]), id="older epoch, earlier"),
    ],
)
def test_assign(assignment: Assignment) -> None:
    epochs = LeaderEpochCache(ENTRIES)
    assert epochs.assign(assignment.epoch, assignment.start_offset)
    assert list(epochs.entries) == assignment.entries


@pytest.mark.parametrize("start_offset", [40, 41, 1_000_000])
def test_more_batches_of_the_latest_epoch_are_no_news(start_offset: int) -> None:
    recorder = Recorder()
    epochs = LeaderEpochCache(ENTRIES, persist=recorder)
    assert not epochs.assign(6, start_offset)
    assert epochs.entries == ENTRIES
    assert recorder.written == []


@pytest.mark.parametrize(("epoch", "start_offset"), [(-1, 0), (0, -1), (-1, -1)])
def test_negative_epoch_or_offset_is_refused(epoch: int, start_offset: int) -> None:
    epochs = LeaderEpochCache(ENTRIES)
    with pytest.raises(InvalidLeaderEpochError):
        epochs.assign(epoch, start_offset)
    assert epochs.entries == ENTRIES


def test_negative_offset_cuts_nothing() -> None:
    epochs = LeaderEpochCache(ENTRIES)
    with pytest.raises(InvalidLeaderEpochError):
        epochs.truncate_from_end(-1)
    with pytest.raises(InvalidLeaderEpochError):
        epochs.truncate_from_start(-1)
    assert epochs.entries == ENTRIES


@pytest.mark.parametrize(
    ("end_offset", "kept"), [(0, 0), (10, 0), (11, 1), (20, 1), (21, 2), (40, 2), (41, 3)]
)
def test_truncate_from_end(end_offset: int, kept: int) -> None:
    epochs = LeaderEpochCache(ENTRIES)
    assert epochs.truncate_from_end(end_offset) == (kept < 3)
    assert epochs.entries == ENTRIES[:kept]


@pytest.mark.parametrize(
    ("start_offset", "entries"),
    [
        pytest.param(9, [(2, 10), (3, 20), (6, 40)], id="before all"),
        pytest.param(10, [(2, 10), (3, 20), (6, 40)], id="at the first"),
        pytest.param(15, [(2, 15), (3, 20), (6, 40)], id="inside the first"),
        pytest.param(20, [(3, 20), (6, 40)], id="at the second"),
        pytest.param(39, [(3, 39), (6, 40)], id="inside the second"),
        pytest.param(100, [(6, 100)], id="at the log end"),
    ],
)
def test_truncate_from_start(start_offset: int, entries: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochCache(ENTRIES)
    assert epochs.truncate_from_start(start_offset) == (start_offset > 10)
    assert list(epochs.entries) == entries


def test_new_epochs_are_persisted_at_once_and_truncations_later() -> None:
    recorder = Recorder()
    epochs = LeaderEpochCache(ENTRIES, persist=recorder)
    assert recorder.written == [], "what was read needs no writing"
    epochs.assign(7, 50)
    assert recorder.written == [(*ENTRIES, (7, 50))]
    epochs.truncate_from_end(45)
    epochs.truncate_from_start(25)
    assert (len(recorder.written), epochs.is_dirty) == (1, True)
    epochs.flush()
    assert (recorder.written[1:], epochs.is_dirty) == ([((3, 25), (6, 40))], False)
    epochs.flush()
    assert len(recorder.written) == 2
    epochs.clear()
    assert recorder.written[2:] == [()]


def test_assigning_writes_what_a_truncation_left() -> None:
    recorder = Recorder()
    epochs = LeaderEpochCache(ENTRIES, persist=recorder)
    epochs.truncate_from_end(25)
    epochs.assign(7, 25)
    assert recorder.written == [((2, 10), (3, 20), (7, 25))]
    assert not epochs.is_dirty


def test_epoch_that_could_not_be_written_is_not_taken_over() -> None:
    recorder = Recorder()
    epochs = LeaderEpochCache(ENTRIES, persist=recorder)
    recorder.fails = True
    with pytest.raises(OSError, match="disk full"):
        epochs.assign(7, 50)
    with pytest.raises(OSError, match="disk full"):
        epochs.clear()
    assert epochs.entries == ENTRIES
    recorder.fails = False
    assert epochs.assign(7, 50)
    assert recorder.written == [(*ENTRIES, (7, 50))]


def test_stale_checkpoint_is_made_to_increase() -> None:
    """A file may tell more than the log holds; what comes later in it is right."""
    assert cache((0, 0), (5, 80), (2, 30)).entries == ((0, 0), (2, 30))


def test_checkpoint_bytes() -> None:
    epochs = cache((0, 0), (2, 20), (6, 40))
    raw = b"0\n3\n0 0\n2 20\n6 40\n"
    assert encode_leader_epochs(epochs.entries) == raw
    assert LeaderEpochCache(decode_leader_epochs(raw)).entries == epochs.entries


_epochs = st.integers(0, 8)
_offsets = st.integers(0, 30)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), _epochs, _offsets),
        st.tuples(st.just("end"), st.just(0), _offsets),
        st.tuples(st.just("start"), st.just(0), _offsets),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    ),
    max_size=20,
)


def _naive(entries: list[tuple[int, int]], step: tuple[str, int, int]) -> list[tuple[int, int]]:
    """The rules, one entry at a time, as Kafka's documentation tells them."""
    kind, epoch, offset = step
    if kind == "clear":
        return []
    if kind == "end":
        return [entry for entry in entries if entry[1] < offset]
    if kind == "start":
        below = [entry for entry in entries if entry[1] <= offset]
        above = [entry for entry in entries if entry[1] > offset]
        return ([(below[-1][0], offset)] if below else []) + above
    if entries and entries[-1][0] == epoch and offset >= entries[-1][1]:
        return entries
    kept = list(entries)
    while kept and (kept[-1][0] >= epoch or kept[-1][1] >= offset):
        kept.pop()
    return [*kept, (epoch, offset)]


@given(_steps, _epochs, _offsets)
def test_cache_agrees_with_a_list(
    steps: list[tuple[str, int, int]], epoch: int, offset: int
) -> None:
    epochs = LeaderEpochCache()
    expected: list[tuple[int, int]] = []
    for step in steps:
        expected = _naive(expected, step)
        if step[0] == "assign":
            epochs.assign(*step[1:])
        elif step[0] == "clear":
            epochs.clear()
        else:
            cut = epochs.truncate_from_end if step[0] == "end" else epochs.truncate_from_start
            cut(step[2])
        assert list(epochs.entries) == expected
    for older, newer in pairwise(expected):
        assert older[0] < newer[0]
        assert older[1] < newer[1]
    containing = [known for known, start in expected if start <= offset]
    assert epochs.epoch_for_offset(offset) == (containing[-1] if containing else None)
    above = [start for known, start in expected if known > epoch]
    end_offset = epochs.end_offset_for(epoch, LOG_END).end_offset
    if above:
        assert end_offset == above[0]
    else:
        is_latest = bool(expected) and expected[-1][0] == epoch
        assert end_offset == (LOG_END if is_latest else -1)

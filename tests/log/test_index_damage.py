"""Indexes are hints: whatever is in them, or not in them, the same answers come back.

Each golden directory is copied once; then its index files are spoilt in every way in turn, and the
answers are compared with what Kafka found in the undamaged directory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import pytest

from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import IsolationLevel, OffsetAndTimestamp
from tests.effort import IS_LONG
from tests.golden.cases import GoldenCase, all_cases
from tests.golden.expected import (
    consumed,
    directory_to_read,
    is_consumed,
    loaded,
    log_start_offset,
    undamaged_cases,
    visible,
)
from tests.log.building import copy_partition
from tests.log.readers import columns, over_readers, scalar
from tests.looping import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.record import Record
    from tests.log.readers import Reader

ENTRY_BYTES = {".index": 8, ".timeindex": 12}
PREALLOCATED_BYTES = 10 * 1024 * 1024
SEED = 20_231_114
PART_RECORDS = 50
WHOLE_TURNS = 7

Spoil: TypeAlias = Callable[[random.Random, bytes, int], bytes | None]
"""From a file's bytes and the size of its entries to other bytes; None: the file is removed."""


def _shuffled(rng: random.Random, raw: bytes, size: int) -> bytes:
    entries = [raw[at : at + size] for at in range(0, len(raw), size)]
    rng.shuffle(entries)
    return b"".join(entries)


SPOILS: dict[str, Spoil] = {
    "missing": lambda _rng, _raw, _size: None,
    "empty": lambda _rng, _raw, _size: b"",
    "zeros": lambda _rng, raw, _size: bytes(len(raw)),
    "random": lambda rng, raw, _size: rng.randbytes(len(raw)),
    "random and odd": lambda rng, _raw, _size: rng.randbytes(rng.randrange(1, 200)),
    "random and long": lambda rng, _raw, size: rng.randbytes(size * rng.randrange(100, 1000)),
    "ones": lambda _rng, raw, _size: b"\xff" * len(raw),
    "cut inside an entry": lambda rng, raw, size: raw[: max(0, len(raw) - rng.randrange(1, size))],
    "one byte more": lambda _rng, raw, _size: raw + b"\x01",
    "second half dropped": lambda _rng, raw, size: raw[: len(raw) // size // 2 * size],
    "first half dropped": lambda _rng, raw, size: raw[len(raw) // size // 2 * size :],
    "every other entry dropped": lambda _rng, raw, size: b"".join(
        raw[at : at + size] for at in range(0, len(raw), 2 * size)
    ),
    "shifted by a byte": lambda _rng, raw, _size: raw[1:] + b"\x00",
    "shifted by half an entry": lambda _rng, raw, size: raw[size // 2 :],
    "twice": lambda _rng, raw, _size: raw + raw,
    "backwards": lambda _rng, raw, size: b"".join(
        raw[at : at + size] for at in range(len(raw) - size, -1, -size)
    ),
    "shuffled": _shuffled,
    "random second half": lambda rng, raw, size: (
        raw[: len(raw) // size // 2 * size] + rng.randbytes(len(raw) - len(raw) // size // 2 * size)
    ),
}


class Returns:
    """What Kafka found in a case, asked of a view: records, lookups, ends."""

    def __init__(self, case: GoldenCase) -> None:
        self.case = case
        start = log_start_offset(case) or case.loaddir["logStartOffset"]
        self.start, self.end = start, case.loaddir["logEndOffset"]
        self.records = [record for record in visible(case) if record.offset >= start]
        self.stored = [f.record for f in loaded(case) if f.record.offset >= start]

    def check(
        self, path: Path, reader: Reader, rng: random.Random, what: str, *, is_whole: bool = True
    ) -> None:
        """Reads all records, or some that begin at any of them."""
        first = 0 if is_whole else rng.randrange(max(1, len(self.records)))
        records = self.records[first:] if is_whole else self.records[first : first + PART_RECORDS]
        ends = (records[0].offset, records[-1].offset + 1) if records and not is_whole else ()
        with PartitionView(path, log_start_offset=self.start) as view:
            assert view.log_end_offset == self.end, what
            assert list(reader(view, *ends)) == records, what
        # Another view: it meets the indexes first by lookups, not by reading from the start.
        with PartitionView(path, log_start_offset=self.start) as view:
            for record in rng.sample(self.stored, min(3, len(self.stored))):
                self._check_lookups(view, record, what)
            largest = max((record.timestamp for record in self.stored), default=-1)
            expected = self._first_at(largest) if largest >= 0 else None
            assert view.find_max_timestamp() == expected, what
            assert view.last_stable_offset == self.case.loaddir["lastStableOffset"], what

    def _check_lookups(self, view: PartitionView, record: Record, what: str) -> None:
        offset, timestamp = record.offset, record.timestamp
        first = next((r for r in self.records if r.offset >= offset), None)
        assert next(view.read(offset), None) == first, (what, offset)
        found = view.locate(offset)
        assert found is not None, (what, offset)
        assert found.record == record, (what, offset)
        assert view.find_time(timestamp) == self._first_at(timestamp), (what, timestamp)
        assert view.find_time(timestamp + 1) == self._first_at(timestamp + 1), (what, timestamp)

    def _first_at(self, timestamp: int) -> OffsetAndTimestamp | None:
        hits = (r for r in self.stored if r.timestamp >= timestamp)
        first = next(hits, None)
        return None if first is None else OffsetAndTimestamp(first.offset, first.timestamp)


def index_files(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.iterdir() if file.suffix in ENTRY_BYTES}


def restore(files: dict[Path, bytes]) -> None:
    for file, raw in files.items():
        file.write_bytes(raw)


@pytest.mark.slow
@for_each("case", undamaged_cases())
def test_spoilt_indexes(case: GoldenCase, tmp_path: Path) -> None:
    """Each directory in a third of the ways, so each way in a third of the directories; in all of
    them if there is much time."""
    first = undamaged_cases().index(case)
    path = copy_partition(directory_to_read(case), tmp_path)
    files, answers = index_files(path), Returns(case)
    rng = random.Random(f"{SEED}-{case}")
    for turn, (what, spoil) in enumerate(SPOILS.items(), first):
        if turn % 3 and not IS_LONG:
            continue
        for file, raw in files.items():
            spoilt = spoil(rng, raw, ENTRY_BYTES[file.suffix])
            if spoilt is None:
                file.unlink()
            else:
                file.write_bytes(spoilt)
        is_whole = IS_LONG or turn % WHOLE_TURNS == 0  # it takes long, and needs indexes least
        reader = (scalar, columns)[turn % 2]
        answers.check(path, reader, rng, f"{what}, seed {SEED}", is_whole=is_whole)
        restore(files)


@pytest.mark.slow
@for_each("case", undamaged_cases())
def test_preallocated_indexes(case: GoldenCase, tmp_path: Path) -> None:
    """As a running or killed broker leaves them; all at once is worse than any broker does."""
    path = copy_partition(directory_to_read(case), tmp_path)
    for file in index_files(path):
        with file.open("r+b") as index:
            index.truncate(
                PREALLOCATED_BYTES // ENTRY_BYTES[file.suffix] * ENTRY_BYTES[file.suffix]
            )
    Returns(case).check(path, columns, random.Random(SEED), "preallocated")


@pytest.mark.slow
@for_each("case", undamaged_cases())
def test_swapped_indexes(case: GoldenCase, tmp_path: Path) -> None:
    """Each segment has the indexes of the next one."""
    path = copy_partition(directory_to_read(case), tmp_path)
    files = index_files(path)
    for suffix in ENTRY_BYTES:
        of_kind = sorted(file for file in files if file.suffix == suffix)
        for at, file in enumerate(of_kind):
            file.write_bytes(files[of_kind[(at + 1) % len(of_kind)]])
    Returns(case).check(path, scalar, random.Random(SEED), "swapped")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multiseg", "ooo-createtime", "txn", "v1-lz4", "u-badindex"])
def test_every_offset_with_random_indexes(name: str, tmp_path: Path) -> None:
    case = GoldenCase(name)
    path = copy_partition(directory_to_read(case), tmp_path)
    rng = random.Random(f"{SEED}-{name}")
    for file, raw in index_files(path).items():
        file.write_bytes(rng.randbytes(len(raw)))
    records = {facts.record.offset: facts.record for facts in loaded(case)}
    step = max(1, len(records) // 300)
    for offset, record in list(records.items())[::step]:
        with PartitionView(path) as view:  # a fresh one: the index is met by this lookup first
            found = view.locate(offset)
        assert found is not None
        assert found.record == record


NO_USE = {
    "u-noindex": "there are none",
    "u-badindex": "they are junk",
    "u-lz4": "the last entry names the batch that was torn",
    "u-torn": "the last entry names the batch that was torn",
    "real09-gzip": "Kafka 0.9 named the first offset of a set, which its header does not tell",
    "real09-snappy": "Kafka 0.9 named the first offset of a set, which its header does not tell",
}


@for_each("case", [case for case in undamaged_cases() if case.name not in NO_USE])
def test_good_indexes_are_used(case: GoldenCase) -> None:
    """Nothing is rebuilt where Kafka's files are right, or each lookup would read a whole log."""
    with PartitionView(directory_to_read(case)) as view:
        assert len(list(view.read())) == len(visible(case))
        view.find_max_timestamp()
        for segment in view.segments:
            segment.seek(segment.base_offset + 10)
            origin = segment.offset_index.origin
            assert origin == "file", segment
            assert not segment.times.index.origin.startswith("built") or (
                segment.times.largest.timestamp < 0  # magic 0, or emptied: Kafka has no entries
            ), segment


# -- side files that only some questions need


def txn_cases() -> list[GoldenCase]:
    return [case for case in undamaged_cases() if is_consumed(case) and _has_txn_index(case)]


def _has_txn_index(case: GoldenCase) -> bool:
    return any(directory_to_read(case).glob("*.txnindex"))


TXN_SPOILS: dict[str, Spoil] = {
    name: SPOILS[name]
    for name in ("empty", "zeros", "random", "random and odd", "ones", "one byte more", "backwards")
}


def test_there_are_cases_with_aborted_transactions() -> None:
    assert {case.name for case in txn_cases()} >= {"txn", "txn-simple", "txn-now"}


@over_readers
@pytest.mark.parametrize("what", TXN_SPOILS)
@for_each("case", txn_cases())
def test_spoilt_transaction_indexes(
    case: GoldenCase, what: str, reader: Reader, tmp_path: Path
) -> None:
    path = copy_partition(directory_to_read(case), tmp_path)
    rng = random.Random(f"{SEED}-{case}")
    for file in path.glob("*.txnindex"):
        spoilt = TXN_SPOILS[what](rng, file.read_bytes(), 34)
        assert spoilt is not None
        file.write_bytes(spoilt)
    level = IsolationLevel.READ_COMMITTED
    with PartitionView(path) as view:
        assert tuple(reader(view, isolation=level)) == consumed(case, level)
    if case.name != "compact-txn":  # there, the data that the lost entries tell of is gone
        with PartitionView(directory_to_read(case)) as intact, PartitionView(path) as view:
            assert view.aborted_transactions() == intact.aborted_transactions()


@over_readers
@for_each("case", txn_cases())
def test_missing_transaction_indexes(
    case: GoldenCase, reader: Reader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each by itself, and all of them: the log tells what was aborted, and a warning that."""
    intact = directory_to_read(case)
    names = sorted(file.name for file in intact.glob("*.txnindex"))
    level = IsolationLevel.READ_COMMITTED
    for number, missing in enumerate([*([name] for name in names), names]):
        path = copy_partition(intact, tmp_path / str(number))
        for name in missing:
            (path / name).unlink()
        caplog.clear()
        with PartitionView(path) as view, PartitionView(intact) as whole:
            assert tuple(reader(view, isolation=level)) == consumed(case, level)
            if case.name != "compact-txn":  # there, the data that the lost entries tell of is gone
                assert view.aborted_transactions() == whole.aborted_transactions()
        if case.name != "compact-txn":
            assert [name for name in missing if f"{name}: missing" in caplog.text] == missing


@for_each("case", all_cases())
def test_an_index_that_need_not_be_there_is_not_missed(
    case: GoldenCase, caplog: pytest.LogCaptureFixture
) -> None:
    with PartitionView(directory_to_read(case)) as view:
        view.aborted_transactions()
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["idempotent", "multiseg", "java-none"])
def test_no_header_is_walked_for_it_where_no_transaction_ended(name: str) -> None:
    with PartitionView(directory_to_read(GoldenCase(name))) as view:
        view.aborted_transactions()
        *closed, _ = view.segments
        assert not any("file" in vars(segment) for segment in closed)


def test_the_spark_plan_has_the_aborted_transactions_of_a_missing_index(tmp_path: Path) -> None:
    from stratalog.spark.options import plan_read  # noqa: PLC0415

    intact = GoldenCase("txn").partition_dir
    path = copy_partition(intact, tmp_path)
    for file in path.glob("*.txnindex"):
        file.unlink()
    options = {"subscribe": "txn", "kafka.isolation.level": "read_committed"}
    plans = [plan_read({**options, "path": str(place.parent)}) for place in (intact, path)]
    aborted = [
        [sorted(piece.aborted) for split in plan.splits for piece in split.ranges] for plan in plans
    ]
    assert aborted[0] == aborted[1]
    assert any(aborted[0])


SNAPSHOT_SPOILS = ("missing", "empty", "zeros", "random", "random and odd", "ones", "one byte more")


@pytest.mark.parametrize("what", SNAPSHOT_SPOILS)
@pytest.mark.parametrize("name", ["txn", "idempotent", "txn-now", "compact-txn", "u-idem"])
def test_spoilt_snapshots(name: str, what: str, tmp_path: Path) -> None:
    """Then the whole log is replayed. It says the same."""
    case = GoldenCase(name)
    path = copy_partition(directory_to_read(case), tmp_path)
    rng = random.Random(f"{SEED}-{name}")
    for file in path.glob("*.snapshot"):
        spoilt = SPOILS[what](rng, file.read_bytes(), 46)
        if spoilt is None:
            file.unlink()
        else:
            file.write_bytes(spoilt)
    level = IsolationLevel.READ_COMMITTED
    with PartitionView(path) as view:
        assert view.last_stable_offset == case.loaddir["lastStableOffset"]
        assert tuple(view.read(isolation=level)) == consumed(case, level)
        if name != "compact-txn":  # there, old batches and markers are gone for good
            with PartitionView(directory_to_read(case)) as intact:
                assert view.producers == intact.producers


def test_only_the_newest_snapshot_is_spoilt(tmp_path: Path) -> None:
    """The next older one is taken, as Kafka does."""
    case = GoldenCase("txn")
    path = copy_partition(directory_to_read(case), tmp_path)
    max(path.glob("*.snapshot")).write_bytes(b"junk")
    with PartitionView(path) as view, PartitionView(case.partition_dir) as intact:
        assert view.producers == intact.producers
        assert view.last_stable_offset == 130

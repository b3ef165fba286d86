"""Reading a large log takes a few mebibytes, whatever its size; so do lookups in it."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from stratalog.format.batch import BatchHeader
from stratalog.format.record import encode_batch
from stratalog.log.partition_view import PartitionView
from tests.log.building import drop_indexes, log_name, plain_records, write_partition
from tests.log.readers import lists, records_in, scalar
from tests.memory import output_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.log.readers import Reader

MIB = 1 << 20
BATCH_RECORDS = 4
BATCHES = 5000
VALUE_BYTES = 4000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """76 MiB in two segments: one batch over and over, its base offset counted on.

    No CRC covers a base offset, so writing them takes no time.
    """
    path = write_partition(tmp_path_factory.mktemp("large") / "large-0", {})
    raw = encode_batch(plain_records(0, BATCH_RECORDS, value_bytes=VALUE_BYTES))
    body = raw[8:]
    half = BATCHES // 2
    for first in (0, half):
        with (path / log_name(first * BATCH_RECORDS)).open("wb") as log:
            for number in range(first, first + half):
                log.write((number * BATCH_RECORDS).to_bytes(8, "big") + body)
    assert BatchHeader.unpack(raw).size_bytes * BATCHES > 64 * MIB
    return path


def peak_of(ask: Callable[[], object]) -> int:
    """The most memory that Python objects took while `ask` ran."""
    tracemalloc.start()
    try:
        ask()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("reader", [scalar, lists], ids=["scalar", "lists"])
def test_records_one_by_one(large: Path, reader: Reader) -> None:
    def read() -> None:
        with PartitionView(large) as view:
            assert sum(1 for _ in reader(view)) == BATCHES * BATCH_RECORDS

    assert peak_of(read) < 4 * MIB


def test_opening_and_looking_up(large: Path) -> None:
    """There are no index files: both are rebuilt in memory from the headers."""

    def ask() -> None:
        with PartitionView(large) as view:
            assert view.log_end_offset == BATCHES * BATCH_RECORDS
            for offset in (0, 12_345, BATCHES * BATCH_RECORDS - 1):
                found = view.locate(offset)
                assert found is not None
                assert found.record.offset == offset
            assert view.find_max_timestamp() == (3, plain_records(3, 1)[0].timestamp)
            assert view.find_time(1 << 60) is None
            assert view.last_stable_offset == view.log_end_offset

    assert peak_of(ask) < 4 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["PartitionView(path)", "open_dirs(path.parent)"])
def test_columns_in_a_process_of_their_own(large: Path, whose: str) -> None:
    """Arrow's memory is not Python's, so the whole process is measured, after a warm-up."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from stratalog import PartitionView, open_dirs\n"
        "from tests.memory import peak_bytes\n"
        "path = Path(sys.argv[1])\n"
        f"view = {whose}\n"
        "sum(batch.num_rows for batch in view.read_columns(end=1000))\n"
        "warm = peak_bytes()\n"
        "rows = sum(batch.num_rows for batch in view.read_columns())\n"
        "print(rows, peak_bytes() - warm)\n"
    )
    rows, grown = map(int, output_of(program, large))
    assert rows == BATCHES * BATCH_RECORDS
    assert grown < 24 * MIB


def test_skipping_a_large_hole(tmp_path: Path) -> None:
    """64 MiB of zeros between good batches are searched in windows."""
    raw = encode_batch(plain_records(0, 2))
    path = write_partition(tmp_path / "t-0", {0: raw})
    with (path / log_name(0)).open("r+b") as log:
        log.seek(64 * MIB)
        log.write(encode_batch(plain_records(2, 2)))

    def read() -> None:
        with PartitionView(path) as view:
            records = list(view.read(on_skip=lambda _: None))
        assert [record.offset for record in records] == [0, 1, 2, 3]

    assert peak_of(read) < 8 * MIB


def test_declared_sizes_are_not_believed(tmp_path: Path) -> None:
    """A length of 2 GiB, a count of 2 billion: checked against the bytes at hand first."""
    good = encode_batch(plain_records(0, 2))
    for at, value in ((8, (1 << 31) - 13), (57, (1 << 31) - 1), (23, (1 << 31) - 1)):
        bad = bytearray(encode_batch(plain_records(2, 2)))
        bad[at : at + 4] = value.to_bytes(4, "big")
        path = write_partition(tmp_path / f"t-{at}", {0: good + bytes(bad) + good})

        def read(path: Path = path) -> None:
            with PartitionView(path) as view:
                assert len(list(view.read(on_skip=lambda _: None))) >= 2
                batches = view.read_columns(on_skip=lambda _: None)
                assert sum(1 for batch in batches for _ in records_in(batch)) >= 2

        read()  # loads what columns need
        assert peak_of(read) < 4 * MIB


def test_preallocated_indexes_take_no_memory(large: Path, tmp_path: Path) -> None:
    """Files of 10 MiB with a few entries: only those are kept."""
    path = write_partition(tmp_path / "t-0", {0: encode_batch(plain_records(0, 2))})
    for suffix, size in ((".index", 10 * MIB), (".timeindex", 10 * MIB // 12 * 12)):
        with (path / log_name(0, suffix)).open("wb") as index:
            index.truncate(size)

    def ask() -> None:
        with PartitionView(path) as view:
            assert view.log_end_offset == 2
            assert view.find_max_timestamp() is not None

    assert peak_of(ask) < MIB
    drop_indexes(path)
    assert large.is_dir()

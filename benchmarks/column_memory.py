"""The peak memory of processes that write and read topics by columns: it must not depend on how
much that is.

Each step is a process of its own, which reports its peak: `write` appends rows from a reader that
generates them, `read` reads all columns of the topic, `copy` appends what it reads to another
topic. `python -m benchmarks.column_memory --gigabytes 10` takes that much at the larger size.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stratalog import LogDir, open_dirs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.report import Report

FACTOR: Final = 8
"""How much more the larger size is."""
GROWTH_MAX: Final = 1.1
STEPS: Final = ("write", "read", "copy")
_PARTITIONS: Final = 3
_ROWS: Final = 65_536
_VALUE_BYTES: Final = 100
_RECORD_BYTES: Final = 10 + _VALUE_BYTES  # key and value


class Peak(NamedTuple):
    """What a step took."""

    step: str
    data_bytes: int
    peak_bytes: int


def run(report: Report) -> None:
    size_bytes = (256 if report.is_quick else 1024) << 20
    peaks = {(peak.step, peak.data_bytes): peak.peak_bytes for peak in measure(size_bytes)}
    for step in STEPS:
        small, large = peaks[step, size_bytes // FACTOR], peaks[step, size_bytes]
        what = f"{step} by columns, peak memory"
        report.require(f"{what} of {FACTOR} times as much", large / small, at_most=GROWTH_MAX)
        report.require(what, large / 1e6, at_most=600, unit=" MB")


def measure(size_bytes: int) -> Iterator[Peak]:
    """All steps with an eighth of `size_bytes`, then with all of them."""
    for data_bytes in (size_bytes // FACTOR, size_bytes):
        with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as scratch:
            for step in STEPS:
                command = [sys.executable, "-m", __spec__.name, "--step", step]
                command += [scratch, str(data_bytes // _RECORD_BYTES)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                yield Peak(step, data_bytes, int(done.stdout))


def _rows(records: int) -> pa.RecordBatchReader:
    """So many rows, a batch at a time: the same values under keys in another order."""
    rng = random.Random(1)
    text = rng.randbytes(1 << 20).hex().encode()
    starts = [rng.randrange(len(text) - _VALUE_BYTES) for _ in range(_ROWS)]
    keys = pa.array([b"user-%05d" % (number % 50_000) for number in range(_ROWS)], pa.binary())
    values = pa.array([text[start : start + _VALUE_BYTES] for start in starts], pa.binary())

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, records, _ROWS):
            count, turn = min(_ROWS, records - first), first // _ROWS % _ROWS
            order = pa.chunked_array([keys[turn:], keys[:turn]]).combine_chunks()
            yield pa.record_batch({"key": order[:count], "value": values[:count]})

    schema = pa.schema({"key": pa.binary(), "value": pa.binary()})
    return pa.RecordBatchReader.from_batches(schema, batches())


def _write(directory: Path, records: int) -> int:
    with LogDir.open(directory) as logs:
        logs.create_topic("bench", partitions=_PARTITIONS)
        return sum(stored.record_count for stored in logs.append_columns("bench", _rows(records)))


def _read(directory: Path, _: int) -> int:
    read = value_bytes = 0
    with open_dirs(directory) as logs:
        for batch in logs.read_columns("bench"):
            read += batch.num_rows
            value_bytes += pc.sum(pc.binary_length(batch.column("value"))).as_py()
    if value_bytes != read * _VALUE_BYTES:
        raise AssertionError(f"{value_bytes} bytes in {read} values")
    return read


def _copy(directory: Path, _: int) -> int:
    with LogDir.open(directory) as logs, open_dirs(directory) as source:
        logs.create_topic("copy", partitions=_PARTITIONS)
        rows = source.read_columns("bench", columns=["partition", "timestamp", "key", "value"])
        return sum(stored.record_count for stored in logs.append_columns("copy", rows))


def _do(step: str, directory: Path, records: int) -> int:
    """Do it, and return the peak of this process."""
    done = {"write": _write, "read": _read, "copy": _copy}[step](directory, records)
    if done != records:
        raise AssertionError(f"{step}: {done} records, not {records}")
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main() -> None:
    """One step, for `measure`, or all of them at the size that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="at the larger size")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        directory, records = options.arguments
        print(_do(options.step, Path(directory), int(records)))
        return
    for peak in measure(int(options.gigabytes * 1e9)):
        print(
            f"{peak.step:5}  {peak.data_bytes / 1e9:6.2f} GB  peak {peak.peak_bytes / 1e6:5.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()

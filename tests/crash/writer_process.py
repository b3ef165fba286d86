"""A process that writes a log until it is killed, and one that makes such processes cheaply.

Run as a program it imports everything once, then forks a writer for each line on its input:

    {"path": ..., "seed": ..., "run": ..., "point": [log start, recovery point, was clean]}

and answers with the writer's process id, then with its exit status once it is gone. The writers
report through the pipe whose file descriptor is the program's argument, a line for each event:

    A 17        records below offset 17 were appended
    F 17        and flushed; 17 is the recovery point
    C 17        the log was closed cleanly
    O           the log is about to be opened
    X ...       something went wrong, with what
"""

from __future__ import annotations

import os
import random
import time
import traceback
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from stratalog.config import LogConfig
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk
from tests.crash.forking import serve

if TYPE_CHECKING:
    from stratalog.log.partition_log import PartitionLog

START_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=16_384, segment_index_bytes=960, index_interval_bytes=400)
IDEMPOTENT, TRANSACTIONAL = 11, (21, 22)
WRITE_FOR_S = 20.0  # longer than any test waits


@lru_cache(maxsize=1 << 14)
def record_at(seed: int, offset: int) -> Record:
    """The record that must be at `offset`, if it is no marker."""
    rng = random.Random(seed * 1_000_003 + offset)
    size = rng.choice([0, 20, 100, 100, 400, 2000])
    return Record(offset, START_MS + offset, b"key-%d" % offset, rng.randbytes(size))


def clock_of(log: PartitionLog | None) -> int:
    """Time goes with the offsets, so that a log looks the same whenever it was written."""
    return START_MS + (0 if log is None else log.log_end_offset)


class Writer:
    """Appends known content until the end of time."""

    def __init__(self, path: Path, seed: int, run: int, report: int) -> None:
        self.path = path
        self.seed = seed
        self.rng = random.Random(f"{seed}/{run}")
        self.report = report
        self.log: PartitionLog | None = None

    def tell(self, kind: str, *values: object) -> None:
        os.write(self.report, " ".join(map(str, (kind, *values))).encode() + b"\n")

    def run(self, point: LoadPoint) -> None:
        log = self.open(point)
        end = time.monotonic() + WRITE_FOR_S
        while time.monotonic() < end:
            choice = self.rng.random()
            if choice < 0.15:
                log.flush()
                self.tell("F", log.recovery_point)
            elif choice < 0.17:
                log.roll()
            elif choice < 0.19:
                log.close()
                self.tell("C", log.recovery_point)
                log = self.open(LoadPoint(log.log_start_offset, log.recovery_point, was_clean=True))
            elif choice < 0.30:
                self.end_transaction(log)
            else:
                self.append(log)
            self.tell("A", log.log_end_offset)

    def open(self, point: LoadPoint) -> PartitionLog:
        self.tell("O")
        self.log = open_log(
            self.path, CONFIG, disk=Disk(), now_ms=lambda: clock_of(self.log), point=point
        )
        return self.log

    def append(self, log: PartitionLog) -> None:
        producer_id = self.rng.choice([-1, IDEMPOTENT, *TRANSACTIONAL])
        first = log.log_end_offset
        count = self.rng.choice([1, 1, 2, 5])
        records = [record_at(self.seed, first + n) for n in range(count)]
        known = log.producers.producers.get(producer_id)
        fields = BatchFields()
        if producer_id >= 0:
            fields = BatchFields(
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0 if known is None else known.next_sequence,
                is_transactional=producer_id in TRANSACTIONAL,
            )
        sent = [record._replace(offset=n) for n, record in enumerate(records)]
        log.append(encode_batch(sent, fields))

    def end_transaction(self, log: PartitionLog) -> None:
        ongoing = [p for p, state in log.producers.producers.items() if state.has_open_txn]
        if ongoing:
            log.end_transaction(self.rng.choice(ongoing), 0, commit=self.rng.random() < 0.5)


def write(request: dict[str, object], report: int) -> NoReturn:
    """In the forked process; never comes back."""
    path, seed, run = request["path"], request["seed"], request["run"]
    assert isinstance(path, str)
    assert isinstance(seed, int)
    assert isinstance(run, int)
    writer = Writer(Path(path), seed, run, report)
    try:
        writer.run(LoadPoint(*request["point"]))  # type: ignore[misc]  # JSON
    except BaseException:
        writer.tell("X", traceback.format_exc().replace("\n", "\\n"))
    os._exit(1)


if __name__ == "__main__":
    serve(write)

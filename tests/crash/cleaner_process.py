"""A process that appends to a compacted log and cleans it until it is killed.

Run as a program it imports everything once, then forks a worker for each line on its input:

    {"path": ..., "seed": ..., "run": ...}

and answers with the worker's process id, then with its exit status once it is gone. The workers
report through the pipe whose file descriptor is the program's argument, a line for each event:

    O             the log is about to be opened
    A 17 k        the record at offset 17, of key k, is in the log for good
    R             a round of cleaning is over
    X ...         something went wrong, with what
"""

from __future__ import annotations

import os
import random
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from stratalog.config import LogConfig
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import open_log
from stratalog.storage.disk import Disk
from tests.crash.forking import serve

if TYPE_CHECKING:
    from stratalog.log.partition_log import PartitionLog

START_MS = 1_700_000_000_000
CONFIG = LogConfig.parse(
    {
        "cleanup.policy": "compact",
        "segment.bytes": 2_000,
        "segment.index.bytes": 480,
        "index.interval.bytes": 200,
        "delete.retention.ms": 300,
        "min.cleanable.dirty.ratio": 0,
    }
)
KEYS = 25
TRANSACTIONAL = 7
ABORTED = b"aborted"
WORK_FOR_S = 20.0  # longer than any test waits


def value_at(offset: int) -> bytes | None:
    """What a record at this offset says, if it is not of an aborted transaction."""
    return None if offset % 11 == 3 else b"%d" % offset + b"." * (offset % 90)


class Worker:
    """Appends and cleans until the end of time."""

    def __init__(self, path: Path, seed: int, run: int, report: int) -> None:
        self.rng = random.Random(f"{seed}/{run}")
        self.report = report
        self.tell("O")
        self.end = 0
        self.log: PartitionLog = open_log(path, CONFIG, disk=Disk(), now_ms=self.now_ms)
        self.cleaner = Cleaner(24 * 40)
        self.checkpoint: int | None = None

    def now_ms(self) -> int:
        """Time goes with the offsets."""
        log = getattr(self, "log", None)
        return START_MS + (0 if log is None else log.log_end_offset)

    def tell(self, kind: str, *values: object) -> None:
        os.write(self.report, " ".join(map(str, (kind, *values))).encode() + b"\n")

    def run(self) -> None:
        state = self.log.producers.producers.get(TRANSACTIONAL)
        if state is not None and state.has_open_txn:  # a kill came between it and its end
            self.log.end_transaction(TRANSACTIONAL, 0, commit=False)
        end = time.monotonic() + WORK_FOR_S
        while time.monotonic() < end:
            choice = self.rng.random()
            if choice < 0.70:
                self.append()
            elif choice < 0.85:
                self.transact(commit=self.rng.random() < 0.5)
            elif choice < 0.90:
                self.log.roll()
            elif choice < 0.92:
                self.log.maintenance.remove_discarded(0, at_once=True)
            else:
                self.clean()

    def records(self, *, is_aborted: bool) -> list[Record]:
        first = self.log.log_end_offset
        return [
            Record(
                n,
                START_MS + first + n,
                b"%d" % self.rng.randrange(KEYS),
                ABORTED if is_aborted else value_at(first + n),
            )
            for n in range(self.rng.randint(1, 4))
        ]

    def append(self) -> None:
        records = self.records(is_aborted=False)
        first = self.log.append(encode_batch(records, BatchFields())).first_offset
        self.acknowledge(first, records)

    def transact(self, *, commit: bool) -> None:
        """A kill before the end leaves one that is aborted: so it says so, until it is known."""
        known = self.log.producers.producers.get(TRANSACTIONAL)
        fields = BatchFields(
            producer_id=TRANSACTIONAL,
            producer_epoch=0,
            base_sequence=0 if known is None else known.next_sequence,
            is_transactional=True,
        )
        records = self.records(is_aborted=not commit)
        first = self.log.append(encode_batch(records, fields)).first_offset
        self.log.end_transaction(TRANSACTIONAL, 0, commit=commit)
        if commit:
            self.acknowledge(first, records)

    def acknowledge(self, first: int, records: list[Record]) -> None:
        for record in records:
            assert record.key is not None
            self.tell("A", first + record.offset, record.key.decode())

    def clean(self) -> None:
        plan = plan_cleaning(cleaner_log(self.log, self.checkpoint), CONFIG, self.now_ms())
        if plan.is_selected:
            self.checkpoint = self.cleaner.clean(self.log, plan).end_offset
            self.tell("R")


def work(request: dict[str, str | int], report: int) -> NoReturn:
    """In the forked process; never comes back."""
    try:
        path, seed, run = Path(str(request["path"])), int(request["seed"]), int(request["run"])
        Worker(path, seed, run, report).run()
    except BaseException:
        os.write(report, b"X " + traceback.format_exc().replace("\n", "\\n").encode() + b"\n")
    os._exit(1)


if __name__ == "__main__":
    serve(work)

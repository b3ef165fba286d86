"""A partition that is written in tests: its disk and clock, and batches as clients send them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.config import LogConfig
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.maintenance.recovery import LoadPoint, open_log
from tests.disks import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.reader import IsolationLevel


NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=1000, segment_index_bytes=240, index_interval_bytes=150)
PRODUCER = 7


class Setup:
    """A log, its disk and its clock."""

    def __init__(self, root: Path) -> None:
        self.path = root / "t-0"
        self.disk = FaultyDisk()
        self.now_ms = NOW_MS
        self.log = self.open()

    def open(self, config: LogConfig = CONFIG, point: LoadPoint = LoadPoint()) -> PartitionLog:  # noqa: B008
        self.log = open_log(
            self.path, config, disk=self.disk.disk, now_ms=lambda: self.now_ms, point=point
        )
        return self.log

    def reopen(self, config: LogConfig = CONFIG) -> PartitionLog:
        self.log.close()
        point = LoadPoint(self.log.log_start_offset, self.log.recovery_point, was_clean=True)
        return self.open(config, point)


def batch(
    count: int = 1,
    *,
    timestamp: int = NOW_MS,
    value_bytes: int = 20,
    fields: BatchFields = BatchFields(),  # noqa: B008
    first_offset: int = 0,
) -> bytes:
    records = [
        Record(first_offset + n, timestamp, b"key-%d" % n, b"v" * value_bytes) for n in range(count)
    ]
    return encode_batch(records, fields)


def sent(sequence: int, *, epoch: int = 0, in_txn: bool = False, count: int = 1) -> bytes:
    fields = BatchFields(
        producer_id=PRODUCER,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=in_txn,
    )
    return batch(count, fields=fields)


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.maintenance.segments]


def offsets(log: PartitionLog, **how: IsolationLevel) -> list[int]:
    return [record.offset for record in log.read(**how)]  # type: ignore[arg-type]


def filled(log: PartitionLog, batches: int = 20) -> PartitionLog:
    for number in range(batches):
        log.append(batch(2, timestamp=NOW_MS + number))
    return log

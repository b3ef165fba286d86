"""What a Kafka broker would change when it opens a log directory: a model of its loader.

Written from the behaviour of Kafka's `LogManager`, `LogLoader` and `LogSegment.recover`, in their
order, with nothing of Stratalog: it checks directories that Stratalog wrote by other means than
Stratalog's own rules. `tests/test_kafka_loader.py` compares it with a real broker, which left the
directories of tests/golden/u-* before and after its recovery.
"""

from __future__ import annotations

import itertools
import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
CHECKPOINTS = {
    "recovery-point-offset-checkpoint": "recovery point",
    "replication-offset-checkpoint": "high watermark",
    "cleaner-offset-checkpoint": "cleaner offset",
}
LOG_STARTS = "log-start-offset-checkpoint"
OVERHEAD_BYTES = 12
MAGIC_AT = 16
OFFSET_ENTRY, TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")
ABORTED_TXN = struct.Struct(">hqqqq")
_SMALLEST_MESSAGE_BYTES = 14


class Batch(NamedTuple):
    """A batch, or a message of the formats before batches."""

    position: int
    last_offset: int
    size_bytes: int
    is_valid: bool


def batches_of(data: bytes) -> Iterator[Batch]:
    """Up to the first that is incomplete."""
    at = 0
    while len(data) - at > MAGIC_AT:
        offset, length = struct.unpack_from(">qi", data, at)
        end = at + OVERHEAD_BYTES + length
        if length < _SMALLEST_MESSAGE_BYTES or end > len(data):
            return
        last_offset = offset
        if data[at + MAGIC_AT] >= 2:
            (stored,) = struct.unpack_from(">I", data, at + 17)
            last_offset += struct.unpack_from(">i", data, at + 23)[0]
            is_valid = crc32c.crc32c(data[at + 21 : end]) == stored
        else:
            (stored,) = struct.unpack_from(">I", data, at + 12)
            is_valid = zlib.crc32(data[at + 16 : end]) == stored
        yield Batch(at, last_offset, end - at, is_valid)
        at = end


@dataclass
class LoadedPartition:
    """One partition, as the loader finds it."""

    path: Path
    log_start_offset: int = 0
    recovery_point: int = 0
    is_clean: bool = True
    log_end_offset: int = 0
    changes: list[str] = field(default_factory=list)
    """What the broker would change, one line each."""

    def load(self) -> LoadedPartition:
        self._check_names()
        logs = sorted(self.path.glob("*.log"))
        if not logs:
            self._note(self.path, "no segment, created")
        is_behind = False
        for log, next_base in zip(logs, [*(_base(each) for each in logs[1:]), None], strict=True):
            if is_behind:
                self._note(log, "after a segment that was truncated, deleted")
                continue
            needs_recovery = not self.is_clean and (
                next_base is None or next_base > self.recovery_point
            )
            is_behind = self._load_segment(log, needs_recovery=needs_recovery)
        if self.log_end_offset < self.log_start_offset:
            self._note(self.path, f"ends at {self.log_end_offset}, before its start: emptied")
        self._check_snapshots()
        self._check_epochs()
        return self

    def _check_names(self) -> None:
        for file in self.path.iterdir():
            if file.suffix in {".deleted", ".cleaned", ".swap"}:
                self._note(file, "left over, removed or renamed")
            is_index = file.suffix in {".index", ".timeindex", ".txnindex"}
            if is_index and not file.with_suffix(".log").exists():
                self._note(file, "no .log beside it, deleted")

    def _load_segment(self, log: Path, *, needs_recovery: bool) -> bool:
        """Whether the log ends inside this segment because of its contents."""
        base, data = _base(log), log.read_bytes()
        kept: list[Batch] = []
        for batch in batches_of(data):
            if needs_recovery and not batch.is_valid:
                break
            kept.append(batch)
        end = kept[-1].position + kept[-1].size_bytes if kept else 0
        is_truncated = needs_recovery and end < len(data)
        if is_truncated:
            self._note(log, f"truncated to {end} bytes")
        self.log_end_offset = kept[-1].last_offset + 1 if kept else base
        self._check_offset_index(log.with_suffix(".index"), base, kept)
        self._check_time_index(log.with_suffix(".timeindex"), base)
        self._check_aborted(log.with_suffix(".txnindex"), base)
        return is_truncated

    def _check_offset_index(self, index: Path, base: int, kept: list[Batch]) -> None:
        if not index.exists():
            self._note(index, "missing: the segment is recovered")
            return
        # An entry names the last offset of a batch; in older versions that of an append, which may
        # be several batches; in the oldest ones its first offset.
        ends_before = [base, *(batch.last_offset + 1 for batch in kept)]
        starts = {batch.position: end for batch, end in zip(kept, ends_before, strict=False)}
        for number, (relative, position) in enumerate(self._entries(index, OFFSET_ENTRY)):
            least = starts.get(position, self.log_end_offset)
            if not least <= base + relative < self.log_end_offset:
                self._note(index, f"entry {number} names no batch: ({relative}, {position})")

    def _check_time_index(self, index: Path, base: int) -> None:
        if not index.exists():
            self._note(index, "missing: created")
            return
        for number, (_, relative) in enumerate(self._entries(index, TIME_ENTRY)):
            if base + relative >= self.log_end_offset:
                self._note(index, f"entry {number} is after the log's end")

    def _check_aborted(self, index: Path, base: int) -> None:
        if not index.exists():
            return
        for _, _, first, last, _ in self._entries(index, ABORTED_TXN):
            if not base <= last < self.log_end_offset or first > last:
                self._note(index, f"transaction from {first} to {last}: the segment is recovered")

    def _entries(self, file: Path, entry: struct.Struct) -> list[tuple[int, ...]]:
        data = file.read_bytes()
        if len(data) % entry.size:
            self._note(file, f"{len(data)} bytes are no whole number of entries")
        whole = len(data) // entry.size * entry.size
        entries = list(entry.iter_unpack(data[:whole]))
        # The index of an active segment is preallocated: zeros follow its entries.
        while entries and not any(entries[-1]) and not self.is_clean:
            entries.pop()
        return entries

    def _check_snapshots(self) -> None:
        """Snapshots inside a segment are left by every truncation, and deleted by the next start,
        which is no change of what the log says."""
        snapshots = {_base(file): file for file in self.path.glob("*.snapshot")}
        for offset, file in snapshots.items():
            if offset > self.log_end_offset:
                self._note(file, f"after the log's end {self.log_end_offset}, deleted")
            elif not _is_intact_snapshot(file.read_bytes()):
                self._note(file, "corrupt, deleted")
        if self.is_clean and snapshots and self.log_end_offset not in snapshots:
            self._note(self.path, f"no snapshot at {self.log_end_offset}: producers are replayed")

    def _check_epochs(self) -> None:
        file = self.path / "leader-epoch-checkpoint"
        if not file.exists():
            return
        entries = [tuple(map(int, line.split())) for line in file.read_text().splitlines()[2:]]
        for epoch, start in entries:
            if start > self.log_end_offset:
                self._note(file, f"epoch {epoch} from {start} on is after the log's end: removed")
        if any(old >= new for old, new in itertools.pairwise(entries)):
            self._note(file, f"epochs do not ascend: {entries}")

    def _note(self, file: Path, what: str) -> None:
        self.changes.append(f"{self.path.name}/{file.name}: {what}")


def changes_on_start(log_dir: Path, *, is_clean: bool | None = None) -> list[str]:
    """What a broker would change in a log directory. `is_clean` overrides the marker."""
    if is_clean is None:
        is_clean = (log_dir / CLEAN_SHUTDOWN).exists()
    starts = read_checkpoint(log_dir / LOG_STARTS)
    points = {name: read_checkpoint(log_dir / name) for name in CHECKPOINTS}
    changes = []
    for path in sorted(path for path in log_dir.iterdir() if path.is_dir()):
        if not re.fullmatch(r".+-\d+", path.name):
            changes.append(f"{path.name}: not a partition")
            continue
        recovery_point = points["recovery-point-offset-checkpoint"].get(path.name, 0)
        loaded = LoadedPartition(path, starts.get(path.name, 0), recovery_point, is_clean).load()
        changes += loaded.changes
        changes += [
            f"{path.name}: {what} {points[name][path.name]} is after the log's end"
            for name, what in CHECKPOINTS.items()
            if points[name].get(path.name, 0) > loaded.log_end_offset
        ]
    return changes


def read_checkpoint(file: Path) -> dict[str, int]:
    if not file.exists() or not file.stat().st_size:
        return {}
    version, count, *lines = file.read_text().splitlines()
    assert version == "0"
    assert int(count) == len(lines)
    found = [line.split() for line in lines]
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in found}


def _base(file: Path) -> int:
    return int(file.name.partition(".")[0])


def _is_intact_snapshot(data: bytes) -> bool:
    if len(data) < 10:
        return False
    version, crc = struct.unpack_from(">hI", data)
    return bool(version == 1 and crc == crc32c.crc32c(data[6:]))

"""What all processes of a run agree on: the log directories, their settings, the topics."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stratalog.log_dir import LogDir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.storage.disk import Disk

SEGMENT_BYTES: Final = 24_000
TIMEOUT_MS: Final = 1500
"""Of transactions: those that a killed writer leaves are aborted after so long."""

BROKER: Final[dict[str, object]] = {
    "auto.create.topics.enable": False,
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "log.flush.offset.checkpoint.interval.ms": 300,
    "log.flush.start.offset.checkpoint.interval.ms": 300,
    "log.index.size.max.bytes": 8000,
    "log.initial.task.delay.ms": 50,
    "log.retention.check.interval.ms": 200,
    "log.segment.bytes": SEGMENT_BYTES,
    "log.segment.delete.delay.ms": 300,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.segment.bytes": SEGMENT_BYTES,
}

_SMALL: Final = {"segment.bytes": SEGMENT_BYTES, "index.interval.bytes": 500}
_COMPACT: Final = {
    **_SMALL,
    "cleanup.policy": "compact",
    "delete.retention.ms": 500,
    "min.cleanable.dirty.ratio": 0.05,
}


@dataclass(frozen=True)
class Kind:
    """A topic: what may become of its records."""

    partitions: int
    settings: dict[str, object]

    @property
    def is_compacted(self) -> bool:
        return "compact" in str(self.settings.get("cleanup.policy", "delete"))

    @property
    def is_deleted(self) -> bool:
        """By size or time."""
        return "delete" in str(self.settings.get("cleanup.policy", "delete"))

    @property
    def retention_ms(self) -> int | None:
        value = self.settings.get("retention.ms")
        return value if isinstance(value, int) and value >= 0 else None

    @property
    def retention_bytes(self) -> int | None:
        value = self.settings.get("retention.bytes")
        return value if isinstance(value, int) else None


KINDS: Final = {
    "events": Kind(3, {**_SMALL, "retention.ms": -1, "retention.bytes": 150_000}),
    "timed": Kind(2, {**_SMALL, "retention.ms": 4000, "retention.bytes": 400_000}),
    "packed": Kind(1, {**_SMALL, "retention.bytes": 80_000, "compression.type": "lz4"}),
    "table": Kind(2, _COMPACT),
    "both": Kind(
        1,
        {**_COMPACT, "cleanup.policy": "compact,delete", "retention.bytes": 100_000},
    ),
    "temp": Kind(2, {**_SMALL, "retention.ms": -1, "retention.bytes": 100_000}),
}
"""By the first part of a topic's name. `temp-0`, `temp-1`, … come and go."""
LASTING: Final = tuple(name for name in KINDS if name != "temp")
PASSING: Final = ("temp-0", "temp-1", "temp-2")


def kind_of(topic: str) -> Kind:
    """By name."""
    return KINDS[topic.partition("-")[0]]


def now_ms() -> int:
    """The wall clock: staged files are known to be stale by it."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Place:
    """Where a run happens. Only `dirs` are the engine's."""

    work: Path
    dirs: tuple[Path, ...]
    seed: int

    @property
    def journals(self) -> Path:
        return self.work / "journals"

    @property
    def queries(self) -> Path:
        """What a streaming query keeps in its checkpoint."""
        return self.work / "queries"

    def open(self, disk: Disk | None = None, *, background: bool = True) -> LogDir:
        return LogDir.open(*self.dirs, config=BROKER, disk=disk, background=background)


class Journal:
    """What a process is about to do and has done. A line is there or not, whatever kills it."""

    def __init__(self, place: Place, process: str) -> None:
        self.process = process
        self.path = place.journals / f"{process}.jsonl"
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, **facts}, separators=(",", ":"))
        os.write(self._fd, line.encode() + b"\n")


class Complaints(logging.Handler):
    """What the engine could tell nobody but its log. Unless faults are planned, that is an error
    too many."""

    def __init__(self) -> None:
        super().__init__()
        self.first: str | None = None
        logger = logging.getLogger("stratalog")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and self.first is None:
            self.first = logging.Formatter().format(record)


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """What a process noted. The last line may be torn: then nothing came of what it says."""
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield json.loads(line)

"""Golden logs written once more: the batches of a case, as they were sent, and what to compare.

What a broker adds to a batch is undone here (offset, epoch, and under LogAppendTime the time), so
that a log can add it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.config import LogConfig
from stratalog.format.batch import BatchHeader, TimestampType
from stratalog.format.producer_snapshot import decode_snapshot
from stratalog.format.record import decode_records, seal_batch
from stratalog.log.producer_transitions import markers_in
from tests.golden.cases import GoldenCase, all_cases
from tests.log.building import batches_of

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.control import EndMarker

WALL_CLOCK_MS = 1_794_771_000_000
"""About when Kafka wrote the cases."""

DERIVED = (".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint")
OLD_FORMATS = ("v0-", "v1-", "real09-")


class Stored(NamedTuple):
    """One batch of a golden log."""

    raw: bytes
    first_offset: int
    next_offset: int

    @property
    def header(self) -> BatchHeader:
        """Of a magic-2 batch."""
        return BatchHeader.unpack(self.raw)

    @property
    def marker(self) -> EndMarker | None:
        header = self.header
        return markers_in(self.raw, [(0, header)]).get(header.base_offset)

    def sent(self) -> bytes:
        """What its producer had sent."""
        header = self.header._replace(base_offset=0, partition_leader_epoch=-1)
        payload = self.raw[61:]
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            times = [record.timestamp for record in decode_records(self.raw, 0, header)]
            plain = header._replace(attributes=header.attributes & ~0x08, max_timestamp=max(times))
            return seal_batch(plain, payload)
        return header.pack() + payload


class SteppingClock:
    """Says what it was told last."""

    def __init__(self, now_ms: int = WALL_CLOCK_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def partition_of(case: GoldenCase) -> Path:
    """As Kafka left it, after recovery where there was one."""
    return case.partition_dirs()[-1]


def stored_batches(partition: Path) -> list[Stored]:
    """In log order."""
    return [
        Stored(batch.raw, batch.first_offset, batch.next_offset)
        for path in sorted(partition.glob("*.log"))
        for batch in batches_of(path.read_bytes())
    ]


def first_base(partition: Path) -> int:
    return min(int(path.stem) for path in partition.glob("*.log"))


def config_of(case: GoldenCase) -> LogConfig:
    """The manifest's; the old formats tell none, but their files do: segments end before 3000
    bytes, and entries come after more than 149 and at most 162 bytes."""
    if case.name.startswith(("v0-", "v1-")):
        return LogConfig.parse({"segment.bytes": "3000", "index.interval.bytes": "150"})
    return LogConfig.parse(case.manifest["topic_config"])


def is_cleaned(case: GoldenCase) -> bool:
    return case.name.startswith("compact")


def is_old_format(case: GoldenCase) -> bool:
    return case.name.startswith(OLD_FORMATS)


def new_format_cases() -> list[GoldenCase]:
    """Those that a leader of today can have written, batch by batch."""
    return [case for case in all_cases() if not is_cleaned(case) and not is_old_format(case)]


def differences(made: Path, kafka: Path) -> dict[str, str]:
    """File names that are not the same on both sides, and how. Snapshots by content: their order
    is that of a hash map. `partition.metadata` belongs to the topic, not to the log."""
    names = {path.name for side in (made, kafka) for path in side.iterdir()}
    found = {}
    for name in sorted(names - {"partition.metadata"}):
        ours, theirs = made / name, kafka / name
        if not ours.exists() or not theirs.exists():
            found[name] = "only Kafka's" if theirs.exists() else "only ours"
        elif _content(ours) != _content(theirs):
            found[name] = f"{ours.stat().st_size} bytes, Kafka's {theirs.stat().st_size}"
    return found


def _content(path: Path) -> object:
    data = path.read_bytes()
    return frozenset(decode_snapshot(data)) if path.suffix == ".snapshot" else data

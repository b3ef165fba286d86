"""A stand-in for a running broker: it writes a golden directory again, one system call at a time.

Batches arrive in torn writes, indexes are preallocated and trimmed when a segment is rolled,
aborted transactions are indexed after their marker, old segments are deleted. Every `step` is one
change that another process could see. As a program it does so at full speed, with pauses:

    python -m tests.log.live_broker SOURCE TARGET SEED
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.format.txn_index import ENTRY_BYTES, AbortedTxn
from tests.log.broker_steps import append, delete_segment, fill_index, preallocate_indexes, purge
from tests.log.building import Batch, batches_of, log_name, segment_paths

if TYPE_CHECKING:
    from collections.abc import Iterator


class LiveBroker:
    """Go through `steps` to the end, or call `step` until it says that all is written."""

    def __init__(
        self, source: Path, path: Path, seed: int, *, segments_max: int | None = None
    ) -> None:
        self.path = path
        self.published_offset = 0
        """Log end offset: every batch below it is whole on disk."""
        self.begun_offset = 0
        """No batch above it has been begun."""
        self.deleted_offset = 0
        """Everything below it may be gone."""
        self._source = source
        self._rng = random.Random(seed)
        self._segments_max = segments_max
        self._steps = self.steps()
        path.mkdir(parents=True)
        (path / log_name(0)).touch()  # a log without a segment is none

    def step(self) -> bool:
        """One change; False when nothing is left to do."""
        return next(self._steps, "end") != "end"

    def steps(self) -> Iterator[None]:
        logs = segment_paths(self._source)
        for log in logs:
            base_offset = int(log.stem)
            (self.path / log.name).touch()
            yield
            yield from preallocate_indexes(self.path, base_offset)
            yield from self._write(log, base_offset)
            if log != logs[-1]:
                yield from self._roll(base_offset, logs)

    def _write(self, log: Path, base_offset: int) -> Iterator[None]:
        aborted = self._aborted(log)
        for batch in batches_of(log.read_bytes()):
            self.begun_offset = batch.next_offset
            yield from append(self.path, base_offset, batch.raw, self._rng)
            self.published_offset = batch.next_offset
            if (entry := aborted.get(batch.next_offset - 1)) is not None:
                with (self.path / f"{log.stem}.txnindex").open("ab") as index:
                    index.write(entry)
                yield

    def _aborted(self, log: Path) -> dict[int, bytes]:
        try:
            raw = log.with_suffix(".txnindex").read_bytes()
        except FileNotFoundError:
            return {}
        entries = [raw[at : at + ENTRY_BYTES] for at in range(0, len(raw), ENTRY_BYTES)]
        return {AbortedTxn.unpack(entry).last_offset: entry for entry in entries}

    def _roll(self, base_offset: int, logs: list[Path]) -> Iterator[None]:
        files = (
            self._source / log_name(base_offset, suffix) for suffix in (".index", ".timeindex")
        )
        entries = {file.suffix: file.read_bytes() for file in files if file.exists()}
        yield from fill_index(self.path, base_offset, entries)
        snapshot = self._source / f"{logs[logs.index(self._named(base_offset)) + 1].stem}.snapshot"
        if snapshot.exists():
            shutil.copyfile(snapshot, self.path / snapshot.name)
            yield
        live = segment_paths(self.path)
        if self._segments_max is not None and len(live) > self._segments_max:
            self.deleted_offset = int(live[1].stem)
            yield from delete_segment(self.path, int(live[0].stem))
        if self._rng.random() < 0.5:
            yield from purge(self.path)

    def _named(self, base_offset: int) -> Path:
        return self._source / log_name(base_offset)


def batches_in(directory: Path) -> list[Batch]:
    return [batch for log in segment_paths(directory) for batch in batches_of(log.read_bytes())]


def main(source: str, target: str, seed: str) -> None:
    rng = random.Random(seed)
    for _ in LiveBroker(Path(source), Path(target), int(seed), segments_max=3).steps():
        if rng.random() < 0.02:
            time.sleep(0.002)


if __name__ == "__main__":
    main(*sys.argv[1:])

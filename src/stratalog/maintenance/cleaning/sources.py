"""What a round reads: sealed segments, as values that do not change and can be sent elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.errors import CleaningAbortedError
from stratalog.storage.log_file import LogFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.batch_runs import BatchReader, BatchRun
    from stratalog.maintenance.cleaning.log_facts import SegmentFacts
    from stratalog.maintenance.cleaning.selection import Selection


@dataclass(frozen=True, slots=True)
class Source:
    """One segment below the bound of a round."""

    path: Path
    """Of the log file."""
    facts: SegmentFacts
    end_offset: int
    """Where the next segment begins, or the round ends."""
    aborted: tuple[AbortedTxn, ...]
    """The aborted transactions that touch it."""

    @property
    def base_offset(self) -> int:
        return self.facts.base_offset

    def runs(self, reader: BatchReader, start: int = 0) -> Iterator[BatchRun]:
        """Its batches from position `start` on."""
        try:
            file = LogFile(self.path)
        except FileNotFoundError:
            raise CleaningAbortedError(self.path, "it was deleted meanwhile") from None
        with file:
            if file.size_bytes != self.facts.size_bytes:
                raise CleaningAbortedError(self.path, "it was cut meanwhile")
            yield from reader.read(file, self.path, self.base_offset, start)


def sources_of(log: PartitionLog, selection: Selection) -> tuple[Source, ...]:
    """The segments that a round may rewrite, in order."""
    paths = {view.base_offset: view.path for view in log.segments}
    bases = [facts.base_offset for facts in selection.segments]
    ends = [*bases[1:], selection.first_uncleanable_offset]
    sources = []
    for facts, end_offset in zip(selection.segments, ends, strict=True):
        path = paths.get(facts.base_offset)
        if path is None:
            raise CleaningAbortedError(log.path, "segments were deleted meanwhile")
        aborted = log.aborted_transactions(facts.base_offset, end_offset)
        sources.append(Source(path, facts, end_offset, tuple(aborted)))
    return tuple(sources)

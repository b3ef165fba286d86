"""Which parts of which files a worker of an ingest reads, and as what.

Planned on the driver from names, sizes, footers and first bytes. Raises NeedsSparkError for what
workers cannot read by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.errors import ConfigError, NeedsSparkError
from stratalog.spark.jobs.ingest_inputs import FileSource, check_names, find_files, format_of
from stratalog.spark.jobs.line_fields import (
    EXPORTED_BYTES_MAX,
    FieldLines,
    LineUse,
    RecordLines,
    ValueLines,
    is_exported,
)
from stratalog.spark.jobs.parquet_rows import ColumnUse, RowGroups, plan_parquet
from stratalog.spark.jobs.running import GROUP_BYTES
from stratalog.spark.jobs.text_lines import TextRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stratalog.spark.jobs.ingest_inputs import InputFile

TASK_BYTES_MIN: Final = 4 << 20
"""So much is worth a task of its own, to keep all workers busy."""
PIECE_COST_BYTES: Final = 64 << 10
"""What it takes to open a file, in bytes it could read instead."""
Piece: TypeAlias = TextRange | RowGroups


@dataclass(frozen=True)
class IngestPlan:
    """What is read, and as what."""

    pieces: tuple[Piece, ...]
    """In the order in which the rows are to be in the logs."""
    columns: tuple[ColumnUse, ...] = ()
    """Of Parquet."""
    lines: LineUse = field(default_factory=ValueLines)
    """What lines of text become."""
    has_topic: bool = False
    """Whether rows, or their directories, say which topic they are of."""

    @property
    def topics(self) -> tuple[str, ...]:
        """That directories name."""
        return tuple(dict.fromkeys(topic for piece in self.pieces if (topic := topic_of(piece))))


class IngestTask(NamedTuple):
    """What one worker reads at once."""

    number: int
    pieces: tuple[Piece, ...]


def plan_ingest(source: FileSource) -> IngestPlan:
    """What workers are to read. Raises NeedsSparkError if that is not for them to do."""
    check_names(source.paths)
    chosen = source.format or format_of(source.paths)
    if source.options:
        raise NeedsSparkError("options of Spark's reader are given")
    files = find_files(source.paths)
    if chosen == "csv":
        raise NeedsSparkError("rows of CSV become JSON objects")
    if chosen == "parquet":
        parquet = plan_parquet(files, source.mapping)
        columns = tuple(
            use for use in parquet.columns if use.name != "partition" or source.keeps_partitions
        )
        return IngestPlan(parquet.pieces, columns, has_topic=parquet.has_topic)
    if chosen == "json" and source.format is None and not source.mapping.given:
        chosen = "records" if _are_exported(files) else chosen
    pieces = tuple(TextRange(file.path, 0, file.size_bytes) for file in files if file.size_bytes)
    use = _line_use(source, files, chosen)
    return IngestPlan(pieces, lines=use, has_topic=isinstance(use, RecordLines))


def _line_use(source: FileSource, files: Sequence[InputFile], chosen: str) -> LineUse:
    if source.mapping.given and chosen != "json":
        have = "fields of their own" if chosen == "records" else "no fields"
        raise ConfigError("key", f"lines of {chosen} have {have}; give the format json")
    packed = next((file.path for file in files if file.is_packed), None)
    if packed is not None and chosen == "records":
        raise ConfigError("format", f"{packed}: is packed; records are read from unpacked files")
    if packed is not None:
        raise NeedsSparkError(f"{packed}: is packed")
    if chosen == "records":
        return RecordLines(source.keeps_partitions, source.allows_missing)
    if source.mapping.given:
        return FieldLines(source.mapping, source.allows_missing)
    return ValueLines()


def _are_exported(files: Sequence[InputFile]) -> bool:
    """Whether files of JSON are those of an export: all of them that are not empty, or none."""
    found: dict[bool, str] = {}
    for file in files:
        if file.size_bytes:
            with Path(file.path).open("rb") as opened:
                found.setdefault(is_exported(opened.read(EXPORTED_BYTES_MAX)), file.path)
    if len(found) > 1:
        raise ConfigError(
            "format",
            f"{found[True]} has records as export writes them, {found[False]} has not; give the "
            "format records or json",
        )
    return True in found


def plan_tasks(pieces: Sequence[Piece], slots: int) -> tuple[IngestTask, ...]:
    """Shares of about equal size, in order; text is cut to measure, row groups stay whole."""
    total = sum(piece.size_bytes + PIECE_COST_BYTES for piece in pieces)
    count = _task_count(total, max(1, slots))
    step = max(1, -(-total // count))
    shares: dict[int, list[Piece]] = {}
    at = 0
    for piece in pieces:
        at += PIECE_COST_BYTES
        for part in _cut(piece, at, step):
            middle = at + part.size_bytes // 2
            shares.setdefault(min(middle // step, count - 1), []).append(part)
            at += part.size_bytes
    ordered = [tuple(_joined(shares[share])) for share in sorted(shares)]
    return tuple(IngestTask(number, parts) for number, parts in enumerate(ordered))


def _task_count(total_bytes: int, slots: int) -> int:
    """As many tasks for every slot, none of them too large or not worth it."""
    rounds = -(-total_bytes // (GROUP_BYTES * slots))
    return max(1, min(rounds * slots, -(-total_bytes // TASK_BYTES_MIN)))


def _cut(piece: Piece, at: int, step: int) -> Iterator[Piece]:
    """Where the shares are cut that are `step` long, if the piece begins at `at`."""
    if isinstance(piece, RowGroups):
        yield piece
        return
    start = piece.start
    while start < piece.end:
        here = at + start - piece.start
        end = min(piece.end, start + step - here % step)
        yield piece._replace(start=start, end=end)
        start = end


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Row groups of one file together, so that it is opened once."""
    last: Piece | None = None
    for piece in pieces:
        if isinstance(last, RowGroups) and isinstance(piece, RowGroups) and last.path == piece.path:
            size_bytes = last.size_bytes + piece.size_bytes
            last = last._replace(numbers=last.numbers + piece.numbers, size_bytes=size_bytes)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def topic_of(piece: Piece) -> str | None:
    """Of all rows, if the directory says it."""
    return piece.topic if isinstance(piece, RowGroups) else None

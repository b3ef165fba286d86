"""The contents of a file of any kind as values, filtered and limited.

Kafka chooses the kind by what follows the last dot of a name, and so does this. Indexes and
snapshots are read whole (10 MiB by default, never more than the file), logs in windows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from stratalog.dump.index_values import LogHeaders, SegmentIndexes
from stratalog.errors import (
    CorruptError,
    InvalidNameError,
    LimitExceededError,
    StratalogError,
)
from stratalog.format import offset_index, time_index
from stratalog.format.java_text import parse_int
from stratalog.format.offset_index import OffsetEntry
from stratalog.format.snapshot import ProducerEntry, decode_snapshot
from stratalog.format.time_index import TimeEntry
from stratalog.format.txn_index import AbortedTxn, read_entries
from stratalog.storage.log_file import LogFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stratalog.dump.log_values import DumpOptions
    from stratalog.dump.report import DumpReport

LOG: Final = ".log"
CHECKPOINT: Final = ".checkpoint"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
KINDS: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT, CHECKPOINT)
LOG_KINDS: Final = frozenset({LOG, CHECKPOINT})

WHOLE_FILE_BYTES_MAX: Final = 1 << 30  # far above any index or snapshot that Kafka writes

EntryValue: TypeAlias = OffsetEntry | TimeEntry | ProducerEntry | AbortedTxn


def kind_of(path: str) -> str | None:
    """What follows the last dot of the name, dot included, if it is a kind that can be dumped."""
    name = path.rpartition("/")[2]
    suffix = name[name.rfind(".") :] if "." in name else ""
    return suffix if suffix in KINDS else None


def base_offset_of(path: str) -> int:
    """The number before the first dot of a segment file's name."""
    name = path.rpartition("/")[2]
    offset = parse_int(name.partition(".")[0], bits=64)
    if offset is None:
        raise InvalidNameError(f"{name!r} does not begin with an offset")
    return offset


def is_done(options: DumpOptions, report: DumpReport) -> bool:
    """Whether the limit of what to show is reached."""
    return options.limit is not None and report.shown >= options.limit


def describe_error(path: str, error: StratalogError) -> str:
    """An error of the format layer, which knows no paths, told for a file."""
    if isinstance(error, CorruptError):
        return f"{path} at byte {error.position}: {error.reason}"
    return f"{path}: {error}"


def entries_of(path: str, options: DumpOptions, report: DumpReport) -> Iterator[EntryValue]:
    """The entries of an index, transaction index or snapshot."""
    for entry in _entries_of(path, options, report):
        if options.filters.accepts_entry(entry):
            report.shown += 1
            yield entry
            if is_done(options, report):
                return


def _entries_of(path: str, options: DumpOptions, report: DumpReport) -> Iterable[EntryValue]:
    kind = kind_of(path)
    if kind == SNAPSHOT:
        return decode_snapshot(read_whole(path))
    if kind == TXN_INDEX:
        return read_entries(read_whole(path))
    return _index_entries(path, options, report)


def _index_entries(
    path: str, options: DumpOptions, report: DumpReport
) -> Iterator[OffsetEntry | TimeEntry]:
    try:
        log = LogFile(Path(sibling_of(path, LOG)))
    except FileNotFoundError:
        report.problem(f"{path}: there is no log beside it, so its entries are not checked")
        yield from _index_entries_of(path, None, options, report)
        return
    with log:
        yield from _index_entries_of(path, LogHeaders(log), options, report)


def _index_entries_of(
    path: str, log: LogHeaders | None, options: DumpOptions, report: DumpReport
) -> Iterator[OffsetEntry | TimeEntry]:
    base_offset, data = base_offset_of(path), read_whole(path)
    if kind_of(path) == OFFSET_INDEX:
        indexes = SegmentIndexes(base_offset, log, offset_index=data)
        return indexes.offset_entries(path, options.max_message_bytes, report)
    offsets_path = sibling_of(path, OFFSET_INDEX)
    offsets = read_whole(offsets_path) if Path(offsets_path).is_file() else b""
    indexes = SegmentIndexes(base_offset, log, offset_index=offsets, time_index=data)
    return indexes.time_entries(path, report)


def check_sanity(path: str) -> None:
    """Kafka's quick check of an index: raise if it fails."""
    check = offset_index if kind_of(path) == OFFSET_INDEX else time_index
    check.check_sanity(read_whole(path), base_offset_of(path))


def sibling_of(path: str, kind: str) -> str:
    """The file of another kind that belongs to the same segment."""
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}{name.partition('.')[0]}{kind}"


def read_whole(path: str) -> bytes:
    with LogFile(Path(path)) as file:
        size = file.size_bytes
        if size > WHOLE_FILE_BYTES_MAX:
            raise LimitExceededError(f"{size} bytes are too many for a file of this kind")
        return file.read(0, size)

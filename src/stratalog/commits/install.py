"""Installs the staged runs of a decided commit into one partition's log, or resumes that.

`resume` finds out how much of the runs is in the log: nothing, all, or the first part, up to where
it was interrupted. The log itself is the proof: a batch at its planned offset with the same size,
number of records and CRC. Runs are installed in order, so such a batch proves that all before it
were installed, even those that retention has deleted since. If nothing is proven (a broker has
appended, and its retention has deleted everything at the planned offsets), the rest is appended at
the log's end: readers may get records twice then, but none is lost. Stratalog's own retention and
compaction keep what proves it (`PartitionSlot.set_pending_commit`).

Every step can be repeated, so it may be interrupted at any time.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stratalog.commits.staged import STALE_MS
from stratalog.errors import CommitError, CorruptBatchError, CorruptError
from stratalog.format.batch import HEADER_BYTES, PREFIX_BYTES, BatchHeader
from stratalog.log.offset_assignment import FileBatches, checked_header
from stratalog.storage.disk import storage_error, storage_errors
from stratalog.storage.log_file import LocalFile, LogFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from stratalog.commits.journal import JournalRun, PartitionCommit
    from stratalog.log.partition_log import PartitionLog

CHUNK_BYTES: Final = 1 << 20
SEGMENT_BYTES_MIN: Final = 16 << 20
"""A run of this size is worth a segment of its own."""
_LENGTH: Final = struct.Struct(">i")

# What to do about a staged file that is missing, before the decision and after it.
_MISSING: Final = (
    "this staged file is missing; tasks and driver must share the storage of the log directory, "
    f"and commit within {STALE_MS // 3_600_000} hours. Nothing was written"
)
_MISSING_THOUGH_DECIDED: Final = (
    "a staged file of a decided commit is missing, and its records are not in the log; restore the "
    "file, or remove the journal (stratalog-commit.json) to drop the records that are not "
    "installed yet, and write them again"
)


def check_run(path: Path, run: JournalRun) -> FileBatches:
    """Read a staged file before the decision. Raises unless it is complete, readable and not
    corrupt."""
    records, batches = 0, FileBatches()
    with open_run(path, run, _MISSING) as file:
        if file.size_bytes != run.size_bytes:
            reason = (
                f"the staged file has {file.size_bytes} bytes, but {run.size_bytes} were staged"
            )
            raise CorruptError(reason, path=path)
        for chunk_at, chunk in complete_batches(file, 0, run.size_bytes):
            at = 0
            while at < len(chunk):
                try:
                    header = checked_header(chunk, at)
                except CorruptBatchError as error:
                    raise error.located(path, buffer_start=chunk_at) from None
                at += header.size_bytes
                records += header.record_count
                batches.add(header)
    if records != run.record_count:
        reason = f"the staged file has {records} records, but {run.record_count} were staged"
        raise CorruptError(reason, path=path)
    return batches


def resume(log: PartitionLog, part: PartitionCommit) -> PartitionCommit:
    """The part of the runs that is not in the log yet, with offsets from the log end on."""
    found = _records_found(log, part)
    skip_records = part.skip_records + found
    return replace(part, start_offset=log.log_end_offset, skip_records=skip_records)


def is_as_planned(part: PartitionCommit, left: PartitionCommit) -> bool:
    """Whether `left`, which `resume` has returned, has the offsets that `part` planned."""
    return part.start_offset - part.skip_records == left.start_offset - left.skip_records


def install_partition(
    log: PartitionLog, part: PartitionCommit, checked: Mapping[Path, FileBatches]
) -> None:
    """Append the rest of the runs to the log, and make it durable.

    `part` is what `resume` has returned. Files that were just `checked` may become segments as they
    are.
    """
    for run, skip in _runs_left(part):
        path = log.path / run.name
        batches = checked.get(path)
        if skip or batches is None or not log.install_file(path, batches):
            _install_run(log, run, skip)
    if log.log_end_offset != part.end_offset:
        raise CommitError(
            f"{log.path}: ends at offset {log.log_end_offset} after a commit that should end at "
            f"{part.end_offset}; its staged files differ from the journal"
        )
    log.flush()


def _runs_left(part: PartitionCommit) -> Iterator[tuple[JournalRun, int]]:
    """The runs that are not skipped, and how many records to skip of each."""
    skip = part.skip_records
    for run in part.runs:
        if skip < run.record_count:
            yield run, skip
        skip = max(0, skip - run.record_count)


def _install_run(log: PartitionLog, run: JournalRun, skip: int) -> None:
    path = log.path / run.name
    with open_run(path, run, _MISSING_THOUGH_DECIDED) as file:
        position = _position_of(file, run, skip) if skip else 0
        for chunk_at, chunk in complete_batches(file, position, run.size_bytes):
            try:
                log.install(chunk)
            except CorruptBatchError as error:
                raise error.located(path, buffer_start=chunk_at) from None


def open_run(path: Path, run: JournalRun, if_missing: str) -> LogFile:
    """Open a staged file. It may be longer than it was staged, if it has become a segment of the
    log and a broker has appended to it.

    Raises CommitError if it is missing, which says `if_missing`; StorageError if it cannot be
    opened.
    """
    try:
        file = LocalFile(path)
    except FileNotFoundError:
        raise CommitError(f"{path}: {if_missing}") from None
    except OSError as error:
        raise storage_error(error, "read", path) from error
    size_bytes = file.size_bytes
    if size_bytes < run.size_bytes:
        file.close()
        reason = f"{size_bytes} bytes, but {run.size_bytes} were staged"
        raise CorruptError(reason, path=path)
    return file


def complete_batches(file: LogFile, position: int, end: int) -> Iterator[tuple[int, memoryview]]:
    """Chunks of complete batches, of about `CHUNK_BYTES` each, with their positions.

    They share one buffer: each is overwritten by the next.
    """
    buffer = bytearray(min(CHUNK_BYTES, end - position))
    while position < end:
        window = memoryview(buffer)[: end - position]
        with storage_errors("read", file.path):
            count = file.read_into(window, position)
        if count < len(window):
            raise CorruptBatchError("the file ends too early", position=position, path=file.path)
        used, next_bytes = _complete_bytes(window)
        if used:
            yield position, window[:used]
            position += used
        elif len(window) < next_bytes <= end - position:
            buffer = bytearray(next_bytes)
        else:
            raise CorruptBatchError(
                "no complete batch starts here", position=position, path=file.path
            )


def _complete_bytes(window: memoryview) -> tuple[int, int]:
    """The size of the complete batches, and the size of the batch after them."""
    at, size_bytes = 0, 0
    while at + PREFIX_BYTES <= len(window):
        (length,) = _LENGTH.unpack_from(window, at + 8)
        size_bytes = PREFIX_BYTES + length
        if length < 0 or at + size_bytes > len(window):
            break
        at += size_bytes
    return at, size_bytes


def _position_of(file: LogFile, run: JournalRun, record: int) -> int:
    """The position of the batch whose first record is number `record` of the run."""
    for position, header in _headers(file, run):
        if record <= 0:
            return position if not record else run.size_bytes
        record -= header.record_count
    return run.size_bytes


def _headers(file: LogFile, run: JournalRun) -> Iterator[tuple[int, BatchHeader]]:
    position = 0
    while position < run.size_bytes:
        with storage_errors("read", file.path):
            data = file.read(position, HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            return
        header = BatchHeader.unpack(data)
        if header.size_bytes < HEADER_BYTES:
            return
        yield position, header
        position += header.size_bytes


def _records_found(log: PartitionLog, part: PartitionCommit) -> int:
    """How many records of the runs, from `skip_records` on, are proven to be in the log."""
    if log.log_end_offset <= part.start_offset:
        return 0
    placed = _batches_from(log, part.start_offset)
    there = next(placed, None)
    found, offset = 0, part.start_offset
    for staged in _staged_headers(log.path, part):
        while there is not None and there.base_offset < offset:
            there = next(placed, None)
        if there is None:
            break
        if _is_same(staged, there, offset):
            found = offset + staged.record_count - part.start_offset
        offset += staged.record_count
    return found


def _staged_headers(directory: Path, part: PartitionCommit) -> Iterator[BatchHeader]:
    """The headers of all batches that are not skipped, in order."""
    for run, skipped in _runs_left(part):
        skip = skipped
        with open_run(directory / run.name, run, _MISSING_THOUGH_DECIDED) as file:
            for _, header in _headers(file, run):
                if skip > 0:
                    skip -= header.record_count
                else:
                    yield header


def _is_same(staged: BatchHeader, there: BatchHeader, offset: int) -> bool:
    return (
        there.base_offset == offset
        and there.crc == staged.crc
        and there.batch_length == staged.batch_length
        and there.record_count == staged.record_count
    )


def _batches_from(log: PartitionLog, offset: int) -> Iterator[BatchHeader]:
    for segment in log.maintenance.segments:
        if segment.next_offset > offset:
            view = segment.view()
            for _, header in view.walk_headers(segment.seek(offset).position):
                yield header

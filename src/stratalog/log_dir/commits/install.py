"""The runs of a decided commit go into one partition's log, and if need be go on going.

`resume` finds out how much of them the log has: nothing, all, or the first part, up to where a
crash came. It compares batches by size and CRC, so it also sees where a broker that was started in
between has appended records of others; the rest of the runs then goes behind those. What retention
has deleted since counts as installed.

Each step may be repeated, so it does not matter when it is interrupted.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stratalog.errors import CommitError, CorruptBatchError, CorruptError
from stratalog.format.batch import HEADER_BYTES, PREFIX_BYTES, BatchHeader
from stratalog.storage.log_file import LogFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.log_dir.commits.journal import JournalRun, PartitionCommit

CHUNK_BYTES: Final = 1 << 20
_LENGTH: Final = struct.Struct(">i")


def resume(log: PartitionLog, part: PartitionCommit) -> PartitionCommit:
    """What is left to do: `part` itself, unless the log does not go on as it was planned."""
    end = log.log_end_offset
    if end <= part.start_offset:
        return part if end == part.start_offset else replace(part, start_offset=end)
    found = _records_found(log, part)
    if part.start_offset + found == end:
        return part
    return replace(part, start_offset=end, skip_records=part.skip_records + found)


def install_partition(log: PartitionLog, part: PartitionCommit) -> None:
    """Append what the log does not have yet of the runs, and make it durable.

    `part` is as `resume` has left it.
    """
    skip = part.skip_records + log.log_end_offset - part.start_offset
    for run in part.runs:
        if skip >= run.record_count:
            skip -= run.record_count
            continue
        _install_run(log, run, skip)
        skip = 0
    if log.log_end_offset != part.end_offset:
        raise CommitError(
            f"{log.path}: ends at offset {log.log_end_offset} after a commit that was to end at "
            f"{part.end_offset}; its staged runs are not what the journal says"
        )
    log.flush()


def _install_run(log: PartitionLog, run: JournalRun, skip: int) -> None:
    path = log.path / run.name
    try:
        with open_run(path, run) as file:
            position = 0
            if skip:
                position = _position_of(file, run, skip)
            for chunk_at, chunk in whole_batches(file, position, run.size_bytes):
                try:
                    log.install(chunk)
                except CorruptBatchError as error:
                    raise error.located(path, buffer_start=chunk_at) from None
    except FileNotFoundError:
        raise CommitError(
            f"{path}: a staged run of a commit that was decided is gone; restore it, or remove the "
            "journal to give up what is not installed yet"
        ) from None


def open_run(path: Path, run: JournalRun) -> LogFile:
    """A staged file, as long as it was when it was staged. Raises FileNotFoundError."""
    file = LogFile(path)
    if file.size_bytes != run.size_bytes:
        reason = f"{file.size_bytes} bytes, of {run.size_bytes} that were staged"
        raise CorruptError(reason, path=path)
    return file


def whole_batches(file: LogFile, position: int, end: int) -> Iterator[tuple[int, memoryview]]:
    """Parts of a file that hold whole batches, about `CHUNK_BYTES` each, with their positions.

    They lie in the same memory: each is gone when the next is asked for.
    """
    buffer = bytearray(min(CHUNK_BYTES, end - position))
    while position < end:
        window = memoryview(buffer)[: end - position]
        if file.read_into(window, position) < len(window):
            raise CorruptBatchError("the file ends too early", position=position, path=file.path)
        used, due = _whole_bytes(window)
        if used:
            yield position, window[:used]
            position += used
        elif len(window) < due <= end - position:
            buffer = bytearray(due)
        else:
            raise CorruptBatchError("no whole batch begins here", position=position, path=file.path)


def _whole_bytes(window: memoryview) -> tuple[int, int]:
    """How many bytes are whole batches, and how large the batch behind them is."""
    at, size_bytes = 0, 0
    while at + PREFIX_BYTES <= len(window):
        (length,) = _LENGTH.unpack_from(window, at + 8)
        size_bytes = PREFIX_BYTES + length
        if length < 0 or at + size_bytes > len(window):
            break
        at += size_bytes
    return at, size_bytes


def _position_of(file: LogFile, run: JournalRun, record: int) -> int:
    """Where the batch begins whose first record is number `record` of the run."""
    for position, header in _headers(file, run):
        if record <= 0:
            return position if not record else run.size_bytes
        record -= header.record_count
    return run.size_bytes


def _headers(file: LogFile, run: JournalRun) -> Iterator[tuple[int, BatchHeader]]:
    position = 0
    while position < run.size_bytes:
        data = file.read(position, HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            return
        header = BatchHeader.unpack(data)
        if header.size_bytes < HEADER_BYTES:
            return
        yield position, header
        position += header.size_bytes


def _records_found(log: PartitionLog, part: PartitionCommit) -> int:
    """How many records of the runs are in the log from the planned offset on."""
    offset, skip = part.start_offset, part.skip_records
    for run in part.runs:
        if skip >= run.record_count:
            skip -= run.record_count
            continue
        found = _records_of_run(log, run, skip, offset)
        offset += found
        if found < run.record_count - skip:
            break
        skip = 0
    return offset - part.start_offset


def _records_of_run(log: PartitionLog, run: JournalRun, skip: int, offset: int) -> int:
    """How many records of one run the log has from `offset` on."""
    try:
        file = open_run(log.path / run.name, run)
    except FileNotFoundError:  # it has become a segment, or was removed when all was durable
        return max(0, min(run.record_count - skip, log.log_end_offset - offset))
    with file:
        placed = _batches_from(log, offset)
        found = 0
        for _, staged in _headers(file, run):
            if skip > 0:
                skip -= staged.record_count
                continue
            if offset + found >= log.segments.bases[0]:
                there = next(placed, None)
                if there is None or not _is_same(staged, there, offset + found):
                    break
            found += staged.record_count
    return found


def _is_same(staged: BatchHeader, there: BatchHeader, offset: int) -> bool:
    return (
        there.base_offset == offset
        and there.crc == staged.crc
        and there.batch_length == staged.batch_length
        and there.record_count == staged.record_count
    )


def _batches_from(log: PartitionLog, offset: int) -> Iterator[BatchHeader]:
    for segment in log.writable_segments:
        if segment.next_offset > offset:
            view = segment.view()
            for _, header in view.walk_headers(segment.seek(offset).position):
                yield header

"""A file of any kind as blocks of text: byte for byte what Kafka's tool prints for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.dump import text
from stratalog.dump.log_values import DumpedBatch, LogDump
from stratalog.dump.values import (
    LOG,
    LOG_KINDS,
    OFFSET_INDEX,
    TIME_INDEX,
    base_offset_of,
    check_sanity,
    describe_error,
    entries_of,
    is_done,
    kind_of,
)
from stratalog.errors import CorruptError, InvalidNameError, StratalogError
from stratalog.format import offset_index
from stratalog.format.names import FileKind, parse_partition_file
from stratalog.storage.log_file import LogFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stratalog.dump.log_values import Dumped, DumpedRecord, DumpOptions
    from stratalog.dump.report import DumpReport

BULK_LINES_MIN: Final = 50_000
_BLOCK_LINES: Final = 512
_BOOTSTRAP_NAME: Final = "bootstrap.checkpoint"


def dump_text(path: str, options: DumpOptions, report: DumpReport) -> Iterator[bytes]:
    """Blocks of whole lines. Whatever is wrong with the file goes into the report.

    `path` is shown as it is given; `targets.java_path` makes it what Java would show.
    """
    if is_done(options, report):
        return
    yield _encoded([f"Dumping {path}"])
    kind = kind_of(path)
    if kind is None:
        report.remark(f"Ignoring unknown file {path}")
        return
    try:
        if kind in LOG_KINDS:
            yield from _log_blocks(path, options, report)
        else:
            yield from _blocks(_entry_lines(path, kind, options, report))
    except StratalogError as error:
        report.problem(describe_error(path, error))
    except OSError as error:
        report.problem(f"{path}: {error.strerror}")


def _encoded(lines: Iterable[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def _blocks(lines: Iterable[str]) -> Iterator[bytes]:
    """Lines in blocks; those before an error are handed over before it is raised."""
    block: list[str] = []
    try:
        for line in lines:
            block.append(line)
            if len(block) == _BLOCK_LINES:
                yield _encoded(block)
                block = []
    except (StratalogError, OSError):
        if block:
            yield _encoded(block)
        raise
    if block:
        yield _encoded(block)


def _title(path: str) -> str:
    if kind_of(path) == LOG:
        return f"Log starting offset: {base_offset_of(path)}"
    name = path.rpartition("/")[2]
    if name == _BOOTSTRAP_NAME:
        return "KRaft bootstrap snapshot"
    parsed = parse_partition_file(name)
    if parsed is None or parsed.kind is not FileKind.METADATA_SNAPSHOT:
        raise InvalidNameError(f"{name!r} is not the name of a metadata snapshot")
    return f"Snapshot end offset: {parsed.base_offset}, epoch: {parsed.epoch}"


def _log_blocks(path: str, options: DumpOptions, report: DumpReport) -> Iterator[bytes]:
    yield _encoded([*options.notices, _title(path)])
    with LogFile(Path(path)) as file:
        walk = LogDump(file, path, options, report)

        def show(values: Iterable[Dumped]) -> Iterator[bytes]:
            return _blocks(_log_lines(values, path, options, report))

        if _is_bulk(walk, options):
            from stratalog.dump.bulk import BulkDump  # noqa: PLC0415  # compiled kernels

            yield from BulkDump(walk, options, report, show).blocks()
        else:
            yield from show(walk.values())
        if options.is_whole and walk.position < walk.end and not is_done(options, report):
            size, name = walk.end - walk.position, path.rpartition("/")[2]
            yield _encoded([f"Found {size} invalid bytes at the end of {name}"])


def _is_bulk(walk: LogDump, options: DumpOptions) -> bool:
    """Whether there is enough to show for compiled kernels to pay off, loading included."""
    if options.print_data and not options.decoder.is_plain:
        return False
    if options.is_bulk is not None:
        return options.is_bulk
    return walk.estimate_lines() >= BULK_LINES_MIN


def _log_lines(
    values: Iterable[Dumped], path: str, options: DumpOptions, report: DumpReport
) -> Iterator[str]:
    for seen in values:
        if isinstance(seen, DumpedBatch):
            yield text.batch_line(seen)
        else:
            yield _record_line(seen, path, options, report)
        if is_done(options, report):
            return


def _record_line(seen: DumpedRecord, path: str, options: DumpOptions, report: DumpReport) -> str:
    try:
        return text.record_line(seen, options)
    except StratalogError as error:
        reason = error.reason if isinstance(error, CorruptError) else str(error)
        report.problem(f"{path} at byte {seen.batch.position}: {reason}")
        return f"| offset: {seen.record.offset}"


def _entry_lines(path: str, kind: str, options: DumpOptions, report: DumpReport) -> Iterator[str]:
    is_index = kind in {OFFSET_INDEX, TIME_INDEX}
    if kind == OFFSET_INDEX and Path(path).stat().st_size < offset_index.ENTRY_BYTES:
        yield f"{path} is empty."
    elif is_index and options.index_sanity_check:
        check_sanity(path)
        yield f"{path} passed sanity check."
    else:
        for entry in entries_of(path, options, report):
            if not (is_index and options.verify_index_only):
                yield text.entry_line(entry)

"""A segment that cleaning writes: `.cleaned` files, complete and durable before they count.

Its indexes follow the rule of appending: an entry at a batch once more than `index.interval.bytes`
precede it since the last one. Kafka indexes a cleaned segment by what it happened to read at a
time, at most one entry for 256 KiB; lookups in ours need not walk that far.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.errors import OffsetOverflowError, StorageError
from stratalog.format.index_rules import IndexBuilder
from stratalog.format.index_table import add_batches
from stratalog.format.names import FileKind, FileState, segment_file_name
from stratalog.format.offset_index import ENTRY_BYTES, RELATIVE_OFFSET_MAX
from stratalog.storage.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.format.buffers import Buffer
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.maintenance.cleaning.rewriting import Written
    from stratalog.storage.disk import Disk

_KINDS = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)


class CleanedSegment:
    """Written once, from front to back; then `finish` or `discard` it."""

    def __init__(self, disk: Disk, directory: Path, base_offset: int, config: LogConfig) -> None:
        self._disk = disk
        self._directory = directory
        self._base_offset = base_offset
        self._config = config
        self._aborted: list[AbortedTxn] = []
        self._indexes = IndexBuilder(base_offset, config.index_interval_bytes)
        self._remove()
        self._log = disk.open_append(self._path(FileKind.LOG), is_new=True)
        self._thread = ThreadPoolExecutor(1, "write-behind")
        self._writing: Future[None] | None = None

    def append(self, written: Written) -> None:
        """Write batches. They must stay as they are until `wait` or the next call returns: packing
        and writing goes on behind the caller's back."""
        self.wait()
        last_offset = int(written.rows["last_offset"][-1])
        if last_offset - self._base_offset > RELATIVE_OFFSET_MAX:
            raise OffsetOverflowError(last_offset, base_offset=self._base_offset)
        self._writing = self._thread.submit(self._write_batches, written)

    def wait(self) -> None:
        """Return when all that was appended is in the file. Raises StorageError if it is not."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write_batches(self, written: Written) -> None:
        packed = written.packed()
        add_batches(self._indexes, packed.rows, self._log.size_bytes)
        self._log.write(packed.data)

    def append_aborted(self, txns: Iterable[AbortedTxn]) -> None:
        """Transactions whose marker was just written."""
        self._aborted += txns

    def finish(self, mtime_ms: int) -> Segment:
        """The segment, durable but for its names, and as old as what it stands for."""
        self.wait()
        self._thread.shutdown()
        indexes, config = self._indexes, self._config
        indexes.finish()
        self._log.fsync()
        self._log.close()
        # A sealed index may be shorter than the rule allows: it is sparse anyway.
        bytes_max = config.segment_index_bytes // ENTRY_BYTES * ENTRY_BYTES
        self._write(FileKind.OFFSET_INDEX, indexes.offset_index[:bytes_max], mtime_ms)
        self._write(FileKind.TIME_INDEX, indexes.time_index, mtime_ms)
        if self._aborted:
            entries = b"".join(txn.pack() for txn in self._aborted)
            self._write(FileKind.TXN_INDEX, entries, mtime_ms)
        path = self._path(FileKind.LOG)
        self._disk.set_mtime_ms(path, mtime_ms)
        return Segment(self._disk, path, self._base_offset, self._log.size_bytes, config)

    def discard(self) -> None:
        """Remove what was written. Never raises: what stays, the next opening removes."""
        self._thread.shutdown()
        with suppress(StorageError):
            self._log.close()
            self._remove()

    def _write(self, kind: FileKind, data: Buffer, mtime_ms: int) -> None:
        path = self._path(kind)
        self._disk.write_file(path, data)
        self._disk.set_mtime_ms(path, mtime_ms)

    def _remove(self) -> None:
        for kind in _KINDS:
            self._disk.unlink(self._path(kind), missing_ok=True)

    def _path(self, kind: FileKind) -> Path:
        return self._directory / segment_file_name(self._base_offset, kind, FileState.CLEANED)

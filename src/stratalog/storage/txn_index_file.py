"""The transaction index of a segment, as its only writer sees it.

Aborts are rare and the file is small: it is opened for each entry and read as a whole. It exists
only while it has entries.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.format import txn_index
from stratalog.format.txn_index import ENTRY_BYTES, AbortedTxn

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.txn_index import AbortedTxns
    from stratalog.storage.disk import Disk


class TxnIndexFile:
    """`.txnindex`: the aborted transactions whose marker lies in the segment."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk

    def read(self) -> bytes:
        """The whole entries; empty when there is no file."""
        with suppress(FileNotFoundError):
            data = self._disk.read_bytes(self.path)
            return data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
        return b""

    def collect(self, from_offset: int, to_offset: int) -> AbortedTxns:
        """The aborted transactions that touch [`from_offset`, `to_offset`)."""
        return txn_index.collect_aborted(self.read(), from_offset, to_offset)

    def append(self, txn: AbortedTxn) -> None:
        """Markers come in log order, so a last offset that does not grow is refused."""
        data = self.read()
        if data:
            last = AbortedTxn.unpack(data, len(data) - ENTRY_BYTES)
            if txn.last_offset <= last.last_offset:
                raise ValueError(f"offset {txn.last_offset} is not above {last.last_offset}")
        with self._disk.open_append(self.path, size_bytes=len(data)) as file:
            file.write(txn.pack())

    def truncate_to(self, offset: int) -> None:
        """Keep the transactions whose marker lies below `offset`."""
        data = self.read()
        keep_bytes = txn_index.entries_below(data, offset) * ENTRY_BYTES
        if keep_bytes == 0:
            self.delete()
        elif keep_bytes < len(data):
            self._disk.truncate(self.path, keep_bytes)

    def flush(self) -> None:
        if self._disk.exists(self.path):
            self._disk.fsync(self.path)

    def delete(self) -> None:
        self._disk.unlink(self.path, missing_ok=True)

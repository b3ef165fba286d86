"""Headers of whole ranges of batches, as one numpy table: what walks over large logs work on.

A row is one batch, or one legacy message with -1 for what its header does not tell (a compressed
legacy set tells neither its first offset nor its count). Names and meaning are `BatchHeader`'s.

Importing this module loads compiled kernels; import it where many batches are read.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from stratalog.errors import CorruptBatchError
from stratalog.format.batch import MAGIC_2, MAGIC_AT
from stratalog.format.kernels import crc, scan
from stratalog.format.kernels.layout import BATCH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stratalog.format.buffers import Buffer

ROWS_MAX: Final = 1 << 62
_FIRST_ROWS = 1024


class Stop(enum.Enum):
    """Why a walk over batches ended."""

    END = "end of the bytes"
    PARTIAL = "the last batch is not whole"
    CORRUPT = "no batch can start here"
    FULL = "as many batches as were asked for"


@dataclass(frozen=True)
class BatchTable:
    """Batches in file order, and why there are no more."""

    rows: NDArray[Any]
    """A structured array; `table["base_offset"]` is a column."""
    end: int
    """The position after the last batch: where the walk stopped."""
    stop: Stop
    reason: str = ""
    """What is wrong at `end`, when the walk stopped at damage."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.rows[column]

    def select(self, which: NDArray[np.bool_] | slice) -> BatchTable:
        """Only the rows under a mask or slice."""
        return replace(self, rows=np.ascontiguousarray(self.rows[which]))

    def raise_if_corrupt(self) -> None:
        """Raise for the damage the walk stopped at, if it did."""
        if self.stop is Stop.CORRUPT:
            raise CorruptBatchError(self.reason, position=self.end)


def scan_batches(
    buf: Buffer, start: int = 0, end: int | None = None, *, batches_max: int = ROWS_MAX
) -> BatchTable:
    """Walk the batches of `buf` from `start` on, as far as they are whole and their lengths make
    sense. Offsets, counts and CRCs are not checked here.
    """
    stop_at = len(buf) if end is None else min(end, len(buf))
    memory = pa.py_buffer(buf)
    parts: list[NDArray[Any]] = []
    at, why, count = max(start, 0), scan.FULL, 0
    while why == scan.FULL and count < batches_max:
        rows = np.empty(min(max(_FIRST_ROWS, count), batches_max - count), BATCH)
        found, at, why = scan.scan(memory.address, at, stop_at, rows)
        parts.append(rows[:found])
        count += found
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, BATCH)])
    stop, reason = _STOPS[why]
    if stop is Stop.CORRUPT:
        length = int.from_bytes(buf[at + 8 : at + 12], "big", signed=True)
        reason = reason.format(length=length, magic=buf[at + MAGIC_AT])
    return BatchTable(rows, at, stop, reason)


_STOPS: Final = {
    scan.END: (Stop.END, ""),
    scan.PARTIAL: (Stop.PARTIAL, ""),
    scan.BAD_LENGTH: (Stop.CORRUPT, "batch length is {length}"),
    scan.BAD_MAGIC: (Stop.CORRUPT, "magic is {magic}, not 0 to 2"),
    scan.FULL: (Stop.FULL, ""),
}


def check_crcs(buf: Buffer, table: BatchTable) -> NDArray[np.bool_]:
    """Whether each batch's bytes give its CRC. `table` must come from `buf`."""
    out = np.zeros(len(table), np.bool_)
    check_inside(buf, table.rows)
    crc.check(pa.py_buffer(buf).address, table.rows, out)
    if (table["magic"] != MAGIC_2).any():
        from stratalog.format.kernels import legacy  # noqa: PLC0415 - most logs have none

        legacy.check(pa.py_buffer(buf).address, table.rows, out)
    return out


def check_inside(buf: Buffer, rows: NDArray[Any]) -> None:
    """Refuse rows that reach beyond `buf`: kernels would follow them anywhere."""
    if not len(rows):
        return
    ends = rows["position"] + rows["size_bytes"]
    if rows["position"].min() < 0 or ends.max() > len(buf) or rows["size_bytes"].min() < 0:
        raise ValueError("the table was not made from this buffer")

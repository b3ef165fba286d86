"""Checks all batches of a table: headers, CRCs and every record.

The fast twin of decoding everything. Nothing is copied, so uncompressed records are checked at the
speed of memory, compressed ones as fast as their codec. `reason_of` says why a batch is rejected.

Importing this module loads compiled kernels; import it where many batches are checked.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stratalog.errors import CorruptError, StratalogError
from stratalog.format.batch import CODEC_MASK, HEADER_BYTES, MAGIC_2, Entry
from stratalog.format.batch_table import BatchTable, PayloadReader, Stop, check_crcs
from stratalog.format.columns import PART_BYTES, Decoder
from stratalog.format.compression import DECOMPRESSED_BYTES_MAX
from stratalog.format.kernels import batch_check as kernel
from stratalog.format.log_entry import header_of, records_of
from stratalog.format.record import RECORD_BYTES_MIN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stratalog.format.buffers import Buffer


class BatchStatus(enum.IntEnum):
    """The result for one batch. The kernel returns the first four."""

    GOOD = kernel.GOOD
    BAD_RECORDS = kernel.BAD_RECORDS
    """The CRC is valid, the records are not."""
    BAD_OFFSETS = kernel.BAD_OFFSETS
    """Records whose offsets do not increase, or are outside the batch."""
    BAD_TIMESTAMP = kernel.BAD_TIMESTAMP
    """The header's largest timestamp is not that of the records."""
    BAD_BATCH = 4
    """Header or CRC: nothing in the batch can be trusted."""


BATCH_CHECK: Final = kernel.BATCH_CHECK


class BatchChecker:
    """Checks runs of batches. Keeps scratch memory between calls and belongs to one thread."""

    def __init__(self, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> None:
        self._reader = PayloadReader(
            part_bytes=PART_BYTES, decompressed_bytes_max=decompressed_bytes_max
        )
        self._decompressed_bytes_max = decompressed_bytes_max

    def check(self, buf: Buffer, table: BatchTable) -> NDArray[Any]:
        """One row of `BATCH_CHECK` for each batch of `table`, which must come from `buf`."""
        rows = table.rows
        found = np.zeros(len(rows), BATCH_CHECK)
        found["status"] = np.where(_are_headers_good(rows), BatchStatus.GOOD, BatchStatus.BAD_BATCH)
        found["status"][~check_crcs(buf, table)] = BatchStatus.BAD_BATCH
        found["last_record_offset"] = rows["last_offset"]
        found["max_timestamp"] = rows["max_timestamp"]
        is_good = found["status"] == BatchStatus.GOOD
        is_current = rows["magic"] == MAGIC_2
        if is_current.all() and is_good.all():
            self._check_batches(buf, rows, found)
            return found
        for which, check in (
            (is_good & is_current, self._check_batches),
            (is_good & ~is_current, self._check_legacy),
        ):
            if which.any():
                some = found[which]
                check(buf, np.ascontiguousarray(rows[which]), some)
                found[which] = some
        return found

    def _check_batches(self, buf: Buffer, rows: NDArray[Any], found: NDArray[Any]) -> None:
        done = 0
        while done < len(rows):
            is_next_bad = False
            for part in self._reader.parts(buf, rows[done:]):
                count = len(part.rows)
                kernel.check(part.rows, part.payloads, found[done : done + count])
                done += count
                is_next_bad = part.is_next_bad
            if is_next_bad:
                found["status"][done] = BatchStatus.BAD_RECORDS
                done += 1

    def _check_legacy(self, buf: Buffer, rows: NDArray[Any], found: NDArray[Any]) -> None:
        """Messages have neither deltas nor a count: only whether they can be decoded is checked,
        and the CRC of each message inside a set."""
        decoder = Decoder(
            ("offset",),
            include_control=True,
            decompressed_bytes_max=self._decompressed_bytes_max,
        )
        start = 0
        while start < len(rows):
            table = BatchTable(rows[start:], len(buf), Stop.END)
            try:
                for _ in decoder.decode(buf, table):
                    pass
                return
            except CorruptError as error:
                bad = int(np.searchsorted(rows["position"], error.position, "right")) - 1
                found["status"][bad] = BatchStatus.BAD_RECORDS
                start = bad + 1


def reason_of(buf: Buffer, row: Any) -> str:
    """What the readable decoder finds wrong with this batch; empty if nothing."""
    names = ("position", "base_offset", "size_bytes", "magic")
    entry = Entry(*(int(row[name]) for name in names))
    try:
        header_of(buf, entry)
        for _ in records_of(buf, entry):
            pass
    except CorruptError as error:
        return error.reason
    except StratalogError as error:
        return str(error)
    return ""


def _are_headers_good(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Checks of the headers alone."""
    base, last, count = rows["base_offset"], rows["last_offset"], rows["record_count"]
    good: NDArray[np.bool_] = (count >= 0) & (base >= 0) & (last >= base)
    is_plain = rows["attributes"] & CODEC_MASK == 0
    room = rows["size_bytes"].astype(np.int64) - HEADER_BYTES
    good &= ~is_plain | (count.astype(np.int64) * RECORD_BYTES_MIN <= room)
    return np.where(rows["magic"] == MAGIC_2, good, last >= 0)

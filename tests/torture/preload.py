"""What the processes of a run import, once: they are forked from one that has done so."""

from __future__ import annotations

import pyarrow as pa

from stratalog.format import batch_table
from stratalog.format.kernels import decompress, index_entries
from stratalog.log import column_reader
from stratalog.maintenance.cleaning import cleaner
from tests.torture import run  # and with it what it starts

__all__ = [
    "batch_table",
    "cleaner",
    "column_reader",
    "decompress",
    "index_entries",
    "run",
]

pa.array([b""])  # the first one imports pandas

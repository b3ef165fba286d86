"""`format("killing")`: the real sink, whose commit kills its process at a given change of the disk.

It stands for a driver that dies there: with option `killPids` the driver dies with it.
"""

from __future__ import annotations

import os
import signal
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from stratalog.commits.journal import JOURNAL_FILE
from stratalog.spark.options import parse_write_options
from stratalog.spark.source import StratalogDataSource
from stratalog.spark.writer import StratalogStreamWriter
from stratalog.storage import disk as disk_module
from stratalog.storage.disk import SystemCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
    from pyspark.sql.types import StructType

CHANGES = ("pwrite", "fsync", "ftruncate", "truncate", "rename", "unlink")


class KillingSource(StratalogDataSource):
    """The sink with options `killAt`, a number of changes, and `killPids`, other processes."""

    @classmethod
    def name(cls) -> str:
        return "killing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = {name.lower(): value for name, value in self.options.items()}
        kill_at = int(options.pop("killat"))
        pids = [int(pid) for pid in options.pop("killpids", "").split(",") if pid]
        parsed = parse_write_options(options)
        return KillingWriter(kill_at, pids, parsed, schema, overwrite=overwrite)


class KillingWriter(StratalogStreamWriter):
    def __init__(self, kill_at: int, pids: list[int], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kill_at = kill_at
        self._pids = pids

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if self._kill_at:
            count_down(self._kill_at, self._pids)
        super().commit(messages, batchId)


def count_down(kill_at: int, pids: Sequence[int]) -> None:
    """Die before the `kill_at`-th change that this process makes to a disk; a negative number
    counts from the rename that makes the journal."""
    left, is_counting = abs(kill_at), kill_at > 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any) -> Any:
            nonlocal left, is_counting
            is_counting |= len(args) == 2 and getattr(args[1], "name", "") == JOURNAL_FILE
            left -= is_counting
            if not left:
                for pid in (*pids, os.getpid()):
                    os.kill(pid, signal.SIGKILL)
            return call(*args)

        return change

    plain = SystemCalls()
    calls = {field.name: getattr(plain, field.name) for field in fields(plain)}
    killing = SystemCalls(**calls | {name: counted(calls[name]) for name in CHANGES})
    vars(disk_module)["SystemCalls"] = lambda: killing  # for `Disk()`

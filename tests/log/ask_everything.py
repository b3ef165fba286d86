"""Asks every question there is of every partition below some directories.

As a program it reports each attempt to change anything below them:

    python -m tests.log.ask_everything DIRECTORY...
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.errors import StratalogError
from stratalog.log.reader import IsolationLevel
from stratalog.partitions.view import open_dirs
from stratalog.storage.trace import Trace
from tests.log.readers import columns, scalar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stratalog.log.partition_view import PartitionView

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = frozenset(
    {
        "os.chmod",
        "os.chown",
        "os.link",
        "os.mkdir",
        "os.remove",
        "os.removexattr",
        "os.rename",
        "os.rmdir",
        "os.setxattr",
        "os.symlink",
        "os.truncate",
        "os.utime",
    }
)


def ask_everything(log_dirs: Iterable[Path]) -> int:
    """The number of records that were read."""
    records = 0
    for path in log_dirs:
        logs = open_dirs(path)
        assert logs.topics
        _ = [(d.meta_properties, d.log_start_offsets, d.has_clean_shutdown) for d in logs.dirs]
        for topic, partition in logs.topic_partitions:
            with logs.partition(topic, partition) as view:
                records += _ask(view)
    return records


def _ask(view: PartitionView) -> int:
    records = 0
    for isolation in IsolationLevel:
        for read in (scalar, columns):
            with contextlib.suppress(StratalogError):
                for _ in read(view, isolation=isolation):
                    records += 1
            records += sum(1 for _ in read(view, isolation=isolation, on_skip=lambda _: None))
    _ = (view.producers, view.leader_epochs, view.topic_id, view.aborted_transactions())
    view.refresh()
    view.find_max_timestamp()
    for offset in {view.log_start_offset, view.log_end_offset}:
        with contextlib.suppress(StratalogError):
            view.locate(offset, Trace())
    with contextlib.suppress(StratalogError):
        view.find_time(1_700_000_000_500, Trace())
    return records


def main(directories: list[str]) -> None:
    """Prints the number of records; exits with what was attempted, if anything was."""
    attempts: list[str] = []

    def watch(event: str, args: tuple[object, ...]) -> None:
        if not args or not isinstance(args[0], str | os.PathLike):
            return
        name = os.fspath(args[0])
        if not isinstance(name, str) or not name.startswith(tuple(directories)):
            return
        flags = args[2] if event == "open" else None
        if event in CHANGES or (isinstance(flags, int) and flags & WRITING):
            attempts.append(f"{event} {name}")

    sys.addaudithook(watch)
    sys.stdout.write(f"{ask_everything(map(Path, directories))}\n")
    if attempts:
        sys.exit("\n".join(attempts))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Log directories as a whole: `view` reads them, `LogDir` (in `manager`) writes them.

Only the reading side is imported here. The writing side loads the whole engine, which commands that
look at a directory have no use for; `stratalog.LogDir` finds it.
"""

from __future__ import annotations

from stratalog.log_dir.view import (
    ListedPartition,
    LogDirsView,
    LogDirView,
    open_dirs,
    open_partition,
)

__all__ = ["ListedPartition", "LogDirView", "LogDirsView", "open_dirs", "open_partition"]

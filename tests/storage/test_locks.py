"""The lock of a log directory belongs to an open file, which several descriptors may share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import LockedError
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from pathlib import Path


def test_release_unlocks_even_if_the_open_file_lives_on(tmp_path: Path) -> None:
    """As in a process that was started while the lock was held and has not got to its `exec`."""
    path = tmp_path / ".lock"
    lock = Disk().lock(path)
    shared = os.dup(lock._fd)
    try:
        with pytest.raises(LockedError):
            Disk().lock(path)
        lock.release()
        Disk().lock(path).release()
    finally:
        os.close(shared)


def test_another_process_only_closes_it(tmp_path: Path) -> None:
    """Also one that was forked without Python's knowledge, so that nothing was detached."""
    path = tmp_path / ".lock"
    lock = Disk().lock(path)
    shared = os.dup(lock._fd)
    try:
        lock._process_id -= 1
        lock.release()
        with pytest.raises(LockedError):
            Disk().lock(path)
    finally:
        os.close(shared)
    Disk().lock(path).release()

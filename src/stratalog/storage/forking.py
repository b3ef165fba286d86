"""What belongs to one process: a forked child inherits it, and must not write with it.

A child shares the open files of its parent, its mapped files and its lock on the log directory. If
it went on with them, two processes would append to one log; if it cleaned up when it exits, it
would drop the lock of its parent, or mark as cleanly closed what is still being written. So
whatever writes for one process registers here, and is detached in every child right after the
fork, before any other code runs there.

Processes that begin with `exec` have nothing of it: every file is opened with O_CLOEXEC.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Detachable(Protocol):
    """Something that writes, or holds a lock, on behalf of the process that created it."""

    def detach(self) -> None:
        """Called in a forked child. Must not wait for a lock, whose holder does not exist here."""


_parent_id = 0
_owned: Final[weakref.WeakSet[Detachable]] = weakref.WeakSet()


def detach_in_children(owned: Detachable) -> None:
    """Have `owned.detach()` called in processes that are forked from this one."""
    _owned.add(owned)


def inherited_reason() -> str:
    """Why something that was detached cannot be used."""
    return f"process {_parent_id} has it open, and this one ({os.getpid()}) was forked from it"


def _detach_all() -> None:
    global _parent_id  # noqa: PLW0603 - of this process; it does not change
    _parent_id = os.getppid()
    for owned in list(_owned):
        owned.detach()


os.register_at_fork(after_in_child=_detach_all)

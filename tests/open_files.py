"""Which files this process has open, for tests that say nothing stays open."""

from __future__ import annotations

from pathlib import Path


def open_files(below: Path) -> list[Path]:
    """The open files below a directory.

    Only those: a count of all descriptors would change whenever the collector of garbage closes
    what another test left behind.
    """
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = entry.readlink()
        except OSError:  # the descriptor that lists this directory, or one closed meanwhile
            continue
        if target.is_relative_to(below.resolve()):
            found.append(target)
    return sorted(found)

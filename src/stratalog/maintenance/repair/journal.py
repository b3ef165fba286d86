"""The journal of a repair: which files it changes, written before the first one is changed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

from stratalog.errors import RepairError

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from stratalog.storage.disk import Disk

PREFIX: Final = "repair-"
OLD, NEW = "old", "new"
_JOURNAL: Final = "repair.json"


@dataclass(frozen=True)
class RepairedFile:
    """One file of the partition, before and after."""

    name: str
    existed: bool
    is_removed: bool
    size_bytes: int = 0
    """After the repair; with the next one it shows whether somebody has changed the file since."""
    mtime_ns: int = 0

    @classmethod
    def written(cls, path: Path, *, existed: bool) -> Self:
        """A file as the repair leaves it; `path` is that of its new content."""
        status = path.stat()
        return cls(path.name, existed, False, status.st_size, status.st_mtime_ns)

    def is_as_written(self, status: os.stat_result) -> bool:
        """Whether nobody has changed the file since the repair."""
        return (status.st_size, status.st_mtime_ns) == (self.size_bytes, self.mtime_ns)


@dataclass(frozen=True)
class Repair:
    """A repair that was carried out, or is about to be: the content of its journal."""

    directory: Path
    """The directory of the repair, inside the partition directory."""
    changes: tuple[RepairedFile, ...]
    checkpoints: tuple[tuple[str, int, int], ...] = ()
    """Entries of this partition in checkpoints of the log directory: file, before, after."""
    open_transactions: tuple[tuple[int, int], ...] = ()
    """Producer and first offset of transactions whose marker may be lost. Not in the journal."""

    @property
    def partition(self) -> Path:
        return self.directory.parent

    def save(self, disk: Disk) -> None:
        content = {
            "changes": [asdict(change) for change in self.changes],
            "checkpoints": self.checkpoints,
        }
        data = json.dumps(content, indent=1).encode()
        disk.write_atomically(self.directory / _JOURNAL, data)
        disk.fsync_dir(self.directory.parent)

    def discard(self, disk: Disk) -> None:
        """Remove the directory of the repair. The journal goes first: what is left of a directory
        without one is never used."""
        disk.unlink(self.directory / _JOURNAL, missing_ok=True)
        disk.fsync_dir(self.directory)
        disk.remove_tree(self.directory)

    @classmethod
    def load(cls, directory: Path) -> Repair | None:
        """None if there is no journal: then nothing was changed."""
        try:
            content = json.loads((directory / _JOURNAL).read_bytes())
            return cls(
                directory,
                tuple(RepairedFile(**change) for change in content["changes"]),
                tuple((name, before, after) for name, before, after in content["checkpoints"]),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise RepairError(f"{directory / _JOURNAL}: cannot be read: {error}") from None


def repairs_of(partition: Path) -> list[Repair]:
    """The repairs of a partition that can be undone, newest first."""
    found = sorted(partition.glob(f"{PREFIX}*"), reverse=True)
    return [repair for path in found if (repair := Repair.load(path)) is not None]


def interrupted_repairs(partition: Path) -> list[str]:
    """Names of the directories of repairs that were killed before they were complete."""
    return [
        path.name
        for path in sorted(partition.glob(f"{PREFIX}*"))
        if not (path / _JOURNAL).exists() or (path / NEW).exists()
    ]

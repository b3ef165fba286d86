"""Which log directories belong together: a transaction, a commit or a topic may span all of them.

Each directory of a set remembers its own id and the ids of all others, in Stratalog's state file.
Ids, not paths, identify a directory, so it may be moved; the paths are there for messages. A
directory that never was opened together with another has no set, and is not affected.

Invariants:

* a directory has its own id on disk before any other directory names it;
* the set is recorded in all directories before anything else is changed in one of them.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from stratalog.errors import InconsistentLogDirsError, MissingLogDirsError
from stratalog.format.metadata import encode_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stratalog.partitions.root import LogRoot
    from stratalog.partitions.state import SavedState

MissingDirs: TypeAlias = Literal["refuse", "offline", "forget"]
"""What to do if a directory of the set is not among those to open for writing.

* `refuse`: raise MissingLogDirsError;
* `offline`: work on the partitions that are here. Whatever could depend on the missing directories
  stays as it is, or raises MissingLogDirsError: creating and deleting topics, commits of staged
  batches and the sweeping of staged files, and transactions that span a partition not here;
* `forget`: the missing directories are lost for good. Their partitions are created again, empty.
"""


class DirSet(NamedTuple):
    """The directories that are being opened, and those that belong to them."""

    ids: tuple[str, ...]
    """Of the directories that are being opened, in their order."""
    members: Mapping[str, str]
    """The same with their paths, by id."""
    missing: Mapping[str, str]
    """The others of the set, by id, with the paths that they had last."""
    is_recorded: bool
    """Whether one of the directories knows of a set."""

    @property
    def is_set(self) -> bool:
        """Whether there is something to remember."""
        return self.is_recorded or len(self.ids) > 1

    def error(self, action: str) -> MissingLogDirsError:
        """Why `action` is refused."""
        return MissingLogDirsError(action, tuple(self.missing.values()))


def find_dir_set(roots: Sequence[LogRoot], copies: Sequence[SavedState | None]) -> DirSet:
    """What the state files of these directories say of the set that they belong to.

    Raises InconsistentLogDirsError for a directory that the others have forgotten, and for two
    with the same id.
    """
    recorded = [copy for copy in copies if copy is not None and copy.dirs]
    current = max(recorded, key=lambda copy: copy.generation).dirs if recorded else {}
    known = dict(current)
    members: dict[str, str] = {}
    for root, copy in zip(roots, copies, strict=True):
        dir_id = _id_of(root, copy)
        if dir_id in members:
            raise InconsistentLogDirsError(
                f"{members[dir_id]} and {root.path} have the same directory id: one is a copy of "
                "the other; open only one of them"
            )
        # One that does not list itself was being added when the process ended.
        if copy is not None and dir_id in copy.dirs and dir_id not in current:
            if copy.dirs.keys() & current.keys():
                raise InconsistentLogDirsError(
                    f"{root.path} was declared lost (missing_dirs='forget'), and its partitions "
                    "were created again in the other log directories; open those without it"
                )
            known |= copy.dirs  # two sets become one
        members[dir_id] = str(root.path.resolve())
    missing = {dir_id: path for dir_id, path in known.items() if dir_id not in members}
    return DirSet(tuple(members), members, missing, bool(recorded))


def _id_of(root: LogRoot, copy: SavedState | None) -> str:
    """The id that the other directories know; else Kafka's own, if it has one; else a new one."""
    if copy is not None and copy.dir_id is not None:
        return copy.dir_id
    if root.meta is not None and root.meta.directory_id is not None:
        return encode_id(root.meta.directory_id)
    return encode_id(uuid.uuid4())

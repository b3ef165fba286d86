"""Names of staged files: batches in a partition's directory that are not in its log yet.

`<job>-<number>-<task>-<unique>.staged`, where job and number say which commit the file is for. A
Kafka loader looks at suffixes (`.log`, `.index`, `.deleted`, …), and this is none of them, so a
broker leaves such files alone.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import InvalidNameError

if TYPE_CHECKING:
    from pathlib import Path

STAGED_SUFFIX: Final = ".staged"

_NAME = re.compile(
    r"(?P<job>[0-9a-f]{32})-(?P<number>[0-9]{1,19})-(?P<task>[0-9]{1,10})"
    r"-(?P<unique>[0-9a-f]{16})\.staged"
)


class StagedName(NamedTuple):
    """Which commit a staged file is for, and which attempt of which task wrote it."""

    job: str
    """32 hex digits: a Spark job, or a streaming query through all its restarts."""
    number: int
    """Number of the micro-batch of a query; 0 for a job that commits once."""
    task: int
    """Number of the source partition: what orders the files of a commit."""
    unique: str
    """16 hex digits, so that two attempts of a task never write to the same file."""

    def __str__(self) -> str:
        name = f"{self.job}-{self.number}-{self.task}-{self.unique}{STAGED_SUFFIX}"
        if _NAME.fullmatch(name) is None:
            raise InvalidNameError(f"{name!r} cannot be the name of a staged file")
        return name


def second_staged_name(path: Path) -> Path:
    """Another name for a staged file. Files of both names are swept alike."""
    name = parse_staged_name(path.name)
    if name is None:
        raise InvalidNameError(f"{path.name!r} is not the name of a staged file")
    return path.with_name(str(name._replace(unique=secrets.token_hex(8))))


def parse_staged_name(name: str) -> StagedName | None:
    """None for every other file."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return StagedName(match["job"], int(match["number"]), int(match["task"]), match["unique"])

"""What is to be ingested: which files, of which format, and which of their columns.

Files are found as Spark finds them: a path is a file or a directory, in a directory names that
begin with `_` or `.` are passed over, and directories called `name=value` give their files a
column. Whatever has to be understood beyond that (patterns, addresses of other file systems) is
left to Spark itself.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from urllib.parse import unquote

from stratalog.bulk.workers import JobResult
from stratalog.errors import (
    ConfigError,
    InputFileError,
    InvalidNameError,
    NeedsSparkError,
)
from stratalog.format.names import FileKind, parse_partition_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Format = Literal["json", "csv", "parquet", "text", "records"]
"""`records` are lines of JSON as export writes them; of `json` every line is a value."""
_SUFFIXES: Final[Mapping[str, Format]] = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
    ".log": "text",
}
_PACKED: Final = (".gz", ".bz2", ".zst", ".snappy", ".lz4")
_PACKED_FOR_HADOOP: Final = (*_PACKED, ".deflate", ".lzo", ".xz", ".passthrough")
_NOT_PLAIN: Final = re.compile(r"[*?\[\]{}\\]|\A[A-Za-z][A-Za-z0-9+.-]*:")
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class RecordColumns:
    """Which columns, or fields of JSON lines, become what."""

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """All names, in the order in which they are looked at."""
        return tuple(name for name in (self.key, self.value, self.timestamp) if name)


class Missing(NamedTuple):
    """How many rows lack what was to be taken from them."""

    keys: int = 0
    values: int = 0
    times: int = 0

    def plus(self, other: Missing) -> Missing:
        return Missing(*(mine + its for mine, its in zip(self, other, strict=True)))


@dataclass(frozen=True)
class FileSource:
    """Files, and how to read them."""

    paths: Sequence[Path | str]
    """Files, or directories of files. For Spark's readers also patterns and addresses."""
    format: Format | None = None
    """None: told from the names, and for JSON from the first lines."""
    mapping: RecordColumns = field(default_factory=RecordColumns)
    options: Mapping[str, str] = field(default_factory=dict)
    """Of Spark's reader of the format. It does the reading if there are any."""
    allows_missing: bool = False
    """Rows may lack what the mapping names: then they have no key, a null value, the time of the
    write, and are counted. Else the first one is an error."""
    keeps_partitions: bool = True
    """Records go to the partitions that they name; else to those of their keys."""


@dataclass(frozen=True)
class IngestResult(JobResult):
    """Rows written, and by how much the logs have grown."""

    missing: Missing = field(default_factory=Missing)


class InputFile(NamedTuple):
    """One file, and what the names of its directories say."""

    path: str
    size_bytes: int
    columns: tuple[tuple[str, str], ...] = ()

    @property
    def topic(self) -> str | None:
        return dict(self.columns).get("topic")

    @property
    def is_packed(self) -> bool:
        return self.path.lower().endswith(_PACKED_FOR_HADOOP)


def check_names(paths: Iterable[Path | str]) -> None:
    """Raise for files of a partition of Kafka's, given themselves or by their directory: bytes that
    are no lines, and whose names end like those of text."""
    for path in map(Path, paths):
        with suppress(OSError):  # which is told by whoever reads it
            if not path.is_dir():
                _check_names(path.parent, [path.name])
                continue
            names = (file.name for file in path.iterdir())
            _check_names(path, sorted(names, key=lambda name: (not name.endswith(".log"), name)))


def _check_names(directory: Path, names: Iterable[str]) -> None:
    for name in names:
        with suppress(InvalidNameError):
            file = parse_partition_file(name)
            if file is None or file.base_offset is None:
                continue
            cure = f"'stratalog dump {directory / name}' shows what is in it"
            if file.kind is FileKind.LOG:
                cure = (
                    f"'stratalog read {directory}' prints the records, and 'stratalog export "
                    f"{directory} --to DIR' writes files that can be ingested"
                )
            raise ConfigError("paths", f"{directory / name}: a file of a Kafka log; {cure}")


def format_of(paths: Sequence[Path | str]) -> Format:
    """What all of the names say."""
    found = {_SUFFIXES.get(_suffix(Path(path))) for path in paths}
    only = found.pop() if len(found) == 1 else None
    if only is None:
        raise ConfigError(
            "format", "cannot be told from the names; give json, csv, parquet, text or records"
        )
    return only


def _suffix(path: Path) -> str:
    """Of a file, or of the first file in a directory; packed files by the suffix before."""
    if path.is_dir():
        files = (file for file in sorted(path.rglob("*")) if not file.name.startswith(("_", ".")))
        path = next((file for file in files if file.is_file()), path)
    if path.suffix in _PACKED:
        path = path.with_suffix("")
    return path.suffix.lower()


def find_files(paths: Sequence[Path | str]) -> tuple[InputFile, ...]:
    """The files, in the order of the paths and of their names.

    Raises InputFileError for what is not there, NeedsSparkError for what is not plainly local.
    """
    found: list[InputFile] = []
    for path in paths:
        text = str(path)
        if _NOT_PLAIN.search(text):
            raise NeedsSparkError(f"{text}: not the path of a local file")
        root = Path(text).absolute()
        try:
            found += _below(root, ()) if root.is_dir() else [_file(root)]
        except OSError as error:
            raise InputFileError(f"{text}: {error.strerror}") from None
    if len({tuple(name for name, _ in file.columns) for file in found}) > 1:
        raise NeedsSparkError("files lie in different kinds of directories")
    if len(paths) > 1 and any(file.columns for file in found):
        raise NeedsSparkError("there are several directories with columns in their names")
    return tuple(found)


def _file(path: Path) -> InputFile:
    if _is_hidden(path.name):
        raise NeedsSparkError(f"{path}: names that begin so are not for data")
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise InputFileError(f"{path}: not a file; tasks read parts of it, and may read them again")
    return InputFile(str(path), found.st_size)


def _below(directory: Path, columns: tuple[tuple[str, str], ...]) -> Iterator[InputFile]:
    with os.scandir(directory) as listed:
        entries = sorted(
            (entry for entry in listed if not _is_hidden(entry.name)), key=lambda entry: entry.name
        )
    for entry in entries:
        if entry.is_dir() and "=" not in entry.name:
            raise ConfigError(
                "paths",
                f"{entry.path}: a directory in a directory would be left out; name the files",
            )
    if len({entry.is_dir() for entry in entries}) > 1:
        raise NeedsSparkError(f"{directory}: has both files and directories")
    for entry in entries:
        if not entry.is_dir():
            yield InputFile(entry.path, entry.stat().st_size, columns)
            continue
        name, equals, value = entry.name.partition("=")
        if not equals or not name or (name == "topic" and value in {"", _NULL}):
            raise NeedsSparkError(f"{entry.path}: not the name of a column and its value")
        yield from _below(Path(entry.path), (*columns, (unquote(name), unquote(value))))


def _is_hidden(name: str) -> bool:
    is_underscored = name.startswith("_") and "=" not in name
    return is_underscored or name.startswith(".") or name.endswith("._COPYING_")

"""The files of an ingest: where they are, their format and compression, and the columns to take.

A path is a local file, a directory or a glob pattern. In a directory, names that start with `_` or
`.` are skipped, as by Spark, and directories called `name=value` give the rows of their files a
column. Lines and CSV may be compressed; the suffix names the format. `-` alone is standard input:
lines, read once, by one task.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, get_args
from urllib.parse import unquote

import pyarrow as pa

from stratalog.bulk.workers import JobResult
from stratalog.errors import ConfigError, InputFileError, InvalidNameError
from stratalog.format.arguments import word_of
from stratalog.format.names import FileKind, parse_partition_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Format = Literal["json", "csv", "parquet", "text", "records"]
"""`records` are lines of JSON as export writes them; with `json` every line is a value."""
_FORMATS: Final[Mapping[str, Format]] = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
    ".log": "text",
}
_COMPRESSION: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_OTHER_COMPRESSION: Final = (".snappy", ".deflate", ".lzo", ".xz", ".zip")
_URI: Final = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]+):")
_WILDCARDS: Final = re.compile(r"[*?\[]")
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
STDIN: Final = "-"


@dataclass(frozen=True)
class RecordColumns:
    """Which columns of tables, or fields of JSON lines, become what."""

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """The names that are given, in the order in which they are looked up."""
        return tuple(name for name in (self.key, self.value, self.timestamp) if name)


class MissingFields(NamedTuple):
    """How many rows lack a field that was asked for, or its timestamp cannot be parsed."""

    keys: int = 0
    values: int = 0
    times: int = 0

    @classmethod
    def sum(cls, found: Iterable[MissingFields]) -> MissingFields:
        return cls(*map(sum, zip(cls(), *found, strict=True)))


@dataclass(frozen=True)
class FileSource:
    """Files, and how to read them."""

    paths: Sequence[Path | str]
    """Files, directories or glob patterns."""
    format: Format | None = None
    """None: from the names, and for JSON also from the first line."""
    mapping: RecordColumns = field(default_factory=RecordColumns)
    allows_missing: bool = False
    """Rows may lack what the mapping names: they get no key, a null value or the time of the write,
    and are counted. Otherwise the first such row is an error."""
    keeps_partitions: bool = True
    """Records are written to the partitions that they name; else they are partitioned by key."""
    delimiter: str = ","
    """Delimiter of CSV."""

    def __post_init__(self) -> None:
        if self.format is not None:
            object.__setattr__(self, "format", word_of(self.format, get_args(Format), "format"))


@dataclass(frozen=True)
class IngestResult(JobResult):
    """Rows written, and by how much the logs have grown."""

    missing: MissingFields = field(default_factory=MissingFields)


class InputFile(NamedTuple):
    """One file, and the columns in the names of its directories."""

    path: str
    size_bytes: int
    columns: tuple[tuple[str, str], ...] = ()


def compression_of(path: str) -> str | None:
    """From the suffix; None for a file that is not compressed."""
    suffix = Path(path).suffix.lower()
    if suffix in _OTHER_COMPRESSION:
        known = ", ".join(_COMPRESSION)
        raise ConfigError(
            "paths",
            f"{path}: {suffix} files are not supported, only {known}; decompress the file first",
        )
    return _COMPRESSION.get(suffix)


class _Stdin:
    """Standard input, whose first bytes can be peeked at."""

    def __init__(self) -> None:
        self._start = b""

    def peek(self, size: int) -> bytes:
        """The next bytes: as many as asked for, unless it ends before."""
        while len(self._start) < size and (more := sys.stdin.buffer.read(size - len(self._start))):
            self._start += more
        return self._start[:size]

    def read(self, size: int) -> bytes:
        if self._start:
            taken, self._start = self._start[:size], self._start[size:]
            return taken
        return sys.stdin.buffer.read(size)

    def seek(self, position: int) -> int:
        raise InputFileError(f"standard input cannot be read from position {position} on")


stdin: Final = _Stdin()


class InputStream(Protocol):
    """Bytes to read."""

    def read(self, size: int, /) -> bytes: ...

    def seek(self, position: int, /) -> int: ...


@contextmanager
def open_stream(path: str) -> Iterator[InputStream]:
    """The bytes of a file, decompressed, or of standard input."""
    if path == STDIN:
        yield stdin
        return
    with open_input(path) as file:
        yield file


@contextmanager
def open_input(path: str) -> Iterator[pa.NativeFile]:
    """The bytes of a file, decompressed."""
    with (
        _corruption_reported(path),
        pa.input_stream(path, compression=compression_of(path)) as file,
    ):
        yield file


@contextmanager
def _corruption_reported(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # of the disk
            raise
        raise InputFileError(f"{path}: the compressed data is corrupt: {error}") from None


def check_names(paths: Iterable[Path | str]) -> None:
    """Raise for files of a Kafka partition, given themselves or by their directory: they are
    binary, but named like text."""
    for path in map(Path, paths):
        with suppress(OSError):  # opening it reports the error
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
            advice = f"'stratalog dump {directory / name}' shows its content"
            if file.kind is FileKind.LOG:
                advice = (
                    f"'stratalog read {directory}' prints the records, and 'stratalog export "
                    f"{directory} --to DIR' writes files that can be ingested"
                )
            raise ConfigError("paths", f"{directory / name} is a file of a Kafka log; {advice}")


def format_of(files: Sequence[InputFile]) -> Format:
    """From the names, which must agree."""
    found = {_FORMATS.get(_suffix(file.path)) for file in files}
    only = found.pop() if len(found) == 1 else None
    if only is None:
        raise ConfigError(
            "format",
            "cannot be detected from the file names; use json, csv, parquet, text or records",
        )
    return only


def _suffix(path: str) -> str:
    """The suffix of a file name, without that of the compression."""
    name = Path(path)
    return (name.with_suffix("") if compression_of(path) else name).suffix.lower()


def find_files(paths: Sequence[Path | str]) -> tuple[InputFile, ...]:
    """The files, in the order of the paths and of their names.

    Raises InputFileError for a path that does not exist, ConfigError for one that is not local.
    """
    found: list[InputFile] = []
    for path in paths:
        for root in _local_paths(str(path)):
            try:
                found += _below(root, ()) if root.is_dir() else [_file(root)]
            except OSError as error:
                raise InputFileError(f"{root}: {error.strerror}") from None
    return tuple(found)


def _local_paths(text: str) -> list[Path]:
    scheme = _URI.match(text)
    if scheme is not None and scheme[1].lower() != "file":
        raise ConfigError(
            "paths",
            f"{text}: not a local path; mount it, or read it with Spark and write the DataFrame "
            "with format('stratalog')",
        )
    if scheme is not None:
        text = re.sub(r"\A//[^/]*", "", text[len("file:") :])
    path = Path(text).absolute()
    if path.exists() or not _WILDCARDS.search(text):
        return [path]
    matches = sorted(glob.glob(str(path)))  # noqa: PTH207 - absolute patterns
    if not matches:
        raise InputFileError(f"{text}: no file matches")
    return [Path(match) for match in matches]


def _file(path: Path) -> InputFile:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise InputFileError(
            f"{path}: not a regular file; copy it to one, because tasks may read it more than once"
        )
    return InputFile(str(path), found.st_size)


def _below(directory: Path, columns: tuple[tuple[str, str], ...]) -> Iterator[InputFile]:
    with os.scandir(directory) as listed:
        entries = sorted(
            (entry for entry in listed if not _is_hidden(entry.name)), key=lambda entry: entry.name
        )
    for entry in entries:
        if not entry.is_dir():
            yield InputFile(entry.path, entry.stat().st_size, columns)
            continue
        name, equals, value = map(unquote, entry.name.partition("="))
        if not equals or not name:
            raise ConfigError(
                "paths",
                f"{entry.path}: nested directories are read only if they are called name=value; "
                "name the files",
            )
        if name == "topic" and value in {"", _NULL}:
            raise ConfigError("paths", f"{entry.path}: the name of the topic is empty")
        yield from _below(Path(entry.path), (*columns, (name, value)))


def _is_hidden(name: str) -> bool:
    is_underscored = name.startswith("_") and "=" not in name
    return is_underscored or name.startswith(".") or name.endswith("._COPYING_")

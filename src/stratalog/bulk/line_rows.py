"""Rows from files of lines: text, JSON lines of which fields are taken, exported records.

A line ends with a line feed, a carriage return or both, the last one also with the file; the end is
not part of it. An empty line is a line. A UTF-8 byte order mark at the start of a file is dropped.
Hadoop's and Spark's readers do the same.

A file that is not compressed may be read in ranges, by several tasks: a line belongs to the range
in which it starts, so every line is read once, wherever the ranges are divided. Memory is a few
times `CHUNK_BYTES`, or the longest line. No Python object is created per line, unless fields are
taken.

A field that was asked for and is missing, or a timestamp that cannot be parsed, is an error that
names the line, unless missing fields are allowed; then it is counted. A null field is a null key or
value. A line that is not JSON is always an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from stratalog.bulk.input_files import MissingFields, RecordColumns, open_stream
from stratalog.bulk.json_lines import record_columns
from stratalog.errors import InputFileError, MessageTooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from stratalog.bulk.input_files import InputStream

CHUNK_BYTES: Final = 8 << 20
_BEYOND_BYTES: Final = 64 << 10
"""Read at a time for the rest of the last line, which is the next range's otherwise."""
_LINE_BYTES_MAX: Final = 1 << 30
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_LF, _CR = 10, 13


class TextRange(NamedTuple):
    """The lines that start at or after `start`, and before `end`."""

    path: str
    start: int
    end: int
    """At most the size of the file when it was planned."""
    is_compressed: bool = False
    """Then it is the complete file, and positions are those of the compressed bytes."""

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def read_lines(source: TextRange, chunk_bytes: int = CHUNK_BYTES) -> Iterator[pa.Array]:
    """The lines of the range in order, as binary arrays."""
    if source.start >= source.end:
        return
    end = sys.maxsize if source.is_compressed else source.end
    with open_stream(source.path) as file:
        position, first = _first_line(file, source, chunk_bytes)
        if position >= end and source.start:
            return
        lines = _Lines(source.path, position, end)
        while not lines.is_over:
            left = end - lines.read_to
            chunk = first or file.read(min(chunk_bytes, max(left, _BEYOND_BYTES)))
            first = b""
            if not chunk and lines.read_to < end and not source.is_compressed:
                raise InputFileError(
                    f"{source.path}: ends at {lines.read_to}, but had {source.end} bytes at the "
                    "start of the job"
                )
            found = lines.add(chunk) if chunk else lines.finish()
            if found is not None:
                yield found


def _first_line(file: InputStream, source: TextRange, chunk_bytes: int) -> tuple[int, bytes]:
    """Where the first line of the range starts, `end` or later if none does; and bytes from there
    that are already read."""
    if source.start == 0:
        start = file.read(len(_BYTE_ORDER_MARK))
        return (len(start), b"") if start == _BYTE_ORDER_MARK else (0, start)
    position = source.start - 1  # a line starts at `start` if one ends right before it
    file.seek(position)
    while position < source.end:
        chunk = file.read(min(chunk_bytes, _BEYOND_BYTES))
        if not chunk:
            break
        ends = [at for at in (chunk.find(b"\n"), chunk.find(b"\r")) if at >= 0]
        if ends:
            at = position + min(ends) + 1
            if chunk[min(ends)] == _CR:
                file.seek(at)
                at += file.read(1) == b"\n"
            file.seek(at)
            return at, b""
        position += len(chunk)
    return max(position, source.end), b""


class _Lines:
    """Finds lines in chunks as they are read; holds the part of a line whose end is not read."""

    def __init__(self, path: str, position: int, end: int) -> None:
        self._path = path
        self._end = end
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._ends_with_cr = False
        self._line_start = position
        self.read_to = position
        """Where in the file the next chunk begins."""
        self.is_over = False

    def add(self, chunk: bytes) -> pa.Array | None:
        """The lines that end in the chunk, if any do."""
        self.read_to += len(chunk)
        if self._ends_with_cr:
            chunk = b"\r" + chunk
        self._ends_with_cr = chunk.endswith(b"\r")  # a line feed may follow: wait for it
        if self._ends_with_cr:
            chunk = chunk[:-1]
        ends, nexts = _line_ends(chunk)
        if not len(ends):
            self._hold(chunk)
            return None
        data = b"".join((*self._held, chunk))  # the same object if there is one only
        ends, nexts = ends + self._held_bytes, nexts + self._held_bytes
        count = 1 + int(np.searchsorted(nexts[:-1], self._end - self._line_start))
        found = _line_values(data, ends[:count], nexts[:count])
        self._line_start += int(nexts[-1])
        self.is_over = self._line_start >= self._end
        self._held, self._held_bytes = [], 0
        self._hold(data[int(nexts[-1]) :])
        return found

    def finish(self) -> pa.Array | None:
        """The line that ends with the file, if there is one."""
        self.is_over = True
        if not self._held and not self._ends_with_cr:
            return None
        return pa.array([b"".join(self._held)], pa.binary())

    def _hold(self, part: bytes) -> None:
        if part:
            self._held.append(part)
            self._held_bytes += len(part)
        if self._held_bytes > _LINE_BYTES_MAX:
            raise MessageTooLargeError(
                f"{self._path}: the line at position {self._line_start} is longer than "
                f"{_LINE_BYTES_MAX} bytes, which no record can hold"
            )


def _line_ends(chunk: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each line ends, and where what comes after it begins."""
    codes = np.frombuffer(chunk, np.uint8)
    if b"\r" not in chunk:
        ends = np.flatnonzero(codes == _LF)
        return ends, ends + 1
    marks = np.flatnonzero((codes == _LF) | (codes == _CR))
    is_cr = codes[marks] == _CR
    is_second = np.zeros(len(marks), bool)  # the line feed of a pair
    is_second[1:] = is_cr[:-1] & ~is_cr[1:] & (np.diff(marks) == 1)
    is_first = ~is_second
    is_pair = np.append(is_second[1:], False)
    ends = marks[is_first]
    return ends, ends + 1 + is_pair[is_first]


def _line_values(data: bytes, ends: NDArray[np.int64], nexts: NDArray[np.int64]) -> pa.Array:
    """Lines without their ends: every other one of the values between the bounds."""
    bounds = np.zeros(2 * len(ends) + 1, np.int32)
    bounds[1::2], bounds[2::2] = ends, nexts
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    values = pa.Array.from_buffers(pa.binary(), 2 * len(ends), buffers)
    return values.take(pa.array(np.arange(0, 2 * len(ends), 2)))


# -- lines as rows

_TIME: Final = pa.timestamp("us")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIME_MS_MAX: Final = (1 << 63) // 1000 - 1
_SHOWN_CHARACTERS: Final = 40
_EXPORTED: Final = re.compile(
    rb'\{"topic":"[^"\\]{1,249}","partition":\d+,"offset":\d+,"timestamp":-?\d+,'
    rb'"timestampType":(?:"[A-Za-z]+"|-?\d+),"key":(?:null|"|\{"base64":")'
)
EXPORTED_BYTES_MAX: Final = 512
"""The first bytes of a line suffice to see whether export wrote it."""
_ABSENT: Final = object()


class LineError(Exception):
    """A line that cannot become a row; `index` counts from the first of the lines given."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason


class Rows(NamedTuple):
    """Columns as the sink takes them."""

    batch: pa.RecordBatch
    missing: MissingFields = MissingFields()


def is_exported(start: bytes) -> bool:
    """Whether export wrote a line with this beginning: the same fields in the same order."""
    return _EXPORTED.match(start) is not None


@dataclass(frozen=True)
class ValueLines:
    """Lines as they are."""

    def rows(self, lines: pa.Array) -> Rows:
        return Rows(pa.RecordBatch.from_arrays([lines], ["value"]))


@dataclass(frozen=True)
class FieldLines:
    """JSON lines of which fields are taken."""

    fields: RecordColumns
    allows_missing: bool = False

    def rows(self, lines: pa.Array) -> Rows:
        """Raises LineError for the first line that cannot be a row."""
        found = _Columns(self.allows_missing)
        takers = self._takers(found)
        for index, raw in enumerate(lines.to_pylist()):
            found.index = index
            row = _parsed(raw, index)
            for name, take in takers:
                take(name, _field(row, name), raw)
        names = [kind for kind in ("key", "value", "timestamp") if getattr(self.fields, kind)]
        arrays = {name: found.array(name) for name in names}
        return Rows(pa.RecordBatch.from_pydict({"value": lines, **arrays}), found.missing)

    def _takers(self, found: _Columns) -> list[tuple[str, Callable[[str, Any, bytes], None]]]:
        wanted = self.fields
        takers: list[tuple[str, Callable[[str, Any, bytes], None]]] = []
        if wanted.key:
            takers.append((wanted.key, found.take_key))
        if wanted.value:
            takers.append((wanted.value, found.take_value))
        if wanted.timestamp:
            takers.append((wanted.timestamp, found.take_time))
        return takers


@dataclass(frozen=True)
class RecordLines:
    """Records as export writes them (`json_lines`)."""

    keeps_partitions: bool = True
    allows_missing: bool = False

    def rows(self, lines: pa.Array) -> Rows:
        """Raises LineError for the first line that is no record."""
        columns = record_columns(lines)
        if columns is None:
            return self._parsed(lines)
        times_missing = columns["timestamp"].null_count
        if times_missing and not self.allows_missing:
            return self._parsed(lines)  # which finds the line
        taken = {name: columns[name] for name in self._kinds()}
        return Rows(pa.RecordBatch.from_pydict(taken), MissingFields(times=times_missing))

    def _parsed(self, lines: pa.Array) -> Rows:
        """Whatever JSON they are, line by line."""
        columns: dict[str, list[Any]] = {name: [] for name in self._kinds()}
        times_missing = 0
        for index, raw in enumerate(lines.to_pylist()):
            try:
                row = _record(_parsed(raw, index))
            except ValueError as error:
                raise LineError(index, str(error)) from None
            if row["timestamp"] is None:
                times_missing += 1
                if not self.allows_missing:
                    raise LineError(index, "timestamp is -1: the record has none")
            for name, values in columns.items():
                values.append(row[name])
        arrays = {name: pa.array(columns[name], kind) for name, kind in self._kinds().items()}
        return Rows(pa.RecordBatch.from_pydict(arrays), MissingFields(times=times_missing))

    def _kinds(self) -> dict[str, pa.DataType]:
        kinds = {
            "value": pa.binary(),
            "key": pa.binary(),
            "headers": _HEADERS,
            "timestamp": _TIME,
            "topic": pa.string(),
        }
        return {**kinds, "partition": pa.int32()} if self.keeps_partitions else kinds


LineRows = ValueLines | FieldLines | RecordLines


class _Columns:
    """The values taken from line after line."""

    def __init__(self, allows_missing: bool) -> None:
        self.index = 0
        self._allows_missing = allows_missing
        self._found: dict[str, list[Any]] = {"key": [], "value": [], "timestamp": []}
        self._missing = {"key": 0, "value": 0, "timestamp": 0}

    @property
    def missing(self) -> MissingFields:
        return MissingFields(*self._missing.values())

    def array(self, name: str) -> pa.Array:
        return pa.array(self._found[name], _TIME if name == "timestamp" else pa.binary())

    def take_key(self, name: str, field: Any, line: bytes) -> None:
        self._take_bytes("key", name, field, line)

    def take_value(self, name: str, field: Any, line: bytes) -> None:
        self._take_bytes("value", name, field, line)

    def take_time(self, name: str, field: Any, line: bytes) -> None:
        del line
        if field is _ABSENT:
            return self._record_missing("timestamp", f"there is no field {name!r}")
        time_ms = time_ms_of(field)
        if time_ms is None:
            return self._record_missing(
                "timestamp",
                f"field {name!r} is not a timestamp, in ms since 1970 or as a date: "
                f"{_shown(field)}",
            )
        self._found["timestamp"].append(time_ms * 1000)
        return None

    def _take_bytes(self, kind: str, name: str, field: Any, line: bytes) -> None:
        if field is _ABSENT:
            return self._record_missing(kind, f"there is no field {name!r}")
        try:
            self._found[kind].append(_bytes_of(name, field, line))
        except UnicodeEncodeError:
            raise LineError(
                self.index, f"field {name!r} has an unpaired surrogate, which is not valid text"
            ) from None
        return None

    def _record_missing(self, kind: str, reason: str) -> None:
        if not self._allows_missing:
            raise LineError(self.index, reason)
        self._missing[kind] += 1
        self._found[kind].append(None)


class _Number(str):
    """A fraction as it was written."""

    __slots__ = ()


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(parse_float=_Number, parse_constant=_refused).decode


def _parsed(line: bytes, index: int) -> dict[str, Any]:
    try:
        found = _decode(line.decode())
    except UnicodeDecodeError:
        raise LineError(index, "not JSON: not UTF-8") from None
    except json.JSONDecodeError as error:
        raise LineError(index, f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise LineError(index, f"not JSON: {reason}") from None
    if not isinstance(found, dict):
        raise LineError(index, "not a JSON object")
    return found


def _field(row: dict[str, Any], name: str) -> Any:
    """A field by its own name, or by its path through nested objects: `user.id`."""
    found: Any = row.get(name, _ABSENT)
    if found is not _ABSENT or "." not in name:
        return found
    found = row
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return _ABSENT
        found = found[part]
    return found


def _bytes_of(name: str, field: Any, line: bytes) -> bytes | None:
    """Text as it is, null as none, anything else as JSON."""
    if field is None or isinstance(field, str):
        return None if field is None else field.encode()
    if isinstance(field, dict | list):  # again, with fractions as numbers
        field = _field(json.loads(line), name)
    return json.dumps(field, ensure_ascii=False, separators=(",", ":")).encode()


def time_ms_of(field: Any) -> int | None:
    """Milliseconds since 1970, or a date and time, of UTC if it does not say; None for others."""
    found: int | None = None
    if isinstance(field, int) and not isinstance(field, bool):
        found = field
    elif isinstance(field, str) and not isinstance(field, _Number):
        found = int(field) if re.fullmatch(r"[0-9]{1,18}", field) else _date_ms(field)
    return found if found is not None and 0 <= found <= TIME_MS_MAX else None


def _date_ms(text: str) -> int | None:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _shown(field: Any) -> str:
    text = str(field) if isinstance(field, _Number) else json.dumps(field)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _record(row: dict[str, Any]) -> dict[str, Any]:
    """The columns of a record. Raises ValueError for what export would not have written."""
    for name in ("topic", "timestamp", "key", "value"):
        if name not in row:
            raise ValueError(f"not a record as export writes it: there is no field {name!r}")
    topic, time_ms, partition = row["topic"], row["timestamp"], row.get("partition")
    if not _is_text(topic):
        raise ValueError("topic is not text")
    if not _is_int(time_ms, TIME_MS_MAX) and time_ms != -1:
        raise ValueError(f"timestamp is not in ms since 1970: {_shown(time_ms)}")
    if partition is not None and not _is_int(partition, (1 << 31) - 1):
        raise ValueError(f"partition is not a number: {_shown(partition)}")
    return {
        "topic": topic,
        "timestamp": None if time_ms == -1 else time_ms * 1000,
        "partition": partition,
        "key": _content("key", row["key"]),
        "value": _content("value", row["value"]),
        "headers": list(_headers(row.get("headers"))),
    }


def _headers(found: Any) -> Iterator[dict[str, Any]]:
    if found is not None and not isinstance(found, list):
        raise ValueError("headers is not a list")
    for header in found or ():
        if not isinstance(header, dict) or not _is_text(header.get("key")):
            raise ValueError("a header has no key")
        yield {"key": header["key"], "value": _content("header", header.get("value"))}


def _content(name: str, found: Any) -> bytes | None:
    """Text, null, or `{"base64": …}` for bytes that are no text."""
    try:
        if found is None:
            return None
        if isinstance(found, str) and not isinstance(found, _Number):
            return found.encode()
        if isinstance(found, dict) and list(found) == ["base64"]:
            return base64.b64decode(found["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error, TypeError, ValueError):
        pass
    raise ValueError(f'{name} is neither text nor null nor {{"base64": …}}: {_shown(found)}')


def _is_text(found: Any) -> bool:
    """Whether a value is text. JSON may have half of a surrogate pair, which is not."""
    if not isinstance(found, str) or isinstance(found, _Number):
        return False
    try:
        found.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_int(found: Any, largest: int) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= largest

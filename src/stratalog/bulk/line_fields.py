"""Lines of JSON as rows: fields taken out of objects, and records as export has written them.

A field that was asked for and is not there, or a time that is none, is an error that tells the
line, unless the reader allows it; then it is counted. What is not JSON is an error always.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import pyarrow as pa

from stratalog.bulk.input_files import Missing, RecordColumns
from stratalog.bulk.json_lines import record_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TIME: Final = pa.timestamp("us")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIME_MS_MAX: Final = (1 << 63) // 1000 - 1
_SHOWN_CHARACTERS: Final = 40
_EXPORTED: Final = re.compile(
    rb'\{"topic":"[^"\\]{1,249}","partition":\d+,"offset":\d+,"timestamp":-?\d+,'
    rb'"timestampType":-?\d+,"key":(?:null|"|\{"base64":")'
)
EXPORTED_BYTES_MAX: Final = 512
"""Of a line: so much shows whether it is export's."""
_ABSENT: Final = object()


class LineError(Exception):
    """A line that is no row; `index` counts from the first line of those that were given."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason


class Rows(NamedTuple):
    """Columns as the sink takes them."""

    batch: pa.RecordBatch
    missing: Missing = Missing()


def is_exported(start: bytes) -> bool:
    """Whether a line that begins so was written by export: the same fields in the same order."""
    return _EXPORTED.match(start) is not None


@dataclass(frozen=True)
class ValueLines:
    """Lines as they are."""

    def rows(self, lines: pa.Array) -> Rows:
        return Rows(pa.RecordBatch.from_arrays([lines], ["value"]))


@dataclass(frozen=True)
class FieldLines:
    """Lines of JSON, of which fields are taken."""

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
        return Rows(pa.RecordBatch.from_pydict(taken), Missing(times=times_missing))

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
                    raise LineError(index, "timestamp is -1: the record has no time")
            for name, values in columns.items():
                values.append(row[name])
        arrays = {name: pa.array(columns[name], kind) for name, kind in self._kinds().items()}
        return Rows(pa.RecordBatch.from_pydict(arrays), Missing(times=times_missing))

    def _kinds(self) -> dict[str, pa.DataType]:
        kinds = {
            "value": pa.binary(),
            "key": pa.binary(),
            "headers": _HEADERS,
            "timestamp": _TIME,
            "topic": pa.string(),
        }
        return {**kinds, "partition": pa.int32()} if self.keeps_partitions else kinds


LineUse = ValueLines | FieldLines | RecordLines


class _Columns:
    """What is taken out of line after line."""

    def __init__(self, allows_missing: bool) -> None:
        self.index = 0
        self._allows_missing = allows_missing
        self._found: dict[str, list[Any]] = {"key": [], "value": [], "timestamp": []}
        self._missing = {"key": 0, "value": 0, "timestamp": 0}

    @property
    def missing(self) -> Missing:
        return Missing(*self._missing.values())

    def array(self, name: str) -> pa.Array:
        return pa.array(self._found[name], _TIME if name == "timestamp" else pa.binary())

    def take_key(self, name: str, field: Any, line: bytes) -> None:
        self._take_bytes("key", name, field, line)

    def take_value(self, name: str, field: Any, line: bytes) -> None:
        self._take_bytes("value", name, field, line)

    def take_time(self, name: str, field: Any, line: bytes) -> None:
        del line
        if field is _ABSENT:
            return self._miss("timestamp", f"there is no field {name!r}")
        time_ms = time_ms_of(field)
        if time_ms is None:
            return self._miss(
                "timestamp",
                f"field {name!r} is not a time, in ms since 1970 or as a date: {_shown(field)}",
            )
        self._found["timestamp"].append(time_ms * 1000)
        return None

    def _take_bytes(self, kind: str, name: str, field: Any, line: bytes) -> None:
        if field is _ABSENT:
            return self._miss(kind, f"there is no field {name!r}")
        try:
            self._found[kind].append(_bytes_of(name, field, line))
        except UnicodeEncodeError:
            raise LineError(self.index, f"field {name!r} is half a character") from None
        return None

    def _miss(self, kind: str, reason: str) -> None:
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
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        raise LineError(index, f"not JSON: {reason}") from None
    if not isinstance(found, dict):
        raise LineError(index, "not a JSON object")
    return found


def _field(row: dict[str, Any], name: str) -> Any:
    """Under its own name, or that of objects in objects: `user.id`."""
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
    return found if found is not None and 0 <= found <= _TIME_MS_MAX else None


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
    if not _is_int(time_ms, _TIME_MS_MAX) and time_ms != -1:
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
    """JSON may also have half a character, which is none."""
    if not isinstance(found, str) or isinstance(found, _Number):
        return False
    try:
        found.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_int(found: Any, largest: int) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= largest

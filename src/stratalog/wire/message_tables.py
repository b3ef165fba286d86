"""The tables of messages: text in, descriptors out.

    ProduceRequest 3-13 flexible 9+
      transactionalId: string?
      acks: int16
      topicData: []{}
        name: string 3-12
        topicId: uuid 13+

A message begins with its name and its versions. Below it are its fields, those of a struct indented
further: name, kind, versions. `[]` is an array, `{}` a struct; `?` allows null, `null 2+` allows it
from that version on; `tag 0` makes it a tagged field; `= -1` is its default. Without, a field
marked `?` is null, any other zero or empty. Field names are Kafka's.

A paragraph without versions is a struct: fields below it in its module name it instead of `{}`.
The fields of a message may be named in the same way.

A table is read when the first message of its module is asked for.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from stratalog.format.messages.schema import VERSION_MAX, Array, Field, Message
from stratalog.format.uuids import ZERO_ID, encode_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stratalog.format.messages.schema import Kind, Struct, Value

ZERO_UUID: Final = encode_id(ZERO_ID)

_MODULES: Final = ("records", "cluster", "groups", "transactions", "admin", "security")
_HEAD: Final = re.compile(r"(\w+)(?: (\d+)-(\d+)(?: flexible (\d+)\+)?)?")
_FIELD: Final = re.compile(
    r"(?P<indent> +)(?P<name>\w+): (?P<array>\[\])?(?P<kind>\w+|\{\})(?P<null>\?)?"
    r"(?: (?P<since>\d+)(?P<until>\+|-\d+)?)?(?: null (?P<null_since>\d+)\+)?"
    r"(?: tag (?P<tag>\d+))?(?: = (?P<default>.+))?"
)
_ZEROS: Final[dict[str, Value]] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": ZERO_UUID,
}
_INDENT: Final = 2


@cache
def messages_of(module: str) -> dict[str, Message]:
    """The messages of one module of `wire.messages`, by name."""
    table: str = import_module(f"stratalog.wire.messages.{module}").TABLE
    structs: dict[str, Struct] = {}
    messages = {}
    for paragraph in table.strip().split("\n\n"):
        head, *lines = paragraph.splitlines()
        match = _HEAD.fullmatch(head)
        assert match is not None, head
        name, version_min, version_max, flexible_since = match.groups()
        structs[name] = _parse_struct(lines, structs)
        if version_max is not None:
            messages[name] = Message(
                name,
                structs[name],
                version_max=int(version_max),
                flexible_since=VERSION_MAX + 1 if flexible_since is None else int(flexible_since),
                version_min=int(version_min),
            )
    return messages


@cache
def message_named(name: str) -> Message:
    """A message by its name, such as "FetchResponse"."""
    return next(messages_of(module)[name] for module in _MODULES if name in messages_of(module))


def _parse_struct(lines: list[str], structs: Mapping[str, Struct]) -> Struct:
    matches = [_FIELD.fullmatch(line) for line in lines]
    rows = [row for row in matches if row is not None]
    assert len(rows) == len(lines), lines
    return tuple(_parse_fields(rows, _INDENT, structs))


def _parse_fields(
    rows: list[re.Match[str]], indent: int, structs: Mapping[str, Struct]
) -> Iterator[Field]:
    """The fields at this indent, with those below them."""
    starts = [at for at, row in enumerate(rows) if len(row["indent"]) == indent]
    for start, end in pairwise([*starts, len(rows)]):
        below = tuple(_parse_fields(rows[start + 1 : end], indent + 2, structs))
        row = rows[start]
        kind: Kind = below if row["kind"] == "{}" else structs.get(row["kind"], row["kind"])
        yield _parse_field(row, Array(kind) if row["array"] else kind)


def _parse_field(row: re.Match[str], kind: Kind) -> Field:
    since, until = _versions_of(row)
    nullable_since = VERSION_MAX + 1
    if row["null"]:
        nullable_since = since
    elif row["null_since"]:
        nullable_since = int(row["null_since"])
    tag = None if row["tag"] is None else int(row["tag"])
    default = _default_of(kind, is_nullable=bool(row["null"]))
    if row["default"] is not None:
        default = json.loads(row["default"])
    return Field(row["name"], kind, since, until, nullable_since, tag, default)


def _versions_of(row: re.Match[str]) -> tuple[int, int]:
    """Without versions, a field has those of what contains it."""
    if row["since"] is None:
        return 0, VERSION_MAX
    since, until = int(row["since"]), row["until"]
    if until is None:
        return since, since
    return since, VERSION_MAX if until == "+" else int(until[1:])


def _default_of(kind: Kind, *, is_nullable: bool) -> Value:
    if is_nullable:
        return None
    if isinstance(kind, Array):
        return []
    if isinstance(kind, str):
        return _ZEROS.get(kind, 0)
    return {each.name: each.default for each in kind}

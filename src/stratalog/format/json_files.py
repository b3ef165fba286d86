"""Stratalog's own small files: JSON that is read strictly, value by value.

`decode_json` calls a parser that takes what it expects with `as_text`, `as_count` and `id_of`; what
these raise becomes a CorruptCheckpointError.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from stratalog.errors import CorruptCheckpointError, UnsupportedError
from stratalog.format.uuids import decode_id, encode_id

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Container, Mapping

T = TypeVar("T")


def encode_json(content: Mapping[str, object]) -> bytes:
    """The content of a file: JSON, which people can read too."""
    return (json.dumps(content, indent=1) + "\n").encode()


def decode_json(
    data: bytes, parse: Callable[[Any], T], what: str, *, file: str, versions: Container[int]
) -> T:
    """What `parse` finds in a JSON file. Raises CorruptCheckpointError if the content is not what
    it expects, UnsupportedError if the file is not of one of these versions."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"not JSON: {error}") from None
    try:
        version = as_count(content["version"])
        if version not in versions:
            raise UnsupportedError(f"version {version} of {file} is not supported")
        return parse(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptCheckpointError(f"not {what}: {error!r}") from None


def as_text(value: Any) -> str:
    """A string of a JSON file. Raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def as_count(value: Any) -> int:
    """A number from 0 to 2^63 - 1 of a JSON file. Raises TypeError for anything else."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise TypeError(f"{value!r} is not a count")
    return value


def id_text(topic_id: uuid.UUID | None) -> str | None:
    """A topic id, or none, in a JSON file."""
    return None if topic_id is None else encode_id(topic_id)


def id_of(text: Any) -> uuid.UUID | None:
    """A topic id, or none, of a JSON file. Raises TypeError or ValueError for anything else."""
    if text is None:
        return None
    topic_id = decode_id(as_text(text))
    if topic_id is None:
        raise ValueError(f"{text!r} is not an id")
    return topic_id

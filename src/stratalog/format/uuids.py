"""The ids of topics, directories and clusters, as Kafka writes them.

An id is 16 bytes, written as 22 characters of URL-safe base64 without padding.
"""

from __future__ import annotations

import base64
import re
import uuid
from typing import Final

ZERO_ID: Final = uuid.UUID(int=0)
METADATA_TOPIC_ID: Final = uuid.UUID(int=1)

_ID = re.compile(r"[A-Za-z0-9_-]{22}(?:==)?")


def encode_id(value: uuid.UUID) -> str:
    """22 characters of URL-safe base64."""
    return id_text(value.bytes)


def id_text(raw: bytes) -> str:
    """The same for the 16 bytes of an id."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def decode_id(text: str) -> uuid.UUID | None:
    """The id, or None if `text` is not one."""
    if not _ID.fullmatch(text):
        return None
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text[:22] + "=="))

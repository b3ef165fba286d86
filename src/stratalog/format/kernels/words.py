"""The fixed words of a dump's lines, each in a slot of its own, so that one copy puts it."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from stratalog.format.kernels.jit import outlined, spliced
from stratalog.format.kernels.memory import copy

_SLOT_BYTES: Final = 32
_READABLE_BYTES: Final = 128  # behind a word's start: what a wide copy may read

_texts: list[bytes] = []


class Word(NamedTuple):
    """Where a word lies in `TABLE`, and its size."""

    at: int
    size: int


def _word(text: str) -> Word:
    _texts.append(text.encode().ljust(_SLOT_BYTES, b"\0"))
    return Word((len(_texts) - 1) * _SLOT_BYTES, len(text))


BASE_OFFSET: Final = _word("baseOffset: ")
LAST_OFFSET: Final = _word(" lastOffset: ")
COUNT: Final = _word(" count: ")
BASE_SEQUENCE: Final = _word(" baseSequence: ")
LAST_SEQUENCE: Final = _word(" lastSequence: ")
PRODUCER_ID: Final = _word(" producerId: ")
PRODUCER_EPOCH: Final = _word(" producerEpoch: ")
LEADER_EPOCH: Final = _word(" partitionLeaderEpoch: ")
IS_TRANSACTIONAL: Final = _word(" isTransactional: ")
IS_CONTROL: Final = _word(" isControl: ")
DELETE_HORIZON: Final = _word(" deleteHorizonMs: OptionalLong")
EMPTY: Final = _word(".empty")
POSITION: Final = _word(" position: ")
CREATE_TIME: Final = _word(" CreateTime: ")
LOG_APPEND_TIME: Final = _word(" LogAppendTime: ")
SIZE: Final = _word(" size: ")
MAGIC: Final = _word(" magic: ")
CODEC: Final = _word(" compresscodec: ")
CRC: Final = _word(" crc: ")
IS_VALID: Final = _word(" isvalid: ")
TRUE: Final = _word("true")
FALSE: Final = _word("false")
NONE: Final = _word("none")
GZIP: Final = _word("gzip")
SNAPPY: Final = _word("snappy")
LZ4: Final = _word("lz4")
ZSTD: Final = _word("zstd")
OFFSET: Final = _word("| offset: ")
KEY_SIZE: Final = _word(" keySize: ")
VALUE_SIZE: Final = _word(" valueSize: ")
SEQUENCE: Final = _word(" sequence: ")
HEADER_KEYS: Final = _word(" headerKeys: [")
FIRST_KEY: Final = _word("| key: ")
KEY: Final = _word(" key: ")
PAYLOAD: Final = _word(" payload: ")

TABLE: Final = np.frombuffer(b"".join(_texts) + bytes(_READABLE_BYTES), np.uint8).copy()
"""All words. Kernels are given its address."""


@outlined
def put(out: int, table: int, word: Word) -> int:
    """A word at address `out`; may write 31 bytes more."""
    source = table + word.at
    copy(out, source, word.size, source + _READABLE_BYTES)
    return out + word.size


@spliced
def put_boolean(out: int, table: int, value: bool) -> int:
    return put(out, table, TRUE) if value else put(out, table, FALSE)

"""The fixed words in the lines of a dump, in slots, so that a kernel copies each at once."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from stratalog.format.kernels.jit import ast_inlined, not_inlined
from stratalog.format.kernels.memory import copy, load_le_i64, load_u8, store_u8

_SLOT_BYTES: Final = 32
_READABLE_BYTES: Final = 128  # behind a word's start: what a wide copy may read

_texts: list[bytes] = []


class Word(NamedTuple):
    """The position of a word in `TABLE`, and its size."""

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


@not_inlined
def put_word(out: int, table: int, word: Word) -> int:
    """A word at address `out`; may write 31 bytes more."""
    source = table + word.at
    copy(out, source, word.size, source + _READABLE_BYTES)
    return out + word.size


@ast_inlined
def put_boolean(out: int, table: int, value: bool) -> int:
    return put_word(out, table, TRUE) if value else put_word(out, table, FALSE)


# Text written by kernels: decimal integers, fixed words, UTF-8 as Java shows it. Every function
# takes the address to write at and returns the address after what it wrote. They may write up to 31
# bytes more, for which the target must have room.

_HIGH_BITS: Final = -0x7F7F_7F7F_7F7F_7F80  # 0x8080808080808080 as a signed long
_PAIRS: Final = np.frombuffer(
    "".join(f"{number:02d}" for number in range(100)).encode(), np.uint8
).copy()


@not_inlined
def put_int(out: int, value: int) -> int:
    """`value` in decimal."""
    if value < 0:
        store_u8(out, 45)  # -
        out += 1
        if value == -(2**63):  # has no positive twin
            store_u8(out, 57)  # the 9 of 9223372036854775808
            out += 1
            value = -223372036854775808
        value = -value
    if value < 10:
        store_u8(out, 48 + value)
        return out + 1
    size = _digits(value)
    at = out + size
    while value >= 100:
        pair = value % 100 * 2
        value //= 100
        at -= 2
        store_u8(at, _PAIRS[pair])
        store_u8(at + 1, _PAIRS[pair + 1])
    if value >= 10:
        store_u8(at - 2, _PAIRS[value * 2])
        store_u8(at - 1, _PAIRS[value * 2 + 1])
    else:
        store_u8(at - 1, 48 + value)
    return out + size


@ast_inlined
def _digits(value: int) -> int:
    """How many digits a positive number has."""
    size = 1
    while value >= 10000:
        value //= 10000
        size += 4
    if value >= 1000:
        return size + 3
    if value >= 100:
        return size + 2
    if value >= 10:
        return size + 1
    return size


@not_inlined
def put_utf8(out: int, source: int, size: int, readable_end: int) -> int:
    """The text at `source` as `java_text.decode_utf8` reads it: malformed sequences become U+FFFD.

    Writes at most three times `size`.
    """
    at = source
    end = source + size
    while end - at >= 8:
        if load_le_i64(at) & _HIGH_BITS:
            return _put_any(out, source, end)
        at += 8
    while at < end:
        if load_u8(at) >= 0x80:
            return _put_any(out, source, end)
        at += 1
    copy(out, source, size, readable_end)
    return out + size


@not_inlined
def _put_any(out: int, at: int, end: int) -> int:
    while at < end:
        byte = load_u8(at)
        if byte < 0x80:
            store_u8(out, byte)
            out += 1
            at += 1
            continue
        size = _well_formed(at, end)
        if size > 0:
            for i in range(size):
                store_u8(out + i, load_u8(at + i))
            out += size
            at += size
        else:
            store_u8(out, 0xEF)
            store_u8(out + 1, 0xBF)
            store_u8(out + 2, 0xBD)
            out += 3
            at += _malformed(at, end)
    return out


@ast_inlined
def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80


@ast_inlined
def _may_be_second(lead: int, second: int) -> bool:
    if lead == 0xE0 and second < 0xA0:
        return False
    if lead == 0xF0 and second < 0x90:
        return False
    if lead == 0xF4 and second > 0x8F:
        return False
    return _is_continuation(second)


@ast_inlined
def _well_formed(at: int, end: int) -> int:
    """The size of the sequence of two bytes or more at `at`, or 0 when it is malformed."""
    lead = load_u8(at)
    left = end - at
    if lead < 0xC2 or lead > 0xF4 or left < 2:
        return 0
    second = load_u8(at + 1)
    if lead < 0xE0:
        return 2 if _is_continuation(second) else 0
    if not _may_be_second(lead, second) or left < 3 or not _is_continuation(load_u8(at + 2)):
        return 0
    if lead < 0xF0:
        return 0 if lead == 0xED and second >= 0xA0 else 3
    return 4 if left >= 4 and _is_continuation(load_u8(at + 3)) else 0


@ast_inlined
def _malformed(at: int, end: int) -> int:
    """How many bytes one U+FFFD stands for."""
    lead = load_u8(at)
    left = end - at
    if lead < 0xE0 or lead > 0xF4:
        return 1
    if left > 1 and not _may_be_second(lead, load_u8(at + 1)):
        return 1
    if left < 3:
        return left
    return 3 if _is_continuation(load_u8(at + 2)) else 2

"""Kafka's text checkpoints: `leader-epoch-checkpoint` and the four offset files of a log directory.

Line 1 is the version, line 2 the number of entries, then one entry per line, its fields separated
by white space. A file that is empty, or ends after its version, has no entries: that is a new
directory. Anything else is an error; the caller decides what to assume then.

The four offset files (`topic partition offset` lines) mean, per partition:

* `recovery-point-offset-checkpoint`: everything below is flushed;
* `log-start-offset-checkpoint`: the log start, if it is above the first segment's base offset;
* `replication-offset-checkpoint`: the high watermark;
* `cleaner-offset-checkpoint`: the first offset compaction has not cleaned.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import UnsupportedError
from stratalog.format.java_text import Line, parse_int, read_lines
from stratalog.format.names import TopicPartition, check_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stratalog.format.buffers import Buffer

VERSION: Final = 0

_WHITE = re.compile(r"[ \t\n\x0b\f\r]+")  # what Java calls white space


class EpochEntry(NamedTuple):
    """The first offset that the leader of this epoch wrote, or would have written."""

    epoch: int
    start_offset: int


class CheckpointedOffset(NamedTuple):
    """One line of an offset checkpoint."""

    topic: str
    partition: int
    offset: int


def decode_leader_epochs(buf: Buffer) -> tuple[EpochEntry, ...]:
    """The epochs in file order, which is ascending in a file that Kafka wrote."""
    return tuple(_epoch_entry(line) for line in _entry_lines(buf))


def encode_leader_epochs(entries: Iterable[EpochEntry]) -> bytes:
    """The bytes of a `leader-epoch-checkpoint`."""
    return _encode([f"{entry.epoch} {entry.start_offset}" for entry in entries])


def decode_offsets(buf: Buffer) -> dict[TopicPartition, int]:
    """Decode any of the four offset files. If a partition appears twice, the last offset counts."""
    return dict(_offset_entry(line) for line in _entry_lines(buf))


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode any of the four offset files, in the order of the mapping. Kafka's order is that of a
    hash map."""
    lines = []
    for (topic, partition), offset in offsets.items():
        check_topic_name(topic)  # a topic with a space in it would make the file unreadable
        lines.append(f"{topic} {partition} {offset}")
    return _encode(lines)


def _entry_lines(buf: Buffer) -> list[Line]:
    lines = read_lines(buf)
    if not lines:
        return []
    version = _int_line(lines[0])
    if version != VERSION:
        raise UnsupportedError(f"checkpoint version {version} is not supported")
    if len(lines) == 1:
        return []
    count = _int_line(lines[1])
    entries = lines[2:]
    if len(entries) != count:
        raise lines[1].wrong(f"{count} entries expected, {len(entries)} found")
    return entries


def _int_line(line: Line) -> int:
    value = parse_int(line.text, bits=32)
    if value is None:
        raise line.wrong(f"{line.text[:40]!r} is not a number")
    return value


def _epoch_entry(line: Line) -> EpochEntry:
    epoch, start_offset = _fields(line, 2)
    entry = EpochEntry(_number(line, epoch, 32), _number(line, start_offset, 64))
    if min(entry) < 0:
        raise line.wrong(f"negative epoch or offset in {line.text!r}")
    return entry


def _offset_entry(line: Line) -> tuple[TopicPartition, int]:
    topic, partition, offset = _fields(line, 3)
    topic_partition = TopicPartition(topic, _number(line, partition, 32))
    return topic_partition, _number(line, offset, 64)


def _fields(line: Line, count: int) -> list[str]:
    fields = _WHITE.split(line.text.rstrip(" \t\v\f"))
    if len(fields) != count or not fields[0]:
        raise line.wrong(f"{line.text[:40]!r} does not have {count} fields")
    return fields


def _number(line: Line, text: str, bits: int) -> int:
    value = parse_int(text, bits=bits)
    if value is None:
        raise line.wrong(f"{text[:40]!r} is not a {bits}-bit number")
    return value


def _encode(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (VERSION, len(lines), *lines)).encode()

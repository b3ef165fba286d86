"""Control records: what brokers write into a log for themselves, above all transaction markers.

A control batch has one record (none if compaction emptied it). The key has the type; unknown types
are skipped, because later brokers may add some. Layouts only grow, so a higher version is read as
version 0 with extra bytes.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

from stratalog.errors import CorruptRecordError
from stratalog.format.record import BatchFields, Record, encode_batch

_KEY = struct.Struct(
    ">h"  # version: 0
    "h"  # type
)
_END_MARKER_VALUE = struct.Struct(
    ">h"  # version: 0
    "i"  # coordinator_epoch
)
KEY_BYTES: Final = 4
END_MARKER_VALUE_BYTES: Final = 6
VERSION: Final = 0

assert _KEY.size == KEY_BYTES
assert _END_MARKER_VALUE.size == END_MARKER_VALUE_BYTES


class ControlType(enum.IntEnum):
    """The types of control records. The names are Kafka's."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6

    @classmethod
    def _missing_(cls, _value: object) -> ControlType:
        return cls.UNKNOWN

    @property
    def ends_transaction(self) -> bool:
        return self in {ControlType.ABORT, ControlType.COMMIT}


class ControlKey(NamedTuple):
    """The key of a control record."""

    version: int
    type_id: int
    """As stored; see `type` for its meaning."""

    @property
    def type(self) -> ControlType:
        return ControlType(self.type_id)


class EndMarker(NamedTuple):
    """The end of one producer's transaction: committed or aborted."""

    type: ControlType
    coordinator_epoch: int
    """Fences markers of a replaced transaction coordinator. Only increases."""


def read_control_key(record: Record, *, position: int = 0) -> ControlKey:
    """The key of a record in a control batch. `position` is the batch's, for errors."""
    if record.key is None or len(record.key) < KEY_BYTES:
        raise _wrong(record, position, "key is too short")
    key = ControlKey(*_KEY.unpack_from(record.key))
    if key.version < 0:
        raise _wrong(record, position, f"invalid key version {key.version}")
    return key


def read_end_marker(record: Record, *, position: int = 0) -> EndMarker | None:
    """The transaction marker in a record of a control batch, or None for another type."""
    control_type = read_control_key(record, position=position).type
    if not control_type.ends_transaction:
        return None
    if record.value is None or len(record.value) < END_MARKER_VALUE_BYTES:
        raise _wrong(record, position, "transaction marker is too short")
    version, coordinator_epoch = _END_MARKER_VALUE.unpack_from(record.value)
    if version < 0:
        raise _wrong(record, position, f"transaction marker has version {version}")
    return EndMarker(control_type, coordinator_epoch)


def encode_end_marker(
    marker: EndMarker,
    *,
    offset: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    partition_leader_epoch: int,
) -> bytes:
    """The batch a coordinator writes to end the producer's transaction: 78 bytes, one record."""
    if not marker.type.ends_transaction:
        raise ValueError(f"{marker.type.name} does not end a transaction")
    record = Record(
        offset,
        timestamp,
        key=_KEY.pack(VERSION, marker.type),
        value=_END_MARKER_VALUE.pack(VERSION, marker.coordinator_epoch),
    )
    fields = BatchFields(
        is_transactional=True,
        is_control=True,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    return encode_batch([record], fields)


def _wrong(record: Record, position: int, reason: str) -> CorruptRecordError:
    offsets = (record.offset, record.offset)
    return CorruptRecordError(f"control record: {reason}", position=position, offsets=offsets)

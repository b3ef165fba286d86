"""What becomes of records and batches in a cleaning pass, and why, as values that can be shown."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from stratalog.format.entry import EntryHeader
    from stratalog.format.record import Record

NOT_MAPPED: Final = -1
"""In the place of an offset: the offset map has none for the key."""


class RecordReason(enum.StrEnum):
    """Why a record stays or goes."""

    NEWEST = "newest record of its key"
    NOT_MAPPED = "no newer record of its key among the dirty ones"
    BEYOND_MAP = "beyond the part that this pass looked at"
    TOMBSTONE_PROTECTED = "tombstone that readers may still need"
    MARKER = "transaction marker"
    SUPERSEDED = "superseded by a newer record of its key"
    TOMBSTONE_EXPIRED = "tombstone past its delete horizon"
    NO_KEY = "no key"
    ABORTED = "of an aborted transaction"
    MARKER_EXPIRED = "marker of a transaction without data, past its delete horizon"


class Fate(enum.StrEnum):
    """What becomes of a batch."""

    COPIED = "copied"
    REBUILT = "rebuilt"
    EMPTIED = "kept as a header without records"
    DROPPED = "dropped"


class BatchReason(enum.StrEnum):
    """Why that becomes of a batch."""

    ALL_KEPT = "every record stays"
    RECORDS_DROPPED = "some records go"
    HORIZON_SET = "it gets a delete horizon"
    MAGIC_MENDED = "its messages are of another format than their wrapper"
    LAST_OF_PRODUCER = "it holds the last sequence number of a live producer"
    ENDS_AT_BOUND = "it ends where the round ends"
    NOTHING_LEFT = "no record stays"
    ABORTED = "its transaction was aborted"
    MARKER_EXPIRED = "a marker without data, past its delete horizon"


class Verdict(NamedTuple):
    """What becomes of one record."""

    offset: int
    is_kept: bool
    reason: RecordReason
    newer_offset: int = NOT_MAPPED
    """With SUPERSEDED: of the record that took its place."""


class FilteredEntry(NamedTuple):
    """What a pass makes of one batch."""

    header: EntryHeader
    fate: Fate
    reason: BatchReason
    data: bytes
    """What is written; empty when the batch is dropped."""
    kept: tuple[Record, ...]
    verdicts: tuple[Verdict, ...]
    """One per record; none when the batch goes as a whole, whatever its records are."""
    max_offset: int
    """What an index entry names: the last kept record when rebuilt, else the batch's last offset;
    -1 when it is dropped."""
    max_timestamp: int
    delete_horizon_ms: int | None
    """As written."""

"""Batches on their way into the log: checked, and given their offsets if this is the leader.

`validate_leader` is for data that producers and coordinators send; `validate_follower` for data
that a leader has placed already. Both are functions of bytes and values: no file, no clock.
`LeaderValidator` does the same for several requests at once, so that they can be written at once.

The leader has two ways with one answer. `batch_checks` and `batch_assigning` say everything
readably; a compiled kernel does the common case (whole batches that are stored as they came) at a
hundred times the speed, but takes half a second to load. Which pays off is not known beforehand, so
the readable way is used until it has cost about as much as loading would have, or until something
else has loaded the kernel. What the kernel does not take goes the readable way, to be refused with
a reason or to be rewritten.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

from stratalog.errors import (
    AppendError,
    CorruptError,
    CorruptMessageError,
    LimitExceededError,
    RecordListTooLargeError,
    StratalogError,
    UnexpectedAppendOffsetError,
)
from stratalog.format.batch import (
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    OFFSET_MAX,
    BatchHeader,
)
from stratalog.format.batch_span import BatchSpan
from stratalog.format.entry import records_of
from stratalog.log.appends import (
    EMPTY_APPEND,
    NO_OFFSET,
    Assignment,
    GroupAppend,
    ValidatedAppend,
    next_assignment,
)
from stratalog.log.batch_assigning import assign_in_place, can_stay, max_timestamp_of, rewrite
from stratalog.log.batch_checks import (
    check_records,
    check_together,
    sent_batches,
    sent_records,
    too_large,
)
from stratalog.log.compiled_validation import CompiledValidation
from stratalog.log.origin import AppendOrigin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.format.buffers import Buffer
    from stratalog.log.appends import AppendResult, AppendRules
    from stratalog.log.batch_checks import SentBatch

LOAD_KERNEL_AFTER_RECORDS: Final = 100_000
_KERNEL: Final = "stratalog.format.kernels.validate"
_OFFSETS_PER_REQUEST_MAX: Final = 1 << 31


def validate_leader(data: Buffer, rules: AppendRules, assign: Assignment) -> ValidatedAppend:
    """The batches of one request, ready to be written, or the AppendError that refuses them.

    `data` is not changed. Bytes after the last whole batch are cut off; without any whole batch the
    result is empty.
    """
    return _SHARED.validate(data, rules, assign)


def validate_follower(data: Buffer, *, log_end_offset: int) -> ValidatedAppend:
    """The batches a leader has placed, of every magic, to be written as they are.

    They may be larger than the topic allows by now: the leader has accepted them. Raises
    CorruptMessageError for damage, UnexpectedAppendOffsetError for data that does not continue the
    log.
    """
    assign = Assignment(log_end_offset, NO_LEADER_EPOCH, NO_TIMESTAMP, AppendOrigin.REPLICATION)
    return _placed(data, sent_batches(data, assign, max_message_bytes=None), log_end_offset)


class LeaderValidator:
    """Validates requests for the leader, in compiled code once that pays off."""

    def __init__(self, *, compiled: bool | None = None) -> None:
        """`compiled` None leaves it to be found out, True loads the kernel with the first use."""
        self._may_load = compiled is not False
        self._records_seen = LOAD_KERNEL_AFTER_RECORDS + 1 if compiled else 0
        self._compiled: CompiledValidation | None = None

    def validate(self, data: Buffer, rules: AppendRules, assign: Assignment) -> ValidatedAppend:
        """What `validate_leader` does."""
        _check_offsets_left(assign, 1)
        compiled = self._compiled_for(rules, assign.origin)
        if compiled is not None:
            append = compiled.validate(data, assign)
            if append is not None:
                return append
        result = self._readably(data, rules, assign)
        if isinstance(result, AppendError):
            raise result
        return result

    def validate_group(
        self, requests: Sequence[Buffer], rules: AppendRules, assign: Assignment
    ) -> GroupAppend:
        """Several requests, each answered as if it came alone after those before it.

        A refused request takes no offsets, and its error is its result.
        """
        _check_offsets_left(assign, len(requests))
        compiled = self._compiled_for(rules, assign.origin)
        if compiled is not None:
            return compiled.validate_group(requests, assign, self._readably)
        results: list[AppendResult] = []
        for data in requests:
            results.append(self._readably(data, rules, assign))
            assign = next_assignment(assign, results[-1])
        log_append_time_ms = assign.now_ms if rules.is_log_append_time else NO_TIMESTAMP
        return GroupAppend.of(results, assign.next_offset, log_append_time_ms)

    def _readably(self, data: Buffer, rules: AppendRules, assign: Assignment) -> AppendResult:
        try:
            result = validate_readably(data, rules, assign)
        except AppendError as error:
            return error
        self._records_seen += result.record_count
        return result

    def _compiled_for(self, rules: AppendRules, origin: AppendOrigin) -> CompiledValidation | None:
        compiled = self._compiled
        if compiled is not None and compiled.rules is rules and compiled.origin is origin:
            return compiled
        if not self._may_load or origin is AppendOrigin.RAFT_LEADER:
            return None
        if self._records_seen <= LOAD_KERNEL_AFTER_RECORDS and _KERNEL not in sys.modules:
            return None
        self._compiled = CompiledValidation(import_module(_KERNEL), rules, origin)
        return self._compiled


def _check_offsets_left(assign: Assignment, requests: int) -> None:
    if assign.next_offset > OFFSET_MAX - requests * _OFFSETS_PER_REQUEST_MAX:
        raise LimitExceededError(f"no offsets are left after {assign.next_offset}")


_SHARED: Final = LeaderValidator()


def validate_readably(data: Buffer, rules: AppendRules, assign: Assignment) -> ValidatedAppend:
    """What `validate_leader` does, in Kafka's order and without compiled code."""
    batches = sent_batches(data, assign, max_message_bytes=rules.max_message_bytes)
    if not batches:
        return EMPTY_APPEND
    if assign.origin is AppendOrigin.RAFT_LEADER:
        append = _placed(data, batches, assign.next_offset)
    else:
        append = _assigned(data, batches, rules, assign)
    if len(append.data) > rules.segment_bytes:
        raise RecordListTooLargeError(
            f"{len(append.data)} bytes do not fit a segment of {rules.segment_bytes} bytes"
        )
    return append


def _assigned(
    data: Buffer, batches: Sequence[SentBatch], rules: AppendRules, assign: Assignment
) -> ValidatedAppend:
    check_together(batches, assign.origin)
    records = []
    for batch in batches:
        found = sent_records(data, batch)
        check_records(found, batch.header, rules, assign.now_ms)
        records += found
    entry, header = batches[0]
    if can_stay(header, records, rules):
        assert isinstance(header, BatchHeader)
        whole = memoryview(data)[: entry.size_bytes]
        return assign_in_place(whole, header, max_timestamp_of(records), rules, assign)
    append = rewrite(records, [batch.header for batch in batches], rules, assign)
    if len(append.data) > rules.max_message_bytes:
        raise too_large(len(append.data), rules.max_message_bytes)
    return append


def _placed(data: Buffer, batches: Sequence[SentBatch], log_end_offset: int) -> ValidatedAppend:
    """Batches that bring their offsets along. As in Kafka, what must grow is the last offset."""
    if not batches:
        return EMPTY_APPEND
    spans = []
    last_offset, max_timestamp, offset_of_max_timestamp = NO_OFFSET, NO_TIMESTAMP, NO_OFFSET
    for batch in batches:
        span = _span(data, batch)
        if span.last_offset <= last_offset:
            raise UnexpectedAppendOffsetError(
                f"offset {span.last_offset} follows offset {last_offset}"
            )
        last_offset = span.last_offset
        if span.max_timestamp > max_timestamp:
            max_timestamp, offset_of_max_timestamp = span.max_timestamp, last_offset
        spans.append(span)
    header = batches[0].header
    first_known = header.last_offset if header.base_offset is None else header.base_offset
    if first_known < log_end_offset:
        raise UnexpectedAppendOffsetError(
            f"offset {first_known} is below the log end offset {log_end_offset}"
        )
    return ValidatedAppend(
        data=memoryview(data)[: batches[-1].entry.end],
        spans=tuple(spans),
        headers=tuple(batch.header for batch in batches),
        first_offset=spans[0].base_offset,
        last_offset=last_offset,
        max_timestamp=max_timestamp,
        offset_of_max_timestamp=offset_of_max_timestamp,
    )


def _span(data: Buffer, batch: SentBatch) -> BatchSpan:
    entry, header = batch
    base_offset = header.base_offset
    if base_offset is None:
        base_offset = _first_offset(data, batch)
    elif not 0 <= base_offset <= header.last_offset <= OFFSET_MAX:
        raise CorruptMessageError(f"batch has offsets {base_offset} to {header.last_offset}")
    return BatchSpan(
        entry.position, entry.size_bytes, base_offset, header.last_offset, header.max_timestamp
    )


def _first_offset(data: Buffer, batch: SentBatch) -> int:
    """Of a compressed legacy set. One that cannot be read is the leader's business."""
    try:
        return next(records_of(data, batch.entry, check_crc=False)).offset
    except (CorruptError, StratalogError, StopIteration):
        return batch.header.last_offset

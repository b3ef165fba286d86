"""Requests of a leader through the compiled kernel, and past it where it does not take one.

The requests are laid end to end in one buffer, which the kernel patches and which is then written.
Plain batches go to the kernel in runs, compressed ones one by one with their records decompressed
beside them. If the topic wants another codec, the records are copied into a new batch. A request
that the kernel leaves alone goes the readable way; it and all after it are then taken one by one,
and the buffer is put together again from what was accepted.
"""

from __future__ import annotations

import struct
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from stratalog.errors import StratalogError
from stratalog.format.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    BatchSpan,
    Codec,
    attributes_of,
)
from stratalog.format.buffers import Scratch
from stratalog.format.compression import compress, decompress_into
from stratalog.format.record import seal_batch
from stratalog.log.appends import AppendOrigin, GroupAppend, keeps_codec, next_assignment, one_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stratalog.format.buffers import Buffer
    from stratalog.format.entry import EntryHeader
    from stratalog.log.appends import AppendResult, AppendRules, Assignment, ValidatedAppend

    Readable: TypeAlias = Callable[[Buffer, AppendRules, Assignment], AppendResult]

_CANONICAL_KERNEL: Final = "stratalog.format.kernels.canonical"
_SCRATCH_BYTES_KEPT: Final = 4 << 20
_RUN_REQUESTS_MAX: Final = 256
_LOW_ATTRIBUTES_AT: Final = ATTRIBUTES_AT + 1
_RULES = struct.Struct(
    "<q"  # flags
    "q"  # largest batch, in bytes
    "q"  # timestamp limit before now, in ms
    "q"  # timestamp limit after now, in ms
)
_ASSIGN = struct.Struct(
    "<q"  # next offset
    "q"  # leader epoch
    "q"  # now, in ms
)
_SIZE = struct.Struct("<q")  # of each batch, in bytes
_thread = threading.local()


class CompiledValidation:
    """The kernel under one topic's rules. Keeps nothing between appends."""

    def __init__(self, kernel: Any, rules: AppendRules, origin: AppendOrigin) -> None:
        self._kernel = kernel
        self.rules = rules
        self.origin = origin
        flags = kernel.CLIENT if origin is AppendOrigin.CLIENT else 0
        flags |= kernel.COMPACTED if rules.is_compacted else 0
        flags |= kernel.LOG_APPEND_TIME if rules.is_log_append_time else 0
        self._is_log_append_time = rules.is_log_append_time
        self._packed_rules = _RULES.pack(
            flags,
            min(rules.max_message_bytes, rules.segment_bytes),
            rules.timestamp_before_max_ms,
            rules.timestamp_after_max_ms,
        )

    def validate(self, data: Buffer, assign: Assignment) -> ValidatedAppend | None:
        """One request, or None if the kernel does not accept it."""
        codec = self._kept_codec(data)
        if codec is None:
            return self._rewritten(data, assign)
        out = bytearray(data)
        terms = self._terms(assign, assign.next_offset) + _SIZE.pack(len(out))
        if not self._run(out, codec, len(out), terms):
            return None
        return one_batch(out, BatchHeader.unpack(out), self._log_append_time(assign))

    def validate_group(
        self, requests: Sequence[Buffer], assign: Assignment, readably: Readable
    ) -> GroupAppend:
        """All requests in order. `readably` validates those that the kernel does not accept."""
        data = bytearray().join(requests)
        spans: list[BatchSpan] = []
        headers: list[EntryHeader] = []
        next_offset = self._place(data, requests, assign, (spans, headers))
        log_append_time_ms = self._log_append_time(assign)
        group = GroupAppend(data, spans, headers, next_offset, log_append_time_ms)
        if len(spans) == len(requests):
            return group
        results = list(group.results)
        for request in requests[len(spans) :]:
            at = assign._replace(next_offset=next_offset)
            results.append(self.validate(request, at) or readably(request, self.rules, at))
            next_offset = next_assignment(at, results[-1]).next_offset
        return GroupAppend.of(results, next_offset, log_append_time_ms)

    def _place(
        self,
        data: bytearray,
        requests: Sequence[Buffer],
        assign: Assignment,
        found: tuple[list[BatchSpan], list[EntryHeader]],
    ) -> int:
        """Let the kernel do requests up to the first it does not accept; the offset after them."""
        spans, headers = found
        view = memoryview(data)
        start, next_offset = 0, assign.next_offset
        while len(spans) < len(requests):
            sizes, codec = self._next_run(requests, len(spans))
            if codec is None:
                break
            terms = self._terms(assign, next_offset) + struct.pack(f"<{len(sizes)}q", *sizes)
            done = self._run(view[start:], codec, sizes[0], terms)
            for size in sizes[:done]:
                header = BatchHeader.unpack(data, start)
                last_offset = next_offset + header.last_offset_delta
                spans.append(BatchSpan(start, size, next_offset, last_offset, header.max_timestamp))
                headers.append(header)
                next_offset = last_offset + 1
                start += size
            if done < len(sizes):
                break
        return next_offset

    def _next_run(self, requests: Sequence[Buffer], first: int) -> tuple[list[int], int | None]:
        """The sizes of the requests that go together, the one at `first` at least, and the codec
        of that one; None if it is not stored as it is."""
        codec = self._kept_codec(requests[first])
        sizes = [len(requests[first])]
        if codec == Codec.NONE:
            for data in requests[first + 1 : first + _RUN_REQUESTS_MAX]:
                if self._kept_codec(data) != Codec.NONE:
                    break
                sizes.append(len(data))
        return sizes, codec

    def _kept_codec(self, data: Buffer) -> int | None:
        """The codec of what may be a batch that is stored as it is, else None."""
        if len(data) < HEADER_BYTES:
            return None
        attributes = data[_LOW_ATTRIBUTES_AT]
        codec = attributes & CODEC_MASK
        is_control = attributes & CONTROL_BIT != 0
        return codec if keeps_codec(codec, is_control, self.rules) else None

    def _terms(self, assign: Assignment, next_offset: int) -> bytes:
        """What the kernel has to know, but for the sizes of the batches."""
        return self._packed_rules + _ASSIGN.pack(next_offset, assign.leader_epoch, assign.now_ms)

    def _run(self, buf: bytearray | memoryview, codec: int, size: int, terms: bytes) -> int:
        """How many batches of `buf` the kernel did. `size` and `codec` are the first one's."""
        payload = None
        if codec != Codec.NONE:
            payload = _plain_records(codec, memoryview(buf)[HEADER_BYTES:size])
            if payload is None:
                return 0
        done: int = self._kernel.validate(buf, payload, terms)
        return done

    def _rewritten(self, data: Buffer, assign: Assignment) -> ValidatedAppend | None:
        """One batch with the codec of the topic; None if that takes more than copying records."""
        rules, target = self.rules, self.rules.codec
        if target is None or len(data) < HEADER_BYTES:
            return None
        out, records = bytearray(data), memoryview(data)[HEADER_BYTES:]
        codec = out[_LOW_ATTRIBUTES_AT] & CODEC_MASK
        plain = records if codec == Codec.NONE else _plain_records(codec, records)
        if plain is None:
            return None
        terms = self._terms(assign, assign.next_offset) + _SIZE.pack(len(out))
        if not self._kernel.validate(out, None if plain is records else plain, terms):
            return None
        header = BatchHeader.unpack(out)
        canonical = import_module(_CANONICAL_KERNEL)
        if not canonical.is_canonical(plain, header.record_count, header.base_timestamp):
            return None
        header = header._replace(attributes=_rewritten_attributes(header, target))
        batch = seal_batch(header, compress(target, bytes(plain), level=rules.level))
        if len(batch) > min(rules.max_message_bytes, rules.segment_bytes):
            return None
        append = one_batch(batch, BatchHeader.unpack(batch), self._log_append_time(assign))
        return append._replace(was_rewritten=True)

    def _log_append_time(self, assign: Assignment) -> int:
        return assign.now_ms if self._is_log_append_time else NO_TIMESTAMP


def _rewritten_attributes(header: BatchHeader, codec: Codec) -> int:
    return attributes_of(
        codec=codec,
        timestamp_type=header.timestamp_type,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
    )


def _plain_records(codec: int, stored: memoryview) -> memoryview | None:
    """The decompressed records, valid until the next call of this thread; None if they are bad."""
    scratch: Scratch | None = getattr(_thread, "scratch", None)
    if scratch is None or len(scratch.view) > _SCRATCH_BYTES_KEPT:
        scratch = _thread.scratch = Scratch()
    try:
        end = decompress_into(codec, stored, scratch)
    except StratalogError:
        return None
    return scratch.view[:end]

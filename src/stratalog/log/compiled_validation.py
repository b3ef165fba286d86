"""Validates appends with compiled kernels; requests that they do not accept take the readable path.

The requests are copied end to end into one buffer, which the kernel patches and which is then
written. Which checks need what:

* the 61 bytes of the header: size, magic, codec, counts and offsets that agree, base offset 0,
  no control batch from a client, a base sequence with a producer id, no LogAppendTime;
* the bytes as they are stored: the CRC;
* the uncompressed records: that there are as many as the header says and nothing else, offsets
  without gaps, a key in each record of a compacted topic, timestamps within the topic's limits, and
  the max timestamp, which is corrected if the header has another one.

So a compressed batch is decompressed, but nothing is built of it: lz4 and snappy inside the kernel,
gzip and zstd before the call, into memory that a thread keeps for the next batch. If the topic has
another codec, the records are copied into a new batch. A request that the kernel does not accept
goes through the readable code; it and all after it are then validated one by one, and the buffer is
put together again from what was accepted.
"""

from __future__ import annotations

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
    OFFSET_MAX,
    BatchHeader,
    BatchSpan,
    Codec,
    attributes_of,
)
from stratalog.format.buffers import Scratch
from stratalog.format.compression import compress, decompress_into
from stratalog.format.record import seal_batch
from stratalog.log.offset_assignment import (
    OFFSETS_PER_REQUEST_MAX,
    AppendOrigin,
    GroupAppend,
    keeps_codec,
    next_assignment,
    one_batch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stratalog.format.buffers import Buffer
    from stratalog.format.log_entry import EntryHeader
    from stratalog.log.offset_assignment import (
        AppendResult,
        AppendRules,
        Assignment,
        ValidatedAppend,
    )

    Readable: TypeAlias = Callable[[Buffer, AppendRules, Assignment], AppendResult]

_CANONICAL_KERNEL: Final = "stratalog.format.kernels.canonical"
_COMPRESSED_KERNEL: Final = "stratalog.format.kernels.validate_compressed"
_DECOMPRESSED_BY_KERNEL: Final = frozenset({Codec.NONE, Codec.SNAPPY, Codec.LZ4})
_SCRATCH_BYTES_MIN: Final = 128 << 10
_SCRATCH_BYTES_KEPT: Final = 4 << 20
_LOW_ATTRIBUTES_AT: Final = ATTRIBUTES_AT + 1
_CODEC_AND_CONTROL: Final = CODEC_MASK | CONTROL_BIT
_NEXT_OFFSET_MAX: Final = OFFSET_MAX - OFFSETS_PER_REQUEST_MAX
_thread = threading.local()


class CompiledValidation:
    """The kernels under one topic's rules. Stateless between appends, but not thread-safe."""

    def __init__(self, kernel: Any, rules: AppendRules, origin: AppendOrigin) -> None:
        self._kernel = kernel
        self._loaded_compressed: Any = None
        self.rules = rules
        self.origin = origin
        flags = kernel.CLIENT if origin is AppendOrigin.CLIENT else 0
        flags |= kernel.COMPACTED if rules.is_compacted else 0
        flags |= kernel.LOG_APPEND_TIME if rules.is_log_append_time else 0
        self._is_log_append_time = rules.is_log_append_time
        self._terms = kernel.Terms(
            flags,
            min(rules.max_message_bytes, rules.segment_bytes),
            rules.timestamp_before_max_ms,
            rules.timestamp_after_max_ms,
        )
        self._validate_one = self._terms.validate_one
        self._kept_codecs = {
            attributes: attributes & CODEC_MASK
            for attributes in range(_CODEC_AND_CONTROL + 1)
            if keeps_codec(attributes & CODEC_MASK, attributes & CONTROL_BIT != 0, rules)
        }
        """The codecs that are stored as they are, by the bits of the attributes that decide it."""

    def validate(self, data: Buffer, assign: Assignment) -> ValidatedAppend | None:
        """One request, or None if the kernel does not accept it."""
        out = self.accept(data, *assign[:3])
        if out is None:
            return self._rewritten(data, assign) if self._kept_codec(data) is None else None
        return one_batch(out, BatchHeader.unpack(out), self._log_append_time(assign))

    def accept(
        self, data: Buffer, next_offset: int, leader_epoch: int, now_ms: int
    ) -> bytearray | None:
        """A copy of one request, with its offsets, that is stored as it is. None if the kernel does
        not accept it."""
        if len(data) < HEADER_BYTES or next_offset > _NEXT_OFFSET_MAX:
            return None
        codec = self._kept_codecs.get(data[_LOW_ATTRIBUTES_AT] & _CODEC_AND_CONTROL)
        if codec is None:
            return None
        out = bytearray(data)
        if codec == 0:
            return out if self._validate_one(out, next_offset, leader_epoch, now_ms) else None
        self._terms.assign(next_offset, leader_epoch, now_ms, len(out))
        return out if self._run_compressed(out, [codec], len(out)) else None

    def validate_group(
        self, requests: Sequence[Buffer], assign: Assignment, readably: Readable
    ) -> GroupAppend:
        """All requests in order. `readably` validates those that the kernel does not accept."""
        data = bytearray().join(requests)
        spans: list[BatchSpan] = []
        headers: list[EntryHeader] = []
        next_offset = self._assign_all(data, requests, assign, (spans, headers))
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

    def _assign_all(
        self,
        data: bytearray,
        requests: Sequence[Buffer],
        assign: Assignment,
        found: tuple[list[BatchSpan], list[EntryHeader]],
    ) -> int:
        """Validate requests with the kernel, up to the first that it does not accept. Returns the
        offset after them."""
        spans, headers = found
        view = memoryview(data)
        start, next_offset = 0, assign.next_offset
        while len(spans) < len(requests):
            codecs = self._next_run(requests, len(spans))
            if not codecs:
                break
            sizes = [len(request) for request in requests[len(spans) : len(spans) + len(codecs)]]
            self._terms.assign(next_offset, *assign[1:3], sizes[0])
            self._terms.set_sizes(sizes)
            done = self._run(view[start:], codecs, sizes[0])
            for size in sizes[:done]:
                header = BatchHeader.unpack(data, start)
                last_offset = next_offset + header.last_offset_delta
                spans.append(BatchSpan(start, size, next_offset, last_offset, header.max_timestamp))
                headers.append(header)
                next_offset = last_offset + 1
                start += size
            if not done:
                break
        return next_offset

    def _next_run(self, requests: Sequence[Buffer], first: int) -> list[int]:
        """The codecs of the requests from `first` on that go to the kernel together; none if that
        one is not stored as it is."""
        codecs: list[int] = []
        for data in requests[first : first + self._kernel.BATCHES_MAX]:
            codec = self._kept_codec(data)
            if codec is None:
                break
            if codec not in _DECOMPRESSED_BY_KERNEL:
                return codecs or [codec]
            codecs.append(codec)
        return codecs

    def _kept_codec(self, data: Buffer) -> int | None:
        """The codec of what may be a batch that is stored as it is, else None."""
        if len(data) < HEADER_BYTES:
            return None
        return self._kept_codecs.get(data[_LOW_ATTRIBUTES_AT] & _CODEC_AND_CONTROL)

    def _run(self, buf: memoryview, codecs: Sequence[int], first_bytes: int) -> int:
        """How many of the batches of `buf` were accepted. The terms have their sizes."""
        if any(codecs):
            return self._run_compressed(buf, codecs, first_bytes)
        accepted: int = self._kernel.validate(buf, self._terms, len(codecs))
        return accepted

    def _run_compressed(
        self, buf: bytearray | memoryview, codecs: Sequence[int], first_bytes: int
    ) -> int:
        """`_run`, if there are compressed ones. If the kernel cannot decompress the first, it is
        decompressed here and goes alone."""
        first, accepted = codecs[0], 0
        if first in _DECOMPRESSED_BY_KERNEL:
            room = _scratch().reserve(0, _SCRATCH_BYTES_MIN)
            accepted = self._compressed_kernel().validate_compressed(
                buf, self._terms, len(codecs), room
            )
        if not accepted and first != Codec.NONE:
            payload = _plain_records(first, memoryview(buf)[HEADER_BYTES:first_bytes])
            if payload is not None:
                accepted = self._kernel.validate(buf, self._terms, 1, payload)
        return accepted

    def _compressed_kernel(self) -> Any:
        """Loaded with the first compressed batch."""
        if self._loaded_compressed is None:
            self._loaded_compressed = import_module(_COMPRESSED_KERNEL)
        return self._loaded_compressed

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
        self._terms.assign(*assign[:3], len(out))
        if not self._kernel.validate(out, self._terms, 1, None if plain is records else plain):
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
    scratch = _scratch()
    try:
        end = decompress_into(codec, stored, scratch)
    except StratalogError:
        return None
    return scratch.view[:end]


def _scratch() -> Scratch:
    """The thread's memory for decompressed records. What one huge batch took is released."""
    scratch: Scratch | None = getattr(_thread, "scratch", None)
    if scratch is None or len(scratch.view) > _SCRATCH_BYTES_KEPT:
        scratch = _thread.scratch = Scratch()
    return scratch

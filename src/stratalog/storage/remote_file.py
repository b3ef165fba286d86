"""One file of an object store: turns many small reads into a few large requests.

Two ways of reading, behind the interface of `LogFile`:

* *lookups* jump: the bytes around a position are fetched as a block and kept. A file of up to 2 MiB
  is one block. Blocks that follow each other grow, so a walk over headers takes few requests.
* *scans* are announced with `expect`: ranges of 16 MiB, several in flight while the one before is
  decoded. The first two are smaller, so that reading a few records does not fetch much more.

Memory is bounded: kept blocks, ranges in flight, and the range being read. A scan opens with one
request and ends with one that compares the object's version: if the object was replaced meanwhile,
`check_unchanged` raises, so bytes of another version are never taken for those of the listed one.
Lookups that one response has served need no such request: `check_one_version`.

Nothing is requested before bytes are needed.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import SegmentGoneError
from stratalog.storage.log_file import FileIdentity, LogFile
from stratalog.storage.remote_path import WHOLE_FILE_BYTES, RemotePath
from stratalog.storage.store import (
    Fetch,
    fetch_pool,
    is_same_time,
    modified_s,
    note_fetch,
    version_of,
)

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

BLOCK_BYTES: Final = 256 << 10
LOOK_BACK_BYTES: Final = 32 << 10
"""An index entry may lead to a position a little before the one that was read first."""
BLOCK_BYTES_MAX: Final = 8 << 20
KEPT_BYTES_MAX: Final = 16 << 20
RANGE_BYTES: Final = 16 << 20
FIRST_RANGES: Final = (1 << 20, 7 << 20)
IN_FLIGHT: Final = 4


def ranges_of(position: int, end: int) -> int:
    """How many requests a scan of these bytes takes."""
    count = 0
    while position < end:
        position += _range_bytes(count)
        count += 1
    return count


def _range_bytes(number: int) -> int:
    return FIRST_RANGES[number] if number < len(FIRST_RANGES) else RANGE_BYTES


class _FetchedBlock(NamedTuple):
    start: int
    data: bytes | memoryview


class RemoteFile(LogFile):
    """A file of a store, at the size that it was listed with."""

    def __init__(self, path: Path, identity: FileIdentity | None = None) -> None:
        """Raises FileNotFoundError if a listing, or the store, says that there is none."""
        assert isinstance(path, RemotePath)
        self.path = path
        self._remote = path
        if identity is None:
            status = path.status()
            if status is None or status.is_dir:
                raise FileNotFoundError(2, "No such file", str(path))
            identity = FileIdentity(0, status.size_bytes, status.mtime_ns)
        self._identity = identity
        self._handle: Any = None
        self._version: tuple[bytes, ...] = ()
        self._is_unchecked = False  # whether bytes came since the version was compared
        self._received = 0  # responses with bytes; those of one are of one version
        self._lock = Lock()  # over opening
        self._blocks: deque[_FetchedBlock] = deque()
        self._scan: _Scan | None = None

    def close(self) -> None:
        self._blocks.clear()
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.cancel()
        self._handle = None

    @property
    def identity(self) -> FileIdentity:
        return self._identity

    # -- reading

    def read(self, position: int, size_bytes: int) -> bytes:
        end = min(position + size_bytes, self.size_bytes)
        if end <= position:
            return b""
        scan = self._scan
        if scan is not None and scan.covers(position, end):
            try:
                return scan.read(position, end)
            except BaseException:
                self._scan = None  # a retry fetches again
                scan.cancel()
                raise
        return self._read_block(position, end)

    def read_into(self, buffer: memoryview, position: int) -> int:
        data = self.read(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def expect(self, position: int, end: int) -> None:
        """Begins to fetch. What lookups have fetched already is not fetched again."""
        end = min(end, self.size_bytes)
        block = self._block_of(position, position + 1)
        if end <= position or (block is not None and end <= block.start + len(block.data)):
            return
        scan = self._scan
        if scan is not None and scan.covers(position, end):
            return
        if scan is not None:
            scan.cancel()
        self._scan = _Scan(self, position, end)

    def check_unchanged(self) -> None:
        """One request, unless nothing was fetched since the last one; a file that is fetched whole
        is compared then."""
        if not self._is_unchecked:
            return
        self._is_unchecked = False  # bytes that are received from here on are for the next check
        try:
            if not self._remote.store.has_version(self._remote.key, self.path, self._version):
                self._remote.store.forget_content(self._remote.key)
                raise SegmentGoneError(self.path)
            self._remote.store.note_checked(self._remote.key, self._version)
        except BaseException as error:
            self._is_unchecked = True
            if isinstance(error, FileNotFoundError):
                raise SegmentGoneError(self.path) from None
            raise

    def check_one_version(self) -> None:
        if self._received > 1:
            self.check_unchanged()

    def _block_of(self, position: int, end: int) -> _FetchedBlock | None:
        for block in self._blocks:
            if block.start <= position and end <= block.start + len(block.data):
                return block
        return None

    def _read_block(self, position: int, end: int) -> bytes:
        block = self._block_of(position, end)
        if block is None:
            start, stop = self._next_block(position, end)
            is_whole = (start, stop) == (0, self.size_bytes)
            block = _FetchedBlock(
                start, self._fetch_whole() if is_whole else self.fetch(start, stop)
            )
            self._blocks.appendleft(block)
            held = sum(len(each.data) for each in self._blocks)
            while held > KEPT_BYTES_MAX and len(self._blocks) > 1:
                held -= len(self._blocks.pop().data)
        return bytes(block.data[position - block.start : end - block.start])

    def _next_block(self, position: int, end: int) -> tuple[int, int]:
        if self.size_bytes <= WHOLE_FILE_BYTES:
            return 0, self.size_bytes
        length, start = BLOCK_BYTES, max(0, position - LOOK_BACK_BYTES)
        if self._blocks:
            last = self._blocks[0]
            if last.start < position <= last.start + len(last.data):  # it follows
                start, length = position, min(BLOCK_BYTES_MAX, 2 * len(last.data))
        return start, min(self.size_bytes, max(end, start + length))

    # -- requests

    def fetch(self, start: int, end: int) -> memoryview:
        """One request. Raises SegmentGoneError if the object is not the one that was listed."""
        note_fetch(Fetch("range", self.path, start, end - start))
        return self.fetch_quietly(start, end)

    def _fetch_whole(self) -> bytes:
        """Read the whole file through the cache of the store, because many readers read the same
        index."""
        try:
            content = self._remote.store.read_content(self._remote.key, self.path)
        except FileNotFoundError:
            raise SegmentGoneError(self.path) from None
        is_same_size = len(content.data) == self.size_bytes
        if not is_same_size or not is_same_time(content.written_s, self._identity.mtime_ns):
            raise SegmentGoneError(self.path)
        self._note_version(content.version)
        self._note_received(is_checked=content.is_checked)
        return content.data

    def _note_version(self, version: tuple[bytes, ...]) -> None:
        """Raises SegmentGoneError if bytes of another version were received."""
        if version and self._received and self._version != version:
            raise SegmentGoneError(self.path)
        self._version = version

    def _note_received(self, *, is_checked: bool = False) -> None:
        with self._lock:  # several threads fetch
            self._received += 1
            self._is_unchecked |= not is_checked

    def fetch_quietly(self, start: int, end: int) -> memoryview:
        handle = self._handle or self._open()
        self._note_received()
        try:
            return self._remote.store.read_range(handle, self.path, start, end - start)
        except FileNotFoundError:
            raise SegmentGoneError(self.path) from None

    def _open(self) -> Any:
        with self._lock:
            if self._handle is None:
                try:
                    handle = self._remote.store.open(self._remote.key, self.path)
                except FileNotFoundError:
                    raise SegmentGoneError(self.path) from None
                self._check_listed(handle)
                self._note_version(version_of(handle))
                self._handle = handle
            return self._handle

    def _check_listed(self, handle: Any) -> None:
        is_same = is_same_time(modified_s(handle), self._identity.mtime_ns)
        if handle.size() != self.size_bytes or not is_same:
            raise SegmentGoneError(self.path)


class _Scan:
    """Ranges of one file in order, fetched ahead. One thread reads."""

    def __init__(self, file: RemoteFile, position: int, end: int) -> None:
        self._file = file
        self._end = end
        self._next = position  # where the next range begins
        self._count = 0
        self._ranges: deque[tuple[int, int, Future[memoryview]]] = deque()
        self._submit()

    def covers(self, position: int, end: int) -> bool:
        first = self._ranges[0][0] if self._ranges else self._next
        return first <= position and end <= self._end

    def cancel(self) -> None:
        for _, _, future in self._ranges:
            future.cancel()
        self._ranges.clear()
        self._next = self._end

    def read(self, position: int, end: int) -> bytes:
        while self._ranges and self._ranges[0][1] <= position:
            self._ranges.popleft()
        self._fetch_ahead(end)
        pieces = []
        for start, stop, future in self._ranges:
            if start >= end:
                break
            data = future.result()
            low, high = max(position, start) - start, min(end, stop) - start
            pieces.append(data[low:high])
        return b"".join(pieces)

    def _fetch_ahead(self, end: int) -> None:
        """Fetch up to `end` at least, and the next range; more ranges once the first was not
        enough."""
        while self._next < end:
            self._submit()
        ahead = 1 if len(self._ranges) == self._count else IN_FLIGHT
        while self._next < self._end and len(self._ranges) <= ahead:
            self._submit()

    def _submit(self) -> None:
        start = self._next
        stop = min(start + _range_bytes(self._count), self._end)
        note_fetch(Fetch("range", self._file.path, start, stop - start))
        future = fetch_pool().submit(self._file.fetch_quietly, start, stop)
        self._ranges.append((start, stop, future))
        self._next, self._count = stop, self._count + 1

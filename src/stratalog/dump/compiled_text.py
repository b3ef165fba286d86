"""The lines of a large log, written by a compiled kernel: the same bytes as `text` writes.

The readable code handles what the kernel does not: control batches, the old formats, corruption,
and the end of the file.

Importing this module loads compiled kernels; import it where many records are dumped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stratalog.dump import render, words
from stratalog.dump.log_contents import BATCH_BYTES_MAX, FileWindow, declared_size
from stratalog.errors import StratalogError
from stratalog.format.batch import CODEC_MASK, HEADER_BYTES, MAGIC_2, next_entry
from stratalog.format.buffers import Scratch
from stratalog.format.compression import decompress_into
from stratalog.format.kernels import crc, scan
from stratalog.format.kernels.memory import BATCH, PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from stratalog.dump.log_contents import Dumped, DumpOptions, LogDump
    from stratalog.dump.problems import DumpReport

BLOCK_BYTES: Final = 2 << 20
_ROWS: Final = 1024
_GAPS_MAX: Final = 4096
_SCRATCH_BYTES: Final = 16 << 20
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_NO_PAYLOAD = -1


class UnsupportedBatch(NamedTuple):
    """A batch that the kernel cannot render, from one of its records on."""

    position: int
    """In the buffer."""
    size_bytes: int
    is_shown: bool
    """Its line is written already."""
    records_done: int


class LineRenderer:
    """Renders the buffers of one log, one after the other. Counters carry over; the caller updates
    them after it shows an unsupported batch.
    """

    def __init__(self, options: DumpOptions) -> None:
        self.options = options
        self._scratch = Scratch()
        self._key = np.frombuffer(options.filters.key or b"\0", np.uint8)
        self._gaps = np.empty(2 * _GAPS_MAX, np.int64)
        self._state = np.zeros(render.STATE_SLOTS, np.int64)
        self._state[render.TABLE] = _address(words.TABLE)
        self._state[render.MODE] = _mode(options)
        self._state[render.LAST_OFFSET] = -1
        self._bounds = self._make_bounds()
        self._reserve(BLOCK_BYTES)

    @property
    def counters(self) -> tuple[int, int]:
        """How many records, or batches if records are not decoded, were shown so far; and the
        offset of the last record, -1 before the first."""
        return int(self._state[render.SHOWN]), int(self._state[render.LAST_OFFSET])

    @counters.setter
    def counters(self, counters: tuple[int, int]) -> None:
        self._state[render.SHOWN], self._state[render.LAST_OFFSET] = counters

    def take_gaps(self) -> bytes:
        """Pairs of offsets that are not consecutive, found since the last call, as native longs."""
        count = int(self._state[render.GAPS])
        self._state[render.GAPS] = 0
        return self._gaps[: 2 * count].tobytes()

    def scan(self, data: bytes) -> NDArray[Any]:
        """The complete batches at the start of `data`, as long as their lengths are plausible."""
        parts = []
        address, at, why = _address(np.frombuffer(data, np.uint8)), 0, scan.FULL
        while why == scan.FULL:
            rows = np.empty(_ROWS, BATCH)
            count, at, why = scan.scan(address, at, len(data), rows)
            parts.append(rows[:count])
        return np.concatenate(parts)

    def blocks(
        self, data: bytes, rows: NDArray[Any], position: int
    ) -> Iterator[bytes | UnsupportedBatch]:
        """Lines of `rows`, the batches in `data`, which is at `position` of the log.

        Ends early when the limit of lines is reached.
        """
        valid = np.zeros(len(rows), np.bool_)
        crc.check(_address(np.frombuffer(data, np.uint8)), rows, valid)
        self._state[render.POSITION] = position
        start = 0
        while start < len(rows):
            payloads = self._payloads(data, rows[start:])
            part = slice(start, start + len(payloads))
            yield from self._blocks_of(rows[part], valid[part], payloads)
            if self._is_enough():
                return
            start = part.stop

    def _blocks_of(
        self, rows: NDArray[Any], valid: NDArray[np.bool_], payloads: NDArray[Any]
    ) -> Iterator[bytes | UnsupportedBatch]:
        state = self._state
        state[render.BATCH_AT] = 0
        self._rewind()
        while True:
            why = render.render(rows, valid, payloads, state, self._bounds, self._gaps)
            block = self._written()
            if block:
                yield block
            if why == render.UNSUPPORTED:
                row = rows[state[render.BATCH_AT]]
                yield UnsupportedBatch(
                    int(row["position"]),
                    int(row["size_bytes"]),
                    bool(state[render.IS_BATCH_SHOWN]),
                    int(state[render.RECORD_AT]),
                )
                state[render.BATCH_AT] += 1
                self._rewind()
                if self._is_enough():
                    return
            elif why == render.FULL:
                yield b""  # for the gaps to be taken
                self._reserve(int(state[render.NEEDED]))
            else:
                return

    def _rewind(self) -> None:
        self._state[render.RECORD_AT] = 0
        self._state[render.PAYLOAD_AT] = 0
        self._state[render.IS_BATCH_SHOWN] = 0

    def _is_enough(self) -> bool:
        return bool(self._state[render.SHOWN] >= self._bounds[render.SHOWN_MAX])

    def _reserve(self, size: int) -> None:
        """Room for a block of `size` bytes. Called when nothing waits in the one before."""
        if size > BLOCK_BYTES or not self._state[render.OUT_END]:
            self._out = np.empty(max(size, BLOCK_BYTES) + render.SLACK_BYTES, np.uint8)
        start = _address(self._out)
        self._state[render.OUT] = start
        self._state[render.OUT_END] = start + len(self._out) - render.SLACK_BYTES

    def _written(self) -> bytes:
        start = _address(self._out)
        size = int(self._state[render.OUT]) - start
        self._state[render.OUT] = start
        return self._out[:size].tobytes()

    def _make_bounds(self) -> NDArray[np.int64]:
        filters = self.options.filters
        bounds = np.zeros(render.BOUND_SLOTS, np.int64)
        bounds[render.OFFSET_MIN] = _or(filters.offset_min, _LONG_MIN)
        bounds[render.OFFSET_MAX] = _before(filters.offset_end)
        bounds[render.TIMESTAMP_MIN] = _or(filters.timestamp_min, _LONG_MIN)
        bounds[render.TIMESTAMP_MAX] = _before(filters.timestamp_end)
        bounds[render.HAS_PRODUCER] = filters.producer_id is not None
        bounds[render.PRODUCER] = _or(filters.producer_id, 0)
        bounds[render.KEY] = _address(self._key)
        bounds[render.KEY_BYTES] = -1 if filters.key is None else len(filters.key)
        bounds[render.SHOWN_MAX] = _or(self.options.limit, _LONG_MAX)
        return bounds

    def _payloads(self, data: bytes, rows: NDArray[Any]) -> NDArray[Any]:
        """Where the records of the first of `rows` are; how many depends on memory."""
        payloads = np.empty(len(rows), PAYLOAD)
        start = _address(np.frombuffer(data, np.uint8)) + HEADER_BYTES
        payloads["address"] = rows["position"] + start
        payloads["size_bytes"] = rows["size_bytes"] - HEADER_BYTES
        if not self.options.is_deep:
            return payloads
        is_packed = (rows["attributes"] & CODEC_MASK != 0) & (rows["magic"] == MAGIC_2)
        packed = np.flatnonzero(is_packed).tolist()
        ends = [0]
        for done, index in enumerate(packed):
            if ends[-1] >= _SCRATCH_BYTES:
                payloads, packed = payloads[:index], packed[:done]
                break
            ends.append(self._unpack(data, rows[index], ends[-1]))
        base = _address(np.frombuffer(self._scratch.view, np.uint8)) if packed else 0
        for index, at, end in zip(packed, ends[:-1], ends[1:], strict=True):
            payloads[index] = (base + at, end - at if end > at else _NO_PAYLOAD)
        return payloads

    def _unpack(self, data: bytes, row: Any, at: int) -> int:
        """Where the plain records end that were put at `at` of the scratch memory."""
        start = int(row["position"])
        stored = memoryview(data)[start + HEADER_BYTES : start + int(row["size_bytes"])]
        try:
            return decompress_into(int(row["attributes"]) & CODEC_MASK, stored, self._scratch, at)
        except StratalogError:
            return at


def _mode(options: DumpOptions) -> int:
    """What to show, as bits for the kernel."""
    shown = {
        render.DEEP: options.is_deep,
        render.DATA: options.print_data,
        render.METADATA: not options.skip_record_metadata,
        render.FILTERED: options.filters.excludes_batches,
        render.RECORDS_FILTERED: options.filters.excludes_records,
    }
    return sum(bit for bit, is_set in shown.items() if is_set)


def _address(array: NDArray[Any]) -> int:
    """The address of an array. Does not use ctypes, whose import is slow."""
    return int(array.__array_interface__["data"][0])


def _or(value: int | None, default: int) -> int:
    return default if value is None else max(_LONG_MIN, min(value, _LONG_MAX))


def _before(end: int | None) -> int:
    """The last number below `end`; the largest of all if there is no end."""
    return _or(None if end is None else end - 1, _LONG_MAX)


WINDOW_BYTES: Final = 4 << 20


class BulkDump:
    """Dumps the rest of a log. `show` renders unsupported batches."""

    def __init__(
        self,
        walk: LogDump,
        options: DumpOptions,
        report: DumpReport,
        show: Callable[[Iterable[Dumped]], Iterator[bytes]],
    ) -> None:
        self._walk = walk
        self._report = report
        self._show = show
        self._limit = options.limit
        self._renderer = LineRenderer(options)

    def blocks(self) -> Iterator[bytes]:
        """Blocks of whole lines, up to the end of the walk or the limit of what to show."""
        walk = self._walk
        while walk.position < walk.end and not self._is_enough():
            position = walk.position
            yield from self._window_blocks(self._read(position))
            if walk.position == position:  # a large or corrupt batch, or the end
                yield from self._show(walk.values(batches_max=1))
                if walk.position == position:
                    return

    def _read(self, position: int) -> FileWindow:
        left = self._walk.end - position
        data = self._walk.file.read(position, min(WINDOW_BYTES, left))
        if len(data) < (size := declared_size(data)) <= min(left, BATCH_BYTES_MAX):
            data = self._walk.file.read(position, size)
        return FileWindow(data, position)

    def _window_blocks(self, window: FileWindow) -> Iterator[bytes]:
        walk, renderer = self._walk, self._renderer
        rows = renderer.scan(window.data)
        renderer.counters = self._report.shown, walk.last_offset
        for block in renderer.blocks(window.data, rows, window.position):
            walk.gaps.add_packed(renderer.take_gaps())
            self._report.shown, walk.last_offset = renderer.counters
            if isinstance(block, UnsupportedBatch):
                yield from self._unsupported_blocks(window, block)
                renderer.counters = self._report.shown, walk.last_offset
            elif block:
                yield block
        walk.gaps.add_packed(renderer.take_gaps())
        self._report.shown, walk.last_offset = renderer.counters
        if len(rows):
            size = int(rows[-1]["position"]) + int(rows[-1]["size_bytes"])
            walk.position += size
            self._report.bytes_done += size

    def _unsupported_blocks(
        self, window: FileWindow, unsupported: UnsupportedBatch
    ) -> Iterator[bytes]:
        entry = next_entry(window.data, unsupported.position)
        assert entry is not None  # it was scanned in this window
        yield from self._show(
            self._walk.batch_values(
                window, entry, is_shown=unsupported.is_shown, records_done=unsupported.records_done
            )
        )

    def _is_enough(self) -> bool:
        return self._limit is not None and self._report.shown >= self._limit

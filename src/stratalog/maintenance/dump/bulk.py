"""The lines of a large log, by compiled kernel: byte for byte those of the readable path.

The readable path stays in charge of what the kernel leaves alone: control batches, the old formats,
damage, the end of the file.

Importing this module loads compiled kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.format.batch import next_entry
from stratalog.format.line_blocks import LineOptions, LineRenderer, OddBatch
from stratalog.maintenance.dump.log_values import BATCH_BYTES_MAX, Window, declared_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stratalog.maintenance.dump.log_values import LogWalk, Seen
    from stratalog.maintenance.dump.options import DumpOptions
    from stratalog.maintenance.dump.report import DumpReport

WINDOW_BYTES: Final = 4 << 20


class BulkWalk:
    """Shows what is left of a walk. `show` turns values into blocks of text, for the odd ones."""

    def __init__(
        self,
        walk: LogWalk,
        options: DumpOptions,
        report: DumpReport,
        show: Callable[[Iterable[Seen]], Iterator[bytes]],
    ) -> None:
        self._walk = walk
        self._report = report
        self._show = show
        self._limit = options.limit
        self._renderer = LineRenderer(
            LineOptions(
                is_deep=options.is_deep,
                has_data=options.print_data,
                has_metadata=not options.skip_record_metadata,
                filters=options.filters,
                shown_max=options.limit,
            )
        )

    def blocks(self) -> Iterator[bytes]:
        """Blocks of whole lines, up to the end of the walk or the limit of what to show."""
        walk = self._walk
        while walk.position < walk.end and not self._is_enough():
            position = walk.position
            yield from self._window_blocks(self._read(position))
            if walk.position == position:  # nothing whole here: large, odd, damaged or the end
                yield from self._show(walk.values(batches_max=1))
                if walk.position == position:
                    return

    def _read(self, position: int) -> Window:
        left = self._walk.end - position
        data = self._walk.file.read(position, min(WINDOW_BYTES, left))
        if len(data) < (size := declared_size(data)) <= min(left, BATCH_BYTES_MAX):
            data = self._walk.file.read(position, size)
        return Window(data, position)

    def _window_blocks(self, window: Window) -> Iterator[bytes]:
        walk, renderer = self._walk, self._renderer
        rows = renderer.scan(window.data)
        renderer.shown, renderer.last_offset = self._report.shown, walk.last_offset
        for block in renderer.blocks(window.data, rows, window.position):
            walk.gaps.add_packed(renderer.take_gaps())
            self._report.shown, walk.last_offset = renderer.shown, renderer.last_offset
            if isinstance(block, OddBatch):
                yield from self._odd_blocks(window, block)
                renderer.shown, renderer.last_offset = self._report.shown, walk.last_offset
            elif block:
                yield block
        walk.gaps.add_packed(renderer.take_gaps())
        self._report.shown, walk.last_offset = renderer.shown, renderer.last_offset
        if len(rows):
            size = int(rows[-1]["position"]) + int(rows[-1]["size_bytes"])
            walk.position += size
            self._report.bytes_done += size

    def _odd_blocks(self, window: Window, odd: OddBatch) -> Iterator[bytes]:
        entry = next_entry(window.data, odd.position)
        assert entry is not None  # it was scanned in this window
        yield from self._show(
            self._walk.batch_values(
                window, entry, is_shown=odd.is_shown, records_done=odd.records_done
            )
        )

    def _is_enough(self) -> bool:
        return self._limit is not None and self._report.shown >= self._limit

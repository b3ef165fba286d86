"""Both sparse indexes from the headers of a log, for a reader that has no use for the files.

The walk starts in Python, which needs no warm-up. When the first few thousand batches turn out to
be so small that hundreds of thousands must follow, compiled kernels take over, window by window,
and Python only steps in where a batch is damaged or larger than a window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stratalog.format.index_rules import IndexBuilder
from stratalog.format.offset_index import POSITION_MAX, RELATIVE_OFFSET_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stratalog.storage.segment_view import SegmentView

WINDOW_BYTES: Final = 8 * 1024 * 1024
SAMPLE_BATCHES: Final = 4096
BULK_BATCHES_MIN: Final = 200_000
"""Loading the kernels takes about as long as Python takes for so many headers."""


def is_bulk_worth_it(batches: int, position: int, size_bytes: int) -> bool:
    """Whether so many batches up to `position` promise very many more up to `size_bytes`."""
    return (
        batches >= SAMPLE_BATCHES
        and (size_bytes - position) * batches > BULK_BATCHES_MIN * position
    )


def rebuild_indexes(view: SegmentView) -> IndexBuilder:
    """The entries that the plausible batches of the segment call for, across damage."""
    builder = IndexBuilder(view.base_offset)
    batches, start, indexed_at = 0, 0, -1
    is_done = False
    while not is_done:
        is_done = True
        for position, batch in view.walk(start):
            if position == indexed_at:
                continue
            if (
                batch.last_offset - view.base_offset > RELATIVE_OFFSET_MAX
                or position > POSITION_MAX
            ):
                continue  # no entry can tell it; a damaged offset must not hide what follows
            builder.add(position, batch.size_bytes, batch.last_offset, batch.max_timestamp)
            batches += 1
            if is_bulk_worth_it(batches, position, view.size_bytes):
                start = indexed_at = _index_in_bulk(view, builder, position, batch.size_bytes)
                is_done = False
                break
    builder.finish()
    return builder


def _index_in_bulk(view: SegmentView, builder: IndexBuilder, last_at: int, size_bytes: int) -> int:
    """Index what follows the batch at `last_at`, as far as it is beyond doubt.

    Answers the position of the last batch that was taken. The walk goes on from there, not from
    its end: if damage follows, the batch before it comes under suspicion.
    """
    from stratalog.format.batch_table import scan_batches  # noqa: PLC0415 - loads kernels
    from stratalog.format.index_table import add_batches, fits_segment  # noqa: PLC0415

    position, end = last_at + size_bytes, min(view.size_bytes, POSITION_MAX)
    while position < end:
        window = view.file.read(position, min(WINDOW_BYTES, end - position))
        rows = scan_batches(window).rows
        good = count_true(fits_segment(rows, view.base_offset))
        if not good:
            break
        add_batches(builder, rows[:good], position)
        last_at = position + int(rows["position"][good - 1])
        position = last_at + int(rows["size_bytes"][good - 1])
        if good < len(rows):
            break
    return last_at


def count_true(flags: NDArray[Any]) -> int:
    """How many flags are set before the first that is not."""
    return len(flags) if flags.all() else int(flags.argmin())

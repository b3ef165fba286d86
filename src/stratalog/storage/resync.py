"""Where a damaged log goes on: the I/O around `format.resync`, in windows of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.format.resync import Cut, Found, find_next_batch

if TYPE_CHECKING:
    from stratalog.storage.log_file import LogFile

WINDOW_BYTES: Final = 1024 * 1024


def next_valid_batch(file: LogFile, position: int, end: int, *, offset_min: int) -> int | None:
    """Position of the first whole batch with a right CRC in [position, end), or None."""
    window_bytes = WINDOW_BYTES
    while position < end:
        window = file.read(position, min(window_bytes, end - position))
        if not window:
            return None
        search = find_next_batch(
            window, 0, len(window), offset_min=offset_min, log_end=end - position
        )
        if isinstance(search, Found):
            return position + search.entry.position
        if isinstance(search, Cut):
            # A look-alike may claim any length, so the window grows for this candidate alone.
            window_bytes = max(WINDOW_BYTES, search.end - search.position)
            if search.position == 0 and search.end <= len(window):
                return None
            position += search.position
            continue
        if position + len(window) >= end:
            return None
        position += max(1, search.resume_at)
        window_bytes = WINDOW_BYTES
    return None

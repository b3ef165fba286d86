"""Which producer snapshots a log keeps. Decisions over offsets; deleting is for the caller.

A snapshot belongs to the segment that begins where it was taken, and one more belongs to the end of
the log, left by a clean shutdown. It leaves with its segment, and any that lies outside the log is
wrong: state is never loaded from it.

When the log start moves inside a segment nothing is deleted: the snapshots below it go with their
segments, or at the next load as `out_of_range`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def stray(snapshots: Iterable[int], segment_bases: Collection[int]) -> list[int]:
    """Those to delete when a log is loaded: no segment begins there.

    Except the newest such one if it lies above every segment's base offset: a clean shutdown left
    it at the end of the log.
    """
    bases = frozenset(segment_bases)
    strays = sorted(offset for offset in snapshots if offset not in bases)
    if strays and strays[-1] > max(bases, default=-1):
        strays.pop()
    return strays


def out_of_range(snapshots: Iterable[int], log_start_offset: int, log_end_offset: int) -> list[int]:
    """Those to delete before state is reloaded: above the log's end, or not above its start.

    At the log start there is nothing to remember, and what comes later was truncated.
    """
    return sorted(offset for offset in snapshots if not log_start_offset < offset <= log_end_offset)


def of_segments(
    snapshots: Iterable[int], removed_bases: Collection[int], kept_bases: Collection[int] = ()
) -> list[int]:
    """Those that leave with these segments, be it retention, truncation or compaction.

    Compaction removes segments and puts others in their place; where one of those (`kept_bases`)
    begins at the same offset, the snapshot stays.
    """
    removed = set(removed_bases).difference(kept_bases)
    return sorted(removed.intersection(snapshots))


def to_take_on_rebuild(segment_bases: Collection[int], end_offset: int) -> list[int]:
    """Where to take snapshots while state is rebuilt up to `end_offset`.

    At the last two segments' bases, so that a later truncation need not begin at the first segment
    again, and at the end.
    """
    return sorted({*sorted(segment_bases)[-2:], end_offset})

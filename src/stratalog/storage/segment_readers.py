"""What readers have open of a segment whose writer goes on meanwhile.

One file and one view are shared by all of them, from first use until the writer drops them. Who has
the view may go on with it: the last one to let go of it closes the file. Any thread may ask; two
that come at once may each make a view, and either will do.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.errors import SegmentGoneError
from stratalog.storage.live_view import LiveSegmentView
from stratalog.storage.log_file import FileIdentity, LogFile
from stratalog.storage.segment_view import SegmentView

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.storage.index_file import IndexFile
    from stratalog.storage.segment_writer import SegmentWriter
    from stratalog.storage.trace import IndexKind


class SegmentReaders:
    """The reading side of a segment. Its path may change, so it is an argument."""

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._view: SegmentView | None = None
        self._log: LogFile | None = None
        self._identity: FileIdentity | None = None  # once another file may get the name

    def log(self, path: Path) -> LogFile:
        """The log, open from first use on. It stays readable after a delete.

        Raises SegmentGoneError when it was deleted before.
        """
        log = self._log
        if log is None:
            try:
                log = self._log = LogFile(path)
            except FileNotFoundError:
                raise SegmentGoneError(path) from None
        return log

    def sealed_view(self, path: Path, size_bytes: int) -> SegmentView:
        """Of an inactive segment: of its files."""
        view = self._view
        if view is None or view.size_bytes != size_bytes:
            view = self._view = SegmentView(path, self._base_offset, size_bytes)
        if self._identity is not None:  # asked after the view is where `give_up_name` finds it
            view.identity = self._identity
        return view

    def live_view(self, path: Path, writer: SegmentWriter) -> SegmentView:
        """Of the active segment, up to what is published."""
        view, end = self._view, writer.published
        if view is None or view.size_bytes != end.position:
            indexes: dict[IndexKind, IndexFile] = {
                "offset": writer.offset_index,
                "time": writer.time_index,
            }
            self.drop_view()
            view = LiveSegmentView(path, self._base_offset, end, self.log(path), indexes)
            self._view = view
        return view

    def release(self) -> None:
        """Let go of everything. The next use opens it again."""
        self.drop_view()
        self._log = None

    def drop_view(self) -> None:
        """The segment has changed: whoever comes next gets another view."""
        view, self._view = self._view, None
        if view is not None:
            view.__dict__.pop("times", None)  # it refers back to the view

    def give_up_name(self, path: Path) -> None:
        """Before another segment gets the name: views of this one, those that readers have and
        those to come, open no file but its own."""
        with suppress(FileNotFoundError):
            self._identity = FileIdentity.of(path.stat())
        view = self._view
        if view is not None:
            view.identity = self._identity

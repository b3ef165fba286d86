"""What all commands share when they print: streams, errors, JSON lines, progress.

Output is UTF-8 whatever the locale says. Nothing is coloured or wrapped when it is not a terminal
that reads it, and never with NO_COLOR set. Names in JSON are in camelCase, as Kafka's own are.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
import time
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stratalog.maintenance.recovery_plan import Truncation

_PROGRESS_AFTER_S: Final = 1.0
_PROGRESS_EVERY_S: Final = 0.1
_MEBIBYTE: Final = 1 << 20


def die_of_closed_pipes() -> None:
    """Let a closed pipe (`| head`) end the process as it ends other Unix tools, without a word."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def stand_in_for_closed_streams() -> None:
    """A stream that was closed before the start (`>&-`) takes everything and keeps nothing.

    Python has None in its place, and what is printed to None ends up among the data.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = io.FileIO(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(nowhere), "utf-8"))


def use_utf_8() -> None:
    """Whatever the locale: a record's text is what it is. Odd bytes in file names go through."""
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def report_error(text: str) -> None:
    """One line on standard error, after all that standard output has so far."""
    report_line(f"stratalog: error: {text}")


def report_line(text: str) -> None:
    """One line on standard error as it is, after all that standard output has so far."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


class TruncationWarnings(logging.Handler):
    """Prints what recovery drops on standard error as it happens, and keeps it for `--json`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        report_line(f"stratalog: warning: {record.getMessage()}")
        args = record.args if isinstance(record.args, tuple) else ()
        self.kept += [arg for arg in args if hasattr(arg, "readable_records")]

    def take(self) -> list[Any]:
        """Those since the last call."""
        kept, self.kept = self.kept, []
        return kept


_truncations: Final = TruncationWarnings()


def warn_of_truncations() -> None:
    """From now on whatever recovery truncates in this process is told, missing indexes that
    change what a reader sees, and what is assumed of unknown settings."""
    _truncations.take()
    for name in (
        "stratalog.maintenance.recovery",
        "stratalog.log.transactions",
        "stratalog.log.maintenance",
        "stratalog.partitions.catalog",
    ):
        logging.getLogger(name).addHandler(_truncations)


def print_truncations() -> None:
    """For `--json`: an object for each truncation since the last call."""
    for truncation in _truncations.take():
        print(json_line(truncation_row(truncation)))


def truncation_row(truncation: Truncation, *, is_done: bool = True) -> dict[str, Any]:
    """One truncation of recovery, as all commands tell it."""
    row = json_names(truncation._asdict())
    topic_partition = row.pop("topicPartition")._asdict()
    return {
        "kind": "truncation",
        **topic_partition,
        **row,
        "path": str(truncation.path),
        "isDone": is_done,
    }


def use_colour(stream: IO[str]) -> bool:
    """Whether `stream` is a terminal whose user wants colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def json_line(value: Any) -> str:
    """`value` as one line of JSON, without its end. It can always be encoded as UTF-8."""
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if line.isascii():
        return line
    try:
        line.encode()
    except UnicodeEncodeError:  # a lone surrogate, from JSON in a record or an odd file name
        return json.dumps(value, separators=(",", ":"))
    return line


def json_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same under the names that JSON has: `last_offset` becomes `lastOffset`."""
    return {_camel(name): value for name, value in values.items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def summary_row(records: int, size_bytes: int, seconds: float, **more: Any) -> dict[str, Any]:
    """The last object of a job with `--json`: how much it went through, and how fast."""
    row = {"kind": "summary", **more, "records": records, "sizeBytes": size_bytes}
    row["seconds"] = round(seconds, 3)
    row["recordsPerSecond"] = round(records / seconds) if seconds else None
    row["bytesPerSecond"] = round(size_bytes / seconds) if seconds else None
    return row


def write_block(block: bytes) -> None:
    """Bytes to standard output, past its text layer. On a terminal they show at once."""
    sys.stdout.flush()
    sys.stdout.buffer.write(block)
    if sys.stdout.isatty():
        sys.stdout.buffer.flush()


class Progress:
    """How far a long run is, on standard error: once it lasts, and only for someone who sees it.

    That is, standard error is a terminal and standard output is not (there, output would run
    through it), unless the output comes last, when all is done.
    """

    def __init__(
        self,
        total_bytes: int,
        *,
        is_output_last: bool = False,
        stream: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._total_bytes = total_bytes
        self._start = clock()
        self._next = self._start + _PROGRESS_AFTER_S
        is_in_the_way = sys.stdout.isatty() and not is_output_last
        self._is_wanted = total_bytes > 0 and self._stream.isatty() and not is_in_the_way
        self._is_shown = False

    def update(self, done_bytes: int) -> None:
        """Called as often as you like."""
        if not self._is_wanted:
            return
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _PROGRESS_EVERY_S
        self._is_shown = True
        rate = done_bytes / (now - self._start)
        left = max(0.0, self._total_bytes - done_bytes) / rate if rate else 0.0
        percent = min(100.0, 100 * done_bytes / self._total_bytes)
        text = f"{percent:5.1f}%  {rate / _MEBIBYTE:.0f} MiB/s  {left:.0f} s left"
        self._stream.write(f"\r\x1b[K{text}")
        self._stream.flush()

    def clear(self) -> None:
        """Leave no trace, before anything else is written to the terminal and at the end."""
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_shown = False

"""Standard output and standard error of all commands: errors, JSON lines, warnings, progress.

Output is UTF-8 regardless of the locale. It is coloured and wrapped only on a terminal, and never
coloured if NO_COLOR is set. JSON names are in camelCase, as Kafka's are.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stratalog.maintenance.recovery_plan import Truncation
    from stratalog.maintenance.repair.valid_batches import CorruptBytes

_PROGRESS_AFTER_S: Final = 1.0
_PROGRESS_EVERY_S: Final = 0.1
_MEBIBYTE: Final = 1 << 20


def exit_on_closed_pipe() -> None:
    """Exit silently on SIGPIPE (`| head`), as other Unix tools do."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def set_by_stop_signals() -> threading.Event:
    """An event that SIGINT, SIGTERM and SIGHUP (the terminal was closed) set, instead of ending the
    process. Under `nohup`, SIGHUP is still ignored."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: stopping.set())
    return stopping


def replace_closed_streams() -> None:
    """Send output to /dev/null if standard output or error was closed (`>&-`).

    Otherwise the next file that is opened gets its descriptor, and output ends up in that file.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = io.FileIO(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(nowhere), "utf-8"))


def use_utf_8() -> None:
    """Regardless of the locale. Bytes in file names that are not UTF-8 are passed through."""
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


_FLAGS: Final = {
    "topic option required when no 'topic' attribute is present. "
    "Use the topic option for setting a topic.": "no topic: give --topic, or name it in each row",
    "target: ": "--to: ",
    "format: ": "--format: ",
    "set it, for example cleanup.policy=compact": "set it, for example with "
    "--config cleanup.policy=compact",
    "Set the option failOnDataLoss to false": "Use --option failOnDataLoss=false",
    "the option topicPartitions": "--partitions",
    "topicPartitions: ": "--partitions: ",
    "the topic option": "--topic",
    "create_in_broker_dir=True": "--create-in-broker-dir",
    "set appends=True": "use --append",
    "use incremental=True": "use --incremental",
    "fail_on_data_loss=False": "--skip-lost",
    "incremental=True": "--incremental",
}
"""What messages for users of Spark and Python say, and the flag for it."""


def report_error(text: str) -> None:
    """Print an error line to standard error, after flushing standard output."""
    report_line(f"stratalog: error: {text}")


def report_line(text: str) -> None:
    """Print a line to standard error, after flushing standard output. Options of Spark and Python
    become flags."""
    for phrase, flag in _FLAGS.items():
        text = text.replace(phrase, flag)
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def _report_if_possible(text: str) -> None:
    """What is logged must not stop what logs it, if standard error is a file on a full disk."""
    with suppress(OSError):
        report_line(text)


_logger: Final = logging.getLogger("stratalog")
_SHOWN_BY_COMMANDS: Final = ("stratalog.service.", "stratalog.bulk.read_task")
"""Loggers of what a command reports itself: failures in the background, skipped batches."""


class _Warnings(logging.Handler):
    """Prints warnings and errors to standard error at once, each one once, and collects truncations
    for `--json`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(lambda record: not record.name.startswith(_SHOWN_BY_COMMANDS))
        self._truncations: list[Any] = []
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if text not in self._printed:
            self._printed.add(text)
            kind = "error" if record.levelno >= logging.ERROR else "warning"
            _report_if_possible(f"stratalog: {kind}: {text}")
        args = record.args if isinstance(record.args, tuple) else ()
        self._truncations += [arg for arg in args if hasattr(arg, "readable_records")]

    def take(self) -> list[Any]:
        """The truncations since the last call."""
        taken, self._truncations = self._truncations, []
        return taken

    def forget(self) -> None:
        """Everything so far: another command begins."""
        self.take()
        self._printed.clear()


_warnings: Final = _Warnings()


def print_warnings() -> None:
    """From now on print what Stratalog logs as a warning or an error: truncated logs, unreadable
    checkpoints, unknown settings, lost records, locks that others hold. Without a handler, Python
    would print it, too, but without the name of the command, and with tracebacks."""
    _warnings.forget()
    _logger.addHandler(_warnings)


class _Notes(logging.Handler):
    """Prints messages to standard error at once."""

    def emit(self, record: logging.LogRecord) -> None:
        _report_if_possible(f"stratalog: {record.getMessage()}")


_notes: Final = _Notes()
_KERNELS_LOGGER: Final = "stratalog.format.kernels"


def report_compilation() -> None:
    """From now on, if kernels have to be compiled and that takes time, say so."""
    logger = logging.getLogger(_KERNELS_LOGGER)
    logger.setLevel(logging.INFO)
    logger.addHandler(_notes)


def leave_reports_to_logging() -> None:
    """For a command that logs everything itself: print nothing a second time."""
    _logger.removeHandler(_warnings)
    logging.getLogger(_KERNELS_LOGGER).removeHandler(_notes)


def print_truncations() -> None:
    """For `--json`: one object per truncation since the last call."""
    for truncation in _warnings.take():
        print(json_line(truncation_row(truncation)))


def truncation_row(truncation: Truncation, *, is_done: bool = True) -> dict[str, Any]:
    """One truncation by recovery, as JSON."""
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
    """Whether `stream` is a terminal and colours are not disabled."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def json_line(value: Any) -> str:
    """`value` as one line of JSON without newline. It can always be encoded as UTF-8."""
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if line.isascii():
        return line
    try:
        line.encode()
    except UnicodeEncodeError:  # a lone surrogate in JSON of a record or in a file name
        return json.dumps(value, separators=(",", ":"))
    return line


def json_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """With camelCase names: `last_offset` becomes `lastOffset`."""
    return {_camel(name): value for name, value in values.items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def corrupt_row(found: CorruptBytes) -> dict[str, Any]:
    """Corrupt bytes of a segment, for `--json`."""
    path, place, first_offset, next_offset = found
    return {
        "path": str(path),
        "position": place.position,
        "sizeBytes": place.size_bytes,
        "firstOffset": first_offset,
        "nextOffset": next_offset,
        "reason": place.reason,
        "isTorn": place.is_torn,
    }


def summary_row(records: int, size_bytes: int, seconds: float, **more: Any) -> dict[str, Any]:
    """The last object of a job with `--json`: how much it processed, and how fast."""
    row = {"kind": "summary", **more, "records": records, "sizeBytes": size_bytes}
    row["seconds"] = round(seconds, 3)
    row["recordsPerSecond"] = round(records / seconds) if seconds else None
    row["bytesPerSecond"] = round(size_bytes / seconds) if seconds else None
    return row


def write_block(block: bytes | memoryview) -> None:
    """Write bytes to standard output, bypassing its text layer; flush on a terminal."""
    sys.stdout.flush()
    sys.stdout.buffer.write(block)
    if sys.stdout.isatty():
        sys.stdout.buffer.flush()


class Progress:
    """A progress line on standard error, once a run takes longer than a second.

    It is shown only if standard error is a terminal and standard output is not (they would mix),
    or if all output comes at the end.
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
        would_mix = sys.stdout.isatty() and not is_output_last
        self._is_wanted = total_bytes > 0 and self._stream.isatty() and not would_mix
        self._is_shown = False

    def update(self, done_bytes: int) -> None:
        """Cheap: may be called as often as you like."""
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
        """Erase the line; call it before other output and at the end."""
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_shown = False


class AddedProgress(Progress):
    """Progress by increments."""

    def __init__(self, total_bytes: int, *, is_output_last: bool = False) -> None:
        super().__init__(total_bytes, is_output_last=is_output_last)
        self._done_bytes = 0

    def add(self, count: int) -> None:
        self._done_bytes += count
        self.update(self._done_bytes)


class JobProgress:
    """Progress of a job that runs on threads (bytes) or on Spark (groups of tasks)."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._phase = (0, total_bytes)
        self._done = 0
        self._lock = threading.Lock()
        self._bar = Progress(total_bytes, is_output_last=True)

    def __enter__(self) -> JobProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        """Report an interrupt; Typer exits with status 130. The job has cleaned up by now, so a
        second Ctrl-C kills the process at once, even if threads are still running."""
        self._bar.clear()
        if kind is KeyboardInterrupt:
            what = str(error)
            report_line(f"stratalog: interrupted{what and f'; {what}'}")
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def add_bytes(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._bar.update(self._done)

    def begin_phase(self, number: int, phases: int) -> None:
        """What follows is the phase of this number, from 0 on, of jobs that take equal parts."""
        part = self._total_bytes // phases
        self._phase = (number * part, part)

    def groups_done(self, done: int, total: int) -> None:
        start, part = self._phase
        with self._lock:
            self._bar.update(start + part * done // max(1, total))

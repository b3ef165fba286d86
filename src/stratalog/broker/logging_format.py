"""The format of the broker's log output: lines of text or JSON.

    2026-11-17T14:03:05.123Z WARNING acceptor closing the connection from 10.0.0.7: ...
    {"timestamp": "2026-11-17T14:03:05.123Z", "level": "WARNING", "logger": "stratalog.broker...",
     "message": "closing the connection from 10.0.0.7: ...", "client": "10.0.0.7", "reason": "..."}

In JSON, each event is one line, even if it has a traceback. What a call of the logger passes as
`extra` becomes fields of its own.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Final, Literal, TypeAlias

LogFormat: TypeAlias = Literal["text", "json"]

_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _LineFormatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"


class TextLines(_LineFormatter):
    """For people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(module)s %(message)s")


class JsonLines(_LineFormatter):
    """For programs: one JSON object per event."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "timestamp": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        event |= {name: value for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str, ensure_ascii=False)


def log_to_stderr(log_format: LogFormat, level: str = "INFO") -> logging.Handler:
    """Write what Stratalog logs to standard error. Returns the handler, to remove it again."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    logger = logging.getLogger("stratalog")
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler

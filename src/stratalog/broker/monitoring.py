"""Metrics for Prometheus and a health page, over HTTP, on a port of their own.

    GET /metrics   Prometheus' text format
    GET /health    JSON; status 200, or 503 if background work has failed

The pages are made in the reactor's thread, so a broker that is stuck does not respond. Only the
first line of a request is read. Each connection serves one page and is closed.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.broker.acceptor import bound_socket
from stratalog.broker.connection import hang_up
from stratalog.broker.context import Address
from stratalog.broker.reactor import READABLE, WRITABLE
from stratalog.broker.traffic import TIMES_MS

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping

    from stratalog.broker.acceptor import Connections
    from stratalog.broker.context import BrokerContext
    from stratalog.broker.reactor import Reactor
    from stratalog.broker.security.authentication import LogInHandlers
    from stratalog.service.health import Failure, Subject

_REQUEST_BYTES_MAX: Final = 8 << 10
_CONNECTIONS_MAX: Final = 32
_TIMEOUT_MS: Final = 10_000
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


# -- the pages


class BrokerPages:
    """What the broker reports about itself."""

    def __init__(
        self, context: BrokerContext, connections: Connections, log_ins: LogInHandlers
    ) -> None:
        self._context = context
        self._connections = connections
        self._log_ins = log_ins
        self._started_s = time.time()

    def pages(self) -> Mapping[str, Callable[[], Page]]:
        return {"/metrics": self.metrics, "/health": self.health}

    def health(self) -> Page:
        failures = self._failures()
        content = {
            "status": "failing" if failures else "ok",
            "nodeId": self._context.node_id,
            "clusterId": self._context.cluster_id,
            "uptimeSeconds": round(time.time() - self._started_s, 3),
            "connections": len(self._connections),
            "topics": len(self._context.logs.topics),
            "failures": [
                {
                    "subject": str(subject),
                    "task": failure.task,
                    "timestamp": failure.at_ms,
                    "message": failure.message,
                    "count": failure.count,
                }
                for subject, failure in failures
            ],
        }
        status = "503 Service Unavailable" if failures else "200 OK"
        return Page(status, "application/json", (json.dumps(content) + "\n").encode())

    def _failures(self) -> list[tuple[Subject, Failure]]:
        return self._context.logs.failures()

    def metrics(self) -> Page:
        lines = [line for metric in self._metrics() for line in metric.lines()]
        return Page("200 OK", _METRICS_TYPE, ("\n".join(lines) + "\n").encode())

    def _metrics(self) -> Iterable[_Metric]:
        traffic, connections = self._connections.traffic, self._connections
        yield from self._request_metrics()
        yield _counter("received_bytes_total", "Bytes from clients.", traffic.received_bytes)
        yield _counter("sent_bytes_total", "Bytes to clients.", traffic.sent_bytes)
        yield _Metric(
            "connections",
            "gauge",
            "Open connections.",
            [({"listener": name}, n) for name, n in connections.count_by_listener().items()],
        )
        yield _Metric(
            "connections_accepted_total",
            "counter",
            "Accepted connections.",
            [({"listener": name}, count) for name, count in traffic.accepted.items()],
        )
        yield _Metric(
            "connections_closed_total",
            "counter",
            "Connections closed by the broker.",
            [({"reason": reason}, count) for reason, count in traffic.refused.items()],
        )
        yield _counter(
            "authentication_failures_total", "Failed authentications.", self._log_ins.failures
        )
        topics = self._context.logs.topics
        yield _gauge("topics", "Topics, internal ones included.", len(topics))
        partitions = sum(len(info.partitions) for info in topics.values())
        yield _gauge("partitions", "Partitions of all topics.", partitions)
        yield _gauge(
            "failing_tasks", "Background tasks whose last run failed.", len(self._failures())
        )
        yield from _process_metrics(self._started_s)

    def _request_metrics(self) -> Iterable[_Metric]:
        by_api = sorted(self._connections.traffic.by_api.items())
        buckets: list[_Sample] = []
        for api, traffic in by_api:
            count = 0
            for upper_ms, more in zip((*TIMES_MS, None), traffic.counts, strict=True):
                count += more
                upper = "+Inf" if upper_ms is None else f"{upper_ms / 1000:g}"
                buckets.append(({"api": api.title, "le": upper}, count))
        name = "request_duration_seconds"
        yield _Metric(name, "histogram", "Time from a request to its response.", buckets, "_bucket")
        sums: list[_Sample] = [({"api": api.title}, each.sum_ms / 1000) for api, each in by_api]
        counts: list[_Sample] = [({"api": api.title}, each.requests) for api, each in by_api]
        yield _Metric(name, None, "", sums, "_sum")
        yield _Metric(name, None, "", counts, "_count")


_Sample: TypeAlias = tuple[dict[str, str], float]


class _Metric(NamedTuple):
    name: str
    kind: str | None
    """None: part of the metric before it."""
    text: str
    samples: list[_Sample]
    suffix: str = ""
    prefix: str = "stratalog_"

    def lines(self) -> Iterable[str]:
        full = self.prefix + self.name
        if self.kind is not None:
            yield f"# HELP {full} {self.text}"
            yield f"# TYPE {full} {self.kind}"
        for labels, value in self.samples:
            shown = ",".join(f'{name}="{_escaped(label)}"' for name, label in labels.items())
            braced = f"{{{shown}}}" if shown else ""
            yield f"{full}{self.suffix}{braced} {value!r}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _counter(name: str, text: str, value: float) -> _Metric:
    return _Metric(name, "counter", text, [({}, value)])


def _gauge(name: str, text: str, value: float) -> _Metric:
    return _Metric(name, "gauge", text, [({}, value)])


def _process_metrics(started_s: float) -> Iterable[_Metric]:
    """Those that every exporter of Prometheus has, under its names."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    open_files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # counted, not walked
    for name, kind, text, value in (
        ("cpu_seconds_total", "counter", "CPU time.", usage.ru_utime + usage.ru_stime),
        ("resident_memory_bytes", "gauge", "Memory.", pages * resource.getpagesize()),
        ("open_fds", "gauge", "Open files and sockets.", open_files),
        ("start_time_seconds", "gauge", "Start time of the broker.", started_s),
    ):
        yield _Metric(name, kind, text, [({}, value)], prefix="process_")


# -- HTTP


class Page(NamedTuple):
    """A response to GET."""

    status: str
    content_type: str
    content: bytes


class PageServer:
    """Serves pages over HTTP, in the reactor's thread."""

    def __init__(self, host: str, port: int) -> None:
        """Binds at once. Raises BrokerStartError if the address cannot be used."""
        self._socket = bound_socket(host, port, "serve metrics")
        self._open: set[_PageConnection] = set()

    @property
    def address(self) -> str:
        """Host and port."""
        host, port = self._socket.getsockname()[:2]
        return str(Address(host, port))

    def start(self, reactor: Reactor, pages: Mapping[str, Callable[[], Page]]) -> None:
        """Serve."""
        self._reactor = reactor
        self._pages = pages
        reactor.watch(self._socket.fileno(), READABLE, self._accept)

    def stop(self) -> None:
        """Close everything, in the reactor's thread."""
        self._reactor.forget(self._socket.fileno())
        hang_up(self._socket)
        for connection in list(self._open):
            connection.close()

    def close(self) -> None:
        """Release the port without having served."""
        self._socket.close()

    def _accept(self, _: int) -> None:
        try:
            sock, _address = self._socket.accept()
        except OSError:  # none left, or the client has gone
            return
        if len(self._open) >= _CONNECTIONS_MAX:
            sock.close()
            return
        self._open.add(_PageConnection(sock, self._reactor, self._page, self._open.discard))

    def _page(self, request: bytes) -> Page:
        method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return Page("405 Method Not Allowed", "text/plain", b"only GET\n")
        page = self._pages.get(path)
        if page is None:
            known = " ".join(self._pages)
            return Page("404 Not Found", "text/plain", f"there is: {known}\n".encode())
        found = page()
        return found._replace(content=b"") if method == "HEAD" else found


class _PageConnection:
    """One request for a page."""

    def __init__(
        self,
        sock: socket.socket,
        reactor: Reactor,
        page: Callable[[bytes], Page],
        on_closed: Callable[[_PageConnection], None],
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reactor = reactor
        self._page = page
        self._on_closed = on_closed
        self._request = b""
        self._out = b""
        self._timer = reactor.call_later(_TIMEOUT_MS, self.close)
        reactor.watch(sock.fileno(), READABLE, self._on_events)

    def _on_events(self, _: int) -> None:
        try:
            if self._out:
                self._send()
            else:
                self._receive()
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def _receive(self) -> None:
        data = self._socket.recv(_REQUEST_BYTES_MAX)
        self._request += data
        if not data or len(self._request) > _REQUEST_BYTES_MAX:
            self.close()
        elif b"\r\n\r\n" in self._request:
            page = self._page(self._request)
            head = (
                f"HTTP/1.1 {page.status}\r\nContent-Type: {page.content_type}\r\n"
                f"Content-Length: {len(page.content)}\r\nConnection: close\r\n\r\n"
            )
            self._out = head.encode() + page.content
            self._reactor.change(self._socket.fileno(), WRITABLE)

    def _send(self) -> None:
        self._out = self._out[self._socket.send(self._out) :]
        if not self._out:
            self.close()

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._timer.cancel()
            self._reactor.forget(self._socket.fileno())
            self._socket.close()
            self._on_closed(self)

"""Counters of a running broker: requests, their times, bytes, connections.

Everything is counted in the reactor's thread. Counting a request takes well under a microsecond.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stratalog.wire.apis import ApiKey

TIMES_MS: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0)
"""Upper ends of the histogram of a request's time."""


class ApiTraffic:
    """The requests of one API."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(TIMES_MS) + 1)
        """How many requests took up to each of TIMES_MS, and how many took longer."""
        self.sum_ms = 0.0

    @property
    def requests(self) -> int:
        return sum(self.counts)

    def add(self, took_ms: float) -> None:
        self.counts[bisect_left(TIMES_MS, took_ms)] += 1
        self.sum_ms += took_ms


class Traffic:
    """All counters of a broker."""

    def __init__(self) -> None:
        self.by_api: dict[ApiKey, ApiTraffic] = {}
        self.received_bytes = 0
        self.sent_bytes = 0
        self.accepted: dict[str, int] = {}
        """Connections that were accepted, by listener."""
        self.refused: dict[str, int] = {}
        """Connections that were closed for a reason of ours: a limit, a malformed frame."""

    def handled(self, api: ApiKey, took_ms: float) -> None:
        """A request was handled: its response was sent, or it needs none."""
        traffic = self.by_api.get(api)
        if traffic is None:
            traffic = self.by_api[api] = ApiTraffic()
        traffic.add(took_ms)

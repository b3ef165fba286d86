"""A limit on how fast a cleaner reads: `log.cleaner.io.max.bytes.per.second`."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_NAP_S: Final = 0.1


class Throttle:
    """Lets its caller wait whenever it is ahead of the rate."""

    def __init__(
        self,
        bytes_per_second: float = math.inf,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def pay(self, size_bytes: int, may_go_on: Callable[[], bool]) -> None:
        """Return when `size_bytes` more are within the rate, or at once when told to stop.

        Time in which nothing was read is not saved up.
        """
        self._free_at = max(self._free_at, self._clock()) + size_bytes / self._rate
        while may_go_on() and (left_s := self._free_at - self._clock()) > 0:
            self._sleep(min(left_s, _NAP_S))

"""Producer ids: each is handed out once in the life of a log directory.

As Kafka's controller does, a block of ids is noted as used before the first of them is handed out:
one write serves a thousand producers, and a crash only wastes what was left of a block.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stratalog.log_dir.kept_state import StateStore

BLOCK: Final = 1000


class ProducerIds:
    """Hands out ids. Thread-safe."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._next = self._end = 0

    def take(self) -> int:
        """An id that no producer has had."""
        with self._lock:
            if self._next == self._end:
                first = self._store.state.next_producer_id
                self._store.update(next_producer_id=first + BLOCK)
                self._next, self._end = first, first + BLOCK
            self._next += 1
            return self._next - 1

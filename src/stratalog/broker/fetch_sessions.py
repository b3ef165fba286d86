"""Fetch sessions (KIP-227): what a client fetches, remembered from one request to the next.

A session spares client and broker the list of partitions: a request names only what is new, changed
or forgotten, a response only partitions with news. Epochs keep both sides in step.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import RequestError
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stratalog.wire.frames import Body

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
SESSIONS_MAX: Final = 1000
EVICTION_MS: Final = 120_000
_INT32_MAX: Final = (1 << 31) - 1


class PartitionKey(NamedTuple):
    """A partition as the client named it: by the topic's id, or else by its name."""

    topic: str
    partition: int


@dataclass(slots=True)
class FetchedPartition:
    """What a client wants of a partition, and what the last response said."""

    key: PartitionKey
    fetch_offset: int
    bytes_max: int
    leader_epoch: int
    last_fetched_epoch: int
    last_sent: tuple[int, int, int] | None = None
    """High watermark, last stable offset and log start offset of the last response."""


class FetchSession:
    """The partitions of one client, in the order in which they are served next."""

    def __init__(self, session_id: int, *, uses_ids: bool, now_ms: float) -> None:
        self.session_id = session_id
        self.uses_ids = uses_ids
        self.epoch = INITIAL_EPOCH + 1
        self.partitions: OrderedDict[PartitionKey, FetchedPartition] = OrderedDict()
        self.created_ms = self.last_used_ms = now_ms

    def update(self, wanted: Iterable[FetchedPartition], forgotten: Iterable[PartitionKey]) -> None:
        """Add and change partitions, and drop those that the client has no more use for."""
        for partition in wanted:
            known = self.partitions.get(partition.key)
            if known is not None:
                partition.last_sent = known.last_sent
            self.partitions[partition.key] = partition
        for key in forgotten:
            self.partitions.pop(key, None)

    def advance(self) -> None:
        """One more request was accepted."""
        self.epoch = 1 if self.epoch == _INT32_MAX else self.epoch + 1


class FetchSessions:
    """All sessions of a broker."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def continued(self, body: Body, *, uses_ids: bool, now_ms: float) -> FetchSession:
        """The session of an incremental request. Raises RequestError."""
        session = self._sessions.get(body["sessionId"])
        if session is None:
            raise RequestError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != body["sessionEpoch"]:
            raise RequestError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_ids != uses_ids:
            raise RequestError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.advance()
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        return session

    def close(self, session_id: int) -> None:
        """The client has no more use for it."""
        self._sessions.pop(session_id, None)

    def opened(self, count: int, *, uses_ids: bool, now_ms: float) -> FetchSession | None:
        """A new session for this many partitions; None if the limit of sessions is reached."""
        if not count or not self._make_room(count, now_ms):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = random.randrange(1, _INT32_MAX)
        session = FetchSession(session_id, uses_ids=uses_ids, now_ms=now_ms)
        self._sessions[session_id] = session
        return session

    def _make_room(self, count: int, now_ms: float) -> bool:
        """Drop a session that is unused for long, or one that saves less and is not new."""
        if len(self._sessions) < self._sessions_max:
            return True
        for session in self._replaceable(count, now_ms):
            del self._sessions[session.session_id]
            return True
        return False

    def _replaceable(self, count: int, now_ms: float) -> Iterator[FetchSession]:
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms > EVICTION_MS:
            yield oldest
        smallest = min(self._sessions.values(), key=lambda session: len(session.partitions))
        if len(smallest.partitions) < count and now_ms - smallest.created_ms > EVICTION_MS:
            yield smallest

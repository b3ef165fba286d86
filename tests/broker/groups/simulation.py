"""Groups without a broker: a clock that is moved by hand, and records kept in a list."""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64encode
from hashlib import md5
from typing import TYPE_CHECKING, Any

from stratalog.broker.authorization import Authorizer
from stratalog.broker.context import Address, LogChanges
from stratalog.broker.group_handlers import GroupHandlers
from stratalog.broker.groups.environment import Environment, GroupSettings, TopicFacts
from stratalog.broker.requests import Deferred, Request, Session
from stratalog.errors import RequestError
from stratalog.format.messages.group_records import encode_group_record, read_group_record

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from stratalog.broker.groups.environment import GroupRecordWrite
    from stratalog.producing.transaction_log import ProducerIdentity
    from stratalog.wire.apis import ApiKey


class ManualTimers:
    """Timers that run when the clock is moved."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self._timers: dict[Hashable, tuple[int, int, Callable[[], None]]] = {}
        self._count = 0

    def schedule(self, key: Hashable, delay_ms: int, action: Callable[[], None]) -> None:
        self._count += 1
        self._timers[key] = (self.now_ms + delay_ms, self._count, action)

    def cancel(self, key: Hashable) -> None:
        self._timers.pop(key, None)

    def advance(self, by_ms: int) -> None:
        self.advance_to(self.now_ms + by_ms)

    def advance_to(self, until_ms: int) -> None:
        while self._timers:
            key = min(self._timers, key=lambda key: self._timers[key][:2])
            due_ms, _, action = self._timers[key]
            if due_ms > until_ms:
                break
            del self._timers[key]
            self.now_ms = due_ms
            action()
        self.now_ms = until_ms


class RecordList:
    """A log of groups in memory, encoded as in `__consumer_offsets`."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[tuple[bytes, bytes | None]], int | None]] = []
        self.failure: RequestError | None = None

    def append(
        self, group_id: str, records: Sequence[GroupRecordWrite], by: ProducerIdentity | None = None
    ) -> None:
        if self.failure is not None:
            raise self.failure
        encoded = [encode_group_record(*record) for record in records]
        producer_id = None if by is None else by.producer_id
        self.batches.append((group_id, encoded, producer_id))

    def types(self) -> list[list[int]]:
        """The types of the records of each batch."""
        return [[int.from_bytes(key[:2]) for key, _ in records] for _, records, _ in self.batches]


class ManualTopics:
    """Topics by name; what is not listed does not exist."""

    def __init__(self, counts: dict[str, int] | None = None) -> None:
        self.counts = dict(counts or {})
        self.ids: dict[str, str] = {}

    def topic_id(self, name: str) -> str:
        made = urlsafe_b64encode(md5(name.encode()).digest()).decode()[:22]
        return self.ids.get(name, made)

    def find(self, name: str) -> TopicFacts | None:
        count = self.counts.get(name)
        return None if count is None else TopicFacts(self.topic_id(name), name, count)

    def name_of(self, topic_id: str) -> str | None:
        return next((name for name in self.counts if self.topic_id(name) == topic_id), None)

    def matching(self, regex: str) -> frozenset[str]:
        return frozenset(name for name in self.counts if name.startswith(regex.rstrip(".*")))


class _Context:
    """What handlers of groups need of a broker."""

    def __init__(self, topics: ManualTopics) -> None:
        self.logs = self
        self.is_read_only = True
        self.topics = topics
        self.authorizer = Authorizer()
        self.changes = LogChanges()
        self.node_id = 1

    def find_topic(self, _: str) -> None:
        return None

    def address_for(self, _: Session) -> Address:
        return Address("127.0.0.1", 29192)


class Simulation:
    """Handlers of groups on a manual clock."""

    def __init__(self, topics: dict[str, int] | None = None, **settings: int) -> None:
        self.timers = ManualTimers()
        self.log = RecordList()
        self.topics = ManualTopics(topics)
        self.next_uuid: uuid.UUID | None = None
        """The next id for a member, if it matters."""
        self.settings = GroupSettings(**settings)
        self._start()

    def _start(self) -> None:
        environment = Environment(
            self.settings,
            lambda: self.timers.now_ms,
            self.timers,
            self.log,
            self.topics,
            self._new_uuid,
        )
        context: Any = _Context(self.topics)
        self.handlers = GroupHandlers(context, environment)
        self.coordinator = self.handlers.coordinator

    def restart(self) -> None:
        """A new coordinator that reads the log: what a broker does after it was killed."""
        self.timers._timers.clear()
        self._start()
        for _, records, producer_id in self.log.batches:
            for key, value in records:
                found = read_group_record(key, value, decode_members=False)
                self.coordinator.apply(found, producer_id)
        self.coordinator.resume()

    def _new_uuid(self) -> uuid.UUID:
        given, self.next_uuid = self.next_uuid, None
        return given or uuid.uuid4()

    def send(self, api: ApiKey, version: int, body: dict[str, Any], client_id: str = "c") -> Sent:
        """Send a request; its answer may come later."""
        session = Session("127.0.0.1")
        try:
            answer = self.handlers.handlers()[api](Request(api, version, client_id, body, session))
        except RequestError as error:
            answer = {"errorCode": error.code, "errorMessage": error.message}
        return Sent(answer)


class Sent:
    """A request that was sent."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    @property
    def is_answered(self) -> bool:
        return not isinstance(self._answer, Deferred) or self._answer.is_done

    @property
    def body(self) -> dict[str, Any]:
        """The answer, which must have come."""
        assert self.is_answered
        body = self._answer.body if isinstance(self._answer, Deferred) else self._answer
        assert isinstance(body, dict)
        return body

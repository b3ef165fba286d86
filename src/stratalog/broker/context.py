"""What the handlers of a broker share."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stratalog.broker.authorization import Authorizer
from stratalog.format.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stratalog.broker.logs import Logs
    from stratalog.broker.reactor import Reactor
    from stratalog.broker.requests import Dispatcher, Session
    from stratalog.config import BrokerConfig


@dataclass(frozen=True)
class Address:
    """Where clients reach a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class LogChanges:
    """Who waits for a partition to change: more records, another last stable offset, or its end."""

    def __init__(self) -> None:
        self._waiting: defaultdict[TopicPartition, dict[object, Callable[[], None]]]
        self._waiting = defaultdict(dict)

    def wait(self, tp: TopicPartition, key: object, call: Callable[[], None]) -> None:
        """Call whenever the partition has changed, until `forget` with the same key."""
        self._waiting[tp][key] = call

    def forget(self, tp: TopicPartition, key: object) -> None:
        waiting = self._waiting.get(tp)
        if waiting is not None:
            waiting.pop(key, None)
            if not waiting:
                del self._waiting[tp]

    def notify(self, topic: str, partition: int) -> None:
        """The partition has changed. Call it in the reactor's thread, after every append."""
        waiting = self._waiting.get(TopicPartition(topic, partition))
        if waiting:
            for call in list(waiting.values()):
                call()


@dataclass
class BrokerContext:
    """One broker: its logs, its identity, its thread."""

    logs: Logs
    config: BrokerConfig
    reactor: Reactor
    dispatcher: Dispatcher
    node_id: int
    cluster_id: str
    rack: str | None = None
    addresses: Mapping[str, Address] = field(default_factory=dict)
    """The advertised address of each listener, by its name."""
    authorizer: Authorizer = field(default_factory=Authorizer)
    changes: LogChanges = field(default_factory=LogChanges)

    def address_for(self, session: Session) -> Address:
        """Where this client reaches the broker: at the listener that it came in on."""
        return session.advertised or self.addresses[session.listener]

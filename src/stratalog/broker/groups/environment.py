"""What groups need from the broker: settings, time, timers, topics, and a log for their records.

Everything runs on one thread. A record is in the log before the change that it records takes
effect: if `GroupLog.append` raises, the group is as it was before.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from stratalog.format.uuids import encode_id

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from stratalog.config import BrokerConfig
    from stratalog.producing.transaction_log import ProducerIdentity

Body: TypeAlias = "dict[str, Any]"
"""A request or a response: its fields by Kafka's names."""
Reply: TypeAlias = "Callable[[Body], None]"
"""Called with the response exactly once, now or later."""

MINUTE_MS = 60_000


class GroupRequest(NamedTuple):
    """A client's request about a group."""

    version: int
    client_id: str
    client_host: str
    body: Body


class GroupRecordWrite(NamedTuple):
    """A record to write to `__consumer_offsets`; without a value, a tombstone."""

    type_id: int
    key: Mapping[str, Any]
    value: Mapping[str, Any] | None
    version: int = 0


class GroupLog(Protocol):
    """Stores the records of groups."""

    def append(
        self, group_id: str, records: Sequence[GroupRecordWrite], by: ProducerIdentity | None = None
    ) -> None:
        """Store the records as one batch, or raise RequestError and store nothing. With a producer,
        they are part of its transaction."""


class Timers(Protocol):
    """Runs actions later, on the thread of the groups."""

    def schedule(self, key: Hashable, delay_ms: int, action: Callable[[], None]) -> None:
        """Run the action after `delay_ms`, instead of an earlier one with the same key. An action
        that raises RequestError, because its records could not be stored, runs again later."""

    def cancel(self, key: Hashable) -> None:
        """Forget the action with this key, if there is one."""


class TopicFacts(NamedTuple):
    """A topic, as an assignment needs it."""

    topic_id: str
    name: str
    partition_count: int


class Topics(Protocol):
    """The topics of the broker."""

    def find(self, name: str) -> TopicFacts | None: ...

    def name_of(self, topic_id: str) -> str | None: ...

    def matching(self, regex: str) -> frozenset[str]:
        """Names of topics that the regular expression matches as a whole. Raises RequestError."""


@dataclass(frozen=True)
class GroupSettings:
    """Kafka's settings of groups, by Kafka's names."""

    group_initial_rebalance_delay_ms: int = 3_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 30 * MINUTE_MS
    group_max_size: int = (1 << 31) - 1
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = (1 << 31) - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * MINUTE_MS

    @classmethod
    def of(cls, config: BrokerConfig) -> GroupSettings:
        return cls(
            config.group_initial_rebalance_delay_ms,
            config.group_min_session_timeout_ms,
            config.group_max_session_timeout_ms,
            config.group_max_size,
            config.group_consumer_session_timeout_ms,
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_max_size,
            config.offset_metadata_max_bytes,
            config.offsets_retention_minutes * MINUTE_MS,
        )


@dataclass(frozen=True)
class Environment:
    """Everything that groups need from the broker."""

    settings: GroupSettings
    now_ms: Callable[[], int]
    timers: Timers
    log: GroupLog
    topics: Topics
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4

    def new_member_id(self) -> str:
        """An id for a member of a consumer group."""
        return encode_id(self.new_uuid())

"""The offsets that a group has committed, and those that wait for the end of a transaction.

An offset of a transaction is pending until the transaction's marker: a commit makes it the group's
offset, unless one was committed later than it; an abort drops it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.broker.groups.environment import GroupRecordWrite
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stratalog.broker.groups.environment import Body

NO_EXPIRY: Final = -1
OFFSET_TYPES: Final = frozenset({0, 1})
_TYPE: Final = 1
_VERSION: Final = 3
_VERSION_WITH_EXPIRY: Final = 1  # the only one that has the field


class CommittedOffset(NamedTuple):
    """How far a group has read a partition."""

    offset: int
    leader_epoch: int
    """-1 is unknown."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    """Given by clients of old versions only."""

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> CommittedOffset:
        """From the value of a record."""
        return cls(
            value["offset"],
            value.get("leaderEpoch", -1),
            value["metadata"],
            value["commitTimestamp"],
            value.get("expireTimestamp", NO_EXPIRY),
        )

    def record(self, group_id: str, topic: str, partition: int) -> GroupRecordWrite:
        value = {
            "offset": self.offset,
            "leaderEpoch": self.leader_epoch,
            "metadata": self.metadata,
            "commitTimestamp": self.commit_timestamp_ms,
            "expireTimestamp": self.expire_timestamp_ms,
        }
        has_expiry = self.expire_timestamp_ms != NO_EXPIRY
        version = _VERSION_WITH_EXPIRY if has_expiry else _VERSION
        return GroupRecordWrite(_TYPE, _key(group_id, topic, partition), value, version)


def tombstone(group_id: str, topic: str, partition: int) -> GroupRecordWrite:
    """The record that removes an offset."""
    return GroupRecordWrite(_TYPE, _key(group_id, topic, partition), None)


def _key(group_id: str, topic: str, partition: int) -> dict[str, Any]:
    return {"group": group_id, "topic": topic, "partition": partition}


@dataclass
class CommittedOffsets:
    """All offsets of one group."""

    by_topic: dict[str, dict[int, CommittedOffset]] = field(default_factory=dict)
    pending: dict[int, dict[tuple[str, int], tuple[CommittedOffset, int]]] = field(
        default_factory=dict
    )
    """By producer id: offsets of open transactions, each with its place in the order of commits."""
    _order: dict[tuple[str, int], int] = field(default_factory=dict)
    _commits: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.by_topic and not self.pending

    def find(self, topic: str, partition: int) -> CommittedOffset | None:
        return self.by_topic.get(topic, {}).get(partition)

    def is_pending(self, topic: str, partition: int) -> bool:
        """Whether an open transaction may still change this offset."""
        return any((topic, partition) in offsets for offsets in self.pending.values())

    def all(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, offsets in self.by_topic.items():
            for partition, offset in offsets.items():
                yield topic, partition, offset

    def put(self, topic: str, partition: int, offset: CommittedOffset) -> None:
        self._commits += 1
        self._set(topic, partition, offset, self._commits)

    def put_pending(
        self, producer_id: int, topic: str, partition: int, offset: CommittedOffset
    ) -> None:
        self._commits += 1
        self.pending.setdefault(producer_id, {})[topic, partition] = (offset, self._commits)

    def remove(self, topic: str, partition: int) -> None:
        """Forget an offset, pending ones included."""
        self._order.pop((topic, partition), None)
        offsets = self.by_topic.get(topic, {})
        offsets.pop(partition, None)
        if not offsets:
            self.by_topic.pop(topic, None)
        for producer_id, waiting in list(self.pending.items()):
            waiting.pop((topic, partition), None)
            if not waiting:
                del self.pending[producer_id]

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """A marker of the producer is in the log."""
        ended = self.pending.pop(producer_id, {})
        if not commit:
            return
        for (topic, partition), (offset, order) in ended.items():
            if order > self._order.get((topic, partition), 0):
                self._set(topic, partition, offset, order)

    def _set(self, topic: str, partition: int, offset: CommittedOffset, order: int) -> None:
        self._order[topic, partition] = order
        self.by_topic.setdefault(topic, {})[partition] = offset

    def expired(
        self, now_ms: int, retention_ms: int, base_ms: Callable[[str, CommittedOffset], int | None]
    ) -> list[tuple[str, int]]:
        """Offsets that nobody has asked to keep for longer.

        `base_ms` returns from when the retention of an offset counts; None keeps it. An expiry that
        a client has given takes precedence.
        """
        return [
            (topic, partition)
            for topic, partition, offset in self.all()
            if _is_expired(offset, now_ms, retention_ms, base_ms(topic, offset))
            and not self.is_pending(topic, partition)
        ]

    def fetched(self, topic: str, partition: int, *, require_stable: bool) -> Body:
        """The entry of a response to OffsetFetch. `errorCode` 88 asks the client to try again."""
        found = self.find(topic, partition)
        is_unstable = require_stable and self.is_pending(topic, partition)
        if found is None or is_unstable:
            found = CommittedOffset(-1, -1, "", -1)
        return {
            "partitionIndex": partition,
            "committedOffset": found.offset,
            "committedLeaderEpoch": found.leader_epoch,
            "metadata": found.metadata,
            "errorCode": ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE,
        }


def _is_expired(
    offset: CommittedOffset, now_ms: int, retention_ms: int, base_ms: int | None
) -> bool:
    if base_ms is None:
        return False
    if offset.expire_timestamp_ms != NO_EXPIRY:
        return now_ms >= offset.expire_timestamp_ms
    return now_ms - base_ms >= retention_ms

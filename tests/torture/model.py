"""What must be in the logs, what may be, and what must not, by what the processes have noted.

A record is *placed* once its offset is known: because it was acknowledged there, or because it was
found there although nobody lived to acknowledge it. Until then it is *pending*. A pending record
that is missing after the directory has been recovered must never be seen again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.torture.content import STAGED, Identity
from tests.torture.retention import Deletion
from tests.torture.setup import PASSING, kind_of

if TYPE_CHECKING:
    from tests.torture.setup import Kind

Uid = tuple[str, int]


@dataclass(eq=False)
class Group:
    """Records that are there together, or not at all: a transaction, or a staged commit."""

    name: str
    is_transaction: bool
    is_intended: bool = False
    """Somebody has tried to commit it. Until then readers of read_committed must not see it."""
    is_certain: bool = False
    """The commit was acknowledged, or part of it was seen: all of it must be there."""
    is_aborted: bool = False
    """Readers of read_committed have passed it over."""
    uids: list[tuple[str, Uid]] = field(default_factory=list)
    """Topic ids and records."""


class Expected(NamedTuple):
    """A record, and with which others it stands and falls."""

    identity: Identity
    group: Group | None

    @property
    def uid(self) -> Uid:
        return self.identity.stream, self.identity.number


class Pending(NamedTuple):
    """A record that nobody acknowledged."""

    record: Expected
    round: int
    """In which it was tried to write it."""
    floors: dict[int, int]
    """By partition: it is not below this offset."""


class Partition:
    """What is known of one partition."""

    def __init__(self) -> None:
        self.placed: dict[int, Expected] = {}
        self.start = 0
        self.end = 0
        self.trim_to = 0
        """What `delete_records` was asked for."""
        self.deleted_to = 0
        """The largest log start that retention was about to move to."""
        self.deleted_keys: dict[bytes | None, int] = {}
        """Offsets of tombstones that compaction has removed: nothing older may come back."""


class Topic:
    """One life of a topic: made again under the same name it is another."""

    def __init__(self, name: str, topic_id: str) -> None:
        self.name = name
        self.topic_id = topic_id
        self.kind: Kind = kind_of(name)
        self.partitions = {number: Partition() for number in range(self.kind.partitions)}
        self.pending: dict[Uid, Pending] = {}
        self.may_be_gone = False
        self.delete_round = -1
        self.is_gone = False


class Model:
    """All topics, by id."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        """Those that are not settled."""
        self.creating: set[str] = set()
        """Names of topics that may have been made."""
        self.round = 0
        self.was_opened = False
        """In this round: whatever earlier ones left has been recovered."""
        self.acknowledged = 0
        self.commits = 0
        self._settled: set[tuple[str, str]] = set()
        """Topic ids and commits that were found to be whole, or deleted again."""
        self._writes: dict[str, tuple[Topic, dict[int, Expected]]] = {}

    def take(self, event: dict[str, Any]) -> None:
        """One line of a journal."""
        handle = getattr(self, f"_{event.pop('event')}", None)
        if handle is not None:
            handle(**event)

    def begin_round(self) -> None:
        """No process of the round before is alive."""
        self.round += 1
        self.was_opened = False
        self._writes.clear()

    def is_recovered(self, pending: Pending) -> bool:
        """Whether a later process has opened the directory since it was tried to write this."""
        return self.was_opened and pending.round < self.round

    # -- the directory

    def _opened(self) -> None:
        self.was_opened = True

    def _create(self, topic: str) -> None:
        self.creating.add(topic)

    def _created(self, topic: str, id: str) -> None:
        self.creating.discard(topic)
        self.adopt(topic, id)

    def adopt(self, topic: str, topic_id: str) -> Topic:
        """A topic that was made, told of or not."""
        return self.topics.setdefault(topic_id, Topic(topic, topic_id))

    def _delete(self, id: str) -> None:
        topic = self._topic(id)
        topic.may_be_gone, topic.delete_round = True, self.round

    def _deleted(self, id: str) -> None:
        self._topic(id).is_gone = True

    def _topic(self, topic_id: str) -> Topic:
        return self.topics[topic_id]

    def _trim(self, id: str, partition: int, to: int) -> None:
        part = self._topic(id).partitions[partition]
        part.trim_to = max(part.trim_to, to)

    def _retention(self, topic: str, id: str, partition: int, **facts: Any) -> None:
        found, deletion = self.adopt(topic, id), Deletion.from_note(**facts)
        allowed = deletion.count_allowed(found.kind)
        assert deletion.count <= allowed, (
            f"{topic}-{partition}: retention deleted {deletion.count} segments where {allowed} may "
            f"be deleted: {deletion}"
        )
        part = found.partitions[partition]
        part.deleted_to = max(part.deleted_to, deletion.new_start)

    # -- records

    def _write(
        self,
        stream: str,
        topic: str,
        id: str,
        count: int,
        at: int,
        fate: str,
        txn: str | None,
    ) -> None:
        found = self.adopt(topic, id)
        group = None if txn is None else self.groups[txn]
        is_keyed = found.kind.is_compacted
        records = {
            n: Expected(Identity(stream, n, at, fate, is_keyed), group) for n in range(count)
        }
        for record in records.values():
            self._add_pending(found, record, {})
        self._writes[stream] = found, records

    def _add_pending(self, topic: Topic, record: Expected, ends: dict[int, int]) -> None:
        floors = {n: max(part.end, ends.get(n, 0)) for n, part in topic.partitions.items()}
        topic.pending[record.uid] = Pending(record, self.round, floors)
        if record.group is not None:
            record.group.uids.append((topic.topic_id, record.uid))

    def _wrote(self, stream: str, at: list[tuple[int, int, int]]) -> None:
        topic, records = self._writes.pop(stream)
        for number, partition, offset in at:
            record = records[number]
            self.place(topic, partition, offset, record)
            self.acknowledged += 1

    def place(self, topic: Topic, partition: int, offset: int, record: Expected) -> None:
        """The record is at this offset, once and for all."""
        placed = topic.partitions[partition].placed
        other = placed.setdefault(offset, record)
        assert other is record, (
            f"{topic.name}-{partition}: two records were acknowledged at offset {offset}: "
            f"{other.identity} and {record.identity}"
        )
        topic.pending.pop(record.uid, None)

    # -- transactions and commits

    def _txn(self, txn: str) -> None:
        self.groups[txn] = Group(txn, is_transaction=True)

    def _commit(self, txn: str) -> None:
        self.groups[txn].is_intended = True

    def _committed(self, txn: str) -> None:
        self.groups[txn].is_certain = True
        self.commits += 1

    def _decide(self, ends: dict[str, int], id: str, **batch: Any) -> None:
        stream, topic = f"{batch['query']}.{batch['number']}", self.adopt(batch["topic"], id)
        group = self.groups.get(stream)
        is_known = group is not None and all(topic_id == id for topic_id, _ in group.uids)
        if is_known or (id, stream) in self._settled:
            return
        group = self.groups[stream] = Group(stream, is_transaction=False, is_intended=True)
        floors = {int(number): end for number, end in ends.items()}
        for n in range(batch["count"]):
            identity = Identity(stream, n, batch["at"], STAGED, topic.kind.is_compacted)
            self._add_pending(topic, Expected(identity, group), floors)

    def _decided(self, stream: str, *, is_replay: bool) -> None:
        group = self.groups.get(stream)
        if group is not None and not (is_replay and self._is_passing(group)):
            group.is_certain = True
            self.commits += 1

    def _is_passing(self, group: Group) -> bool:
        """The topic may have been deleted with the rows, and made again without them."""
        return any(self.topics[topic_id].name in PASSING for topic_id, _ in group.uids)

    # -- after a check

    def settle(self, group: Group) -> None:
        """All of it is where it belongs, or will never be anywhere."""
        self.groups.pop(group.name, None)
        for topic_id, uid in group.uids:
            self._settled.add((topic_id, group.name))
            if topic_id in self.topics:
                self.topics[topic_id].pending.pop(uid, None)

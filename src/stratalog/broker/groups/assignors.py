"""Which member of a consumer group gets which partition: Kafka's two server-side assignors.

Pure functions of the members' subscriptions, the partitions there are, and the last assignment.
Members are taken in order of their ids, so the same input has the same result everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Assignment: TypeAlias = "Mapping[str, frozenset[int]]"
"""Partition numbers by topic id. No topic has an empty set."""


class MemberSpec(NamedTuple):
    """What an assignor knows of a member."""

    topic_ids: frozenset[str]
    """Topics that the member subscribes to and that exist."""
    instance_id: str | None
    assigned: Assignment
    """Its part of the last target assignment."""


def assign_uniform(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[str, int]
) -> dict[str, Assignment]:
    """Spread partitions evenly; members keep as much as possible of what they have."""
    subscriptions = {spec.topic_ids for spec in members.values()}
    ordered = dict(sorted(members.items()))
    if len(subscriptions) == 1:
        return _assign_by_quota(ordered, partition_counts, next(iter(subscriptions)))
    return _assign_to_least_loaded(ordered, partition_counts)


def assign_range(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[str, int]
) -> dict[str, Assignment]:
    """Give each member consecutive partitions of each topic, the first ones one more if needed.

    Topics with the same number of partitions and subscribers are split at the same places, so that
    equal keys meet at the same member. Static members come first, by their instance ids.
    """
    ordered = sorted(members, key=lambda name: _range_order(name, members[name]))
    assigned: dict[str, dict[str, frozenset[int]]] = {name: {} for name in members}
    for topic_id, count in sorted(partition_counts.items()):
        subscribers = [name for name in ordered if topic_id in members[name].topic_ids]
        start = 0
        for number, name in enumerate(subscribers):
            size = count // len(subscribers) + (number < count % len(subscribers))
            if size:
                assigned[name][topic_id] = frozenset(range(start, start + size))
            start += size
    return dict(assigned)


ASSIGNORS: Final[
    Mapping[str, Callable[[Mapping[str, MemberSpec], Mapping[str, int]], dict[str, Assignment]]]
] = {"uniform": assign_uniform, "range": assign_range}
"""By the name that members ask for. The first is the default."""
DEFAULT_ASSIGNOR: Final = next(iter(ASSIGNORS))


def _range_order(name: str, spec: MemberSpec) -> tuple[bool, str]:
    return (spec.instance_id is None, spec.instance_id or name)


def _assign_by_quota(
    members: Mapping[str, MemberSpec],
    partition_counts: Mapping[str, int],
    topic_ids: frozenset[str],
) -> dict[str, Assignment]:
    """All members subscribe to the same topics: each gets its share, the first ones one more."""
    counts = {topic: partition_counts[topic] for topic in sorted(topic_ids)}
    share, extra = divmod(sum(counts.values()), len(members))
    free = {(topic, number) for topic, count in counts.items() for number in range(count)}
    kept: dict[str, list[tuple[str, int]]] = {}
    missing: dict[str, int] = {}
    for position, (name, spec) in enumerate(members.items()):
        quota = share + (position < extra)
        kept[name] = [place for place in _places(spec.assigned) if place in free][:quota]
        free.difference_update(kept[name])
        missing[name] = quota - len(kept[name])
    unassigned = iter(sorted(free))
    for name, count in missing.items():
        kept[name] += [next(unassigned) for _ in range(count)]
    return {name: _grouped(places) for name, places in kept.items()}


def _assign_to_least_loaded(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[str, int]
) -> dict[str, Assignment]:
    """Subscriptions differ. First what members keep, then what is free, then balance."""
    free = {(topic, number) for topic, count in partition_counts.items() for number in range(count)}
    held: dict[str, set[tuple[str, int]]] = {}
    for name, spec in members.items():
        places = _places(spec.assigned)
        held[name] = {place for place in places if place in free and place[0] in spec.topic_ids}
        free -= held[name]
    subscribers = {
        topic: [name for name, spec in members.items() if topic in spec.topic_ids]
        for topic in partition_counts
    }
    for place in sorted(free):
        if subscribers[place[0]]:
            held[min(subscribers[place[0]], key=lambda name: len(held[name]))].add(place)
    while _move_one(held, subscribers):
        pass
    return {name: _grouped(places) for name, places in held.items()}


def _move_one(held: dict[str, set[tuple[str, int]]], subscribers: Mapping[str, list[str]]) -> bool:
    """Move one partition from a member to one that has at least two less. Ends: each move makes
    the sum of squared loads smaller."""
    for name in sorted(held, key=lambda name: -len(held[name])):
        for topic_id in sorted({topic_id for topic_id, _ in held[name]}):
            taker = min(subscribers[topic_id], key=lambda name: len(held[name]))
            if len(held[taker]) + 1 < len(held[name]):
                place = max(place for place in held[name] if place[0] == topic_id)
                held[name].remove(place)
                held[taker].add(place)
                return True
    return False


def _places(assignment: Assignment) -> Iterator[tuple[str, int]]:
    for topic_id in sorted(assignment):
        for number in sorted(assignment[topic_id]):
            yield topic_id, number


def _grouped(places: list[tuple[str, int]] | set[tuple[str, int]]) -> Assignment:
    grouped: dict[str, set[int]] = {}
    for topic_id, number in places:
        grouped.setdefault(topic_id, set()).add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in sorted(grouped.items())}

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.groups.assignors import (
    Assignment,
    MemberSpec,
    assign_range,
    assign_uniform,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def spec(
    *topics: str, has: Mapping[str, set[int]] | None = None, at: str | None = None
) -> MemberSpec:
    assigned = {topic: frozenset(numbers) for topic, numbers in (has or {}).items()}
    return MemberSpec(frozenset(topics), at, assigned)


def plain(assignment: Mapping[str, Assignment]) -> dict[str, dict[str, list[int]]]:
    return {
        name: {topic: sorted(numbers) for topic, numbers in assigned.items()}
        for name, assigned in assignment.items()
    }


def test_uniform_gives_the_first_members_one_more() -> None:
    members = {"b": spec("t"), "a": spec("t")}
    assert plain(assign_uniform(members, {"t": 3})) == {"a": {"t": [0, 1]}, "b": {"t": [2]}}


def test_uniform_takes_away_only_what_others_need() -> None:
    members = {"a": spec("t", has={"t": {0, 1, 2, 3}}), "b": spec("t")}
    assert plain(assign_uniform(members, {"t": 4})) == {"a": {"t": [0, 1]}, "b": {"t": [2, 3]}}


def test_uniform_balances_members_with_different_topics() -> None:
    members = {"a": spec("t", "u"), "b": spec("u"), "c": spec("t")}
    found = assign_uniform(members, {"t": 3, "u": 3})
    assert [sum(map(len, assigned.values())) for assigned in found.values()] == [2, 2, 2]


def test_range_splits_all_topics_at_the_same_places() -> None:
    members = {"b": spec("t", "u"), "a": spec("t", "u")}
    assert plain(assign_range(members, {"t": 3, "u": 3})) == {
        "a": {"t": [0, 1], "u": [0, 1]},
        "b": {"t": [2], "u": [2]},
    }


def test_range_takes_static_members_first() -> None:
    members = {"a": spec("t"), "b": spec("t", at="i")}
    assert plain(assign_range(members, {"t": 1})) == {"a": {}, "b": {"t": [0]}}


TOPICS = st.dictionaries(st.sampled_from("tuvw"), st.integers(1, 7), min_size=1)


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, MemberSpec], dict[str, int]]:
    """Members with subscriptions, and parts of an older assignment that may no longer fit."""
    counts = draw(TOPICS)
    names = draw(st.lists(st.text("abc", min_size=1, max_size=3), unique=True, min_size=1))
    owner = {
        (topic, number): draw(st.sampled_from([*names, None]))
        for topic in "tuvw"
        for number in range(8)
    }
    members = {}
    for name in names:
        has: dict[str, set[int]] = {}
        for (topic, number), owned_by in owner.items():
            if owned_by == name:
                has.setdefault(topic, set()).add(number)
        topics = draw(st.sets(st.sampled_from(sorted(counts))))
        members[name] = spec(*topics, has=has)
    return members, counts


@given(groups())
def test_each_partition_that_somebody_wants_has_one_owner(
    group: tuple[dict[str, MemberSpec], dict[str, int]],
) -> None:
    members, counts = group
    wanted = {
        (topic, number)
        for topic in {topic for member in members.values() for topic in member.topic_ids}
        for number in range(counts[topic])
    }
    for assign in (assign_uniform, assign_range):
        found = assign(members, counts)
        owners = Counter(
            (topic, number)
            for assigned in found.values()
            for topic, numbers in assigned.items()
            for number in numbers
        )
        assert set(owners) == wanted
        assert set(owners.values()) <= {1}
        assert all(found[name].keys() <= members[name].topic_ids for name in members)


@given(groups())
def test_uniform_is_balanced_and_moves_nothing_when_asked_again(
    group: tuple[dict[str, MemberSpec], dict[str, int]],
) -> None:
    members, counts = group
    found = assign_uniform(members, counts)
    loads = {name: sum(map(len, assigned.values())) for name, assigned in found.items()}
    for name, assigned in found.items():
        for other, member in members.items():
            if member.topic_ids & assigned.keys():
                assert loads[name] <= loads[other] + 1
    again = {name: member._replace(assigned=found[name]) for name, member in members.items()}
    assert assign_uniform(again, counts) == found

"""Sums and histograms over records, and how they add up."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Facts(NamedTuple):
    """Sums over records."""

    records: int = 0
    null_keys: int = 0
    tombstones: int = 0
    payload_bytes: int = 0
    """Of keys and values."""
    first_timestamp: int = -1
    last_timestamp: int = -1
    sizes: tuple[tuple[int, int], ...] = ()
    """(bytes, records): how many have keys and values of up to so many bytes, powers of two."""
    hours: tuple[tuple[int, int, int], ...] = ()
    """(start in ms, records, bytes) of every hour that has any."""
    codecs: tuple[tuple[str, float], ...] = ()
    """What codecs make of a byte of keys and values."""


def sum_of(found: Iterable[Facts]) -> Facts:
    """Facts of several runs of records as one."""
    each = [facts for facts in found if facts.records]
    if not each:
        return Facts()
    sizes: Counter[int] = Counter()
    hour_records: Counter[int] = Counter()
    hour_bytes: Counter[int] = Counter()
    for facts in each:
        sizes.update(dict(facts.sizes))
        hour_records.update({start: records for start, records, _ in facts.hours})
        hour_bytes.update({start: size for start, _, size in facts.hours})
    timed = [facts for facts in each if facts.first_timestamp >= 0]
    largest = max(each, key=lambda facts: facts.payload_bytes)
    return Facts(
        sum(facts.records for facts in each),
        sum(facts.null_keys for facts in each),
        sum(facts.tombstones for facts in each),
        sum(facts.payload_bytes for facts in each),
        min((facts.first_timestamp for facts in timed), default=-1),
        max((facts.last_timestamp for facts in timed), default=-1),
        tuple(sorted(sizes.items())),
        tuple((start, hour_records[start], hour_bytes[start]) for start in sorted(hour_records)),
        largest.codecs,
    )

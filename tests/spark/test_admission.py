from __future__ import annotations

import pytest

from stratalog.errors import DataLossError
from stratalog.format.names import TopicPartition
from stratalog.spark.stream import (
    LogEnds,
    is_delayed,
    report_lost_offsets,
    share_limit,
    with_new_partitions,
    without_lost,
)

A, B, C = (TopicPartition("t", number) for number in range(3))


def test_a_limit_is_shared_as_the_connector_shares_it() -> None:
    """What Spark's Kafka connector was seen to do with 300 at a time on 2,010 records."""
    latest = {A: 1010, B: 1000}
    at, taken = {A: 0, B: 0}, []
    while at != latest:
        end = share_limit(at, latest, 300)
        taken.append(sum(end.values()) - sum(at.values()))
        at = end
    assert taken == [299] * 6 + [216]


def test_a_small_partition_does_not_starve() -> None:
    assert share_limit({A: 0, B: 0, C: 5}, {A: 1_000_000, B: 1, C: 5}, 10) == {A: 9, B: 1, C: 5}


def test_a_limit_that_is_not_reached_takes_all() -> None:
    assert share_limit({A: 3, B: 0}, {A: 5, B: 4}, 6) == {A: 5, B: 4}


@pytest.mark.parametrize(
    ("new", "waited_ms", "waits"), [(9, 0, True), (10, 0, False), (9, 999, True), (0, 1000, False)]
)
def test_a_minimum_waits_but_not_for_ever(new: int, waited_ms: int, waits: bool) -> None:
    start, latest = {A: 7}, {A: 7 + new}
    assert waits == is_delayed(
        start, latest, offsets_min=10, waited_ms=waited_ms, delay_max_ms=1000
    )


def test_new_partitions_begin_at_the_beginning() -> None:
    logs = {A: LogEnds(0, 9), B: LogEnds(0, 4)}
    assert with_new_partitions({A: 5}, logs, fails_on_data_loss=True) == {A: 5, B: 0}
    logs[B] = LogEnds(2, 4)
    with pytest.raises(DataLossError, match="t-1 is new and starts at offset 2"):
        with_new_partitions({A: 5}, logs, fails_on_data_loss=True)
    assert with_new_partitions({A: 5}, logs, fails_on_data_loss=False) == {A: 5, B: 2}


def test_what_is_lost_is_passed_over() -> None:
    logs = {A: LogEnds(6, 9), B: LogEnds(0, 4)}
    assert without_lost({A: 5, B: 5, C: 1}, logs) == {A: 6, B: 4}
    assert without_lost({A: 7, B: 4}, logs) == {A: 7, B: 4}


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (None, "t-0 was deleted"),
        (LogEnds(0, 4), "ends at offset 4, but was read up to 5"),
        (LogEnds(6, 9), "starts at offset 6, but was read only up to 5"),
    ],
)
def test_what_is_lost_is_told(log: LogEnds | None, message: str) -> None:
    logs = {} if log is None else {A: log}
    with pytest.raises(DataLossError, match=message):
        report_lost_offsets({A: 5}, logs, fails_on_data_loss=True)
    report_lost_offsets({A: 5}, logs, fails_on_data_loss=False)

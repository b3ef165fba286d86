"""Conversations of real clients with a real Kafka, replayed: our answers equal Kafka's.

The differences that are meant, each with its reason, are a table in docs/broker.md.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stratalog.wire.apis import ApiKey
from tests.broker.replaying import Known, Replay, request_body
from tests.golden_wire import CLIENTS, all_frames, scenarios

PAGE = Path(__file__).parents[2] / "docs" / "broker.md"
WAITS = ("group_", "v2_group_", "txn_errors")
"""Scenarios that mostly wait for timers; they are replayed side by side, all of them."""
WRONG_ON_PURPOSE = {"bad_frames", "api_versions", "v2_api_versions", "heartbeat_848", "admin_misc"}


def _known() -> list[Known]:
    table = PAGE.read_text(encoding="utf-8").partition("\n## Where responses differ")[2]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    return [Known(*each) for each in cells]


def _is_waiting(scenario: str) -> bool:
    return scenario.startswith(WAITS) and scenario != "group_errors"


def _unknown_differences(client: str, scenario: str, directory: Path) -> list[str]:
    """The differences that the table does not list. A busy machine can disturb the timing of a
    rebalance, so a scenario that differs is replayed once more."""
    known = _known()
    found: list[str] = []
    for attempt in ("first", "second"):
        replay = Replay(client, scenario, directory / f"{client}-{scenario}-{attempt}")
        replay.run()
        assert replay.compared > 0
        found = [
            str(difference)
            for difference in replay.differences
            if not any(each.matches(difference) for each in known)
        ]
        if not found:
            break
    return found


REPLAYED = tuple(client for client in CLIENTS if client != "broker-internal")
"""What the real broker said to itself depends on the state of that broker."""


def test_the_table_has_a_reason_for_each_exception() -> None:
    known = _known()
    assert len(known) > 20
    titles = {api.title for api in ApiKey} | {"*", "close"}
    for each in known:
        assert each.reason
        assert each.api in titles or each.api in {"GetTelemetrySubscriptions", "UnregisterBroker"}
    assert len(set(known)) == len(known)


def test_every_captured_request_can_be_read() -> None:
    requests = [frame for frame in all_frames() if frame.direction == "req"]
    wrong = [frame for frame in requests if request_body(frame) is None]
    assert {frame.scenario for frame in wrong} <= WRONG_ON_PURPOSE
    assert len(wrong) < 10


def _replayed(chosen: list[tuple[str, str]], directory: Path, at_once: int) -> list[str]:
    """The unknown differences of all of them."""
    with ThreadPoolExecutor(at_once) as pool:
        found = pool.map(lambda each: _unknown_differences(each[0], each[1], directory), chosen)
        return [difference for listed in found for difference in listed]


ALL = [(client, scenario) for client in REPLAYED for scenario in scenarios(client)]


@pytest.mark.slow
def test_answers_are_kafkas(tmp_path: Path) -> None:
    chosen = [each for each in ALL if not _is_waiting(each[1])]
    patched = [each for each in chosen if each[1] == "sasl"]
    others = [each for each in chosen if each[1] != "sasl"]
    assert len(patched) > 2
    assert {client for client, _ in others} == set(REPLAYED)
    assert _replayed(patched, tmp_path, at_once=1) == []
    assert _replayed(others, tmp_path, at_once=4) == []


@pytest.mark.slow
def test_answers_with_timers_are_kafkas(tmp_path: Path) -> None:
    chosen = [each for each in ALL if _is_waiting(each[1])]
    assert {client for client, _ in chosen} == {"confluent", "kafka-python", "aiokafka", "raw"}
    assert _replayed(chosen, tmp_path, at_once=len(chosen)) == []

"""What the model makes of events that are rare in a run."""

from __future__ import annotations

from typing import Any

from tests.torture.model import Model

BATCH: dict[str, Any] = {"query": "q", "number": 7, "topic": "temp-0", "count": 2, "at": 1}


def decide(model: Model, topic_id: str) -> None:
    model.take({"event": "decide", "id": topic_id, "ends": {}, **BATCH})


def test_a_commit_may_come_again_to_a_topic_that_was_created_again() -> None:
    model = Model()
    decide(model, "a")
    model.take({"event": "decided", "stream": "q.7", "is_replay": False})
    decide(model, "b")  # before anybody looked
    assert len(model.topics["b"].pending) == 2
    model.settle(model.groups["q.7"])
    decide(model, "c")  # afterwards
    assert len(model.topics["c"].pending) == 2


def test_a_commit_that_was_found_is_not_expected_again() -> None:
    model = Model()
    decide(model, "a")
    model.settle(model.groups["q.7"])
    decide(model, "a")
    assert not model.groups
    assert not model.topics["a"].pending

"""Conversations between real clients and a real Kafka, frame by frame (golden-wire/README.md).

    for frame in frames("confluent", "metadata"):
        ...
    for exchange in exchanges("raw", "group_errors"):
        exchange.request.payload, exchange.response.payload

`read_with_kio(frame)` is the body as kio reads it. A frame's `payload` is what follows the four
bytes of its length: the header and the body.
"""

from __future__ import annotations

import json
import lzma
from base64 import b64decode
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

ROOT = Path(__file__).parent / "golden-wire"
CLIENTS = ("aiokafka", "broker-internal", "confluent", "kafka-python", "kcat", "raw")


class Frame(NamedTuple):
    """A request, a response, or the end of a connection."""

    client: str
    scenario: str
    connection: int
    number: int
    """Within its connection."""
    direction: str
    """`req`, `resp` or `close`."""
    at_ms: float
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    data: bytes
    """With the four bytes of the length; empty for `close`."""
    closed_by: str | None

    @property
    def payload(self) -> bytes:
        """Header and body."""
        return self.data[4:]

    def __str__(self) -> str:
        return (
            f"{self.client}/{self.scenario} connection {self.connection} frame {self.number}: "
            f"{self.direction} key {self.api_key} v{self.api_version}"
        )


class Exchange(NamedTuple):
    """A request and what the broker answered; None if it never did."""

    request: Frame
    response: Frame | None


@cache
def _scenarios(client: str) -> dict[str, tuple[Frame, ...]]:
    found: dict[str, list[Frame]] = {}
    scenario = ""
    for line in lzma.decompress((ROOT / f"{client}.jsonl.xz").read_bytes()).splitlines():
        fields = json.loads(line)
        if "scenario" in fields:
            scenario = fields["scenario"]
            found[scenario] = []
        else:
            found[scenario].append(_frame(client, scenario, fields))
    return {name: tuple(listed) for name, listed in found.items()}


def _frame(client: str, scenario: str, fields: dict[str, Any]) -> Frame:
    return Frame(
        client,
        scenario,
        fields["conn"],
        fields["n"],
        fields["dir"],
        fields["t_ms"],
        fields.get("api_key", -1),
        fields.get("api_version", -1),
        fields.get("correlation_id", -1),
        fields.get("client_id"),
        b64decode(fields.get("bytes", "")),
        fields.get("by"),
    )


def scenarios(client: str) -> list[str]:
    """The names of a client's scenarios."""
    return list(_scenarios(client))


def frames(client: str, scenario: str) -> tuple[Frame, ...]:
    """All frames of a scenario, in the order in which they passed."""
    return _scenarios(client)[scenario]


def all_frames() -> list[Frame]:
    """All requests and responses of all scenarios."""
    return [
        frame
        for client in CLIENTS
        for scenario in scenarios(client)
        for frame in frames(client, scenario)
        if frame.direction != "close"
    ]


def exchanges(client: str, scenario: str) -> list[Exchange]:
    """The requests of a scenario in order, each with its response.

    A client may use a correlation id again, so a response belongs to the last request of its
    connection that has its id.
    """
    found: list[Exchange] = []
    open_requests: dict[tuple[int, int], int] = {}
    for frame in frames(client, scenario):
        key = (frame.connection, frame.correlation_id)
        if frame.direction == "req":
            open_requests[key] = len(found)
            found.append(Exchange(frame, None))
        elif frame.direction == "resp" and key in open_requests:
            at = open_requests.pop(key)
            found[at] = Exchange(found[at].request, frame)
    return found


def read_with_kio(frame: Frame) -> Any:
    """The body of a frame as the message class of kio."""
    is_request = frame.direction == "req"
    load = load_request_schema if is_request else load_response_schema
    kind = load(frame.api_key, frame.api_version)
    _, at = entity_reader(kind.__header_schema__)(frame.payload, 0)
    return entity_reader(kind)(frame.payload, at)[0]

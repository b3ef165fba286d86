"""Every captured frame is read into a dict, and written again byte for byte."""

from __future__ import annotations

import struct

import pytest

from stratalog.errors import FrameError
from stratalog.format.messages.schema import read_message, write_message
from stratalog.wire.apis import ApiKey
from stratalog.wire.frames import read_header, read_request, request_frame, response_header_bytes
from tests.golden_wire import CLIENTS, Frame, all_frames

LEFT_OVER = {("Metadata", 12): 3, ("AlterUserScramCredentials", 0): 1}
"""Bytes that librdkafka 2.16 sends after some bodies; Kafka ignores them."""


def _frames(client: str, direction: str) -> list[Frame]:
    """Those of known APIs and versions."""
    known = set(map(int, ApiKey))
    return [
        frame
        for frame in all_frames()
        if (frame.client, frame.direction) == (client, direction)
        and frame.api_key in known
        and frame.api_version <= ApiKey(frame.api_key).request.version_max
    ]


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_requests(client: str) -> None:
    broken = 0
    for frame in _frames(client, "req"):
        api, version = ApiKey(frame.api_key), frame.api_version
        try:
            header, body = read_request(frame.payload)
        except FrameError:
            assert frame.scenario == "bad_frames"
            broken += 1
            continue
        assert header[:4] == (api, version, frame.correlation_id, frame.client_id or "")
        again = request_frame(
            api, version, body, correlation_id=frame.correlation_id, client_id=frame.client_id
        )
        over = len(frame.data) - len(again)
        assert over in {0, LEFT_OVER.get((api.title, version), 0)}, str(frame)
        assert again[4:] == frame.payload[: len(again) - 4], str(frame)
    assert broken == (1 if client == "raw" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_responses(client: str) -> None:
    count = 0
    for frame in _frames(client, "resp"):
        api, version = ApiKey(frame.api_key), frame.api_version
        header = response_header_bytes(api, version, frame.correlation_id)
        assert frame.payload.startswith(header), str(frame)
        body, end = read_message(api.response, frame.payload, len(header), version)
        assert end == len(frame.payload), str(frame)
        assert write_message(api.response, body, version) == frame.payload[len(header) :]
        count += 1
    assert count > 10


def test_a_header_with_tagged_fields_and_one_without_client_id() -> None:
    start = struct.pack(">hhi", ApiKey.METADATA, 12, 7)
    header = read_header(start + b"\xff\xff" + b"\x01\x05\x02ab" + b"body", is_flexible=True)
    assert header.client_id == ""
    assert header.body_at == len(start) + 7

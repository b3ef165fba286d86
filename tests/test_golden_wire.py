from __future__ import annotations

import hashlib

from tests.golden_wire import CLIENTS, ROOT, all_frames, exchanges, scenarios


def test_the_captures_are_as_they_were_recorded() -> None:
    lines = (ROOT / "SHA256SUMS").read_text().splitlines()
    assert [name for _, name in map(str.split, lines)] == [f"{name}.jsonl.xz" for name in CLIENTS]
    for digest, name in map(str.split, lines):
        assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == digest


def test_every_frame_has_its_length_and_every_response_its_request() -> None:
    frames = all_frames()
    assert len(frames) == 6_896
    for frame in frames:
        # One frame declares another length on purpose.
        is_exact = int.from_bytes(frame.data[:4], signed=True) == len(frame.payload)
        assert is_exact or frame.scenario == "bad_frames", frame
    answered = [
        exchange
        for client in CLIENTS
        for scenario in scenarios(client)
        for exchange in exchanges(client, scenario)
        if exchange.response is not None
    ]
    assert len(answered) == sum(frame.direction == "resp" for frame in frames)

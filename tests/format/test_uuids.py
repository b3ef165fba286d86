from __future__ import annotations

import uuid

import pytest

from stratalog.format.uuids import METADATA_TOPIC_ID, decode_id, encode_id

BIGBATCH_ID = uuid.UUID("cede9b9f-de03-4fd3-b719-af6c4dfe918c")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("zt6bn94DT9O3Ga9sTf6RjA", BIGBATCH_ID),
        ("AAAAAAAAAAAAAAAAAAAAAQ", METADATA_TOPIC_ID),
        ("AAAAAAAAAAAAAAAAAAAAAA", uuid.UUID(int=0)),
        ("_____________________w", uuid.UUID(int=(1 << 128) - 1)),
    ],
)
def test_ids(text: str, value: uuid.UUID) -> None:
    assert decode_id(text) == value
    assert decode_id(text + "==") == value
    assert encode_id(value) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "zt6bn94DT9O3Ga9sTf6Rj",
        "zt6bn94DT9O3Ga9sTf6RjAA",
        "zt6bn94DT9O3Ga9sTf6Rj+",
        "zt6bn94DT9O3Ga9sTf6RjA=",
        "zt6bn94DT9O3Ga9sTf6Rj\n",
        "zt6bn94DT9O3Ga9sTf6Rjé",
        str(BIGBATCH_ID),
    ],
)
def test_texts_that_are_no_id(text: str) -> None:
    assert decode_id(text) is None

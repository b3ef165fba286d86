from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptCheckpointError, StratalogError, UnsupportedError
from stratalog.partitions.saved_state import (
    FIRST_PRODUCER_ID,
    PRODUCER_ID_BLOCK,
    STATE_FILE,
    PendingCreate,
    PendingDelete,
    ProducerIds,
    SavedCommit,
    SavedCommits,
    SavedState,
    SavedTopic,
    StateStore,
    decode_state,
    encode_state,
    merge,
)
from stratalog.storage.disk import Disk

ID = uuid.UUID(int=5)
STATE = SavedState(
    generation=3,
    next_producer_id=FIRST_PRODUCER_ID + 1000,
    topics={"orders": SavedTopic(ID, {"retention.ms": "1000"})},
    creates=(PendingCreate("new", ID, 0, 4),),
    deletes=(PendingDelete("old", None),),
)
TEXT = """{
 "version": 0,
 "generation": 3,
 "next_producer_id": 1099511628776,
 "topics": {
  "orders": {
   "topic_id": "AAAAAAAAAAAAAAAAAAAABQ",
   "config": {
    "retention.ms": "1000"
   }
  }
 },
 "creating": [
  {
   "topic": "new",
   "topic_id": "AAAAAAAAAAAAAAAAAAAABQ",
   "first_partition": 0,
   "partition_count": 4
  }
 ],
 "deleting": [
  {
   "topic": "old",
   "topic_id": null
  }
 ],
 "lists_all_topics": true
}
"""


def test_content_of_the_file() -> None:
    assert encode_state(STATE).decode() == TEXT
    assert decode_state(TEXT.encode()) == STATE


@pytest.mark.parametrize(
    "change",
    [
        {"generation": -1},
        {"generation": True},
        {"next_producer_id": 1 << 63},
        {"topics": []},
        {"topics": {"a": {"topic_id": None, "config": {"x": 1}}}},
        {"topics": {"a": {"topic_id": "short", "config": {}}}},
        {"creating": [{"topic": "a"}]},
        {"deleting": [3]},
        {"deleting": None},
    ],
)
def test_what_is_not_understood_is_an_error(change: dict[str, object]) -> None:
    content = json.dumps({**json.loads(TEXT), **change}).encode()
    with pytest.raises(CorruptCheckpointError):
        decode_state(content)


def test_earlier_versions_do_not_list_every_topic() -> None:
    earlier = decode_state(TEXT.replace(',\n "lists_all_topics": true', "").encode())
    assert earlier == replace(STATE, lists_all_topics=False)
    assert decode_state(encode_state(earlier)) == earlier
    assert merge([earlier, STATE]).lists_all_topics
    assert not merge([earlier, earlier]).lists_all_topics
    assert merge([]).lists_all_topics


def test_later_versions_are_not_guessed_at() -> None:
    with pytest.raises(UnsupportedError):
        decode_state(TEXT.replace('"version": 0', '"version": 1').encode())


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_give_a_state_or_a_typed_error(data: bytes) -> None:
    with suppress(StratalogError):
        decode_state(data)


def test_deep_nesting_is_no_crash() -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_state(b"[" * 100_000)


def test_each_directory_has_a_copy(tmp_path: Path) -> None:
    dirs = [tmp_path / "1", tmp_path / "2"]
    for path in dirs:
        path.mkdir()
    store = StateStore(Disk(), dirs)
    store.update(topics=STATE.topics)
    copies = [(path / STATE_FILE).read_bytes() for path in dirs]
    assert copies[0] == copies[1]
    (dirs[0] / STATE_FILE).unlink()
    assert StateStore(Disk(), dirs).state == store.state


def test_the_newer_copy_stands() -> None:
    older = replace(
        STATE, generation=2, next_producer_id=9, topics={"a": SavedTopic(ID, {"x": "1"})}
    )
    newer = replace(
        STATE, generation=4, topics={"a": SavedTopic(ID, {"x": "2"})}, creates=(), deletes=()
    )
    merged = merge([newer, older])
    assert merged.saved_topics == {"a": SavedTopic(ID, {"x": "2"})}
    assert merged.creates == ()
    assert merged.next_producer_id == STATE.next_producer_id
    assert merge([older, STATE]).saved_topics.keys() == {"a", "orders"}
    assert merge([]) == SavedState()


def test_commits_by_writer_and_topic() -> None:
    """The copy with the later commits stands; of two topics of one name that of the newer copy."""
    early, late = SavedCommit(3, 10, 77), SavedCommit(4, 20, None)
    other = SavedCommits(uuid.UUID(int=6), (early,))
    older = replace(
        STATE,
        topic_commits={"query": {"orders": SavedCommits(ID, (early, late)), "audit": other}},
    )
    assert decode_state(encode_state(older)) == older
    again = {"orders": SavedCommits(ID, (early,)), "audit": SavedCommits(ID, (early,))}
    newer = replace(STATE, generation=4, topic_commits={"query": again, "app": again})
    merged = merge([newer, older]).topic_commits
    assert merged == {
        "query": {"orders": SavedCommits(ID, (early, late)), "audit": SavedCommits(ID, (early,))},
        "app": again,
    }


@pytest.mark.parametrize(
    "kept", [{"topic_id": None, "commits": []}, {"topic_id": None, "commits": [[1, 2]]}, []]
)
def test_what_is_no_record_of_commits(kept: object) -> None:
    content = json.loads(encode_state(STATE))
    content["topic_commits"] = {"query": {"orders": kept}}
    with pytest.raises(CorruptCheckpointError):
        decode_state(json.dumps(content).encode())


def test_damage_names_the_file(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_bytes(b"{}")
    with pytest.raises(CorruptCheckpointError) as damage:
        StateStore(Disk(), [tmp_path])
    assert damage.value.path == tmp_path / STATE_FILE


def test_producer_ids_are_never_handed_out_twice(tmp_path: Path) -> None:
    ids = ProducerIds(StateStore(Disk(), [tmp_path]))
    first = [ids.take() for _ in range(PRODUCER_ID_BLOCK + 1)]
    assert first == list(range(FIRST_PRODUCER_ID, FIRST_PRODUCER_ID + PRODUCER_ID_BLOCK + 1))
    again = ProducerIds(StateStore(Disk(), [tmp_path]))
    assert again.take() == FIRST_PRODUCER_ID + 2 * PRODUCER_ID_BLOCK


def test_the_documented_example_is_read() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "format" / "directory-layout.md"
    text = page.read_text().split("```json\n")[1].split("```")[0]
    assert decode_state(text.encode()) == replace(STATE, deletes=())
    assert encode_state(decode_state(text.encode())).decode() == text

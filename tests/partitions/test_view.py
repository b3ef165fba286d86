"""Several log directories as one, read-only: topics, partitions, root files, refusals."""

from __future__ import annotations

import base64
import re
import shutil
import uuid
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import (
    CorruptCheckpointError,
    NotALogDirError,
    PartitionGoneError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.names import DirState, RootFile, TopicPartition
from stratalog.log_dir import LogDir
from stratalog.partitions import view
from stratalog.partitions.view import LogDirView, open_dirs, open_partition
from tests.golden.cases import log_dir_case
from tests.log.building import plain_segment, write_partition

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def two_dirs(tmp_path: Path) -> list[Path]:
    """Topic `a-b` in both, `c` in the second; leftovers of deletions and moves in the first."""
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one / "a-b-0", one / "a-b-10", two / "a-b-2", two / "c-0"):
        write_partition(path, {0: plain_segment(0, 2)})
    for suffix in ("delete", "stray", "future"):
        write_partition(one / f"gone-0.{'0' * 32}-{suffix}", {0: plain_segment(0, 1)})
    (two / "log-start-offset-checkpoint").write_text("0\n1\nc 0 3\n")
    return [one, two]


def test_topics_of_all_directories(two_dirs: list[Path]) -> None:
    logs = open_dirs(*two_dirs)
    assert logs.partition_numbers == {"a-b": [0, 2, 10], "c": [0]}
    assert {name: info.partitions for name, info in logs.topics.items()} == {
        "a-b": (0, 2, 10),
        "c": (0,),
    }
    assert logs.topic_partitions == [
        TopicPartition("a-b", 0),
        TopicPartition("a-b", 2),
        TopicPartition("a-b", 10),
        TopicPartition("c", 0),
    ]


def test_partitions_on_their_way_out_are_listed_apart(two_dirs: list[Path]) -> None:
    one, _ = open_dirs(*two_dirs).dirs
    states = {listed.directory.state for listed in one.partitions}
    assert states == {DirState.LIVE, DirState.DELETE, DirState.STRAY, DirState.FUTURE}


def test_one_partition(two_dirs: list[Path]) -> None:
    with open_dirs(*map(str, two_dirs)).partition("a-b", 2) as view:
        assert view.path == two_dirs[1] / "a-b-2"
        assert [record.offset for record in view.read()] == [0, 1, 2, 3]


def test_partitions_of_a_topic(two_dirs: list[Path]) -> None:
    views = list(open_dirs(*two_dirs).partitions_of("a-b"))
    assert [view.topic_partition.partition for view in views] == [0, 2, 10]


def test_log_start_offset_and_its_moves(two_dirs: list[Path]) -> None:
    with open_dirs(*two_dirs).partition("c", 0) as view:
        assert view.log_start_offset == 3
        (two_dirs[1] / "log-start-offset-checkpoint").write_text("0\n1\nc 0 4\n")
        view.refresh()
        assert view.log_start_offset == 4


def test_unknown_names_say_what_there_is(two_dirs: list[Path]) -> None:
    logs = open_dirs(*two_dirs)
    with pytest.raises(UnknownTopicOrPartitionError, match="a-b, c"):
        logs.partition("orders", 0)
    with pytest.raises(UnknownTopicOrPartitionError, match=r"\[0, 2, 10\], not 1"):
        logs.partition("a-b", 1)
    with pytest.raises(UnknownTopicOrPartitionError):
        logs.partitions_of("gone")


def test_partition_in_two_places(two_dirs: list[Path]) -> None:
    shutil.copytree(two_dirs[0] / "a-b-0", two_dirs[1] / "a-b-0")
    with pytest.raises(StratalogError, match="two places") as caught:
        open_dirs(*two_dirs).partition("a-b", 0)
    assert all(str(path) in str(caught.value) for path in two_dirs)


def test_partition_in_three_places(two_dirs: list[Path], tmp_path: Path) -> None:
    dirs = [*two_dirs, tmp_path / "third"]
    for path in dirs[1:]:
        shutil.copytree(dirs[0] / "a-b-0", path / "a-b-0")
    first, second, third = (path / "a-b-0" for path in dirs)
    told = f"a-b-0 is in 3 places: {first}, {second} and {third}; give one of them"
    with pytest.raises(StratalogError, match=f"^{re.escape(told)}$"):
        open_dirs(*dirs).partition("a-b", 0)


def test_a_partition_that_was_moved_since_it_was_listed(two_dirs: list[Path]) -> None:
    one, two = two_dirs
    logs = open_dirs(one, two)
    (one / "a-b-0").rename(two / "a-b-0")
    assert [record.offset for record in logs.partition("a-b", 0).read()] == [0, 1, 2, 3]
    shutil.rmtree(two / "a-b-0")
    with pytest.raises(PartitionGoneError, match="one/a-b-0"):
        logs.partition("a-b", 0)


@pytest.mark.parametrize("is_source_first", [True, False])
def test_a_partition_that_is_moved_while_they_are_listed(
    two_dirs: list[Path], monkeypatch: pytest.MonkeyPatch, *, is_source_first: bool
) -> None:
    source, target = two_dirs
    copy = target / f"a-b-0.{'0' * 32}-future"
    shutil.copytree(source / "a-b-0", copy)

    class MovedMeanwhile(LogDirView):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            if copy.exists():  # as Kafka does it: for a moment both are live
                copy.rename(target / "a-b-0")
                if not is_source_first:
                    (source / "a-b-0").rename(source / f"a-b-0.{'0' * 32}-delete")
            elif (source / "a-b-0").exists():
                (source / "a-b-0").rename(source / f"a-b-0.{'0' * 32}-delete")

    monkeypatch.setattr(view, "LogDirView", MovedMeanwhile)
    logs = open_dirs(*(two_dirs if is_source_first else reversed(two_dirs)))
    assert logs.partition_numbers["a-b"] == [0, 2, 10]
    assert logs.partition("a-b", 0).path == target / "a-b-0"


def test_a_partition_may_be_in_both_directories_while_it_is_moved(
    two_dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = two_dirs
    shutil.copytree(source / "a-b-0", target / "a-b-0")
    pauses = []

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            (source / "a-b-0").rename(source / f"a-b-0.{'0' * 32}-delete")

    monkeypatch.setattr("stratalog.partitions.view.time.sleep", wait)
    assert open_dirs(*two_dirs).partition("a-b", 0).path == target / "a-b-0"
    assert len(pauses) == 3


def test_directories_that_are_no_partitions(two_dirs: list[Path]) -> None:
    (two_dirs[0] / "lost+found").mkdir()
    (two_dirs[0] / "remote-log-index-cache").mkdir()
    (two_dirs[0] / "topic-x").mkdir()
    view = LogDirView(two_dirs[0])
    assert {path.name for path in view.invalid_directories} == {"lost+found", "topic-x"}
    assert open_dirs(two_dirs[0]).partition_numbers == {"a-b": [0, 10]}


def test_not_a_log_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "nowhere", tmp_path / "file", tmp_path / "empty"):
        with pytest.raises(NotALogDirError, match=str(path)):
            open_dirs(path)
    with pytest.raises(NotALogDirError):
        open_dirs()
    with pytest.raises(NotALogDirError):
        open_partition(tmp_path / "empty")


def test_garbage_in_root_files(two_dirs: list[Path]) -> None:
    """Checkpoints are taken for empty, as Kafka does; identity is not guessed."""
    for file in RootFile:
        (two_dirs[1] / file.value).write_bytes(b"\xff\x00garbage")
    logs = open_dirs(*two_dirs)
    with logs.partition("c", 0) as view:
        assert [record.offset for record in view.read()] == [0, 1, 2, 3]
    second = logs.dirs[1]
    assert second.checkpoint(RootFile.RECOVERY_POINTS) == {}
    (two_dirs[1] / "meta.properties").write_text("version=1\nnode.id=one\n")
    with pytest.raises(CorruptCheckpointError) as caught:
        _ = second.meta_properties
    assert caught.value.path == two_dirs[1] / "meta.properties"


def test_broker_directory() -> None:
    """Root files and internal topics, as a real broker left them."""
    logs = open_dirs(log_dir_case().root)
    assert set(logs.topics) == {"__cluster_metadata", "__consumer_offsets", "__transaction_state"}
    (only,) = logs.dirs
    assert only.has_clean_shutdown
    assert only.invalid_directories == []
    meta = only.meta_properties
    assert meta is not None
    assert (meta.node_id, meta.cluster_id) == (1, "L_0Za8S1S7WFAosY2JyK9g")
    directory_id = uuid.UUID(bytes=base64.urlsafe_b64decode("MtYdq_KPCbmiow0LcoAMAw=="))
    assert meta.directory_id == directory_id
    assert only.checkpoint(RootFile.LOG_START_OFFSETS) == {}
    assert only.checkpoint(RootFile.CLEANER_OFFSETS) == {}
    recovery = only.checkpoint(RootFile.RECOVERY_POINTS)
    assert len(recovery) == 36
    assert recovery[TopicPartition("multiseg", 0)] == 1500
    assert only.checkpoint(RootFile.HIGH_WATERMARKS)[TopicPartition("txn-simple", 0)] == 24


@pytest.mark.parametrize(
    "topic", ["__cluster_metadata", "__consumer_offsets", "__transaction_state"]
)
def test_internal_topics(topic: str) -> None:
    """Kafka's dump tells every batch; what lies between markers must be read."""
    case = log_dir_case()
    with open_dirs(case.root).partition(topic, 0) as view:
        dumps = case.dumps(view.path)
        expected = [
            int(line.split("offset: ")[1].split()[0])
            for segment in view.segments
            for line in _data_lines(dumps[segment.path.name, "deep"].stdout)
        ]
        assert [record.offset for record in view.read()] == expected
        assert view.log_start_offset == 0
        high_watermark = open_dirs(case.root).dirs[0].checkpoint(RootFile.HIGH_WATERMARKS)
        if topic != "__cluster_metadata":  # the metadata log keeps its own
            assert view.log_end_offset >= high_watermark[TopicPartition(topic, 0)]


def _data_lines(dump: str) -> list[str]:
    """Record lines of data batches. A control batch says so in the line above its record."""
    lines, is_control = [], False
    for line in dump.splitlines():
        if line.startswith("baseOffset: "):
            is_control = "isControl: true" in line
        elif line.startswith("| offset: ") and not is_control:
            lines.append(line)
    return lines


def test_topics_are_the_same_for_reader_and_writer(tmp_path: Path) -> None:
    with LogDir.open(tmp_path, background=False) as logs:
        logs.create_topic("orders", 2, config={"retention.ms": "5000"})
        logs.append("stock", b"x")
        reader = open_dirs(tmp_path)
        assert reader.topics == logs.topics
        assert reader.topic("orders") == logs.topic("orders")
        assert reader.topics["orders"].config.retention_ms == 5000
        assert (
            reader.partition_numbers == logs.partition_numbers == {"orders": [0, 1], "stock": [0]}
        )
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'order'"):
        reader.topic("order")


def test_settings_that_cannot_be_read_do_not_hide_topics(tmp_path: Path) -> None:
    with LogDir.open(tmp_path, background=False) as logs:
        logs.create_topic("orders", 2)
    (tmp_path / "stratalog-state.json").write_text("{")
    topic = open_dirs(tmp_path).topics["orders"]
    assert topic.partitions == (0, 1)
    assert "stratalog-state.json" in str(topic.unknown)

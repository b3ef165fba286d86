from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import InvalidNameError
from stratalog.format.names import (
    DirState,
    FileKind,
    FileState,
    PartitionDir,
    PartitionFile,
    RootFile,
    TopicPartition,
    check_topic_name,
    directory_name,
    do_topics_collide,
    is_topic_name,
    parse_partition_dir,
    parse_partition_file,
    parse_root_file,
    segment_file_name,
)

ID = "0123456789abcdef0123456789abcdef"

SEGMENT_FILES = [
    ("00000000000000000000.log", PartitionFile(FileKind.LOG, 0)),
    ("00000000000000000042.index", PartitionFile(FileKind.OFFSET_INDEX, 42)),
    ("00000000000000000042.timeindex", PartitionFile(FileKind.TIME_INDEX, 42)),
    ("00000000000000000042.txnindex", PartitionFile(FileKind.TXN_INDEX, 42)),
    ("00000000000000000137.snapshot", PartitionFile(FileKind.PRODUCER_SNAPSHOT, 137)),
    ("09223372036854775807.log", PartitionFile(FileKind.LOG, (1 << 63) - 1)),
    ("00000000000000000042.log.deleted", PartitionFile(FileKind.LOG, 42, FileState.DELETED)),
    (
        "00000000000000000042.index.cleaned",
        PartitionFile(FileKind.OFFSET_INDEX, 42, FileState.CLEANED),
    ),
    ("00000000000000000042.timeindex.swap", PartitionFile(FileKind.TIME_INDEX, 42, FileState.SWAP)),
    (
        "00000000000000000042.snapshot.deleted",
        PartitionFile(FileKind.PRODUCER_SNAPSHOT, 42, FileState.DELETED),
    ),
]

OTHER_FILES = [
    ("leader-epoch-checkpoint", PartitionFile(FileKind.LEADER_EPOCHS)),
    (
        "leader-epoch-checkpoint.tmp",
        PartitionFile(FileKind.LEADER_EPOCHS, state=FileState.TEMPORARY),
    ),
    ("partition.metadata", PartitionFile(FileKind.PARTITION_METADATA)),
    (
        "partition.metadata.tmp",
        PartitionFile(FileKind.PARTITION_METADATA, state=FileState.TEMPORARY),
    ),
    ("quorum-state", PartitionFile(FileKind.QUORUM_STATE)),
    (
        "00000000000000000687-0000000003.checkpoint",
        PartitionFile(FileKind.METADATA_SNAPSHOT, 687, epoch=3),
    ),
    (
        "00000000000000000687-0000000003.checkpoint.deleted",
        PartitionFile(FileKind.METADATA_SNAPSHOT, 687, FileState.DELETED, 3),
    ),
    (
        "00000000000000000687-0000000003-5829103.checkpoint.part",
        PartitionFile(FileKind.METADATA_SNAPSHOT, 687, FileState.PARTIAL, 3),
    ),
]


@pytest.mark.parametrize(("name", "file"), SEGMENT_FILES + OTHER_FILES)
def test_known_file_names(name: str, file: PartitionFile) -> None:
    assert parse_partition_file(name) == file


@pytest.mark.parametrize(("name", "file"), SEGMENT_FILES)
def test_segment_file_names_are_built_as_they_are_read(name: str, file: PartitionFile) -> None:
    assert file.base_offset is not None
    assert segment_file_name(file.base_offset, file.kind, file.state) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "notes.txt",
        ".lock",
        "00000000000000000042",
        "00000000000000000042.foo",
        "foo.deleted",
        "foo.log.deleted",
        "bootstrap.checkpoint",
        "687-3.checkpoint",
        "99999999999999999999-0000000003.checkpoint",
        "00000000000000000042.foo.swap",
        "00000000000000000042.log.tmp",
    ],
)
def test_files_that_kafka_leaves_alone(name: str) -> None:
    assert parse_partition_file(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "foo.log",
        ".log",
        "-1.index",
        "foo.timeindex",
        "foo.snapshot",
        "foo.swap",
        "foo.cleaned",
        "99999999999999999999.log",  # more than an int64
        "42.log",  # Kafka would open 00000000000000000042.log
        "000000000000000000042.log",
        "0000000000000000004\u0662.log",
    ],
)
def test_files_that_stop_kafka(name: str) -> None:
    with pytest.raises(InvalidNameError):
        parse_partition_file(name)


def test_names_of_segment_files_are_checked_when_built() -> None:
    with pytest.raises(InvalidNameError):
        segment_file_name(-1, FileKind.LOG)
    with pytest.raises(InvalidNameError):
        segment_file_name(1 << 63, FileKind.LOG)
    with pytest.raises(InvalidNameError):
        segment_file_name(0, FileKind.LEADER_EPOCHS)
    with pytest.raises(InvalidNameError):
        segment_file_name(0, FileKind.LOG, FileState.TEMPORARY)


def test_name_order_is_offset_order() -> None:
    offsets = [0, 9, 10, 99, 1000, 1 << 40, (1 << 63) - 1]
    names = [segment_file_name(offset, FileKind.LOG) for offset in offsets]
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta.properties", (RootFile.META_PROPERTIES, FileState.LIVE)),
        ("meta.properties.tmp", (RootFile.META_PROPERTIES, FileState.TEMPORARY)),
        (".lock", (RootFile.LOCK, FileState.LIVE)),
        (".kafka_cleanshutdown", (RootFile.CLEAN_SHUTDOWN, FileState.LIVE)),
        ("recovery-point-offset-checkpoint", (RootFile.RECOVERY_POINTS, FileState.LIVE)),
        ("log-start-offset-checkpoint.tmp", (RootFile.LOG_START_OFFSETS, FileState.TEMPORARY)),
        ("replication-offset-checkpoint", (RootFile.HIGH_WATERMARKS, FileState.LIVE)),
        ("cleaner-offset-checkpoint", (RootFile.CLEANER_OFFSETS, FileState.LIVE)),
        ("bootstrap.checkpoint", (RootFile.BOOTSTRAP_METADATA, FileState.LIVE)),
        ("server.log", None),
        (".tmp", None),
        ("", None),
    ],
)
def test_root_files(name: str, expected: tuple[RootFile, FileState] | None) -> None:
    assert parse_root_file(name) == expected


DIRECTORIES = [
    ("orders-3", PartitionDir(TopicPartition("orders", 3))),
    ("a-b-c-0", PartitionDir(TopicPartition("a-b-c", 0))),
    ("a.b_c-12", PartitionDir(TopicPartition("a.b_c", 12))),
    ("x-delete-0", PartitionDir(TopicPartition("x-delete", 0))),
    ("__cluster_metadata-0", PartitionDir(TopicPartition("__cluster_metadata", 0))),
    ("x-2147483647", PartitionDir(TopicPartition("x", 2147483647))),
    (f"orders-3.{ID}-delete", PartitionDir(TopicPartition("orders", 3), DirState.DELETE, ID)),
    (f"a.b-3.{ID}-stray", PartitionDir(TopicPartition("a.b", 3), DirState.STRAY, ID)),
    (f"a-b-3.{ID}-future", PartitionDir(TopicPartition("a-b", 3), DirState.FUTURE, ID)),
]


@pytest.mark.parametrize(("name", "directory"), DIRECTORIES)
def test_partition_directories(name: str, directory: PartitionDir) -> None:
    assert parse_partition_dir(name) == directory
    assert directory_name(*directory) == name


def test_remote_index_cache_is_no_partition() -> None:
    assert parse_partition_dir("remote-log-index-cache") is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        "orders-",
        "-3",
        "orders-x",
        "orders--x",
        "orders-3-delete",
        "orders-delete",
        "orders-3.-delete",
        f"orders.{ID}-delete",
        f"or ders-3.{ID}-delete",
        f"orders-3.{ID}-stray ",
        "orders-2147483648",
        "orders-1_0",
        "orders- 1",
        "orders-\u0663",
        "orders-99999999999999999999999",
        "lost+found",
    ],
)
def test_directories_that_stop_kafka(name: str) -> None:
    with pytest.raises(InvalidNameError):
        parse_partition_dir(name)


def test_long_topics_are_cut_so_that_the_directory_fits() -> None:
    topic = "t" * 249
    # 255 = 212 + "-12." (4) + the id (32) + "-delete" (7)
    deleted = directory_name(TopicPartition(topic, 12), DirState.DELETE, ID)
    assert deleted == "t" * 212 + f"-12.{ID}-delete"
    assert len(deleted) == 255
    stray = directory_name(TopicPartition(topic, 12), DirState.STRAY, ID)
    assert stray == "t" * 213 + f"-12.{ID}-stray"
    future = directory_name(TopicPartition(topic, 12), DirState.FUTURE, ID)
    assert future == topic + f"-12.{ID}-future"
    assert parse_partition_dir(deleted) == PartitionDir(
        TopicPartition("t" * 212, 12), DirState.DELETE, ID
    )


@pytest.mark.parametrize("unique_id", [None, "", "xyz", ID.upper(), ID + "0"])
def test_moved_directories_need_an_id(unique_id: str | None) -> None:
    with pytest.raises(InvalidNameError):
        directory_name(TopicPartition("orders", 0), DirState.DELETE, unique_id)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "t" * 249, "...", "-", "__consumer_offsets"])
def test_allowed_topic_names(name: str) -> None:
    check_topic_name(name)
    assert is_topic_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "t" * 250, "a b", "a/b", "ä", "a:b", "a\n", "a\0", "\uff11"]
)
def test_refused_topic_names(name: str) -> None:
    assert not is_topic_name(name)
    with pytest.raises(InvalidNameError):
        check_topic_name(name)


def test_topics_collide_when_dots_become_underscores() -> None:
    assert do_topics_collide("a.b", "a_b")
    assert do_topics_collide("a.b", "a.b")
    assert not do_topics_collide("a.b", "a-b")


def test_topic_partition_reads_as_its_directory() -> None:
    assert str(TopicPartition("a-b", 7)) == "a-b-7"
    assert f"{TopicPartition('a-b', 7)}" == "a-b-7"
    assert TopicPartition.parse("a-b-7") == TopicPartition("a-b", 7)
    assert sorted([TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 2)]) == [
        ("a", 2),
        ("a", 10),
        ("b", 0),
    ]


@given(st.text() | st.from_regex(r"[0-9]{0,21}\.?[a-z.\-]*", fullmatch=True))
def test_any_name_is_a_value_or_a_typed_error(name: str) -> None:
    for parse in (parse_partition_file, parse_partition_dir, parse_root_file):
        with contextlib.suppress(InvalidNameError):
            parse(name)

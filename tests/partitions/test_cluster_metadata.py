"""The metadata of a cluster, read from what a KRaft node has on disk."""

from __future__ import annotations

import base64
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import CorruptError, StorageError, UnsupportedError
from stratalog.format.batch import BatchHeader
from stratalog.format.messages import cluster_metadata as records
from stratalog.format.messages.schema import write_message
from stratalog.format.names import parse_partition_file
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.partitions.cluster_metadata import (
    METADATA_DIR,
    ClusterMetadata,
    PartitionRegistration,
    read_cluster_metadata,
)
from tests.golden.cases import all_cases
from tests.golden_metadata import LOG_DIR, expected_topics
from tests.log.building import batches_of

GOLDEN = LOG_DIR / METADATA_DIR
GOLDEN_RUN1 = Path(__file__).parent.parent / "golden" / "_logdir-run1"
LOG = "00000000000000000000.log"
SNAPSHOT_ENDS = [52, 100, 134, 217]
END = 219
T1, T2 = uuid.UUID(int=11), uuid.UUID(int=12)


@pytest.fixture
def metadata_dir(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN, tmp_path / METADATA_DIR)


def snapshots_in(path: Path) -> list[Path]:
    return sorted(path.glob("*.checkpoint"))


def check_as_the_broker_answered(found: ClusterMetadata) -> None:
    """Names, ids, partition counts, and every setting that the broker had from its metadata."""
    expected = expected_topics()
    assert {name for name in found.topics if not name.startswith("__")} == set(expected)
    for name, answer in expected.items():
        topic = found.topics[name]
        assert topic.topic_id.bytes == base64.b64decode(answer["topic_id"] + "==")
        assert sorted(topic.partitions) == list(range(answer["partitions"]))
        by_source: dict[int, dict[str, str]] = {1: {}, 2: {}, 3: {}}
        for key, setting in answer["configs"].items():
            by_source[setting["source"]][key] = setting["value"]
        assert found.topic_configs(name) == by_source[1]
    assert found.cluster_configs == {"log.retention.ms": "500000"}
    assert found.broker_configs(1) == {"log.cleaner.threads": "2"}
    assert found.broker_configs(None) == {}


def test_snapshot_and_log_give_what_the_broker_answered() -> None:
    found = read_cluster_metadata(GOLDEN)
    check_as_the_broker_answered(found)
    assert found.end_offset == END
    assert found.snapshot == snapshots_in(GOLDEN)[-1]
    assert found.warnings == ()
    assert found.topics["topic-3"].partitions[0] == PartitionRegistration(
        (1,), -1, 1
    )  # the broker was stopped


@pytest.mark.parametrize("kept", range(5))
def test_any_of_the_snapshots_and_the_log_give_the_same(metadata_dir: Path, kept: int) -> None:
    """With none of them, the log alone does."""
    for path in snapshots_in(metadata_dir)[kept:]:
        path.unlink()
    found = read_cluster_metadata(metadata_dir)
    check_as_the_broker_answered(found)
    assert found.topics == read_cluster_metadata(GOLDEN).topics
    assert found.end_offset == END


def test_snapshots_without_the_log_end_at_the_newest(metadata_dir: Path) -> None:
    (metadata_dir / LOG).unlink()
    found = read_cluster_metadata(metadata_dir)
    assert found.end_offset == SNAPSHOT_ENDS[-1]
    assert set(expected_topics()) <= set(found.topics)


def split_log(path: Path, at_offset: int) -> None:
    """Let a second segment begin at the first batch from `at_offset` on."""
    data = (path / LOG).read_bytes()
    for batch in batches_of(data):
        if batch.first_offset >= at_offset:
            position = data.index(batch.raw)
            (path / LOG).write_bytes(data[:position])
            (path / f"{batch.first_offset:020}.log").write_bytes(data[position:])
            return


def test_the_log_before_the_newest_snapshots_may_be_deleted(metadata_dir: Path) -> None:
    split_log(metadata_dir, 110)
    (metadata_dir / LOG).unlink()
    for path in snapshots_in(metadata_dir)[:2]:
        path.unlink()
    check_as_the_broker_answered(read_cluster_metadata(metadata_dir))
    snapshots_in(metadata_dir)[-1].unlink()  # the older one and a longer part of the log
    check_as_the_broker_answered(read_cluster_metadata(metadata_dir))


def test_a_gap_between_snapshot_and_log_is_an_error(metadata_dir: Path) -> None:
    split_log(metadata_dir, 150)
    (metadata_dir / LOG).unlink()
    snapshots_in(metadata_dir)[-1].unlink()
    with pytest.raises(CorruptError, match="the records from 134 on are missing"):
        read_cluster_metadata(metadata_dir)


def test_a_log_that_does_not_begin_at_zero_needs_a_snapshot(metadata_dir: Path) -> None:
    split_log(metadata_dir, 110)
    (metadata_dir / LOG).unlink()
    for path in snapshots_in(metadata_dir):
        path.unlink()
    with pytest.raises(CorruptError, match="no complete snapshot reaches there"):
        read_cluster_metadata(metadata_dir)


def test_a_missing_segment_in_between_is_an_error(metadata_dir: Path) -> None:
    split_log(metadata_dir, 60)
    names = sorted(path.name for path in metadata_dir.glob("*.log"))
    data = metadata_dir / names[1]
    data.rename(metadata_dir / f"{int(data.stem) + 1:020}.log")
    for path in snapshots_in(metadata_dir):
        path.unlink()
    with pytest.raises(CorruptError, match="are missing"):
        read_cluster_metadata(metadata_dir)


def test_an_incomplete_snapshot_is_skipped(metadata_dir: Path) -> None:
    """At every batch: without its footer a snapshot is none."""
    newest = snapshots_in(metadata_dir)[-1]
    whole = newest.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        newest.write_bytes(whole[:length])
        found = read_cluster_metadata(metadata_dir)
        check_as_the_broker_answered(found)
        assert found.snapshot == snapshots_in(metadata_dir)[-2]
        assert [newest.name in warning for warning in found.warnings] == [True]


def test_a_snapshot_without_its_last_batch_is_skipped(metadata_dir: Path) -> None:
    newest = snapshots_in(metadata_dir)[-1]
    whole = newest.read_bytes()
    footer = batches_of(whole)[-1].raw
    newest.write_bytes(whole.removesuffix(footer))
    assert read_cluster_metadata(metadata_dir).snapshot == snapshots_in(metadata_dir)[-2]


def test_a_snapshot_with_a_flipped_bit_is_skipped(metadata_dir: Path) -> None:
    newest = snapshots_in(metadata_dir)[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    found = read_cluster_metadata(metadata_dir)
    check_as_the_broker_answered(found)
    assert found.snapshot == snapshots_in(metadata_dir)[-2]


@pytest.mark.parametrize("log_end", [None, 0, 134, 216])
def test_a_log_that_ends_before_a_skipped_snapshot_is_an_error(
    metadata_dir: Path, log_end: int | None
) -> None:
    """The state at offset 134, or later in the log, is not what the cluster had."""
    newest = snapshots_in(metadata_dir)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    log = metadata_dir / LOG
    if log_end is None:
        log.unlink()
    else:
        log.write_bytes(
            b"".join(
                each.raw for each in batches_of(log.read_bytes()) if each.first_offset < log_end
            )
        )
    if log_end == 216:  # the batch of offset 172 ends at 216
        assert read_cluster_metadata(metadata_dir).end_offset == SNAPSHOT_ENDS[-1]
    else:
        with pytest.raises(CorruptError, match=r"are missing; metadata snapshot skipped: .*217-"):
            read_cluster_metadata(metadata_dir)


def test_snapshots_being_written_or_deleted_are_not_read(metadata_dir: Path) -> None:
    for suffix in (".part", ".deleted"):
        (metadata_dir / f"00000000000000000300-0000000001.checkpoint{suffix}").write_bytes(b"junk")
    part = "00000000000000000300-0000000001-abc.checkpoint.part"
    assert parse_partition_file(part) is not None
    (metadata_dir / part).write_bytes(b"junk")
    found = read_cluster_metadata(metadata_dir)
    assert (found.end_offset, found.warnings) == (END, ())


def test_a_torn_tail_ends_the_log(metadata_dir: Path) -> None:
    """Cut anywhere in its last batch, or followed by zeros, it ends before that batch."""
    log = metadata_dir / LOG
    whole = log.read_bytes()
    last = batches_of(whole)[-1]
    start = len(whole) - len(last.raw)
    for tail in (
        last.raw[:-1],
        last.raw[:20],
        last.raw[:5],
        bytes(4096),
        last.raw[:30] + b"\0" * 9,
    ):
        log.write_bytes(whole[:start] + tail)
        assert read_cluster_metadata(metadata_dir).end_offset == last.first_offset


def test_a_corrupt_last_batch_ends_the_log(metadata_dir: Path) -> None:
    log = metadata_dir / LOG
    whole = log.read_bytes()
    log.write_bytes(whole[:-3] + b"\xff" + whole[-2:])
    last = batches_of(whole)[-1]
    assert read_cluster_metadata(metadata_dir).end_offset == last.first_offset


@pytest.mark.slow
def test_every_flipped_byte_is_an_error_or_the_end_of_the_log(metadata_dir: Path) -> None:
    """From the log alone, the state is either what it was at some offset, or not told at all."""
    for path in snapshots_in(metadata_dir):
        path.unlink()
    log = metadata_dir / LOG
    whole = log.read_bytes()
    last = batches_of(whole)[-1]
    for position in range(0, len(whole), 97):
        data = bytearray(whole)
        data[position] ^= 0xFF
        log.write_bytes(data)
        try:
            found = read_cluster_metadata(metadata_dir)
        except CorruptError as error:
            assert error.path == log  # noqa: PT017 - whether it is raised depends on the byte
        else:
            is_outside_crc = found.end_offset == END  # the leader epoch has no checksum
            assert is_outside_crc or found.end_offset == last.first_offset


def test_a_directory_without_anything_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="no metadata snapshot and no segment"):
        read_cluster_metadata(tmp_path)
    with pytest.raises(StorageError):
        read_cluster_metadata(tmp_path / "missing")


# -- records that the golden run does not have


def message(type_id: int, version: int = 0, **fields: Any) -> bytes:
    schema = records._RECORDS[type_id]
    return bytes([1, type_id, version]) + write_message(schema, fields, version)


def id_text(value: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def topic(name: str, topic_id: uuid.UUID) -> bytes:
    return message(2, name=name, topicId=id_text(topic_id))


def partition(topic_id: uuid.UUID, number: int, replicas: tuple[int, ...] = (1, 2)) -> bytes:
    return message(
        3, 1, partitionId=number, topicId=id_text(topic_id), replicas=list(replicas),
        isr=list(replicas), removingReplicas=[], addingReplicas=[], leader=replicas[0],
        leaderEpoch=0, partitionEpoch=0, directories=[],
    )  # fmt: skip


def config(name: str, key: str, value: str | None, resource_type: int = 2) -> bytes:
    return message(4, resourceType=resource_type, resourceName=name, name=key, value=value)


BEGIN, END_TXN, ABORT = message(23), message(24), message(25)


def written(path: Path, *batches: list[bytes]) -> Path:
    """A metadata log of these batches of records."""
    offset, data = 0, b""
    for values in batches:
        made = [Record(offset + n, 1000, None, value) for n, value in enumerate(values)]
        data += encode_batch(made, BatchFields(partition_leader_epoch=1))
        offset += len(values)
    path.mkdir(exist_ok=True)
    (path / LOG).write_bytes(data)
    return path


def test_a_topic_created_again_has_nothing_of_the_one_before(tmp_path: Path) -> None:
    found = read_cluster_metadata(
        written(
            tmp_path,
            [topic("t", T1), config("t", "cleanup.policy", "compact"), partition(T1, 0)],
            [message(9, topicId=id_text(T1))],
            [topic("t", T2), partition(T2, 0), partition(T2, 1), config("t", "retention.ms", "5")],
        )
    )
    assert found.topics["t"].topic_id == T2
    assert found.topics["t"].partition_count == 2
    assert found.topic_configs("t") == {"retention.ms": "5"}


def test_a_null_takes_a_setting_back(tmp_path: Path) -> None:
    changes = [config("", "log.retention.ms", "5", 4), config("7", "log.retention.ms", "6", 4)]
    back = [config("7", "log.retention.ms", None, 4), config("7", "never.set", None, 4)]
    found = read_cluster_metadata(written(tmp_path, changes, back))
    assert found.cluster_configs == {"log.retention.ms": "5"}
    assert found.broker_configs(7) == {}


def test_changes_of_a_partition(tmp_path: Path) -> None:
    changed = message(5, partitionId=0, topicId=id_text(T1), leader=2, replicas=[2, 3])
    same_leader = message(5, partitionId=0, topicId=id_text(T1), isr=[2])
    records_of = [[topic("t", T1), partition(T1, 0)], [changed], [same_leader]]
    found = read_cluster_metadata(written(tmp_path, *records_of))
    assert found.topics["t"].partitions == {0: PartitionRegistration((2, 3), 2, 1)}


def test_transactions_count_once_they_have_ended(tmp_path: Path) -> None:
    before = [topic("before", T1)]
    inside = [topic("t", T2), config("t", "retention.ms", "5")]
    ended = read_cluster_metadata(written(tmp_path / "a", before, [BEGIN], inside, [END_TXN]))
    assert set(ended.topics) == {"before", "t"}
    assert ended.end_offset == 5
    aborted = read_cluster_metadata(written(tmp_path / "b", before, [BEGIN], inside, [ABORT]))
    assert set(aborted.topics) == {"before"}
    assert aborted.configs == {}
    still_open = read_cluster_metadata(written(tmp_path / "c", before, [BEGIN], inside))
    assert set(still_open.topics) == {"before"}
    assert still_open.end_offset == 1


@pytest.mark.parametrize("values", [[END_TXN], [ABORT], [BEGIN, BEGIN], [partition(T1, 0)]])
def test_contradictions_are_errors(tmp_path: Path, values: list[bytes]) -> None:
    with pytest.raises(CorruptError, match="offset"):
        read_cluster_metadata(written(tmp_path, values))


def test_types_of_later_versions_are_skipped(tmp_path: Path) -> None:
    unknown = bytes([1, 99, 0]) + b"whatever"
    large_type = bytes([1, 0xFF, 0x01, 0]) + b"whatever"
    feature = bytes([1, 12, 9]) + b"\x01"  # a version of a known type that is not known
    found = read_cluster_metadata(
        written(tmp_path, [unknown, topic("t", T1)], [large_type, feature], [partition(T1, 0)])
    )
    assert found.topics["t"].partition_count == 1


def test_unknown_tagged_fields_are_skipped(tmp_path: Path) -> None:
    value = topic("t", T1)
    assert value.endswith(b"\0")  # no tagged field
    tagged = value[:-1] + bytes([1, 77, 3]) + b"abc"
    assert set(read_cluster_metadata(written(tmp_path, [tagged])).topics) == {"t"}


def test_a_later_version_of_a_record_that_matters_is_an_error(tmp_path: Path) -> None:
    later = bytes([1, 3, 9]) + partition(T1, 0)[3:]
    with pytest.raises((CorruptError, UnsupportedError), match=LOG):
        read_cluster_metadata(written(tmp_path, [topic("t", T1), later]))


def test_offsets_that_do_not_follow_are_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, [topic("t", T1)], [partition(T1, 0)])
    data = (path / LOG).read_bytes()
    first = len(data) - BatchHeader.unpack(data, len(batches_of(data)[0].raw)).size_bytes
    moved = data[:first] + (7).to_bytes(8, "big") + data[first + 8 :]
    (path / LOG).write_bytes(moved)
    with pytest.raises(CorruptError, match="expected offset 1, found 7"):
        read_cluster_metadata(path)


@pytest.mark.slow
def test_another_broker_s_log_gives_the_settings_its_topics_were_created_with() -> None:
    """The golden cases of `tests/golden` came from one broker, whose metadata log is there."""
    found = read_cluster_metadata(GOLDEN_RUN1 / METADATA_DIR)
    assert found.snapshot is None
    compared = 0
    for case in all_cases():
        created = case.manifest.get("topic_config")
        if case.name in found.topics and created is not None:
            compared += 1
            assert found.topic_configs(case.name) == created
    assert compared > 10
    assert found.topic_configs("__consumer_offsets")["cleanup.policy"] == "compact"

"""Topics: made, grown, configured, found again; and what Kafka refuses, with its codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.config import CleanupPolicy
from stratalog.errors import (
    ConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.uuids import encode_id
from tests.opening import kill, open_logs

if TYPE_CHECKING:
    from pathlib import Path


def test_a_topic_has_its_files(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        topic = logs.create_topic("orders", 2)
        assert topic.partitions == (0, 1)
        assert topic.topic_id is not None
        for name in ("orders-0", "orders-1"):
            metadata = (tmp_path / name / "partition.metadata").read_bytes()
            assert metadata == b"version: 0\ntopic_id: " + encode_id(topic.topic_id).encode()
            assert (tmp_path / name / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n0 0\n"
            assert (tmp_path / name / "00000000000000000000.log").stat().st_size == 0


def test_partitions_default_to_the_config(tmp_path: Path) -> None:
    with open_logs(tmp_path, num_partitions=3) as logs:
        assert logs.create_topic("a").partition_count == 3
        assert logs.create_topic("b", -1).partition_count == 3
        assert logs.create_topic("c", 1).partition_count == 1


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "x" * 250])
def test_names_that_kafka_refuses(tmp_path: Path, name: str) -> None:
    with open_logs(tmp_path) as logs:
        with pytest.raises(InvalidTopicError) as refusal:
            logs.create_topic(name)
        assert refusal.value.code == 17
        assert refusal.value.kafka_name == "INVALID_TOPIC_EXCEPTION"
        assert not logs.topics


def test_longest_name(tmp_path: Path) -> None:
    name = "x" * 249
    with open_logs(tmp_path) as logs:
        logs.create_topic(name)
        logs.append(name, b"v")
        logs.delete_topic(name)
        [left] = [path.name for path in tmp_path.iterdir() if path.is_dir()]
        assert len(left) == 255
        assert left.endswith("-delete")


def test_names_that_differ_in_dots_and_underscores_collide(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("a.b")
        with pytest.raises(InvalidTopicError, match=r"'a_b' collides with existing topic: a\.b"):
            logs.create_topic("a_b")
        logs.create_topic("a-b")


def test_a_topic_exists_once(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders")
        with pytest.raises(TopicAlreadyExistsError) as refusal:
            logs.create_topic("orders", 2)
        assert refusal.value.code == 36


def test_the_clusters_metadata_is_no_topic(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs, pytest.raises(InvalidTopicError):
        logs.create_topic("__cluster_metadata")


@pytest.mark.parametrize("count", [0, -2, 1 << 31])
def test_numbers_of_partitions_that_kafka_refuses(tmp_path: Path, count: int) -> None:
    with open_logs(tmp_path) as logs, pytest.raises(InvalidPartitionsError) as refusal:
        logs.create_topic("orders", count)
    assert refusal.value.code == 37


@pytest.mark.parametrize("factor", [0, -3, 2, 3])
def test_one_broker_has_one_replica(tmp_path: Path, factor: int) -> None:
    with open_logs(tmp_path) as logs:
        with pytest.raises(InvalidReplicationFactorError) as refusal:
            logs.create_topic("orders", replication_factor=factor)
        assert refusal.value.code == 38
        logs.create_topic("orders", replication_factor=1)
        logs.create_topic("others", replication_factor=-1)


def test_default_replication_factor_is_refused_as_well(tmp_path: Path) -> None:
    with open_logs(tmp_path, default_replication_factor=3) as logs:
        with pytest.raises(InvalidReplicationFactorError):
            logs.create_topic("orders")
        logs.create_topic("orders", replication_factor=1)


def test_new_partitions_go_where_the_fewest_are(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in ("1", "2", "3")]
    with open_logs(dirs[0]) as logs:
        logs.create_topic("old", 3)
    with open_logs(*dirs) as logs:
        logs.create_topic("new", 5)
        logs.create_topic("single")
    counts = [sum(child.is_dir() for child in path.iterdir()) for path in dirs]
    assert counts == [3, 3, 3]
    with open_logs(*dirs) as logs:
        assert logs.topic("new").partitions == (0, 1, 2, 3, 4)


def test_adding_partitions(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        before = logs.create_topic("orders", 2, config={"retention.ms": 5000})
        after = logs.add_partitions("orders", 4)
        assert after.partitions == (0, 1, 2, 3)
        assert after.topic_id == before.topic_id
        assert logs.partition("orders", 3).config.retention_ms == 5000
        for count in (4, 3, 0):
            with pytest.raises(InvalidPartitionsError):
                logs.add_partitions("orders", count)
        with pytest.raises(UnknownTopicOrPartitionError) as refusal:
            logs.add_partitions("nothing", 4)
        assert refusal.value.code == 3
    metadata = {(tmp_path / f"orders-{n}" / "partition.metadata").read_bytes() for n in range(4)}
    assert len(metadata) == 1


def test_config_is_checked_by_kafkas_names(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        with pytest.raises(ConfigError, match=r"retention\.msec"):
            logs.create_topic("orders", config={"retention.msec": 1})
        with pytest.raises(ConfigError, match=r"segment\.bytes"):
            logs.create_topic("orders", config={"segment.bytes": 1})
        assert not logs.topics
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


@pytest.mark.slow
def test_config_changes_at_once_and_stays(tmp_path: Path) -> None:
    with open_logs(tmp_path, log_retention_ms=7000) as logs:
        logs.create_topic("orders", config={"cleanup.policy": "compact", "segment.bytes": 20_000})
        log = logs.partition("orders", 0)
        assert log.config.is_compacted
        topic = logs.alter_config("orders", {"cleanup.policy": None, "max.message.bytes": "333"})
        assert topic.overrides == {"segment.bytes": "20000", "max.message.bytes": "333"}
        assert log.config.max_message_bytes == 333
        assert log.config.cleanup_policy == {CleanupPolicy.DELETE}
        with pytest.raises(ConfigError):
            logs.alter_config("orders", {"max.message.bytes": -1})
        with pytest.raises(ConfigError):
            logs.alter_config("orders", {"no.such": None, "nothing": 1})
        kill(logs)
    with open_logs(tmp_path, log_retention_ms=8000) as logs:
        config = logs.partition("orders", 0).config
        assert (config.segment_bytes, config.max_message_bytes) == (20_000, 333)
        assert config.retention_ms == 8000


def test_config_of_another_topic_of_that_name_is_not_taken(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", config={"retention.ms": 1})
    # As if a Kafka broker had deleted the topic and made it again.
    path = tmp_path / "orders-0" / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABQ")
    with open_logs(tmp_path) as logs:
        assert logs.topic("orders").overrides == {}
        assert logs.partition("orders", 0).config.retention_ms == 604_800_000


def test_topics_without_an_id_have_config_as_well(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders")
    (tmp_path / "orders-0" / "partition.metadata").unlink()
    with open_logs(tmp_path) as logs:
        assert logs.topic("orders").topic_id is None
        logs.alter_config("orders", {"retention.ms": 1})
        logs.add_partitions("orders", 2)
    with open_logs(tmp_path) as logs:
        assert logs.topic("orders").overrides == {"retention.ms": "1"}
        logs.delete_topic("orders")
        assert not logs.topics


def test_using_a_topic_creates_it_if_the_config_says_so(tmp_path: Path) -> None:
    with open_logs(tmp_path / "1", num_partitions=2) as logs:
        logs.append("orders", b"x")
        assert logs.topic("orders").partition_count == 2
        with pytest.raises(InvalidTopicError):
            logs.append("no such name", b"x")
    with open_logs(tmp_path / "2", auto_create_topics_enable="false") as logs:
        with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'orders'"):
            logs.append("orders", b"x")
        assert not logs.topics


def test_partitions_that_are_not_there(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2)
        with pytest.raises(UnknownTopicOrPartitionError, match="no partition orders-2"):
            logs.partition("orders", 2)
        with pytest.raises(UnknownTopicOrPartitionError):
            logs.append("orders", b"x", partition=2)
        with pytest.raises(UnknownTopicOrPartitionError, match="topics here: orders"):
            logs.topic("order")


def test_some_partitions_of_a_clusters_topic(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 6)
    for number in (0, 2, 3, 5):
        (tmp_path / f"orders-{number}").rename(tmp_path.parent / f"{tmp_path.name}-{number}")
    with open_logs(tmp_path) as logs:
        assert logs.topic("orders").partitions == (1, 4)
        assert {logs.append("orders", b"x").partition for _ in range(5)} <= {1, 4}
        with pytest.raises(UnknownTopicOrPartitionError, match=r"no partition orders-2; .* 1, 4"):
            logs.append("orders", b"x", key=b"abc")  # 479470107 % 5 is 2
        assert logs.add_partitions("orders", 7).partitions == (1, 4, 5, 6)

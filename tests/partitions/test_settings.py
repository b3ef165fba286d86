"""The settings of topics: from the kept state, from the cluster's metadata, or unknown."""

from __future__ import annotations

import json
import logging
import shutil
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.config import BrokerConfig
from stratalog.errors import BrokerDirectoryError, UnknownSettingsError
from stratalog.format.names import TopicPartition
from stratalog.format.uuids import encode_id
from stratalog.log.log_state import IndexSizes
from stratalog.log_dir import LogDir
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.verify.directory import verify_partition
from stratalog.partitions.cluster_metadata import METADATA_DIR
from stratalog.partitions.saved_state import STATE_FILE
from stratalog.partitions.settings import ConfigSource, TopicSettings
from tests.golden.cases import GoldenCase
from tests.golden_metadata import LOG_DIR, broker_dir, expected_topics
from tests.opening import open_logs

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = {1: ConfigSource.TOPIC, 2: ConfigSource.BROKER, 3: ConfigSource.CLUSTER}
KAFKA_NAMES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return broker_dir(tmp_path / "data")


def open_dir(*paths: Path, **options: Any) -> LogDir:
    return LogDir.open(*paths, background=False, **options)


def without_metadata(directory: Path) -> Path:
    shutil.rmtree(directory / METADATA_DIR)
    return directory


def test_sources_have_kafka_s_names() -> None:
    assert {number: source.value for number, source in SOURCES.items()} == KAFKA_NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", expected_topics())
def test_every_setting_is_what_the_broker_answered(name: str, tmp_path: Path) -> None:
    """With its source, by the read-only settings; and by a LogDir, which has the ids and the number
    of partitions, too."""
    answer = expected_topics()[name]
    with open_dir(broker_dir(tmp_path / "data")) as logs:
        info = logs.topic(name)
    found = TopicSettings([LOG_DIR], BrokerConfig()).of(name, info.topic_id)
    assert (info.unknown, found.unknown) == (None, None)
    assert (info.config, info.sources) == (found.config, found.sources)
    assert info.partition_count == found.partition_count == answer["partitions"]
    texts = found.config.as_dict()
    for key, value in answer["effective"].items():
        assert texts[key] == value
    expected = {key: SOURCES[each["source"]] for key, each in answer["configs"].items()}
    assert {key: texts[key] for key in expected} == {
        key: each["value"] for key, each in answer["configs"].items()
    }
    assert info.sources == expected
    assert info.overrides == {
        key: each["value"] for key, each in answer["configs"].items() if each["source"] == 1
    }


def test_what_the_broker_is_given_comes_after_what_is_set_dynamically() -> None:
    broker = BrokerConfig.parse(
        {"log.retention.hours": "1", "log.segment.bytes": "5000", "log.cleanup.policy": "delete"}
    )
    settings = TopicSettings([LOG_DIR], broker)
    found = settings.of("topic-13", None)
    assert found.config.retention_ms == 500_000
    assert found.source_of("retention.ms") is ConfigSource.CLUSTER
    assert (found.config.segment_bytes, found.source_of("segment.bytes")) == (
        5000,
        ConfigSource.STATIC,
    )
    assert found.source_of("cleanup.policy") is ConfigSource.TOPIC
    assert settings.of("topic-0", None).source_of("cleanup.policy") is ConfigSource.STATIC
    assert found.source_of("segment.index.bytes") is ConfigSource.DEFAULT
    given = found.given({"retention.ms": 7})
    assert (given.config.retention_ms, given.source_of("retention.ms")) == (7, ConfigSource.GIVEN)


def test_the_metadata_may_be_in_another_of_the_directories(directory: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    meta = (directory / "meta.properties").read_text()
    (second / "meta.properties").write_text(meta.replace("directory.id=28", "directory.id=29"))
    shutil.move(directory / "topic-4-0", second)
    assert TopicSettings([second], BrokerConfig()).of("topic-4", None).unknown is not None
    for settings in (
        TopicSettings([second, directory], BrokerConfig()),
        TopicSettings([second], BrokerConfig(), search=[directory]),
        TopicSettings([second], BrokerConfig.parse({"metadata.log.dir": str(directory)})),
    ):
        assert settings.of("topic-4", None).config.retention_ms == 42
    with open_dir(second, directory) as logs:
        assert logs.topic("topic-4").config.retention_ms == 42


def test_metadata_of_another_cluster_is_not_used(directory: Path, tmp_path: Path) -> None:
    other = broker_dir(tmp_path / "other")
    meta = other / "meta.properties"
    meta.write_text(meta.read_text().replace("cluster.id=55", "cluster.id=56"))
    without_metadata(directory)
    found = TopicSettings([directory], BrokerConfig(), search=[other]).of("topic-4", None)
    assert found.unknown is not None
    assert "is not here" in found.unknown
    broker = BrokerConfig.parse({"metadata.log.dir": str(other)})
    found = TopicSettings([directory], broker).of("topic-4", None)
    assert found.unknown is not None
    assert "belongs to another cluster" in found.unknown


def test_why_settings_are_unknown(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory / "topic-0-0", directory / "nobody-s-0")
    shutil.copy(directory / "topic-0-0" / "partition.metadata", directory / "topic-4-0")
    with open_dir(directory) as logs:
        assert "the cluster has no topic of this name" in (logs.topic("nobody-s").unknown or "")
        stale = logs.topic("topic-4").unknown or ""
        assert "has the id 1z79SJsLQb6-AnOgivRvLA, this one Tdj7f9sZS3qMc8rFGYGuTg" in stale
        assert logs.topic("topic-5").unknown is None
    for path in (directory / METADATA_DIR).glob("*.checkpoint"):
        path.unlink()
    log = next((directory / METADATA_DIR).glob("*.log"))
    data = bytearray(log.read_bytes())
    data[5000] ^= 1
    log.write_bytes(data)
    with open_dir(directory) as logs:
        unknown = logs.topic("topic-5").unknown or ""
        assert unknown.startswith("the cluster's metadata cannot be read: ")
        assert str(log) in unknown
    without_metadata(directory)
    with open_dir(directory) as logs:
        assert "a Kafka broker's directory" in (logs.topic("topic-5").unknown or "")
    bare = tmp_path / "bare"
    shutil.copytree(GoldenCase("multiseg").partition_dir, bare / "multiseg-0")
    with open_dir(bare) as logs:
        assert "not created here" in (logs.topic("multiseg").unknown or "")
        logs.create_topic("ours", 1)
        assert logs.topic("ours").unknown is None
    with open_dir(bare) as logs:  # that there is a state now says nothing about what was copied
        assert logs.topic("multiseg").unknown is not None
        assert logs.topic("ours").unknown is None
        logs.alter_config("multiseg", {"cleanup.policy": "delete"})
        assert logs.topic("multiseg").unknown is None


def of_an_earlier_version(directory: Path) -> None:
    """Leave its state file as earlier versions wrote it: without topics that override nothing."""
    file = directory / STATE_FILE
    state = json.loads(file.read_text())
    state.pop("lists_all_topics", None)
    state["topics"] = {name: topic for name, topic in state["topics"].items() if topic["config"]}
    file.write_text(json.dumps(state))


def test_topics_of_an_earlier_version_have_the_defaults(tmp_path: Path) -> None:
    """They are Stratalog's own. What is copied here later is not."""
    with open_dir(tmp_path) as logs:
        logs.create_topic("plain", 1)
        logs.create_topic("limited", 1, config={"retention.ms": 5})
    of_an_earlier_version(tmp_path)
    found = TopicSettings([tmp_path], BrokerConfig()).of("plain", None)
    assert (found.unknown, found.sources) == (None, {})
    with open_dir(tmp_path) as logs:
        assert (logs.topic("plain").unknown, logs.topic("limited").unknown) == (None, None)
    shutil.copytree(GoldenCase("multiseg").partition_dir, tmp_path / "multiseg-0")
    with open_dir(tmp_path) as logs:
        assert {name: info.unknown is None for name, info in logs.topics.items()} == {
            "limited": True,
            "multiseg": False,
            "plain": True,
        }
        assert logs.topic("limited").config.retention_ms == 5


def test_a_creation_that_an_earlier_version_began_is_finished(tmp_path: Path) -> None:
    with open_dir(tmp_path) as logs:
        topic_id = encode_id(logs.create_topic("plain", 2).topic_id or uuid.UUID(int=0))
    of_an_earlier_version(tmp_path)
    state = json.loads((tmp_path / STATE_FILE).read_text())
    pending = {"topic": "plain", "topic_id": topic_id, "first_partition": 0, "partition_count": 2}
    (tmp_path / STATE_FILE).write_text(json.dumps({**state, "creating": [pending]}))
    for number in (0, 1):
        shutil.rmtree(tmp_path / f"plain-{number}")
    for _ in range(2):
        with open_dir(tmp_path) as logs:
            assert (logs.topic("plain").unknown, logs.topic("plain").partitions) == (None, (0, 1))


def test_in_a_broker_s_directory_the_state_of_an_earlier_version_says_nothing(
    directory: Path,
) -> None:
    with open_dir(directory) as logs:
        logs.create_topic("new", 1, create_in_broker_dir=True)
    of_an_earlier_version(directory)
    without_metadata(directory)
    with open_dir(directory) as logs:
        assert "a Kafka broker's directory" in (logs.topic("topic-5").unknown or "")
    assert TopicSettings([directory], BrokerConfig()).of("topic-5", None).unknown is not None


def test_the_service_leaves_topics_alone_whose_settings_are_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    partition = tmp_path / "multiseg-0"
    shutil.copytree(GoldenCase("multiseg").partition_dir, partition)
    before = sorted(path.name for path in partition.glob("*.log"))
    with caplog.at_level(logging.WARNING), open_logs(tmp_path) as logs:
        logs.maintenance.run_once()
        logs.maintenance.run_once()
    warnings = [each.getMessage() for each in caplog.records]
    assert sum("cleanup.policy of 'multiseg' is unknown" in each for each in warnings) == 1
    assert before == [name for name in before if (partition / name).exists()]
    for assumed in ({"retention.ms": 1}, {"cleanup.policy": "compact", "retention.ms": 1}):
        with open_dir(tmp_path, assumed_config=assumed) as logs:
            logs.maintenance.check_retention()
        assert before == [name for name in before if (partition / name).exists()]
    with open_dir(tmp_path, assumed_config={"cleanup.policy": "delete", "retention.ms": 1}) as logs:
        assert logs.topic("multiseg").unknown is None
        logs.maintenance.check_retention()
    assert not (partition / before[0]).exists()


def test_nothing_is_compacted_whose_settings_are_unknown(tmp_path: Path) -> None:
    shutil.copytree(GoldenCase("multiseg").partition_dir, tmp_path / "multiseg-0")
    place = TopicPartition("multiseg", 0)
    with open_dir(tmp_path, config={"log.cleanup.policy": "compact"}) as logs:
        logs.maintenance.run_once()
        assert logs.cleaning.states() == []
        with pytest.raises(UnknownSettingsError, match=r"cleanup.policy of 'multiseg' is unknown"):
            logs.cleaning.clean(place, Cleaner(1 << 21), is_forced=True)
    with open_dir(tmp_path, assumed_config={"cleanup.policy": "compact"}) as logs:
        assert logs.cleaning.clean(place, Cleaner(1 << 21), is_forced=True) is not None


def test_settings_of_a_cluster_s_topics_are_not_changed_here(directory: Path) -> None:
    with open_dir(directory) as logs, pytest.raises(BrokerDirectoryError, match="kafka-configs"):
        logs.alter_config("topic-4", {"retention.ms": 1})


# -- creating topics in a broker's directory


def test_topics_are_not_created_in_a_broker_s_directory(directory: Path) -> None:
    before = sorted(path.name for path in directory.iterdir())
    with open_dir(directory) as logs:
        with pytest.raises(BrokerDirectoryError, match=r"rename partitions .* to -stray") as caught:
            logs.create_topic("new", 1)
        assert (caught.value.code, caught.value.kafka_name) == (44, "POLICY_VIOLATION")
        with pytest.raises(BrokerDirectoryError):
            logs.append("new", b"value")
        with pytest.raises(BrokerDirectoryError):
            logs.add_partitions("topic-4", 3)
        with pytest.raises(BrokerDirectoryError):
            logs.transaction("writer")
        assert "new" not in logs.topics
        logs.append("topic-4", b"value", key=b"key")
    assert {path.name for path in directory.iterdir()} - set(before) <= {".lock"}


def test_a_flag_lets_topics_be_created_in_a_broker_s_directory(directory: Path) -> None:
    with open_dir(directory) as logs:
        logs.create_topic("new", 1, config={"retention.ms": 5}, create_in_broker_dir=True)
    with open_dir(directory, create_in_broker_dir=True) as logs:
        assert (logs.topic("new").unknown, logs.topic("new").config.retention_ms) == (None, 5)
        logs.append("another", b"value")
        assert logs.topic("another").unknown is None


# -- appending where segment.index.bytes is unknown


SMALL_INDEXES = {
    name: int(answer["effective"]["segment.index.bytes"])
    for name, answer in expected_topics().items()
    if int(answer["effective"]["segment.index.bytes"]) <= 1000
}


def append_much(logs: LogDir, topic: str) -> None:
    """Enough for 150 index entries by the default interval: 1200 and 1800 bytes."""
    now_ms = time.time_ns() // 1_000_000
    for number in range(600):
        logs.append(topic, bytes(1100), key=b"key", timestamp=now_ms - 600 + number, partition=0)


def index_sizes(partition: Path) -> list[IndexSizes]:
    """Of each segment."""
    return [
        IndexSizes(
            path.with_suffix(".index").stat().st_size, path.with_suffix(".timeindex").stat().st_size
        )
        for path in sorted(partition.glob("*.log"))
    ]


def accepted(segment_index_bytes: int) -> IndexSizes:
    """By a broker with this setting, for its last segment."""
    return IndexSizes(segment_index_bytes // 8 * 8, segment_index_bytes // 12 * 12)


@pytest.mark.parametrize(("name", "setting"), SMALL_INDEXES.items())
def test_a_broker_can_open_what_was_appended_without_its_settings(
    name: str, setting: int, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without_metadata(directory)
    for _ in range(2):
        with open_dir(directory) as logs:
            append_much(logs, name)
            end = logs.partition(name, 0).log_end_offset
        assert not index_sizes(directory / f"{name}-0")[-1].exceed(accepted(setting))
        assert (directory / ".kafka_cleanshutdown").exists()
    warnings = [each.getMessage() for each in caplog.records]
    assert sum("segment.index.bytes is unknown" in each for each in warnings) == 2
    with open_dir(directory) as logs:
        records = list(logs.partition(name, 0).read())
        assert records[-1].offset == end - 1
        assert len(records) == end - logs.partition(name, 0).log_start_offset
    assert verify_partition(directory / f"{name}-0").findings == ()


def test_what_is_not_appended_to_does_not_roll(directory: Path) -> None:
    without_metadata(directory)
    before = logs_in(directory)
    with open_dir(directory) as logs:
        for name in SMALL_INDEXES:
            logs.partition(name, 0)
    assert logs_in(directory) == before


def logs_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.glob("*-[0-9]/*.log"))


@pytest.mark.slow
def test_known_settings_need_no_segment_at_the_end(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("topic-12", "topic-13"):  # by the metadata 64 KiB, and Kafka's default
        with open_dir(directory) as logs:
            append_much(logs, name)
        (sizes,) = index_sizes(directory / f"{name}-0")
        assert sizes.exceed(IndexSizes(1000, 1000))
    without_metadata(directory)
    with open_dir(directory, assumed_config={"segment.index.bytes": 65536}) as logs:
        append_much(logs, "topic-12")
    assert len(index_sizes(directory / "topic-12-0")) == 1
    with open_dir(directory) as logs:
        logs.create_topic("ours", 1, create_in_broker_dir=True)
        append_much(logs, "ours")
    assert len(index_sizes(directory / "ours-0")) == 1
    assert "segment.index.bytes is unknown" not in caplog.text


@pytest.mark.slow
def test_after_an_unclean_stop_the_broker_s_index_files_show_its_setting(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without_metadata(directory)
    (directory / ".kafka_cleanshutdown").unlink()
    partition, setting = directory / "topic-0-0", SMALL_INDEXES["topic-0"]
    for suffix, size in zip((".index", ".timeindex"), accepted(setting), strict=True):
        (file,) = partition.glob("*" + suffix)
        with file.open("r+b") as opened:
            opened.truncate(0)
            opened.truncate(size)
    with open_dir(directory) as logs:
        append_much(logs, "topic-0")
    sizes = index_sizes(partition)
    assert len(sizes) > 5
    assert not any(each.exceed(accepted(setting)) for each in sizes)
    assert sizes[-1].time_index  # not empty: no roll was needed at the end
    assert "segment.index.bytes is unknown; using 96" in caplog.text


@pytest.mark.parametrize("suffixes", [(".index", ".timeindex"), (".timeindex",)])
def test_missing_index_files_show_nothing(suffixes: tuple[str, ...], directory: Path) -> None:
    without_metadata(directory)
    (directory / ".kafka_cleanshutdown").unlink()
    partition = directory / "topic-0-0"
    for suffix in suffixes:
        (file,) = partition.glob("*" + suffix)
        file.unlink()
    if suffixes == (".timeindex",):
        (file,) = partition.glob("*.index")
        file.write_bytes(bytes(8))  # as if the setting were 8: no entry of a time index
    with open_dir(directory) as logs:
        assert len(list(logs.partition("topic-0", 0).read())) > 0
    assert verify_partition(partition).findings == ()


@pytest.mark.slow
def test_index_files_of_a_killed_writer_show_nothing(directory: Path) -> None:
    without_metadata(directory)
    with open_dir(directory) as logs:
        append_much(logs, "topic-0")
        killed = shutil.copytree(directory, directory.with_name("killed"))
    with open_dir(killed) as logs:
        logs.partition("topic-0", 0)
    assert not index_sizes(killed / "topic-0-0")[-1].exceed(accepted(SMALL_INDEXES["topic-0"]))

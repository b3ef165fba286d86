"""The settings of topics: from the kept state, from the cluster's metadata, or unknown."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.config import BrokerConfig
from stratalog.errors import BrokerDirectoryError, UnknownSettingsError
from stratalog.format.names import TopicPartition
from stratalog.log_dir.cluster_metadata import METADATA_DIR
from stratalog.log_dir.manager import LogDir
from stratalog.log_dir.settings import ConfigSource, TopicSettings
from stratalog.maintenance.cleaning.cleaner import Cleaner
from tests.golden.cases import GoldenCase
from tests.golden_metadata import LOG_DIR, broker_dir, expected_topics
from tests.log_dir.opening import open_logs

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

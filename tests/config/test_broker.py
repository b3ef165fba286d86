"""BrokerConfig: defaults, the precedence of synonyms, server.properties, and the errors."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from stratalog.config import BrokerConfig, CleanupPolicy, LogConfig
from stratalog.config.broker import BROKER_DEFINITIONS
from stratalog.config.ignored_settings import IGNORED_SETTINGS, is_ignored
from stratalog.config.topic import TOPIC_DEFINITIONS
from stratalog.errors import ConfigError, CorruptCheckpointError

HOUR_MS = 3_600_000
MINUTE_MS = 60_000

# Name, type and default, copied by hand from the page of broker settings that Kafka 4.0 publishes;
# the three that the page leaves out as internal (`*.check.interval.ms` of producer ids, the delay
# of the first task, `node.id` without a default) from Kafka's source.
KAFKA_4_0 = [
    ("auto.create.topics.enable", "boolean", "true"),
    ("default.replication.factor", "int", "1"),
    ("delete.topic.enable", "boolean", "true"),
    ("group.consumer.heartbeat.interval.ms", "int", "5000"),
    ("group.consumer.max.size", "int", "2147483647"),
    ("group.consumer.session.timeout.ms", "int", "45000"),
    ("group.initial.rebalance.delay.ms", "int", "3000"),
    ("group.max.session.timeout.ms", "int", "1800000"),
    ("group.max.size", "int", "2147483647"),
    ("group.min.session.timeout.ms", "int", "6000"),
    ("log.cleaner.backoff.ms", "long", "15000"),
    ("log.cleaner.dedupe.buffer.size", "long", "134217728"),
    ("log.cleaner.enable", "boolean", "true"),
    ("log.cleaner.io.buffer.load.factor", "double", "0.9"),
    ("log.cleaner.io.buffer.size", "int", "524288"),
    ("log.cleaner.io.max.bytes.per.second", "double", "1.7976931348623157E308"),
    ("log.cleaner.threads", "int", "1"),
    ("log.dir.failure.timeout.ms", "long", "30000"),
    ("log.dirs", "list", "/tmp/kafka-logs"),
    ("log.flush.offset.checkpoint.interval.ms", "int", "60000"),
    ("log.flush.scheduler.interval.ms", "long", "9223372036854775807"),
    ("log.flush.start.offset.checkpoint.interval.ms", "int", "60000"),
    ("log.initial.task.delay.ms", "long", "30000"),
    ("log.retention.check.interval.ms", "long", "300000"),
    ("node.id", "int", "-1"),
    ("num.partitions", "int", "1"),
    ("num.recovery.threads.per.data.dir", "int", "2"),
    ("offset.metadata.max.bytes", "int", "4096"),
    ("offsets.commit.timeout.ms", "int", "5000"),
    ("offsets.load.buffer.size", "int", "5242880"),
    ("offsets.retention.check.interval.ms", "long", "600000"),
    ("offsets.retention.minutes", "int", "10080"),
    ("offsets.topic.compression.codec", "int", "0"),
    ("offsets.topic.num.partitions", "int", "50"),
    ("offsets.topic.replication.factor", "short", "3"),
    ("offsets.topic.segment.bytes", "int", "104857600"),
    ("producer.id.expiration.check.interval.ms", "int", "600000"),
    ("producer.id.expiration.ms", "int", "86400000"),
    ("replica.high.watermark.checkpoint.interval.ms", "long", "5000"),
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "int", "10000"),
    ("transaction.max.timeout.ms", "int", "900000"),
    ("transaction.partition.verification.enable", "boolean", "true"),
    ("transaction.remove.expired.transaction.cleanup.interval.ms", "int", "3600000"),
    ("transaction.state.log.load.buffer.size", "int", "5242880"),
    ("transaction.state.log.min.isr", "int", "2"),
    ("transaction.state.log.num.partitions", "int", "50"),
    ("transaction.state.log.replication.factor", "short", "3"),
    ("transaction.state.log.segment.bytes", "int", "104857600"),
    ("transactional.id.expiration.ms", "int", "604800000"),
]

# A broker's name, a text, the topic's name, and the text it becomes there.
SYNONYMS = [
    ("log.cleanup.policy", "compact", "cleanup.policy", "compact"),
    ("compression.gzip.level", "3", "compression.gzip.level", "3"),
    ("compression.lz4.level", "3", "compression.lz4.level", "3"),
    ("compression.type", "lz4", "compression.type", "lz4"),
    ("compression.zstd.level", "4", "compression.zstd.level", "4"),
    ("log.cleaner.delete.retention.ms", "3", "delete.retention.ms", "3"),
    ("log.segment.delete.delay.ms", "3", "file.delete.delay.ms", "3"),
    ("log.flush.interval.messages", "3", "flush.messages", "3"),
    ("log.flush.interval.ms", "3", "flush.ms", "3"),
    ("log.flush.scheduler.interval.ms", "3", "flush.ms", "3"),
    ("log.index.interval.bytes", "3", "index.interval.bytes", "3"),
    ("log.local.retention.bytes", "3", "local.retention.bytes", "3"),
    ("log.local.retention.ms", "3", "local.retention.ms", "3"),
    ("log.cleaner.max.compaction.lag.ms", "3", "max.compaction.lag.ms", "3"),
    ("message.max.bytes", "3", "max.message.bytes", "3"),
    ("log.message.timestamp.after.max.ms", "3", "message.timestamp.after.max.ms", "3"),
    ("log.message.timestamp.before.max.ms", "3", "message.timestamp.before.max.ms", "3"),
    ("log.message.timestamp.type", "LogAppendTime", "message.timestamp.type", "LogAppendTime"),
    ("log.cleaner.min.cleanable.ratio", "0.75", "min.cleanable.dirty.ratio", "0.75"),
    ("log.cleaner.min.compaction.lag.ms", "3", "min.compaction.lag.ms", "3"),
    ("min.insync.replicas", "3", "min.insync.replicas", "3"),
    ("log.preallocate", "true", "preallocate", "true"),
    ("log.retention.bytes", "3", "retention.bytes", "3"),
    ("log.retention.ms", "3", "retention.ms", "3"),
    ("log.retention.minutes", "3", "retention.ms", "180000"),
    ("log.retention.hours", "3", "retention.ms", "10800000"),
    ("log.segment.bytes", "300", "segment.bytes", "300"),
    ("log.index.size.max.bytes", "300", "segment.index.bytes", "300"),
    ("log.roll.jitter.ms", "3", "segment.jitter.ms", "3"),
    ("log.roll.jitter.hours", "3", "segment.jitter.ms", "10800000"),
    ("log.roll.ms", "3", "segment.ms", "3"),
    ("log.roll.hours", "3", "segment.ms", "10800000"),
    ("unclean.leader.election.enable", "true", "unclean.leader.election.enable", "true"),
]


def test_defaults_are_as_they_would_be_parsed() -> None:
    """They are taken as they are."""
    for definition in (*TOPIC_DEFINITIONS.values(), *BROKER_DEFINITIONS.values()):
        value = definition.parse(definition.default)
        assert (type(value), value) == (type(definition.default), definition.default)


def test_names_types_and_defaults_are_those_of_kafka() -> None:
    config = BrokerConfig()
    ours = [
        (name, found.kind.type_name, found.kind.text(getattr(config, found.field)))
        for name, found in BROKER_DEFINITIONS.items()
    ]
    assert ours == KAFKA_4_0
    assert config.log_config == LogConfig()
    assert config.others == ()


@pytest.mark.parametrize(("name", "raw", "topic_name", "text"), SYNONYMS)
def test_a_synonym_sets_the_topics_default(name: str, raw: str, topic_name: str, text: str) -> None:
    assert BrokerConfig.parse({name: raw}).log_config.overrides() == {topic_name: text}


def test_every_synonym_was_tried() -> None:
    declared = [synonym.name for found in TOPIC_DEFINITIONS.values() for synonym in found.synonyms]
    assert [name for name, _, _, _ in SYNONYMS] == declared


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({}, 168 * HOUR_MS),
        ({"log.retention.hours": "2"}, 2 * HOUR_MS),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 3 * MINUTE_MS),
        ({"log.retention.hours": "2", "log.retention.ms": "5"}, 5),
        ({"log.retention.minutes": "3", "log.retention.ms": "5"}, 5),
        ({"log.retention.ms": "5", "log.retention.minutes": "3", "log.retention.hours": "2"}, 5),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-7"}, -1),
        ({"log.retention.ms": "-1", "log.retention.hours": "2"}, -1),
    ],
)
def test_the_finest_unit_of_retention_wins(given: dict[str, object], retention_ms: int) -> None:
    assert BrokerConfig.parse(given).log_config.retention_ms == retention_ms


def test_the_finest_unit_of_rolling_wins() -> None:
    config = BrokerConfig.parse(
        {
            "log.roll.hours": "1",
            "log.roll.ms": "7",
            "log.roll.jitter.hours": 1,
            "log.roll.jitter.ms": 0,
        }
    ).log_config
    assert (config.segment_ms, config.segment_jitter_ms) == (7, 0)


def test_the_flush_scheduler_is_the_flush_interval_where_that_is_not_set() -> None:
    config = BrokerConfig.parse({"log.flush.scheduler.interval.ms": "2000"})
    assert (config.log_flush_scheduler_interval_ms, config.log_config.flush_ms) == (2000, 2000)
    config = BrokerConfig.parse(
        {"log.flush.scheduler.interval.ms": 2000, "log.flush.interval.ms": 9}
    )
    assert (config.log_flush_scheduler_interval_ms, config.log_config.flush_ms) == (2000, 9)


def test_log_dirs_win_over_log_dir_and_both_are_lists() -> None:
    assert BrokerConfig.parse({"log.dir": "/a"}).log_dirs == ("/a",)
    assert BrokerConfig.parse({"log.dir": "/a, /b"}).log_dirs == ("/a", "/b")
    both = BrokerConfig.parse({"log.dir": "/a", "log.dirs": " /b , /c,"})
    assert both.log_dir_paths == (Path("/b"), Path("/c"))
    assert BrokerConfig.parse({"log.dirs": Path("/d")}).log_dirs == ("/d",)


def test_node_id_and_broker_id_are_the_same() -> None:
    assert BrokerConfig.parse({"broker.id": "4"}).node_id == 4
    assert BrokerConfig.parse({"broker.id": "4", "node.id": "5"}).node_id == 5


def test_a_topic_overrides_the_brokers_defaults() -> None:
    broker = BrokerConfig.parse({"log.retention.hours": 1, "log.segment.bytes": 4096})
    topic = LogConfig.parse({"retention.ms": "9"}, broker.log_config)
    assert (topic.retention_ms, topic.segment_bytes) == (9, 4096)
    assert topic.overrides(broker.log_config) == {"retention.ms": "9"}


SERVER_PROPERTIES = b"""\
# a comment
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
listener.name.internal.ssl.keystore.location=/keys/a.jks
ssl.key.password=hush
num.network.threads=3

log.dirs=/data/one,\\
         /data/two
num.partitions : 6
log.retention.hours 24
log.cleanup.policy=compact,delete
! another comment
log.segment.bytes=1073741824
zookeeper.connect=old:2181
confluent.support.metrics.enable=true
"""


def test_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(SERVER_PROPERTIES)
    config = BrokerConfig.from_properties_file(path)
    assert config.log_dirs == ("/data/one", "/data/two")
    assert (config.node_id, config.num_partitions) == (1, 6)
    assert config.log_config == LogConfig(
        retention_ms=24 * HOUR_MS, cleanup_policy=frozenset(CleanupPolicy)
    )
    assert [name for name, _ in config.others] == [
        "process.roles",
        "controller.quorum.bootstrap.servers",
        "listeners",
        "listener.name.internal.ssl.keystore.location",
        "ssl.key.password",
        "num.network.threads",
        "zookeeper.connect",
        "confluent.support.metrics.enable",
    ]
    assert dict(config.others)["ssl.key.password"] == "hush"
    assert "hush" not in repr(config)


def test_errors_in_a_file_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"log.retention.hours=5h\n")
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties_file(path)
    assert str(caught.value).startswith(f"{path}: log.retention.hours: '5h' is not an integer")
    assert (caught.value.name, caught.value.path) == ("log.retention.hours", path)
    path.write_bytes(b"\n\nlog.dirs=\\u12\n")
    with pytest.raises(CorruptCheckpointError) as corrupt:
        BrokerConfig.from_properties_file(path)
    assert (corrupt.value.path, corrupt.value.position) == (path, 2)


def test_unknown_names_in_a_file_are_ignored_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Kafka, where plugins may read them."""
    path = tmp_path / "server.properties"
    path.write_bytes(
        b"num.partitions=3\ncom.example.audit.url=http://a\nlog.retention.hour=5\n"
        b"retention.ms=1\nremote.storage.enable=true\nlisetners=x\nconfluent.license=y\n"
    )
    config = BrokerConfig.from_properties_file(path)
    assert (config.num_partitions, config.log_config) == (3, LogConfig())
    assert config.others == (("confluent.license", "y"),)
    assert caplog.messages == [
        f"{path}: ignored settings that a Kafka broker does not have: com.example.audit.url, "
        "log.retention.hour (did you mean 'log.retention.hours'?), "
        "retention.ms (did you mean 'log.retention.ms'?), remote.storage.enable, "
        "lisetners (did you mean 'listeners'?)"
    ]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties_file(tmp_path / "none")
    text = f"{tmp_path / 'none'}: cannot be read: No such file or directory"
    assert str(caught.value) == text
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        BrokerConfig.from_properties_file(tmp_path)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        (
            {"retention.ms": "1"},
            "retention.ms: is the name of a topic setting; the broker setting is "
            "'log.retention.ms'",
        ),
        (
            {"remote.storage.enable": "true"},
            "remote.storage.enable: is a topic setting; a broker has no default for it",
        ),
        (
            {"lisetners": "x"},
            "lisetners: unknown broker config; did you mean 'listeners'?",
        ),
        ({"zzz": "x"}, "zzz: unknown broker config"),
        (
            {"log.segment.bytes": "1g"},
            "log.segment.bytes: '1g' is not an integer; allowed: int (at least 14)",
        ),
        (
            {"log.retention.ms": "0"},
            "log.retention.ms: '0' is out of range; allowed: long (at least 1, or -1 for no limit)",
        ),
        (
            {"log.retention.hours": "5000000000"},
            "log.retention.hours: '5000000000' does not fit in 32 bits; "
            "allowed: int (at least 1, or -1 for no limit)",
        ),
        # The weaker synonym does not count, and is wrong all the same.
        (
            {"log.roll.ms": "1", "log.roll.hours": "0"},
            "log.roll.hours: '0' is out of range; allowed: int (at least 1)",
        ),
        (
            {"num.partitions": "0"},
            "num.partitions: '0' is out of range; allowed: int (at least 1)",
        ),
        (
            {"offsets.topic.replication.factor": "40000"},
            "offsets.topic.replication.factor: '40000' does not fit in 16 bits; "
            "allowed: short (at least 1)",
        ),
        ({"log.dirs": " , "}, "log.dirs: is empty; a broker needs at least one log directory"),
        ({"log.dirs": "/a,/b,/a"}, "log.dirs: lists '/a' twice"),
        (
            {"log.cleaner.threads": "128"},
            "log.cleaner.dedupe.buffer.size: 134217728 is too small: each of the "
            "128 log.cleaner.threads needs more than 1048576 bytes",
        ),
        (
            {"log.cleaner.min.compaction.lag.ms": 2, "log.cleaner.max.compaction.lag.ms": 1},
            "log.cleaner.min.compaction.lag.ms: as min.compaction.lag.ms: "
            "2 is more than max.compaction.lag.ms, which is 1",
        ),
    ],
)
def test_errors_say_what_is_wrong_and_what_is_allowed(
    properties: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse(properties)
    assert str(caught.value) == text


def test_no_cleaner_threads_need_no_memory() -> None:
    config = BrokerConfig.parse({"log.cleaner.threads": 0, "log.cleaner.dedupe.buffer.size": 0})
    assert config.log_cleaner_threads == 0


def test_is_hashable_and_picklable() -> None:
    config = BrokerConfig.parse({"log.dirs": "/a,/b", "listeners": "x", "log.roll.ms": 5})
    assert pickle.loads(pickle.dumps(config)) == config
    assert {config: 1}[
        BrokerConfig.parse({"log.dirs": "/a,/b", "listeners": "x", "log.roll.ms": 5})
    ]


@pytest.mark.parametrize(
    "name",
    [
        "advertised.listeners",
        "controller.quorum.voters",
        "inter.broker.protocol.version",
        "sasl.jaas.config",
        "super.users",
        "group.streams.num.standby.replicas",
    ],
)
def test_names_of_other_parts(name: str) -> None:
    assert is_ignored(name)
    assert BrokerConfig.parse({name: 5}).others == ((name, "5"),)


def test_no_name_is_both_ours_and_anothers() -> None:
    ours = [name for name, _, _ in KAFKA_4_0] + [name for name, _, _, _ in SYNONYMS]
    assert [name for name in ours if is_ignored(name)] == []
    assert [name for name in IGNORED_SETTINGS if name in TOPIC_DEFINITIONS] == []

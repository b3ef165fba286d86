"""LogConfig: the defaults, ranges and cross-checks of Kafka 4.0's topic settings."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from stratalog.broker.network_config import NETWORK_DEFINITIONS
from stratalog.config import CleanupPolicy, LogConfig, TopicCompression
from stratalog.config.broker import BROKER_DEFINITIONS
from stratalog.config.definitions import Definitions
from stratalog.config.topic import TOPIC_DEFINITIONS
from stratalog.errors import ConfigError, StratalogError
from stratalog.format.batch import Codec, TimestampType
from tests.golden.cases import all_cases

LONG_MAX = 9223372036854775807

# Name, type and default, copied by hand from the page of topic settings that Kafka 4.0 publishes.
KAFKA_4_0 = [
    ("cleanup.policy", "list", "delete"),
    ("compression.gzip.level", "int", "-1"),
    ("compression.lz4.level", "int", "9"),
    ("compression.type", "string", "producer"),
    ("compression.zstd.level", "int", "3"),
    ("delete.retention.ms", "long", "86400000"),
    ("file.delete.delay.ms", "long", "60000"),
    ("flush.messages", "long", "9223372036854775807"),
    ("flush.ms", "long", "9223372036854775807"),
    ("follower.replication.throttled.replicas", "list", ""),
    ("index.interval.bytes", "int", "4096"),
    ("leader.replication.throttled.replicas", "list", ""),
    ("local.retention.bytes", "long", "-2"),
    ("local.retention.ms", "long", "-2"),
    ("max.compaction.lag.ms", "long", "9223372036854775807"),
    ("max.message.bytes", "int", "1048588"),
    ("message.timestamp.after.max.ms", "long", "3600000"),
    ("message.timestamp.before.max.ms", "long", "9223372036854775807"),
    ("message.timestamp.type", "string", "CreateTime"),
    ("min.cleanable.dirty.ratio", "double", "0.5"),
    ("min.compaction.lag.ms", "long", "0"),
    ("min.insync.replicas", "int", "1"),
    ("preallocate", "boolean", "false"),
    ("remote.log.copy.disable", "boolean", "false"),
    ("remote.log.delete.on.disable", "boolean", "false"),
    ("remote.storage.enable", "boolean", "false"),
    ("retention.bytes", "long", "-1"),
    ("retention.ms", "long", "604800000"),
    ("segment.bytes", "int", "1073741824"),
    ("segment.index.bytes", "int", "10485760"),
    ("segment.jitter.ms", "long", "0"),
    ("segment.ms", "long", "604800000"),
    ("unclean.leader.election.enable", "boolean", "false"),
]

# Name, the least and the greatest value that Kafka 4.0 takes, None where only the type limits.
RANGES = [
    ("compression.lz4.level", 1, 17),
    ("compression.zstd.level", -131072, 22),
    ("delete.retention.ms", 0, None),
    ("file.delete.delay.ms", 0, None),
    ("flush.messages", 1, None),
    ("flush.ms", 0, None),
    ("index.interval.bytes", 0, None),
    ("local.retention.bytes", -2, None),
    ("local.retention.ms", -2, None),
    ("max.compaction.lag.ms", 1, None),
    ("max.message.bytes", 0, None),
    ("message.timestamp.after.max.ms", 0, None),
    ("message.timestamp.before.max.ms", 0, None),
    ("min.compaction.lag.ms", 0, None),
    ("min.insync.replicas", 1, None),
    ("retention.bytes", None, None),
    ("retention.ms", -1, None),
    ("segment.bytes", 14, None),
    ("segment.index.bytes", 4, None),
    ("segment.jitter.ms", 0, None),
    ("segment.ms", 1, None),
]


def test_names_types_and_defaults_are_those_of_kafka() -> None:
    config = LogConfig().as_dict()
    ours = [
        (name, definition.kind.type_name, config[name])
        for name, definition in TOPIC_DEFINITIONS.items()
    ]
    assert ours == KAFKA_4_0


def test_a_field_is_the_name_with_underscores() -> None:
    fields = [field.name for field in dataclasses.fields(LogConfig)]
    assert fields == [name.replace(".", "_") for name, _, _ in KAFKA_4_0]


DEFINITIONS = [
    definition
    for definitions in (TOPIC_DEFINITIONS, BROKER_DEFINITIONS, NETWORK_DEFINITIONS)
    for definition in definitions.values()
]


def test_every_setting_is_explained_in_one_sentence() -> None:
    for definition in DEFINITIONS:
        assert definition.doc[0].isupper() or definition.doc[0] == "`", definition.name
        assert definition.doc.endswith("."), definition.name


@pytest.mark.parametrize("source", [None, "class Half", "def other(): ...", ""])
def test_without_its_source_a_setting_has_no_explanation(
    monkeypatch: pytest.MonkeyPatch, source: str | None
) -> None:
    def getsource(_: object) -> str:
        if source is None:
            raise OSError("could not get source code")
        return source

    @dataclasses.dataclass(frozen=True)
    class OtherConfig(LogConfig):
        """Its sentences have not been read yet."""

    monkeypatch.setattr(inspect, "getsource", getsource)
    assert {each.doc for each in Definitions.of(OtherConfig).values()} == {""}


@pytest.mark.parametrize(("name", "low", "high"), RANGES)
def test_ranges(name: str, low: int | None, high: int | None) -> None:
    limit = (1 << 31) if TOPIC_DEFINITIONS[name].kind.type_name == "int" else (1 << 63)
    low = -limit if low is None else low
    high = limit - 1 if high is None else high
    for value in (low, high):
        parsed = LogConfig.parse({name: str(value)})
        assert getattr(parsed, name.replace(".", "_")) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError) as caught:
            LogConfig.parse({name: str(value)})
        assert caught.value.name == name
        assert caught.value.value == str(value)


def test_default_values_have_their_types() -> None:
    config = LogConfig()
    assert config.segment_bytes == 1 << 30
    assert config.cleanup_policy == {CleanupPolicy.DELETE}
    assert config.compression_type is TopicCompression.PRODUCER
    assert config.message_timestamp_type is TimestampType.CREATE_TIME
    assert config.min_cleanable_dirty_ratio == 0.5
    assert config.preallocate is False
    assert config.leader_replication_throttled_replicas == ()


def test_texts_and_values_give_the_same_config() -> None:
    texts: dict[str, object] = {
        "cleanup.policy": "delete, compact",
        "compression.type": "zstd",
        "message.timestamp.type": "LogAppendTime",
        "min.cleanable.dirty.ratio": " 0.25 ",
        "preallocate": "TRUE",
        "segment.bytes": " +2048 ",
        "leader.replication.throttled.replicas": "0:1,1:2",
    }
    values: dict[str, object] = {
        "cleanup.policy": {CleanupPolicy.COMPACT, CleanupPolicy.DELETE},
        "compression.type": TopicCompression.ZSTD,
        "message.timestamp.type": TimestampType.LOG_APPEND_TIME,
        "min.cleanable.dirty.ratio": 0.25,
        "preallocate": True,
        "segment.bytes": 2048,
        "leader.replication.throttled.replicas": ["0:1", "1:2"],
    }
    config = LogConfig.parse(texts)
    assert config == LogConfig.parse(values)
    assert config == LogConfig(**{name.replace(".", "_"): value for name, value in _any(values)})
    assert config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    assert config.compression_type is TopicCompression.ZSTD


def _any(values: dict[str, object]) -> list[tuple[str, Any]]:
    return list(values.items())


def test_constructor_stores_proper_values_whatever_it_gets() -> None:
    lenient: Any = LogConfig
    config = lenient(cleanup_policy=["compact"], segment_bytes="100", preallocate="true")
    assert config == LogConfig(
        cleanup_policy=frozenset({CleanupPolicy.COMPACT}), segment_bytes=100, preallocate=True
    )
    assert type(config.cleanup_policy) is frozenset
    assert hash(config) == hash(LogConfig.parse(config.as_dict()))


def test_constructor_and_replace_check() -> None:
    with pytest.raises(ConfigError, match=r"^segment\.bytes: 13 is out of range"):
        LogConfig(segment_bytes=13)
    with pytest.raises(ConfigError, match=r"^retention\.ms: -2 is out of range"):
        dataclasses.replace(LogConfig(), retention_ms=-2)
    with pytest.raises(ConfigError, match=r"^message\.timestamp\.type: "):
        LogConfig(message_timestamp_type=TimestampType.NO_TIMESTAMP)


def test_overrides_go_on_top_of_a_base() -> None:
    base = LogConfig(segment_ms=5, retention_ms=-1)
    config = LogConfig.parse({"segment.ms": "7", "segment.bytes": 100}, base)
    assert (config.segment_ms, config.segment_bytes, config.retention_ms) == (7, 100, -1)
    assert config.overrides(base) == {"segment.bytes": "100", "segment.ms": "7"}
    assert LogConfig.parse(config.overrides(base), base) == config
    assert LogConfig.parse(config.overrides()) == config
    assert LogConfig().overrides() == {}


def test_as_dict_reads_back() -> None:
    config = LogConfig(
        cleanup_policy=frozenset(CleanupPolicy),
        min_cleanable_dirty_ratio=0.0001,
        follower_replication_throttled_replicas=("*",),
    )
    written = config.as_dict()
    assert written["cleanup.policy"] == "compact,delete"
    assert written["min.cleanable.dirty.ratio"] == "1.0E-4"
    assert written["follower.replication.throttled.replicas"] == "*"
    assert LogConfig.parse(written) == config


def test_is_frozen_hashable_and_picklable() -> None:
    config = LogConfig.parse({"cleanup.policy": "compact", "segment.bytes": 99})
    assert pickle.loads(pickle.dumps(config)) == config
    assert {config: 1}[LogConfig.parse(config.as_dict())] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.segment_bytes = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("policy", "is_compacted", "is_deleted"),
    [
        ("delete", False, True),
        ("compact", True, False),
        ("compact,delete", True, True),
        ("", False, False),
    ],
)
def test_cleanup_policy(policy: str, is_compacted: bool, is_deleted: bool) -> None:
    config = LogConfig.parse({"cleanup.policy": policy})
    assert (config.is_compacted, config.has_delete_policy) == (is_compacted, is_deleted)


def test_compaction_lag_bounds_the_segment_time_of_compacted_topics_only() -> None:
    times: dict[str, object] = {"segment.ms": 1000, "max.compaction.lag.ms": 300}
    assert LogConfig.parse(times).effective_segment_ms == 1000
    assert LogConfig.parse(times | {"cleanup.policy": "compact"}).effective_segment_ms == 300
    late = times | {"cleanup.policy": "compact,delete", "max.compaction.lag.ms": 2000}
    assert LogConfig.parse(late).effective_segment_ms == 1000


def test_jitter_is_bounded_by_the_segment_time() -> None:
    assert LogConfig().effective_segment_jitter_ms == 0
    assert LogConfig(segment_ms=10, segment_jitter_ms=7).effective_segment_jitter_ms == 7
    assert LogConfig(segment_ms=10, segment_jitter_ms=11).effective_segment_jitter_ms == 10


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("producer", None),
        ("uncompressed", Codec.NONE),
        ("gzip", Codec.GZIP),
        ("snappy", Codec.SNAPPY),
        ("lz4", Codec.LZ4),
        ("zstd", Codec.ZSTD),
    ],
)
def test_compression_type_is_a_codec_or_the_producers_choice(
    name: str, codec: Codec | None
) -> None:
    assert LogConfig.parse({"compression.type": name}).codec is codec


def test_levels_belong_to_codecs() -> None:
    config = LogConfig(compression_gzip_level=1, compression_lz4_level=2, compression_zstd_level=-3)
    levels = [config.level_of(codec) for codec in Codec]
    assert levels == [None, 1, None, 2, -3]


@pytest.mark.parametrize(
    ("overrides", "name", "text"),
    [
        (
            {"retention.msec": 1},
            "retention.msec",
            "retention.msec: unknown topic config; did you mean 'retention.ms', "
            "'retention.bytes' or 'local.retention.ms'?",
        ),
        (
            {"log.retention.hours": 1},
            "log.retention.hours",
            "log.retention.hours: is the name of a broker setting; the topic setting is "
            "'retention.ms'",
        ),
        ({"zzz": 1}, "zzz", "zzz: unknown topic config"),
        (
            {"segment.bytes": "1k"},
            "segment.bytes",
            "segment.bytes: '1k' is not an integer; allowed: int (at least 14)",
        ),
        (
            {"retention.bytes": "much"},
            "retention.bytes",
            "retention.bytes: 'much' is not an integer; allowed: long",
        ),
        (
            {"compression.type": "GZIP"},
            "compression.type",
            "compression.type: 'GZIP' is not one of the allowed values; "
            "allowed: string (uncompressed, zstd, lz4, snappy, gzip, producer)",
        ),
        (
            {"compression.gzip.level": 0},
            "compression.gzip.level",
            "compression.gzip.level: 0 is out of range; allowed: int (1 to 9, or -1)",
        ),
        (
            {"cleanup.policy": "delete;compact"},
            "cleanup.policy",
            "cleanup.policy: 'delete;compact' is not one of the allowed values; "
            "allowed: list (compact, delete)",
        ),
        (
            {"min.cleanable.dirty.ratio": "50%"},
            "min.cleanable.dirty.ratio",
            "min.cleanable.dirty.ratio: '50%' is not a number; allowed: double (0 to 1)",
        ),
        (
            {"preallocate": "yes"},
            "preallocate",
            "preallocate: 'yes' is not a boolean; allowed: boolean (true, false)",
        ),
        (
            {"segment.ms": None},
            "segment.ms",
            "segment.ms: None is not an integer; allowed: long (at least 1)",
        ),
        (
            {"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4},
            "min.compaction.lag.ms",
            "min.compaction.lag.ms: 5 is more than max.compaction.lag.ms, which is 4",
        ),
        (
            {"remote.storage.enable": "true", "cleanup.policy": "compact"},
            "remote.storage.enable",
            "remote.storage.enable: true is not allowed if cleanup.policy has compact",
        ),
        (
            {"remote.storage.enable": "true", "local.retention.ms": 700000000},
            "local.retention.ms",
            "local.retention.ms: 700000000 is more than retention.ms, which is 604800000",
        ),
        (
            {"remote.storage.enable": "true", "retention.bytes": 5, "local.retention.bytes": -1},
            "local.retention.bytes",
            "local.retention.bytes: -1 (no limit) is more than retention.bytes, which is 5",
        ),
    ],
)
def test_errors_say_what_is_wrong_and_what_is_allowed(
    overrides: dict[str, object], name: str, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        LogConfig.parse(overrides)
    assert str(caught.value) == text
    assert caught.value.name == name
    assert isinstance(caught.value, StratalogError)


def test_an_error_shows_a_long_value_cut() -> None:
    with pytest.raises(ConfigError) as caught:
        LogConfig.parse({"segment.bytes": "9" * 100_000})
    assert len(str(caught.value)) < 250
    with pytest.raises(ConfigError) as caught:
        LogConfig.parse({"x" * 100_000: "1"})
    assert len(str(caught.value)) < 250


def test_an_error_survives_pickling() -> None:
    with pytest.raises(ConfigError) as caught:
        LogConfig.parse({"retention.msec": "1"})
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.suggestions[0] == "retention.ms"


def test_local_retention_is_free_without_tiered_storage() -> None:
    config = LogConfig.parse({"local.retention.ms": 700000000, "local.retention.bytes": 1})
    assert config.local_retention_ms == 700000000
    unlimited = {"remote.storage.enable": True, "retention.ms": -1, "local.retention.ms": LONG_MAX}
    assert LogConfig.parse(unlimited).local_retention_ms == LONG_MAX


def test_settings_that_newer_versions_of_kafka_reject() -> None:
    assert LogConfig().rejected_by_newer_kafka() == ()
    assert LogConfig(segment_bytes=1048576).rejected_by_newer_kafka() == ()
    assert LogConfig(segment_bytes=1048575).rejected_by_newer_kafka() == (
        "segment.bytes is 1048575; Kafka 4.1 and later require 1048576 or more",
    )


@pytest.mark.slow
def test_configs_of_golden_topics_are_accepted() -> None:
    seen = 0
    for case in all_cases():
        overrides = case.manifest.get("topic_config") or {}
        config = LogConfig.parse(overrides)
        assert config.overrides().items() <= overrides.items()
        seen += bool(overrides)
    assert seen > 10

"""Options of a write, without a session."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from stratalog.bulk.options import BATCH_BYTES_DEFAULT, WriteOptions
from stratalog.bulk.target import LOCK_WAIT_MS, NewTopics
from stratalog.commits.journal import CommitIdentity
from stratalog.errors import ConfigError
from stratalog.format.batch import Codec
from stratalog.spark.options import parse_write_options, stream_write_options


def parse(**options: str) -> WriteOptions:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return parse_write_options({"path": "/data", **given})


def test_defaults() -> None:
    options = parse()
    assert options.target.paths == (Path("/data"),)
    assert options.target.new_topics is None
    assert options.target.lock_wait_ms == LOCK_WAIT_MS
    assert not options.target.create_in_broker_dir
    assert (options.topic, options.codec, options.level) == (None, Codec.NONE, None)
    assert (options.batch_bytes, options.identity) == (BATCH_BYTES_DEFAULT, None)
    assert options.compares_content


def test_everything() -> None:
    options = parse(
        TOPIC="orders",
        topicpartitions="3",
        topicConfig__retention__ms="5",
        kafka__compression__type="ZSTD",
        kafka__compression__zstd__level="7",
        kafka__batch__size="1m",
        txnAppId="nightly",
        txnVersion="12",
        replayCheck="Count",
        lockTimeout="2s",
        createInBrokerDir="True",
        checkpointLocation="/x",
        queryName="q",
        includeHeaders="true",
    )
    assert options.topic == "orders"
    assert options.target.new_topics == NewTopics(3, {"retention.ms": "5"})
    assert (options.codec, options.level, options.batch_bytes) == (Codec.ZSTD, 7, 1 << 20)
    assert options.identity == CommitIdentity("nightly", 12)
    assert not options.compares_content
    assert options.target.lock_wait_ms == 2000
    assert options.target.create_in_broker_dir
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_level_of_another_codec_does_not_count() -> None:
    assert parse(kafka__compression__type="lz4", kafka__compression__gzip__level="3").level == 9
    assert (
        parse(kafka__compression__type="snappy", kafka__compression__gzip__level="3").level is None
    )


def test_settings_of_a_broker(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.segment.bytes=123456\n")
    options = parse(serverProperties=str(file))
    assert options.target.config.log_config.segment_bytes == 123456


REFUSALS = {
    "no path": ({"path": ""}, "path: give the log directory to write to"),
    "remote": ({"path": "s3://bucket/x"}, "path: s3://bucket/x: logs can be written only to disks"),
    "level": (
        {"kafka__compression__gzip__level": "99"},
        "^kafka.compression.gzip.level: ",
    ),
    "size": ({"kafka__batch__size": "large"}, "kafka.batch.size: not a size"),
    "version": ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion: not a whole number"),
    "replays": ({"replayCheck": "never"}, "replayCheck: not one of content, count"),
    "partitions": ({"topicPartitions": "0"}, "topicPartitions: not a whole number of 1 or more"),
    "broker's": ({"createInBrokerDir": "maybe"}, "createInBrokerDir: not true or false"),
    "file": (
        {"serverProperties": "/no/such/file"},
        "/no/such/file: cannot be read: No such file",
    ),
    "topic's": (
        {"topicPartitions": "1", "topicConfig__retention__m": "5"},
        "^topicConfig.retention.m: unknown topic config; did you mean 'topicConfig.retention.ms'",
    ),
    "producer's": (
        {"kafka__partitioner__class": "x.Y"},
        "^kafka.partitioner.class: is not supported; add a column partition",
    ),
    "id": ({"kafka__transactional__id": "x"}, "kafka.transactional.id: .* use txnAppId and txnV"),
    "typo": ({"kafka__compresion__type": "lz4"}, "did you mean 'kafka.compression.type'"),
    "neither's": ({"subscibe": "orders"}, "subscibe: unknown option"),
}


@pytest.mark.parametrize(("options", "match"), REFUSALS.values(), ids=list(REFUSALS))
def test_refused(options: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse(**options)


def test_options_for_brokers_are_ignored_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ignored = {"kafka__bootstrap__servers": "h:9092", "kafka__acks": "all", "kafka__retries": "5"}
    assert parse(**ignored, kafka__isolation__level="read_committed") == parse()
    (record,) = caplog.records
    assert record.getMessage().endswith(
        ": kafka.acks, kafka.bootstrap.servers, kafka.isolation.level, kafka.retries"
    )


def test_options_of_reads_are_ignored_for_the_sake_of_views(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert parse(subscribe="orders", startingoffsets="earliest") == parse(topic="orders")
    assert parse(subscribe="orders", topic="other") == parse(topic="other")
    assert parse(subscribe="a,b") == parse()
    (record,) = caplog.records
    assert record.getMessage().endswith(": startingOffsets")


def test_a_stream_has_its_own_identity() -> None:
    with pytest.raises(ConfigError, match="omit txnAppId"):
        stream_write_options({"path": "/data", "txnAppId": "a", "txnVersion": "1"})

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stratalog.bulk.options import LATEST, ByTimestamp, ReadOptions, Subscription
from stratalog.errors import ConfigError
from stratalog.format.names import TopicPartition
from stratalog.log.reader import IsolationLevel
from stratalog.spark.offset_json import offsets_from_json, offsets_to_json
from stratalog.spark.options import batch_read_options, parse_read_options, stream_read_options

BASE = {"path": "/logs", "subscribe": "t"}


def _parse(**options: str) -> ReadOptions:
    return parse_read_options({name.replace("_", "."): text for name, text in options.items()})


def test_defaults() -> None:
    options = parse_read_options(BASE)
    assert options.paths == (Path("/logs"),)
    assert options.subscription == Subscription(topics=("t",))
    assert options.isolation is IsolationLevel.READ_UNCOMMITTED
    assert options.fail_on_data_loss
    assert not options.includes_headers
    assert options.split_bytes == 128 << 20
    assert (options.starting, options.ending) == (None, None)
    assert stream_read_options(BASE).starting == LATEST


def test_names_in_any_case_and_values_of_any_kind() -> None:
    options = parse_read_options(
        {
            "PATH": "/a,/b",
            "Assign": '{"t":[1,0],"u":[2]}',
            "STARTINGOFFSETS": '{"t":{"0":23,"1":-2},"u":{"2":0}}',
            "endingTimestamp": "1700000000000",
            "kafka.Isolation.Level": "READ_COMMITTED",
            "splitBytes": "1m",
            "minPartitions": "7",
            "includeHeaders": "TRUE",
            "maxTriggerDelay": "15m",
            "onCorruption": "skip",
        }
    )
    assert options.paths == (Path("/a"), Path("/b"))
    assert options.subscription.assigned == (("t", 0), ("t", 1), ("u", 2))
    assert options.starting == (
        (TopicPartition("t", 0), 23),
        (TopicPartition("t", 1), -2),
        (TopicPartition("u", 2), 0),
    )
    assert options.ending == ByTimestamp(for_all=1_700_000_000_000)
    assert options.isolation is IsolationLevel.READ_COMMITTED
    assert (options.split_bytes, options.min_partitions) == (1 << 20, 7)
    assert options.max_trigger_delay_ms == 900_000
    assert options.skips_corruption


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ('["/a,b", "/c"]', ["/a,b", "/c"]),
        ("file:///a/b", ["/a/b"]),
        ("file:/a", ["/a"]),
        ("/a, /b,/a", ["/a", "/b"]),
    ],
)
def test_paths(text: str, paths: list[str]) -> None:
    assert _parse(path=text, subscribe="t").paths == tuple(map(Path, paths))


def test_times_are_what_the_command_line_takes() -> None:
    assert _parse(**BASE, startingTimestamp="2023-11-14T22:13:20").starting == ByTimestamp(
        for_all=1_700_000_000_000
    )
    before_ms = time.time_ns() // 1_000_000
    found = _parse(**BASE, endingTimestamp="-2h").ending
    assert isinstance(found, ByTimestamp)
    assert found.for_all is not None
    assert 0 <= found.for_all + 7_200_000 - before_ms < 60_000
    each = _parse(**BASE, startingOffsetsByTimestamp='{"t":{"0":"2023-11-14","1":5}}').starting
    assert each == ByTimestamp(
        each=((TopicPartition("t", 0), 1_699_920_000_000), (TopicPartition("t", 1), 5))
    )


def test_options_for_brokers_are_ignored_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {
        **BASE,
        "kafka.bootstrap.servers": "host:9092",
        "kafka.group.id": "g",
        "groupidprefix": "x",
        "kafkaConsumer.pollTimeoutMs": "5",
        "fetchOffset.numRetries": "3",
        "kafka.sasl.jaas.config": "secret",
        "kafka.max.poll.records": "20000",
        "kafka.compression.type": "lz4",
    }
    assert batch_read_options(given) == batch_read_options(BASE)
    assert stream_read_options(given) == stream_read_options(BASE)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith(
        ": fetchOffset.numRetries, groupIdPrefix, kafka.bootstrap.servers, kafka.compression.type, "
        "kafka.group.id, kafka.max.poll.records, kafka.sasl.jaas.config, "
        "kafkaConsumer.pollTimeoutMs"
    )
    assert "secret" not in caplog.text


def test_options_of_writes_are_ignored_for_the_sake_of_views(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"path": "/logs", "topic": "t", "topicPartitions": "3", "topicConfig.retention.ms": "5"}
    assert batch_read_options(given) == batch_read_options(BASE)
    assert batch_read_options({**BASE, "topic": "other"}) == batch_read_options(BASE)
    (record,) = caplog.records
    assert record.getMessage().endswith(": topicConfig.retention.ms, topicPartitions")


def test_a_timestamp_for_all_goes_before_those_by_partition_and_offsets() -> None:
    every = {
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"t":{"0":7}}',
        "startingOffsets": "earliest",
    }
    assert _parse(**BASE, **every).starting == ByTimestamp(for_all=5)
    del every["startingTimestamp"]
    each = ((TopicPartition("t", 0), 7),)
    assert _parse(**BASE, **every).starting == ByTimestamp(each=each)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"path": "/l"},
            "One of the following options must be specified for Kafka source: subscribe, "
            "subscribePattern, assign. See the docs for more details.",
        ),
        ({**BASE, "assign": "{}"}, "Only one of the following options"),
        ({"subscribe": "t"}, "path: give the log directory"),
        ({**BASE, "path": "[1]"}, "not a JSON list of paths"),
        ({**BASE, "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({**BASE, "failondatalos": "true"}, "did you mean 'failOnDataLoss'?"),
        ({**BASE, "kafka.bootstrap.server": "h:9092"}, "did you mean 'kafka.bootstrap.servers'"),
        ({**BASE, "kafka.isolation.levl": "x"}, "did you mean 'kafka.isolation.level'"),
        ({**BASE, "kafka.auto.offset.reset": "earliest"}, "not supported; use startingOffsets"),
        ({**BASE, "kafka.value.deserializer": "X"}, "kafka.value.deserializer: is not supported"),
        ({"path": "/l", "subscribe": " , "}, "No topics to subscribe to"),
        ({"path": "/l", "subscribePattern": "a("}, "is not a pattern"),
        ({"path": "/l", "assign": "t"}, 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got t'),
        ({"path": "/l", "assign": '{"t":["0"]}'}, "Expected e.g."),
        ({**BASE, "startingOffsets": "first"}, "Expected e.g."),
        ({**BASE, "startingOffsets": '{"t":{"0":-3}}'}, "-3 is not an offset"),
        ({**BASE, "startingOffsets": '{"t":{"0":"1"}}'}, "Expected e.g."),
        ({**BASE, "startingOffsets": '{"t":[1]}'}, "Expected e.g."),
        ({**BASE, "startingTimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is not a"),
        ({**BASE, "startingTimestamp": "-5"}, "-5 is before 1970"),
        (
            {**BASE, "endingOffsetsByTimestamp": '{"t":{"0":"soon"}}'},
            "endingOffsetsByTimestamp: 'soon' is not a time",
        ),
        ({**BASE, "startingOffsetsByTimestamp": '{"t":{"0":1.5}}'}, "Expected e.g."),
        ({**BASE, "minPartitions": "0"}, "not a whole number of 1 or more: '0'"),
        ({**BASE, "maxRecordsPerPartition": "-1"}, "not a whole number of 1 or more"),
        ({**BASE, "splitBytes": "big"}, "not a size such as 64m"),
        ({**BASE, "includeHeaders": "yes"}, "not true or false: 'yes'"),
        ({**BASE, "kafka.isolation.level": "serial"}, "not one of read_uncommitted"),
        ({**BASE, "onCorruption": "ignore"}, "not one of fail, skip"),
        ({**BASE, "maxTriggerDelay": "soon"}, "not a time such as"),
        (
            {**BASE, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"},
            "minOffsetsPerTrigger(9) is higher than the maxOffsetsPerTrigger(3)",
        ),
    ],
    ids=str,
)
def test_what_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_read_options(options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingOffsets": "latest"},
            "starting offset can't be latest for batch queries on Kafka",
        ),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "can't be latest"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "can't be earliest"),
        ({"maxOffsetsPerTrigger": "9"}, "has no effect in a batch query"),
    ],
)
def test_what_a_batch_query_refuses(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        batch_read_options({**BASE, **options})


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    value = {"endingTimestamp": "5"}.get(name, '{"t":{"0":5}}')
    with pytest.raises(ConfigError, match="ending offset not valid in streaming queries"):
        stream_read_options({**BASE, name: value})


def test_offsets_are_written_as_the_connector_writes_them() -> None:
    offsets = {TopicPartition("b", 10): 3, TopicPartition("a", 2): 1, TopicPartition("b", 9): 0}
    found = offsets_to_json(offsets)
    assert list(found) == ["a", "b"]
    assert list(found["b"]) == ["9", "10"]
    assert offsets_from_json(found) == offsets

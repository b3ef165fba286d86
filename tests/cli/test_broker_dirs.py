"""Commands on the log directory of a KRaft broker."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog import open_dirs
from tests.cli.command import inside, stratalog
from tests.golden_metadata import broker_dir, expected_topics

if TYPE_CHECKING:
    from pathlib import Path

KAFKA_NAMES = {1: "DYNAMIC_TOPIC_CONFIG", 3: "DYNAMIC_DEFAULT_BROKER_CONFIG"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return broker_dir(tmp_path / "data")


@pytest.mark.slow
def test_compact_without_names_leaves_the_metadata_log_alone(directory: Path) -> None:
    metadata = directory / "__cluster_metadata-0"
    before = {path.name: path.read_bytes() for path in metadata.iterdir()}
    result = stratalog("compact", directory)
    assert (result.stderr, result.status) == ("", 0)
    assert {path.name: path.read_bytes() for path in metadata.iterdir()} == before


@pytest.mark.slow
def test_plans_without_names_leave_the_metadata_log_out(directory: Path) -> None:
    config = ("-c", "cleanup.policy=compact")
    rows = inside("compact", directory, "--dry-run", "--json", *config).rows
    assert "__cluster_metadata" not in {row.get("topic") for row in rows}


def logs_of(directory: Path) -> dict[str, list[str]]:
    return {
        path.name: sorted(log.name for log in path.glob("*.log"))
        for path in directory.iterdir()
        if path.is_dir() and not path.name.endswith("-delete")
    }


def test_ls_has_the_settings_that_the_broker_returned(directory: Path) -> None:
    found = inside("ls", directory, "--json").rows
    rows = {row["topic"]: row for row in found if row["kind"] == "topic"}
    for name, answer in expected_topics().items():
        row = rows[name]
        assert (row["clusterPartitions"], row["settingsUnknown"]) == (answer["partitions"], None)
        assert row["settings"] == {
            key: {"value": each["value"], "source": KAFKA_NAMES[each["source"]]}
            for key, each in answer["configs"].items()
        }
    lines = [line.split(maxsplit=3) for line in inside("ls", directory, "--settings").lines]
    assert ["topic-13", "retention.ms", "500000", "dynamic cluster default"] in lines
    assert ["topic-4", "retention.ms", "42", "topic"] in lines


def test_retain_uses_the_settings_of_the_cluster(directory: Path) -> None:
    """A compacted topic keeps its segments, whatever limit is given; the others go by their own."""
    result = inside("retain", directory, "-c", "retention.ms=1000", "--json")
    rows = {
        (row["topic"], row["partition"]): row for row in result.rows if row["kind"] == "partition"
    }
    for name, answer in expected_topics().items():
        row = rows[name, 0]
        policy = answer["effective"]["cleanup.policy"]
        assert (row["config"]["cleanup.policy"], row["settingsUnknown"]) == (policy, None)
        assert row["deletedSegments"] == 0 or "delete" in policy
    assert rows["topic-4", 0]["configSources"] == {
        "cleanup.policy": "DYNAMIC_TOPIC_CONFIG",
        "retention.ms": "GIVEN",
        "retention.bytes": "DEFAULT_CONFIG",
    }
    assert rows["topic-0", 0]["deletedSegments"] == 1


def test_retain_explains_where_settings_come_from(directory: Path) -> None:
    lines = inside("retain", directory, "topic-2:0", "topic-8:0", "--explain").lines
    compacted, deleted = (line for line in lines if line.startswith("  as of"))
    assert compacted.endswith(
        "with cleanup.policy=compact (topic), retention.ms=500000 (8 min 20 s; dynamic cluster "
        "default), retention.bytes=-1 (Kafka's default)"
    )
    assert deleted.endswith(
        "with cleanup.policy=delete (topic), retention.ms=77777 (1 min 17 s; topic), "
        "retention.bytes unknown"
    )


def test_server_properties_say_what_the_metadata_does_not(directory: Path, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.retention.bytes=100\nmetadata.log.dir={directory}\na.plugin=x\n")
    result = stratalog(
        "retain", directory, "topic-8:0", "--dry-run", "--json", "--server-properties", properties
    )
    (row, *_) = [row for row in result.rows if row["kind"] == "partition"]
    assert result.stderr.splitlines()[0] == (
        f"stratalog: warning: {properties}: ignored settings that a Kafka broker does not have: "
        "a.plugin"
    )
    assert (row["config"]["retention.bytes"], row["configSources"]["retention.bytes"]) == (
        "100",
        "STATIC_BROKER_CONFIG",
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", ["retain", "maintain", "compact"])
def test_without_metadata_nothing_is_deleted_or_compacted(directory: Path, command: str) -> None:
    """The metadata elsewhere, named, makes the difference."""
    metadata = directory.parent / "metadata"
    metadata.mkdir()
    (directory / "__cluster_metadata-0").rename(metadata / "__cluster_metadata-0")
    options = {
        "retain": ["-c", "retention.ms=1000"],
        "maintain": ["--once", "--defaults", "-c", "log.retention.ms=1000"],
        "compact": ["topic-4", "--force"],
    }[command]
    before = logs_of(directory)
    result = stratalog(command, directory, *options)
    assert "unknown, so nothing is deleted or compacted" in result.stderr
    assert result.status == (0 if command == "maintain" else 1)
    assert logs_of(directory) == before
    where = ("--metadata-log-dir", metadata)
    result = stratalog(command, directory, *options, *where)
    assert "so nothing is deleted or compacted" not in result.stderr
    assert result.status == 0


def test_the_metadata_is_found_in_any_directory_that_is_named(directory: Path) -> None:
    """Though the topic has no partition there."""
    second = directory.parent / "second"
    second.mkdir()
    shutil.copy(directory / "meta.properties", second)
    for path in directory.glob("topic-3-*"):
        path.rename(second / path.name)
    for where in ((second, directory), ("-d", second, "-d", directory)):
        result = inside("retain", *where, "topic-3:0", "-c", "retention.ms=1000", "--explain")
        assert "with cleanup.policy=compact (topic)" in result.lines[1]


def test_a_topic_that_the_cluster_deleted_is_not_touched(directory: Path) -> None:
    other = (directory / "topic-0-0" / "partition.metadata").read_bytes()
    (directory / "topic-8-0" / "partition.metadata").write_bytes(other)
    result = inside("retain", directory, "topic-8:0", "-c", "retention.ms=1000")
    assert result.status == 1
    assert "this one Tdj7f9sZS3qMc8rFGYGuTg: it was deleted" in result.stderr
    (row, _) = inside("compact", directory, "topic-8:0", "--dry-run", "--json").rows
    assert row["isEligible"] is False
    assert "it was deleted" in row["settingsUnknown"]


def test_compact_explains_where_settings_come_from(directory: Path) -> None:
    lines = inside("compact", directory, "topic-2:0", "--explain").lines
    assert "  settings  cleanup.policy=compact (topic)" in lines
    assert "            min.cleanable.dirty.ratio=0.1 (topic)" in lines
    assert "            delete.retention.ms=86400000 (Kafka's default)" in lines


def test_what_if_uses_the_policy_of_the_cluster(directory: Path) -> None:
    what_if = ("--what-if", "retention.ms=1000")
    rows = {row.get("topic"): row for row in inside("stats", directory / "topic-4-0", *what_if,
                                                   "--json").rows}  # fmt: skip
    assert rows["topic-4"]["freedBy"] == {"retention.ms=1000": 0}
    assert rows["topic-4"]["cleanupPolicySource"] == "DYNAMIC_TOPIC_CONFIG"
    text = inside("stats", directory / "topic-8-0", *what_if).lines
    assert (
        "topic-8:0: retention.ms=1000 would free 291 B now, with cleanup.policy=delete (topic)"
        in (text)
    )


@pytest.mark.slow
def test_ingest_creates_topics_only_if_that_is_asked_for(directory: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("a\nb\n")
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    command = ("ingest", lines, "--to", directory, "-t", "new", "-p", "1")
    result = stratalog(*command)
    assert result.status == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("stratalog: error: topic 'new': ")
    assert "rename partitions that their cluster does not know to -stray" in line
    assert "--create-in-broker-dir" in line
    after = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert {path: after[path] for path in after if path.name != ".lock"} == before
    result = stratalog(*command, "--create-in-broker-dir")
    assert (result.stderr, result.status) == ("", 0)
    (view,) = open_dirs(directory).partitions_of("new")
    assert [record.value for record in view.read()] == [b"a", b"b"]
    result = stratalog("ingest", lines, "--to", directory, "-t", "topic-0")
    assert (result.stderr, result.status) == ("", 0)  # the cluster knows this one


def test_verify_says_where_the_policy_comes_from(directory: Path) -> None:
    names = ("topic-0", "topic-4", "topic-13")
    lines = inside("verify", *(directory / f"{name}-0" for name in names)).lines
    assert lines[:2] == [
        "topic-0: cleanup.policy=delete (Kafka's default)",
        "topic-13, topic-4: cleanup.policy=compact (topic)",
    ]
    (summary,) = [
        row
        for row in inside("verify", directory, "--json").rows
        if row["kind"] == "summary"
    ]  # fmt: skip
    for row in summary["topics"]:
        answer = expected_topics()[row["topic"]]
        assert row["settings"]["cleanup.policy"]["value"] == answer["effective"]["cleanup.policy"]
        assert row["settingsUnknown"] is None
    assert {row["topic"] for row in summary["topics"]} == set(expected_topics())
    (directory / "__cluster_metadata-0").rename(directory.parent / "__cluster_metadata-0")
    (line, *_) = inside("verify", directory / "topic-4-0").lines
    assert line.startswith("topic-4: settings unknown: this is a Kafka broker's directory")


def test_maintain_says_where_settings_come_from(directory: Path) -> None:
    rows = inside("maintain", directory, "--once", "--json").rows
    topics = {row["topic"]: row for row in rows if row["kind"] == "topic"}
    assert set(topics) == set(expected_topics())
    for name, answer in expected_topics().items():
        found = topics[name]["settings"]
        for key, each in answer["configs"].items():
            assert found[key] == {"value": each["value"], "source": KAFKA_NAMES[each["source"]]}

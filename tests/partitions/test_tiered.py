"""Tiered topics whose metadata, store or disk is incomplete: missing records are never silent."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

import stratalog
from stratalog.errors import CorruptError, SegmentGoneError, TieredLogError
from stratalog.format.names import REMOTE_METADATA_TOPIC, TopicPartition
from stratalog.log.tiered_view import TieredView
from stratalog.partitions.tiered import LocalFacts, RemoteTier, _records
from stratalog.partitions.tiered_inventory import verify_tier
from stratalog.partitions.view import set_default_tiered_store
from stratalog.storage.remote_path import RemotePath
from stratalog.storage.tiered_store import TieredStore
from tests.cli.command import inside
from tests.golden_tiered import TieredCase, consumed, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from stratalog.partitions.topics import TopicInfo
    from tests.stores import CountingServer

STARTS = "log-start-offset-checkpoint"


@pytest.fixture
def cases(tmp_path: Path) -> dict[str, TieredCase]:
    """Copies that may be changed."""
    return {str(case): case for case in unpack(tmp_path)}


@pytest.fixture(autouse=True)
def _no_default_store() -> Iterator[None]:
    yield
    set_default_tiered_store(None)


@dataclass
class Config:
    remote_storage_enable: bool


@dataclass
class Info:
    """What a test says that the cluster's metadata has of a topic."""

    config: Config
    known_count: int = 1
    is_in_cluster: bool = True
    unknown: str | None = None


def tier(case: TieredCase, *, metadata_count: int, tiered: Mapping[str, bool]) -> RemoteTier:
    topics = {name: Info(Config(value)) for name, value in tiered.items()}
    topics[REMOTE_METADATA_TOPIC] = Info(Config(remote_storage_enable=False), metadata_count)
    (logdir,) = case.log_dirs
    facts = LocalFacts(
        [logdir],
        sorted(logdir.glob(f"{REMOTE_METADATA_TOPIC}-*")),
        lambda: cast("Mapping[str, TopicInfo]", topics),
    )
    return RemoteTier(TieredStore.found_at(case.remote), facts)


def offsets(case: TieredCase, topic: str, number: int = 0) -> list[int]:
    logs = stratalog.open_dirs(*case.log_dirs, remote=case.remote, remote_keys=case.keys)
    return [record.offset for record in logs.partition(topic, number).read()]


def expected(case: TieredCase, topic: str) -> list[int]:
    (facts,) = [facts for name, number, facts in case.partitions() if (name, number) == (topic, 0)]
    return [row[0] for row in consumed(facts, "read_uncommitted")]


# -- the metadata topic


def test_events_are_in_the_partition_that_kafka_chose(cases: dict[str, TieredCase]) -> None:
    compared = 0
    for case in cases.values():
        directories = sorted(case.log_dirs[-1].glob(f"{REMOTE_METADATA_TOPIC}-*"))
        for path in directories:
            number = int(path.name.rpartition("-")[2])
            for place in _places(path):
                assert place.metadata_partition(len(directories)) == number
                compared += 1
    assert compared > 20


def _places(path: Path) -> set[Any]:
    from stratalog.log.remote_segments import replay_remote_log  # noqa: PLC0415

    return set(replay_remote_log(_records([path])))


@pytest.mark.parametrize("gone", [0, 1])
def test_a_missing_metadata_partition_is_an_error(cases: dict[str, TieredCase], gone: int) -> None:
    case = cases["lts-basic"]
    shutil.rmtree(case.log_dirs[0] / f"{REMOTE_METADATA_TOPIC}-{gone}")
    refused = 0
    for topic, number, facts in case.partitions():
        try:
            found = offsets(case, topic, number)
        except TieredLogError as error:
            assert REMOTE_METADATA_TOPIC in str(error)  # noqa: PT017 - some can be read
            refused += 1
        else:
            assert found == [row[0] for row in consumed(facts, "read_uncommitted")]
    assert 0 < refused < 9


def test_the_missing_metadata_partition_is_named(cases: dict[str, TieredCase]) -> None:
    case = cases["lts-basic"]
    shutil.rmtree(case.log_dirs[0] / f"{REMOTE_METADATA_TOPIC}-0")
    found = tier(case, metadata_count=2, tiered={"codecs": True})
    with pytest.raises(
        TieredLogError, match=f"partition 0 of {REMOTE_METADATA_TOPIC}.*give the one"
    ):
        found.view(TopicPartition("codecs", 0), case.log_dirs[0] / "codecs-0")


def test_without_a_checkpoint_a_tiered_topic_needs_its_metadata(
    cases: dict[str, TieredCase],
) -> None:
    case = cases["lts-basic"]
    local = case.log_dirs[0] / "codecs-0"
    shutil.rmtree(case.log_dirs[0] / f"{REMOTE_METADATA_TOPIC}-0")
    (case.log_dirs[0] / STARTS).unlink()
    for tiered in ({"codecs": True}, {}):
        found = tier(case, metadata_count=2, tiered=tiered)
        with pytest.raises(TieredLogError, match=f"partition 0 of {REMOTE_METADATA_TOPIC}"):
            found.view(TopicPartition("codecs", 0), local)


def test_a_log_that_is_not_tiered_is_a_local_one(cases: dict[str, TieredCase]) -> None:
    case = cases["lts-basic"]
    local = case.log_dirs[0] / "codecs-0"
    shutil.rmtree(case.log_dirs[0] / f"{REMOTE_METADATA_TOPIC}-0")
    # Its settings say so; the checkpoint is older than the last run of retention.
    found = tier(case, metadata_count=2, tiered={"codecs": False})
    assert found.view(TopicPartition("codecs", 0), local).log_start_offset == 300
    # Nothing says that it is: neither settings nor a checkpoint nor the store.
    other = shutil.copytree(local, case.log_dirs[0] / "other-0")
    (other / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    assert type(found.view(TopicPartition("other", 0), other)) is not TieredView
    # All of it is on the disk.
    (case.log_dirs[0] / STARTS).write_text("0\n1\ncodecs 0 300\n")
    assert offsets(case, "codecs") == []


def test_kafkas_test_store_without_metadata_leaves_other_topics_alone(
    cases: dict[str, TieredCase],
) -> None:
    case = cases["lts-unclean"]
    logdir = case.path / "logdir-2"
    other = shutil.copytree(logdir / "fork-0", logdir / "other-0")
    (other / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    logs = stratalog.open_dirs(logdir, remote=case.remote)
    assert logs.partition("other", 0).log_start_offset == 197
    with pytest.raises(TieredLogError, match=REMOTE_METADATA_TOPIC):
        logs.partition("fork", 0)


def test_retention_after_the_checkpoint_is_not_a_loss(cases: dict[str, TieredCase]) -> None:
    """The metadata shows that the segments before were deleted."""
    case = cases["lts-basic"]
    starts = case.log_dirs[0] / STARTS
    starts.write_text(starts.read_text().replace("retained 0 104", "retained 0 0"))
    assert offsets(case, "retained") == expected(case, "retained")


def test_ls_and_verify_say_what_is_unknown(cases: dict[str, TieredCase]) -> None:
    case = cases["lts-basic"]
    shutil.rmtree(case.log_dirs[0] / f"{REMOTE_METADATA_TOPIC}-0")
    where = ["codecs:0", "-d", str(case.log_dirs[0]), "--remote", str(case.remote)]
    rows = inside("ls", *where, "--json").rows
    assert [row["role"] for row in rows] == ["unknown"] * 9 + ["local"]
    assert all(REMOTE_METADATA_TOPIC in row["reason"] for row in rows)
    shown = inside("ls", *where)
    assert any("unknown whether they are part of a log" in line for line in shown.lines)
    found = inside("verify", *where, "--json")
    assert found.status == 1
    assert "remote-unreadable" in {row.get("code") for row in found.rows}
    # The local log is complete; what the store has is unknown all the same.
    (case.log_dirs[0] / STARTS).write_text("0\n1\ncodecs 0 300\n")
    assert inside("ls", *where, "--json").rows[0]["role"] == "unknown"
    found = inside("verify", *where, "--json")
    assert {row.get("code") for row in found.rows} >= {"remote-unknown"}


# -- the store


@pytest.mark.parametrize("has_metadata", [True, False])
def test_a_store_without_the_topic_is_an_error(
    cases: dict[str, TieredCase], has_metadata: bool
) -> None:
    case = cases["aiven-plain"]
    (logdir,) = case.log_dirs
    if not has_metadata:
        shutil.rmtree(logdir / f"{REMOTE_METADATA_TOPIC}-0")
        assert offsets(case, "plain") == expected(case, "plain")
    (stored,) = case.remote.rglob("plain-*")
    shutil.rmtree(stored)
    with pytest.raises((TieredLogError, SegmentGoneError)):
        offsets(case, "plain")
    found = inside("verify", "-d", str(logdir), "--remote", str(case.remote), "--json")
    assert found.status == 1


def test_the_first_manifest_is_missing(cases: dict[str, TieredCase]) -> None:
    case = cases["aiven-plain"]
    shutil.rmtree(case.log_dirs[0] / f"{REMOTE_METADATA_TOPIC}-0")
    sorted(case.remote.rglob("txn-*/0/*.rsm-manifest"))[0].unlink()
    with pytest.raises(TieredLogError, match="offsets 0 to 14 of this log"):
        offsets(case, "txn")


def test_a_lost_object_is_said_to_be_missing_in_the_store(cases: dict[str, TieredCase]) -> None:
    case = cases["lts-basic"]
    lost = sorted(case.remote.glob("kafka-tiered-storage/plain-0-*/*.log"))[2]
    lost.unlink()
    with pytest.raises(SegmentGoneError, match=f"{lost.name}: missing in the store"):
        offsets(case, "plain")


def test_a_lost_transaction_index_hides_no_abort(cases: dict[str, TieredCase]) -> None:
    """The state of producers at the end of a segment shows that transactions ended in it."""
    case = cases["lts-basic"]
    (facts,) = [facts for name, _, facts in case.partitions() if name == "txn"]
    wanted = [row[0] for row in consumed(facts, "read_committed")]
    for lost in sorted(case.remote.glob("kafka-tiered-storage/txn-0-*/*.txnindex")):
        lost.unlink()
        logs = stratalog.open_dirs(*case.log_dirs, remote=case.remote)
        found = logs.partition("txn", 0).read(isolation="read_committed")
        assert [record.offset for record in found] == wanted


def test_a_transaction_index_of_a_later_segment_is_not_used(cases: dict[str, TieredCase]) -> None:
    case = cases["lts-basic"]
    (facts,) = [facts for name, _, facts in case.partitions() if name == "txn"]
    first, *_, last = sorted(case.remote.glob("kafka-tiered-storage/txn-0-*/*.txnindex"))
    shutil.copy(last, first)
    logs = stratalog.open_dirs(*case.log_dirs, remote=case.remote)
    found = logs.partition("txn", 0).read(isolation="read_committed")
    wanted = [row[0] for row in consumed(facts, "read_committed")]
    assert [record.offset for record in found] == wanted


def test_a_manifest_of_another_segment_is_an_error(cases: dict[str, TieredCase]) -> None:
    case = cases["aiven-plain"]
    first, second, *_ = sorted(case.remote.rglob("txn-*/0/*.rsm-manifest"))
    shutil.copy(second, first)
    with pytest.raises(CorruptError, match=f"{first.name}.*describes the segment"):
        offsets(case, "txn")


def test_verify_reports_an_object_that_is_replaced_meanwhile(
    cases: dict[str, TieredCase], counting: CountingServer
) -> None:
    """In the store it is there, but it is not the one that was listed."""
    case = cases["lts-basic"]
    uri = counting.upload(case.remote, "remote")
    logs = stratalog.open_dirs(*case.log_dirs, remote=uri, storage_options=counting.options)
    view = logs.partition("txn", 0)
    path = view.segments[1].path
    assert isinstance(path, RemotePath)
    path.parent.listed()
    counting.put(path.key.removeprefix("logs/"), b"another object")
    known = path.parent.listed
    with pytest.MonkeyPatch.context() as patch:  # the listing is the one from before
        patch.setattr(RemotePath, "listed", lambda *_, **__: known(age_max_s=1e9))
        report = verify_tier(logs, [TopicPartition("txn", 0)])
    assert any(path.name in found.path for found in report.findings)


# -- the disk


def test_local_segments_are_missing(cases: dict[str, TieredCase]) -> None:
    case = cases["aiven-plain"]
    for path in (case.log_dirs[0] / "plain-0").glob("0*"):
        path.unlink()
    with pytest.raises(TieredLogError, match=r"ends at offset 240 according.*end at 170"):
        offsets(case, "plain")
    shutil.rmtree(case.log_dirs[0] / "plain-0")
    with pytest.raises(TieredLogError, match=r"ends at offset 240 according.*end at 170"):
        offsets(case, "plain")


def test_the_log_start_of_a_partition_without_a_directory(cases: dict[str, TieredCase]) -> None:
    case = cases["lts-basic"]
    shutil.rmtree(case.log_dirs[0] / "deleted-0")
    assert offsets(case, "deleted") == expected(case, "deleted")
    assert offsets(case, "deleted")[0] == 77


def test_topics_of_a_store_alone(cases: dict[str, TieredCase]) -> None:
    logs = stratalog.open_dirs(remote=cases["aiven-plain"].remote)
    assert set(logs.topics) == {"plain", "codecs", "txn"}

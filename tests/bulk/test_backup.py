"""Backups of log directories, and what is restored from them."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from stratalog import LogDir
from stratalog.bulk import backup as backup_module
from stratalog.bulk import backup_cut
from stratalog.bulk.backup import backup, find_backups, list_backups, prune, verify_backup
from stratalog.bulk.backup_store import (
    BackupStore,
    Manifest,
    SavedDir,
    SavedFile,
    decode_manifest,
    encode_manifest,
    find_backup,
)
from stratalog.bulk.restore import MARKER, STAGING, Selection, plan_restore, restore
from stratalog.bulk.workers import ThreadWorkers
from stratalog.errors import (
    BackupError,
    InvalidNameError,
    JobError,
    NotALogDirError,
    UnsupportedError,
)
from stratalog.format.batch import BatchHeader
from stratalog.format.checkpoint import decode_offsets, encode_offsets
from stratalog.format.control import ControlType, EndMarker, encode_end_marker
from stratalog.format.legacy import encode_legacy
from stratalog.format.messages.group_records import encode_group_record, read_group_record
from stratalog.format.names import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    RootFile,
    TopicPartition,
)
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.latest_records import LatestRecords
from stratalog.partitions.view import open_dirs
from stratalog.storage.disk import Disk
from tests.bulk.backups import (
    SMALL_SEGMENTS,
    Kill,
    KilledError,
    append,
    assert_loads,
    assert_nothing_to_repair,
    fill,
    kills_in_store,
    kills_on_disk,
    tree,
)
from tests.effort import EFFORT
from tests.golden.cases import GoldenCase, all_cases, log_dir_case
from tests.kafka_loader import MAGIC_AT, batches_of
from tests.looping import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stores import S3Server

GOLDEN = [
    GoldenCase(name)
    for name in ("txn", "compact", "prealloc", "epochs", "v0-gzip", "u-torn", "u-noindex")
]
BACKUP_STORE = "stratalog.bulk.backup_store"
RESTORE = "stratalog.bulk.restore"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Files have many pieces, and tasks copy three of them."""
    monkeypatch.setattr(backup_module, "CHUNK_BYTES", 512)
    monkeypatch.setattr(backup_module, "PART_BYTES", 3 * 512)
    return 512


def records_of(path: Path, topic: str = "orders") -> dict[int, list[tuple[int, bytes | None]]]:
    with open_dirs(path) as logs:
        return {
            view.topic_partition.partition: [(each.offset, each.value) for each in view.read()]
            for view in logs.partitions_of(topic)
        }


# -- what comes back


def test_a_stopped_directory_comes_back_byte_for_byte(tmp_path: Path) -> None:
    logs, where, out = tmp_path / "logs", tmp_path / "backups", tmp_path / "out"
    fill(logs, 60)
    result = backup([logs], where)
    assert result.dirs[0].is_clean
    assert not result.dirs[0].is_live
    assert [tuple(each) for each in result.dirs[0].partitions] == [
        ("orders", 0, 30),
        ("orders", 1, 30),
    ]
    restored = restore(where, [out])
    assert tree(out) == tree(logs)
    assert (restored.is_recovered, restored.clamped) == (False, ())
    times = {file.name: file.stat().st_mtime_ns // 1_000_000 for file in logs.glob("*/*.log")}
    assert times == {
        file.name: file.stat().st_mtime_ns // 1_000_000 for file in out.glob("*/*.log")
    }
    assert_nothing_to_repair(out)


def test_a_directory_of_a_real_broker(tmp_path: Path, seaweed: S3Server) -> None:
    source, where = log_dir_case().copy_to(tmp_path / "logs"), seaweed.path("backup-golden")
    result = backup([source], where, verifies=True)
    assert result.verified_objects == len(BackupStore.at(where).object_sizes())
    restore(where, [tmp_path / "out"])
    assert tree(tmp_path / "out") == tree(source)


def test_through_fsspec(tmp_path: Path) -> None:
    logs, uri = tmp_path / "logs", f"memory://{tmp_path.name}/backups"
    fill(logs, 60)
    assert backup([logs], uri).sent_objects > 0
    assert backup([logs], uri, keep=1).sent_objects == 0
    restore(uri, [tmp_path / "out"])
    assert tree(tmp_path / "out") == tree(logs)


@pytest.mark.slow
@for_each("case", GOLDEN if EFFORT == 1 else all_cases())
def test_every_golden_directory(case: GoldenCase, tmp_path: Path) -> None:
    """Not closed cleanly: as it is on request, recovered by default."""
    for path in case.partition_dirs():
        shutil.copytree(path, tmp_path / "logs" / path.name)
        backup([tmp_path / "logs"], tmp_path / "backups")
        restore(tmp_path / "backups", [tmp_path / "same"], as_is=True)
        assert tree(tmp_path / "same") == tree(tmp_path / "logs")
        assert restore(tmp_path / "backups", [tmp_path / "out"]).is_recovered
        assert_loads(tmp_path / "out")
        for each in ("logs", "backups", "same", "out"):
            shutil.rmtree(tmp_path / each)


def test_several_directories(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    with LogDir.open(*dirs, background=False) as logs:
        logs.create_topic("orders", 2)
        append(logs, range(10))
    backup(dirs, tmp_path / "backups")
    with pytest.raises(BackupError, match=r"has 2 log directories .*: give one directory for each"):
        restore(tmp_path / "backups", [tmp_path / "x"])
    restore(tmp_path / "backups", [tmp_path / "x", tmp_path / "y"])
    assert [tree(tmp_path / "x"), tree(tmp_path / "y")] == [tree(each) for each in dirs]


def test_a_directory_in_use_is_recovered(tmp_path: Path) -> None:
    logs, where, out = tmp_path / "logs", tmp_path / "backups", tmp_path / "out"
    with LogDir.open(logs, config=SMALL_SEGMENTS, background=False) as opened:
        opened.create_topic("orders", 2)
        append(opened, range(40))
        with opened.transaction("t") as transaction:
            transaction.append("orders", b"open", partition=0).result()
            first = backup([logs], where)
        append(opened, range(40, 50))
        expected = records_of(logs)
    assert first.dirs[0].is_live
    assert first.dirs[0].is_settled
    ends = first.dirs[0].ends
    assert ends[TopicPartition("orders", 0)] == 21
    assert ends[TopicPartition("orders", 1)] == 20
    assert restore(where, [out]).is_recovered
    assert_nothing_to_repair(out)
    assert records_of(out) == {0: expected[0][:21], 1: expected[1][:20]}
    with LogDir.open(out, background=False) as opened:
        assert opened.recovery == ()
        append(opened, range(2))


def test_a_directory_of_a_live_broker_with_unknown_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a broker that has its `__cluster_metadata` elsewhere."""
    source, where, out = tmp_path / "logs", tmp_path / "backups", tmp_path / "out"
    shutil.copytree(GoldenCase("u-plain").root / "before", source)
    shutil.copy(log_dir_case().root / RootFile.META_PROPERTIES.value, source)
    monkeypatch.setattr(backup_cut, "is_locked", lambda _path: True)
    assert backup([source], where).dirs[0].is_live
    assert restore(where, [out]).is_recovered
    assert records_of(out, "u-plain") == records_of(source, "u-plain")
    assert_loads(out)


def test_a_torn_tail_is_not_part_of_a_backup(tmp_path: Path) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    with LogDir.open(logs, background=False) as opened:
        opened.create_topic("orders", 1)
        for number in range(10):
            opened.append("orders", b"%d" % number)
        (log,) = logs.glob("orders-0/*.log")
        with log.open("ab") as file:
            file.write(log.read_bytes()[:50])  # as if an append were under way
        backup([logs], where)
        with log.open("r+b") as file:
            file.truncate(log.stat().st_size - 50)
    restore(where, [tmp_path / "out"])
    assert len(records_of(tmp_path / "out")[0]) == 10
    assert_nothing_to_repair(tmp_path / "out")


# -- what is sent


def test_only_what_is_new_is_sent(tmp_path: Path, small_chunks: int) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 60)
    first = backup([logs], where)
    assert first.sent_bytes > 5000
    again = backup([logs], where)
    assert (again.sent_objects, again.sent_bytes) == (0, 0)
    fill(logs, 2, start=60)
    third = backup([logs], where)
    assert 0 < third.sent_objects <= 8
    assert third.sent_bytes <= 8 * small_chunks
    assert restore(where, [tmp_path / "out"]).files == third.files
    assert tree(tmp_path / "out") == tree(logs)
    restore(where, [tmp_path / "first"], backup_id=first.backup_id)
    assert len(records_of(tmp_path / "first")[0]) == 30


def test_files_that_did_not_change_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 60)
    backup([logs], where)
    (log, *_) = sorted(logs.glob("orders-0/*.log"))
    status, data = log.stat(), bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    os.utime(log, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert backup([logs], where).sent_objects == 0
    assert backup([logs], where, reads_all=True).sent_objects == 1


def test_old_backups_are_removed(tmp_path: Path) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    trees = []
    for number in range(4):
        fill(logs, 20, start=20 * number)
        backup([logs], where, keep=3)
        trees.append(tree(logs))
    kept = list_backups(where)
    assert len(kept) == 3
    for number, manifest in enumerate(kept):
        restore(where, [tmp_path / str(number)], backup_id=manifest.backup_id)
        assert tree(tmp_path / str(number)) == trees[number + 1]
    pruned = prune(where, 1)
    assert pruned.backups == tuple(each.backup_id for each in kept[:2])
    assert pruned.objects > 0
    assert set(BackupStore.at(where).object_sizes()) == set(kept[-1].objects())
    with pytest.raises(BackupError, match="it must be 1 or more"):
        prune(where, 0)


def test_a_stale_listing_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    for number in range(2):
        fill(logs, 20, start=20 * number)
        backup([logs], where)
    ids = BackupStore.at(where).backup_ids()
    for lacking in ([], ids[:1], ids):
        fill(logs, 20, start=100)
        with monkeypatch.context() as patch:
            listings = iter([ids, ids])
            patch.setattr(BackupStore, "backup_ids", lambda _: next(listings, lacking))  # noqa: B023
            with pytest.raises(BackupError, match="is not listed"):
                backup([logs], where, keep=1)
    for manifest in list_backups(where):
        assert verify_backup(BackupStore.at(where), manifest, ThreadWorkers(1)) > 0
    assert len(list_backups(where)) == 5


def test_objects_of_a_listed_backup_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    for number in range(2):
        fill(logs, 20, start=20 * number)
        backup([logs], where)
    monkeypatch.setattr(Disk, "unlink", lambda *_, **__: False)  # as if it were not there
    with pytest.raises(BackupError, match="is still listed"):
        prune(where, 1)
    monkeypatch.undo()
    for manifest in list_backups(where):
        assert verify_backup(BackupStore.at(where), manifest, ThreadWorkers(1)) > 0


# -- parts of a backup


def test_some_topics(tmp_path: Path) -> None:
    logs, where, out = tmp_path / "logs", tmp_path / "backups", tmp_path / "out"
    fill(logs, 20)
    fill(logs, 10, topic="payments")
    backup([logs], where)
    restore(where, [out], Selection((("payments", 1),)))
    assert sorted(each.name for each in out.iterdir() if each.is_dir()) == ["payments-1"]
    assert "orders" not in (out / RootFile.RECOVERY_POINTS.value).read_text()
    assert_nothing_to_repair(out)
    restore(where, [tmp_path / "more"], Selection((("orders", None),)))
    assert records_of(tmp_path / "more") == records_of(logs)
    with pytest.raises(BackupError, match="has no stock"):
        restore(where, [tmp_path / "none"], Selection((("stock", None),)))
    assert not (tmp_path / "none").exists()


def test_up_to_an_offset(tmp_path: Path) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 60)
    backup([logs], where)
    expected = records_of(logs)
    for offset in (0, 1, 15, 29, 30, 99):
        out = tmp_path / str(offset)
        selection = Selection(to_offsets=((TopicPartition("orders", 1), offset),))
        plan = plan_restore(find_backup(where), [out], selection)
        result = restore(where, [out], selection)
        assert records_of(out) == {0: expected[0], 1: expected[1][:offset]}, offset
        assert result.partitions[1].end_offset == min(offset, 30)
        assert_nothing_to_repair(out)
        assert (len(plan.files[0]) < len(list_backups(where)[0].dirs[0].files)) == (offset < 30)
    with pytest.raises(BackupError, match="orders:7 is to be truncated, but"):
        restore(where, [tmp_path / "x"], Selection(to_offsets=((TopicPartition("orders", 7), 1),)))


def test_up_to_a_time(tmp_path: Path) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 60)
    backup([logs], where)
    expected = records_of(logs)
    for second in (0, 1, 33, 59, 1000):
        out = tmp_path / str(second)
        restore(where, [out], Selection(until_ms=second * 1000))
        assert records_of(out) == {
            number: [each for each in rows if 2 * each[0] + number < second]
            for number, rows in expected.items()
        }, second
        assert_nothing_to_repair(out)


def test_cluster_metadata_are_never_truncated(tmp_path: Path) -> None:
    where, out = tmp_path / "backups", tmp_path / "out"
    (saved,) = backup([log_dir_case().root], where).dirs
    metadata = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
    selection = Selection(to_offsets=((metadata, 100),))
    with pytest.raises(BackupError, match="__cluster_metadata:0:100: this log cannot be truncated"):
        restore(where, [out], selection)
    assert not out.exists()
    result = restore(where, [out], Selection(until_ms=1000))
    ends = {each[:2]: each.end_offset for each in result.partitions}
    assert ends.pop(metadata) == saved.ends[metadata]
    assert set(ends.values()) == {0}


def test_checkpoints_are_not_beyond_the_new_end(tmp_path: Path) -> None:
    """Those of the cleaner among them, if whole segments were left out."""
    logs, where, out = tmp_path / "logs", tmp_path / "backups", tmp_path / "out"
    fill(logs, 60)
    at, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    cleaner = RootFile.CLEANER_OFFSETS.value
    (logs / cleaner).write_bytes(encode_offsets({at: 30, other: 30}))
    backup([logs], where)
    bases = sorted(int(each.stem) for each in logs.glob("orders-0/*.log"))
    restore(where, [out], Selection(to_offsets=((at, bases[1]),)))
    assert decode_offsets((out / cleaner).read_bytes()) == {at: bases[1], other: 30}
    assert_nothing_to_repair(out)


@pytest.mark.parametrize("offset", [5, 137, 138])
def test_a_log_start_inside_a_batch_that_is_dropped(offset: int, tmp_path: Path) -> None:
    """The log start is 137, inside of the batch 135 to 138."""
    logs, where, out = tmp_path / "logs", tmp_path / "backups", tmp_path / "out"
    shutil.copytree(GoldenCase("deleterecords").root, logs)
    at = TopicPartition("deleterecords", 0)
    (logs / RootFile.LOG_START_OFFSETS.value).write_bytes(encode_offsets({at: 137}))
    backup([logs], where)
    (restored,) = restore(where, [out], Selection(to_offsets=((at, offset),))).partitions
    assert restored.end_offset == 137
    assert [each.name for each in (out / str(at)).glob("*.log")] == [f"{137:020}.log"]
    assert_nothing_to_repair(out)


def commit_record(
    group: str, partition: int, offset: int, timestamp: int, number: int = 0
) -> Record:
    key = {"group": group, "topic": "orders", "partition": partition}
    value = {
        "offset": offset,
        "leaderEpoch": -1,
        "metadata": "m",
        "commitTimestamp": timestamp,
        "expireTimestamp": -1,
    }
    return Record(number, timestamp, *encode_group_record(1, key, value, 3))


def commit(logs: LogDir, group: str, partition: int, offset: int, timestamp: int) -> None:
    record = commit_record(group, partition, offset, timestamp)
    logs.partition(CONSUMER_OFFSETS_TOPIC, 0).append(encode_batch([record]), origin="coordinator")


def committed(path: Path) -> dict[tuple[str, int], int]:
    found = {}
    with open_dirs(path) as logs:
        for record in logs.partition(CONSUMER_OFFSETS_TOPIC, 0).read():
            assert record.key is not None
            decoded = read_group_record(record.key, record.value)
            assert decoded.value is not None
            found[decoded.key["group"], decoded.key["partition"]] = decoded.value["offset"]
    return found


def test_committed_offsets_do_not_exceed_their_logs(tmp_path: Path) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 60)
    with LogDir.open(logs, background=False) as opened:
        opened.create_topic(CONSUMER_OFFSETS_TOPIC, 1)
        commit(opened, "slow", 0, 3, 10_000)
        commit(opened, "fast", 0, 10, 10_000)
        commit(opened, "fast", 0, 25, 50_000)
        commit(opened, "fast", 1, 30, 60_000)
    backup([logs], where)
    everything = restore(where, [tmp_path / "all"])
    assert everything.clamped == ()
    result = restore(
        where, [tmp_path / "some"], Selection(to_offsets=((TopicPartition("orders", 0), 20),))
    )
    assert [tuple(each) for each in result.clamped] == [("fast", "orders", 0, 25, 20)]
    assert committed(tmp_path / "some") == {("slow", 0): 3, ("fast", 0): 20, ("fast", 1): 30}
    assert_nothing_to_repair(tmp_path / "some")
    earlier = restore(where, [tmp_path / "earlier"], Selection(until_ms=45_000))
    assert earlier.clamped == ()
    assert committed(tmp_path / "earlier") == {("slow", 0): 3, ("fast", 0): 10}


@pytest.mark.parametrize("magic", [0, 1])
def test_committed_offsets_are_reset_in_the_format_of_their_log(magic: int, tmp_path: Path) -> None:
    """Its broker may know no later one, and would load no committed offset at all."""
    logs, where, out = tmp_path / "logs", tmp_path / "backups", tmp_path / "out"
    fill(logs, 60)
    with LogDir.open(logs, background=False) as opened:
        opened.create_topic(CONSUMER_OFFSETS_TOPIC, 1)
        log = opened.partition(CONSUMER_OFFSETS_TOPIC, 0)
        for group in ("fast", "slow"):
            number = log.log_end_offset
            record = commit_record(group, number, 25, 50_000, number)
            log.append_as_follower(encode_legacy([record], magic))
    backup([logs], where)
    limits = ((TopicPartition("orders", 0), 20), (TopicPartition("orders", 1), 10))
    result = restore(where, [out], Selection(to_offsets=limits))
    assert {(each.group, each.end_offset) for each in result.clamped} == {
        ("fast", 20),
        ("slow", 10),
    }
    assert committed(out) == {("fast", 0): 20, ("slow", 1): 10}
    with open_dirs(out) as opened:
        found = list(opened.partition(CONSUMER_OFFSETS_TOPIC, 0).read())
    assert [record.offset for record in found] == [0, 1, 2, 3]
    data = (out / f"{CONSUMER_OFFSETS_TOPIC}-0" / f"{0:020}.log").read_bytes()
    assert {data[each.position + MAGIC_AT] for each in batches_of(data)} == {magic}
    for record in found[2:]:  # that broker knows versions 0 and 1 of the value
        assert record.value is not None
        assert record.value[:2] == b"\0\1"
    assert_nothing_to_repair(out)


def commit_in_transaction(logs: LogDir, group: str, offset: int, producer_id: int) -> None:
    fields = BatchFields(is_transactional=True, producer_id=producer_id, producer_epoch=3)
    data = encode_batch([commit_record(group, 0, offset, 5000)], fields)
    logs.partition(CONSUMER_OFFSETS_TOPIC, 0).append(data, origin="coordinator")


def end_transaction(logs: LogDir, producer_id: int, marker: ControlType) -> None:
    data = encode_end_marker(
        EndMarker(marker, 0),
        offset=0,
        timestamp=6000,
        producer_id=producer_id,
        producer_epoch=3,
        partition_leader_epoch=0,
    )
    logs.partition(CONSUMER_OFFSETS_TOPIC, 0).append(data, origin="coordinator")


@pytest.mark.parametrize("ending", [ControlType.COMMIT, ControlType.ABORT])
def test_committed_offsets_of_transactions_are_reset(ending: ControlType, tmp_path: Path) -> None:
    """As a group coordinator counts them, when the transaction that is open has ended, too."""
    logs, where, out = tmp_path / "logs", tmp_path / "backups", tmp_path / "out"
    fill(logs, 60)
    with LogDir.open(logs, background=False) as opened:
        opened.create_topic(CONSUMER_OFFSETS_TOPIC, 1)
        for producer_id, group, marker in (
            (1, "committed", ControlType.COMMIT),
            (2, "aborted", ControlType.ABORT),
        ):
            commit(opened, group, 0, 5, 5000)
            commit_in_transaction(opened, group, 30, producer_id)
            end_transaction(opened, producer_id, marker)
        commit(opened, "open", 0, 7, 5000)
        commit_in_transaction(opened, "open", 30, 9)
        commit_in_transaction(opened, "low", 6, 9)
        commit(opened, "plain", 0, 25, 5000)
    backup([logs], where)
    result = restore(where, [out], Selection(to_offsets=((TopicPartition("orders", 0), 20),)))
    assert {(each.group, each.offset, each.end_offset) for each in result.clamped} == {
        ("committed", 30, 20),
        ("open", 30, 20),
        ("plain", 25, 20),
    }
    assert_nothing_to_repair(out)
    with LogDir.open(out, background=False) as opened:
        end_transaction(opened, 9, ending)
        latest = LatestRecords.of(opened.partition(CONSUMER_OFFSETS_TOPIC, 0))
        found = {}
        for key, (value, _) in latest.committed.items():
            decoded = read_group_record(key, value)
            assert decoded.value is not None
            found[decoded.key["group"]] = decoded.value["offset"]
    expected = {"committed": 20, "aborted": 5, "plain": 20, "open": 7}
    if ending is ControlType.COMMIT:
        expected |= {"open": 20, "low": 6}
    assert found == expected
    assert latest.pending == {}


@pytest.mark.slow
def test_committed_offsets_of_many_groups_are_reset(tmp_path: Path) -> None:
    logs, where, out = tmp_path / "logs", tmp_path / "backups", tmp_path / "out"
    fill(logs, 60)
    groups = [f"group-with-a-long-name-{number:06}" for number in range(30_000)]
    with LogDir.open(logs, background=False) as opened:
        opened.create_topic(CONSUMER_OFFSETS_TOPIC, 1)
        log = opened.partition(CONSUMER_OFFSETS_TOPIC, 0)
        for start in range(0, len(groups), 3000):
            records = [
                commit_record(group, number % 2, 30, 5000, number)
                for number, group in enumerate(groups[start : start + 3000])
            ]
            log.append(encode_batch(records), origin="coordinator")
    backup([logs], where)
    ends = tuple((TopicPartition("orders", number), 20 + number) for number in range(2))
    result = restore(where, [out], Selection(to_offsets=ends))
    assert len(result.clamped) == len(groups)
    expected = {(group, n % 2): 20 + n % 2 for n, group in enumerate(groups)}
    assert committed(out) == expected
    assert_nothing_to_repair(out)


def test_a_transaction_that_was_truncated_is_reported(tmp_path: Path) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 10)
    with (
        LogDir.open(logs, background=False) as opened,
        opened.transaction("t") as transaction,
    ):
        transaction.append("orders", b"x", partition=0, timestamp=20_000).result()
        transaction.append("orders", b"y", partition=0, timestamp=30_000).result()
    backup([logs], where)
    result = restore(
        where, [tmp_path / "out"], Selection(to_offsets=((TopicPartition("orders", 0), 6),))
    )
    assert [each.has_open_transaction for each in result.partitions[-2:]] == [True, False]


# -- targets


def test_the_target_must_be_empty(tmp_path: Path) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 4)
    backup([logs], where)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(BackupError, match="not empty"):
        restore(where, [tmp_path / "used"])
    with pytest.raises(BackupError, match="a file, not a directory"):
        restore(where, [tmp_path / "used" / "file"])
    with pytest.raises(BackupError, match="no backup found"):
        restore(tmp_path / "nowhere", [tmp_path / "out"])
    with pytest.raises(BackupError, match="no backup 'x'"):
        restore(where, [tmp_path / "out"], backup_id="x")
    with pytest.raises(BackupError, match="cannot be inside the log directory"):
        backup([logs], logs / "backups")
    with pytest.raises(NotALogDirError):
        backup([where], tmp_path / "other")


@pytest.mark.parametrize("is_missing", [True, False])
def test_an_object_that_is_not_what_it_was(is_missing: bool, tmp_path: Path) -> None:
    logs, where, out = tmp_path / "logs", tmp_path / "backups", tmp_path / "out"
    fill(logs, 60)
    backup([logs], where)
    (victim, *_) = sorted((where / "objects").iterdir())
    data = victim.read_bytes()
    if is_missing:
        victim.unlink()
    else:
        victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(JobError, match=victim.name):
        restore(where, [out])
    assert (out / STAGING).is_dir()
    with pytest.raises(InvalidNameError, match=STAGING):
        LogDir.open(out)
    with pytest.raises(JobError, match=victim.name):
        verify_backup(BackupStore.at(where), list_backups(where)[0], ThreadWorkers(1))
    victim.write_bytes(data)
    assert restore(where, [out]).fetched_files < len(list_backups(where)[0].dirs[0].files)
    assert tree(out) == tree(logs)


@pytest.mark.parametrize("options", [{"reads_all": True}, {"verifies": True}])
def test_a_corrupt_object_is_sent_again(
    options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 60)
    first = backup([logs], where).backup_id
    victims = sorted((where / "objects").iterdir())
    for victim in victims:
        data = victim.read_bytes()
        victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert backup([logs], where).sent_objects == 0  # its name and size are trusted
        healed = backup([logs], where, **options)
        assert (healed.sent_objects, healed.sent_bytes) == (1, len(data))
        assert f"{victim}: checksum mismatch" in caplog.text
        assert victim.read_bytes() == data
    assert healed.verified_objects == (len(victims) if "verifies" in options else None)
    restore(where, [tmp_path / "out"], backup_id=first)
    assert tree(tmp_path / "out") == tree(logs)


def test_a_corrupt_object_of_an_older_backup_is_sent_again(tmp_path: Path) -> None:
    """Not one of the last backup: of a killed one, say."""
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 60)
    backup([logs], where)
    (manifest,) = (where / "manifests").iterdir()
    manifest.unlink()
    victim, *_ = sorted((where / "objects").iterdir())
    data = victim.read_bytes()
    victim.write_bytes(bytes(len(data)))
    backup([logs], where, verifies=True)
    assert victim.read_bytes() == data


def test_an_interrupted_restore_is_not_continued_by_another(tmp_path: Path) -> None:
    logs, where, out = tmp_path / "logs", tmp_path / "backups", tmp_path / "out"
    fill(logs, 60)
    backup([logs], where)
    (victim, *_) = sorted((where / "objects").iterdir())
    data = victim.read_bytes()
    victim.unlink()
    with pytest.raises(JobError):
        restore(where, [out])
    victim.write_bytes(data)
    with pytest.raises(BackupError, match="another restore was interrupted here"):
        restore(where, [out], Selection(until_ms=5000))
    restore(where, [out])
    assert not (out / MARKER).exists()
    (out / MARKER).write_bytes(b"{")
    with pytest.raises(BackupError, match="not written by a restore"):
        restore(where, [out])


@pytest.mark.slow
def test_a_restore_interrupted_between_two_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has no marker any longer, the other still has."""
    dirs, out = [tmp_path / "a", tmp_path / "b"], [tmp_path / "x", tmp_path / "y"]
    with LogDir.open(*dirs, background=False) as logs:
        logs.create_topic("orders", 2)
        append(logs, range(10))
    backup(dirs, tmp_path / "backups")
    for calls in range(500):
        for path in out:
            shutil.rmtree(path, ignore_errors=True)
        with kills_on_disk(monkeypatch, RESTORE, Kill(calls)), suppress(KilledError):
            restore(tmp_path / "backups", out, workers=ThreadWorkers(1))
        if [(path / MARKER).exists() for path in out] == [False, True] and tree(out[0]):
            break
    with pytest.raises(BackupError, match="not empty"):
        restore(tmp_path / "backups", [dirs[0], out[1]])
    kept = shutil.move(out[0], tmp_path / "kept")
    with pytest.raises(BackupError, match=r"missing or empty now; remove .*y as well"):
        restore(tmp_path / "backups", out)
    shutil.move(kept, out[0])
    result = restore(tmp_path / "backups", out)
    assert len(result.partitions) == 2
    assert [tree(path) for path in out] == [tree(path) for path in dirs]


# -- manifests


def test_a_manifest_is_read_as_it_was_written() -> None:
    files = (
        SavedFile("meta.properties", 3, 5, (), b"a=b"),
        SavedFile("a-0/x.log", 700, 6, ("a" * 64, "b" * 64), None, None),
    )
    manifest = Manifest("id", 7, (SavedDir("/data", files, (), ("a-0",), is_live=True),), 512)
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert manifest.objects() == {"a" * 64: 512, "b" * 64: 188}


@pytest.mark.parametrize("path", ["../x", "a/../x", "/etc/x", "a/b/c", "a//b", "."])
def test_a_manifest_names_no_file_elsewhere(path: str) -> None:
    manifest = Manifest("id", 7, (SavedDir("/data", (SavedFile(path, 0, 0, (), b""),)),))
    with pytest.raises(BackupError, match="not the path of a file in a log directory"):
        decode_manifest(encode_manifest(manifest))


def test_a_manifest_that_was_changed() -> None:
    data = encode_manifest(Manifest("id", 7, (SavedDir("/data", ()),)))
    for wrong in (data.replace(b"/data", b"/tada"), data[:-3], data[1:], b"", b"{}", b"[]"):
        with pytest.raises(BackupError):
            decode_manifest(wrong)
    with pytest.raises(UnsupportedError):
        decode_manifest(data.replace(b'"version":1', b'"version":2'))


def test_a_corrupt_newest_manifest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It blocks nothing but a restore that does not name a backup."""
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 20)
    oldest = backup([logs], where).backup_id
    older = backup([logs], where).backup_id
    fill(logs, 20, start=20)
    newest = backup([logs], where).backup_id
    path = where / "manifests" / f"{newest}.json"
    path.write_bytes(path.read_bytes().replace(b'"isLive":false', b'"isLive":true '))
    with pytest.raises(BackupError, match=rf"{newest}.json: its checksum .*--backup {older}\)"):
        restore(where, [tmp_path / "out"])
    assert not (tmp_path / "out").exists()
    restore(where, [tmp_path / "out"], backup_id=older)
    assert [getattr(each, "reason", None) is not None for each in find_backups(where)] == [
        False,
        False,
        True,
    ]
    assert [each.backup_id for each in list_backups(where)] == [oldest, older]
    objects = set(BackupStore.at(where).object_sizes())
    pruned = prune(where, 1)
    assert (pruned.backups, pruned.objects) == ((oldest,), 0)
    assert set(BackupStore.at(where).object_sizes()) == objects
    assert "objects are not removed" in caplog.text
    caplog.clear()
    last = backup([logs], where, keep=1)
    assert f"{newest}.json: its checksum" in caplog.text
    assert last.pruned is not None
    assert set(last.pruned.backups) == {older, newest}
    restore(where, [tmp_path / "last"])
    assert tree(tmp_path / "last") == tree(logs)


# -- kills


def check_all(where: Path, trees: dict[str, dict[str, bytes]], out: Path) -> None:
    """Every backup that exists is complete."""
    for backup_id in BackupStore.at(where).backup_ids():
        shutil.rmtree(out, ignore_errors=True)
        restore(where, [out], backup_id=backup_id)
        if backup_id in trees:
            assert tree(out) == trees[backup_id]


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    fill(logs, 20)
    first = tree(logs)
    base = tmp_path / "base"
    backup_id = backup([logs], base).backup_id
    fill(logs, 60, start=20)
    second = tree(logs)
    for calls in range(500):
        where, kill = tmp_path / "backups", Kill(calls)
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(base, where)
        with kills_on_disk(monkeypatch, BACKUP_STORE, kill), suppress(KilledError):
            backup([logs], where, keep=1, workers=ThreadWorkers(1))
        check_all(where, {backup_id: first}, out)
        backup([logs], where, keep=1)
        shutil.rmtree(out)
        restore(where, [out])
        assert tree(out) == second
        assert set(BackupStore.at(where).object_sizes()) == set(list_backups(where)[0].objects())
        if not kill.has_struck:
            break
    assert 40 < calls < 499


@pytest.mark.slow
@pytest.mark.parametrize("is_done", [True] if EFFORT == 1 else [False, True])
def test_killed_at_any_request(
    is_done: bool, tmp_path: Path, seaweed: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    fill(logs, 30)
    first = tree(logs)
    for requests in range(100):
        where, kill = seaweed.path(f"backup-kill-{is_done}-{requests}"), Kill(requests)
        backup_id = backup([logs], where).backup_id
        fill(logs, 20, start=100 * requests)
        with kills_in_store(monkeypatch, kill, is_done=is_done), suppress(KilledError):
            backup([logs], where, keep=1, workers=ThreadWorkers(1))
        check_all(where, {backup_id: first}, out)
        backup([logs], where, keep=1)
        shutil.rmtree(out)
        restore(where, [out])
        first = tree(logs)
        assert tree(out) == first
        if not kill.has_struck:
            break
    assert 4 < requests < 99


@pytest.mark.slow
@pytest.mark.parametrize("truncates", [False, True])
def test_a_restore_killed_at_any_moment(
    truncates: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 16)
    backup([logs], where)
    selection = Selection(until_ms=9000) if truncates else Selection()
    expected = {n: [r for r in rows if 2 * r[0] + n < 9] for n, rows in records_of(logs).items()}
    for calls in range(0, 2000, 5 if truncates else 1):
        out, kill = tmp_path / "out", Kill(calls)
        shutil.rmtree(out, ignore_errors=True)
        with kills_on_disk(monkeypatch, RESTORE, kill):
            try:
                restore(where, [out], selection, workers=ThreadWorkers(1))
            except KilledError:
                is_incomplete = (out / STAGING).exists()
                assert is_incomplete or len(list(out.glob("orders-*"))) in {0, 2}
        if kill.has_struck:
            with suppress(BackupError):  # not empty: it was complete, except for an fsync
                restore(where, [out], selection)
        if truncates:
            assert records_of(out) == expected
            assert_nothing_to_repair(out)
        else:
            assert tree(out) == tree(logs), calls
        if not kill.has_struck:
            break
    assert 50 < calls < 1999


def batch_ends(file: Path) -> Iterator[int]:
    data, at = file.read_bytes(), 0
    while at < len(data):
        header = BatchHeader.unpack(data, at)
        yield header.base_offset + header.last_offset_delta + 1
        at += header.size_bytes


@pytest.mark.slow
def test_a_log_ends_with_a_batch_wherever_it_is_truncated(tmp_path: Path) -> None:
    """Kafka's own batches have several records each. What is restored ends as its checkpoints say,
    so that nothing is left to repair."""
    case, where = GoldenCase("multiseg"), tmp_path / "backup"
    backup([case.root], where)
    at = TopicPartition("multiseg", 0)
    ends = [end for file in case.partition_dir.glob("*.log") for end in batch_ends(file)]
    for number, offset in enumerate((0, 1, 155, 156, 157, *range(765, 785), 1499, 1500)):
        target = tmp_path / f"restored-{number}"
        done = restore(where, [target], Selection(to_offsets=((at, offset),)))
        expected = max([end for end in ends if end <= offset], default=0)
        assert [part.end_offset for part in done.partitions] == [expected], offset
        assert_nothing_to_repair(target)
        shutil.rmtree(target)

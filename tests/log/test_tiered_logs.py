"""Tiered topics: the records that Kafka's consumer read through the broker."""

from __future__ import annotations

import pickle
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import stratalog
from stratalog.bulk.options import ReadOptions, Subscription
from stratalog.bulk.read_planning import plan_read
from stratalog.bulk.read_task import ReadTask
from stratalog.errors import CorruptError, SegmentGoneError, TieredLogError
from stratalog.log.reader import IsolationLevel
from stratalog.log.tiered_view import TieredView
from stratalog.storage.remote_path import location
from stratalog.storage.tiered_store import TieredStore
from tests.golden_tiered import Row, TieredCase, consumed, unpack

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.record import Record
    from stratalog.log.partition_view import PartitionView
    from tests.stores import S3Server


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TieredCase]:
    return {str(case): case for case in unpack(tmp_path_factory.mktemp("tiered"))}


def row(record: Record) -> Row:
    headers = tuple((header.key, header.value) for header in record.headers)
    return record.offset, record.timestamp, record.key, record.value, headers


def read(view: PartitionView, isolation: IsolationLevel) -> list[Row]:
    return [row(record) for record in view.read(isolation=isolation)]


@pytest.mark.slow
def test_every_record_of_every_run(cases: dict[str, TieredCase]) -> None:
    for case in cases.values():
        logs = case.open()
        for topic, number, facts in case.partitions():
            with logs.partition(topic, number) as view:
                assert view.log_start_offset == facts["list_offsets"]["earliest"]["offset"]
                assert view.log_end_offset == facts["list_offsets"]["latest"]["offset"]
                for isolation in IsolationLevel:
                    expected = consumed(facts, isolation.value)
                    assert read(view, isolation) == expected, (case, topic, isolation)
                    columns = view.read_columns(isolation=isolation, columns=["offset", "value"])
                    table = columns.read_all()
                    assert table["offset"].to_pylist() == [each[0] for each in expected]
                    assert table["value"].to_pylist() == [each[3] for each in expected]


def test_which_segment_serves_which_offsets(cases: dict[str, TieredCase]) -> None:
    """As Kafka's own RemoteLogMetadataCache answers for each log directory."""
    compared = 0
    for case in cases.values():
        for expected in case.remote_segments:
            for lookup in expected["lookups"]:
                dirs = dict.fromkeys([case.path / lookup["logdir"], case.log_dirs[-1]])
                logs = stratalog.open_dirs(*dirs, remote=case.remote, remote_keys=case.keys)
                assert logs.tier is not None
                view = logs.partition(expected["topic"], expected["partition"])
                if not isinstance(view, TieredView):
                    assert not lookup["served_by"]
                    continue
                first = lookup["log_start_offset_checkpoint"] or 0
                found = view.remote.served(view.lineage, first)
                assert _spread(
                    (each.first_offset, each.last_offset, each.segment.segment_id) for each in found
                ) == _spread(
                    (each["from"], each["to"], each["segment_id"]) for each in lookup["served_by"]
                ), (case, expected["topic"])
                compared += len(found)
    assert compared > 100


def _spread(ranges: object) -> dict[int, str]:
    return {
        offset: segment
        for first, last, segment in ranges  # type: ignore[attr-defined]
        for offset in range(first, last + 1)
    }


def test_lookups_by_offset_and_time(cases: dict[str, TieredCase]) -> None:
    for name in ("lts-basic", "lts-unclean", "aiven-zstd"):
        case = cases[name]
        logs = case.open()
        for topic, number, facts in case.partitions():
            view = logs.partition(topic, number)
            rows = consumed(facts, "read_uncommitted")
            for offset, timestamp, _, value, _ in rows[:: max(1, len(rows) // 9)]:
                located = view.locate(offset)
                assert located is not None
                assert located.record.value == value
                found = view.find_time(timestamp)
                first = next(each for each in rows if each[1] >= timestamp)
                assert found is not None
                assert found.offset <= first[0]
            for asked in facts["list_offsets"]["for_timestamp"]:
                found = view.find_time(asked["asked"])
                answer = asked["answer"]
                expected = -1 if answer is None else answer["offset"]
                assert (-1 if found is None else found.offset) == expected


@pytest.mark.slow
def test_a_bucket_alone(cases: dict[str, TieredCase]) -> None:
    """Complete segments, by their manifests; no record of a transaction whose end is not there."""
    for case in (each for each in cases.values() if each.is_aiven):
        logs = stratalog.open_dirs(remote=case.remote, remote_keys=case.keys)
        for topic, number, facts in case.partitions():
            view = logs.partition(topic, number)
            start = facts["list_offsets"]["earliest"]["offset"]
            for isolation in IsolationLevel:
                end = view.last_stable_offset
                if isolation is IsolationLevel.READ_UNCOMMITTED:
                    end = view.log_end_offset
                    assert end == facts["list_offsets"]["latest_tiered"]["offset"] + 1
                expected = [row for row in consumed(facts, isolation.value) if row[0] < end]
                assert [each for each in read(view, isolation) if each[0] >= start] == expected


@pytest.mark.slow
def test_splits_read_the_same_in_tasks(cases: dict[str, TieredCase]) -> None:
    schema = pa.schema([("topic", pa.string()), ("offset", pa.int64()), ("value", pa.binary())])
    for name in ("lts-unclean", "aiven-zstd", "aiven-enc", "lts-basic"):
        case = cases[name]
        store = TieredStore.found_at(case.remote, keys=case.keys)
        for topic, number, facts in case.partitions():
            for isolation in IsolationLevel:
                for count in (None, 7):
                    options = ReadOptions(
                        paths=tuple(case.log_dirs),
                        subscription=Subscription(assigned=((topic, number),)),
                        isolation=isolation,
                        min_partitions=count,
                        remote=store,
                    )
                    splits = pickle.loads(pickle.dumps(plan_read(options).splits))
                    task = ReadTask(schema)
                    found = [batch for split in splits for batch in task.read(split)]
                    rows = [
                        (each["offset"], each["value"])
                        for batch in found
                        for each in batch.to_pylist()
                    ]
                    expected = [(e[0], e[3]) for e in consumed(facts, isolation.value)]
                    assert sorted(rows) == expected, (case, topic, count)


@pytest.mark.slow
def test_tiered_topics_in_s3(cases: dict[str, TieredCase], seaweed: S3Server) -> None:
    for case in cases.values():
        remote = seaweed.upload(case.remote, f"tiered/{case}/remote")
        dirs = [seaweed.upload(path, f"tiered/{case}/{path.name}") for path in case.log_dirs]
        logs = stratalog.open_dirs(
            *dirs, remote=remote, remote_keys=case.keys, storage_options=seaweed.options
        )
        for topic, number, facts in case.partitions():
            view = logs.partition(topic, number)
            for isolation in IsolationLevel:
                assert read(view, isolation) == consumed(facts, isolation.value), (case, topic)


# -- what is wrong is said


def test_without_the_key(cases: dict[str, TieredCase], tmp_path: Path) -> None:
    case = cases["aiven-enc"]
    logs = stratalog.open_dirs(*case.log_dirs, remote=case.remote)
    with pytest.raises(TieredLogError, match=r"key pair 'key-a'.*--remote-key"):
        list(logs.partition("plain", 0).read())
    other = tmp_path / "no.pem"
    other.write_text("nothing")
    logs = stratalog.open_dirs(*case.log_dirs, remote=case.remote, remote_keys=[str(other)])
    with pytest.raises(TieredLogError, match="not a private key"):
        list(logs.partition("plain", 0).read())
    key = ec.generate_private_key(ec.SECP256R1())
    other.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    logs = stratalog.open_dirs(*case.log_dirs, remote=case.remote, remote_keys=[str(other)])
    with pytest.raises(TieredLogError, match=r"key-a.*not an RSA key"):
        list(logs.partition("plain", 0).read())


def test_a_missing_segment_is_an_error(cases: dict[str, TieredCase], tmp_path: Path) -> None:
    case = cases["lts-basic"]
    remote = shutil.copytree(case.remote, tmp_path / "remote")
    lost = sorted(remote.glob("kafka-tiered-storage/plain-0-*/*.log"))[2]
    lost.unlink()
    logs = stratalog.open_dirs(*case.log_dirs, remote=remote)
    with pytest.raises(SegmentGoneError, match=lost.name):
        list(logs.partition("plain", 0).read())


def test_a_missing_manifest_or_segment_of_the_middle_is_an_error(
    cases: dict[str, TieredCase], tmp_path: Path
) -> None:
    case = cases["aiven-zstd"]
    remote = shutil.copytree(case.remote, tmp_path / "remote")
    second = sorted(remote.glob("plain-*/0/*.rsm-manifest"))[1]
    second.unlink()
    with pytest.raises(TieredLogError, match="no remote segment has the offsets 90 to 169"):
        stratalog.open_dirs(remote=remote).partition("plain", 0)
    with pytest.raises(TieredLogError, match="missing, although"):
        list(stratalog.open_dirs(*case.log_dirs, remote=remote).partition("plain", 0).read())


def test_corrupt_chunks_are_errors(cases: dict[str, TieredCase], tmp_path: Path) -> None:
    for name in ("aiven-zstd", "aiven-enc", "aiven-plain"):
        case = cases[name]
        remote = shutil.copytree(case.remote, tmp_path / name)
        (damaged,) = list(remote.rglob("plain-*/0/00000000000000000000-*.log"))
        raw = bytearray(damaged.read_bytes())
        raw[len(raw) // 2] ^= 1
        damaged.write_bytes(raw)
        logs = stratalog.open_dirs(*case.log_dirs, remote=remote, remote_keys=case.keys)
        with pytest.raises(CorruptError, match=damaged.name):
            list(logs.partition("plain", 0).read())


def test_no_store_is_said(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(TieredLogError, match="no tiered topics found"):
        TieredStore.found_at(tmp_path / "nothing")
    with pytest.raises(TieredLogError, match="no tiered topics found"):
        TieredStore.found_at(location("memory://no-such-place", {}))


def test_the_test_store_needs_its_metadata(cases: dict[str, TieredCase]) -> None:
    case = cases["lts-unclean"]
    logs = stratalog.open_dirs(case.path / "logdir-2", remote=case.remote)
    if logs.tier is not None and logs.tier.logs is None:
        with pytest.raises(TieredLogError, match="__remote_log_metadata"):
            logs.partition("fork", 0)

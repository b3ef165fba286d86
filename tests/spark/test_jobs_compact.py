"""Compaction on Spark: the files of a local round, whatever happens to workers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from stratalog.bulk.compact import ClusterTasks
from stratalog.bulk.workers import ThreadWorkers
from stratalog.errors import CorruptBatchError, JobError, LogDirLockedError
from stratalog.format.encode_columns import encode_columns
from stratalog.format.names import TopicPartition
from stratalog.log_dir import LogDir
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.distributed import DistributedCleaner
from stratalog.maintenance.interrupted_changes import CLEANING_DIRECTORY
from stratalog.service.cleaners import CleaningStatus
from stratalog.spark.jobs import compact
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from stratalog.maintenance.cleaning.distributed import MapPart, MapTask

NOW_MS = 1_700_000_000_000
CONFIG = {"log.segment.bytes": "262144"}
KEYS = 700


@pytest.fixture(scope="module")
def dirty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of a compacted topic, many small segments, tombstones; one topic that is not
    compacted."""
    root = tmp_path_factory.mktemp("dirty") / "logs"
    rng = np.random.default_rng(5)
    with LogDir.open(root, config=CONFIG, background=False, now_ms=lambda: NOW_MS) as logs:
        logs.create_topic("state", 2, config={"cleanup.policy": "compact"})
        logs.create_topic("events", 1)
        for topic, partition in (("state", 0), ("state", 1), ("events", 0)):
            for _ in range(10):
                keys = rng.integers(0, KEYS, 2000).tolist()
                values = [None if rng.random() < 0.05 else rng.bytes(40) for _ in keys]
                rows = pa.record_batch(
                    {
                        "key": pa.array([b"key %d" % key for key in keys], pa.binary()),
                        "value": pa.array(values, pa.binary()),
                    }
                )
                for part in encode_columns(rows, timestamp_ms=NOW_MS):
                    logs.partition(topic, partition).append_many(part.batches)
    return root


def files_of(root: Path) -> Mapping[str, bytes]:
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in sorted(root.rglob("*"))
        if file.is_file() and not file.name.startswith((".", "meta"))
    }


def test_same_files_as_the_local_cleaner(spark: SparkSession, dirty: Path, tmp_path: Path) -> None:
    local, spread = tmp_path / "local", tmp_path / "spread"
    shutil.copytree(dirty, local)
    shutil.copytree(dirty, spread)
    settings = {**CONFIG, "log.segment.delete.delay.ms": "0"}
    with LogDir.open(local, config=settings, create=False, background=False) as logs:
        while logs.cleaning.clean_dirtiest(Cleaner()) is not None:
            pass
        expected = {tp.topic_partition: tp.passes for tp in logs.cleaning.states()}
    result = compact(spark, spread, config=settings)
    assert {each.topic_partition: 1 for each in result.passes} == expected
    assert not result.failed
    found, kept = files_of(spread), files_of(local)
    assert found.keys() == kept.keys()
    # A horizon is the moment of the round plus a day, so batches with tombstones differ in that.
    assert {name for name in found if found[name] != kept[name]} <= {
        name for name in found if name.startswith("state-") and name.endswith(".log")
    }
    assert last_values(spread) == last_values(local) == last_values(dirty)
    assert result.records > 0
    assert result.bytes_written < result.size_bytes


def last_values(root: Path) -> Mapping[tuple[int, bytes | None], bytes | None]:
    found: dict[tuple[int, bytes | None], bytes | None] = {}
    with LogDir.open(root, config=CONFIG, create=False, background=False) as logs:
        for partition in (0, 1):
            for record in logs.partition("state", partition).read():
                found[partition, record.key] = record.value
    return found


def test_nothing_is_due_twice(spark: SparkSession, dirty: Path, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    shutil.copytree(dirty, root)
    assert len(compact(spark, root, config=CONFIG, topics=["state"]).passes) == 2
    again = compact(spark, root, config=CONFIG, is_forced=True)
    assert again.passes == ()
    assert compact(spark, root, config=CONFIG, topics=["events"], is_forced=True).passes == ()


def test_damage_is_told_and_changes_nothing(
    spark: SparkSession, dirty: Path, tmp_path: Path
) -> None:
    root = tmp_path / "logs"
    shutil.copytree(dirty, root)
    log = root / "state-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[5000] ^= 1
    log.write_bytes(data)
    before = {name for name in files_of(root) if name.startswith("state-0")}
    result = compact(spark, root, config=CONFIG)
    (failed,) = result.failed
    expected = damage_met_locally(root)
    assert isinstance(failed.error, CorruptBatchError)
    assert (failed.error.path, failed.error.position) == (log, expected.position)
    assert str(failed.error) == str(expected)
    assert "CRC" in failed.error.reason
    assert {name for name in files_of(root) if name.startswith("state-0")} == before
    assert not (root / "state-0" / CLEANING_DIRECTORY).exists()
    assert len(result.passes) == 2  # the other partition was compacted all the same


def damage_met_locally(root: Path) -> CorruptBatchError:
    with LogDir.open(root, config=CONFIG, create=False, background=False) as logs:
        report = logs.cleaning.clean(TopicPartition("state", 0), Cleaner())
    assert report is not None
    assert isinstance(report.error, CorruptBatchError)
    return report.error


@pytest.mark.slow
def test_log_that_is_cut_while_tasks_read_it(dirty: Path, tmp_path: Path) -> None:
    """A pass that is aborted is no failure: the partition is cleaned the next time."""
    root = tmp_path / "logs"
    shutil.copytree(dirty, root)
    state = TopicPartition("state", 0)
    with LogDir.open(root, config=CONFIG, create=False, background=False) as logs:
        log = logs.partition(*state)
        sealed = log.maintenance.segments[1]

        class Cutting(ClusterTasks):
            def map_all(self, tasks: Sequence[MapTask]) -> list[MapPart]:
                log.truncate_to(sealed.base_offset + 1)
                return super().map_all(tasks)

        assert logs.cleaning.clean(state, DistributedCleaner(Cutting(ThreadWorkers(2)))) is None
        (told,) = (each for each in logs.cleaning.states() if each.topic_partition == state)
        assert (told.status, told.error) == (CleaningStatus.IDLE, None)
        assert not (root / "state-0" / CLEANING_DIRECTORY).exists()
        again = DistributedCleaner(ClusterTasks(ThreadWorkers(2)))
        report = logs.cleaning.clean(state, again, is_forced=True)
        assert report is not None
        assert report.error is None


def test_what_is_no_error_of_ours_stays_a_job_error(dirty: Path, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    shutil.copytree(dirty, root)

    class Lost(ThreadWorkers):
        def run(self, *_: object, **__: object) -> list[Any]:
            raise JobError("an executor was lost")

    with LogDir.open(root, config=CONFIG, create=False, background=False) as logs:
        tasks = ClusterTasks(Lost(1))
        report = logs.cleaning.clean(TopicPartition("state", 0), DistributedCleaner(tasks))
    assert report is not None
    assert isinstance(report.error, JobError)


def test_locked_directory(spark: SparkSession, dirty: Path) -> None:
    with Disk().lock(dirty / ".lock"), pytest.raises(LogDirLockedError):
        compact(spark, dirty)

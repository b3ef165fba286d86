"""Verify and reindex on Spark say and write what they do without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.bulk.workers import ThreadWorkers, pack
from stratalog.errors import JobError, LogDirLockedError
from stratalog.maintenance.verify.directory import verify_directory
from stratalog.partitions.lock import lock_dirs
from stratalog.spark.failures import message_of
from stratalog.spark.jobs import findings_frame, reindex, verify
from stratalog.spark.workers import SparkWorkers
from stratalog.storage.disk import Disk
from tests.golden.cases import GOLDEN_DIR, GoldenCase
from tests.storage.segments import files_of, remove_derived

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_the_same_findings(spark: SparkSession) -> None:
    path = GOLDEN_DIR / "u-badcrc" / "before"
    result = verify(spark, [path])
    here = verify_directory(path)
    assert sorted(result.findings) == sorted(here.findings)
    assert result.report.counts == here.counts
    assert (result.records, result.size_bytes) == (here.counts.records, here.counts.size_bytes)


def test_findings_as_a_frame(spark: SparkSession) -> None:
    result = verify(spark, partitions=[GOLDEN_DIR / "u-badcrc" / "before" / "u-badcrc-0"])
    frame = findings_frame(spark, result)
    errors = frame.where("severity = 'error'").select("code", "position").collect()
    assert [tuple(row) for row in errors] == [("bad-batch", 978)]
    assert frame.columns == ["severity", "code", "path", "position", "what", "advice"]


def test_no_findings_are_a_frame_too(spark: SparkSession) -> None:
    result = verify(spark, [GOLDEN_DIR / "multiseg"])
    assert findings_frame(spark, result).count() == 0


def test_reindex_writes_what_kafka_wrote(spark: SparkSession, tmp_path: Path) -> None:
    partition = GoldenCase("txn").copy_to(tmp_path) / "txn-0"
    expected = files_of(partition)
    remove_derived(partition)
    interval_bytes = int(GoldenCase("txn").manifest["topic_config"]["index.interval.bytes"])
    result = reindex(spark, [partition], interval_bytes=interval_bytes)
    assert files_of(partition) == expected
    assert result.changed_files == len(expected) - len(result.segments)
    assert result.corrupt == ()


def test_reindex_is_refused_while_somebody_writes(spark: SparkSession, tmp_path: Path) -> None:
    root = GoldenCase("txn").copy_to(tmp_path)
    with lock_dirs(Disk(), [root]), pytest.raises(LogDirLockedError):
        reindex(spark, [root / "txn-0"])


def test_groups_are_of_about_one_size_and_large_tasks_come_first() -> None:
    mebibyte = 1 << 20
    sizes = [1, 50 * mebibyte, 3, 200 * mebibyte, 2]
    groups = pack(sizes, lambda size: size, slots=2, group_bytes=128 * mebibyte)
    assert groups == [[200 * mebibyte], [50 * mebibyte, 3, 2, 1]]
    assert pack([], lambda _: 1, slots=4) == []
    assert len(pack([10] * 100, lambda size: size, slots=4)) == 4


def _refuse(task: int) -> int:
    if task == 3:
        raise JobError("task 3 cannot be done")
    return task * 2


def _break(task: int) -> int:
    return 1 // task


def test_what_a_task_raises_is_told_in_its_own_words(spark: SparkSession) -> None:
    for workers in (SparkWorkers(spark), ThreadWorkers(2)):
        assert workers.run(_refuse, [[1, 2], [4]], title="t") == [2, 4, 8]
        with pytest.raises(JobError, match=r"\Atask 3 cannot be done\Z"):
            workers.run(_refuse, [[1, 2], [3]], title="t")
    with pytest.raises(JobError, match=r"ZeroDivisionError: .*by zero") as told:
        SparkWorkers(spark).run(_break, [[0]], title="t")
    assert "\n" not in str(told.value)


def test_progress_is_told(spark: SparkSession) -> None:
    told: list[tuple[int, int]] = []
    ThreadWorkers(1, lambda done, total: told.append((done, total))).run(
        _refuse, [[1], [2]], title="t"
    )
    assert told == [(1, 2), (2, 2)]
    SparkWorkers(spark, lambda done, total: told.append((done, total))).run(
        _refuse, [[1], [2]], title="t"
    )
    assert all(done <= total for done, total in told)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed: stratalog.errors.NotALogDirError: /x: no such\n"
            "\tat org.apache.spark.Some(Thing.scala:1)",
            "/x: no such",
        ),
        ("Job aborted\nTraceback (most recent call last):\nValueError: no\n", "ValueError: no"),
        ("[PATH_NOT_FOUND] Path does not exist: file:/a. SQLSTATE: 42K03", None),
        ("", "RuntimeError"),
    ],
)
def test_the_line_of_an_error_that_tells(text: str, line: str | None) -> None:
    assert message_of(RuntimeError(text)) == (text if line is None else line)
